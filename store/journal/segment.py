"""One preallocated, append-only file of the journal, and what in it is still alive.

It knows its blocks only as octets to put at its end; what they mean is the journal's
business. The counts of live copies decide when the whole file may go.
"""

from array import array
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from vouchmq.store.disk import DiskFile
from vouchmq.store.errors import SettledTwice
from vouchmq.store.journal.staging import StagedContent
from vouchmq.store.lsn_spans import Spans
from vouchmq.store.settled_lsns import Settled

SUFFIX: Final = ".journal"
# What is appended to it for the file with a segment's summary, see store/recovery/summary.py.
SUMMARY_SUFFIX: Final = ".summary"
_DIGITS: Final = 16


def segment_name(generation: int) -> str:
    """Return the file name of a segment; names sort like generations."""
    return f"{generation:0{_DIGITS}d}{SUFFIX}"


def summary_name(generation: int) -> str:
    """Return the file name of a segment's summary."""
    return segment_name(generation) + SUMMARY_SUFFIX


def parse_generation(name: str) -> int | None:
    """Return the generation a file name stands for, or None if it is no segment."""
    stem = name.removesuffix(SUFFIX)
    if stem == name or len(stem) != _DIGITS or not (stem.isascii() and stem.isdigit()):
        return None
    return int(stem)


