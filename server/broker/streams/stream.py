"""A stream: a queue from which consuming removes nothing.

    publish ──▶ index (offsets, LSNs) ──▶ recent messages, if somebody waits for them
                  │                            │
    consumer ◀── its own position ◀── journal, read back in runs

To the modules around it a stream is a queue; it shares nothing with a plain one but the names of
what can be asked. All it holds is in the journal, so memory has the index, the newest messages
and what consumers have read ahead, and the pager may take the latter two at any time. Must not
know channels.

Spec: STREAM
"""

from __future__ import annotations

from bisect import bisect_right
from itertools import accumulate, islice, repeat
from typing import TYPE_CHECKING, Final

from vouchmq.protocol.errors import NotImplementedByBroker
from vouchmq.protocol.stamps import Stamp
from vouchmq.server.broker.counters import QueueCounters
from vouchmq.server.broker.features.effective import PLAIN
from vouchmq.server.broker.message import Message, lsn_of
from vouchmq.server.broker.paging.pager import MESSAGE_OVERHEAD_OCTETS
from vouchmq.server.broker.queues.api import TURN_MESSAGES, Peeked, Queue, always
from vouchmq.server.broker.queues.ready_list import BATCH_OCTETS
from vouchmq.server.broker.streams.index import StreamIndex, chunk_notes
from vouchmq.server.broker.streams.reader import Reader, Recent
from vouchmq.server.broker.streams.retention import Retention, nothing
from vouchmq.server.broker.streams.start import Start

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Sequence

    from vouchmq.server.broker.features.effective import Features
    from vouchmq.server.broker.paging.pager import Pager
    from vouchmq.server.broker.queues.api import (
        ConsumerPort,
        Dispatcher,
        Numbering,
        PublishFilter,
        QueueRecorder,
    )
    from vouchmq.server.broker.queues.priority import PriorityLevels
    from vouchmq.server.broker.queues.ready_list import RunSize
    from vouchmq.server.broker.queues.settlement import DeadLetterReason, Outcome
    from vouchmq.server.broker.queues.spec import QueueSpec
    from vouchmq.server.broker.streams.index import Chunk, Split
    from vouchmq.server.broker.streams.retention import StreamClock, StreamLog
    from vouchmq.server.broker.timers import Timers

OFFSET_HEADER: Final = "x-stream-offset"
# Messages that one consumer gets before it is another's turn, and that a filter looks at.
SLICE_MESSAGES: Final = 1024
# What is read at a time of a chunk that is to be measured.
MEASURE_MESSAGES: Final = 4096
MEASURE_OCTETS: Final = 1024 * 1024
# A message of no size, to ask whether a consumer can take any at all.
ANY: Final = bytes(19)
# Below every seq: what a stream hands out is never a redelivery (STREAM-16).
NEVER: Final = 0


