"""Up to where a directory has the log, said outside of the segments.

Segments hold blocks and no records, so they cannot say which record of the log they end with. This
file can: everything up to the position in it is in this directory, and on the disk. It may speak
for less than there is, never for more. So a log that ends before it, or that has another record
there, has lost something.

It is written by turns in two places, as the journal's end mark is, so that a write which a crash
tears leaves the position before it.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final, NamedTuple

from vouchmq.store.checksum import crc32
from vouchmq.store.replication.log_view import Position
from vouchmq.store.replication.record import ID_SIZE

if TYPE_CHECKING:
    from vouchmq.store.disk import Disk, DiskFile, ReadableDisk

POSITION_NAME: Final = "log.position"

_MAGIC: Final = b"VQLPOS"
_VERSION: Final = 1
_LEAD: Final = struct.Struct("<6sHI")
_FACTS: Final = struct.Struct(f"<Q{ID_SIZE}s8q")
# In sectors of their own, whatever size those have.
_PLACE_BYTES: Final = 4096
_PLACES: Final = 2


class StoredPosition(NamedTuple):
    """What one place of the file says; of two the one that was written later has a higher turn."""

    turn: int
    log_id: bytes
    at: Position


def read_positions(disk: ReadableDisk) -> list[StoredPosition]:
    """Return what the file of a directory says, newest first; nothing if there is none.

    Raises:
        OSError: the disk refused
    """
    if POSITION_NAME not in disk.listdir():
        return []
    file = disk.open(POSITION_NAME)
    try:
        size = _LEAD.size + _FACTS.size
        places = [_parse(file.read(place * _PLACE_BYTES, size)) for place in range(_PLACES)]
    finally:
        file.close()
    return sorted((each for each in places if each is not None), reverse=True)


def _parse(raw: bytes) -> StoredPosition | None:
    if len(raw) != _LEAD.size + _FACTS.size:
        return None
    magic, version, checksum = _LEAD.unpack_from(raw)
    if magic != _MAGIC or version != _VERSION or checksum != crc32(raw[_LEAD.size :]):
        return None
    turn, log_id, *numbers = _FACTS.unpack_from(raw, _LEAD.size)
    return StoredPosition(turn, log_id, Position(*numbers))


class PositionFile:
    """The file with the position; `log_id` is empty and `at` None while there is none."""

    def __init__(self, disk: Disk) -> None:
        self.log_id = b""
        self.at: Position | None = None
        self._disk = disk
        self._turn = 0
        self._file: DiskFile | None = None
        if POSITION_NAME in disk.listdir():
            self._file = disk.open(POSITION_NAME)
            for found in read_positions(disk)[:1]:
                self._turn, self.log_id, self.at = found

    def put(self, log_id: bytes, at: Position) -> None:
        """Write and sync a position; what it speaks for has to be on the disk.

        Raises:
            OSError: the disk refused
        """
        is_new = self._file is None
        if self._file is None:
            self._file = self._disk.create(POSITION_NAME, _PLACES * _PLACE_BYTES)
        self._turn += 1
        facts = _FACTS.pack(self._turn, log_id, *at)
        lead = _LEAD.pack(_MAGIC, _VERSION, crc32(facts))
        self._file.write([lead, facts], self._turn % _PLACES * _PLACE_BYTES)
        self._file.sync()
        if is_new:
            self._disk.directory.sync()
        self.log_id, self.at = log_id, at

    def sync(self) -> None:
        """Make durable what was read: whoever has written it may have been killed before that.

        Raises:
            OSError: the disk refused
        """
        if self._file is not None:
            self._file.sync()
            self._disk.directory.sync()

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()
            self._file = None
