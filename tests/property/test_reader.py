"""Any octets in any cut: the reader says the same, agrees with pamqp, and never fails untyped."""

from __future__ import annotations

import struct
from collections import defaultdict
from itertools import groupby
from typing import cast

from hypothesis import given, settings
from hypothesis import strategies as st
from pamqp import body as pamqp_body
from pamqp import commands
from pamqp import frame as pamqp_frame
from pamqp import header as pamqp_header
from pamqp import heartbeat as pamqp_heartbeat
from pamqp.common import FieldTable

from tests import wire
from tests.both_ways import reading
from vouchmq.protocol.errors import FrameError, HardError, UnexpectedFrame
from vouchmq.protocol.fields import encode_shortstr
from vouchmq.protocol.reader import (
    ACKS,
    ACKS_UP_TO,
    HEARTBEAT,
    METHOD,
    PUBLISH_BEGUN,
    PUBLISHES,
    TOO_LARGE,
    UNLIKE,
    Event,
    PublishesEvent,
    Reader,
    UnlikeEvent,
)
from vouchmq.protocol.runs import UNLIKE_PUBLISHES, encode_deliveries

LARGEST_BODY = 10_000
BODY = bytes(number % 251 for number in range(LARGEST_BODY))
MOST_WAITING = wire.FRAME_MAX + 8
SIZES = [0, 0, 1, 2, 7, 100, wire.ONE_BODY - 1, wire.ONE_BODY, wire.ONE_BODY + 1, 9000, 10_000]

# One thing per event, so that runs cut in two compare equal to whole ones.
Thing = tuple[object, ...]


def read(pieces: list[bytes]) -> tuple[list[Thing], HardError | None]:
    """What the pieces say, and the error in which it ends; in whichever way numbers are read."""
    with reading(natively=True):
        said, error = read_one_way(pieces)
    with reading(natively=False):
        said_too, error_too = read_one_way(pieces)
    assert said == said_too
    assert (type(error), str(error)) == (type(error_too), str(error_too))
    return said, error


def read_one_way(pieces: list[bytes]) -> tuple[list[Thing], HardError | None]:
    """As `read`."""
    reader = Reader(wire.FRAME_MAX, LARGEST_BODY)
    said: list[Thing] = []
    for piece in pieces:
        try:
            for event in reader.receive_data(piece):
                said += things(event)
        except HardError as error:
            return said, error
        assert sum(map(len, reader._rest)) <= MOST_WAITING
    return said, None


def things(event: Event) -> list[Thing]:
    """The single things in an event; those that depend on the cut are left out."""
    if event[0] == PUBLISHES:
        _, channel, key, raws, mode, largest = cast("PublishesEvent", event)
        assert largest == max(map(len, raws))
        return [(PUBLISHES, channel, key, raw, mode) for raw in raws]
    if event[0] == UNLIKE:
        _, channel, keys, raws, modes, largest = cast("UnlikeEvent", event)
        assert largest == max(map(len, raws))
        assert 1 < len(raws) <= UNLIKE_PUBLISHES
        return [
            (PUBLISHES, channel, key, raw, mode)
            for key, raw, mode in zip(keys, raws, modes, strict=True)
        ]
    if event[0] == ACKS:
        _, channel, ranges = cast("tuple[int, int, list[tuple[int, int]]]", event)
        assert all(first <= last for first, last in ranges)
        return [(ACKS, channel, tag) for first, last in ranges for tag in range(first, last + 1)]
    if event[0] == ACKS_UP_TO:
        _, channel, tags = cast("tuple[int, int, list[int]]", event)
        assert tags == sorted(set(tags))
        return [(ACKS_UP_TO, channel, tag) for tag in tags]
    return [] if event[0] == PUBLISH_BEGUN else [event]


@st.composite
def properties(draw: st.DrawFn) -> commands.Basic.Properties:
    """Properties as applications send them."""
    tables: list[FieldTable | None] = [None, {"a": 1}, {"CC": ["x"]}, {"b": "c" * 200}]
    return commands.Basic.Properties(
        delivery_mode=draw(st.sampled_from([None, 1, 2])),
        headers=draw(st.sampled_from(tables)),
        message_id=draw(st.sampled_from([None, "m1", "m2"])),
        expiration=draw(st.sampled_from([None, None, None, "5"])),
    )


