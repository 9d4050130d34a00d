"""A node of the model: follows the log, claims, leads, has a disk that is slow, and crashes."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, NamedTuple
from zlib import crc32

from tests.replication.model_log import SUBJECTS, Edge
from vouchmq.store.errors import LogBroken
from vouchmq.store.replication import record
from vouchmq.store.replication.log_view import LogView, Position
from vouchmq.store.replication.log_writer import LogWriter
from vouchmq.store.replication.watermark import Watermark

if TYPE_CHECKING:
    from tests.replication.world import World

# Small, so that blocks are joined and cut.
RECORD_BYTES = 40
_BLOCK = struct.Struct("<IIQ")


class Block(NamedTuple):
    """A block as it was written to a leader's journal; `number` counts those of all nodes."""

    number: int
    generation: int
    offset: int
    lsn: int
    raw: bytes


class Reader:
    """Applies what counts: a checksum over places and bytes of all blocks, and the blocks."""

    def __init__(self, view: LogView) -> None:
        self.view = view
        self.digest = 0
        self.journal: dict[tuple[int, int], bytes] = {}

    def found(self, sequence: int, raw: bytes) -> None:
        one = self.view.found(sequence, raw)
        if one is not None and one.header.kind == record.BLOCKS:
            header = one.header
            self.digest = crc32(one.body, self.digest ^ header.offset ^ header.generation << 16)
            self.journal[header.generation, header.offset] = one.body


class Node:
    """One broker; `writer` is None while it only reads. It is what its writer tells things."""

    writer_class = LogWriter
    view_class = LogView
    watermark_class = Watermark

    def __init__(self, world: World, name: str) -> None:
        self.world = world
        self.name = name
        self.edge = Edge(world.log)
        self.reader = Reader(self.view_class())
        self.writer: LogWriter | None = None
        self.watermark: Watermark | None = None
        self.written: list[Block] = []
        self.told = 0
        self.synced_lsn = 0
        self._generation = self._offset = self._block = self._lsn = 0
        self._tail: Position | None = None

    # As a reader.

    def read(self, share: float) -> None:
        """Read a share of what is behind; all of it with 1."""
        messages = self.world.log.messages
        done = self.reader.view.at.sequence
        last = done + int((len(messages) - done) * share)
        for sequence in range(done + 1, last + 1):
            try:
                self.reader.found(sequence, messages[sequence - 1])
            except LogBroken as error:
                self.broken(str(error))
                return

    def claim(self) -> None:
        """Read to the end, and claim with it (T1)."""
        self.read(1)
        self.write_from(self.reader.view.at)

    def nonce(self) -> bytes:
        return self.world.random.randbytes(record.NONCE_SIZE)

    def write_from(self, at: Position) -> None:
        """Begin to write behind a position, with a claim."""
        self.edge.connection += 1
        self.writer = self.writer_class(
            *(self.edge, self, SUBJECTS, at), record_bytes=RECORD_BYTES, gather=self.edge.gather
        )
        self.edge.answers = self.writer
        self._tail = at
        self.writer.claim(self.name, self.nonce())

    # As the leader.

    def append(self, size: int) -> None:
        """Write a block, which is in the page cache and no further."""
        writer = self.writer
        if writer is None or not writer.is_leading or writer.has_ended:
            return
        self.world.block_count += 1
        self._block += 1
        self._lsn += 1
        raw = _BLOCK.pack(self.world.block_count, size, self._lsn) + bytes(size)
        block = Block(self.world.block_count, self._generation, self._offset, self._lsn, raw)
        self._offset += len(raw)
        self.written.append(block)
        writer.appended(block.generation, block.offset, self._block, block.lsn, [raw[:9], raw[9:]])

    def sync(self) -> None:
        """Sync everything that was written until now."""
        if self.watermark is not None:
            self.synced_lsn = self._lsn
            self.watermark.synced_here(self._lsn)

    def crash(self) -> None:
        """Lose everything but what was read, or that too."""
        self.stop()
        if self.world.random.random() < 0.3:
            self.reader = Reader(self.view_class())

    def stop(self) -> None:
        if self.writer is not None:
            self.world.reading_count += self.writer.reading_count
        self.edge.connection += 1
        self.edge.answers = self.writer = self.watermark = None
        self.written = []

    # As the owner of its writer.

    def claimed(self) -> None:
        writer, tail = self.writer, self._tail
        assert writer is not None
        assert tail is not None
        self.world.took_over(self, writer.at)
        self._generation = tail.generation + 1
        self._offset = 0
        self._block, self._lsn = tail.block, tail.lsn + 100
        self.written = []
        self.told = 0
        self.synced_lsn = self._lsn
        self.watermark = self.watermark_class(self._lsn, self.passed)
        self.append(2)
        writer.request()

    def committed(self, block: int, lsn: int) -> None:
        assert block <= self._block
        if self.watermark is not None:
            self.watermark.committed(lsn)

    def passed(self, lsn: int) -> None:
        """Everything up to this LSN may be confirmed and delivered."""
        writer = self.writer
        assert writer is not None
        while self.told < len(self.written) and self.written[self.told].lsn <= lsn:
            block = self.written[self.told]
            assert block.lsn <= self.synced_lsn, f"{self.name} told {block.lsn} before its own sync"
            self.world.promised.append((writer.at.epoch, block))
            self.told += 1

    def deposed(self, epoch: int) -> None:
        del epoch
        self.stop()

    def handed_over(self) -> None:
        self.stop()

    def broken(self, reason: str) -> None:
        raise AssertionError(f"{self.name}: {reason}")
