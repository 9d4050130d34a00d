"""Bugs that somebody could write, each planted into a node or its writer.

Every one of them leaves out a rule of `log_writer.py`, `log_view.py` or `watermark.py`.
"""

from __future__ import annotations

from collections.abc import Sequence

from tests.replication.model_log import SUBJECTS, Edge
from tests.replication.nodes import Node
from vouchmq.store.replication import record
from vouchmq.store.replication.log_view import LogView, Position
from vouchmq.store.replication.log_writer import LogWriter, _UnderWay
from vouchmq.store.replication.record import Record, RecordHeader
from vouchmq.store.replication.watermark import Watermark


class TwoUnderWay(LogWriter):
    """A second record is sent before the first is acknowledged, aimed behind it."""

    _second: _UnderWay | None = None

    def _next(self) -> None:
        first, cutter = self._under_way, self._cutter
        if first is None or self._second is not None or not self.is_leading:
            super()._next()
        elif cutter.size_bytes and not self.has_ended:
            generation, offset, block, lsn, part, parts, body = cutter.cut()
            header = RecordHeader(
                record.BLOCKS,
                *(first.checksum, self.at.epoch, first.header.number + 1, self.at.number),
                *(generation, offset, block, lsn, part, parts),
            )
            self._second = second = _UnderWay(header, body, SUBJECTS.of(header))
            self._token += 1
            second.first_token = self._token
            self._edge.send(self._token, second.subject, self.at.sequence + 1, second.parts)

    def _commit(self, under_way: _UnderWay) -> None:
        second, self._second = self._second, None
        super()._commit(under_way)
        if second is not None and self._under_way is None:
            self._under_way = second


class AnyAckCounts(LogWriter):
    """An acknowledgement with another sequence counts."""

    def acked(self, token: int, sequence: int) -> None:
        del sequence
        super().acked(token, self.at.sequence + 1)


class OldAckCounts(LogWriter):
    """An acknowledgement of an earlier record counts for the one under way."""

    def acked(self, token: int, sequence: int) -> None:
        del token, sequence
        super().acked(self._token, self.at.sequence + 1)


class NoReading(LogWriter):
    """What was refused is sent again, aimed at where the log ends now."""

    def refused(self, token: int) -> None:
        under_way = self._under_way
        if under_way is not None and token >= under_way.first_token and not self.has_ended:
            assert isinstance(self._edge, Edge)
            end = len(self._edge.log.messages)
            self._view.at = self._view.at._replace(sequence=max(end, self.at.sequence))
            self._send(under_way)


class RefusedIsLost(LogWriter):
    """What was refused counts as not being in the log, and the next record takes its place."""

    def refused(self, token: int) -> None:
        under_way = self._under_way
        if under_way is not None and token >= under_way.first_token and not self.has_ended:
            self._under_way = None
            self._next()


class QuietTicks(LogWriter):
    """The time-out is one of quiet: whatever is appended puts it off."""

    def appended(
        self, generation: int, offset: int, number: int, lsn: int, body: Sequence[bytes]
    ) -> None:
        super().appended(generation, offset, number, lsn, body)
        if self._under_way is not None:
            self._under_way.ticks = 0


class EveryEpoch(LogView):
    """Records of earlier epochs are applied as well."""

    def found(self, sequence: int, raw: bytes) -> Record | None:
        is_new = sequence > self.at.sequence
        return super().found(sequence, raw) or (record.open_record(raw) if is_new else None)


class SyncedIsEnough(Watermark):
    """What is synced here is promised."""

    def synced_here(self, lsn: int) -> None:
        super().committed(lsn)
        super().synced_here(lsn)


class CommittedIsEnough(Watermark):
    """What is committed is promised, whatever this node's disk says."""

    def committed(self, lsn: int) -> None:
        super().synced_here(lsn)
        super().committed(lsn)


class ClaimsUnread(Node):
    """A claim is aimed at the log's end, to which the node has not read."""

    def claim(self) -> None:
        self.read(0.5 if self.reader.view.at.sequence else 1)
        self.write_from(self.reader.view.at._replace(sequence=len(self.world.log.messages)))


class ClaimsBehind(Node):
    """A claim continues the chain where the log ends, of which the node has applied a part."""

    def claim(self) -> None:
        self.read(0.5)
        view = LogView()
        for sequence, raw in enumerate(self.world.log.messages, 1):
            view.found(sequence, raw)
        self.write_from(view.at)


class ClaimsAlike(Node):
    """Claims have neither name nor chance: those of one epoch are told apart by content only."""

    def write_from(self, at: Position) -> None:
        name, self.name = self.name, ""
        super().write_from(at)
        self.name = name

    def nonce(self) -> bytes:
        return bytes(record.NONCE_SIZE)


class DeliversAtOnce(Node):
    """Consumers get messages before they are committed."""

    def append(self, size: int) -> None:
        before = len(self.written)
        super().append(size)
        for block in self.written[before:]:
            assert self.writer is not None
            self.world.promised.append((self.writer.at.epoch, block))


def _with_writer(writer: type[LogWriter]) -> type[Node]:
    return type(writer.__name__, (Node,), {"writer_class": writer})


PLANTED: dict[str, type[Node]] = {
    **{
        writer.__name__: _with_writer(writer)
        for writer in (
            *(TwoUnderWay, AnyAckCounts, OldAckCounts, NoReading, RefusedIsLost, QuietTicks),
        )
    },
    "EveryEpoch": type("EveryEpochNode", (Node,), {"view_class": EveryEpoch}),
    **{
        watermark.__name__: type(watermark.__name__, (Node,), {"watermark_class": watermark})
        for watermark in (SyncedIsEnough, CommittedIsEnough)
    },
    **{node.__name__: node for node in (ClaimsUnread, ClaimsBehind, ClaimsAlike, DeliversAtOnce)},
}
