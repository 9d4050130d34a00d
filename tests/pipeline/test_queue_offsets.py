"""Offsets, sets of places, tags and tasks of modes queue and spool: plain values, no broker."""

from __future__ import annotations

import itertools
import json
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from vouchmq.kit import bulk
from vouchmq.spark.rows import Delivery, arrow_schema
from vouchmq.spark.source import tasks
from vouchmq.spark.source.dedupe import KEPT_RANGES, DeliveredSet, Keys
from vouchmq.spark.source.offsets import OffsetError, Places, QueueOffset, Ranges, SpoolOffset
from vouchmq.spark.source.places import places_of
from vouchmq.spark.source.queue_channel import Portion, QueueChannel
from vouchmq.spark.source.tasks import TASK_BYTES, largest, packed, record_batches, shares, unpacked

NUMBERS = st.sets(st.integers(0, 60))
PIECES = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 8)))


def numbers_in(ranges: Ranges) -> set[int]:
    return {number for first, last in ranges for number in range(first, last + 1)}


def ranges_of(numbers: set[int]) -> Ranges:
    return Ranges((number, number) for number in sorted(numbers))


class TestRanges:
    @given(PIECES)
    def test_holds_what_was_added(self, pieces: list[tuple[int, int]]) -> None:
        ranges = Ranges((first, first + more) for first, more in pieces)
        expected = {n for first, more in pieces for n in range(first, first + more + 1)}
        assert numbers_in(ranges) == expected
        assert len(ranges) == len(expected)
        assert all((n in ranges) == (n in expected) for n in range(-1, 75))
        rows = list(ranges)
        # Neither overlapping nor touching, and rising.
        assert all(right[0] > left[1] + 1 for left, right in itertools.pairwise(rows))

    @given(NUMBERS, NUMBERS)
    def test_minus(self, here: set[int], there: set[int]) -> None:
        assert numbers_in(ranges_of(here).minus(ranges_of(there))) == here - there


class TestPlaces:
    @given(st.lists(st.tuples(st.integers(1, 3), st.integers(1, 30)) | st.none()))
    def test_places_come_back_from_their_json(self, places: list[tuple[int, int] | None]) -> None:
        held = Places()
        held.add_all(places)
        again = Places.of_json(json.loads(json.dumps(held.as_json())))
        assert again == held
        assert len(held) == len({place for place in places if place is not None})
        assert all(place in again for place in places if place is not None)

    def test_what_comes_in_order_is_one_range(self) -> None:
        held = Places()
        held.add_all((7, number) for number in range(1, 5001))
        assert held.as_json() == {"7": [[1, 5000]]}
        assert held.per_queue() == {7: 5000}


class TestOffsets:
    def test_text_does_not_depend_on_the_order_of_queues(self) -> None:
        one, other = Places(), Places()
        for queue_id in (10, 9):
            one.add(queue_id, 1, 2)
        for queue_id in (9, 10):
            other.add(queue_id, 1, 2)
        texts = {json.dumps(QueueOffset("e", 4, done).as_json()) for done in (one, other)}
        assert texts == {'{"v": 1, "epoch": "e", "n": 4, "done": {"9": [[1, 2]], "10": [[1, 2]]}}'}

    def test_round_trips(self) -> None:
        places = Places()
        places.add(3, 1, 9)
        for offset in (QueueOffset("ab", 9, places), QueueOffset("ab", 9)):
            assert QueueOffset.of_json(json.loads(json.dumps(offset.as_json()))) == offset
        assert SpoolOffset.of_json(SpoolOffset("ab", 12).as_json()) == SpoolOffset("ab", 12)

    @pytest.mark.parametrize(
        "offset",
        [
            *({}, {"v": 2, "epoch": "e", "n": 1}, {"v": 1, "epoch": "e"}),
            *({"v": 1, "spool": "s", "file": 3}, {"v": 1, "next": {"q": 5}}),
            {"v": 1, "epoch": "e", "n": 1, "done": {"1": 7}},
        ],
    )
    def test_offsets_of_other_modes(self, offset: dict[str, Any]) -> None:
        with pytest.raises(OffsetError, match="not one of mode 'queue'"):
            QueueOffset.of_json(offset)

    def test_offset_of_queue_mode_in_spool_mode(self) -> None:
        with pytest.raises(OffsetError, match="not one of mode 'spool'"):
            SpoolOffset.of_json(QueueOffset("e", 1).as_json())


