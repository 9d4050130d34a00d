"""Received octets in, events out: the frame walk, the limits and the order of contents.

The reader knows frames and contents, not what they mean. It is fed octets in any cut and gives
events; the cut never shows in them, save that one run of publishes may come as two.

A generator gives the events one by one, so that whoever consumes them can stop in the middle
(a reply that waits for the disk) or say that a channel is closing, with effect on the very next
frame. Whole publishes and acks are taken in runs (`runs.py`). What is not whole or not plain
goes frame by frame through an assembly per channel, which is also the only place that finds
the errors of FRAME-10…38 and CONN-63.
"""

from __future__ import annotations

from collections.abc import Iterator
from io import BytesIO
from itertools import chain
from typing import Final

from vouchmq.protocol import native
from vouchmq.protocol.constants import (
    BASIC_PUBLISH,
)
from vouchmq.protocol.errors import FrameError, HardError, UnexpectedFrame
from vouchmq.protocol.native import long_at, short_at
from vouchmq.protocol.properties import classify
from vouchmq.protocol.runs import (
    ACK_FRAME_OCTETS,
    BASIC_CLASS,
    CONTENT_HEADER,
    FRAME_END,
    FRAME_HEADER,
    PROPERTIES_AT,
    PUBLISH_METHOD,
    SMALLEST_CONTENT_HEADER,
    TAG_AT,
    parse_acks,
    parse_acks_up_to,
    parse_publishes,
    parse_unlike_publishes,
    tag_at,
)
from vouchmq.protocol.text import describe_octets

# Kinds of events, first in each event tuple; the channel number is always second.
PUBLISHES: Final = 0  # (kind, channel, key, raws, mode, largest_octets)
ACKS: Final = 1  # (kind, channel, ranges)
METHOD: Final = 2  # (kind, channel, payload)
PUBLISH_BEGUN: Final = 3  # (kind, channel): its content is still to come
TOO_LARGE: Final = 4  # (kind, channel, key, body_octets): refused at the header (FRAME-38)
HEARTBEAT: Final = 5  # (kind, 0)
REJECTS: Final = 6  # (kind, channel, ranges): rejects that put nothing back
UNLIKE: Final = 7  # (kind, channel, keys, raws, modes, largest_octets): publishes, each its own key
ACKS_UP_TO: Final = 8  # (kind, channel, tags): acks with multiple, of growing tags

# Of octets that the first event has used up.
NO_MORE: Final[Iterator[Event]] = iter(())

PublishesEvent = tuple[int, int, bytes, list[bytes], int, int]
UnlikeEvent = tuple[int, int, list[bytes], list[bytes], list[int], int]
AcksEvent = tuple[int, int, list[tuple[int, int]]]
AcksUpToEvent = tuple[int, int, list[int]]
Event = (
    PublishesEvent
    | UnlikeEvent
    | AcksEvent
    | AcksUpToEvent
    | tuple[int, int, bytes]
    | tuple[int, int]
    | tuple[int, int, bytes, int]
)

# basic.ack and basic.reject look alike: a bit that says multiple there says requeue here, and a
# method with that bit set is in no run.
ACK_METHOD: Final = b"\x00\x3c\x00\x50"
SETTLES: Final = {ACK_METHOD: ACKS, b"\x00\x3c\x00\x5a": REJECTS}
# channel.open (an error then), close and close-ok: what counts on a channel being closed.
CLOSE_METHODS: Final = (b"\x00\x14\x00\x0a", b"\x00\x14\x00\x28", b"\x00\x14\x00\x29")
# A header frame shorter than class, weight and body size is no frame at all (FRAME-14).
FRAMED_HEADER: Final = 12
BODY_CEILING: Final = 536870912
HEAD_OCTETS: Final = 7
# From this size on a body is copied rather than parsed, as far as time goes.
LARGE_BODY_OCTETS: Final = 16384
# The smallest frame of a method: one without arguments.
METHOD_FRAME_OCTETS: Final = 12
# What an unfinished content takes in memory beside its octets; counted, so that empty ones are.
ASSEMBLY_OCTETS: Final = 512


