"""Nodes that follow, claim and lead over a real engine, with no journal but what is in memory.

Roles, the writer, the reader and the engine are the product's; only recovery and clients are not
here. A leader appends blocks as fast as they are committed, and notes what it was told.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from dataclasses import dataclass, field

from tests.engine.servers import STREAM
from vouchmq.server.replication.addresses import Server
from vouchmq.server.replication.connection import Options
from vouchmq.server.replication.log import NatsLog
from vouchmq.server.replication.roles import Patience, Role, Roles
from vouchmq.store.errors import LogBroken
from vouchmq.store.replication import record
from vouchmq.store.replication.log_view import LogView
from vouchmq.store.replication.log_writer import LogWriter
from vouchmq.store.replication.record import Record, Subjects

SUBJECTS = Subjects(STREAM)
LOG_ID = bytes(range(record.ID_SIZE))
READ_AGAIN_S = 0.1
TICK_S = 0.25
# Others have read a handover by then.
RESTART_S = 2.0
# The writer's own look at the age of a record, in ticks.
WRITER_TICKS = 8


@dataclass
class History:
    """What all nodes have been told."""

    # Blocks that leaders may have confirmed: epoch and contents.
    promised: list[tuple[int, bytes]] = field(default_factory=list)
    leads: list[str] = field(default_factory=list)
    ends: list[str] = field(default_factory=list)
    passed_over: int = 0
    broken: list[str] = field(default_factory=list)


class Node:
    """One node; when its lead has ended it begins again as a standby, as a process would."""

    def __init__(
        self, name: str, rank: int, servers: Sequence[Server], history: History, patience_s: float
    ) -> None:
        self.name = name
        self._loop = asyncio.get_running_loop()
        self._chance = random.Random(name)
        self._history = history
        self._patience = Patience(patience_s, rank)
        self._servers = servers
        self._handles: list[asyncio.TimerHandle] = []
        self._begin()

    def _begin(self) -> None:
        self.engine = NatsLog(
            STREAM, self._servers, Options(name=self.name), self._loop, self._chance
        )
        self.roles = Roles(self._patience, self, self._chance.random)
        self.view = LogView(log_id=LOG_ID)
        self.writer: LogWriter | None = None
        # Readings of its own are told from those of its writers, which count from 1.
        self._token = 1 << 32
        self._ticks = 0
        self._generation = self._offset = self._number = self._lsn = 0
        self._blocks: dict[int, bytes] = {}
        self._told = 0

    def start(self) -> None:
        """Follow the log from its beginning."""
        self.engine.start(self)
        self._read()
        self._later(TICK_S, self._tick)

    def stop(self) -> None:
        """End without a word, as a killed process does."""
        for handle in self._handles:
            handle.cancel()
        self._handles.clear()
        self.engine.stop()

    def restart(self) -> None:
        """Kill it, and start another."""
        self.stop()
        self._begin()
        self.start()

    @property
    def is_leading(self) -> bool:
        """True when it lets clients in."""
        return self.roles.is_serving

    def _later(self, delay_s: float, call: object) -> None:
        self._handles = [each for each in self._handles if not each.cancelled()][-50:]
        assert callable(call)
        self._handles.append(self._loop.call_later(delay_s, call))

    # LogAnswers: of the writer if there is one, else of the reader

    def acked(self, token: int, sequence: int) -> None:
        if self.writer is not None:
            self.writer.acked(token, sequence)

    def refused(self, token: int) -> None:
        if self.writer is not None:
            self.writer.refused(token)

    def lost(self) -> None:
        if self.writer is not None:
            self.writer.lost()
        else:
            self._read()

    def found(self, token: int, sequence: int, raw: bytes) -> None:
        if self.writer is not None:
            self.writer.found(token, sequence, raw)
        if self.writer is not None or token != self._token:
            return
        try:
            one = self.view.found(sequence, raw)
        except LogBroken as error:
            self.broken(str(error))
            return
        if one is not None:
            self.roles.record_read(is_handover=one.header.kind == record.HANDOVER)

    def ended(self, token: int, last: int) -> None:
        if self.writer is not None:
            self.writer.ended(token, last)
        if self.writer is not None or token != self._token:
            return
        try:
            self.view.ended(last)
        except LogBroken as error:
            self.broken(str(error))
            return
        self.roles.end_read(self._loop.time(), last, is_complete=not self.view.jumps)
        if self.roles.role is Role.STANDBY:
            self._later(READ_AGAIN_S, self._read)

    def _read(self) -> None:
        if self.writer is None:
            self._token += 1
            self.engine.read_from(self._token, self.view.at.sequence + 1)

    def _tick(self) -> None:
        self._later(TICK_S, self._tick)
        self.roles.tick(self._loop.time())
        self._ticks += 1
        if self.writer is not None and not self._ticks % WRITER_TICKS:
            self.writer.tick()

    # RoleActions

    def claim(self) -> None:
        self.writer = LogWriter(self.engine, self, SUBJECTS, self.view.at)
        self.writer.claim(self.name, self._chance.randbytes(record.NONCE_SIZE))

    def recover(self) -> None:
        at = self.view.at
        self._generation, self._offset = at.generation + 1, 0
        self._number, self._lsn = at.block, at.lsn + 1000
        self._told = at.block
        self._append()

    def serve(self) -> None:
        assert self.writer is not None
        self._history.leads.append(f"{self.name} in epoch {self.writer.at.epoch}")
        self._append()

    def beat(self) -> None:
        if self.writer is not None:
            self.writer.beat()

    def hand_over(self) -> None:
        if self.writer is not None:
            self.writer.hand_over()

    def end(self, reason: str) -> None:
        self._history.ends.append(f"{self.name}: {reason}")
        self._later(RESTART_S, self.restart)

    def _append(self) -> None:
        writer = self.writer
        if writer is None or writer.has_ended:
            return
        self._number += 1
        self._lsn += 1
        raw = f"{self.name} {writer.at.epoch} {self._number} ".encode() + self._chance.randbytes(99)
        self._blocks[self._number] = raw
        self.roles.appended(self._loop.time())
        writer.appended(self._generation, self._offset, self._number, self._lsn, [raw])
        self._offset += len(raw)
        writer.request()

    # LogOwner

    def claimed(self) -> None:
        self.roles.claimed(self._loop.time())

    def committed(self, block: int, lsn: int) -> None:
        writer = self.writer
        assert writer is not None
        for number in range(self._told + 1, block + 1):
            self._history.promised.append((writer.at.epoch, self._blocks.pop(number)))
        self._told = block
        self.roles.committed(self._loop.time(), is_all=not writer.waiting_bytes)
        if not self.roles.is_serving:
            self.roles.recovered()
        else:
            self._later(0.005, self._append)

    def deposed(self, epoch: int) -> None:
        if self.roles.role is Role.CANDIDATE:
            self._history.passed_over += 1
            self.roles.passed_over(self._loop.time())
            self.writer = None
            self._later(0, self._read)
        else:
            self.roles.deposed(epoch)

    def handed_over(self) -> None:
        self.roles.handed_over()

    def broken(self, reason: str) -> None:
        self._history.broken.append(f"{self.name}: {reason}")
        self.roles.broken(reason)


def audit(history: History, log: Sequence[tuple[int, bytes]]) -> list[str]:
    """What is wrong with what nodes were told, by what the log holds at the end."""
    wrong = list(history.broken)
    view = LogView(log_id=LOG_ID)
    blocks: list[tuple[int, bytes]] = []
    try:
        for sequence, raw in log:
            one = view.found(sequence, raw)
            if one is not None and one.header.kind == record.BLOCKS:
                blocks += _blocks_of(one)
    except LogBroken as error:
        wrong.append(str(error))
    if view.void_count:
        wrong.append(f"{view.void_count} records of earlier epochs stand behind a claim")
    places = {block: place for place, block in enumerate(blocks)}
    if len(places) < len(blocks):
        wrong.append("a block stands in the log twice")
    lost = [block for block in history.promised if block not in places]
    if lost:
        wrong.append(f"{len(lost)} promised blocks are not in the log, the first is {lost[0]}")
    # Of one leader: one that was deaf may learn of its last record when another leads already.
    told: dict[int, list[int]] = {}
    for block in history.promised:
        told.setdefault(block[0], []).append(places.get(block, -1))
    for epoch, found in told.items():
        if found != sorted(found):
            wrong.append(f"promised blocks of epoch {epoch} stand in another order")
    return wrong


def _blocks_of(one: Record) -> list[tuple[int, bytes]]:
    """The blocks in a record, each with 99 bytes of chance behind its third blank."""
    blocks: list[tuple[int, bytes]] = []
    rest = one.body
    while rest:
        begin = len(b" ".join(rest.split(b" ", 3)[:3])) + 1
        blocks.append((one.header.epoch, rest[: begin + 99]))
        rest = rest[begin + 99 :]
    return blocks
