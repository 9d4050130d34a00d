"""The reader: octets in any cut, events out, and the exact error of every broken frame."""

from __future__ import annotations

import struct
from itertools import pairwise
from typing import cast

import pytest
from pamqp import commands

from tests import wire
from tests.both_ways import both_ways
from vouchmq.protocol.errors import FrameError, HardError, UnexpectedFrame
from vouchmq.protocol.reader import (
    ACKS,
    ACKS_UP_TO,
    HEARTBEAT,
    LARGE_BODY_OCTETS,
    METHOD,
    PUBLISH_BEGUN,
    PUBLISHES,
    TOO_LARGE,
    Event,
    PublishesEvent,
    Reader,
)

LARGEST_BODY = 100_000
PUBLISH = wire.method(1, commands.Basic.Publish(exchange="", routing_key="q"))
QOS = wire.method(1, commands.Basic.Qos(0, 7, False))


def run(event: Event) -> PublishesEvent:
    """An event that is a run of publishes."""
    assert event[0] == PUBLISHES
    return cast("PublishesEvent", event)


def payload(event: Event) -> bytes:
    """The payload of a method event."""
    assert event[0] == METHOD
    return cast("tuple[int, int, bytes]", event)[2]


def read(octets: bytes, frame_max: int = wire.FRAME_MAX) -> list[Event]:
    """Events of octets that come in one piece."""
    return list(Reader(frame_max, LARGEST_BODY).receive_data(octets))


def error_of(octets: bytes, frame_max: int = wire.FRAME_MAX) -> HardError:
    """The error that these octets end in; the same octet by octet."""
    with pytest.raises(HardError) as whole:
        read(octets, frame_max)
    reader = Reader(frame_max, LARGEST_BODY)
    with pytest.raises(HardError) as pieces:
        for at in range(len(octets)):
            list(reader.receive_data(octets[at : at + 1]))
    assert pieces.value.reply_text == whole.value.reply_text
    assert pieces.value.ids == whole.value.ids
    return whole.value


