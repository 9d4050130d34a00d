"""Compaction: live messages leave mostly dead segments, a piece at a time, so that files come free.

    look ─▶ survey ─▶ move ─▶ retire
             └ too much is alive: not now

A round empties one segment. The survey reads what its blocks say, without contents, and finds
where live messages are and how large. Moving reads those blocks again, checksums included, and
has the journal write the messages once more under the LSNs they have (`Journal.move_run`), in the
order of these: first what had been moved there, then what the segment brought. So messages that
follow each other stay side by side however often they are moved (decision 0011). The oldest
segment then goes by itself; from one in the middle the settles that others need are logged again
first (`Journal.rewrite_settlements`), and `Journal.retire` names it in a checkpoint block.

The invariant: a crash at any point loses nothing and revives nothing. A message that was moved is
found where it was moved to, and if that block was not written, where it was. A segment's file goes
only after a block that says so is synced. Messages keep their LSNs, so queues, acks and paging
notice nothing.

What was learnt: LSNs of an emptied segment may not be given to an older one that may still hold
them. With that mistake, a kill in the middle of a round could lose confirmed messages and bring
acked ones back (commit af9ed81; the simulation now looks for it). Settles are logged
again once, and only where another segment needs them (commit f653433).

What it costs: a message that lives is written again, and its block is read twice, three times if
it has both kinds. Steps are bounded in octets and by the clock, and the caller lets turns pass in
between. A segment that is damaged is left as it is, for the next start to deal with.

Nothing here syncs, waits or knows the time of day.

Spec: DURABLE-15
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from itertools import groupby, pairwise
from typing import TYPE_CHECKING, Final, NamedTuple

from vouchmq.store.checksum import crc32
from vouchmq.store.compaction.victim import VictimSelector
from vouchmq.store.journal import records
from vouchmq.store.reading.block_contents import (
    Route,
    Run,
    drops_of,
    learn_routes,
    notes_of,
    runs_of,
    settles_of,
)
from vouchmq.store.reading.blocks import GLANCE_BYTES, PART_BYTES, Block, Parts, Window, find_block

if TYPE_CHECKING:
    from vouchmq.store.disk import DiskFile
    from vouchmq.store.journal.journal import Journal
    from vouchmq.store.journal.segment import Segment

# What a message costs beside its octets when it is moved, and a row of them.
_MESSAGE_BYTES: Final = 4
_ROW_BYTES: Final = 24
# Messages that are looked up at once while moving, and the octets of those moved at once.
_PIECE: Final = 32
_PIECE_BYTES: Final = 32 * 1024
# What a step takes is counted in octets: one that is moved is one, and so about 10 ns. By that
# measure a look at a block or at a run costs so many, and an octet that is checked a part of one.
_BLOCK_COST: Final = 2048
_RUN_COST: Final = 384
_CHECK_SHARE: Final = 8
# Settles that are looked through at once.
_SETTLES_AT_ONCE: Final = 4096
# The clock is looked at after about so much, which is some hundredths of a millisecond.
_BIT: Final = 4096
_NEXT_STEP: Final = 1 << 62
# The kernel is asked to have so much in memory before it is read.
_AHEAD_BYTES: Final = 1024 * 1024
_NO_LIMIT_S: Final = float("inf")
# A block of moves whose LSNs lie between those of others is read again for each part of them. So
# many parts there may be for each block, and beside that: an earlier program kept no order.
_MOST_PARTS: Final = 2
_SPARE_PARTS: Final = 64
_END: Final = 1 << 64


@dataclass(slots=True)
class CompactionCounters:
    """Plain numbers for whoever publishes metrics."""

    rounds: int = 0
    surveys: int = 0
    # Octets of segments that were looked through; a whole round counts them once.
    passed_bytes: int = 0
    moved_messages: int = 0
    moved_bytes: int = 0
    rewritten: int = 0


class _Needed(NamedTuple):
    """A block from `offset` to before `end`, and what in it is needed.

    `moved_lsn` is the lowest LSN of live messages that were moved there, 0 if there are none.
    """

    offset: int
    end: int
    has_routes: bool
    moved_lsn: int
    has_rest: bool


@dataclass(slots=True)
class _Round:
    """One segment on its way out."""

    segment: Segment
    file: DiskFile
    refusals: int
    is_oldest: bool
    # What moving its live copies would take, and what logging its settles again would.
    live_bytes: int = 0
    kept_bytes: int = 0
    routes: dict[int, Route] = field(default_factory=dict)
    # The blocks that hold something which others need, in order.
    plan: list[_Needed] = field(default_factory=list)


class Compactor:
    """Chooses segments and empties them.

    Args:
        journal: whose segments they are
        on_corrupt: told the name of a segment that cannot be read as it was written, and why; it
            stays as it is, for recovery to deal with
        clock: monotonic seconds
    """

    def __init__(
        self,
        journal: Journal,
        on_corrupt: Callable[[str, str], None],
        clock: Callable[[], float] = lambda: 0.0,
    ) -> None:
        self.counters = CompactionCounters()
        self._clock = clock
        self._journal = journal
        self._on_corrupt = on_corrupt
        self._round: _Round | None = None
        self._work: Iterator[int] = iter(())
        self._victims = VictimSelector(journal.chain)

    @property
    def passed_bytes(self) -> int:
        """Octets of segments that were looked through since the start."""
        return self.counters.passed_bytes

    @property
    def moved_bytes(self) -> int:
        """Octets that were moved since the start."""
        return self.counters.moved_bytes

    def look(self) -> bool:
        """Choose a segment if one is worth it; return whether there are steps to take."""
        if self._round is not None:
            return True
        segment = self._victims.choose()
        if segment is None:
            # Notes are gone through with every write, if only somebody writes.
            return self._journal.notes.is_busy
        try:
            file = self._journal.disk.open(segment.name)
        except OSError as error:
            self._mark_corrupt(segment, str(error))
            return False
        is_oldest = segment is self._journal.chain.resting[0]
        self._round = _Round(segment, file, self._journal.refusals, is_oldest)
        self._work = self._empty(self._round)
        self.counters.surveys += 1
        return True

    def step(self, octets: int, limit_s: float = _NO_LIMIT_S) -> bool:
        """Do as much as moving so many octets takes; return whether to go on.

        What is moved is buffered: the journal has to be written before a round can end.

        Args:
            octets: what may be done at most
            limit_s: after so many seconds nothing more is begun
        """
        current = self._round
        if current is None:
            return self.look()
        journal = self._journal
        if current.segment not in journal.chain.resting or current.refusals != journal.refusals:
            # Gone by itself, or what was moved last was not written: look again.
            self._end()
            return self.look()
        end = self._clock() + limit_s
        try:
            while octets > 0:
                octets -= next(self._work)
                if self._clock() >= end:
                    break
        except StopIteration:
            self._end()
        except (OSError, LookupError) as error:
            self._mark_corrupt(current.segment, str(error))
        return self._round is not None or self.look()

    def _empty(self, current: _Round) -> Iterator[int]:
        """Do a whole round, yielding what each bit of it cost.

        In between the broker goes on publishing and settling, so that nothing which was found
        alive before a yield may be believed to be so behind it.
        """
        segment = current.segment
        if segment.is_unchecked:
            yield from self._check(current)
        if segment.is_needed or segment.outer is None:
            yield from self._survey(current)
        else:
            yield from self._survey_outer(current, segment.outer)
        if not self._victims.is_worth_it(segment, current.live_bytes, current.kept_bytes):
            return
        self.counters.rounds += 1
        # Nothing is carried on under a route that no checksum has vouched for.
        current.routes = {}
        self._journal.chain.emptying = segment
        yield from self._move(current)
        if segment.noted:
            self._journal.notes.carry(segment)
        while self._journal.has_moves or segment.noted:
            yield _NEXT_STEP
        self._leave(segment)

    # Looking at blocks.

    def _check(self, current: _Round) -> Iterator[int]:
        """Read a segment as a whole that recovery has not read."""
        segment = current.segment
        offset = 0
        while offset < segment.offset:
            lead = current.file.read(offset, records.HEADER_SIZE)
            header = records.read_header(lead, 0, segment.generation, segment.salt)
            end = offset + records.HEADER_SIZE + (header.length if header is not None else 0)
            if header is None or end > segment.offset:
                raise LookupError(f"there is no block at offset {offset}")
            yield from self._read(current.file, offset, end)
            offset = end
        self._journal.checked(segment)

    def _survey(self, current: _Round) -> Iterator[int]:
        segment = current.segment
        window = Window(current.file)
        is_wanted = _having_live(segment)
        offset = ahead = cost = 0
        while offset < segment.offset:
            if offset >= ahead:
                ahead = _read_ahead(current.file, offset, segment.offset)
            if not window.covers(offset, min(offset + GLANCE_BYTES, segment.offset)):
                window.load(offset, min(GLANCE_BYTES, segment.offset - offset))
            block = _block_at(window, segment, offset)
            learn_routes(block, window, current.routes)
            live_bytes = moved_lsn = 0
            has_rest = False
            for run in runs_of(block, window, current.routes, is_wanted=is_wanted):
                size = self._live_bytes(segment, run)
                live_bytes += size
                if size and run.is_moved:
                    moved_lsn = min(moved_lsn or run.first_lsn, run.first_lsn)
                has_rest = has_rest or (size > 0 and not run.is_moved)
                cost += _RUN_COST + len(run.lsns)
                if cost >= _BIT:
                    yield cost
                    cost = 0
            current.live_bytes += live_bytes
            has_outcomes = not current.is_oldest and _has_outcomes(block)
            if has_outcomes:
                cost += yield from self._survey_outcomes(current, block, window)
            needed = _Needed(
                offset,
                block.end,
                has_routes=records.ROUTES in block.sections,
                moved_lsn=moved_lsn,
                has_rest=has_rest or has_outcomes,
            )
            if needed.has_routes or moved_lsn or needed.has_rest:
                current.plan.append(needed)
            self.counters.passed_bytes += (block.end - offset) // 2
            offset = block.end
            cost += _BLOCK_COST
            if cost >= _BIT:
                yield cost
                cost = 0

    def _survey_outer(self, current: _Round, offsets: Sequence[int]) -> Iterator[int]:
        """Look at those blocks only of which others need something: nothing is alive here.

        Settles of its own messages were about copies that nobody has moved.
        """
        segment = current.segment
        window = Window(current.file)
        ahead = 0
        for offset in () if current.is_oldest else offsets:
            if offset >= ahead:
                ahead = _read_ahead(current.file, offset, segment.offset)
            window.load(offset, min(GLANCE_BYTES, segment.offset - offset))
            block = _block_at(window, segment, offset)
            cost = yield from self._survey_outcomes(current, block, window)
            current.plan.append(
                _Needed(offset, block.end, has_routes=False, moved_lsn=0, has_rest=True)
            )
            yield cost + _BLOCK_COST
        self.counters.passed_bytes += segment.offset

    def _survey_outcomes(
        self, current: _Round, block: Block, window: Window
    ) -> Generator[int, None, int]:
        """Count what of a block's settles is needed; return the cost that was not yielded."""
        cost = 0
        for queue_id, settled in _pieces_settled(block, window):
            current.kept_bytes += self._kept_bytes(current.segment, queue_id, settled)
            cost += _RUN_COST
            if cost >= _BIT:
                yield cost
                cost = 0
        return cost

    def _live_bytes(self, segment: Segment, run: Run) -> int:
        """Return what it would take to move what lives of a run."""
        chain = self._journal.chain
        live_parts = [chain.alive(segment, queue_id, run.lsns) for queue_id in run.queue_ids]
        live_parts = [lsns for lsns in live_parts if lsns]
        if not live_parts:
            return 0
        bounds, first = run.bounds, run.first_lsn
        if any(len(lsns) == len(run.lsns) for lsns in live_parts):
            return bounds[-1] - bounds[0] + len(run.lsns) * _MESSAGE_BYTES + _ROW_BYTES
        alive = set().union(*live_parts)
        size = sum(bounds[lsn - first + 1] - bounds[lsn - first] for lsn in alive)
        return size + len(alive) * (_MESSAGE_BYTES + _ROW_BYTES)

    def _kept_bytes(self, segment: Segment, queue_id: int, settled: Sequence[int]) -> int:
        """Return what it would take to log those settles again that others need."""
        needed = self._journal.chain.needed_settle(segment, queue_id, settled)
        return _size_of_settles(needed)

    # Moving.

    def _move(self, current: _Round) -> Iterator[int]:
        """Read blocks as a whole, a piece at a time, and log again what others need of them."""
        has_moved = any(needed.moved_lsn for needed in current.plan)
        if has_moved:
            for needed in current.plan:
                if needed.has_routes:
                    yield from self._load(current, needed)
            yield from self._move_moved(current)
        for needed in current.plan:
            if needed.has_rest or (needed.has_routes and not has_moved):
                block, window = yield from self._load(current, needed)
                yield from self._copy_live(current, block, window, records.RUNS)
                yield from self._copy_outcomes(current, block, window)
            self.counters.passed_bytes += (needed.end - needed.offset) // 2

    def _move_moved(self, current: _Round) -> Iterator[int]:
        """Move what had been moved here, in the order of LSNs.

        Rounds of which each brought its messages in order have filled this segment: their blocks
        are taken in turn, each up to where another one goes on.
        """
        chain = self._journal.chain
        heap = [(needed.moved_lsn, needed) for needed in current.plan if needed.moved_lsn]
        heapify(heap)
        parts_left = _MOST_PARTS * len(heap) + _SPARE_PARTS
        while heap:
            _, needed = heappop(heap)
            parts_left -= 1
            end_lsn = _END
            if heap and parts_left > 0:
                end_lsn = heap[0][0]
            elif heap:
                # Not in order for the rest of the round: what is moved counts when it is written.
                chain.emptying = None
            block, window = yield from self._load(current, needed)
            next_lsn = yield from self._copy_live(current, block, window, records.MOVES, end_lsn)
            if next_lsn:
                heappush(heap, (next_lsn, needed))

    def _load(self, current: _Round, needed: _Needed) -> Generator[int, None, tuple[Block, Parts]]:
        """Read a block that a checksum vouches for, and learn its routes."""
        window = yield from self._read(current.file, needed.offset, needed.end)
        block = _block_at(window, current.segment, needed.offset)
        learn_routes(block, window, current.routes)
        return block, window

    def _read(self, file: DiskFile, offset: int, end: int) -> Generator[int, None, Parts]:
        """Read a block as a whole, a piece at a time.

        Raises:
            LookupError: it is not what was written
            OSError: it cannot be read
        """
        window = Parts(file, offset)
        crc = stored = ahead = 0
        for at in range(offset, end, PART_BYTES):
            if at >= ahead:
                ahead = _read_ahead(file, at, end)
            part = file.read(at, min(PART_BYTES, end - at))
            if at == offset:
                stored, covered = records.split_checksum(part)
                crc = crc32(covered)
            else:
                crc = crc32(part, crc)
            window.add(part)
            yield len(part) // _CHECK_SHARE
        if crc != stored:
            raise LookupError(f"the block at offset {offset} does not match its checksum")
        return window

    def _copy_live(
        self, current: _Round, block: Block, window: Window, kind: int, end_lsn: int = _END
    ) -> Generator[int, None, int]:
        """Move what lives of the messages that came to a block, or that were moved there.

        Those from `end_lsn` on are left.

        Returns:
            the first LSN that was left, 0 if none was
        """
        segment = current.segment
        cost = 0
        is_wanted = _having_live(segment)
        runs = runs_of(block, window, current.routes, (kind,), is_wanted)
        for run in sorted(runs) if kind == records.MOVES else runs:
            for lsns in _pieces(run):
                before = range(lsns.start, min(lsns.stop, end_lsn))
                if before:
                    cost += _RUN_COST + self._copy_piece(segment, run, before, window)
                if lsns.stop > end_lsn:
                    yield cost
                    return max(lsns.start, end_lsn)
                if cost >= _BIT:
                    yield cost
                    cost = 0
        return 0

    def _copy_outcomes(self, current: _Round, block: Block, window: Window) -> Iterator[int]:
        """Log again what others need of what became of messages, queues and notes."""
        segment, journal = current.segment, self._journal
        if current.is_oldest:
            return
        for queue_id, settled in _pieces_settled(block, window):
            yield _RUN_COST + self._rewrite_settlements(segment, queue_id, settled)
        for queue_id in drops_of(block, window):
            if journal.chain.needs_drop(segment, queue_id):
                journal.rewrite_drop(queue_id)
        for scope_id, key, value in notes_of(block, window):
            if value is None and journal.chain.needs_unnote(segment, scope_id):
                journal.notes.repeat(scope_id, key)
                yield _RUN_COST

    def _copy_piece(self, segment: Segment, run: Run, lsns: range, window: Window) -> int:
        """Move those of a run's messages that live here; return their octets."""
        chain, journal = self._journal.chain, self._journal
        queue_ids: dict[int, tuple[int, ...]] = {}
        for queue_id in run.queue_ids:
            for lsn in chain.alive(segment, queue_id, lsns):
                queue_ids[lsn] = (*queue_ids.get(lsn, ()), queue_id)
        size = 0
        # In a row as long as they follow each other and live in the same queues.
        alive = sorted(queue_ids)
        for (_, ids), some in groupby(
            enumerate(alive), key=lambda item: (item[1] - item[0], queue_ids[item[1]])
        ):
            row = [lsn - run.first_lsn for _, lsn in some]
            bounds = run.bounds[row[0] : row[-1] + 2]
            raws = [window.read(start, end) for start, end in pairwise(bounds)]
            journal.move_run(ids, run.tail, run.first_lsn + row[0], raws, run.arrived_ms)
            size += bounds[-1] - bounds[0]
        self.counters.moved_messages += len(alive)
        self.counters.moved_bytes += size
        return size

    def _rewrite_settlements(self, segment: Segment, queue_id: int, lsns: Sequence[int]) -> int:
        needed = self._journal.chain.needed_settle(segment, queue_id, lsns)
        if not needed:
            return 0
        self._journal.rewrite_settlements(queue_id, needed)
        self.counters.rewritten += len(needed)
        return _size_of_settles(needed)

    # The end of a round.

    def _leave(self, segment: Segment) -> None:
        """Everything that others need was written elsewhere: the segment may go."""
        if segment.live_count:
            raise LookupError(f"{segment.live_count} live copies were not found in it")
        resting = self._journal.chain.resting
        if any(older.is_needed for older in resting[: resting.index(segment)]):
            self._journal.retire(segment)
            self._victims.rule_out(segment)

    def _end(self) -> None:
        if self._round is not None:
            self._round.file.close()
            self._round = None
            self._journal.chain.emptying = None
            self._work = iter(())

    def _mark_corrupt(self, segment: Segment, reason: str) -> None:
        self._end()
        self._victims.rule_out(segment)
        self._journal.distrust(segment.generation)
        self._on_corrupt(segment.name, reason)

    def close(self) -> None:
        """Stop where it is; nothing is lost by that."""
        self._end()


