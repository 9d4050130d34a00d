"""Records that continue each other, as one log's leaders would write them."""

from __future__ import annotations

from vouchmq.store.replication import record
from vouchmq.store.replication.record import RecordHeader

LOG_ID = b"0123456789abcdef"


class Chain:
    """Messages of a log from its origin on; sequence n is at n - 1."""

    def __init__(self) -> None:
        self.messages = [record.origin(LOG_ID)]
        self.epoch = 0
        self.number = 0
        self.generation = self.offset = self.block = self.lsn = 0
        self._checksum = self._checksum_of(self.messages[0])

    def claim(self, name: str = "a") -> Chain:
        self.epoch += 1
        return self._add(record.CLAIM, record.claim_body(name, bytes(16)))

    def begin(self) -> Chain:
        """Begin a segment with its head."""
        self.generation += 1
        self.offset = 0
        return self.blocks(b"head")

    def blocks(self, body: bytes, part: int = 1, parts: int = 1) -> Chain:
        offset = self.offset
        if part == parts:
            self.block += 1
            self.lsn += 10
        self.offset += len(body)
        return self._add(record.BLOCKS, body, offset, part, parts)

    def beat(self) -> Chain:
        return self._add(record.BEAT, b"")

    def _add(
        self, kind: int, body: bytes, offset: int | None = None, part: int = 1, parts: int = 1
    ) -> Chain:
        self.number += 1
        header = RecordHeader(
            kind,
            *(self._checksum, self.epoch, self.number, self.number - 1),
            *(self.generation, self.offset if offset is None else offset, self.block, self.lsn),
            *(part, parts),
        )
        head, self._checksum = record.seal(header, [body])
        self.messages.append(head + body)
        return self

    @staticmethod
    def _checksum_of(raw: bytes) -> int:
        one = record.open_record(raw)
        assert one is not None
        return one.checksum


def renumbered(raw: bytes, **changes: int) -> bytes:
    """The same record with another header, sealed again: no checksum tells that it was changed."""
    one = record.open_record(raw)
    assert one is not None
    return record.seal(one.header._replace(**changes), [one.body])[0] + one.body