class Assembly:
    """The content of one publish on its way in, frame by frame.

    What has come is written where it stays: a BytesIO gives its octets away without a copy, which
    for a large body would hold up everybody else.
    """

    __slots__ = ("has_body", "key", "missing", "mode", "octets", "raw", "skipping")

    def __init__(self, key: bytes) -> None:
        self.key = key
        self.raw = BytesIO()
        self.has_body = False
        self.missing = -1  # -1 until the content header is there
        self.mode = 0
        self.skipping = False
        self.octets = ASSEMBLY_OCTETS + len(key)  # what it takes in memory, about


# A body frame whose rest is still to come: its channel, its size, the content that it belongs to,
# and where in that its payload begins.
Body = tuple[int, int, Assembly, int]


class Reader:
    """Turns the octets of one connection into events.

    Args:
        frame_max: the largest frame in octets, 0 for none (FRAME-12)
        largest_body: configured largest message body in octets (FRAME-38)
    """

    __slots__ = (
        "_assemblies",
        "_at",
        "_body",
        "_data",
        "_discarded",
        "_discards_all",
        "_is_unlike",
        "_largest_body",
        "_largest_payload",
        "_missing",
        "_modes",
        "_rest",
        "unfinished_octets",
    )

    def __init__(self, frame_max: int, largest_body: int) -> None:
        self._largest_body = largest_body
        self._largest_payload = 0
        self.set_frame_max(frame_max)
        self._data = b""
        self._at = 0  # where in it the next event begins
        self._rest: list[bytes] = []
        self._missing = 0
        self._assemblies: dict[int, Assembly] = {}
        self._body: Body | None = None
        self._discarded: set[int] = set()
        self._discards_all = False
        self._modes: dict[bytes, int] = {}
        # Whether the last publishes had each a method frame of its own: then the next will, too.
        self._is_unlike = False
        # What contents take in memory of which the end has not come yet.
        self.unfinished_octets = 0

    def set_frame_max(self, frame_max: int) -> None:
        """Take over the negotiated limit; eight octets more are tolerated (FRAME-10)."""
        self._largest_payload = frame_max or self._largest_body + 65536

    def discard_channel(self, channel: int) -> None:
        """From now on only close and close-ok of this channel are read (CHAN-11)."""
        self._discarded.add(channel)
        self._drop_assembly(channel)

    def discard_all(self) -> None:
        """The connection is being closed: of all channels nothing counts any more (CONN-54)."""
        self._discards_all = True
        self._assemblies.clear()
        self.unfinished_octets = 0

    def forget_channel(self, channel: int) -> None:
        """The channel number is free again: nothing of its past is kept."""
        self._discarded.discard(channel)
        self._drop_assembly(channel)

    @property
    def held_octets(self) -> int:
        """What has come and is kept here: unfinished contents, and the beginning of a frame."""
        return self.unfinished_octets + len(self._data) + sum(map(len, self._rest))

    @property
    def is_in_large_body(self) -> bool:
        """Whether the next octets belong to a large body frame."""
        return self._body is not None and self._body[1] >= LARGE_BODY_OCTETS

    def _drop_assembly(self, channel: int) -> None:
        assembly = self._assemblies.pop(channel, None)
        if assembly is not None:
            self.unfinished_octets -= assembly.octets

    def receive_data(self, data: bytes) -> Iterator[Event]:
        """Take received octets; give the events that they complete.

        The iterator must be used up before the next call.

        Raises:
            HardError: while iterating, at the frame that breaks a rule; nothing can be read
                after that.
        """
        first = self.begin(data)
        return self.rest() if first is None else chain((first,), self.rest())

    def begin(self, data: bytes) -> Event | None:
        """Take received octets; give the event with which they begin, if that is easily told.

        Most reads are one event: a run of publishes or of acks, or a method that is waited for, and
        nothing else. `rest` must be called next.
        """
        self._at = 0
        self._data = data
        if self._missing or self._discards_all or len(data) < METHOD_FRAME_OCTETS:
            return None
        method = data[HEAD_OCTETS : HEAD_OCTETS + 4]
        is_publish = method == PUBLISH_METHOD
        if native.IS_NATIVE:
            kind, channel, size = data[0], short_at(data, 1), long_at(data, 3)
        else:
            kind, channel, size = FRAME_HEADER.unpack_from(data)
        stop = size + 8
        if (
            kind != 1
            or size > self._largest_payload
            or stop > len(data)
            or stop < METHOD_FRAME_OCTETS
            or data[stop - 1] != FRAME_END
            or channel in self._assemblies
            or channel in self._discarded
        ):
            return None
        if not channel or not (is_publish or method in SETTLES):
            self._at = stop
            return (METHOD, channel, data[HEAD_OCTETS : stop - 1])
        if is_publish:
            publishes = self._publishes(data, 0, data[:stop], channel)
            if publishes is None:
                return None
            self._at = publishes[0]
            return publishes[1]
        if stop != ACK_FRAME_OCTETS or method != ACK_METHOD:
            return None
        if data[ACK_FRAME_OCTETS - 2]:
            self._at, tags = parse_acks_up_to(data, 0)
            return (ACKS_UP_TO, channel, tags) if tags else None
        if len(data) == ACK_FRAME_OCTETS:
            self._at = ACK_FRAME_OCTETS
            tag = tag_at(data, TAG_AT)
            return (ACKS, channel, [(tag, tag)])
        self._at, ranges = parse_acks(data, 0)
        return (ACKS, channel, ranges) if ranges else None

    def rest(self) -> Iterator[Event]:
        """The events that come after the one with which the octets begin.

        Raises: see `receive_data`
        """
        data = self._data
        if self._at:
            if self._at == len(data):
                self._data = b""
                return NO_MORE
            return self._events()
        if self._missing > len(data):
            self._missing -= len(data)
            if self._body is None:
                self._rest.append(data)
            else:
                self._add_to_body(self._body, data, 0, len(data))
            self._data = b""
            return NO_MORE
        if self._rest:
            self._rest.append(data)
            data = b"".join(self._rest)
            self._rest.clear()
        self._data = data
        return self._events()

    def _events(self) -> Iterator[Event]:
        data = self._data
        end = len(data)
        pos = self._at
        if self._body is not None:
            pos = self._missing
            yield from self._end_body(self._body, data, pos)
        unpack = FRAME_HEADER.unpack_from
        while end - pos >= HEAD_OCTETS:
            kind, channel, size = unpack(data, pos)
            if size > self._largest_payload:
                raise too_large(kind, size, self._largest_payload)
            stop = pos + size + 8
            if stop > end:
                break
            if data[stop - 1] != FRAME_END:
                raise bad_end(kind, data[pos + HEAD_OCTETS : stop - 1], data[stop - 1])
            if (
                kind == 1
                and channel not in self._assemblies
                and channel not in self._discarded
                and not self._discards_all
            ):
                method = data[pos + HEAD_OCTETS : pos + HEAD_OCTETS + 4]
                if method == PUBLISH_METHOD and channel:
                    key = data[pos:stop]
                    publishes = self._publishes(data, pos, key, channel)
                    if publishes is not None:
                        pos = publishes[0]
                        yield publishes[1]
                    else:
                        assembly = self._assemblies[channel] = Assembly(key)
                        self.unfinished_octets += assembly.octets
                        pos = stop
                        yield (PUBLISH_BEGUN, channel)
                    continue
                if method in SETTLES and size + 8 == ACK_FRAME_OCTETS:
                    settled = self._settles(data, pos, channel, method)
                    if settled is not None:
                        pos = settled[0]
                        yield settled[1]
                        continue
            pos = stop
            whole = self._frame(kind, channel, data, stop - size - 8, stop)
            if whole is not None:
                yield whole
        self._keep(data, pos)

    def _settles(
        self, data: bytes, pos: int, channel: int, method: bytes
    ) -> tuple[int, Event] | None:
        """A run of acks, or of rejects that put nothing back, and where it ends; None if none."""
        stop, ranges = parse_acks(data, pos)
        if ranges:
            return stop, (SETTLES[method], channel, ranges)
        if method == ACK_METHOD:
            stop, tags = parse_acks_up_to(data, pos)
            if tags:
                return stop, (ACKS_UP_TO, channel, tags)
        return None

    def _keep(self, data: bytes, pos: int) -> None:
        """Keep the beginning of a frame."""
        self._data = b""
        self._missing = 0
        rest = len(data) - pos
        if rest >= HEAD_OCTETS:
            self._missing = FRAME_HEADER.unpack_from(data, pos)[2] + 8 - rest
            if not self._begin_body(data, pos):
                self._rest.append(data[pos:])
        elif rest:
            self._missing = HEAD_OCTETS - rest
            self._rest.append(data[pos:])

    def _publishes(
        self, data: bytes, pos: int, key: bytes, channel: int
    ) -> tuple[int, PublishesEvent | UnlikeEvent] | None:
        """Publishes that are whole, and where they end: a run, or what stands beside each other.

        None when the first of them is not whole, or not plain.
        """
        limits = (self._largest_payload, self._largest_body)
        if not self._is_unlike:
            stop, raws, mode, largest = parse_publishes(data, pos, key, limits, self._modes)
            if not raws:
                return None
            # Another one on this channel behind a single publish: not even these two are alike.
            self._is_unlike = (
                len(raws) == 1
                and data.startswith(key[:3], stop)
                and data.startswith(PUBLISH_METHOD, stop + HEAD_OCTETS)
            )
            return stop, (PUBLISHES, channel, key, raws, mode, largest)
        stop, keys, raws, modes, largest = parse_unlike_publishes(data, pos, limits, self._modes)
        self._is_unlike = len(keys) > 1 and not data.startswith(keys[-1], stop)
        if len(keys) > 1:
            return stop, (UNLIKE, channel, keys, raws, modes, largest)
        return (stop, (PUBLISHES, channel, key, raws, modes[0], largest)) if keys else None

    def _begin_body(self, data: bytes, pos: int) -> bool:
        """Take the beginning of a body frame; False if this is none, or of no content.

        It is written where it stays: kept until the frame is whole, it would be copied three times.
        """
        kind, channel, size = FRAME_HEADER.unpack_from(data, pos)
        assembly = self._assemblies.get(channel)
        if kind != 3 or assembly is None or assembly.skipping or size > assembly.missing:
            return False
        self._body = (channel, size, assembly, assembly.raw.tell())
        self._add_to_body(self._body, data, pos + HEAD_OCTETS, len(data))
        return True

    def _add_to_body(self, body: Body, data: bytes, begin: int, end: int) -> None:
        channel, _, assembly, _ = body
        with memoryview(data) as view:
            assembly.raw.write(view[begin:end])
        # It may have been dropped meanwhile.
        if self._assemblies.get(channel) is assembly:
            assembly.octets += end - begin
            self.unfinished_octets += end - begin

    def _end_body(self, body: Body, data: bytes, stop: int) -> Iterator[Event]:
        """Take the rest of a body frame, which ends there."""
        self._body = None
        self._add_to_body(body, data, 0, stop - 1)
        channel, size, assembly, at = body
        if data[stop - 1] != FRAME_END:
            raise bad_end(3, assembly.raw.getvalue()[at:], data[stop - 1])
        if self._assemblies.get(channel) is assembly:
            assembly.missing -= size
            event = self._finished(channel, assembly)
            if event is not None:
                yield event

    def _frame(self, kind: int, channel: int, data: bytes, at: int, stop: int) -> Event | None:
        """One whole frame, the slow way."""
        if channel in self._discarded or (channel and self._discards_all):
            if kind == 1 and data[at + HEAD_OCTETS : at + HEAD_OCTETS + 4] in CLOSE_METHODS:
                return (METHOD, channel, data[at + HEAD_OCTETS : stop - 1])
            return None
        if kind == 8:
            return heartbeat(channel, data[at + HEAD_OCTETS : stop - 1])
        if kind not in {1, 2, 3} or (kind == 2 and stop - at - 8 < FRAMED_HEADER):
            raise unknown_frame(kind, data[at + HEAD_OCTETS : stop - 1])
        assembly = self._assemblies.get(channel)
        if assembly is None:
            if kind != 1:
                raise UnexpectedFrame(
                    "expected method frame, got non method frame instead", ids=(0, 0)
                )
            if stop - at - 8 < 4:
                raise unknown_frame(kind, data[at + HEAD_OCTETS : stop - 1])
            return (METHOD, channel, data[at + HEAD_OCTETS : stop - 1])
        if assembly.missing < 0:
            return self._content_header(assembly, kind, channel, data[at:stop])
        if kind != 3:
            raise UnexpectedFrame(
                "expected content body, got non content body frame instead", ids=BASIC_PUBLISH
            )
        size = stop - at - 8
        if size > assembly.missing:
            raise FrameError("content body frame exceeds remaining content size", ids=BASIC_PUBLISH)
        assembly.missing -= size
        if not assembly.skipping:
            with memoryview(data) as view:
                assembly.raw.write(view[at + HEAD_OCTETS : stop - 1])
            assembly.octets += size
            self.unfinished_octets += size
        return self._finished(channel, assembly)

    def _content_header(
        self, assembly: Assembly, kind: int, channel: int, frame: bytes
    ) -> Event | None:
        if kind != 2:
            raise no_header()
        if len(frame) - 8 < SMALLEST_CONTENT_HEADER:
            raise unknown_frame(kind, frame[HEAD_OCTETS:-1])
        _, _, _, class_id, weight, body_octets = CONTENT_HEADER.unpack_from(frame)
        if class_id != BASIC_CLASS:
            raise UnexpectedFrame(
                f"expected content header for class {BASIC_CLASS}, got one for class {class_id} "
                "instead",
                ids=BASIC_PUBLISH,
            )
        if weight:
            raise no_header()
        if body_octets > BODY_CEILING:
            raise FrameError(
                f"content body size {body_octets} exceeds maximum allowed size {BODY_CEILING}",
                ids=BASIC_PUBLISH,
            )
        assembly.mode = classify(frame[PROPERTIES_AT:-1])
        assembly.missing = body_octets
        if body_octets > self._largest_body:
            assembly.skipping = True
            return (TOO_LARGE, channel, assembly.key, body_octets)
        assembly.raw.write(frame)
        assembly.octets += len(frame)
        self.unfinished_octets += len(frame)
        if body_octets:
            # One body frame, however the publisher had cut it: who is given the message gets it
            # cut to its own frame_max (FRAME-39).
            assembly.raw.write(FRAME_HEADER.pack(3, channel, body_octets))
            assembly.has_body = True
        return self._finished(channel, assembly)

    def _finished(self, channel: int, assembly: Assembly) -> Event | None:
        if assembly.missing:
            return None
        self._drop_assembly(channel)
        if assembly.skipping:
            return None
        if assembly.has_body:
            assembly.raw.write(b"\xce")
        raw = assembly.raw.getvalue()
        return (PUBLISHES, channel, assembly.key, [raw], assembly.mode, len(raw))