class Long(int):
    """A number that goes over the wire with 64 bits, as brokers send these."""


def table(values: dict[str, Any]) -> bytes:
    entries = b""
    for name, value in values.items():
        entries += bytes([len(name)]) + name.encode()
        if isinstance(value, Long):
            entries += b"l" + value.to_bytes(8, "big")
        elif isinstance(value, dict):
            entries += b"F" + table(value)
        else:
            octets = value if isinstance(value, bytes) else str(value).encode()
            entries += b"S" + len(octets).to_bytes(4, "big") + octets
    return len(entries).to_bytes(4, "big") + entries


def with_headers(**headers: Any) -> bytes:
    """Properties that are nothing but headers."""
    names = {name.replace("_", "-"): value for name, value in headers.items()}
    return b"\x20\0" + table(names)


def stamped(queue_id: int, number: int, **headers: Any) -> bytes:
    """Properties as a numbering broker delivers them."""
    return with_headers(**headers, x_queue_seq=Long(number), x_queue_id=Long(queue_id))


class TestPlacesOf:
    def test_with_other_headers_before(self) -> None:
        raws = [stamped(7, 12, a="x"), stamped(7, 13), bulk.encode_properties({})]
        assert places_of(raws) == [(7, 12), (7, 13), None]

    def test_the_same_octets_within_another_value(self) -> None:
        assert places_of([stamped(7, 12, trap=stamped(1, 1)[6:])]) == [(7, 12)]
        nested = stamped(7, 13, inner={"x-queue-seq": Long(99), "x-queue-id": Long(98)})
        assert places_of([nested]) == [(7, 13)]

    def test_only_one_of_the_two(self) -> None:
        assert places_of([with_headers(x_queue_seq=Long(1))]) == [None]


class TestHanded:
    def test_copies_of_the_finished_only_and_only_redelivered_ones(self) -> None:
        handed = DeliveredSet()
        handed.begin(None)
        handed.hand_out([(1, 1), (1, 2)])
        assert not handed.is_copy((1, 1), True)
        handed.finish()
        assert handed.is_copy((1, 1), True)
        assert not handed.is_copy((1, 1), False)
        assert not handed.is_copy((1, 3), True)
        assert not handed.is_copy(None, True)

    def test_what_is_missing_in_a_replay_is_not_finished(self) -> None:
        handed = DeliveredSet()
        start, end = Places(), Places()
        start.add(1, 1, 5)
        handed.begin(start)
        handed.hand_out([(1, 6), (1, 8)])
        handed.finish()
        assert not handed.is_copy((1, 7), True)
        end.add(1, 1, 6)
        end.add(1, 8, 8)
        assert handed.done() == end

    def test_one_range_is_kept_and_many_are_not(self) -> None:
        handed = DeliveredSet()
        handed.begin(None)
        handed.hand_out((1, number) for number in range(1, 1001))
        handed.acks_arrived(handed.finish())
        assert handed.is_copy((1, 1), True)
        handed.hand_out((1, number) for number in range(2000, 2000 + 4 * KEPT_RANGES, 2))
        unsure = handed.finish()
        handed.hand_out([(1, 5000)])
        sure = handed.finish()
        handed.acks_arrived(sure)
        # The acks of the many may not have arrived: they are kept whatever it takes.
        assert all(handed.is_copy(place, True) for place in [(1, 2000), (1, 2002)])
        assert not handed.is_copy((1, 1), True)
        handed.acks_arrived(unsure)
        assert not handed.is_copy((1, 2000), True)