class Segment:
    """One file: where its next block goes, and how many copies in it are live.

    `file` is None once everything in a full segment is synced and it was closed.
    """

    __slots__ = (
        "arrived_count",
        "dead_number",
        "end_lsn",
        "file",
        "first_lsn",
        "first_number",
        "generation",
        "gone_queues",
        "has_summary",
        "head_bytes",
        "is_resting",
        "is_unchecked",
        "last_number",
        "live_by_queue",
        "live_count",
        "moved",
        "name",
        "noted",
        "noted_bytes",
        "offset",
        "oldest",
        "outer",
        "salt",
        "settled",
        "settled_end",
        "settled_moved",
        "size_bytes",
        "synced",
    )

    def __init__(self, generation: int, salt: int, first_lsn: int, size_bytes: int) -> None:
        self.generation = generation
        self.name = segment_name(generation)
        self.salt = salt
        self.first_lsn = first_lsn
        self.size_bytes = size_bytes
        self.offset = 0
        self.file: DiskFile | None = None
        self.live_count = 0
        self.live_by_queue: dict[int, int] = {}
        # Copies that ever came; none are counted of what was there before a restart.
        self.arrived_count = 0
        # LSNs of copies that are gone, of queues that have others left here: of its own messages,
        # and of those that were moved here, whose LSNs are lower.
        self.settled: dict[int, Settled] = {}
        self.settled_moved: dict[int, Settled] = {}
        self.settled_end = first_lsn
        self.is_resting = False
        # Queues that may have had copies here, beside those in `live_by_queue`, and scopes that
        # may have had notes here, beside those in `noted`.
        self.gone_queues: set[int] = set()
        # Keys, by scope, of notes here that may be wanted; no list is empty. Their octets.
        self.noted: dict[int, list[bytes]] = {}
        self.noted_bytes = 0
        # Its own LSNs end before this one; these are about those of messages moved here.
        self.end_lsn = first_lsn
        self.moved = Spans()
        self.has_summary = False
        # Recovery has not read it.
        self.is_unchecked = False
        # What it begins with, and the numbers of its first and last block.
        self.head_bytes = 0
        self.first_number = self.last_number = 0
        # What the header of the last block says: numbers of a block, and of a segment.
        self.synced = self.oldest = 0
        # Number of the block that took the last live copy away (or the last to be written).
        self.dead_number = 0
        # Offsets of blocks that say what older segments may need; None if nobody has kept count.
        self.outer: array[int] | None = None

    def has_room(self, size: int) -> bool:
        """Return whether `size` more octets fit."""
        return self.offset + size <= self.size_bytes

    def append(self, parts: Sequence[bytes], size: int) -> None:
        """Write `parts`, together `size` octets, at the end. A failure moves nothing."""
        self._open_file().write(parts, self.offset)
        self.offset += size

    def write_behind(self, octets: bytes, distance: int) -> None:
        """Write octets at a distance behind the end, which stays where it is."""
        self._open_file().write([octets], self.offset + distance)

    def append_around(self, parts: Sequence[bytes], size: int, content: StagedContent) -> None:
        """Write the same, one of which stands there already. A failure moves nothing."""
        at = next(at for at, part in enumerate(parts) if part is content.raw)
        file = self._open_file()
        if at + 1 < len(parts):
            file.write(parts[at + 1 :], content.end)
        file.write(parts[:at], self.offset)
        self.offset += size

    def note_outer(self, offset: int) -> None:
        """Note that the newest block, which begins there, is about older segments as well."""
        outer = self.outer
        if outer is not None and (not outer or outer[-1] != offset):
            outer.append(offset)

    def wipe(self, size: int) -> None:
        """Write zeros over the first octets behind the end."""
        self._open_file().write([bytes(size)], self.offset)

    def _open_file(self) -> DiskFile:
        if self.file is None:
            raise ValueError(f"{self.name} is full and closed")
        return self.file

    def add_live(self, queue_id: int, count: int) -> None:
        """Count copies that have come in for a queue."""
        self.live_by_queue[queue_id] = self.live_by_queue.get(queue_id, 0) + count
        self.live_count += count
        self.arrived_count += count

    @property
    def is_needed(self) -> bool:
        """Whether there is a live copy here, or a note that may be wanted."""
        return bool(self.live_count or self.noted)

    def add_notes(self, scope_id: int, keys: Iterable[bytes], size: int) -> None:
        """Note keys whose notes have come in; `size` is that of the notes in octets."""
        self.noted.setdefault(scope_id, []).extend(keys)
        self.noted_bytes += size

    def keep_notes(self, wanted: Mapping[int, Mapping[bytes, int]]) -> None:
        """Forget all keys but these, which come with the octets of their notes."""
        # Older values of the others may still be in the file.
        self.gone_queues.update(self.noted)
        kept = {scope_id: wanted.get(scope_id) for scope_id in self.noted}
        self.noted = {scope_id: list(keys) for scope_id, keys in kept.items() if keys}
        self.noted_bytes = sum(sum(wanted[scope_id].values()) for scope_id in self.noted)

    def may_have_notes(self, scope_id: int) -> bool:
        """Return whether notes of a scope, wanted or not, may be in the file."""
        return scope_id in self.noted or scope_id in self.gone_queues

    def note_moved(self, first_lsn: int, count: int) -> None:
        """Note that messages with these LSNs were moved here."""
        self.moved.add(first_lsn, count)

    def settle(self, queue_id: int, lsns: Sequence[int], first: int, last: int) -> None:
        """Note that copies are gone, the lowest and highest of whose LSNs are given.

        A queue that was dropped has none left to settle.

        Raises:
            SettledTwice: the queue never had that many copies here.
        """
        left = self.take_live(queue_id, len(lsns))
        if left < 0 or (not left and self.is_resting):
            return
        if last >= self.first_lsn:
            self.settled_end = max(self.settled_end, last + 1)
        if first < self.first_lsn and isinstance(lsns, range):
            older = lsns[: self.first_lsn - first]
            self._settled_of(self.settled_moved, queue_id).add_range(first, len(older))
            lsns = lsns[len(older) :]
            first = last - len(lsns) + 1
        elif first < self.first_lsn:
            moved = [lsn for lsn in lsns if lsn < self.first_lsn]
            self._settled_of(self.settled_moved, queue_id).add_list(moved)
            lsns = [lsn for lsn in lsns if lsn >= self.first_lsn]
        settled = self._settled_of(self.settled, queue_id)
        if not left:
            # Others may still come; of what was here until now nothing is left.
            settled.fill(self.first_lsn, self.settled_end)
        elif not lsns:
            return
        elif last - first + 1 == len(lsns):
            settled.add_range(first, len(lsns))
        else:
            settled.add_list(lsns)

    @staticmethod
    def _settled_of(settled: dict[int, Settled], queue_id: int) -> Settled:
        known = settled.get(queue_id)
        if known is None:
            known = settled[queue_id] = Settled()
        return known

    def rest(self, end_lsn: int) -> None:
        """Take note that nothing is written here any more; its LSNs end before `end_lsn`."""
        self.is_resting = True
        self.end_lsn = end_lsn
        live = self.live_by_queue
        self.settled = {q: settled for q, settled in self.settled.items() if live.get(q)}
        self.settled_moved = {q: s for q, s in self.settled_moved.items() if live.get(q)}

    def without_settled(self, queue_id: int, lsns: Sequence[int]) -> Sequence[int]:
        """Return those of `lsns`, ascending, whose copies did not go since the segment was begun.

        They are of messages in this segment that were given to this queue.
        """
        if not self.live_by_queue.get(queue_id):
            return ()
        for settled in (self.settled.get(queue_id), self.settled_moved.get(queue_id)):
            if settled is not None:
                lsns = settled.alive(lsns)
        return lsns

    def take_live(self, queue_id: int, count: int) -> int:
        """Subtract copies that were settled or moved; return how many the queue has left.

        Returns:
            -1 if the queue is not known here

        Raises:
            SettledTwice: the queue never had that many copies here.
        """
        live = self.live_by_queue.get(queue_id)
        if live is None:
            return -1
        if count > live:
            raise SettledTwice(
                f"queue {queue_id} settled {count} copies in {self.name}, which holds {live}"
            )
        self.live_by_queue[queue_id] = live - count
        self.live_count -= count
        return live - count

    def drop_queue(self, queue_id: int) -> int:
        """Forget a queue and its notes; return how many live copies and noted keys it had here."""
        noted = self.noted.pop(queue_id, ())
        live = self.live_by_queue.pop(queue_id, None)
        if live is None and not noted:
            return 0
        self.gone_queues.add(queue_id)
        self._forget_settled(queue_id)
        self.live_count -= live or 0
        return (live or 0) + len(noted)

    def _forget_settled(self, queue_id: int) -> None:
        self.settled.pop(queue_id, None)
        self.settled_moved.pop(queue_id, None)

    def may_have(self, queue_id: int) -> bool:
        """Return whether copies or notes of a queue, live or not, may be in the file."""
        return queue_id in self.live_by_queue or self.may_have_notes(queue_id)

    def may_hold(self, lsns: Sequence[int]) -> Sequence[int]:
        """Return those of ascending `lsns` whose messages may be in the file, live or not.

        A range comes back as one, in which there may be some that are not.
        """
        if isinstance(lsns, range):
            if self.moved.overlaps(lsns.start, lsns.stop):
                return lsns
            return range(max(lsns.start, self.first_lsn), min(lsns.stop, self.end_lsn))
        low = bisect_left(lsns, self.first_lsn)
        own = lsns[low : bisect_left(lsns, self.end_lsn, low)]
        # What is moved is older than what the segment brought.
        return [*self.moved.among(lsns[:low]), *own]
