"""Files made before they are needed, so that nobody waits while one is filled with zeros.

One is ordered when the active segment is half full; one that a dead segment leaves behind is as
good. All have the size that segments have now: files of another size go back to the disk.

A small one is held back for a disk without room. What frees space there, acks above all, has to be
written somewhere first: into a smaller file than usual if one can be made, at last into this one.

It must not know segments. Spec: LIMIT-15
"""

from contextlib import suppress
from typing import Final, NamedTuple

from vouchmq.store.disk import DISK_FULL, Disk, DiskFile

SPARE_SUFFIX: Final = ".spare"
PREPARED_NAME: Final = "prepared" + SPARE_SUFFIX
RESERVE_NAME: Final = "reserve" + SPARE_SUFFIX
# What is held back, as a part of a file and as a multiple of what a segment begins with.
_RESERVE_SHARE: Final = 16
# Of those that dead segments leave behind: one to begin the next segment with, even if another was
# ordered. Each segment that has to be made anew is filled with zeros first, and would be so again
# and again under a backlog of a segment and a half. What is beyond goes back to the disk.
_MAX_SPARES: Final = 1
# A segment is at least so many times as large as what it begins with.
_HEAD_SHARE: Final = 4


class FileTask(NamedTuple):
    """File work that may take long and that nothing waits for: `prepare` or `unlink`."""

    verb: str
    name: str
    size: int


class SegmentPool:
    """Files that wait to become segments.

    Args:
        disk: where they are
        segment_size_bytes: what the operator wants files to have; `size_bytes` may be more
    """

    def __init__(self, disk: Disk, segment_size_bytes: int) -> None:
        self.size_bytes = segment_size_bytes
        self._least_bytes = segment_size_bytes
        self._disk = disk
        self._names: list[str] = []
        self._file_tasks: list[FileTask] = []
        self._has_ordered = False
        self._reserve_bytes = 0

    @property
    def ready_bytes(self) -> int:
        """Octets of the file that waits to become the next segment; it needs no room any more."""
        return self.size_bytes if self._names else 0

    def fit(self, head_bytes: int) -> None:
        """Have files with room for many blocks behind a head of this size."""
        size = self._least_bytes
        while size < _HEAD_SHARE * head_bytes:
            size *= 2
        if size != self.size_bytes:
            self.size_bytes = size
            self._file_tasks += [
                FileTask("unlink", name, 0) for name in (*self._names, PREPARED_NAME)
            ]
            self._names = []
            self._has_ordered = False

    def hold_back(self, head_bytes: int) -> None:
        """See to it that there is a reserve with room behind such a head, if the disk has any."""
        size = max(self.size_bytes // _RESERVE_SHARE, _HEAD_SHARE * head_bytes)
        if size > self._reserve_bytes:
            with suppress(OSError):
                self._disk.create(RESERVE_NAME, size).close()
                self._reserve_bytes = size

    def take_small(self, name: str, size: int) -> tuple[DiskFile, int]:
        """Return an open file with at least `size` octets, and how many it has.

        For when there is no room for a usual one: as large as may be, at last the reserve.

        Raises:
            OSError: not even that
        """
        room = self.size_bytes // 2
        while room >= max(size, 2 * self._reserve_bytes, 1):
            try:
                return self._disk.create(name, room), room
            except OSError as error:
                if error.errno not in DISK_FULL:
                    raise
            room //= 2
        room, self._reserve_bytes = self._reserve_bytes, 0
        if room < size:
            # It may have grown too small; what it held may be room enough.
            self._disk.unlink(RESERVE_NAME)
            return self._disk.create(name, size), size
        self._disk.rename(RESERVE_NAME, name)
        return self._disk.open(name), room

    def look_after(self, used_bytes: int) -> None:
        """Order a file in good time: when half of the active segment is used."""
        if used_bytes * 2 > self.size_bytes and not (self._has_ordered or self._names):
            self._has_ordered = True
            self._file_tasks.append(FileTask("prepare", PREPARED_NAME, self.size_bytes))

    def take(self, name: str, size: int) -> DiskFile:
        """Return an open file of zeros, or of old blocks, under a new name.

        Raises:
            OSError: there is none, and none can be made
        """
        if size == self.size_bytes:
            for spare in (*self._names[-1:], PREPARED_NAME):
                file = self._rename(spare, name)
                if file is None:
                    continue
                if file.size() == size:
                    return file
                # It was ordered when files had another size.
                file.close()
                self._disk.unlink(name)
        return self._disk.create(name, size)

    def _rename(self, spare: str, name: str) -> DiskFile | None:
        is_prepared = spare not in self._names
        try:
            self._disk.rename(spare, name)
        except FileNotFoundError:
            self._has_ordered = False
            return None
        if is_prepared:
            self._has_ordered = False
        else:
            self._names.remove(spare)
        return self._disk.open(name)

    def keep(self, name: str, generation: int, size: int) -> bool:
        """Take a dead segment's file, or have it removed; whether it was renamed.

        One that comes back under its old name after a crash is below `oldest`, whatever was
        written into it since.
        """
        if len(self._names) < _MAX_SPARES and size == self.size_bytes:
            spare = f"{generation}{SPARE_SUFFIX}"
            try:
                self._disk.rename(name, spare)
            except OSError:
                pass
            else:
                self._names.append(spare)
                return True
        self.drop(name)
        return False

    def drop(self, name: str) -> None:
        """Have the helper remove a file that no segment needs."""
        self._file_tasks.append(FileTask("unlink", name, 0))

    def remove(self, name: str) -> None:
        """Have a file removed, some time."""
        self._file_tasks.append(FileTask("unlink", name, 0))

    def take_file_tasks(self) -> list[FileTask]:
        """Return file work for somebody who may block; none of it is needed for safety."""
        file_tasks, self._file_tasks = self._file_tasks, []
        return file_tasks