@st.composite
def publishes(draw: st.DrawFn, channel: int) -> list[bytes]:
    """The frames of one publish."""
    size = draw(st.sampled_from(SIZES))
    octets = BODY[:size]
    routing_key = draw(st.sampled_from(["q", "r"]))
    splits = draw(st.lists(st.sampled_from([0, 1, 50, 3000]), max_size=3)) if size else []
    sizes = [split for at, split in enumerate(splits) if sum(splits[: at + 1]) <= size]
    # Empty frames are legal only while octets are missing (FRAME-37).
    while sizes and sum(sizes) == size and not sizes[-1]:
        sizes.pop()
    left = size - sum(sizes)
    sizes += [wire.ONE_BODY] * (left // wire.ONE_BODY)
    octets = wire.publish(channel, routing_key, octets, draw(properties()), sizes=sizes)
    return frames_of(octets)


def frames_of(octets: bytes) -> list[bytes]:
    """Octets as a list of frames."""
    return [wire.frame(*frame) for frame in wire.raw_frames(octets)]


@st.composite
def channel_frames(draw: st.DrawFn, channel: int) -> list[bytes]:
    """What one channel sends."""
    frames: list[bytes] = []
    tag = draw(st.integers(1, 2**62))
    for kind in draw(st.lists(st.sampled_from("ppppaaamn"), max_size=8)):
        if kind == "p":
            publish = draw(publishes(channel))
            frames += publish * draw(st.integers(1, 3))
        elif kind == "a":
            count = draw(st.integers(1, 4))
            frames += [wire.ack(channel, tag + number) for number in range(count)]
            tag += draw(st.integers(0, 5))
        elif kind == "m":
            frames.append(wire.ack(channel, tag, multiple=True))
            tag += draw(st.integers(0, 2))
        else:
            frames.append(wire.method(channel, commands.Queue.Purge(0, "q", False)))
    return frames


@st.composite
def conversations(draw: st.DrawFn) -> list[bytes]:
    """Legal frames of up to three channels, interleaved, with heartbeats between."""
    waiting = [draw(channel_frames(channel)) for channel in (1, 2, 65535)]
    order = draw(st.randoms(use_true_random=False))
    frames: list[bytes] = []
    while any(waiting):
        mine = order.choice([each for each in waiting if each])
        count = order.choice([1, 2, 10])
        frames += mine[:count]
        del mine[:count]
        if not order.randrange(5):
            frames.append(wire.heartbeat())
    return frames


def without_empty_bodies(frames: list[bytes]) -> list[bytes]:
    """Empty body frames are legal and add nothing (FRAME-37); pamqp refuses them."""
    return [octets for octets in frames if len(octets) > 8 or octets[0] != 3]


def oracle(frames: list[bytes]) -> list[Thing]:
    """What legal frames say, by pamqp and the plainest assembly there is."""
    said: list[Thing] = []
    keys: dict[int, bytes] = {}
    heads: dict[int, tuple[bytes, pamqp_header.ContentHeader]] = {}
    chunks: defaultdict[int, list[bytes]] = defaultdict(list)
    for octets in without_empty_bodies(frames):
        consumed, channel, what = pamqp_frame.unmarshal(octets)
        assert consumed == len(octets)
        if isinstance(what, pamqp_heartbeat.Heartbeat):
            said.append((HEARTBEAT, 0))
        elif isinstance(what, commands.Basic.Publish):
            keys[channel] = octets
        elif isinstance(what, pamqp_header.ContentHeader):
            heads[channel] = (octets, what)
        elif isinstance(what, pamqp_body.ContentBody):
            chunks[channel].append(octets)
        elif isinstance(what, commands.Basic.Ack) and not what.multiple:
            said.append((ACKS, channel, what.delivery_tag))
        elif isinstance(what, commands.Basic.Ack) and what.delivery_tag:
            said.append((ACKS_UP_TO, channel, what.delivery_tag))
        else:
            said.append((METHOD, channel, octets[7:-1]))
        if channel in heads:
            raw, head = heads[channel]
            missing = head.body_size - sum(len(chunk) - 8 for chunk in chunks[channel])
            if not missing:
                # However it was cut, it is kept in one body frame (FRAME-39).
                content = b"".join(chunk[7:-1] for chunk in chunks[channel])
                raw += wire.frame(3, channel, content) if content else b""
                said.append((PUBLISHES, channel, keys.pop(channel), raw, mode_of(head)))
                del heads[channel]
                chunks[channel].clear()
    return said


def mode_of(head: pamqp_header.ContentHeader) -> int:
    """Persistent, care, headers: as pamqp's properties tell."""
    told = head.properties
    headers = told.headers or {}
    examined = told.expiration is not None or "CC" in headers
    return (told.delivery_mode == 2) | examined << 1 | (told.headers is not None) << 2


cuts = st.one_of(
    st.lists(st.integers(0, 40_000), max_size=12),
    st.integers(1, 64).map(lambda step: list(range(0, 200_000, step))),
)


@settings(max_examples=80, deadline=None)
@given(conversations(), cuts)
def test_legal_frames_in_any_cut_say_what_pamqp_says(
    frames: list[bytes], places: list[int]
) -> None:
    said, error = read(wire.cut(b"".join(frames), places))
    assert error is None
    assert said == oracle(frames)


@settings(max_examples=60, deadline=None)
@given(conversations())
def test_raw_contents_give_pamqp_what_was_published(frames: list[bytes]) -> None:
    said, _ = read([b"".join(frames)])
    sent: defaultdict[int, list[object]] = defaultdict(list)
    bodies: defaultdict[int, bytes] = defaultdict(bytes)
    for octets in without_empty_bodies(frames):
        _, channel, what = pamqp_frame.unmarshal(octets)
        if isinstance(what, pamqp_header.ContentHeader):
            sent[channel].append(dict(what.properties))
        elif isinstance(what, pamqp_body.ContentBody):
            bodies[channel] += what.value
    kept: defaultdict[int, list[object]] = defaultdict(list)
    kept_bodies: defaultdict[int, bytes] = defaultdict(bytes)
    for thing in said:
        if thing[0] != PUBLISHES:
            continue
        _, of_channel, _, raw, _ = thing
        assert isinstance(raw, bytes)
        for piece in frames_of(raw):
            _, channel, what = pamqp_frame.unmarshal(piece)
            assert channel == of_channel
            if isinstance(what, pamqp_header.ContentHeader):
                kept[channel].append(dict(what.properties))
            elif isinstance(what, pamqp_body.ContentBody):
                kept_bodies[channel] += what.value
    assert kept == sent
    assert kept_bodies == bodies


@settings(max_examples=80, deadline=None)
@given(conversations(), cuts, st.data())
def test_damaged_frames_end_alike_in_any_cut(
    frames: list[bytes], places: list[int], data: st.DataObject
) -> None:
    octets = bytearray(b"".join(frames))
    for _ in range(data.draw(st.integers(1, 3)) if octets else 0):
        at = data.draw(st.integers(0, len(octets) - 1))
        if data.draw(st.booleans()):
            octets[at] = data.draw(st.integers(0, 255))
        else:
            del octets[at : at + data.draw(st.integers(1, 30))]
        if not octets:
            break
    compare_cuts(bytes(octets), places)


heads = st.builds(
    struct.pack,
    st.just(">BHI"),
    st.sampled_from([0, 1, 1, 2, 2, 3, 3, 8, 9]),
    st.sampled_from([0, 1, 1, 2]),
    st.sampled_from([0, 3, 4, 13, 14, 15, 4096, 4097, 2**32 - 1]),
)
junk = st.lists(
    st.one_of(
        st.binary(max_size=40),
        heads,
        st.sampled_from([wire.publish(1, "q"), wire.publish(1, "q", b"abc"), wire.ack(1, 1)]),
        st.builds(
            wire.frame,
            st.sampled_from([1, 2, 3]),
            st.just(1),
            st.one_of(
                st.binary(max_size=20),
                st.sampled_from(
                    [b"\x00\x3c\x00\x28", b"\x00\x3c\x00\x50", b"\x00\x3c\x00\x00"]
                ).flatmap(lambda start: st.binary(max_size=24).map(lambda rest: start + rest)),
            ),
        ),
    ),
    max_size=8,
).map(b"".join)


@settings(max_examples=150, deadline=None)
@given(junk, cuts)
def test_random_octets_end_in_a_frame_error_or_wait(octets: bytes, places: list[int]) -> None:
    compare_cuts(octets, places)


def compare_cuts(octets: bytes, places: list[int]) -> None:
    """One piece and many pieces must say the same and end in the same error."""
    whole, failed = read([octets])
    pieces, failed_too = read(wire.cut(octets, places))
    assert pieces == whole
    assert type(failed) is type(failed_too)
    if failed is not None and failed_too is not None:
        assert isinstance(failed, FrameError | UnexpectedFrame)
        assert (failed.reply_text, failed.ids) == (failed_too.reply_text, failed_too.ids)


@settings(max_examples=40, deadline=None)
@given(conversations(), st.integers(LARGEST_BODY + 1, 40_000), cuts)
def test_too_large_content_leaves_nothing_behind(
    frames: list[bytes], size: int, places: list[int]
) -> None:
    full, rest = divmod(size, wire.ONE_BODY)
    large = wire.publish(9, "q", b"x" * size, sizes=[wire.ONE_BODY] * full + [rest] * bool(rest))
    octets = b"".join(frames) + large + wire.publish(9, "q", b"y")
    said, error = read(wire.cut(octets, places))
    assert error is None
    assert [thing[0] for thing in said if thing[1] == 9] == [TOO_LARGE, PUBLISHES]


@settings(max_examples=60, deadline=None)
@given(conversations(), st.integers(0, 12), st.sampled_from([0, 24, 4096, 131072]))
def test_what_was_published_is_delivered(frames: list[bytes], mark: int, frame_max: int) -> None:
    published = [thing for thing in read([b"".join(frames)])[0] if thing[0] == PUBLISHES]
    messages = []
    for number, (_, _, key, raw, _) in enumerate(published, 1):
        assert isinstance(key, bytes)
        assert isinstance(raw, bytes)
        messages.append((raw, key[13:-2], number, 0))
    if not messages:
        return
    limits = (frame_max, mark)
    octets = b"".join(encode_deliveries(messages, 5, b"\x00\x07", encode_shortstr("tag"), limits))
    heard = wire.hear(octets)
    assert len(heard) == len(messages)
    for (raw, _, seq, _), (channel, what), (_, _, key, _, _) in zip(
        messages, heard, published, strict=True
    ):
        assert isinstance(what, wire.Content)
        assert isinstance(what.method, commands.Basic.Deliver)
        assert isinstance(key, bytes)
        asked = pamqp_frame.unmarshal(key)[2]
        assert isinstance(asked, commands.Basic.Publish)
        assert channel == 7
        assert (what.method.exchange, what.method.routing_key) == ("", asked.routing_key)
        assert what.method.delivery_tag == seq + 4
        assert what.method.redelivered is (seq <= mark)
        parts = wire.raw_frames(raw)
        assert what.body == b"".join(payload for kind, _, payload in parts if kind == 3)
        head = pamqp_frame.unmarshal(frames_of(raw)[0])[2]
        assert isinstance(head, pamqp_header.ContentHeader)
        assert dict(what.properties) == dict(head.properties)
        assert all(size + 8 <= frame_max for size in what.body_sizes if frame_max)


def test_runs_are_as_long_as_they_can_be() -> None:
    octets = wire.publish(1, "q", b"x") * 100 + wire.ack(1, 1) * 3 + wire.publish(1, "q") * 10
    events = list(Reader(wire.FRAME_MAX, LARGEST_BODY).receive_data(octets))
    assert [(kind, len(list(group))) for kind, group in groupby(event[0] for event in events)] == [
        (PUBLISHES, 1),
        (ACKS, 1),
        (PUBLISHES, 1),
    ]


def test_publishes_with_ever_other_keys_come_together() -> None:
    """The first tells that they are unlike; a run among them is a run again."""
    unlike = b"".join(wire.publish(1, f"q{number}", b"x") for number in range(50))
    octets = unlike + wire.publish(1, "q", b"x") * 100 + unlike + wire.publish(2, "q")
    events = list(Reader(wire.FRAME_MAX, LARGEST_BODY).receive_data(octets))
    assert [event[:2] for event in events] == [
        (PUBLISHES, 1),
        (UNLIKE, 1),
        (PUBLISHES, 1),
        (PUBLISHES, 1),
        (UNLIKE, 1),
        (PUBLISHES, 2),
    ]
    assert len(events[2][3]) > 90  # type: ignore[misc, arg-type]
    assert sum(map(len, map(things, events))) == 201
