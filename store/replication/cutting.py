"""Blocks that wait for their record: as many as fit go together, one that is too large in parts.

A record has blocks of one segment, so that a segment's records can be purged by its subject.
"""

from collections import deque
from collections.abc import Iterator, Sequence
from typing import NamedTuple


class Cut(NamedTuple):
    """The body of the next record, and what its header says of it.

    `block` and `lsn` are of the last block that is complete with it.
    """

    generation: int
    offset: int
    block: int
    lsn: int
    part: int
    parts: int
    body: Sequence[bytes]


class _Block(NamedTuple):
    generation: int
    offset: int
    number: int
    lsn: int
    body: Sequence[bytes]
    size: int


class Cutter:
    """Takes blocks in the order of the journal, and gives bodies of up to `limit_bytes`."""

    __slots__ = ("_blocks", "_lsn", "_number", "_parts", "limit_bytes", "size_bytes")

    def __init__(self, limit_bytes: int, number: int, lsn: int) -> None:
        self.limit_bytes = limit_bytes
        # Of what waits, the rest of a block in parts included.
        self.size_bytes = 0
        self._blocks: deque[_Block] = deque()
        self._parts: Iterator[Cut] = iter(())
        # Of the last block that is complete.
        self._number = number
        self._lsn = lsn

    @property
    def next_number(self) -> int:
        """Number of the first block that waits; it has to be one."""
        return self._blocks[0].number

    def add(
        self, generation: int, offset: int, number: int, lsn: int, body: Sequence[bytes]
    ) -> None:
        """Take a block which begins at an offset of a segment."""
        size = sum(map(len, body))
        self._blocks.append(_Block(generation, offset, number, lsn, body, size))
        self.size_bytes += size

    def cut(self) -> Cut:
        """Return the next body; there has to be one, as `size_bytes` tells."""
        cut = next(self._parts, None)
        if cut is None:
            cut = self._join() if self._blocks[0].size <= self.limit_bytes else self._begin_parts()
        self.size_bytes -= sum(map(len, cut.body))
        if cut.part == cut.parts > 1:
            self._blocks.popleft()
        self._number, self._lsn = cut.block, cut.lsn
        return cut

    def _join(self) -> Cut:
        """Return as many whole blocks as fit and stand one behind the other."""
        blocks = self._blocks
        first = last = blocks.popleft()
        body = [*first.body]
        size = first.size
        while (
            blocks
            and blocks[0].generation == first.generation
            and blocks[0].offset == first.offset + size
            and size + blocks[0].size <= self.limit_bytes
        ):
            last = blocks.popleft()
            body += last.body
            size += last.size
        return Cut(first.generation, first.offset, last.number, last.lsn, 1, 1, body)

    def _begin_parts(self) -> Cut:
        # It stays among the blocks until its last part is cut.
        self._parts = self._split(self._blocks[0])
        return next(self._parts)

    def _split(self, block: _Block) -> Iterator[Cut]:
        limit = self.limit_bytes
        parts = -(-block.size // limit)
        number, lsn = self._number, self._lsn
        for part, body in enumerate(_pieces(block.body, limit), 1):
            if part == parts:
                number, lsn = block.number, block.lsn
            offset = block.offset + (part - 1) * limit
            yield Cut(block.generation, offset, number, lsn, part, parts, body)


def _pieces(body: Sequence[bytes], limit: int) -> Iterator[list[bytes]]:
    """Yield the same bytes in pieces of `limit`; each is copied when it is asked for."""
    piece: list[bytes] = []
    room = limit
    for part in body:
        start = 0
        while start < len(part):
            taken = part[start : start + room]
            piece.append(taken)
            start += len(taken)
            room -= len(taken)
            if not room:
                yield piece
                piece, room = [], limit
    if piece:
        yield piece
