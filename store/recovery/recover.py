"""From a directory to the state that was true: scan, judge, clean up, replay.

Three passes, each of which a crash may interrupt without harm:
  1. `scan` reads every segment and checks every block; unbroken rows of blocks become
     extents. Valid blocks behind a hole are found too.
  2. `judge` puts the extents in order and tells what a hole means. Each block says which
     number was known synced when it was written: a hole at or below the highest such
     number is damage, the first hole above it is the torn tail, and what lies behind that
     was never promised to anybody.
  3. Files that count no more are removed and the torn tail is cut; what is served but not
     proven synced is written again and synced; damaged segments are emptied and left out.
`replay` then builds the queues, newest segment first, out of LSNs alone: contents are checked by
the scan and read when somebody wants them.

The invariant: recovering twice gives the same state, and nothing is invented or silently skipped.
What is served was durable, or has been made so before anybody is told of it: blocks that are only
in the page cache may have been marked clean by a sync that failed.

What was tried: reading every segment. That took 1.7 s for a million messages of 1 KiB and half a
minute for ten million, with everything in the page cache. A checkpoint of the whole state has to be
made again and again while everything changes, and its last piece must be synced before it counts.
So each full segment has a *summary* beside it, a cache that may be lost (decision 0004): now ten
million messages take 0.6 s warm. Only the newest `WHOLE_BYTES` are read in any case, since a crash
or a failing disk does its harm there.

What it costs: damage in an old segment is found when a message of it is read or the segment is
emptied, not at the start. With `refuse_damage`, as in `vouchmq store check`, all is read as before.
Damage to the blocks of the very last sync looks like a torn tail unless the end mark speaks for
them; it is kept in a file of its own.

Spec: DURABLE-12, DURABLE-14, DURABLE-15
"""

from __future__ import annotations

import errno
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import reduce
from typing import TYPE_CHECKING, Final

from vouchmq.store.disk import Disk
from vouchmq.store.errors import CopyDamaged, CorruptSegment
from vouchmq.store.journal import records
from vouchmq.store.journal.journal import Journal, JournalState
from vouchmq.store.journal.segment import (
    SUMMARY_SUFFIX,
    Segment,
    parse_generation,
    segment_name,
    summary_name,
)
from vouchmq.store.journal.segment_pool import SPARE_SUFFIX
from vouchmq.store.journal.segments import (
    DAMAGED_SUFFIX,
    BlockTap,
    ChainState,
    RetiredSegment,
)
from vouchmq.store.reading.index import Index, SegmentIndex
from vouchmq.store.recovery.closed_segment import (
    LEAST_SUMMARY_BYTES,
    can_have_summary,
    closed_segment,
)
from vouchmq.store.recovery.replay import RecoveredQueue, Remains, Replay
from vouchmq.store.recovery.scan import Extent, Verdict, list_generations, merge_gaps, read_segment
from vouchmq.store.recovery.summary import Summary, read_summary
from vouchmq.store.recovery.summary_check import SummaryCheck
from vouchmq.store.recovery.torn_tail import (
    TORN_SUFFIX,
    forget_oldest,
    has_own_blocks,
    keep_torn,
    torn_size,
)

if TYPE_CHECKING:
    from vouchmq.store.disk import DiskFile, ReadableDisk

# Suffix of files in which nothing at all could be read while nothing else was there either.
DISCARDED_SUFFIX: Final = ".discarded"
# Blocks that carry a damaged segment's messages on are about this large.
_MOVE_BYTES: Final = 4 * 1024 * 1024
_MOVE_NOTES: Final = 4096
# Of the newest segments so much is read at the start, which takes tenths of a second.
WHOLE_BYTES: Final = 256 * 1024 * 1024
_ALL_BYTES: Final = 1 << 62


@dataclass(slots=True, frozen=True)
class Damage:
    """Durable blocks that are gone.

    `offset` and `size_bytes` bound the bad spot in `segment` (size 0: the file is missing or
    ends early). The LSNs (inclusive; none if `last_lsn` is smaller) are those that may be
    lost, the queues those that had messages in the segment.
    """

    segment: str
    offset: int
    size_bytes: int
    first_number: int
    last_number: int
    first_lsn: int
    last_lsn: int
    queue_ids: tuple[int, ...]


