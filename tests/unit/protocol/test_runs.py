"""The seam of the hot path: runs in, lists and octets out."""

from __future__ import annotations

import struct
from collections.abc import Iterator

import pytest
from pamqp import commands

from tests import wire
from tests.both_ways import reading
from vouchmq.protocol.fields import encode_shortstr
from vouchmq.protocol.runs import (
    Message,
    body_size,
    content_pieces,
    encode_deliveries,
    mode_of,
    parse_acks,
    parse_publishes,
    parse_unlike_publishes,
)

NO_LIMIT = 1 << 62
LIMITS = (wire.FRAME_MAX, 1 << 20)
KEY = wire.method(1, commands.Basic.Publish(exchange="", routing_key="q"))


def raw_of(
    octets: bytes, channel: int = 1, sizes: tuple[int, ...] = (), **properties: object
) -> bytes:
    """A content as a publisher sent it."""
    props = commands.Basic.Properties(**properties)  # type: ignore[arg-type]
    return wire.header(channel, len(octets), props) + wire.bodies(channel, octets, sizes)


def tail_of(exchange: str, routing_key: str) -> bytes:
    """Exchange and routing key as a deliver frame holds them."""
    return encode_shortstr(exchange) + encode_shortstr(routing_key)


def deliveries(octets: bytes) -> list[wire.Content]:
    """Deliveries that a client hears, all of them on channel 7."""
    heard = wire.hear(octets)
    assert {channel for channel, _ in heard} == {7}
    assert all(isinstance(what, wire.Content) for _, what in heard)
    return [what for _, what in heard if isinstance(what, wire.Content)]


def encode(
    messages: list[Message], *, tag: int = 1, mark: int = 0, frame_max: int = NO_LIMIT
) -> bytes:
    """Deliveries on channel 7 to the consumer c."""
    limits = (frame_max, mark)
    return b"".join(encode_deliveries(messages, tag, b"\x00\x07", encode_shortstr("c"), limits))


def broken_parts(broken_at: int) -> tuple[bytes, bytes, bytes]:
    """The frames of a publish of five octets, in which one thing is not as it should be."""
    method, header, body = KEY, wire.header(1, 5), wire.frame(3, 1, b"12345")
    parts = [bytearray(method), bytearray(header), bytearray(body)]
    which, at, octets = [
        (0, 0, b"\x02"),
        (0, 1, b"\x00\x02"),
        (0, 9, b"\x00\x29"),
        (0, len(method) - 1, b"\x00"),
        (0, 3, b"\xff\xff\xff\xff"),
        (1, 0, b"\x03"),
        (1, 1, b"\x01\x01"),
        (1, 9, b"\x00\x01"),
        (1, 3, b"\x00\x00\x00\x0d"),
        (1, 11, b"\xff" * 8),
        (1, len(header) - 1, b"\x00"),
        (2, 0, b"\x02"),
        (2, 1, b"\x00\x02"),
        (2, 3, b"\x00\x00\x00\x04"),
    ][broken_at]
    parts[which][at : at + len(octets)] = octets
    method, header, body = map(bytes, parts)
    return method, header, body


