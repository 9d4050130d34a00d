"""What is whole on the disk, and what a hole in it means. Reads, changes nothing.

Spec: DURABLE-14
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Final

from vouchmq.store.disk import DiskFile, ReadableDisk
from vouchmq.store.journal import records
from vouchmq.store.journal.end_mark import EndMark
from vouchmq.store.journal.segment import parse_generation, segment_name

# An unreadable spot costs at most this many octets around it.
_RESCUE_BYTES: Final = 64 * 1024

# Kinds of blocks that tell which others are not to be missed.
_TELLING: Final = frozenset({records.HEAD, records.CHECKPOINT})

Gap = tuple[int, int]
# A segment that was left out of turn: its generation, its first and its last block.
Left = tuple[int, int, int]


@dataclass(slots=True)
class Extent:
    """Blocks that follow each other without a flaw, in place and in number."""

    generation: int
    salt: int
    start: int
    end: int
    first_number: int
    last_number: int
    first_lsn: int
    next_lsn: int
    synced: int
    oldest: int
    block_count: int
    gaps: list[Gap] = field(default_factory=list)
    retired_early: list[Left] = field(default_factory=list)


@dataclass(slots=True, frozen=True)
class Hole:
    """Durable blocks that are missing; `generation` is the segment they were in.

    LSNs from `first_lsn` to `last_lsn` may have been lost, none if the latter is smaller.
    """

    generation: int
    offset: int
    size_bytes: int
    numbers: Gap
    first_lsn: int
    last_lsn: int


@dataclass(slots=True)
class Verdict:
    """What of the scanned extents counts.

    `unproven` is the first block number that no block declares synced. Segments below
    `oldest` were declared gone, and those of `retired_early`; those of `doomed` lie behind the torn
    tail, those of `abandoned` were given up when their very first block could not be written.
    `end` is the end mark, if there is one: what it names was synced, whether it is there or not.
    """

    accepted: list[Extent]
    discarded: list[Extent]
    holes: list[Hole]
    gaps: list[Gap]
    oldest: int
    unproven: int
    doomed: list[int]
    abandoned: list[int]
    retired_early: list[Left]
    end: EndMark | None = None

    def damaged_generations(self) -> set[int]:
        """Return the segments that have holes in them."""
        return {hole.generation for hole in self.holes}

    @property
    def is_sealed(self) -> bool:
        """Whether all there is was written before a clean stop, and nothing is missing."""
        if self.end is None or self.holes or not self.accepted:
            return False
        return self.end.is_sealed and self.accepted[-1].last_number == self.end.number


def scan(
    disk: ReadableDisk, generations: Iterable[int], tell: Callable[[], None] = lambda: None
) -> list[Extent]:
    """Return the extents of all segments in journal order; `tell` is called after each.

    Raises:
        UnsupportedFormat: a segment of another format version.
    """
    extents: list[Extent] = []
    for generation in sorted(generations):
        name = segment_name(generation)
        buffer = read_segment(disk, name)
        found = scan_segment(buffer, generation)
        if not found:
            # With blocks of ours behind it, what looks like another version is damage.
            records.refuse_newer_versions(buffer, name)
        extents += found
        tell()
    return extents


def list_generations(names: Iterable[str]) -> list[int]:
    """Return the generations of all segments among file names, in order."""
    return sorted(g for g in map(parse_generation, names) if g is not None)


def read_segment(disk: ReadableDisk, name: str) -> bytes:
    """Return a segment's octets; zeros stand for what the disk cannot read."""
    file = disk.open(name)
    try:
        size = file.size()
        try:
            return file.read(0, size)
        except OSError:
            return b"".join(_rescue(file, at) for at in range(0, size, _RESCUE_BYTES))[:size]
    finally:
        file.close()


def _rescue(file: DiskFile, offset: int) -> bytes:
    try:
        return file.read(offset, _RESCUE_BYTES)
    except OSError:
        return bytes(_RESCUE_BYTES)


def scan_segment(buffer: bytes, generation: int) -> list[Extent]:
    """Return the extents of one segment, also those behind a hole.

    All blocks of one segment carry one salt, drawn at random when it was begun: neither
    stale blocks of a recycled file nor a message body made to look like a block have it.
    """
    extents: list[Extent] = []
    salt: int | None = None
    offset = 0
    while offset >= 0:
        header = records.read_block(buffer, offset, generation, salt)
        if header is None:
            offset = records.find_signature(buffer, offset + 1)
            continue
        salt = header.salt
        end = offset + records.HEADER_SIZE + header.length
        _extend(extents, header, offset, end)
        if header.kind in _TELLING:
            _read_declared(buffer, offset + records.HEADER_SIZE, end, extents[-1])
        offset = end
    return extents