@dataclass(slots=True)
class RecoveryReport:
    """What recovery found; sizes in octets.

    `message_lsn` is the highest LSN of a message in what was read, alive or not: others are those
    of notes, or of nothing. `set_aside` are files with what was cut off or discarded; sealed is
    what was closed in order, and nothing has happened to it since.
    """

    segments: int = 0
    unread_segments: int = 0
    blocks: int = 0
    messages: int = 0
    truncated_bytes: int = 0
    discarded_segments: list[str] = field(default_factory=list)
    quarantined: list[str] = field(default_factory=list)
    is_sealed: bool = False
    damaged: list[Damage] = field(default_factory=list)
    unroutable_messages: int = 0
    unroutable_lsns: tuple[int, int] | None = None
    message_lsn: int = 0


@dataclass(slots=True)
class Recovered:
    """What was true when the last durable block was written.

    `definitions` are in replay order: the newest snapshot, then later changes. Queues that
    the definitions do not know should be dropped, so that their segments come free, and so should
    scopes of `notes` (values by scope id and key) that nobody knows.
    """

    definitions: list[bytes]
    queues: dict[int, RecoveredQueue]
    notes: dict[int, dict[bytes, bytes]]
    report: RecoveryReport


class _Steps:
    """Counts what is done for whoever shows it."""

    def __init__(self, total: int, progress: Callable[[int, int], None] | None) -> None:
        self._done = 0
        self._total = total
        self._progress = progress

    def tell(self) -> None:
        self._done += 1
        if self._progress is not None:
            self._progress(self._done, self._total)


def open_journal(
    disk: Disk,
    *,
    segment_size_bytes: int,
    wall_ms: Callable[[], int],
    refuse_damage: bool = False,
    whole_bytes: int = WHOLE_BYTES,
    progress: Callable[[int, int], None] | None = None,
    tap: BlockTap | None = None,
) -> tuple[Journal, Recovered]:
    """Lock the directory, recover what it holds and open the journal for writing.

    Nobody else is needed for it: definitions, notes and positions that the journal has to write
    again are those that recovery has found, until `Journal.ask` names who knows them better.
    `wall_ms` gives the time of day in milliseconds.

    The newest segments are read up to `whole_bytes`, of others only summaries; all are read with
    `refuse_damage`. `progress` is told how many of how many segments are done, in the order of
    reading; each is looked at twice. `tap` is told of every block that is written
    from then on. What is damaged or missing here it has, so with a tap nothing is left out.

    Raises:
        DataDirLocked: another process has the directory.
        UnsupportedFormat: a newer program wrote it.
        CorruptSegment: damage was found and `refuse_damage` is set; nothing was changed.
        CopyDamaged: the same with a tap, or a block that the tap has is not here.
        OSError: the disk refused a read, a write or a sync.
    """
    disk.lock()
    names = disk.listdir()
    generations = list_generations(names)
    steps = _Steps(2 * len(generations), progress)
    if refuse_damage:
        whole_bytes = _ALL_BYTES
    summary_check = SummaryCheck(disk, generations, names, whole_bytes, steps.tell)
    verdict = summary_check.verdict
    if refuse_damage or tap is not None:
        _refuse(verdict, tap)
    report = RecoveryReport(is_sealed=verdict.is_sealed)
    _clean_up(disk, names, verdict, summary_check.trusted, report)
    replay = Replay()
    segments, indexes, remains = _replay_segments(disk, summary_check, replay, steps)
    state = _state(segments, names, verdict, replay)
    state.chain.tap = tap
    state.index = Index(indexes)
    state.notes = replay.notes()
    notes = {scope_id: dict(values) for scope_id, values in state.notes.items()}
    journal = Journal(
        disk,
        segment_size_bytes=segment_size_bytes,
        wall_ms=wall_ms,
        state=state,
        position_of=replay.position_of,
    )
    definitions = replay.definitions()
    if verdict.holes:
        report.damaged = _describe(verdict, remains)
        _leave_out_damaged(disk, journal, verdict, remains, segments)
    return journal, Recovered(definitions, _queues(replay, journal, report), notes, report)