class TestParsing:
    @pytest.fixture(autouse=True, params=[False, True])
    def _in_both_ways(self, request: pytest.FixtureRequest) -> Iterator[None]:
        with reading(natively=request.param):
            yield

    def test_nothing_whole_gives_nothing(self) -> None:
        octets = KEY + wire.header(1, 5) + wire.frame(3, 1, b"12345")
        for length in range(len(octets)):
            assert parse_publishes(octets[:length], 0, KEY, LIMITS, {})[:2] == (0, [])

    def test_run_ends_where_wholeness_ends(self) -> None:
        one = wire.publish(1, "q", b"12345")
        octets = one * 4
        for length in range(len(octets)):
            stop, raws, _, _ = parse_publishes(octets[:length], 0, KEY, LIMITS, {})
            assert len(raws) == length // len(one)
            assert stop == len(raws) * len(one)

    def test_malformed_properties_end_the_run_and_are_not_remembered(self) -> None:
        modes: dict[bytes, int] = {}
        broken = wire.frame(2, 1, struct.pack(">HHQ", 60, 0, 0) + b"\x80\x00")
        octets = wire.publish(1, "q") + KEY + broken
        stop, raws, _, _ = parse_publishes(octets, 0, KEY, LIMITS, modes)
        assert (stop, len(raws)) == (len(wire.publish(1, "q")), 1)
        assert parse_publishes(octets, stop, KEY, LIMITS, modes)[:2] == (stop, [])
        assert mode_of(b"\x80\x00", modes) == -1
        assert b"\x80\x00" not in modes

    def test_body_over_the_largest_is_left_to_the_reader(self) -> None:
        octets = wire.publish(1, "q", b"12345")
        assert parse_publishes(octets, 0, KEY, (wire.FRAME_MAX, 4), {})[1] == []
        assert len(parse_publishes(octets, 0, KEY, (wire.FRAME_MAX, 5), {})[1]) == 1

    @pytest.mark.parametrize("broken_at", range(14))
    def test_unlike_publishes_end_before_one_that_is_not_plain(self, broken_at: int) -> None:
        method, header, body = broken_parts(broken_at)
        whole = [wire.publish(1, key, b"12345") for key in ("a", "bb", "ccc")]
        octets = b"..." + b"".join(whole) + method + header + body + whole[0]
        stop, keys, raws, modes, largest = parse_unlike_publishes(octets, 3, LIMITS, {})
        assert stop == 3 + sum(map(len, whole))
        assert [key + raw for key, raw in zip(keys, raws, strict=True)] == whole
        assert (modes, largest) == ([0, 0, 0], len(raws[0]))

    def test_unlike_publishes_end_where_wholeness_ends(self) -> None:
        whole = [wire.publish(1, "q" * number, b"x" * number) for number in range(4)]
        octets = b"".join(whole)
        ends = [sum(map(len, whole[:number])) for number in range(5)]
        # The reader has seen the head of a frame.
        for length in range(7, len(octets)):
            stop, keys, *_ = parse_unlike_publishes(octets[:length], 0, LIMITS, {})
            assert stop == max(end for end in ends if end <= length)
            assert len(keys) == ends.index(stop)

    def test_body_of_another_channel_is_left_to_the_reader(self) -> None:
        octets = KEY + wire.header(1, 5) + wire.frame(3, 2, b"12345")
        assert parse_publishes(octets, 0, KEY, LIMITS, {})[1] == []

    def test_equal_octets_with_other_bodies_are_kept_apart(self) -> None:
        octets = b"".join(wire.publish(1, "q", bytes((number,)) * 3) for number in range(5))
        _, raws, _, _ = parse_publishes(octets, 0, KEY, LIMITS, {})
        assert [raw[-4:-1] for raw in raws] == [bytes((number,)) * 3 for number in range(5)]

    @pytest.mark.parametrize("broken", [wire.ack(1, 2)[:-1] + b"\x00", wire.ack(2, 2), b"\x01"])
    def test_acks_end_where_another_frame_begins(self, broken: bytes) -> None:
        octets = b"xyz" + wire.ack(1, 1) + broken + wire.ack(1, 3)
        assert parse_acks(octets, 3) == (24, [(1, 1)])

    def test_acks_are_ranges_in_the_order_received(self) -> None:
        tags = [3, 4, 5, 1, 9, 10, 10, 2**63 - 1]
        octets = b"".join(wire.ack(1, tag) for tag in tags)
        ranges = [(3, 5), (1, 1), (9, 10), (10, 10), (2**63 - 1, 2**63 - 1)]
        assert parse_acks(octets, 0) == (len(octets), ranges)
        assert parse_acks(octets[:-1], 0) == (len(octets) - 21, ranges[:-1])
        multiple = octets[:-2] + b"\x01\xce"
        assert parse_acks(multiple, 0) == (len(octets) - 21, ranges[:-1])

    def test_largest_tags_make_no_range_with_zero(self) -> None:
        octets = b"".join(
            struct.pack(">BHIHHQBB", 1, 1, 13, 60, 80, tag, 0, 0xCE)
            for tag in (2**64 - 2, 2**64 - 1, 0)
        )
        assert parse_acks(octets, 0) == (63, [(2**64 - 2, 2**64 - 1), (0, 0)])