class TestKeys:
    @staticmethod
    def delivery(redelivered: bool, **properties: Any) -> Delivery:
        return (1, redelivered, "", "q", bulk.encode_properties(properties), b"")

    def test_message_ids(self) -> None:
        keys = Keys("messageId")
        keys.remember(1, ["a", None])
        deliveries = [
            self.delivery(True, message_id="a"),
            self.delivery(False, message_id="a"),
            self.delivery(True, message_id="b"),
            self.delivery(True),
        ]
        assert keys.copies("q", deliveries) == [True, False, False, False]
        keys.forget(1)
        assert keys.copies("q", deliveries) == [False] * 4

    def test_headers(self) -> None:
        keys = Keys("header:order")
        assert keys.column == "headers"
        keys.remember(1, [[("order", "17"), ("x", "18")], None])
        deliveries = [
            self.delivery(True, headers={"order": 17}),
            self.delivery(True, headers={"order": 18}),
            self.delivery(True, headers={"x": "17"}),
            self.delivery(True),
        ]
        assert keys.copies("q", deliveries) == [True, False, False, False]


class FakeChannel:
    """The inbox of a channel."""

    def __init__(self, deliveries: list[Delivery]) -> None:
        self._deliveries = deliveries

    @property
    def arrived(self) -> tuple[int, int]:
        return len(self._deliveries), sum(len(each[4]) + len(each[5]) for each in self._deliveries)

    def take(self, max_messages: int, max_bytes: int | None = None) -> list[Delivery]:
        taken: list[Delivery] = []
        size = 0
        while self._deliveries and len(taken) < max_messages:
            if taken and max_bytes is not None and size >= max_bytes:
                break
            taken.append(self._deliveries.pop(0))
            size += len(taken[-1][4]) + len(taken[-1][5])
        return taken


def plain(tag: int, body: bytes = b"x", raw: bytes = b"\0\0") -> Delivery:
    return (tag, False, "", "q", raw, body)


class TestQueueChannel:
    @given(st.lists(st.integers(1, 5), min_size=1, max_size=12), st.randoms())
    def test_acks_settle_exactly_what_they_should(self, sizes: list[int], chance: Any) -> None:
        """A model of a channel takes the acks: each tag once, and no other one."""
        queue_channel = QueueChannel("q")
        tags = list(range(1, sum(sizes) + 1))
        outstanding = set(tags)
        chance.shuffle(tags)
        for size in sizes:
            mine, tags = sorted(tags[:size]), tags[size:]
            through, singles = queue_channel.settle(mine)
            if through:
                assert through in outstanding, "unknown delivery tag"
                outstanding -= {tag for tag in outstanding if tag <= through}
            for tag in singles:
                outstanding.remove(tag)
            assert outstanding == set(tags)

    def test_in_order_one_ack_is_enough(self) -> None:
        queue_channel = QueueChannel("q")
        assert queue_channel.settle([1, 2, 3]) == (3, [])
        assert queue_channel.settle([4, 5]) == (5, [])

    def test_what_was_put_back_comes_first(self) -> None:
        queue_channel = QueueChannel("q")
        queue_channel.begin(FakeChannel([plain(tag) for tag in range(1, 6)]))
        assert queue_channel.arrived() == (0, 0)
        assert not queue_channel.is_suspicious()
        assert queue_channel.arrived() == (5, 15)
        first, _ = queue_channel.take(3, 1000)
        queue_channel.put_back(first[1:])
        again, size = queue_channel.take(10, 1000)
        assert [each[0] for each in again] == [2, 3, 4, 5]
        assert size == 12
        assert queue_channel.arrived() == (0, 0)

    def test_bytes_are_limited_and_one_message_always_comes(self) -> None:
        queue_channel = QueueChannel("q")
        queue_channel.begin(FakeChannel([plain(tag, b"x" * 100) for tag in range(1, 6)]))
        queue_channel.is_suspicious()
        assert len(queue_channel.take(5, 1)[0]) == 1
        assert len(queue_channel.take(5, 150)[0]) == 2

    def test_a_header_of_streams(self) -> None:
        raw = with_headers(x_stream_offset=Long(3))
        queue_channel = QueueChannel("q")
        queue_channel.begin(FakeChannel([plain(1, raw=raw), plain(2)]))
        assert queue_channel.is_suspicious()
        # Nothing can be taken before it is known what it is.
        assert queue_channel.arrived() == (0, 0)
        queue_channel.is_known = True
        assert queue_channel.arrived()[0] == 2