def check_stopped(
    disk: ReadableDisk, progress: Callable[[int, int], None] | None = None
) -> SummaryCheck:
    """Read and check every block of a directory that nobody uses; nothing is changed.

    `progress` is told how many of how many segments are done.

    Raises:
        UnsupportedFormat: a newer program wrote it.
        OSError: the disk refused more than reads of what is damaged.
    """
    names = disk.listdir()
    generations = list_generations(names)
    steps = _Steps(len(generations), progress)
    return SummaryCheck(disk, generations, names, _ALL_BYTES, steps.tell)


def clean_up(disk: Disk, checked: SummaryCheck) -> RecoveryReport:
    """Do to that directory what a start does before it reads messages: cut its torn tail.

    Raises:
        OSError: the disk refused; what was done is what the next start would do.
    """
    verdict = checked.verdict
    report = RecoveryReport(is_sealed=verdict.is_sealed)
    # All was read, so no summary was needed; those of segments that are not cut stay true.
    proven = {e.generation for e in verdict.accepted[:-1] if e.last_number < verdict.unproven}
    _clean_up(disk, disk.listdir(), verdict, proven, report)
    return report


def _refuse(verdict: Verdict, tap: BlockTap | None) -> None:
    """See that nothing is damaged, and, with a tap, that all blocks are here which that has.

    Damage of the last ones looks like a torn tail, as no block behind them says that they are safe.
    """
    if verdict.holes:
        hole = verdict.holes[0]
        refusal = CorruptSegment if tap is None else CopyDamaged
        raise refusal(
            f"{segment_name(hole.generation)} is damaged at offset {hole.offset}"
            f" ({len(verdict.holes)} damaged places in all)"
        )
    found = verdict.accepted[-1].last_number if verdict.accepted else 0
    if tap is not None and found < tap.last_number:
        raise CopyDamaged(
            f"the journal ends with block {found}, but has the log up to block {tap.last_number}"
        )


def _queues(replay: Replay, journal: Journal, report: RecoveryReport) -> dict[int, RecoveredQueue]:
    report.unroutable_messages = replay.unroutable_count
    report.unroutable_lsns = replay.unroutable_lsns
    report.message_lsn = replay.message_lsn
    queues = replay.queues(journal.fetch)
    report.messages = sum(queue.count for queue in queues.values())
    return queues


def _clean_up(
    disk: Disk, names: list[str], verdict: Verdict, trusted: set[int], report: RecoveryReport
) -> None:
    """Make the directory say what the verdict says, and make that durable.

    The order matters. What lies behind the torn tail goes before the tail is cut, or a second
    recovery would find it behind a tail that looks whole. Segments that are declared gone go
    last, when the blocks that declare it are surely synced. A summary that is not believed now
    must never be: its segment may be about to be cut, and its blocks' numbers be given again.
    """
    accepted = {extent.generation for extent in verdict.accepted}
    kept = {summary_name(generation) for generation in trusted & accepted}
    for name in names:
        if name.endswith(SUMMARY_SUFFIX) and name not in kept:
            disk.unlink(name)
    report.segments = len({extent.generation for extent in verdict.accepted})
    report.unread_segments = len(trusted & accepted)
    report.blocks = sum(extent.block_count for extent in verdict.accepted)
    for generation in verdict.doomed:
        name = segment_name(generation)
        octets = read_segment(disk, name)
        # Without any other segment there may be more to it than a write that was cut short.
        if has_own_blocks(octets, generation) or (any(octets) and not verdict.accepted):
            report.discarded_segments.append(name)
            report.quarantined.append(name + DISCARDED_SUFFIX)
            # Nobody should have to regret that it was removed.
            disk.rename(name, name + DISCARDED_SUFFIX)
            continue
        disk.unlink(name)
    disk.directory.sync()
    unproven = {e.generation for e in verdict.accepted if e.last_number >= verdict.unproven}
    for generation in sorted(unproven):
        _write_again(disk, [e for e in verdict.accepted if e.generation == generation], verdict)
    if verdict.accepted:
        _cut_tail(disk, names, verdict, report)
    for name in names:
        if _is_rubbish(name, verdict):
            disk.unlink(name)


def _is_rubbish(name: str, verdict: Verdict) -> bool:
    if name.endswith((SPARE_SUFFIX, SPARE_SUFFIX + ".new")):
        return True
    generation = parse_generation(name)
    if generation is None:
        return False
    is_retired = any(generation == left for left, _, _ in verdict.retired_early)
    return generation < verdict.oldest or generation in verdict.abandoned or is_retired


