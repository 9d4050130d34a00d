"""What a client says and hears, in octets: pamqp speaks for the client, so that no fault is ours.

Used by the tests that feed the broker's rooms without a socket.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from itertools import pairwise
from typing import NamedTuple, TypeVar

from pamqp import base, commands
from pamqp import body as pamqp_body
from pamqp import frame as pamqp_frame
from pamqp import header as pamqp_header
from pamqp import heartbeat as pamqp_heartbeat

FRAME_MAX = 4096
ONE_BODY = FRAME_MAX - 8

F = TypeVar("F", bound=base.Frame)


class Content(NamedTuple):
    """A method of the broker together with the content that follows it."""

    method: base.Frame
    properties: commands.Basic.Properties
    body: bytes
    body_sizes: tuple[int, ...]


Heard = tuple[int, base.Frame | Content | None]  # channel and what; None is a heartbeat


def frame(kind: int, channel: int, payload: bytes, end: int = 0xCE) -> bytes:
    """Any frame, right or wrong."""
    return struct.pack(">BHI", kind, channel, len(payload)) + payload + bytes((end,))


def method(channel: int, what: base.Frame) -> bytes:
    """A method frame."""
    return pamqp_frame.marshal(what, channel)


def header(
    channel: int, body_size: int, properties: commands.Basic.Properties | None = None
) -> bytes:
    """A content header frame."""
    content = pamqp_header.ContentHeader(
        body_size=body_size, properties=properties or commands.Basic.Properties()
    )
    return pamqp_frame.marshal(content, channel)


def bodies(channel: int, octets: bytes, sizes: Iterable[int]) -> bytes:
    """Body frames of these sizes (0 is an empty frame), then one with what is left, if any."""
    parts = []
    at = 0
    for size in sizes:
        parts.append(frame(3, channel, octets[at : at + size]))
        at += size
    if at < len(octets):
        parts.append(pamqp_frame.marshal(pamqp_body.ContentBody(octets[at:]), channel))
    return b"".join(parts)


def publish(
    channel: int,
    routing_key: str,
    octets: bytes = b"",
    properties: commands.Basic.Properties | None = None,
    *,
    exchange: str = "",
    mandatory: bool = False,
    immediate: bool = False,
    sizes: Iterable[int] = (),
) -> bytes:
    """A whole publish: method, header, bodies."""
    key = method(
        channel,
        commands.Basic.Publish(
            exchange=exchange, routing_key=routing_key, mandatory=mandatory, immediate=immediate
        ),
    )
    return key + header(channel, len(octets), properties) + bodies(channel, octets, sizes)


def persistent(**more: object) -> commands.Basic.Properties:
    """Properties of a persistent message."""
    return commands.Basic.Properties(delivery_mode=2, **more)  # type: ignore[arg-type]


def ack(channel: int, tag: int, *, multiple: bool = False) -> bytes:
    """basic.ack."""
    return method(channel, commands.Basic.Ack(tag, multiple))


def nack(channel: int, tag: int, *, multiple: bool = False, requeue: bool = True) -> bytes:
    """basic.nack."""
    return method(channel, commands.Basic.Nack(tag, multiple, requeue))


def heartbeat() -> bytes:
    """A heartbeat frame."""
    return bytes(pamqp_heartbeat.Heartbeat().marshal())


def raw_frames(octets: bytes) -> list[tuple[int, int, bytes]]:
    """Whole frames as (type, channel, payload)."""
    found = []
    at = 0
    while at < len(octets):
        kind, channel, size = struct.unpack_from(">BHI", octets, at)
        assert octets[at + 7 + size] == 0xCE, octets[at : at + 32]
        found.append((kind, channel, octets[at + 7 : at + 7 + size]))
        at += size + 8
    return found


def hear(octets: bytes) -> list[Heard]:
    """Everything the broker has said; a content stands contiguous on its channel (FRAME-39)."""
    return list(_hear(octets))


def _hear(octets: bytes) -> Iterator[Heard]:
    if octets.startswith(b"AMQP"):
        octets = octets[8:]
    said = _decoded(octets)
    for channel, what in said:
        if isinstance(what, pamqp_heartbeat.Heartbeat):
            yield channel, None
            continue
        assert isinstance(what, base.Frame), what
        if not isinstance(
            what, commands.Basic.Deliver | commands.Basic.Return | commands.Basic.GetOk
        ):
            yield channel, what
            continue
        number, head = next(said)
        assert number == channel
        assert isinstance(head, pamqp_header.ContentHeader)
        chunks: list[bytes] = []
        while sum(map(len, chunks)) < head.body_size:
            number, chunk = next(said)
            assert number == channel
            assert isinstance(chunk, pamqp_body.ContentBody)
            assert chunk.value
            chunks.append(chunk.value)
        assert isinstance(head.properties, commands.Basic.Properties)
        sizes = tuple(map(len, chunks))
        yield channel, Content(what, head.properties, b"".join(chunks), sizes)


def _decoded(octets: bytes) -> Iterator[tuple[int, object]]:
    while octets:
        consumed, channel, what = pamqp_frame.unmarshal(octets)
        assert consumed > 0
        yield channel, what
        octets = octets[consumed:]


def cut(octets: bytes, places: Iterable[int]) -> list[bytes]:
    """Octets in pieces, cut at these places wherever they lie inside."""
    inside = sorted({place for place in places if 0 < place < len(octets)})
    edges = [0, *inside, len(octets)]
    return [octets[a:b] for a, b in pairwise(edges)]
