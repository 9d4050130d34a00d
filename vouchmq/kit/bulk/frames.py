"""Bytes from the broker become deliveries, confirms and methods: one walk over the frames.

Knows no socket, no lock and no clock: bytes go in in any cut, and every channel's inbox fills in
the order of the bytes. A delivery that lies whole in the bytes costs three unpacks and a tuple;
whatever is cut, split over several body frames or rare goes frame by frame through `_frame`.
"""

from __future__ import annotations

import struct
from collections import deque
from typing import Final, NamedTuple, TypeAlias

from pamqp import base

from vouchmq.kit.bulk.methods import FRAME_MAX_BYTES, method_of
from vouchmq.protocol.constants import (
    BASIC_ACK,
    BASIC_DELIVER,
    BASIC_GET_OK,
    BASIC_NACK,
    BASIC_RETURN,
    CHANNEL_CLOSE,
    CLASS_BASIC,
    CONNECTION_CLOSE,
    FRAME_BODY,
    FRAME_END,
    FRAME_HEADER,
    FRAME_HEARTBEAT,
    FRAME_METHOD,
    index_of,
)

# delivery tag, redelivered, exchange, routing key, properties as received, body
Delivery: TypeAlias = tuple[int, bool, str, str, bytes, bytes]
# publish number, speaks for all up to it, confirmed (or else nacked)
Outcome: TypeAlias = tuple[int, bool, bool]

_FRAME: Final = struct.Struct(">BHI")
_INDEX: Final = struct.Struct(">I")
# End of the frame before, then: type, channel, size.
_NEXT: Final = struct.Struct(">BBHI")
# ... and of a header: class, weight, body size.
_NEXT_HEADER: Final = struct.Struct(">BBHIHHQ")
_CONTENT: Final = struct.Struct(">HHQ")
_OUTCOME: Final = struct.Struct(">IQB")
_TAG: Final = struct.Struct(">QB")
_COUNT: Final = struct.Struct(">I")
_CODE: Final = struct.Struct(">H")

_DELIVER: Final = index_of(BASIC_DELIVER)
_GET_OK: Final = index_of(BASIC_GET_OK)
_RETURN: Final = index_of(BASIC_RETURN)
_ACK: Final = index_of(BASIC_ACK)
_NACK: Final = index_of(BASIC_NACK)
_DELIVER_BYTES: Final = _INDEX.pack(_DELIVER)
_CLOSES: Final = frozenset({index_of(CONNECTION_CLOSE), index_of(CHANNEL_CLOSE)})

_KINDS: Final = (FRAME_METHOD, FRAME_HEADER, FRAME_BODY, FRAME_HEARTBEAT)
# More different pairs of exchange and key than this are not worth remembering.
_ROUTES_KEPT: Final = 10_000


class Returned(NamedTuple):
    """A mandatory message that reached no queue."""

    code: int
    text: str
    exchange: str
    routing_key: str
    properties: bytes
    body: bytes


class Got(NamedTuple):
    """The answer to basic.get: a message, and how many are still ready behind it."""

    delivery: Delivery
    message_count: int


class BrokenFrameError(Exception):
    """What the peer sent is not AMQP, or not in an order that AMQP knows."""


class _Partial:
    """A content of which a part has come."""

    __slots__ = ("index", "missing", "names", "parts", "properties")

    def __init__(self, index: int, names: tuple[int, int, str, str, str]) -> None:
        self.index = index
        # tag or code, redelivered or count, exchange, routing key, text of a return
        self.names = names
        self.properties: bytes | None = None
        self.missing = 0
        self.parts: list[bytes] = []


class Inbox:
    """What has come for one channel and was not yet asked for.

    One thread adds (the one that polls), one takes; each writes counters of its own.
    """

    __slots__ = ("deliveries", "got", "outcomes", "partial", "received_bytes", "taken_bytes")

    def __init__(self) -> None:
        self.deliveries: deque[Delivery] = deque()
        # Confirms and returns, in their order: a return comes before its confirm.
        self.outcomes: deque[Outcome | Returned] = deque()
        self.got: Got | None = None
        self.partial: _Partial | None = None
        self.received_bytes = 0
        self.taken_bytes = 0

    def take_got(self) -> Delivery | None:
        """The message that basic.get has brought, once."""
        got, self.got = self.got, None
        return None if got is None else got.delivery