def _write_again(disk: Disk, extents: list[Extent], verdict: Verdict) -> None:
    """Write blocks that nothing proves to be synced again, and sync them.

    They may be in the page cache only, marked clean by a sync that failed before we were
    started; from now on later blocks will vouch for them.
    """
    file = disk.open(segment_name(extents[0].generation))
    try:
        for extent in extents:
            buffer = file.read(extent.start, extent.end - extent.start)
            at = 0
            number = extent.first_number
            while number < min(verdict.unproven, extent.last_number + 1):
                at += records.HEADER_SIZE + records.trusted_header(buffer, at).length
                number += 1
            if at < len(buffer):
                file.write([buffer[at:]], extent.start + at)
        file.sync()
    finally:
        file.close()


def _cut_tail(disk: Disk, names: list[str], verdict: Verdict, report: RecoveryReport) -> None:
    """Cut everything behind the last accepted block, and keep aside what looks like blocks."""
    last = verdict.accepted[-1]
    name = segment_name(last.generation)
    is_own = [e.generation == last.generation for e in verdict.discarded]
    others = (e for e, own in zip(verdict.discarded, is_own, strict=True) if not own)
    report.truncated_bytes = sum(e.end - e.start for e in others)
    if last.generation in verdict.damaged_generations() and not any(is_own):
        # Nothing that could be read stands there. The whole file is set aside as it is.
        return
    if not verdict.is_sealed:
        rest = read_segment(disk, name)[last.end :]
        size = torn_size(rest, last.generation, last.salt)
        report.truncated_bytes += size
        if size:
            forget_oldest(disk, names)
            kept = keep_torn(disk, name, rest[:size])
            report.quarantined += [kept] if kept else []
    _cut(disk, last)


def _cut(disk: Disk, last: Extent) -> None:
    file = disk.open(segment_name(last.generation))
    try:
        if file.size() > last.end:
            file.truncate(last.end)
            file.sync()
    finally:
        file.close()


def _replay_segments(
    disk: Disk, summary_check: SummaryCheck, replay: Replay, steps: _Steps
) -> tuple[list[Segment], list[SegmentIndex], dict[int, Remains]]:
    """Replay all accepted segments, newest first; return them oldest first."""
    verdict = summary_check.verdict
    extents: dict[int, list[Extent]] = {}
    for extent in verdict.accepted:
        extents.setdefault(extent.generation, []).append(extent)
    damaged = verdict.damaged_generations()
    remains: dict[int, Remains] = {}
    segments: list[Segment] = []
    indexes: list[SegmentIndex] = []
    for generation in sorted(extents, reverse=True):
        own = extents[generation]
        file = disk.open(segment_name(generation))
        try:
            segment = closed_segment(own, file.size())
            if generation in damaged:
                remains[generation] = Remains()
            if generation in summary_check.trusted:
                indexes.append(_replay_summary(disk, file, replay, segment))
            else:
                size = max(segment.size_bytes, LEAST_SUMMARY_BYTES)
                is_whole = can_have_summary(own) and generation not in remains
                summary = Summary(size) if is_whole else None
                index = replay.segment(file, own, segment, remains.get(generation), summary)
                indexes.append(index)
                _write_summary(disk, summary, segment, index)
            segment.arrived_count = 0  # how many there were is not known
        finally:
            file.close()
        segments.append(segment)
        steps.tell()
    segments.reverse()
    indexes.reverse()
    return segments, indexes, remains


def _replay_summary(disk: Disk, file: DiskFile, replay: Replay, segment: Segment) -> SegmentIndex:
    found = read_summary(disk, segment.generation)
    if found is None:
        raise OSError(errno.EIO, f"the summary of {segment.name} cannot be read any more")
    segment.has_summary = segment.is_unchecked = True
    return replay.summarized(file, found, segment)


def _write_summary(
    disk: Disk, summary: Summary | None, segment: Segment, index: SegmentIndex
) -> None:
    if summary is not None and not summary.is_too_large:
        with suppress(OSError):
            segment.has_summary = True
            deque(summary.pieces(disk, segment, index), maxlen=0)