class TestDeliveries:
    def test_deliver_says_what_was_published(self) -> None:
        raws = [raw_of(b"one", delivery_mode=2), raw_of(b"", headers={"k": 1}), raw_of(b"three")]
        tails = [tail_of("", "q"), tail_of("amq.topic", "a.b"), tail_of("e" * 127, "k" * 255)]
        messages = [
            (raw, tail, 2 * n, 0) for n, (raw, tail) in enumerate(zip(raws, tails, strict=True), 1)
        ]
        heard = deliveries(encode(messages, tag=41))
        assert [what.body for what in heard] == [b"one", b"", b"three"]
        assert heard[0].properties.delivery_mode == 2
        assert heard[1].properties.headers == {"k": 1}
        for number, (what, tail) in enumerate(zip(heard, tails, strict=True)):
            deliver = what.method
            assert isinstance(deliver, commands.Basic.Deliver)
            assert (deliver.consumer_tag, deliver.delivery_tag) == ("c", 41 + number)
            assert tail_of(deliver.exchange or "", deliver.routing_key or "") == tail

    @pytest.mark.parametrize("first", [1, 250, 256, (1 << 32) - 3, (1 << 56) - 5])
    def test_tags_count_on_from_the_first(self, first: int) -> None:
        tails = [tail_of("x", "a" * (number % 3)) for number in range(600)]
        messages = [(raw_of(b"x"), tail, 2, 0) for tail in tails]
        heard = [what.method for what in deliveries(encode(messages, tag=first))]
        assert [deliver.delivery_tag for deliver in heard] == [*range(first, first + 600)]  # type: ignore[attr-defined]
        told = [tail_of(deliver.exchange, deliver.routing_key) for deliver in heard]  # type: ignore[attr-defined]
        assert told == tails

    @pytest.mark.parametrize(
        ("mark", "redelivered"),
        [(0, [False] * 3), (2, [True, False, False]), (5, [True, True, False]), (6, [True] * 3)],
    )
    def test_what_is_not_above_the_mark_is_redelivered(
        self, mark: int, redelivered: list[bool]
    ) -> None:
        messages = [(raw_of(b"x"), tail_of("", "q"), seq, 0) for seq in (2, 5, 6)]
        heard = deliveries(encode(messages, mark=mark))
        told = [what.method.redelivered for what in heard]  # type: ignore[attr-defined]
        assert told == redelivered

    def test_equal_tails_of_two_objects_are_told_alike(self) -> None:
        tails = [tail_of("x", "q"), bytes(bytearray(tail_of("x", "q"))), tail_of("y", "q")]
        messages = [(raw_of(b"x"), tail, 2, 0) for tail in tails]
        heard = deliveries(encode(messages))
        assert [what.method.exchange for what in heard] == ["x", "x", "y"]  # type: ignore[attr-defined]

    @pytest.mark.parametrize("size", [0, 1, 4088, 4089, 4096, 8176, 8177, 20000])
    def test_no_body_frame_is_over_the_limit_of_the_client(self, size: int) -> None:
        octets = bytes(number % 251 for number in range(size))
        # As large as a publisher may make it: one frame without limit.
        raw = wire.header(7, size) + (wire.frame(3, 7, octets) if size else b"")
        (what,) = deliveries(encode([(raw, tail_of("", "q"), 2, 0)], frame_max=4096))
        assert what.body == octets
        full, rest = divmod(size, 4088)
        assert what.body_sizes == (4088,) * full + ((rest,) if rest else ())

    def test_frame_max_of_zero_is_no_limit(self) -> None:
        raw = raw_of(b"x" * 100_000)
        (what,) = deliveries(encode([(raw, tail_of("", "q"), 2, 0)], frame_max=0))
        assert what.body_sizes == (100_000,)

    def test_header_is_never_split(self) -> None:
        raw = raw_of(b"abc", headers={"k": "v" * 5000})
        (what,) = deliveries(encode([(raw, tail_of("", "q"), 2, 0)], frame_max=4096))
        assert what.properties.headers == {"k": "v" * 5000}

    def test_content_of_another_channel_is_renumbered(self) -> None:
        raw = raw_of(b"x" * 5000, channel=300, sizes=(4000,))
        renumbered = b"".join(content_pieces(raw, b"\x00\x07", 0))
        assert [frame[:2] for frame in wire.raw_frames(renumbered)] == [(2, 7), (3, 7), (3, 7)]
        assert [frame[2] for frame in wire.raw_frames(renumbered)] == [
            frame[2] for frame in wire.raw_frames(raw)
        ]

    def test_body_size_is_that_of_the_header(self) -> None:
        assert body_size(raw_of(b"x" * 5000, sizes=(1, 2, 3))) == 5000