class FrameWalk:
    """Walks over the bytes of one connection."""

    def __init__(self) -> None:
        self.frame_max: int = FRAME_MAX_BYTES
        self.inboxes: dict[int, Inbox] = {}
        # Methods other than deliveries and confirms, in their order.
        self.methods: list[tuple[int, base.Frame]] = []
        self._rest = b""
        self._routes: dict[bytes, tuple[str, str]] = {}
        self._deliver_heads: dict[int, struct.Struct] = {}

    def receive_data(self, data: bytes) -> None:
        """Take the next bytes, however they are cut.

        Raises:
            BrokenFrameError: they are not AMQP; nothing more can be read from this peer
        """
        if self._rest:
            data = self._rest + data
        position = 0
        end = len(data)
        unpack = _FRAME.unpack_from
        while end - position >= 7:
            kind, channel, size = unpack(data, position)
            if kind == FRAME_METHOD and data.startswith(_DELIVER_BYTES, position + 7):
                after = self._run(data, position, end)
                if after != position:
                    position = after
                    continue
            if size > self.frame_max - 8 or kind not in _KINDS:
                raise BrokenFrameError(_no_frame(data[position : position + 8], size))
            stop = position + 7 + size
            if stop >= end:
                break
            if data[stop] != FRAME_END:
                raise BrokenFrameError(f"a frame of {size} bytes without its end byte")
            self._frame(kind, channel, data[position + 7 : stop])
            position = stop + 1
        self._rest = data[position:]

    def _run(self, data: bytes, position: int, end: int) -> int:
        """Take deliveries to one channel as long as they lie whole in `data`; where it stopped.

        It stops before whatever is not exactly method, header and one body frame (or none).
        """
        if end - position < _DELIVER_PEEK.size:
            return position
        _, channel, _, _, tag_size = _DELIVER_PEEK.unpack_from(data, position)
        inbox = self.inboxes.get(channel)
        if inbox is None or inbox.partial is not None:
            return position
        head = self._deliver_heads.get(tag_size) or self._head(tag_size)
        unpack, width = head.unpack_from, head.size
        unpack_header = _NEXT_HEADER.unpack_from
        unpack_next = _NEXT.unpack_from
        routes = self._routes
        run: list[Delivery] = []
        received = 0
        try:
            while True:
                kind, on, size, index, same, tag, flags = unpack(data, position)
                if kind != 1 or on != channel or index != _DELIVER or same != tag_size:
                    break
                stop = position + 7 + size
                names = data[position + width : stop]
                ended, kind, on, size, class_id, _, body_size = unpack_header(data, stop)
                if ended != 206 or kind != 2 or on != channel or class_id != 60 or size < 14:
                    break
                first = stop + 20
                stop += 8 + size
                if body_size:
                    ended, kind, on, size = unpack_next(data, stop)
                    if ended != 206 or kind != 3 or on != channel or size != body_size:
                        break
                    properties = data[first:stop]
                    first = stop + 8
                    stop = first + size
                    if stop >= end or data[stop] != 206:
                        break
                    body = data[first:stop]
                else:
                    if stop >= end or data[stop] != 206:
                        break
                    properties = data[first:stop]
                    body = b""
                route = routes.get(names) or self._route(names)
                run.append((tag, flags != 0, route[0], route[1], properties, body))
                received += body_size + len(properties)
                position = stop + 1
        except struct.error:
            # The bytes end in the middle of a head.
            return position
        finally:
            inbox.deliveries.extend(run)
            inbox.received_bytes += received
        return position

    def _head(self, tag_size: int) -> struct.Struct:
        """The fixed part of basic.deliver behind a consumer tag of that length."""
        head = struct.Struct(f">BHIIB{tag_size}xQB")
        self._deliver_heads[tag_size] = head
        return head

    def _route(self, names: bytes) -> tuple[str, str]:
        """Exchange and routing key from two short strings; remembered."""
        try:
            exchange, at = _short(names, 0)
            routing_key, at = _short(names, at)
        except IndexError:
            at = -1
        if at != len(names):
            raise BrokenFrameError("a basic.deliver of the wrong length")
        if len(self._routes) >= _ROUTES_KEPT:
            self._routes.clear()
        self._routes[names] = exchange, routing_key
        return exchange, routing_key

    def _frame(self, kind: int, channel: int, payload: bytes) -> None:
        """Pass a whole frame to the inbox of its channel."""
        if kind == FRAME_HEARTBEAT:
            return
        inbox = self.inboxes.get(channel)
        if inbox is None and channel:
            raise BrokenFrameError(f"a frame for channel {channel}, which is not open")
        if kind == FRAME_METHOD:
            self._method(channel, inbox, payload)
        elif inbox is None or inbox.partial is None:
            raise BrokenFrameError("content that no method announced")
        elif kind == FRAME_HEADER:
            self._header(inbox, inbox.partial, payload)
        else:
            self._body(inbox, inbox.partial, payload)

    def _method(self, channel: int, inbox: Inbox | None, payload: bytes) -> None:
        if len(payload) < 4:
            raise BrokenFrameError("a method of fewer than four bytes")
        index = _INDEX.unpack_from(payload)[0]
        if inbox is not None:
            if inbox.partial is not None and index not in _CLOSES:
                raise BrokenFrameError("a method in the middle of a message")
            inbox.partial = None
            try:
                if index in (_ACK, _NACK):
                    _, number, bits = _OUTCOME.unpack_from(payload)
                    inbox.outcomes.append((number, bool(bits & 1), index == _ACK))
                    return
                if index in (_DELIVER, _GET_OK, _RETURN):
                    inbox.partial = _Partial(index, _announced(index, payload))
                    return
            except (struct.error, IndexError) as error:
                raise BrokenFrameError("a method that is cut short") from error
        try:
            self.methods.append((channel, method_of(payload)))
        except ValueError as error:
            raise BrokenFrameError(str(error)) from error

    def _header(self, inbox: Inbox, partial: _Partial, payload: bytes) -> None:
        if partial.properties is not None:
            raise BrokenFrameError("a second content header")
        if len(payload) < 14:
            raise BrokenFrameError("a content header that is cut short")
        class_id, _, partial.missing = _CONTENT.unpack_from(payload)
        if class_id != CLASS_BASIC:
            raise BrokenFrameError(f"a content header of class {class_id}")
        partial.properties = payload[12:]
        if not partial.missing:
            _finish(inbox, partial)

    def _body(self, inbox: Inbox, partial: _Partial, payload: bytes) -> None:
        if partial.properties is None:
            raise BrokenFrameError("a body before its content header")
        if len(payload) > partial.missing:
            raise BrokenFrameError("a body that is longer than its header says")
        partial.parts.append(payload)
        partial.missing -= len(payload)
        if not partial.missing:
            _finish(inbox, partial)


