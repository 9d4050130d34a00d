"""Blocks of one segment read back a window at a time, without the contents nobody asks for.

It knows where a block's sections are, not what they mean for anybody.
"""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING, Final, NamedTuple

from vouchmq.store.errors import UnsupportedFormat
from vouchmq.store.journal import records
from vouchmq.store.journal.records import BlockHeader, Section

if TYPE_CHECKING:
    from collections.abc import Iterator

    from vouchmq.store.disk import DiskFile
    from vouchmq.store.recovery.scan import Extent

# What is read at once while walking over small blocks, and of each block among large ones.
WALK_BYTES: Final = 64 * 1024
GLANCE_BYTES: Final = 4 * 1024
# What is read at once of a block that is kept as a whole.
PART_BYTES: Final = 64 * 1024


class Window:
    """A part of a file in memory; what lies outside is read when it is asked for."""

    __slots__ = ("_file", "base", "octets")

    def __init__(self, file: DiskFile) -> None:
        self._file = file
        self.base = 0
        self.octets = b""

    def load(self, offset: int, size: int) -> None:
        """Read ahead; a part of it may be unreadable, which is none of our business yet."""
        self.base = offset
        try:
            self.octets = self._file.read(offset, size)
        except OSError:
            self.octets = b""

    def covers(self, start: int, end: int) -> bool:
        """Whether everything between two offsets is in memory."""
        return self.base <= start and end <= self.base + len(self.octets)

    def read(self, start: int, end: int) -> bytes:
        """Return the octets between two offsets.

        Raises:
            OSError: they cannot be read
        """
        if self.covers(start, end):
            return self.octets[start - self.base : end - self.base]
        data = self._file.read(start, end - start)
        if len(data) != end - start:
            raise OSError(errno.EIO, "the file ends too early")
        return data


class Parts(Window):
    """One block in memory, in parts that are never joined: that would hold up others."""

    __slots__ = ("_parts",)

    def __init__(self, file: DiskFile, offset: int) -> None:
        super().__init__(file)
        self.base = offset
        self._parts: list[bytes] = []

    def add(self, part: bytes) -> None:
        """Take the next part; all but the last have `PART_BYTES`."""
        if not self._parts:
            self.octets = part
        self._parts.append(part)

    def read(self, start: int, end: int) -> bytes:
        """Return the octets between two offsets of the block."""
        low, first = divmod(start - self.base, PART_BYTES)
        high, last = divmod(end - self.base, PART_BYTES)
        if low == high:
            return self._parts[low][first:last]
        found = [self._parts[low][first:], *self._parts[low + 1 : high]]
        if last:
            found.append(self._parts[high][:last])
        return b"".join(found)


class Block(NamedTuple):
    """One block: its sections by kind, their bounds being offsets in the file."""

    offset: int
    end: int
    header: BlockHeader
    sections: dict[int, Section]

    def body(self, window: Window, kind: int) -> bytes:
        """Return the octets of one section, none if the block has no such section."""
        section = self.sections.get(kind)
        return window.read(section.start, section.end) if section is not None else b""


def read_block(window: Window, offset: int, generation: int, salt: int) -> Block | None:
    """Return the block at `offset`, or None if there is none of this segment.

    Raises:
        OSError: it cannot be read
        UnsupportedFormat: it has a section that this program does not know and may not skip
    """
    start = offset + records.HEADER_SIZE
    if window.covers(offset, start):
        header = records.read_header(window.octets, offset - window.base, generation, salt)
    else:
        header = records.read_header(window.read(offset, start), 0, generation, salt)
    if header is None:
        return None
    end = start + header.length
    return Block(offset, end, header, _sections(window, start, end))


def find_block(window: Window, offset: int, generation: int, salt: int) -> Block | None:
    """Return the same of octets that nobody has checked: None also if they are not readable so.

    Whether they are damaged or a newer program's is for the next start to say, which checks them.

    Raises:
        OSError: it cannot be read
    """
    try:
        return read_block(window, offset, generation, salt)
    except UnsupportedFormat:
        return None


def _sections(window: Window, start: int, end: int) -> dict[int, Section]:
    sections = {}
    octets, base = window.octets, window.base
    is_covered = window.covers(start, end)
    while start < end:
        body = start + records.SECTION_SIZE
        if is_covered or window.covers(start, body):
            kind, count, length = records.read_section_header(octets, start - base)
        else:
            kind, count, length = records.read_section_header(window.read(start, body), 0)
        start = body + length
        if records.is_known(kind):
            sections[kind] = Section(count, body, start)
    return sections


def walk(window: Window, extent: Extent) -> Iterator[Block]:
    """Yield the blocks of an extent, which a scan has found to be whole.

    Raises:
        OSError: one cannot be read any more
    """
    offset = extent.start
    size = WALK_BYTES
    while offset < extent.end:
        if not window.covers(offset, min(offset + GLANCE_BYTES, extent.end)):
            window.load(offset, min(size, extent.end - offset))
        block = read_block(window, offset, extent.generation, extent.salt)
        if block is None:
            raise OSError(errno.EIO, f"the block at offset {offset} is not there any more")
        yield block
        offset = block.end
        size = GLANCE_BYTES if block.end - block.offset > WALK_BYTES // 2 else WALK_BYTES
