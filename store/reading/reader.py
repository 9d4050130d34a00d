"""Messages read back out of the journal by their LSNs.

Whoever keeps LSNs only (queues that page, compaction) asks here. What is asked for in a row is
read in a row: a stretch of blocks at once and checked again when most of it is wanted, else
just the head of a block and the contents themselves. The last stretches stay in memory, so that
asking on where the last answer ended decodes nothing twice.

It must not know what a queue is, nor which messages are live.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections import OrderedDict
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from itertools import accumulate, pairwise, repeat
from struct import error as struct_error
from struct import unpack_from
from typing import TYPE_CHECKING, Final, Generic, TypeVar

from vouchmq.store.errors import ReadFailed
from vouchmq.store.journal import records
from vouchmq.store.reading.block_contents import arrived_ms, moves_arrived
from vouchmq.store.reading.blocks import GLANCE_BYTES, WALK_BYTES, Block, Window, find_block

if TYPE_CHECKING:
    from collections.abc import Callable

    from vouchmq.store.disk import Disk, DiskFile
    from vouchmq.store.reading.index import Index, SegmentIndex, Stretch

Content = tuple[bytes, bytes]
# The first LSN, the tail, and the contents of messages that follow each other; then when their
# block was written first: milliseconds by the wall clock, 0 if it is of a time before such times.
FetchedRun = tuple[int, bytes, Sequence[bytes], int]
_Place = tuple[int, int]  # generation and offset

# A smaller stretch is always read as a whole.
SMALL_BYTES: Final = 32 * 1024
# A larger stretch is one block, of which only what is wanted is read.
WHOLE_BYTES: Final = 1024 * 1024
# Reading a stretch whole costs less than reading the wanted part of it from this share on.
WHOLE_SHARE: Final = 4
# What is remembered. Many queues that were filled in turn read the same blocks side by side.
CACHE_BYTES: Final = 16 * 1024 * 1024
DECODED_BYTES: Final = 8 * 1024
OPEN_FILES: Final = 64
CACHED_ROUTES: Final = 65536
NO_LIMIT: Final = 1 << 62
# What is counted as steps, each of about a microsecond: a run, a block that is looked at, and how
# many octets that are read, or places of messages that are worked out, make one more.
RUN_STEPS: Final = 16
BLOCK_STEPS: Final = 32
STEP_BYTES: Final = 1024
STEP_MESSAGES: Final = 16


class Contents:
    """What came to one block, or was moved there: which LSNs, and where each of them lies."""

    __slots__ = (
        "_arrivals",
        "_bounds",
        "_counts",
        "_firsts",
        "_routes",
        "_starts",
        "_tail_of",
        "_window",
        "first",
        "message_count",
        "next",
    )

    def __init__(
        self, block: Block, window: Window, tail_of: Callable[[int], bytes], *, moves: bool
    ) -> None:
        self.first = block.header.first_lsn
        self.next = block.header.next_lsn
        self._window = window
        self._tail_of = tail_of
        runs = records.numbers_in(block.body(window, records.RUNS))
        lengths = block.body(window, records.LENGTHS)
        self.message_count = len(lengths) // 4
        start, end = block.sections[records.CONTENTS][1:]
        self._bounds: Sequence[int]
        if lengths == lengths[:4] * self.message_count and end > start:
            self._bounds = range(start, end + 1, records.lengths_in(lengths[:4])[0])
        else:
            self._bounds = list(accumulate(records.lengths_in(lengths), initial=start))
        at = 0
        self._arrivals: Sequence[int]
        if moves:
            # Contents of runs come first.
            at = sum(runs[2::3])
            runs = records.numbers_in(block.body(window, records.MOVES))
            self._arrivals = moves_arrived(block, window)
        else:
            self._arrivals = (arrived_ms(block, window),) * (len(runs) // 3)
        self._routes = runs[::3]
        self._firsts = runs[1::3]
        self._counts = runs[2::3]
        self._starts: Sequence[int] = list(accumulate(self._counts, initial=at))
        if moves:
            self._put_in_order()

    def _put_in_order(self) -> None:
        """Sort what was moved by LSN; it ascends already if compaction moved it at one go."""
        firsts = self._firsts
        order = sorted(range(len(firsts)), key=firsts.__getitem__)
        if order != list(range(len(firsts))):
            self._routes = array("Q", [self._routes[at] for at in order])
            self._counts = array("Q", [self._counts[at] for at in order])
            self._arrivals = [self._arrivals[at] for at in order]
            self._starts = [self._starts[at] for at in order]
            self._firsts = array("Q", sorted(firsts))

    def take(
        self, lsns: Sequence[int], at: int, room: int, into: list[FetchedRun]
    ) -> tuple[int, int]:
        """Read those LSNs from index `at` on that are in this block, up to about `room` octets.

        Returns:
            the index of the first LSN that was not read, and how many octets were

        Raises:
            OSError: they cannot be read
        """
        lsn = lsns[at]
        run = bisect_right(self._firsts, lsn) - 1
        if run < 0:
            raise KeyError(lsn)
        number = lsn - self._firsts[run]
        start = self._starts[run]
        count = self._counts[run]
        if number >= count:
            raise KeyError(lsn)
        # As many as follow each other without a gap, which is the rule rather than the exception.
        end = min(len(lsns), at + count - number)
        if lsns[end - 1] - lsn != end - 1 - at:
            end = next(n for n in range(at + 1, end) if lsns[n] - lsn != n - at)
        first = start + number
        last = first + end - at
        bounds = self._bounds
        if bounds[last] - bounds[first] > room:
            last = max(first + 1, bisect_left(bounds, bounds[first] + room, first, last))
        raws = self._raws(bounds[first : last + 1])
        into.append((lsn, self._tail_of(self._routes[run]), raws, self._arrivals[run]))
        return at + last - first, bounds[last] - bounds[first]

    def _raws(self, bounds: Sequence[int]) -> Sequence[bytes]:
        window = self._window
        start, end = bounds[0], bounds[-1]
        if len(bounds) == 2:
            return [window.read(start, end)]
        if window.covers(start, end):
            octets, base = window.octets, window.base
        else:
            octets, base = window.read(start, end), start
        if isinstance(bounds, range):
            # All of one size: nothing cuts them faster.
            return unpack_from(f"{bounds.step}s" * (len(bounds) - 1), octets, start - base)
        return [octets[a - base : b - base] for a, b in pairwise(bounds)]


T = TypeVar("T")


class _Cache(Generic[T]):
    """What was decoded last, by its place; `CACHE_BYTES` of it, one at least."""

    __slots__ = ("_bytes", "_costs", "_items")

    def __init__(self) -> None:
        self._items: OrderedDict[_Place, T] = OrderedDict()
        self._costs: dict[_Place, int] = {}
        self._bytes = 0

    def get(self, place: _Place) -> T | None:
        """Return what is kept of a place, which was wanted last now."""
        item = self._items.get(place)
        if item is not None:
            self._items.move_to_end(place)
        return item

    def put(self, place: _Place, item: T, cost_bytes: int) -> None:
        """Keep this of a place, and let go of what nobody has wanted for longest."""
        self._let_go(place)
        self._items[place] = item
        self._costs[place] = cost_bytes
        self._bytes += cost_bytes
        while self._bytes > CACHE_BYTES and len(self._items) > 1:
            self._let_go(next(iter(self._items)))

    def forget(self, generation: int) -> None:
        """Let go of what is kept of a segment."""
        for place in [place for place in self._items if place[0] == generation]:
            self._let_go(place)

    def _let_go(self, place: _Place) -> None:
        if self._items.pop(place, None) is not None:
            self._bytes -= self._costs.pop(place)


class _Stretch:
    """A stretch being read: its blocks are decoded as they are asked for."""

    __slots__ = ("_reader", "_segment", "contents", "cost_bytes", "end", "is_whole", "window")

    def __init__(self, reader: Reader, place: Stretch, *, is_whole: bool) -> None:
        self._reader = reader
        self._segment = place.segment
        self.contents: list[Contents] = []
        self.end = place.offset
        self.is_whole = is_whole
        self.window = Window(reader.file_of(place.segment))
        size = place.end - place.offset
        size = size if is_whole else min(size, GLANCE_BYTES)
        self.window.load(place.offset, size)
        self.cost_bytes = size + DECODED_BYTES

    def find(self, lsn: int) -> Contents | None:
        """The contents of the block that was handed this LSN."""
        known = self.contents
        while not known or known[-1].next <= lsn:
            left = self._segment.end - self.end
            if left <= 0:
                return None
            if not self.window.covers(self.end, self.end + records.HEADER_SIZE):
                self.window.load(self.end, min(left, WALK_BYTES if self.is_whole else GLANCE_BYTES))
            block = self._reader.block_at(self.window, self._segment, self.end)
            self.end = block.end
            if records.RUNS in block.sections:
                known.append(self._reader.contents_of(block, self.window, self._segment))
        # Mostly the last one: what is asked for goes on where it ended.
        if known[-1].first > lsn:
            at = bisect_right(known, lsn, key=lambda contents: contents.first) - 1
            return known[at] if at >= 0 else None
        return known[-1]


class Reader:
    """Reads messages of all segments that the index knows.

    It opens the files by itself and keeps some of them open; `forget` closes.

    Args:
        disk: where the segments are
        index: where the messages are in them
        generation_of: the generation of the segment in which the live copies of an LSN are
        distrust: told the generation of a segment in which a block is not what was written
    """

    def __init__(
        self,
        disk: Disk,
        index: Index,
        generation_of: Callable[[int], int | None],
        distrust: Callable[[int], None],
    ) -> None:
        self._disk = disk
        self._index = index
        self._generation_of = generation_of
        self._distrust = distrust
        # What all reads have taken so far, about microseconds.
        self.steps = 0
        # Blocks that were read as a whole, of segments that nobody has read since the start.
        self._checked: set[_Place] = set()
        self._files: OrderedDict[int, DiskFile] = OrderedDict()
        self._stretches: _Cache[_Stretch] = _Cache()
        self._moved: _Cache[Contents] = _Cache()
        self._routes: dict[tuple[int, int], bytes] = {}
        # One object for each tail there is, as the messages of a route share it.
        self._tails: dict[bytes, bytes] = {}

    def fetch(self, lsns: Sequence[int], limit_bytes: int = NO_LIMIT) -> list[Content]:
        """Return (raw, tail) of each of `lsns`; see `fetch_runs`."""
        contents: list[Content] = []
        for _, tail, raws, _ in self.fetch_runs(lsns, limit_bytes):
            contents += zip(raws, repeat(tail))
        return contents

    def fetch_runs(
        self, lsns: Sequence[int], limit_bytes: int, limit_steps: int = NO_LIMIT
    ) -> list[FetchedRun]:
        """Return the messages of `lsns`, which ascend; all must be live.

        Stops early when `limit_bytes` are reached, or when it has taken so many steps, at the
        earliest after one message.

        Raises:
            ReadFailed: one is not where it should be, or the disk refused
        """
        runs: list[FetchedRun] = []
        at = size = 0
        lsn = 0
        block: Contents | None = None
        enough = self.steps + limit_steps
        try:
            while at < len(lsns) and (not at or (size < limit_bytes and self.steps < enough)):
                lsn = lsns[at]
                if block is None or not block.first <= lsn < block.next:
                    block = self._find(lsns, at)
                contents = block or self._find_moved(lsn)
                at, more = contents.take(lsns, at, limit_bytes - size, runs)
                size += more
                self.steps += RUN_STEPS + more // STEP_BYTES
        except OSError as error:
            self._blame(lsn)
            reason = error.strerror or error
            raise ReadFailed(f"cannot read message {lsn} from the journal: {reason}") from error
        except (LookupError, ValueError, struct_error) as error:
            self._blame(lsn)
            raise ReadFailed(f"message {lsn} is not in the journal where it should be") from error
        return runs

    def _blame(self, lsn: int) -> None:
        """Have the next start look at the segments that this message may be in."""
        place = self._index.stretch_of(lsn)
        generation = place.segment.generation if place is not None else self._generation_of(lsn)
        if generation is not None:
            self._distrust(generation)

    def _find(self, lsns: Sequence[int], at: int) -> Contents | None:
        lsn = lsns[at]
        place = self._index.stretch_of(lsn)
        if place is None:
            return None
        key = (place.segment.generation, place.offset)
        stretch = self._stretches.get(key)
        wanted = bisect_left(lsns, place.next_lsn, at) - at
        size = place.end - place.offset
        is_dense = wanted * WHOLE_SHARE >= place.next_lsn - place.first_lsn
        is_whole = size <= SMALL_BYTES or (is_dense and size <= WHOLE_BYTES)
        if stretch is None or (is_whole and not stretch.is_whole):
            stretch = _Stretch(self, place, is_whole=is_whole)
            self._stretches.put(key, stretch, stretch.cost_bytes)
        return stretch.find(lsn)

    def _find_moved(self, lsn: int) -> Contents:
        """The contents of the block that holds a message whose own segment is gone."""
        generation = self._generation_of(lsn)
        segment = self._index.of(generation) if generation is not None else None
        offset = segment.moved_to(lsn) if segment is not None else None
        if segment is None or offset is None:
            raise KeyError(lsn)
        key = (segment.generation, offset)
        contents = self._moved.get(key)
        if contents is None:
            window = Window(self.file_of(segment))
            window.load(offset, min(GLANCE_BYTES, segment.end - offset))
            block = self.block_at(window, segment, offset)
            if GLANCE_BYTES < block.end - offset <= SMALL_BYTES:
                # Others of it will be wanted, too.
                window.load(offset, block.end - offset)
            contents = self.contents_of(block, window, segment, moves=True)
            self._moved.put(key, contents, DECODED_BYTES + len(window.octets))
        return contents

    # What stretches ask.

    def block_at(self, window: Window, segment: SegmentIndex, offset: int) -> Block:
        """Return a block; one that is in memory as a whole is checked again.

        Raises:
            KeyError: there is none, or it is damaged
            OSError: it cannot be read
        """
        self.steps += BLOCK_STEPS
        block = find_block(window, offset, segment.generation, segment.salt)
        if block is None:
            raise KeyError(offset)
        base = window.base
        if window.covers(offset, block.end):
            is_intact = records.is_intact(window.octets, offset - base, block.end - base)
        else:
            is_intact = not segment.is_unchecked or self._check(segment, block)
        if not is_intact:
            raise KeyError(offset)
        return block

    def _check(self, segment: SegmentIndex, block: Block) -> bool:
        """Whether a block is what was written, of which only a part is wanted: read once."""
        place = (segment.generation, block.offset)
        if place not in self._checked:
            octets = self.file_of(segment).read(block.offset, block.end - block.offset)
            self.steps += len(octets) // STEP_BYTES
            if not records.is_intact(octets, 0, len(octets)):
                return False
            self._checked.add(place)
        return True

    def contents_of(
        self, block: Block, window: Window, segment: SegmentIndex, *, moves: bool = False
    ) -> Contents:
        """Return what a block holds; its routes are looked up when they are needed."""
        if records.ROUTES in block.sections:
            self._learn(block, window, segment)
        contents = Contents(block, window, partial(self._tail, segment), moves=moves)
        self.steps += contents.message_count // STEP_MESSAGES
        return contents

    def file_of(self, segment: SegmentIndex) -> DiskFile:
        """Return a segment's file, opened for reading."""
        file = self._files.get(segment.generation)
        if file is None:
            file = self._disk.open(segment.name)
            self._files[segment.generation] = file
            while len(self._files) > OPEN_FILES:
                self._close(next(iter(self._files)))
        else:
            self._files.move_to_end(segment.generation)
        return file

    def _tail(self, segment: SegmentIndex, number: int) -> bytes:
        tail = self._routes.get((segment.generation, number))
        if tail is None:
            window = Window(self.file_of(segment))
            for offset in segment.route_offsets(number):
                window.load(offset, min(GLANCE_BYTES, segment.end - offset))
                self._learn(self.block_at(window, segment, offset), window, segment)
                tail = self._routes.get((segment.generation, number))
                if tail is not None:
                    return tail
            raise KeyError(number)
        return tail

    def _learn(self, block: Block, window: Window, segment: SegmentIndex) -> None:
        if len(self._routes) > CACHED_ROUTES:
            self._routes.clear()
        if len(self._tails) > CACHED_ROUTES:
            self._tails.clear()
        octets = block.body(window, records.ROUTES)
        section = records.Section(block.sections[records.ROUTES].item_count, 0, len(octets))
        for number, _, tail in records.unpack_routes(octets, section):
            self._routes[segment.generation, number] = self._tails.setdefault(tail, tail)

    # Ends.

    def forget(self, generation: int) -> None:
        """Let go of a segment whose file is about to go."""
        self._close(generation)
        for route in [route for route in self._routes if route[0] == generation]:
            del self._routes[route]
        self._checked = {place for place in self._checked if place[0] != generation}

    def close(self) -> None:
        """Close all files; a later fetch opens what it needs again."""
        for generation in list(self._files):
            self._close(generation)

    def _close(self, generation: int) -> None:
        file = self._files.pop(generation, None)
        if file is not None:
            # A window of a cached stretch may want to read more through this descriptor.
            self._stretches.forget(generation)
            self._moved.forget(generation)
            with suppress(OSError):
                file.close()