class TestRuns:
    def test_equal_publishes_come_as_one_run(self) -> None:
        one = wire.publish(1, "q", b"hello", wire.persistent())
        two = wire.publish(1, "q", b"hello again", wire.persistent())
        events = read(one * 3 + two + one)
        assert len(events) == 1
        kind, channel, key, raws, mode, largest = run(events[0])
        assert (kind, channel, key, mode) == (PUBLISHES, 1, PUBLISH, 1)
        assert raws == [each[len(PUBLISH) :] for each in (one, one, one, two, one)]
        assert largest == len(two) - len(PUBLISH)

    def test_largest_is_that_of_a_raw_content_on_both_ways(self) -> None:
        whole = wire.publish(1, "q", b"x" * 50)
        fast = read(whole)[0]
        reader = Reader(wire.FRAME_MAX, LARGEST_BODY)
        slow = [event for octet in whole for event in reader.receive_data(bytes((octet,)))]
        assert slow == [(PUBLISH_BEGUN, 1), fast]

    def test_another_mode_ends_the_run(self) -> None:
        transient, durable = (
            wire.publish(1, "q", b"a"),
            wire.publish(1, "q", b"a", wire.persistent()),
        )
        events = read(transient * 2 + durable * 2 + transient)
        assert [(run(event)[4], len(run(event)[3])) for event in events] == [
            (0, 2),
            (1, 2),
            (0, 1),
        ]

    def test_another_key_or_channel_ends_the_run(self) -> None:
        octets = wire.publish(1, "q") * 2 + wire.publish(1, "r") + wire.publish(2, "q") * 2
        assert [(event[1], len(run(event)[3])) for event in read(octets)] == [
            (1, 2),
            (1, 1),
            (2, 2),
        ]

    def test_acks_come_as_ranges(self) -> None:
        octets = b"".join(wire.ack(1, tag) for tag in (1, 2, 3, 7, 5, 6, 6))
        assert read(octets) == [(ACKS, 1, [(1, 3), (7, 7), (5, 6), (6, 6)])]

    def test_acks_of_two_channels_are_two_events(self) -> None:
        assert read(wire.ack(1, 1) + wire.ack(2, 2)) == [(ACKS, 1, [(1, 1)]), (ACKS, 2, [(2, 2)])]

    def test_acks_with_multiple_come_together_as_long_as_their_tags_grow(self) -> None:
        tags = (5, 9, 9, 12, (1 << 63) - 1, 1 << 63, (1 << 64) - 1)
        ack = wire.ack(1, 1, multiple=True)
        octets = b"".join(ack[:11] + tag.to_bytes(8, "big") + ack[19:] for tag in tags)
        octets = wire.ack(1, 1) + octets + wire.ack(2, 7, multiple=True) + wire.ack(2, 8)
        assert both_ways(read, octets) == [
            (ACKS, 1, [(1, 1)]),
            (ACKS_UP_TO, 1, [5, 9]),
            (ACKS_UP_TO, 1, [*tags[2:]]),
            (ACKS_UP_TO, 2, [7]),
            (ACKS, 2, [(8, 8)]),
        ]

    def test_what_acknowledges_everything_is_a_method(self) -> None:
        """So is one with other bits than that of multiple."""
        everything = wire.ack(1, 0, multiple=True)
        odd = wire.ack(1, 5, multiple=True)[:-2] + b"\x03\xce"
        for octets in (everything, odd):
            ack = wire.ack(1, 4, multiple=True)
            assert read(octets) == [(METHOD, 1, octets[7:-1])]
            assert read(ack + octets + ack) == [
                (ACKS_UP_TO, 1, [4]),
                (METHOD, 1, octets[7:-1]),
                (ACKS_UP_TO, 1, [4]),
            ]

    def test_tag_zero_is_reported_as_it_came(self) -> None:
        assert read(wire.ack(1, 0) + wire.ack(1, 1)) == [(ACKS, 1, [(0, 1)])]

    def test_acks_and_publishes_in_turn_keep_their_order(self) -> None:
        octets = (wire.ack(1, 1) + wire.publish(1, "q", b"x")) * 2
        assert [event[0] for event in read(octets)] == [ACKS, PUBLISHES, ACKS, PUBLISHES]

    def test_property_blocks_are_forgotten_when_there_are_too_many(self) -> None:
        octets = b"".join(
            wire.publish(1, "q", b"x", wire.persistent(message_id=str(number)))
            for number in range(5000)
        )
        reader = Reader(wire.FRAME_MAX, LARGEST_BODY)
        events = list(reader.receive_data(octets))
        assert sum(len(run(event)[3]) for event in events) == 5000
        assert len(reader._modes) <= 2048


