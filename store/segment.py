"""One preallocated, append-only file of the journal, and what in it is still alive.

It knows its blocks only as octets to put at its end; what they mean is the journal's
business. The counts of live copies decide when the whole file may go.
"""

from collections.abc import Sequence
from typing import Final

from store.disk import DiskFile
from store.errors import SettledTwice

SUFFIX: Final = ".journal"
_DIGITS: Final = 16


def segment_name(generation: int) -> str:
    """Return the file name of a segment; names sort like generations."""
    return f"{generation:0{_DIGITS}d}{SUFFIX}"


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
        "dead_number",
        "file",
        "first_lsn",
        "generation",
        "live_by_queue",
        "live_count",
        "name",
        "offset",
        "salt",
        "size_bytes",
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
        # Number of the block that took the last live copy away (or the last to be written).
        self.dead_number = 0

    def has_room(self, size: int) -> bool:
        """Return whether `size` more octets fit."""
        return self.offset + size <= self.size_bytes

    def append(self, parts: Sequence[bytes], size: int) -> None:
        """Write `parts`, together `size` octets, at the end. A failure moves nothing."""
        self._open_file().write(parts, self.offset)
        self.offset += size

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

    def take_live(self, queue_id: int, count: int) -> None:
        """Subtract settled copies; a queue that was dropped has none left to settle.

        Raises:
            SettledTwice: the queue never had that many copies here.
        """
        live = self.live_by_queue.get(queue_id)
        if live is None:
            return
        if count > live:
            raise SettledTwice(
                f"queue {queue_id} settled {count} copies in {self.name}, which holds {live}"
            )
        self.live_by_queue[queue_id] = live - count
        self.live_count -= count

    def drop_queue(self, queue_id: int) -> int:
        """Forget a queue; return how many live copies it had here."""
        live = self.live_by_queue.pop(queue_id, 0)
        self.live_count -= live
        return live