# type, channel, size, method, length of the consumer tag
_DELIVER_PEEK: Final = struct.Struct(">BHIIB")


def _announced(index: int, payload: bytes) -> tuple[int, int, str, str, str]:
    """The fields of a method that content follows."""
    if index == _RETURN:
        code = _CODE.unpack_from(payload, 4)[0]
        text, at = _short(payload, 6)
        exchange, at = _short(payload, at)
        routing_key, _ = _short(payload, at)
        return code, 0, exchange, routing_key, text
    at = 4
    if index == _DELIVER:
        at += 1 + payload[4]
    tag, redelivered = _TAG.unpack_from(payload, at)
    exchange, at = _short(payload, at + 9)
    routing_key, at = _short(payload, at)
    count = _COUNT.unpack_from(payload, at)[0] if index == _GET_OK else 0
    return tag, redelivered | count << 1, exchange, routing_key, ""


def _short(data: bytes, at: int) -> tuple[str, int]:
    """A short string and where it ends.

    Names that are not UTF-8 keep their bytes as lone surrogates, so they can be sent again.
    """
    stop = at + 1 + data[at]
    if stop > len(data):
        raise BrokenFrameError("a name that is cut short")
    return data[at + 1 : stop].decode("utf-8", "surrogateescape"), stop


def _finish(inbox: Inbox, partial: _Partial) -> None:
    """Hand on a content that is complete."""
    inbox.partial = None
    parts = partial.parts
    body = parts[0] if len(parts) == 1 else b"".join(parts)
    properties = partial.properties or b""
    number, bits, exchange, routing_key, text = partial.names
    if partial.index == _RETURN:
        inbox.outcomes.append(Returned(number, text, exchange, routing_key, properties, body))
        return
    delivery = (number, bool(bits & 1), exchange, routing_key, properties, body)
    if partial.index == _GET_OK:
        inbox.got = Got(delivery, bits >> 1)
        return
    inbox.deliveries.append(delivery)
    inbox.received_bytes += len(body) + len(properties)


def _no_frame(start: bytes, size: int) -> str:
    if start.startswith(b"AMQP"):
        version = ".".join(str(number) for number in start[4:])
        return f"the peer speaks another version of AMQP: {version}"
    if start[0] not in (FRAME_METHOD, FRAME_HEADER, FRAME_BODY, FRAME_HEARTBEAT):
        return f"the peer does not speak AMQP: it sent {start!r}"
    return f"a frame of {size} bytes, more than was agreed"