class TestContents:
    @pytest.mark.parametrize("size", [0, 1, 2, wire.ONE_BODY - 1, wire.ONE_BODY])
    def test_body_in_one_frame(self, size: int) -> None:
        octets = wire.publish(1, "q", b"b" * size)
        assert read(octets) == [
            (PUBLISHES, 1, PUBLISH, [octets[len(PUBLISH) :]], 0, len(octets) - len(PUBLISH))
        ]

    def test_body_in_many_frames_and_empty_ones(self) -> None:
        octets = wire.publish(1, "q", b"b" * 9000, sizes=(0, 4000, 0, 1, 0, 4000))
        begun, event = read(octets)
        assert begun == (PUBLISH_BEGUN, 1)
        raw = run(event)[3][0]
        frames = wire.raw_frames(raw)
        # Kept in one body frame; consumers get it cut to their own frame_max (FRAME-39).
        assert [octets for kind, _, octets in frames if kind == 3] == [b"b" * 9000]

    def test_contents_of_two_channels_interleave(self) -> None:
        octets = b"".join(
            (
                wire.method(1, commands.Basic.Publish(exchange="", routing_key="a")),
                wire.method(2, commands.Basic.Publish(exchange="", routing_key="b")),
                wire.header(2, 2),
                wire.heartbeat(),
                wire.header(1, 4),
                wire.frame(3, 1, b"AA"),
                wire.frame(3, 2, b"bb"),
                wire.ack(3, 1),
                wire.frame(3, 1, b"AA"),
            )
        )
        assert [event[:2] for event in read(octets)] == [
            (PUBLISH_BEGUN, 1),
            (PUBLISH_BEGUN, 2),
            (HEARTBEAT, 0),
            (PUBLISHES, 2),
            (ACKS, 3),
            (PUBLISHES, 1),
        ]

    def test_too_large_is_told_at_the_header_and_skipped(self) -> None:
        size = LARGEST_BODY + 1
        head = PUBLISH + wire.header(1, size)
        reader = Reader(wire.FRAME_MAX, LARGEST_BODY)
        assert list(reader.receive_data(head)) == [
            (PUBLISH_BEGUN, 1),
            (TOO_LARGE, 1, PUBLISH, size),
        ]
        left = size
        while left:
            chunk = min(left, wire.ONE_BODY)
            left -= chunk
            assert list(reader.receive_data(wire.frame(3, 1, b"x" * chunk))) == []
        assert list(reader.receive_data(QOS)) == [(METHOD, 1, QOS[7:-1])]

    def test_largest_body_passes(self) -> None:
        octets = wire.publish(1, "q", b"x" * LARGEST_BODY, sizes=[4000] * 25)
        assert read(octets)[-1][0] == PUBLISHES

    def test_discarded_channel_hears_only_close_and_close_ok(self) -> None:
        reader = Reader(wire.FRAME_MAX, LARGEST_BODY)
        list(reader.receive_data(PUBLISH + wire.header(1, 5)))
        reader.discard_channel(1)
        close_ok = wire.method(1, commands.Channel.CloseOk())
        close = wire.method(1, commands.Channel.Close(200, "", 0, 0))
        octets = wire.frame(3, 1, b"12345") + wire.publish(1, "q", b"x") + wire.ack(1, 1)
        events = list(reader.receive_data(octets + QOS + close + close_ok + wire.publish(2, "q")))
        assert [event[:2] for event in events] == [(METHOD, 1), (METHOD, 1), (PUBLISHES, 2)]
        assert [payload(event) for event in events[:2]] == [close[7:-1], close_ok[7:-1]]

    def test_when_all_is_discarded_the_connection_itself_is_heard(self) -> None:
        reader = Reader(wire.FRAME_MAX, LARGEST_BODY)
        events = reader.receive_data(wire.publish(1, "q") + QOS + wire.publish(2, "q"))
        assert next(events)[0] == PUBLISHES
        reader.discard_all()
        assert list(events) == []
        close_ok = wire.method(0, commands.Connection.CloseOk())
        octets = wire.publish(3, "q") + wire.ack(1, 1) + QOS + close_ok
        assert [event[:2] for event in reader.receive_data(octets)] == [(METHOD, 0)]

    def test_discarding_takes_effect_on_the_next_frame_of_the_same_octets(self) -> None:
        reader = Reader(wire.FRAME_MAX, LARGEST_BODY)
        events = reader.receive_data(wire.publish(1, "q") + wire.publish(1, "r") + QOS)
        assert next(events)[0] == PUBLISHES
        reader.discard_channel(1)
        assert list(events) == []

    def test_forgotten_channel_begins_anew(self) -> None:
        reader = Reader(wire.FRAME_MAX, LARGEST_BODY)
        list(reader.receive_data(PUBLISH))
        reader.discard_channel(1)
        reader.forget_channel(1)
        assert list(reader.receive_data(QOS)) == [(METHOD, 1, QOS[7:-1])]

    def test_negotiated_limit_counts_from_the_next_frame(self) -> None:
        reader = Reader(4096, LARGEST_BODY)
        events = reader.receive_data(QOS + wire.frame(1, 1, b"\x00" * 5000))
        next(events)
        reader.set_frame_max(8192)
        assert next(events)[0] == METHOD

    def test_a_body_is_written_where_it_stays_as_it_comes(self) -> None:
        reader = Reader(wire.FRAME_MAX, LARGEST_BODY)
        octets = wire.publish(1, "q", b"b" * 4000)
        end = len(octets) - 1
        cuts = [*range(0, end, 500), end]
        for at, stop in pairwise(cuts):
            assert [event[0] for event in reader.receive_data(octets[at:stop])] == [
                PUBLISH_BEGUN
            ] * (not at)
            assert not reader._rest
            assert reader.held_octets == reader.unfinished_octets > stop - len(PUBLISH)
        (event,) = reader.receive_data(octets[end:] + QOS[:3])
        assert run(event)[3] == [octets[len(PUBLISH) :]]
        assert reader.held_octets == len(reader._rest[0]) == 3

    def test_channel_discarded_within_a_body_frame(self) -> None:
        reader = Reader(wire.FRAME_MAX, LARGEST_BODY)
        octets = wire.publish(1, "q", b"b" * 4000)
        list(reader.receive_data(octets[:1000]))
        reader.discard_channel(1)
        assert list(reader.receive_data(octets[1000:2000])) == []
        assert reader.held_octets == 0
        events = reader.receive_data(octets[2000:] + wire.publish(1, "q") + wire.publish(2, "q"))
        assert [event[:2] for event in events] == [(PUBLISHES, 2)]

    def test_wrong_end_of_a_body_frame_that_came_in_pieces(self) -> None:
        head = PUBLISH + wire.header(1, 30) + wire.frame(3, 1, b"a" * 10)
        error = error_of(head + wire.frame(3, 1, b"b" * 20, 0xCD))
        assert error.text == (
            f"type 3, first 16 octets = <<{','.join(['98'] * 16)}>>: "
            "{invalid_frame_end_marker,205}"
        )

    def test_octets_in_waiting_are_bounded_by_one_frame(self) -> None:
        reader = Reader(wire.FRAME_MAX, LARGEST_BODY)
        octets = wire.publish(1, "q", b"x" * 4000) * 3
        for at in range(0, len(octets), 100):
            list(reader.receive_data(octets[at : at + 100]))
            assert sum(map(len, reader._rest)) <= wire.FRAME_MAX + 8