def portion(queue: str, sizes: list[int], start: int = 1) -> Portion:
    deliveries = [plain(start + at, b"x" * size) for at, size in enumerate(sizes)]
    return Portion(QueueChannel(queue), 0, deliveries)


class TestTasks:
    @given(
        st.lists(st.lists(st.integers(0, 300), max_size=20), max_size=4),
        st.integers(1, 6),
        st.integers(200, 3000),
    )
    def test_nothing_is_lost_and_the_order_stays(
        self, queues: list[list[int]], count: int, limit: int
    ) -> None:
        portions = [portion(f"q{number}", sizes) for number, sizes in enumerate(queues)]
        cut = shares(portions, count, limit)
        assert all(runs and all(run for _, run in runs) for runs in cut)
        for each in portions:
            rows = [
                row for runs in cut for queue, run in runs for row in run if queue == each.queue
            ]
            assert rows == each.deliveries

    def test_as_many_tasks_as_asked_for(self) -> None:
        assert [len(runs[0][1]) for runs in shares([portion("q", [1] * 10)], 3)] == [4, 4, 2]
        assert shares([], 3) == []

    def test_many_queues_make_no_more_tasks(self) -> None:
        portions = [portion(f"q{number}", [1, 1]) for number in range(10)]
        assert len(shares(portions, 2)) == 2

    def test_large_messages_make_more_tasks(self) -> None:
        cut = shares([portion("q", [TASK_BYTES // 2 + 1] * 3 + [10, 10])], 1)
        assert [len(runs[0][1]) for runs in cut] == [1, 1, 3]

    def test_rows_come_back_from_their_octets(self) -> None:
        columns = ("queue", "body")
        broken: list[int] = []
        runs = [("a", [plain(1, b"one")]), ("b", [plain(2, b"two", b"\xff\xff")])]
        octets = packed(record_batches(runs, columns, broken), arrow_schema(columns))
        table = pa.Table.from_batches(unpacked(octets))
        assert table.to_pylist() == [{"queue": "a", "body": b"one"}, {"queue": "b", "body": b"two"}]

    def test_a_column_of_arrow_does_not_hold_all(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(tasks, "_BATCH_BYTES", 1000)
        runs = [("a", [plain(tag, b"x" * 300) for tag in range(1, 6)])]
        batches = list(record_batches(runs, ("body",), []))
        assert [batch.num_rows for batch in batches] == [1, 1, 1, 1, 1]
        monkeypatch.setattr(tasks, "_BATCH_BYTES", 1100)
        assert [batch.num_rows for batch in record_batches(runs, ("body",), [])] == [2, 2, 1]

    def test_one_that_cannot_be_read_is_counted(self) -> None:
        broken: list[int] = []
        runs = [("a", [plain(1, raw=b"\xff\xff"), plain(2)])]
        (batch,) = record_batches(runs, ("body", "message_id", "properties_raw"), broken)
        assert batch.num_rows == 2
        assert len(broken) == 1

    def test_largest(self) -> None:
        assert largest([portion("a", [5, 900]), portion("b", [7])]) == (902, "a")
        assert largest([]) == (0, "")