def _extend(extents: list[Extent], header: records.BlockHeader, start: int, end: int) -> None:
    last = extents[-1] if extents else None
    is_next = last is not None and last.end == start and last.last_number + 1 == header.number
    if last is not None and is_next and last.next_lsn >= header.first_lsn:
        last.end = end
        last.last_number = header.number
        last.next_lsn = header.next_lsn
        last.synced = header.synced
        last.oldest = header.oldest
        last.block_count += 1
        return
    extents.append(
        Extent(
            generation=header.generation,
            salt=header.salt,
            start=start,
            end=end,
            first_number=header.number,
            last_number=header.number,
            first_lsn=header.first_lsn,
            next_lsn=header.next_lsn,
            synced=header.synced,
            oldest=header.oldest,
            block_count=1,
        )
    )


def _read_declared(buffer: bytes, start: int, end: int, extent: Extent) -> None:
    """Note which blocks this one declares not to be missed."""
    sections = records.read_sections(buffer, start, end)
    if records.KNOWN_GAPS in sections:
        numbers = iter(records.unpack_numbers(buffer, sections[records.KNOWN_GAPS]))
        extent.gaps += zip(numbers, numbers, strict=True)
    if records.RETIRED in sections:
        numbers = iter(records.unpack_numbers(buffer, sections[records.RETIRED]))
        extent.retired_early += zip(numbers, numbers, numbers, strict=True)


def judge(extents: list[Extent], generations: list[int], end: EndMark | None = None) -> Verdict:
    """Tell what counts: `extents` in journal order, `generations` of all files there are.

    Which segment is the oldest that counts is only worth believing when the block that says
    so counts itself: files go after it is synced, so without it they are still there.
    """
    for oldest in sorted({extent.oldest for extent in extents}, reverse=True):
        verdict = _judge_without_retired(oldest, extents, generations, end)
        if any(extent.oldest == oldest for extent in verdict.accepted):
            return verdict
    return _judge_without_retired(0, extents, generations, end)


def _judge_without_retired(
    oldest: int, extents: list[Extent], generations: list[int], end: EndMark | None
) -> Verdict:
    """Leave out segments that were retired early, if the blocks that say so count themselves.

    Or did count until their own segment was retired early, by a newer one: otherwise a torn tail
    that declares a segment gone would take that segment's word along, and never give it back.
    """
    believed = {left for extent in extents for left in extent.retired_early}
    while True:
        verdict = _judge_from(oldest, extents, generations, believed, end)
        gone = {generation for generation, _, _ in believed}
        speakers = [*verdict.accepted, *(e for e in extents if e.generation in gone)]
        declared = {left for extent in speakers for left in extent.retired_early}
        if believed <= declared:
            return verdict
        believed &= declared


def _judge_from(
    oldest: int,
    extents: list[Extent],
    generations: list[int],
    retired_early: set[Left],
    end: EndMark | None = None,
) -> Verdict:
    left_out = {generation for generation, _, _ in retired_early}
    generations = [generation for generation in generations if generation not in left_out]
    synced = max((extent.synced for extent in extents), default=0)
    synced = max(synced, end.number if end is not None else 0)
    known = [gap for extent in extents for gap in extent.gaps]
    gaps = merge_gaps([*known, *((first, last) for _, first, last in retired_early)])
    judged = [e for e in extents if e.generation >= oldest and e.generation not in left_out]
    accepted: list[Extent] = []
    holes: list[Hole] = []
    abandoned: list[int] = []
    discarded: list[Extent] = []
    for index, extent in enumerate(judged):
        while accepted and extent.first_number <= accepted[-1].first_number:
            # The number was used again, so the head that had it first was not written well.
            abandoned.append(accepted.pop().generation)
        previous = accepted[-1] if accepted else None
        missing = _missing(previous, extent, oldest)
        if missing is None:
            accepted.append(extent)
            continue
        if missing[0] > missing[1]:
            # Its number went to a block of the segment before it: its own was given up. Or that
            # block is one that failed, and then nothing was synced since, and what follows
            # this extent does not connect either.
            abandoned.append(extent.generation)
            continue
        is_known = any(first <= missing[0] and missing[1] <= last for first, last in gaps)
        if is_known and extent.start == 0:
            accepted.append(extent)
            continue
        if missing[0] <= synced:
            holes += _locate(previous, extent, missing, oldest, generations)
        if missing[1] > synced and not is_known:
            discarded = judged[index:]
            break
        accepted.append(extent)
    newest = accepted[-1].generation if accepted else oldest - 1
    if end is not None and not any(e.last_number >= end.number for e in judged):
        holes += _locate_end(accepted[-1] if accepted else None, end, oldest, generations)
        newest = max(newest, end.generation)
    return Verdict(
        accepted=accepted,
        discarded=discarded,
        holes=holes,
        gaps=merge_gaps(known),
        oldest=oldest,
        unproven=synced + 1,
        doomed=[generation for generation in generations if generation > newest],
        abandoned=[g for g in abandoned if g not in {e.generation for e in accepted}],
        retired_early=sorted(retired_early),
        end=end,
    )