class TestFrameErrors:
    """FRAME-10…14, CONN-63."""

    @pytest.mark.parametrize("kind", [1, 2, 3, 8, 77])
    def test_too_large_is_judged_by_the_head_alone(self, kind: int) -> None:
        head = struct.pack(">BHI", kind, 1, wire.FRAME_MAX + 1)
        error = error_of(head)
        assert isinstance(error, FrameError)
        assert error.ids == (0, 0)
        assert error.text == (
            f"type {kind}, all octets = <<>>: "
            f"{{frame_too_large,{wire.FRAME_MAX + 1},{wire.FRAME_MAX - 8}}}"
        )

    def test_eight_octets_too_many_are_forgiven(self) -> None:
        octets = wire.frame(3, 1, b"x" * wire.FRAME_MAX)
        assert read(PUBLISH + wire.header(1, wire.FRAME_MAX) + octets)[-1][0] == PUBLISHES

    def test_without_a_frame_limit_the_largest_body_still_caps(self) -> None:
        most = LARGEST_BODY + 65536
        assert list(Reader(0, LARGEST_BODY).receive_data(struct.pack(">BHI", 3, 1, most))) == []
        assert "frame_too_large" in error_of(struct.pack(">BHI", 3, 1, most + 1), 0).text

    @pytest.mark.parametrize("good", [b"", QOS, wire.publish(1, "q", b"x")])
    def test_wrong_frame_end(self, good: bytes) -> None:
        error = error_of(good + wire.frame(1, 1, b"\x00\x3c\x00\x0a" + b"\x00" * 7, 0xCD))
        assert isinstance(error, FrameError)
        assert error.text == (
            "type 1, all octets = <<0,60,0,10,0,0,0,0,0,0,0>>: {invalid_frame_end_marker,205}"
        )

    @pytest.mark.parametrize("part", ["method", "header", "body"])
    def test_wrong_frame_end_within_a_run(self, part: str) -> None:
        good = wire.publish(1, "q", b"hello")
        broken = bytearray(good)
        place = {
            "method": len(PUBLISH) - 1,
            "header": len(PUBLISH) + len(wire.header(1, 5)) - 1,
            "body": len(good) - 1,
        }
        broken[place[part]] = 0
        assert "invalid_frame_end_marker,0" in error_of(good * 2 + bytes(broken)).text

    @pytest.mark.parametrize("kind", [0, 4, 5, 6, 7, 9, 255])
    @pytest.mark.parametrize("before", [b"", PUBLISH, PUBLISH + wire.header(1, 5)])
    def test_unknown_type(self, kind: int, before: bytes) -> None:
        error = error_of(before + wire.frame(kind, 1, b"abc"))
        assert isinstance(error, FrameError)
        assert error.text.startswith(f"type {kind}, all octets =")
        assert error.text.endswith(": unknown_frame")

    @pytest.mark.parametrize("size", [0, 1, 2, 3])
    def test_method_too_short(self, size: int) -> None:
        assert error_of(wire.frame(1, 1, b"\x00" * size)).text.endswith(": unknown_frame")

    @pytest.mark.parametrize("size", [0, 1, 11, 12, 13])
    def test_header_too_short(self, size: int) -> None:
        octets = PUBLISH + wire.frame(2, 1, wire.header(1, 0)[7 : 7 + size])
        assert error_of(octets).text.endswith(": unknown_frame")

    def test_heartbeat_with_payload(self) -> None:
        assert error_of(wire.frame(8, 0, b"x")).text.endswith(": unknown_frame")

    def test_heartbeat_on_a_channel(self) -> None:
        assert isinstance(error_of(wire.frame(8, 1, b"")), UnexpectedFrame)

    def test_snippet_shows_sixteen_octets(self) -> None:
        error = error_of(wire.frame(9, 0, bytes(range(200, 220))))
        shown = ",".join(map(str, range(200, 216)))
        assert error.text == f"type 9, first 16 octets = <<{shown}>>: unknown_frame"


