"""AMQP 0-9-1 frames as octets: all that the bench sends, encoded once before a round.

An encoder of its own, so that a bug in a broker's codec cannot hide itself here; it knows
the few methods a scenario needs, and of what comes back only frame heads, method numbers
and the reply texts of errors.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Final

PROTOCOL_HEADER: Final = b"AMQP\x00\x00\x09\x01"
METHOD, HEADER, BODY, HEARTBEAT = 1, 2, 3, 8
FRAME_END: Final = 0xCE
NUMBER: Final = b"<-- a number -->"
"""Sixteen octets in a property block that the generator writes a number over."""
FRAME_OVERHEAD: Final = 8
FRAME_MAX: Final = 131072
CHANNEL_MAX: Final = 2047

START_OK, TUNE_OK = (10, 11), (10, 31)
CONNECTION_CLOSE, CONNECTION_CLOSE_OK = (10, 50), (10, 51)
CHANNEL_OPEN, CHANNEL_CLOSE = (20, 10), (20, 40)
DECLARE_OK: Final = (50, 11)

_HEAD: Final = struct.Struct(">BHI")
_IDS: Final = struct.Struct(">HH")


@dataclass(frozen=True, slots=True)
class Frame:
    """One frame: its kind, channel and payload, and the ids of its method if it has one."""

    kind: int
    channel: int
    payload: bytes

    @property
    def ids(self) -> tuple[int, int]:
        """Class and method number; (0, 0) for a frame that carries no method."""
        if self.kind != METHOD:
            return (0, 0)
        class_id, method_id = _IDS.unpack_from(self.payload)
        return (class_id, method_id)


def frame(kind: int, channel: int, payload: bytes) -> bytes:
    """Put head and end octet around a payload."""
    return _HEAD.pack(kind, channel, len(payload)) + payload + bytes((FRAME_END,))


def method(channel: int, ids: tuple[int, int], arguments: bytes = b"") -> bytes:
    """Encode a method frame from its ids and its already encoded arguments."""
    return frame(METHOD, channel, _IDS.pack(*ids) + arguments)


def shortstr(text: str) -> bytes:
    """Encode a short string; at most 255 octets."""
    octets = text.encode()
    return bytes((len(octets),)) + octets


def longstr(octets: bytes) -> bytes:
    """Encode a long string."""
    return struct.pack(">I", len(octets)) + octets


def split(buffer: bytes) -> tuple[list[Frame], bytes]:
    """Cut a buffer into its complete frames and the incomplete rest.

    Raises:
        ValueError: the end octet of a frame is not where its size puts it.
    """
    frames: list[Frame] = []
    offset = 0
    while len(buffer) - offset >= FRAME_OVERHEAD:
        kind, channel, size = _HEAD.unpack_from(buffer, offset)
        end = offset + _HEAD.size + size
        if end >= len(buffer):
            break
        if buffer[end] != FRAME_END:
            raise ValueError(f"no frame end after {size} octets of a type {kind} frame")
        frames.append(Frame(kind, channel, buffer[offset + _HEAD.size : end]))
        offset = end + 1
    return frames, buffer[offset:]


def reply_text(closing: Frame) -> str:
    """Read code and text of a channel.close or connection.close."""
    (code,) = struct.unpack_from(">H", closing.payload, 4)
    size = closing.payload[6]
    return f"{code} {closing.payload[7 : 7 + size].decode(errors='replace')}"


def queue_name_and_count(declare_ok: Frame) -> tuple[str, int]:
    """Read the name and the number of ready messages from a queue.declare-ok."""
    size = declare_ok.payload[4]
    (count,) = struct.unpack_from(">I", declare_ok.payload, 5 + size)
    return declare_ok.payload[5 : 5 + size].decode(), count


def start_ok(user: str, password: str) -> bytes:
    """Encode connection.start-ok with PLAIN and no capabilities.

    Without the capability connection.blocked a broker under alarm stops reading and says
    nothing, so that the generator need not know about alarms.
    """
    response = b"\0" + user.encode() + b"\0" + password.encode()
    arguments = longstr(b"") + shortstr("PLAIN") + longstr(response) + shortstr("en_US")
    return method(0, START_OK, arguments)


def tune_ok(heartbeat_s: int = 0) -> bytes:
    """Encode connection.tune-ok: usual sizes, no heartbeats unless they are asked for."""
    return method(0, TUNE_OK, struct.pack(">HIH", CHANNEL_MAX, FRAME_MAX, heartbeat_s))


def connection_open(vhost: str) -> bytes:
    """Encode connection.open."""
    return method(0, (10, 40), shortstr(vhost) + b"\0\0")


def connection_close() -> bytes:
    """Encode connection.close with 200."""
    return method(0, CONNECTION_CLOSE, struct.pack(">H", 200) + shortstr("done") + bytes(4))


def channel_open(channel: int = 1) -> bytes:
    """Encode channel.open."""
    return method(channel, CHANNEL_OPEN, b"\0")


def channel_close(channel: int = 1) -> bytes:
    """Encode channel.close with 200."""
    return method(channel, CHANNEL_CLOSE, struct.pack(">H", 200) + shortstr("done") + bytes(4))


def exchange_declare(
    name: str, kind: str, arguments: bytes = b"", *, durable: bool = False
) -> bytes:
    """Encode exchange.declare; `arguments` are table entries."""
    names = shortstr(name) + shortstr(kind) + bytes((durable << 1,))
    return method(1, (40, 10), b"\0\0" + names + longstr(arguments))


def exchange_delete(name: str) -> bytes:
    """Encode exchange.delete."""
    return method(1, (40, 20), b"\0\0" + shortstr(name) + b"\0")


def text_entry(key: str, text: str) -> bytes:
    """Encode a table entry that is a long string."""
    return shortstr(key) + b"S" + longstr(text.encode())


def number_entry(key: str, number: int) -> bytes:
    """Encode a table entry that is a 32 bit number."""
    return shortstr(key) + b"I" + struct.pack(">i", number)


def true_entry(key: str) -> bytes:
    """Encode a table entry that is set."""
    return shortstr(key) + b"t\1"


def queue_declare(
    name: str,
    *,
    durable: bool = False,
    passive: bool = False,
    is_stream: bool = False,
    arguments: bytes = b"",
) -> bytes:
    """Encode queue.declare; `arguments` are table entries."""
    bits = passive | durable << 1
    table = text_entry("x-queue-type", "stream") + arguments if is_stream else arguments
    return method(1, (50, 10), b"\0\0" + shortstr(name) + bytes((bits,)) + longstr(table))


def queue_bind(name: str, exchange: str, routing_key: str) -> bytes:
    """Encode queue.bind."""
    names = shortstr(name) + shortstr(exchange) + shortstr(routing_key)
    return method(1, (50, 20), b"\0\0" + names + b"\0" + longstr(b""))


def queue_delete(name: str) -> bytes:
    """Encode queue.delete, in use or not."""
    return method(1, (50, 40), b"\0\0" + shortstr(name) + b"\0")


def qos(prefetch_count: int) -> bytes:
    """Encode basic.qos for the consumers to come on the channel."""
    return method(1, (60, 10), struct.pack(">IHB", 0, prefetch_count, 0))


def consume(queue: str, tag: str, *, no_ack: bool) -> bytes:
    """Encode basic.consume."""
    names = shortstr(queue) + shortstr(tag)
    return method(1, (60, 20), b"\0\0" + names + bytes((no_ack << 1,)) + longstr(b""))


def get(queue: str, *, no_ack: bool) -> bytes:
    """Encode basic.get."""
    return method(1, (60, 70), b"\0\0" + shortstr(queue) + bytes((no_ack,)))


def confirm_select() -> bytes:
    """Encode confirm.select."""
    return method(1, (85, 10), b"\0")


def tx_select() -> bytes:
    """Encode tx.select."""
    return method(1, (90, 10))


def tx_commit() -> bytes:
    """Encode tx.commit."""
    return method(1, (90, 20))


def properties(
    *,
    headers: bytes = b"",
    priority: int | None = None,
    expiration: str = "",
    persistent: bool = True,
    content_type: str = "",
    correlation_id: str = "",
    message_id: str = "",
    timestamp_s: int | None = None,
    kind: str = "",
) -> bytes:
    """Encode a property block; `headers` are table entries, `kind` is the property type."""
    present = (
        (0x8000, shortstr(content_type) if content_type else b""),
        (0x2000, longstr(headers) if headers else b""),
        (0x1000, bytes((2 if persistent else 1,))),
        (0x0800, b"" if priority is None else bytes((priority,))),
        (0x0400, shortstr(correlation_id) if correlation_id else b""),
        (0x0100, shortstr(expiration) if expiration else b""),
        (0x0080, shortstr(message_id) if message_id else b""),
        (0x0040, b"" if timestamp_s is None else struct.pack(">Q", timestamp_s)),
        (0x0020, shortstr(kind) if kind else b""),
    )
    flags = sum(flag for flag, octets in present if octets)
    return struct.pack(">H", flags) + b"".join(octets for _, octets in present)


def publish(
    exchange: str, routing_key: str, body: bytes, *, persistent: bool, block: bytes = b""
) -> bytes:
    """Encode one publish: method, content header, body frames.

    `block` is the property block; without one there is only the delivery mode.
    """
    names = shortstr(exchange) + shortstr(routing_key)
    block = block or struct.pack(">HB", 0x1000, 2 if persistent else 1)
    parts = [
        method(1, (60, 40), b"\0\0" + names + b"\0"),
        frame(HEADER, 1, struct.pack(">HHQ", 60, 0, len(body)) + block),
    ]
    step = FRAME_MAX - FRAME_OVERHEAD
    parts += [frame(BODY, 1, body[at : at + step]) for at in range(0, len(body), step)]
    return b"".join(parts)


def body_offset(message: bytes, body_size: int) -> int:
    """Say where in an encoded publish of one body frame the body starts."""
    return len(message) - 1 - body_size