def _missing(previous: Extent | None, extent: Extent, oldest: int) -> Gap | None:
    """Return the block numbers missing in front of `extent`; (1, 0) if it comes out of turn."""
    if previous is None:
        if extent.generation == oldest and extent.start == 0:
            return None
        # How many there were cannot be known; the last of them decides.
        last = extent.first_number - 1
        return (last, last)
    if extent.first_number == previous.last_number + 1:
        if _follows(previous, extent):
            return None
        # The disk had refused the block before it, which stayed; what took its number is lost.
        return (previous.last_number, previous.last_number)
    if extent.first_number <= previous.last_number:
        return (1, 0)
    return (previous.last_number + 1, extent.first_number - 1)


def _follows(previous: Extent, extent: Extent) -> bool:
    """Whether the next block by number is it by place and by LSN as well."""
    is_same_file = extent.generation == previous.generation
    is_behind = extent.start == (previous.end if is_same_file else 0)
    return is_behind and extent.first_lsn <= previous.next_lsn


def _locate_end(
    previous: Extent | None, end: EndMark, oldest: int, generations: list[int]
) -> list[Hole]:
    """Return where the blocks must have been that are missing in front of the end mark."""
    # How many there were cannot be known if none are left.
    first = previous.last_number + 1 if previous is not None else end.number
    behind = Extent(
        generation=end.generation,
        salt=0,
        start=end.offset,
        end=end.offset,
        first_number=end.number + 1,
        last_number=end.number,
        first_lsn=end.next_lsn,
        next_lsn=end.next_lsn,
        synced=end.number,
        oldest=oldest,
        block_count=0,
    )
    missing = (first, end.number)
    return _locate(previous, behind, missing, oldest, generations, end.first_number)


def _locate(
    previous: Extent | None,
    extent: Extent,
    missing: Gap,
    oldest: int,
    generations: list[int],
    head_number: int | None = None,
) -> list[Hole]:
    """Return where the missing blocks must have been: in every segment that has room for them.

    `head_number` is that of the head of the extent's segment, where that is known.
    """
    first_lsn = previous.next_lsn if previous else 1
    last_lsn = extent.first_lsn - 1
    before = previous.generation if previous else oldest - 1
    places = [(g, 0, 0) for g in generations if before < g < extent.generation]
    if previous is not None and previous.generation == extent.generation:
        places.append((extent.generation, previous.end, extent.start - previous.end))
    elif extent.start > 0:
        places.append((extent.generation, 0, extent.start))
        head_number = missing[1] if head_number is None else head_number
        if previous is not None and missing[0] < head_number:
            # One of them was the head; the others may have been behind the last that is there.
            places.append((previous.generation, previous.end, 0))
    elif previous is not None and not places:
        places.append((previous.generation, previous.end, 0))
    if not places:
        places.append((oldest, 0, 0))  # the file itself is missing
    return [Hole(g, at, size, missing, first_lsn, last_lsn) for g, at, size in places]


def merge_gaps(gaps: Iterable[Gap]) -> list[Gap]:
    """Return the same numbers as few, ordered, disjoint ranges (first, last)."""
    merged: list[Gap] = []
    for first, last in sorted(gaps):
        if merged and first <= merged[-1][1] + 1:
            merged[-1] = (merged[-1][0], max(last, merged[-1][1]))
        else:
            merged.append((first, last))
    return merged
