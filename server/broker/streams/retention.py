"""What a stream keeps and what it lets go; what the journal is told of that.

Whole segments go, the oldest first, never the one that is being written. Their messages are
settled in the journal a piece per turn. A start that comes in between finds the rest of such a
segment again, and lets it go again. Must not know consumers.

Spec: STREAM-21
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from typing import TYPE_CHECKING, Final, Protocol

from vouchmq.server.broker.queues.api import NoteLog, QueueRecorder, SettlementLog
from vouchmq.server.broker.streams.index import (
    SEGMENT_OCTETS,
    Chunk,
    HeldRows,
    StreamIndex,
    first_offset_of,
    is_chunk_key,
    offset_of_key,
    position_in,
)
from vouchmq.server.broker.streams.start import interval_ms

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from vouchmq.server.broker.features.effective import Features
    from vouchmq.server.broker.timers import Timers

# Messages of dropped segments that are settled in one turn (LIMIT-23).
TURN_SETTLES: Final = 65536


class StreamLog(SettlementLog, NoteLog, Protocol):
    """The journal, as a stream needs it."""

    def place(self, queue_id: int, lsn: int, count: int, position: int) -> None:
        """Which position the messages of a run have that was just appended."""


class StreamClock(Protocol):
    """Times of day, and of the loop."""

    def journal_ms(self, loop_ms: int) -> int:
        """The time of day at that moment, as the journal writes it."""

    def loop_ms(self, journal_ms: int) -> int:
        """When that was by the loop's clock; never later than now."""

    def to_come_ms(self, journal_ms: int) -> int:
        """When that was or will be by the loop's clock."""


class Retention:
    """The limits of one stream, and the notes of its chunks.

    Args:
        stream_id: under which the journal keeps it
        index: what there is
        log: the journal
        timers: for the age of messages
        clock: for times that outlive the process
        wake: has the stream look again
    """

    __slots__ = (
        "_armed_ms",
        "_clock",
        "_doomed",
        "_index",
        "_log",
        "_max_age_ms",
        "_max_count",
        "_max_octets",
        "_stream_id",
        "_timers",
        "_wake",
    )

    def __init__(
        self,
        stream_id: int,
        index: StreamIndex,
        log: StreamLog,
        timers: Timers,
        clock: StreamClock,
        wake: Callable[[], None],
    ) -> None:
        self._stream_id = stream_id
        self._index = index
        self._log = log
        self._timers = timers
        self._clock = clock
        self._wake = wake
        self._max_count: int | None = None
        self._max_octets: int | None = None
        self._max_age_ms: int | None = None
        self._doomed: deque[Chunk] = deque()
        self._armed_ms = 0

    def end(self) -> None:
        """The stream is gone."""
        self._wake = nothing

    def set(self, features: Features) -> None:
        """These limits count from now on."""
        self._max_count = features.number("max-length")
        self._max_octets = features.number("max-length-bytes")
        self._max_age_ms = interval_ms(features.text("max-age") or "")
        self._armed_ms = 0
        octets = features.number("stream-max-segment-size-bytes")
        self._index.segment_octets = SEGMENT_OCTETS if octets is None else max(1, octets)

    @property
    def is_limited(self) -> bool:
        """Whether anything is ever let go."""
        limits = (self._max_count, self._max_octets, self._max_age_ms)
        return any(limit is not None for limit in limits)

    # Letting go

    def run(self, recorder: QueueRecorder | None = None) -> bool:
        """Let go what is too much or too old; False when there is more to do in another turn."""
        index = self._index
        while index.segment_count > 1 and self._may_be_over():
            segment = index.oldest_segment()
            if not self._is_over(segment):
                break
            index.drop(segment)
            self._doomed += segment
        return not self._doomed or self._settle(recorder)

    def _may_be_over(self) -> bool:
        """Whether it is worth a look at the oldest segment."""
        return self._is_too_much() or (
            self._max_age_ms is not None and self._armed_ms <= self._timers.now_ms()
        )

    def _is_too_much(self) -> bool:
        index = self._index
        return (self._max_count is not None and index.count > self._max_count) or (
            self._max_octets is not None and index.octets > self._max_octets
        )

    def _is_over(self, segment: list[Chunk]) -> bool:
        if self._is_too_much():
            return True
        if self._max_age_ms is None:
            return False
        due_ms = segment[-1].last_ms + self._max_age_ms + 1
        now_ms = self._timers.now_ms()
        if due_ms > now_ms and self._armed_ms <= now_ms:
            self._armed_ms = self._timers.at(due_ms, self._wake)
        return due_ms <= now_ms

    def held_spans(self) -> list[Collection[int]]:
        """LSNs of what is let go, and not settled yet."""
        return [HeldRows(chunk.rows) for chunk in self._doomed]

    def _settle(self, recorder: QueueRecorder | None) -> bool:
        left = TURN_SETTLES
        while self._doomed and left > 0:
            chunk = self._doomed.popleft()
            if recorder is not None:
                recorder.lost_ranges(chunk.rows.ranges(), "retention")
            self._log.settle(self._stream_id, chunk.rows.take(0, chunk.rows.count))
            self._log.unnote(self._stream_id, chunk.key)
            left -= chunk.rows.count
        return not self._doomed

    def position_of(self, lsn: int) -> int | None:
        """The offset of a message, also if it is let go and not settled yet."""
        position = self._index.position_of(lsn)
        return position_in(self._doomed, lsn) if position is None else position

    # Notes

    def note(self, chunk: Chunk) -> None:
        """Have the journal know of a chunk, that it was begun or is full.

        It is in the block with the messages that begin or fill it, so they are refused together.
        """
        value = chunk.value(self._clock.journal_ms)
        self._log.note(self._stream_id, chunk.key, value)

    def recall(self, key: bytes) -> bytes | None:
        """The value of a note by now; None: the chunk is gone."""
        if not is_chunk_key(key):
            return None
        offset = offset_of_key(key)
        for chunks in (self._index.chunks, self._doomed):
            at = bisect_left(chunks, offset, key=first_offset_of)
            if at < len(chunks) and chunks[at].first_offset == offset:
                return chunks[at].value(self._clock.journal_ms)
        return None


def nothing() -> None:
    """Nobody is there to be woken."""
