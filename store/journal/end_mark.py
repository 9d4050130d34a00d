"""How far the journal was on disk for certain, said outside of it.

Each block says up to which number everything was synced when it was written; for the last ones
nobody speaks, so that damage there looks like the torn tail of a crash. The end mark speaks for
them: of each segment that its head was synced, and after a clean stop, when nothing more will be
written, that everything was (the *seal*). What it names and is not there is damage.

What it says stays true for ever, so it never has to be taken back: a mark whose block is there
tells nothing new. It is written by turns in two places of one small file, so that a write which
a crash tears leaves the mark before it; the seal stands in both.

Spec: DURABLE-22
"""

from __future__ import annotations

import struct
from contextlib import suppress
from typing import TYPE_CHECKING, Final, NamedTuple

from vouchmq.store.checksum import crc32

if TYPE_CHECKING:
    from vouchmq.store.disk import Disk, DiskFile, ReadableDisk, Syncable

END_NAME: Final = "journal.end"

_MAGIC: Final = b"VQJEND"
_VERSION: Final = 1
_LEAD: Final = struct.Struct("<6sHI")
_FACTS: Final = struct.Struct("<7Q")
# In sectors of their own, whatever size those have.
_PLACE_BYTES: Final = 4096
_PLACES: Final = 2


class EndMark(NamedTuple):
    """Block `number` of a segment was synced, and all before it.

    It ends at `offset`, and LSNs go on with `next_lsn`; `first_number` is the segment's head.
    Sealed: nothing was written behind it before the journal was closed.
    """

    generation: int
    first_number: int
    number: int
    offset: int
    next_lsn: int
    is_sealed: bool = False


class EndMarkFile:
    """The file with the end mark. What it cannot say for want of a disk is not said."""

    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        self._file: DiskFile | None = None
        self._is_new = False
        self._mark, self._sequence = _read(disk)
        # Of the mark: whether it was written, whether a sync covers that, and how many have.
        self.is_written = False
        self._is_syncing = False
        self._synced_count = 0

    @property
    def generation(self) -> int:
        """The segment of which it speaks; 0 for none."""
        return self._mark.generation if self._mark is not None else 0

    def put(self, mark: EndMark) -> None:
        """Write a mark; it counts when what `targets` returns is synced."""
        if mark != self._mark:
            self._mark, self._synced_count = mark, 0
        sequence = self._sequence + 1
        facts = _FACTS.pack(sequence, *mark)
        with suppress(OSError):
            if self._file is None:
                self._file = self._open()
            octets = _LEAD.pack(_MAGIC, _VERSION, crc32(facts)) + facts
            self._file.write([octets], sequence % _PLACES * _PLACE_BYTES)
            self._sequence = sequence
            self.is_written = True

    def _open(self) -> DiskFile:
        try:
            return self._disk.open(END_NAME)
        except FileNotFoundError:
            self._is_new = True
            return self._disk.create(END_NAME, _PLACES * _PLACE_BYTES)

    def seal(self, mark: EndMark) -> bool:
        """Have a mark in both places; return whether it is. To be asked again after each sync."""
        if mark == self._mark and self._synced_count >= _PLACES:
            return True
        if not (self.is_written or self._is_syncing):
            self.put(mark)
        return False

    def targets(self) -> list[Syncable]:
        """Return what a sync that is begun now has to cover."""
        if not self.is_written or self._file is None:
            return []
        self.is_written, self._is_syncing = False, True
        directory = [self._disk.directory] if self._is_new else []
        self._is_new = False
        return [self._file, *directory]

    def synced(self) -> None:
        """Take note that this sync succeeded."""
        if self._is_syncing:
            self._is_syncing = False
            self._synced_count += 1

    def close(self) -> None:
        """Close the file; nothing is synced."""
        if self._file is not None:
            self._file.close()
            self._file = None


def read_end_mark(disk: ReadableDisk) -> EndMark | None:
    """Return the newest end mark of a directory; None if there is none that can be read."""
    return _read(disk)[0]


def _read(disk: ReadableDisk) -> tuple[EndMark | None, int]:
    """Return the newest mark and its sequence number."""
    try:
        file = disk.open(END_NAME)
    except OSError:
        return None, 0
    try:
        places = [file.read(n * _PLACE_BYTES, _LEAD.size + _FACTS.size) for n in range(_PLACES)]
    except OSError:
        return None, 0
    finally:
        file.close()
    found = [_decode(octets) for octets in places]
    return max((each for each in found if each is not None), key=_newest, default=(None, 0))


def _newest(found: tuple[EndMark | None, int]) -> int:
    return found[1]


def _decode(octets: bytes) -> tuple[EndMark, int] | None:
    if len(octets) < _LEAD.size + _FACTS.size:
        return None
    magic, version, crc = _LEAD.unpack_from(octets)
    facts = octets[_LEAD.size :]
    if (magic, version) != (_MAGIC, _VERSION) or crc32(facts) != crc:
        return None
    sequence, generation, first, number, offset, next_lsn, is_sealed = _FACTS.unpack(facts)
    return EndMark(generation, first, number, offset, next_lsn, bool(is_sealed)), sequence
