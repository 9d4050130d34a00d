"""Retention by itself: what goes, when, and what the journal is told of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import pytest

from vouchmq.server.broker.features.effective import Features
from vouchmq.server.broker.streams.index import StreamIndex
from vouchmq.server.broker.streams.retention import TURN_SETTLES, Retention
from vouchmq.server.broker.timers import Timers

STREAM_ID = 5
START_MS = 1000


class Log:
    """A journal that remembers notes and what is gone."""

    def __init__(self) -> None:
        self.notes: dict[bytes, bytes] = {}
        self.settled: list[int] = []
        self._lsn = 0

    def settle(self, queue_id: int, lsns: Sequence[int]) -> None:
        assert queue_id == STREAM_ID
        self.settled += lsns

    def delivered(self, queue_id: int, lsn: int) -> None:
        raise AssertionError("a stream has no mark")

    def note(self, scope_id: int, key: bytes, value: bytes) -> int:
        assert scope_id == STREAM_ID
        self.notes[key] = value
        self._lsn += 1
        return self._lsn

    def place(self, queue_id: int, lsn: int, count: int, position: int) -> None:
        raise AssertionError("retention places nothing")

    def unnote(self, scope_id: int, key: bytes) -> None:
        assert scope_id == STREAM_ID
        del self.notes[key]


class SameClock:
    """The time of day is that of the loop."""

    def journal_ms(self, loop_ms: int) -> int:
        return loop_ms

    def loop_ms(self, journal_ms: int) -> int:
        return journal_ms

    def to_come_ms(self, journal_ms: int) -> int:
        return journal_ms


def limited_to(limits: Mapping[str, object]) -> Features:
    return Features("stream", {"stream-max-segment-size-bytes": 1000, **limits})


class Stage:
    """A retention and all that it touches."""

    def __init__(self, limits: Mapping[str, object] | None = None) -> None:
        self.now_ms = START_MS
        self.calls: list[tuple[float, Callable[[], None]]] = []
        self.index = StreamIndex()
        self.log = Log()
        self.woken = 0
        self.timers = Timers(lambda: self.now_ms, self.call_later)
        self.retention = Retention(
            STREAM_ID, self.index, self.log, self.timers, SameClock(), self.wake
        )
        self.retention.set(limited_to(limits or {}))
        self.lsn = 1

    def call_later(self, delay_s: float, job: Callable[[], None]) -> None:
        self.calls.append((self.now_ms + delay_s * 1000, job))

    def wake(self) -> None:
        self.woken += 1
        self.retention.run()

    def pass_time(self, ms: int) -> None:
        end = self.now_ms + ms
        while due := [call for call in self.calls if call[0] <= end]:
            first = min(due, key=lambda call: call[0])
            self.calls.remove(first)
            self.now_ms = max(self.now_ms, int(first[0]))
            first[1]()
        self.now_ms = end

    def append(self, count: int = 10, octets: int = 1000) -> None:
        """By default just a segment."""
        chunk = self.index.append(self.lsn, count, octets, self.now_ms)
        if chunk is not None:
            self.retention.note(chunk)
        self.lsn += count + 3
        self.retention.run()


def test_age_is_up_without_anybody_asking() -> None:
    """STREAM-21: a timer rings, once for each segment."""
    stage = Stage({"max-age": "5s"})
    for _ in range(3):
        stage.append()
        stage.pass_time(1000)
    stage.append(1, 10)
    assert stage.index.first_offset == 0
    stage.pass_time(2000)  # 5 s after the first
    assert stage.index.first_offset == 0
    stage.pass_time(1)
    assert stage.index.first_offset == 10
    stage.pass_time(1000)
    assert stage.index.first_offset == 20
    stage.pass_time(1000)
    assert stage.index.first_offset == 30
    assert stage.woken == 3
    stage.pass_time(10_000)
    assert stage.index.first_offset == 30
    assert not stage.calls


def test_shorter_age_counts_at_once() -> None:
    """POLICY-06: limits change, what is there stays until it is looked at."""
    stage = Stage({"max-age": "1000s"})
    stage.append()
    stage.append(1, 10)
    stage.pass_time(5000)
    stage.retention.set(limited_to({"max-age": "1s"}))
    assert stage.retention.run()
    assert stage.index.first_offset == 10


@pytest.mark.parametrize(
    "limits", [{"max-length": 25}, {"max-length-bytes": 2500}, {"max-age": "1s"}]
)
def test_what_goes_is_settled_and_its_notes_end(limits: dict[str, object]) -> None:
    stage = Stage(limits)
    for _ in range(6):
        stage.append()
        stage.pass_time(2000)
    kept = {lsn for chunk in stage.index.chunks for lsn in chunk.rows.take(0, chunk.rows.count)}
    assert 10 <= len(kept) <= 20
    everything = {13 * batch + 1 + number for batch in range(6) for number in range(10)}
    assert sorted(stage.log.settled) == sorted(everything - kept)
    assert stage.log.notes.keys() == {chunk.key for chunk in stage.index.chunks}
    for key, value in stage.log.notes.items():
        assert stage.retention.recall(key) == value


def test_segment_being_written_never_goes() -> None:
    stage = Stage({"max-length": 1, "max-length-bytes": 1, "max-age": "1s"})
    stage.append(5, 100)
    stage.append(5, 100)
    stage.pass_time(2000)
    assert stage.retention.run()
    assert (stage.index.first_offset, stage.log.settled) == (0, [])


def test_one_turn_settles_so_much() -> None:
    """LIMIT-23; what waits for its turn is gone for consumers, and known to the journal."""
    stage = Stage()
    chunk_messages = TURN_SETTLES // 2
    for _ in range(6):
        stage.append(chunk_messages, 1000)
    stage.retention.set(limited_to({"max-length": 10}))
    assert not stage.retention.run()
    assert stage.index.first_offset == 5 * chunk_messages
    assert len(stage.log.settled) == TURN_SETTLES
    assert all(stage.retention.recall(key) for key in stage.log.notes)
    assert not stage.retention.run()
    assert stage.retention.run()
    assert len(stage.log.settled) == 5 * chunk_messages
    assert len(stage.log.notes) == 1


def test_without_limits_nothing_goes() -> None:
    stage = Stage()
    for _ in range(50):
        stage.append()
    stage.pass_time(1 << 40)
    assert stage.retention.run()
    assert stage.index.count == 500


def test_notes_of_others_are_not_known() -> None:
    stage = Stage()
    stage.append()
    assert stage.retention.recall(b"x") is None
    assert stage.retention.recall(b"c" + bytes(7) + b"\x63") is None
