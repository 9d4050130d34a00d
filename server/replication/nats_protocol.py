"""The client protocol of NATS, without a socket: received bytes to events, commands to bytes.

    bytes ─▶ Parser.receive ─▶ Info, Message, Ping, Pong, ServerError
    connect, subscribe, publish ─▶ bytes

Text lines that end with CRLF; a message has a line with its sizes, then headers and payload as they
are. Must not know JetStream.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from msgspec import DecodeError, json

CRLF: Final = b"\r\n"
HEADER_LINE: Final = b"NATS/1.0"
# INFO is the longest: it lists the servers of the cluster.
MAX_LINE_BYTES: Final = 65536
# The most that a server can be configured to accept.
MAX_MESSAGE_BYTES: Final = 64 * 1024 * 1024


class NatsProtocolError(Exception):
    """The server has sent what is not NATS."""


@dataclass(frozen=True, slots=True)
class Info:
    """What the server says about itself, first of all and whenever that changes."""

    fields: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Message:
    """A message of a subscription; `header` is as received, with its first line, or empty."""

    subject: str
    reply: str
    header: bytes
    payload: bytes

    @property
    def status(self) -> int:
        """The status of the server's own answers (404, 503, …); 0 in all other messages."""
        words = self.header[: self.header.find(CRLF)].split(None, 2) if self.header else ()
        return int(words[1]) if len(words) > 1 and words[1].isdigit() else 0

    @property
    def description(self) -> str:
        """The text that follows the status."""
        words = self.header[: self.header.find(CRLF)].split(None, 2)
        return words[2].decode("utf-8", "replace") if len(words) > 2 else ""

    def headers(self) -> dict[str, str]:
        """Names and values; of several values the last one."""
        lines = self.header.decode("utf-8", "replace").split("\r\n")[1:]
        pairs = (line.partition(":") for line in lines if line)
        return {name.strip(): value.strip() for name, _, value in pairs}


@dataclass(frozen=True, slots=True)
class Ping:
    """The server wants to know whether this client lives."""


@dataclass(frozen=True, slots=True)
class Pong:
    """The answer to a ping: everything sent before it was processed."""


@dataclass(frozen=True, slots=True)
class ServerError:
    """The server objects to something; it closes the connection after most of these."""

    text: str


Event = Info | Message | Ping | Pong | ServerError


class Parser:
    """Turns what is received into events; keeps what is incomplete."""

    def __init__(self) -> None:
        self._buffer = bytearray()
        # Nothing can be done with fewer bytes in the buffer than this.
        self._needed_bytes = 0
        # The message whose line has come: subject, reply, size of its header, size of it all.
        self._begun: tuple[str, str, int, int] | None = None

    def receive(self, data: bytes) -> list[Event]:
        """The events that these bytes complete.

        Raises:
            NatsProtocolError: this is not NATS
        """
        buffer = self._buffer
        buffer += data
        if len(buffer) < self._needed_bytes:
            return []
        events: list[Event] = []
        event: Event | None
        position = self._needed_bytes = 0
        while True:
            if self._begun is None:
                end = buffer.find(CRLF, position)
                if end < 0:
                    if len(buffer) - position > MAX_LINE_BYTES:
                        raise NatsProtocolError("a line is too long")
                    break
                event = self._line(bytes(buffer[position:end]))
                position = end + 2
            else:
                subject, reply, header_bytes, total_bytes = self._begun
                end = position + total_bytes
                if len(buffer) < end + 2:
                    self._needed_bytes = end + 2 - position
                    break
                if buffer[end : end + 2] != CRLF:
                    raise NatsProtocolError("a message is longer than its line says")
                content = position + header_bytes
                # A slice of the buffer itself would be one copy more.
                with memoryview(buffer) as view:
                    header, payload = bytes(view[position:content]), bytes(view[content:end])
                event = Message(subject, reply, header, payload)
                self._begun = None
                position = end + 2
            if event is not None:
                events.append(event)
        del buffer[:position]
        return events

    def _line(self, line: bytes) -> Event | None:
        name, _, rest = line.partition(b" ")
        match name.upper():
            case b"MSG" | b"HMSG":
                self._begun = _sizes(rest, has_header=len(name) == 4)
            case b"PING":
                return Ping()
            case b"PONG":
                return Pong()
            case b"INFO":
                return Info(_object(rest))
            case b"-ERR":
                return ServerError(rest.decode("utf-8", "replace").strip().strip("'"))
            case b"+OK":
                pass
            case _:
                raise NatsProtocolError(f"an unknown command: {line[:40]!r}")
        return None


def _sizes(rest: bytes, *, has_header: bool) -> tuple[str, str, int, int]:
    """Of `subject sid [reply] [header bytes] total bytes`."""
    words = rest.split()
    sizes = 2 if has_header else 1
    if len(words) - sizes not in (2, 3) or not all(word.isdigit() for word in words[-sizes:]):
        raise NatsProtocolError(f"a message with a wrong line: {rest[:80]!r}")
    total = int(words[-1])
    header = int(words[-2]) if has_header else 0
    if header > total or total > MAX_MESSAGE_BYTES:
        raise NatsProtocolError(f"a message with wrong sizes: {rest[:80]!r}")
    reply = words[2].decode() if len(words) - sizes == 3 else ""
    return words[0].decode(), reply, header, total


def _object(text: bytes) -> dict[str, Any]:
    try:
        return json.decode(text, type=dict[str, Any])
    except DecodeError as error:
        raise NatsProtocolError(f"an INFO that is no JSON: {error}") from error


def connect(fields: Mapping[str, object]) -> bytes:
    """The first command of a client."""
    return b"CONNECT " + json.encode(fields) + CRLF


def subscribe(subject: str, subscription: int) -> bytes:
    """Ask for the messages of a subject."""
    return b"SUB %s %d\r\n" % (subject.encode(), subscription)


def publish(
    subject: str, reply: str, headers: bytes, payload: Sequence[bytes | memoryview]
) -> list[bytes | memoryview]:
    """A message as parts to be written one after another.

    Args:
        subject: where to
        reply: the subject of the answer; with headers it is needed, else it may be empty
        headers: lines of `Name: value`, each with its CRLF; empty for none
        payload: parts that are the content when joined
    """
    size = sum(map(len, payload))
    if not headers:
        names = f"{subject} {reply}" if reply else subject
        return [b"PUB %s %d\r\n" % (names.encode(), size), *payload, CRLF]
    header = b"%b\r\n%b\r\n" % (HEADER_LINE, headers)
    line = b"HPUB %s %s %d %d\r\n" % (
        *(subject.encode(), reply.encode()),
        *(len(header), len(header) + size),
    )
    return [line + header, *payload, CRLF]


PING: Final = b"PING\r\n"
PONG: Final = b"PONG\r\n"