def _block_at(window: Window, segment: Segment, offset: int) -> Block:
    """Return a block of a segment.

    Raises:
        LookupError: there is none
        OSError: it cannot be read
    """
    block = find_block(window, offset, segment.generation, segment.salt)
    if block is None or block.end > segment.offset:
        raise LookupError(f"there is no block at offset {offset}")
    return block


def _having_live(segment: Segment) -> Callable[[tuple[int, ...]], bool]:
    """Return what tells whether any of some queues has live copies in a segment at rest."""
    count_of = segment.live_by_queue.get

    def is_wanted(queue_ids: tuple[int, ...]) -> bool:
        return any(map(count_of, queue_ids))

    return is_wanted


def _pieces(run: Run) -> Iterator[range]:
    """Yield a run's LSNs in pieces that are moved without a look at the clock."""
    lsns, bounds = run.lsns, run.bounds
    begin = 0
    while begin < len(lsns):
        end = bisect_right(bounds, bounds[begin] + _PIECE_BYTES, begin + 1) - 1
        end = min(max(end, begin + 1), begin + _PIECE)
        yield lsns[begin:end]
        begin = end


def _pieces_settled(block: Block, window: Window) -> Iterator[tuple[int, Sequence[int]]]:
    """Yield queue id and settled LSNs in pieces that take little time, a range as a whole."""
    for queue_id, settled in settles_of(block, window):
        if isinstance(settled, range):
            yield queue_id, settled
        else:
            for at in range(0, len(settled), _SETTLES_AT_ONCE):
                yield queue_id, settled[at : at + _SETTLES_AT_ONCE]


def _size_of_settles(lsns: Sequence[int]) -> int:
    return _ROW_BYTES if isinstance(lsns, range) else 8 * len(lsns)


def _read_ahead(file: DiskFile, offset: int, end: int) -> int:
    """Have the kernel read what comes next; return where to ask again."""
    file.will_need(offset, min(2 * _AHEAD_BYTES, end - offset))
    return offset + _AHEAD_BYTES


def _has_outcomes(block: Block) -> bool:
    """Whether a block tells that copies, queues or notes are gone."""
    kinds = (
        *(records.SETTLED_RANGES, records.SETTLED_LISTS),
        *(records.DROPPED_QUEUES, records.FORGOTTEN_NOTES),
    )
    return any(kind in block.sections for kind in kinds)