class TestContentErrors:
    """FRAME-30…38, FRAME-40."""

    @pytest.mark.parametrize("octets", [wire.header(1, 0), wire.frame(3, 1, b"x")])
    def test_content_without_a_method(self, octets: bytes) -> None:
        error = error_of(octets)
        assert isinstance(error, UnexpectedFrame)
        assert error.text == "expected method frame, got non method frame instead"
        assert error.ids == (0, 0)

    def test_empty_body_frame_after_a_complete_message(self) -> None:
        error = error_of(wire.publish(1, "q") + wire.frame(3, 1, b""))
        assert error.text == "expected method frame, got non method frame instead"

    @pytest.mark.parametrize("octets", [QOS, PUBLISH, wire.ack(1, 1), wire.frame(3, 1, b"x")])
    def test_no_header_after_publish(self, octets: bytes) -> None:
        error = error_of(PUBLISH + octets)
        assert isinstance(error, UnexpectedFrame)
        assert error.text == (
            "expected content header for class 60, got non content header frame instead"
        )
        assert error.ids == (60, 40)

    def test_weight_is_no_header(self) -> None:
        octets = bytearray(wire.header(1, 0))
        octets[10] = 1
        assert "got non content header frame instead" in error_of(PUBLISH + bytes(octets)).text

    def test_header_of_another_class(self) -> None:
        octets = bytearray(wire.header(1, 0))
        octets[8] = 50
        error = error_of(PUBLISH + bytes(octets))
        assert isinstance(error, UnexpectedFrame)
        assert error.text == "expected content header for class 60, got one for class 50 instead"

    @pytest.mark.parametrize("octets", [QOS, PUBLISH, wire.ack(1, 1), wire.header(1, 0)])
    def test_no_body_while_octets_are_missing(self, octets: bytes) -> None:
        error = error_of(PUBLISH + wire.header(1, 5) + wire.frame(3, 1, b"abc") + octets)
        assert isinstance(error, UnexpectedFrame)
        assert error.text == "expected content body, got non content body frame instead"

    def test_body_longer_than_announced(self) -> None:
        error = error_of(PUBLISH + wire.header(1, 5) + wire.frame(3, 1, b"abcdef"))
        assert isinstance(error, FrameError)
        assert error.text == "content body frame exceeds remaining content size"
        assert error.ids == (60, 40)

    def test_body_size_over_the_ceiling(self) -> None:
        octets = struct.pack(">HHQH", 60, 0, 536870913, 0)
        error = error_of(PUBLISH + wire.frame(2, 1, octets))
        assert isinstance(error, FrameError)
        assert error.text == "content body size 536870913 exceeds maximum allowed size 536870912"

    @pytest.mark.parametrize(
        "block",
        [
            b"\x80\x00",  # content-type is not there
            b"\x80\x00\x05abc",
            b"\x00\x01",  # more flags announced
            b"\x00\x00x",  # octets left over
            b"\x20\x00\x00\x00\x00\x09",  # headers longer than the block
            b"\x10\x00",
        ],
    )
    @pytest.mark.parametrize("before", [b"", wire.publish(1, "q")])
    def test_malformed_properties(self, block: bytes, before: bytes) -> None:
        octets = struct.pack(">HHQ", 60, 0, 0) + block
        error = error_of(before + PUBLISH + wire.frame(2, 1, octets))
        assert isinstance(error, FrameError)
        assert error.text.startswith("cannot decode ")
        assert error.ids == (60, 40)

    def test_events_before_the_error_are_given(self) -> None:
        reader = Reader(wire.FRAME_MAX, LARGEST_BODY)
        events = reader.receive_data(wire.publish(1, "q") * 2 + wire.frame(9, 0, b""))
        assert len(run(next(events))[3]) == 2
        with pytest.raises(FrameError):
            next(events)


