"""A data directory whose file system can be made full, or to say that it is nearly so.

    journal ─▶ FaultyDisk ─▶ FileDisk
                   └─ `is_full`: every write fails with ENOSPC, as on a file system without room

What was written stays readable, and can be synced and removed. Must not know the journal.
"""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING

from vouchmq.store.disk import FileDisk

if TYPE_CHECKING:
    from collections.abc import Sequence

    from vouchmq.store.disk import DiskFile


class FaultyDisk(FileDisk):
    """A real directory; see `FileDisk`.

    `is_full`: nothing more can be written. `claimed_free_bytes`: what it says is free; None: what
    is.
    """

    is_full = False
    claimed_free_bytes: int | None = None

    def create(self, name: str, size: int) -> DiskFile:
        """See `Disk`."""
        self.require_room()
        return FaultyFile(super().create(name, size), self)

    def open(self, name: str) -> DiskFile:
        """See `Disk`."""
        return FaultyFile(super().open(name), self)

    def free_bytes(self) -> int:
        """See `Disk`."""
        if self.claimed_free_bytes is not None:
            return self.claimed_free_bytes
        return super().free_bytes()

    def require_room(self) -> None:
        """Pass unless the disk is full.

        Raises:
            OSError: ENOSPC
        """
        if self.is_full:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


class FaultyFile:
    """A file of that directory; see `DiskFile`."""

    __slots__ = ("_disk", "_file")

    def __init__(self, file: DiskFile, disk: FaultyDisk) -> None:
        self._file = file
        self._disk = disk

    def write(self, parts: Sequence[bytes], offset: int) -> None:
        """See `DiskFile`."""
        self._disk.require_room()
        self._file.write(parts, offset)

    def read(self, offset: int, size: int) -> bytes:
        """See `DiskFile`."""
        return self._file.read(offset, size)

    def will_need(self, offset: int, size: int) -> None:
        """See `DiskFile`."""
        self._file.will_need(offset, size)

    def size(self) -> int:
        """See `DiskFile`."""
        return self._file.size()

    def truncate(self, size: int) -> None:
        """See `DiskFile`."""
        self._file.truncate(size)

    def sync(self) -> None:
        """See `DiskFile`."""
        self._file.sync()

    def fileno(self) -> int:
        """See `DiskFile`."""
        return self._file.fileno()

    def close(self) -> None:
        """See `DiskFile`."""
        self._file.close()
