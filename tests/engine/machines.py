"""Machines with real directories: they follow the log of a real engine, lead, die and rot.

Journal, recovery, mirror, standby, writer and engine are the product's; who leads is decided by the
test, and a leader confirms to nobody but `confirmed`.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.engine.servers import PATIENCE_S, STREAM
from vouchmq.server.replication.addresses import Server
from vouchmq.server.replication.connection import Options
from vouchmq.server.replication.log import NatsLog
from vouchmq.server.replication.standby import Standby
from vouchmq.store.disk import FileDisk
from vouchmq.store.journal.journal import Journal
from vouchmq.store.journal.segment import segment_name
from vouchmq.store.recovery.recover import Recovered, open_journal
from vouchmq.store.replication import record
from vouchmq.store.replication.log_edge import LogAnswers
from vouchmq.store.replication.log_view import Position
from vouchmq.store.replication.log_writer import EPOCH_LSNS, LogWriter
from vouchmq.store.replication.mirror import Mirror
from vouchmq.store.replication.record import Subjects
from vouchmq.store.replication.watermark import Watermark

SUBJECTS = Subjects(STREAM)
LOG_ID = bytes(range(record.ID_SIZE))
QUEUE = 1


class Machine:
    """One node with its directory; `role` is what answers of the engine go to."""

    def __init__(
        self, name: str, directory: Path, servers: Sequence[Server], segment_bytes: int = 1 << 16
    ) -> None:
        self.name = name
        self.directory = directory
        self.segment_bytes = segment_bytes
        self._loop = asyncio.get_running_loop()
        self._servers = servers
        self._begin()

    def _begin(self) -> None:
        self.disk = FileDisk(self.directory)
        self.engine = NatsLog(
            STREAM, self._servers, Options(name=self.name), self._loop, random.Random()
        )
        self._executor = ThreadPoolExecutor(2)
        self.standby: Standby | None = None
        self.writer: LogWriter | None = None
        self.journal: Journal | None = None
        self.recovered: Recovered | None = None
        self.published: dict[bytes, int] = {}
        self.confirmed: set[bytes] = set()
        self.reasons: list[str] = []
        self.ends = 0
        self.handovers = 0
        self._watermark: Watermark | None = None
        self._changed = asyncio.Event()

    async def until(self, holds: Callable[[], bool]) -> None:
        """Wait for a state of this machine."""
        try:
            async with asyncio.timeout(PATIENCE_S):
                while not holds():
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            progress = self.standby.progress if self.standby is not None else None
            raise TimeoutError(
                f"{self.name}: {progress}, {self.engine.trouble}, {self.reasons}"
            ) from None

    # As a standby.

    def start(self) -> Standby:
        """Follow the log."""
        mirror = Mirror(self.disk, LOG_ID)
        loop, executor = self._loop, self._executor
        self.standby = Standby(self.engine, mirror, SUBJECTS, self, loop, executor)
        self.engine.start(self)
        self.standby.follow()
        return self.standby

    async def has_all(self) -> None:
        """Wait until a reading from now on has ended, with nothing missing."""
        ends = self.ends + 2
        standby = self.standby
        assert standby is not None
        await self.until(
            lambda: bool(self.reasons) or (self.ends >= ends and standby.progress.is_complete)
        )
        assert self.reasons == []

    async def stop(self) -> None:
        """End in order."""
        if self.standby is not None:
            done = asyncio.Event()
            self.standby.stop(done.set)
            await done.wait()
            self.standby = None
        self._close()

    def _close(self) -> None:
        self.engine.stop()
        self._executor.shutdown()
        if self.journal is not None:
            self.journal.close()
            self.journal = None
        self.disk.close()

    async def restart(self) -> Standby:
        """End, and follow again as another process would."""
        await self.stop()
        self._begin()
        return self.start()

    def record_read(self, *, is_handover: bool) -> None:
        self.handovers += is_handover
        self._changed.set()

    def end_read(self, last: int, *, is_complete: bool) -> None:
        del last, is_complete
        self.ends += 1
        self._changed.set()

    def synced(self) -> None:
        pass

    def failed(self, error: OSError) -> None:
        self.reasons.append(str(error))
        self._changed.set()

    # As the leader.

    async def lead(self) -> Recovered:
        """Claim with all that the log has, and recover."""
        standby = self.standby
        assert standby is not None
        while self.writer is None:
            await self.has_all()
            standby.pause(self._claim)
            await self._is_answered()
            if self.writer is None:
                standby.follow()
        done = asyncio.Event()
        standby.stop(done.set)
        await done.wait()
        self.standby = None
        self.journal, self.recovered = open_journal(
            self.disk,
            segment_size_bytes=self.segment_bytes,
            wall_ms=lambda: 1,
            # Summaries are believed wherever there are any.
            whole_bytes=0,
            tap=self.writer,
        )
        self.journal.take(EPOCH_LSNS)
        self._watermark = Watermark(self.journal.written_lsn, self._passed)
        return self.recovered

    async def _is_answered(self) -> None:
        """Wait until the claim stands in the log, or has failed: then there is no writer."""
        await self.until(lambda: self.writer is not None)
        writer = self.writer
        assert writer is not None
        await self.until(lambda: writer.is_leading or writer.has_ended)
        if writer.has_ended:
            self.writer = None

    def _claim(self, at: Position) -> None:
        self.writer = LogWriter(self.engine, self, SUBJECTS, at)
        self.writer.claim(self.name, random.randbytes(record.NONCE_SIZE))
        self._changed.set()

    async def publish(self, raws: Sequence[bytes]) -> None:
        """Write a run in one block, and wait for its confirm."""
        journal, writer = self.journal, self.writer
        assert journal is not None
        assert writer is not None
        first = journal.append_run((QUEUE,), b"tail", [*raws])
        journal.write()
        self.published.update({raw: first + at for at, raw in enumerate(raws)})
        writer.request()
        self._sync()
        await self.until(lambda: self.confirmed.issuperset(raws))

    async def settle(self, raws: Sequence[bytes]) -> None:
        """Have messages gone from the queue, and wait until that is safe."""
        journal, writer = self.journal, self.writer
        assert journal is not None
        assert writer is not None
        journal.settle(QUEUE, [self.published.pop(raw) for raw in raws])
        journal.write()
        number = journal.chain.number - 1
        writer.request()
        await self.until(lambda: writer.at.block >= number)
        self._sync()

    def _sync(self) -> None:
        journal = self.journal
        assert journal is not None
        assert self._watermark is not None
        ticket = journal.begin_sync()
        for target in ticket.targets:
            target.sync()
        for file in journal.end_sync(ticket):
            file.close()
        self._watermark.synced_here(ticket.lsn)

    def _passed(self, lsn: int) -> None:
        self.confirmed.update(raw for raw, at in self.published.items() if at <= lsn)
        self._changed.set()

    # Answers of the engine, to whatever this is.

    @property
    def _role(self) -> LogAnswers:
        role = self.writer or self.standby
        assert role is not None
        return role

    def acked(self, token: int, sequence: int) -> None:
        self._role.acked(token, sequence)

    def refused(self, token: int) -> None:
        self._role.refused(token)

    def lost(self) -> None:
        self._role.lost()

    def found(self, token: int, sequence: int, raw: bytes) -> None:
        self._role.found(token, sequence, raw)

    def ended(self, token: int, last: int) -> None:
        self._role.ended(token, last)

    # LogOwner.

    def claimed(self) -> None:
        self._changed.set()

    def committed(self, block: int, lsn: int) -> None:
        assert self.journal is not None
        assert self._watermark is not None
        self.journal.committed(block)
        self._watermark.committed(lsn)
        self._changed.set()

    def deposed(self, epoch: int) -> None:
        del epoch
        self._changed.set()

    def handed_over(self) -> None:
        self._changed.set()

    def broken(self, reason: str) -> None:
        self.reasons.append(reason)
        self._changed.set()

    # What is on its disk.

    def segments(self) -> dict[str, bytes]:
        """Contents of all segments, by name, without the room at the end that a leader reserves."""
        found = self.directory.glob("*.journal")
        return {path.name: path.read_bytes().rstrip(b"\0") for path in found}

    def differences(self, other: Machine) -> list[str]:
        """Which segments are not the same here and there, with their sizes."""
        own, others = self.segments(), other.segments()
        return [
            f"{name}: {len(own.get(name, b''))} bytes, of {other.name} {len(others.get(name, b''))}"
            for name in sorted({*own, *others})
            if own.get(name) != others.get(name)
        ]

    def corrupt(self, generation: int, offset: int) -> None:
        """Flip a bit of a segment's file; nobody may have it open."""
        with (self.directory / segment_name(generation)).open("r+b") as file:
            file.seek(offset)
            octet = file.read(1)
            file.seek(offset)
            file.write(bytes([octet[0] ^ 0x20]))