def too_large(kind: int, size: int, largest: int) -> HardError:
    """501 for a frame larger than was agreed, known from its seven first bytes (FRAME-10)."""
    return FrameError(
        f"type {kind}, all octets = <<>>: {{frame_too_large,{size},{largest - 8}}}", ids=(0, 0)
    )


def bad_end(kind: int, payload: bytes, octet: int) -> HardError:
    """501 for a frame without its end byte, after which synchronisation is lost (FRAME-11)."""
    return FrameError(
        f"type {kind}, {describe_octets(payload)}: {{invalid_frame_end_marker,{octet}}}", ids=(0, 0)
    )


def unknown_frame(kind: int, payload: bytes) -> HardError:
    """501 for a frame of an unknown type (FRAME-13, FRAME-14)."""
    return FrameError(f"type {kind}, {describe_octets(payload)}: unknown_frame", ids=(0, 0))


def no_header() -> HardError:
    """505 where a content header is due and another frame came (FRAME-31)."""
    return UnexpectedFrame(
        f"expected content header for class {BASIC_CLASS}, got non content header frame instead",
        ids=BASIC_PUBLISH,
    )


def heartbeat(channel: int, payload: bytes) -> Event:
    """The event of a heartbeat; 501 for one with a payload, 505 off channel 0 (CONN-63)."""
    if payload:
        raise unknown_frame(8, payload)
    if channel:
        raise UnexpectedFrame("heartbeat on a channel other than 0", ids=(0, 0))
    return (HEARTBEAT, 0)