class Stream(Queue):
    """One stream of a virtual host.

    Args:
        spec: name, flags and arguments as declared
        turn: asked for a dispatch whenever there may be something to deliver
        log: the journal
        pager: keeps the memory of all queues within bounds
        timers: for the age of messages
        clock: tells the time of day from the loop's
    """

    __slots__ = (
        *("_clock", "_end", "_first_reader", "_has_unmeasured", "_journal", "_pager", "_readers"),
        *("_recent", "_retention", "_spans", "_split", "_stamp", "_timers", "_turn"),
        *(
            "features",
            "holds_stored",
            "index",
            "is_deleted",
            "is_dirty",
            "is_paused",
            "keeps_all",
            "largest_octets",
        ),
        "levels",
        *(
            "counters",
            "publish_filter",
            "recorder",
            "spec",
            "stored",
            "unacked_count",
            "unstored_id",
        ),
    )

    def __init__(
        self,
        spec: QueueSpec,
        turn: Dispatcher,
        log: StreamLog,
        pager: Pager,
        timers: Timers,
        clock: StreamClock,
    ) -> None:
        self.spec = spec
        self.stored = spec.stored
        self.keeps_all = True
        self.features = PLAIN
        self.levels: PriorityLevels | None = None
        self.publish_filter: PublishFilter | None = None
        self.recorder: QueueRecorder | None = None
        self.unacked_count = 0
        self.counters = QueueCounters()
        self.largest_octets = 0
        self.unstored_id = 0
        self.holds_stored = False  # none that an ack would settle
        self.is_deleted = self.is_dirty = self.is_paused = False
        self._turn = turn
        self.index = StreamIndex()
        self._retention = Retention(spec.queue_id, self.index, log, timers, clock, self._look)
        self._timers = timers
        self._clock = clock
        self._pager = pager
        self._recent = Recent(pager, self.wake)
        self._readers: dict[ConsumerPort, Reader] = {}
        self._first_reader = 0
        self._end = 0  # messages from this offset on are not on disk yet
        self._journal = log
        self._spans: list[Sequence[int]] = []
        self._split: Split | None = None
        self._has_unmeasured = False
        self._stamp = Stamp(OFFSET_HEADER)

    def apply_options(self, features: Features) -> None:
        """See `Queue`: these limits count from now on (STREAM-21)."""
        self.features = features
        self._retention.set(features)
        self._look()

    # What is in it

    @property
    def ready_count(self) -> int:
        """Messages stored, first to last (STREAM-17)."""
        return self.index.count

    @property
    def consumer_count(self) -> int:
        return len(self._readers)

    @property
    def consuming_removes(self) -> bool:
        return False

    @property
    def store_ids(self) -> list[int]:
        return [self.spec.queue_id] if self.stored else []

    def used(self) -> None:
        """See `QueueLike`; no stream expires."""

    def expect_expirations(self) -> None:
        """See `Queue`; in a stream they mean nothing (TTL-09)."""

    def enqueue(self, messages: Iterable[Message], size: RunSize, *, stored: bool) -> None:
        """Append a run of messages, all of which the journal holds."""
        del stored
        if self._has_unmeasured:
            self._measure()
        count, octets, _ = size
        self.counters.published += count
        run = list(messages if self._readers else islice(messages, 1))
        _, _, seq, now_ms = run[0]
        lsn = lsn_of(seq)
        self._journal.place(self.spec.queue_id, lsn, count, self.index.next_offset)
        chunk = self.index.append(lsn, count, octets - count * MESSAGE_OVERHEAD_OCTETS, now_ms)
        if chunk is not None:
            self._retention.note(chunk)
            if self._retention.is_limited:
                self._look()
        if self._readers:
            self._recent.append(run, octets, self.index.next_offset)
            self.wake()

    def forget_refused(self, first_lsn: int) -> None:
        """The journal could not store what it was given from this LSN on (CONF-12)."""
        if self.recorder is not None:
            self.recorder.lost_ranges(self.index.ranges(first_lsn), "refused")
        self.index.forget_from(first_lsn)
        self._recent.forget_from(first_lsn)
        for reader in self._readers.values():
            reader.position = min(reader.position, self.index.next_offset)

    def held_spans(self) -> list[list[Collection[int]]]:
        """See `Queue`: also what is to go, but is not settled yet."""
        return [self._retention.held_spans() + self.index.held_spans()]

    # Consumers

    def add_consumer(
        self, consumer: ConsumerPort, *, exclusive: bool, start: Start | None = None
    ) -> None:
        """Let a consumer read from there on, None: what comes next (STREAM-20).

        Being exclusive means nothing (STREAM-12).
        """
        del exclusive
        start = start or Start()
        reader = Reader(consumer, start, self._pager, self.wake)
        index = self.index
        if start.offset is not None:
            reader.jump(min(max(start.offset, index.first_offset), index.next_offset))
        elif start.last_count is not None:
            reader.jump(max(index.next_offset - start.last_count, index.first_offset))
        else:
            reader.jump(index.next_offset)
            # Looked up in the turn, when all that has come is in the journal.
            reader.since_ms = self._since_ms(start)
        self._readers[consumer] = reader
        self.wake()

    def _since_ms(self, start: Start) -> int | None:
        """From when on, by the loop's clock; None: no matter when."""
        now_ms = self._timers.now_ms()
        if start.ago_ms is not None:
            return now_ms - start.ago_ms
        if start.wall_ms is None:
            return None
        since_ms = self._clock.to_come_ms(start.wall_ms)
        return since_ms if since_ms <= now_ms else None

    def remove_consumer(self, consumer: ConsumerPort) -> None:
        """End a consumer's reader; unknown consumers are fine."""
        reader = self._readers.pop(consumer, None)
        if reader is None:
            return
        reader.drop_piece()
        self._pager.forget(reader)
        if not self._readers:
            self._recent.clear()

    def pause(self, *, is_paused: bool) -> None:
        """See `QueueLike`."""
        self.is_paused = is_paused
        self.wake()

    def consumers(self) -> list[ConsumerPort]:
        """The consumers of the stream, each once."""
        return list(self._readers)

    def next_offset_of(self, consumer: ConsumerPort) -> int | None:
        """The offset of the next message for a consumer; None while that is yet to be found."""
        reader = self._readers.get(consumer)
        return reader.position if reader is not None and reader.since_ms is None else None

    @property
    def queue_id(self) -> int:
        """See `Numbering`: of this incarnation of the stream (SEQ-01)."""
        return self.spec.queue_id

    def numbering(self) -> Numbering:
        return self

    def numbers_of(self, messages: list[Message]) -> list[int]:
        """Places from 1 on: one more than the offsets (SEQ-01)."""
        offset_of = self.index.offset_of
        return [offset_of(lsn_of(message[2])) + 1 for message in messages]

    # Handing out

    def wake(self) -> None:
        """Ask for a dispatch in this turn."""
        if self._readers and not self.is_dirty:
            self._look()

    def credit_available(self, consumer: ConsumerPort | None) -> None:
        del consumer
        self.wake()

    def _look(self) -> None:
        if not self.is_dirty and not self.is_deleted:
            self.is_dirty = True
            self._turn.wants_dispatch(self)

    def dispatch(self) -> None:
        """Give every consumer what it has room for, a slice each time round.

        Nobody gets what a power cut may take: its offset would be given to another message, and
        who had read on to there would never see that one (STREAM-02).
        """
        self.is_dirty = False
        if self.is_deleted:
            return
        if self._has_unmeasured:
            self._measure()
        if not self._retention.run(self.recorder):
            self._look()
        readers = [] if self.is_paused else list(self._readers.values())
        if not readers:
            return
        first = self._first_reader = (self._first_reader + 1) % len(readers)
        readers = readers[first:] + readers[:first]
        self._end = self.index.end_at(self._turn.watermark)
        left = TURN_MESSAGES
        while readers and left > 0:
            going_on: list[Reader] = []
            for reader in readers:
                moved = self._advance(reader, min(left, SLICE_MESSAGES))
                if moved:
                    left -= moved
                    going_on.append(reader)
                    if left <= 0:
                        break
            readers = going_on
        if left <= 0:
            self.wake()
        if self._end < self.index.next_offset and any(
            reader.position >= self._end for reader in self._readers.values()
        ):
            self._turn.waits_for_sync(self)
        self._trim()

    def _advance(self, reader: Reader, limit: int) -> int:
        """Move a consumer on; gives by how many messages, 0 when it has to wait."""
        consumer = reader.consumer
        if reader.since_ms is not None:
            reader.jump(self._offset_since(reader.since_ms))
            reader.since_ms = None
        index = self.index
        if reader.position < index.first_offset:
            reader.jump(index.first_offset)
        if reader.position >= self._end or consumer.capacity(ANY) <= 0:
            return 0
        messages = self._next(reader, limit)
        if not messages:
            return 0
        wanted = messages
        if reader.filter is not None:
            wants = reader.filter.wants
            wanted = [message for message in messages if wants(message)]
        if not wanted:
            reader.moved(len(messages))
            return len(messages)
        room = min(consumer.capacity(wanted[0][0]), self._batch_limit(wanted))
        if room <= 0:
            return 0
        moved = len(messages)
        if room < len(wanted):
            moved = messages.index(wanted[room]) if reader.filter is not None else room
            wanted = wanted[:room]
        offset = reader.position
        reader.moved(moved)
        self._deliver(consumer, wanted, offset if len(wanted) == moved else -1)
        return moved

    def _batch_limit(self, messages: list[Message]) -> int:
        """So many of some messages make a batch of a bounded size.

        The size of the largest is that of the batch: one large message must not slow down all
        that ever come after it.
        """
        sizes = [len(message[0]) for message in messages]
        self.largest_octets = max(sizes)
        if sum(sizes) <= BATCH_OCTETS:
            return len(sizes)
        count = max(1, bisect_right(list(accumulate(sizes)), BATCH_OCTETS))
        self.largest_octets = max(sizes[:count])
        return count

    def _deliver(self, consumer: ConsumerPort, messages: list[Message], offset: int) -> None:
        """Hand out messages; `offset` is that of the first when they follow each other, else -1."""
        on = self._stamp.on
        offset_of = self.index.offset_of
        shown: list[Message] = []
        for raw, tail, seq, arrived_ms in messages:
            at = offset if offset >= 0 else offset_of(lsn_of(seq))
            shown.append((on(raw, at), tail, seq, arrived_ms))
            if offset >= 0:
                offset += 1
        self.unacked_count += len(messages)
        self.counters.delivered += len(messages)
        consumer.deliver(messages, NEVER, shown)

    def _next(self, reader: Reader, limit: int) -> list[Message]:
        """The next messages of a consumer, none when they can only be read in another turn."""
        limit = min(limit, self._end - reader.position)
        if reader.has_piece:
            return reader.take(limit)
        recent = self._recent
        if recent.messages and reader.position >= recent.first_offset:
            return recent.take(reader.position, limit)
        chunk = self.index.chunk_from(reader.position)
        if chunk is None:
            return []
        if chunk.first_offset > reader.position:
            reader.jump(chunk.first_offset)
            limit = min(limit, self._end - reader.position)
            if limit <= 0:
                return []
        if self._pager.reads_left <= 0:
            self._pager.put_off(reader)
            return []
        lsns = chunk.rows.take(reader.position - chunk.first_offset, reader.ahead)
        reader.read(lsns)
        return reader.take(limit)

    def _trim(self) -> None:
        """Keep in memory what some consumer will have soon."""
        recent = self._recent
        if not recent.messages:
            return
        near = [
            reader.position
            for reader in self._readers.values()
            if reader.position >= recent.first_offset
        ]
        if near:
            recent.drop_below(min(near))

    def _offset_since(self, since_ms: int) -> int:
        """The offset of the first message that arrived then or later; the next one if none did."""
        for chunk in self.index.chunks:
            if chunk.last_ms >= since_ms:
                return chunk.first_offset + self._arrived_before(chunk, since_ms)
        return self.index.next_offset

    def _arrived_before(self, chunk: Chunk, since_ms: int) -> int:
        low, high = 0, chunk.rows.count - 1
        while low < high:
            middle = (low + high) // 2
            lsns = chunk.rows.take(middle, 1)
            _, _, _, arrived_ms = self._pager.store.fetch_runs(lsns, 1)[0]
            if arrived_ms < since_ms:
                low = middle + 1
            else:
                high = middle
        return low

    # What becomes of deliveries: nothing (STREAM-15)

    def settle(self, messages: list[Message]) -> None:
        """These deliveries are acked: their consumers have room again."""
        self.unacked_count -= len(messages)

    def discard(self, messages: list[Message], reason: DeadLetterReason) -> None:
        """As `settle`; who refuses deliveries of a stream is refused before (STREAM-13)."""
        del reason
        self.settle(messages)

    def requeue(self, messages: list[Message], outcome: Outcome) -> None:
        """As `settle`: the channel of these has gone, and with it the place of its consumers."""
        del outcome
        self.settle(messages)

    def unsettle(self, messages: list[Message]) -> None:
        """The commit that acked them was refused (TX-09)."""
        self.unacked_count += len(messages)

    def log_settled(self, messages: list[Message]) -> None:
        """See `Queue`; acks settle nothing."""

    def drop(self, messages: list[Message]) -> None:
        """See `Queue`; only retention drops anything."""

    def keeps(self, messages: list[Message]) -> None:
        """See `Queue`; it does."""

    def get(
        self, *, no_ack: bool, may_leave: Callable[[int], bool] = always
    ) -> tuple[Message, Message, bool] | None:
        """Refuse basic.get: 540 (STREAM-14)."""
        raise NotImplementedByBroker(f"basic.get not supported by stream queues {self.spec.text}")

    def peek(self, at: int, count: int) -> Peeked | None:
        """See `Queue`; the place is an offset, and what is not on disk yet is not shown."""
        chunk = self.index.chunk_from(at)
        end = self.index.end_at(self._turn.watermark)
        at = max(at, chunk.first_offset) if chunk is not None else at
        if chunk is None or at >= end:
            return Peeked(at, [])
        lsns = chunk.rows.take(at - chunk.first_offset, min(count, end - at, SLICE_MESSAGES))
        found: list[Message] = []
        for first, tail, raws, arrived_ms in self._pager.store.fetch_runs(lsns, BATCH_OCTETS):
            seqs = range(first * 2 + 1, (first + len(raws)) * 2 + 1, 2)
            found += zip(raws, repeat(tail), seqs, repeat(arrived_ms))
        return Peeked(at, found)

    def purge_some(self, most: int) -> int:
        """0: `purge` refuses to purge a stream."""
        del most
        return 0

    def purge(self) -> int:
        """Refuse queue.purge: 540 (STREAM-14)."""
        raise NotImplementedByBroker(f"queue.purge not supported by stream queues {self.spec.text}")

    def deleted(self) -> None:
        """See `Queue`: drop everything, tell the consumers (CONS-40)."""
        if self.recorder is not None:
            self.recorder.deleted(self)
        self.is_deleted = True
        readers, self._readers = self._readers, {}
        self._recent.clear()
        self._pager.forget(self._recent)
        # They refer back; without the rings all of this goes at once.
        self._recent.wake = nothing
        self._retention.end()
        for reader in readers.values():
            reader.drop_piece()
            self._pager.forget(reader)
        for consumer in readers:
            consumer.queue_deleted()

    # Restart

    def restore(self, store_id: int, spans: Sequence[Sequence[int]], delivered_lsn: int) -> None:
        """Recovered messages; they get their offsets when the notes are there, too."""
        del store_id, delivered_lsn
        self._spans += spans

    def restore_offsets(self, split: Split) -> None:
        """What blocks say of the offsets of recovered messages; before `restore_notes`."""
        self._split = split

    def restore_notes(self, notes: dict[bytes, bytes]) -> None:
        """What had been noted before a restart."""
        spans, self._spans = self._spans, []
        split, self._split = self._split, None
        self.index.restore(spans, chunk_notes(notes), self._clock.loop_ms, split)
        self._has_unmeasured = any(not chunk.is_measured for chunk in self.index.chunks)
        if self._retention.is_limited:
            self._look()

    def position_of(self, lsn: int) -> int | None:
        """The offset of a stored message, None if it is not known."""
        return self._retention.position_of(lsn)

    def recall(self, key: bytes) -> bytes | None:
        """The value that a note has by now, None when it is not wanted any more."""
        return self._retention.recall(key)

    def _measure(self) -> None:
        """Read what was being written when the broker ended: its size and times."""
        self._has_unmeasured = False
        for chunk in self.index.chunks:
            if chunk.is_measured:
                continue
            at = 0
            while at < chunk.rows.count:
                lsns = chunk.rows.take(at, MEASURE_MESSAGES)
                for _, _, raws, arrived_ms in self._pager.store.fetch_runs(lsns, MEASURE_OCTETS):
                    if not at:
                        chunk.first_ms = arrived_ms
                    chunk.last_ms = arrived_ms
                    octets = sum(map(len, raws))
                    chunk.octets += octets
                    self.index.octets += octets
                    at += len(raws)
            chunk.is_measured = True
            self._retention.note(chunk)