def _state(
    segments: list[Segment], names: list[str], verdict: Verdict, replay: Replay
) -> JournalState:
    accepted = verdict.accepted
    end = verdict.end
    suffixes = (DAMAGED_SUFFIX, DISCARDED_SUFFIX, TORN_SUFFIX)
    stems = [reduce(str.removesuffix, suffixes, name) for name in names]
    live = {queue_id for segment in segments for queue_id in segment.live_by_queue}
    chain = ChainState(
        segments=segments,
        # Never a number that any file had before: stale blocks would pass for new ones.
        generation=max([*list_generations(stems), end.generation if end is not None else 0]),
        gaps=merge_gaps([*verdict.gaps, *_lost_numbers(verdict)]),
        moved=replay.moved,
        retired_early=[RetiredSegment(*left) for left in verdict.retired_early],
        settled={q: replay.settled[q] for q in replay.settled if q in live},
    )
    state = JournalState(chain, marks=replay.live_marks(), definitions=replay.definitions())
    if accepted:
        chain.number = accepted[-1].last_number + 1
        state.next_lsn = max(extent.next_lsn for extent in accepted)
    if end is not None:
        # What it names was given to somebody, whether it is there or not.
        chain.number = max(chain.number, end.number + 1)
        state.next_lsn = max(state.next_lsn, end.next_lsn)
    for segment in segments:
        segment.dead_number = chain.number - 1
    return state


def _lost_numbers(verdict: Verdict) -> list[tuple[int, int]]:
    """Return the block numbers of all holes and of the segments that will be set aside."""
    damaged = verdict.damaged_generations()
    lost = [hole.numbers for hole in verdict.holes]
    spans = [(e.first_number, e.last_number) for e in verdict.accepted if e.generation in damaged]
    return lost + spans


def _describe(verdict: Verdict, remains: dict[int, Remains]) -> list[Damage]:
    return [
        Damage(
            segment=segment_name(hole.generation),
            offset=hole.offset,
            size_bytes=hole.size_bytes,
            first_number=hole.numbers[0],
            last_number=hole.numbers[1],
            first_lsn=hole.first_lsn,
            last_lsn=hole.last_lsn,
            queue_ids=tuple(sorted(remains[hole.generation].queue_ids))
            if hole.generation in remains
            else (),
        )
        for hole in verdict.holes
    ]


def _leave_out_damaged(
    disk: Disk,
    journal: Journal,
    verdict: Verdict,
    remains: dict[int, Remains],
    segments: list[Segment],
) -> None:
    """Carry on what damaged segments still hold, sync that, then rename their files."""
    damaged = verdict.damaged_generations()
    emptied = [segment for segment in segments if segment.generation in damaged]
    for segment in emptied:
        _carry_on(journal, remains[segment.generation], segment.first_lsn)
    # A head with nothing behind it is not believed, and no other may know what this one does.
    journal.announce()
    ticket = journal.begin_sync()
    for target in ticket.targets:
        target.sync()
    for segment in emptied:
        journal.leave_out(segment)
    names = disk.listdir()
    for generation in damaged - {segment.generation for segment in emptied}:
        if segment_name(generation) in names:
            disk.rename(segment_name(generation), segment_name(generation) + DAMAGED_SUFFIX)
    disk.directory.sync()
    for file in journal.end_sync(ticket):
        file.close()


def _carry_on(journal: Journal, remains: Remains, first_lsn: int) -> None:
    for queue_id, lsns in remains.settles:
        journal.rewrite_settlements(queue_id, [lsn for lsn in lsns if lsn < first_lsn])
    for queue_id in remains.dropped:
        journal.drop_queue(queue_id)
    journal.write()
    for at in range(0, len(remains.notes), _MOVE_NOTES):
        for scope_id, key in remains.notes[at : at + _MOVE_NOTES]:
            journal.notes.repeat(scope_id, key)
        journal.write()
    size = 0
    for run in sorted(remains.runs, key=lambda run: run.lsns[0]):
        lsns = run.lsns
        while lsns:
            count = 0
            for first, _, raws, arrived_ms in journal.fetch_runs(lsns, _MOVE_BYTES):
                journal.move_run(run.queue_ids, run.tail, first, list(raws), arrived_ms)
                count += len(raws)
                size += sum(map(len, raws))
            lsns = lsns[count:]
            if size >= _MOVE_BYTES:
                journal.write()
                size = 0
    journal.write()
