"""The bulk client's walk over frames: any cut of the bytes gives the same messages and methods."""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from typing import TypeAlias

import pamqp.commands as amqp
from hypothesis import given, settings
from hypothesis import strategies as st

from vouchmq.kit.bulk.frames import BrokenFrameError, Delivery, FrameWalk, Inbox, Returned
from vouchmq.kit.bulk.methods import HEARTBEAT, method_frame
from vouchmq.kit.bulk.properties import encode_properties

CHANNELS = (1, 2, 7)
FRAME_MAX = 4096

Outcome: TypeAlias = "tuple[int, bool, bool] | Returned"


@dataclass
class Expected:
    """What one channel must have seen."""

    deliveries: list[Delivery] = field(default_factory=list)
    outcomes: list[Outcome] = field(default_factory=list)
    answers: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Step:
    """Something the broker says on one channel, as frames."""

    channel: int
    frames: tuple[bytes, ...]
    delivery: Delivery | None = None
    outcome: Outcome | None = None
    answer: str = ""


def frame(kind: int, channel: int, payload: bytes) -> bytes:
    return struct.pack(">BHI", kind, channel, len(payload)) + payload + b"\xce"


def short(name: str) -> bytes:
    encoded = name.encode("utf-8", "surrogateescape")
    return bytes((len(encoded),)) + encoded


def content(channel: int, properties: bytes, pieces: list[bytes]) -> list[bytes]:
    size = sum(map(len, pieces))
    header = frame(2, channel, struct.pack(">HHQ", 60, 0, size) + properties)
    return [header, *(frame(3, channel, piece) for piece in pieces)]


names = st.text(st.characters(codec="utf-8"), max_size=20)
odd_names = st.binary(max_size=12).map(lambda raw: raw.decode("utf-8", "surrogateescape"))
properties = st.sampled_from(
    [
        b"\x00\x00",
        encode_properties({"delivery_mode": 2, "message_id": "m-1"}),
        encode_properties({"headers": {"n": 1, "deep": {"list": [1, "two", None]}}}),
    ]
)
pieces = st.lists(st.binary(min_size=1, max_size=300), max_size=3)


@st.composite
def delivered(draw: st.DrawFn, channel: int) -> Step:
    tag, redelivered = draw(st.integers(1, 2**63 - 1)), draw(st.booleans())
    exchange, key = draw(names), draw(names | odd_names)
    consumer, raw, parts = draw(names), draw(properties), draw(pieces)
    method = (
        struct.pack(">HH", 60, 60)
        + short(consumer)
        + struct.pack(">QB", tag, redelivered)
        + short(exchange)
        + short(key)
    )
    frames = (frame(1, channel, method), *content(channel, raw, parts))
    delivery = (tag, redelivered, exchange, key, raw, b"".join(parts))
    return Step(channel, frames, delivery=delivery)


@st.composite
def returned(draw: st.DrawFn, channel: int) -> Step:
    exchange, key, raw, parts = draw(names), draw(names), draw(properties), draw(pieces)
    method = struct.pack(">HHH", 60, 50, 312) + short("NO_ROUTE") + short(exchange) + short(key)
    frames = (frame(1, channel, method), *content(channel, raw, parts))
    outcome = Returned(312, "NO_ROUTE", exchange, key, raw, b"".join(parts))
    return Step(channel, frames, outcome=outcome)


@st.composite
def confirmed(draw: st.DrawFn, channel: int) -> Step:
    number, multiple = draw(st.integers(0, 2**63 - 1)), draw(st.booleans())
    is_ack = draw(st.booleans())
    method: amqp.Basic.Ack | amqp.Basic.Nack = amqp.Basic.Ack(number, multiple)
    if not is_ack:
        method = amqp.Basic.Nack(number, multiple, requeue=False)
    frames = (method_frame(channel, method),)
    return Step(channel, frames, outcome=(number, multiple, is_ack))


def answered(channel: int) -> st.SearchStrategy[Step]:
    made = Step(channel, (method_frame(channel, amqp.Basic.QosOk()),), answer="Basic.QosOk")
    return st.just(made)


def step(channel: int) -> st.SearchStrategy[Step]:
    kinds = (delivered(channel), delivered(channel), returned(channel), confirmed(channel))
    return st.one_of(*kinds, answered(channel))


@st.composite
def conversations(draw: st.DrawFn) -> tuple[bytes, dict[int, Expected]]:
    """Bytes of several channels, whose frames may stand between each other's."""
    waiting: dict[int, list[bytes]] = {}
    expected = {channel: Expected() for channel in CHANNELS}
    for channel in CHANNELS:
        frames: list[bytes] = []
        for each in draw(st.lists(step(channel), max_size=6)):
            frames.extend(each.frames)
            if each.delivery is not None:
                expected[channel].deliveries.append(each.delivery)
            if each.outcome is not None:
                expected[channel].outcomes.append(each.outcome)
            if each.answer:
                expected[channel].answers.append(each.answer)
        waiting[channel] = frames
    stream: list[bytes] = []
    while any(waiting.values()):
        channel = draw(st.sampled_from([each for each in CHANNELS if waiting[each]]))
        count = draw(st.integers(1, 6))
        stream.extend(waiting[channel][:count])
        del waiting[channel][:count]
        if draw(st.booleans()):
            stream.append(HEARTBEAT)
    return b"".join(stream), expected


def opened() -> FrameWalk:
    walk = FrameWalk()
    walk.frame_max = FRAME_MAX
    walk.inboxes.update({channel: Inbox() for channel in CHANNELS})
    return walk


@settings(max_examples=60, deadline=None)
@given(conversations(), st.data())
def test_any_cut_of_the_bytes_gives_the_same(
    made: tuple[bytes, dict[int, Expected]], data: st.DataObject
) -> None:
    stream, expected = made
    cuts = sorted(set(data.draw(st.lists(st.integers(0, len(stream)), max_size=12))))
    walk = opened()
    for start, stop in zip([0, *cuts], [*cuts, len(stream)], strict=True):
        walk.receive_data(stream[start:stop])
    for channel, inbox in walk.inboxes.items():
        assert list(inbox.deliveries) == expected[channel].deliveries
        assert list(inbox.outcomes) == expected[channel].outcomes
        answers = [method.name for number, method in walk.methods if number == channel]
        assert answers == expected[channel].answers
        sizes = [len(each[4]) + len(each[5]) for each in inbox.deliveries]
        assert inbox.received_bytes == sum(sizes)


@settings(max_examples=60, deadline=None)
@given(conversations())
def test_byte_by_byte_gives_the_same(made: tuple[bytes, dict[int, Expected]]) -> None:
    stream, expected = made
    walk = opened()
    for place in range(len(stream)):
        walk.receive_data(stream[place : place + 1])
    for channel, inbox in walk.inboxes.items():
        assert list(inbox.deliveries) == expected[channel].deliveries
        assert list(inbox.outcomes) == expected[channel].outcomes


@settings(max_examples=60, deadline=None)
@given(conversations(), st.data())
def test_a_changed_byte_is_read_or_refused_and_nothing_else(
    made: tuple[bytes, dict[int, Expected]], data: st.DataObject
) -> None:
    stream = bytearray(made[0])
    for _ in range(data.draw(st.integers(1, 4))):
        if stream:
            place = data.draw(st.integers(0, len(stream) - 1))
            stream[place] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(0, len(stream)))
    walk = opened()
    try:
        walk.receive_data(bytes(stream[:cut]))
        walk.receive_data(bytes(stream[cut:]))
    except BrokenFrameError as error:
        assert str(error)