class TestOneEvent:
    """What is read most often is one event, which is given without looking for others."""

    @pytest.mark.parametrize("tag", [0, 1, 255, 1 << 31, (1 << 63) - 1, 1 << 63, (1 << 64) - 1])
    def test_a_lone_ack(self, tag: int) -> None:
        ack = wire.method(5, commands.Basic.Ack(0, False))
        octets = ack[:11] + tag.to_bytes(8, "big") + ack[19:]
        assert both_ways(read, octets) == [(ACKS, 5, [(tag, tag)])]

    def test_nothing_is_left_behind_it(self) -> None:
        reader = Reader(wire.FRAME_MAX, LARGEST_BODY)
        for octets in (wire.method(1, commands.Basic.Ack(1, False)), wire.publish(1, "q", b"hi")):
            assert reader.begin(octets) is not None
            assert list(reader.rest()) == []
            assert reader.held_octets == 0

    def test_the_others_come_after_it(self) -> None:
        reader = Reader(wire.FRAME_MAX, LARGEST_BODY)
        ack = wire.method(1, commands.Basic.Ack(1, False))
        first = reader.begin(ack + QOS + ack[:5])
        assert first == (ACKS, 1, [(1, 1)])
        assert [event[0] for event in reader.rest()] == [METHOD]
        assert reader.held_octets == 5

    def test_an_ack_on_a_channel_that_is_being_closed_is_none(self) -> None:
        reader = Reader(wire.FRAME_MAX, LARGEST_BODY)
        reader.discard_channel(1)
        assert list(reader.receive_data(wire.method(1, commands.Basic.Ack(1, False)))) == []
        reader.discard_all()
        assert list(reader.receive_data(wire.method(2, commands.Basic.Ack(1, False)))) == []

    def test_an_ack_where_a_content_is_due_is_an_error(self) -> None:
        assert error_of(PUBLISH + wire.method(1, commands.Basic.Ack(1, False))).code == 505
        reader = Reader(wire.FRAME_MAX, LARGEST_BODY)
        assert [event[0] for event in reader.receive_data(PUBLISH)] == [PUBLISH_BEGUN]
        with pytest.raises(UnexpectedFrame):
            list(reader.receive_data(wire.method(1, commands.Basic.Ack(1, False))))


@pytest.mark.parametrize("size", [LARGE_BODY_OCTETS - 1, LARGE_BODY_OCTETS])
def test_it_tells_that_it_is_in_a_large_body(size: int) -> None:
    octets = wire.publish(1, "q", bytes(size))
    reader = Reader(131072, LARGEST_BODY)
    told = []
    for at in range(0, len(octets), 1000):
        list(reader.receive_data(octets[at : at + 1000]))
        told.append(reader.is_in_large_body)
    assert any(told) is (size >= LARGE_BODY_OCTETS)
    assert not told[-1]
