"""One node of a shared log: follows it, claims, leads, and knows when it leads no more.

    Standby ── end_read ─▶ Roles ── claim ─▶ LogWriter ── claimed ─▶ `NodeOwner.recover` ─▶ lead
    NatsLog ── answers ─▶ LogWriter, while there is one, else Standby
    LogWriter ── committed ─▶ Leading: the journal, and what waits for it

What holds: there is one writer from a claim to its end, and until then whoever reads is the
standby. What the log commits is told to the leading broker only, which is there when recovery is
over; recovery happens within one call, so nothing is committed meanwhile without being told.

The writer is the journal's tap itself: each block costs one call. Beside the log standbys report to
the leader where they are (`reports.py`), of which nothing takes part in what was said above. A
leader that waits for a standby compares those reports with what it has committed
(`standby_syncs.py`). Must not know how a broker is started, nor sockets.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol

import structlog

from vouchmq.server.replication.lived_clock import LivedClock
from vouchmq.server.replication.reports import Report, ReportError, Topics, encode, parse_sign
from vouchmq.server.replication.roles import Patience, Role, Roles
from vouchmq.server.replication.standby import Standby
from vouchmq.server.replication.standbys import Standbys
from vouchmq.store.replication import record
from vouchmq.store.replication.log_writer import LogWriter
from vouchmq.store.replication.standby_syncs import StandbySyncs

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Sequence
    from concurrent.futures import Executor

    from vouchmq.server.replication.log import NatsLog
    from vouchmq.server.replication.standby import Progress
    from vouchmq.store.replication.leader_position import LeaderPosition
    from vouchmq.store.replication.log_view import Position
    from vouchmq.store.replication.mirror import Mirror
    from vouchmq.store.replication.record import Subjects

log = structlog.get_logger(__name__)

TICK_S: Final = 0.25
# A tick that comes later than this counts as so much: the loop was busy, and others were not heard.
LATE_TICK_S: Final = 2 * TICK_S
# The writer's own look at the age of a record, in ticks.
WRITER_TICKS: Final = 8
# Between two reports of a standby, and between two looks at who has reported.
REPORT_TICKS: Final = 4
# Between two questions of a leader for the size of the log.
SIZE_TICKS: Final = 40
# Between two writes of a leader's position.
POSITION_TICKS: Final = 20
# So long nothing may be committed, or synced by a standby, until publishers are blocked.
STALLED_S: Final = 2.0
# A record waits for answers to the one before for as long as that took, at most. Timers of the loop
# are no finer than the first of these, and nobody waits longer than the other.
SHORTEST_GATHER_S: Final = 0.001
LONGEST_GATHER_S: Final = 0.008
# A standby that has had all of the log so lately may take over.
CAUGHT_UP_S: Final = 5.0


class Leading(Protocol):
    """The broker that leads."""

    def committed(self, block: int, lsn: int) -> None:
        """The log has everything up to this block and this LSN for good."""

    def synced_on_standby(self, lsn: int) -> None:
        """A standby has everything up to this LSN on its disk."""

    @property
    def safe_block(self) -> int:
        """Up to this one all is synced here and committed."""

    @property
    def is_syncing(self) -> bool:
        """Whether a sync of the journal is under way."""

    @property
    def sync_count(self) -> int:
        """How many have ended."""

    @property
    def segment_bytes(self) -> int:
        """Size of a segment of the journal."""

    def bytes_behind(self, generation: int, offset: int) -> int:
        """How much of the journal was written behind a place."""

    def stalled(self, *, is_stalled: bool) -> None:
        """What is awaited of the log or of a standby has not come for a while, or comes again."""


class NodeOwner(Protocol):
    """Who has the broker started and ended."""

    def recover(self) -> None:
        """This node leads: recover from its directory, with `Node.tap`, then call `Node.lead`."""

    def serve(self) -> None:
        """What recovery has written is committed: let clients in."""

    def end(self, reason: str) -> None:
        """This node leads no more."""

    def fail(self, reason: str) -> None:
        """The log or the disk cannot be trusted: the process has to end."""


class Vitals(Protocol):
    """What a process beside the node's looks at, to give signs while the node's loop cannot."""

    def lived(self, lived_s: float) -> None:
        """The loop is alive, and has been for so long, without the time that it has missed."""


class Node:
    """One node, from its start as a standby to the end of its lead.

    Args:
        name: written into its claims
        address: where it would serve clients, told to the leader; empty if that is not known
        engine: the log; the node starts and stops it
        mirror: the data directory
        subjects: of the log
        topics: subjects beside the log
        owner: starts and ends the broker
        loop: the running event loop
        executor: does the standby's work on files
        patience: how long it waits
        chance: a number from 0 up to 1
        random_bytes: so many of them
        needs_standby: whether, while this node leads, nothing is safe before a standby has it
        vitals: is told that the loop is alive
    """

    def __init__(
        self,
        name: str,
        address: str,
        engine: NatsLog,
        mirror: Mirror,
        subjects: Subjects,
        topics: Topics,
        owner: NodeOwner,
        loop: asyncio.AbstractEventLoop,
        executor: Executor,
        *,
        patience: Patience,
        chance: Callable[[], float],
        random_bytes: Callable[[int], bytes],
        needs_standby: bool = False,
        vitals: Vitals | None = None,
    ) -> None:
        self.roles = Roles(patience, self, chance)
        self.standby = Standby(engine, mirror, subjects, self, loop, executor)
        self.is_stalled = False
        self._name = name
        self._address = address
        self._engine = engine
        self._mirror = mirror
        self._subjects = subjects
        self._topics = topics
        # Those that are heard, while this node leads.
        self._standbys: Standbys | None = None
        self.needs_standby = needs_standby
        self._standby_syncs: StandbySyncs | None = None
        # The last record that it was told of.
        self._noted_number = -1
        # The last one that a standby has synced, as of the last look; since when it is that.
        self._known_synced = -1
        self._standby_waits_since = 0.0
        self._was_standby_late = False
        self._owner = owner
        self._loop = loop
        # By this one others are judged.
        self._clock = LivedClock(loop.time, LATE_TICK_S)
        self._vitals = vitals
        self._random_bytes = random_bytes
        self._writer: LogWriter | None = None
        self._sent_at = 0.0
        self._leading: Leading | None = None
        self._executor = executor
        self._position: LeaderPosition | None = None
        self._is_writing_position = False
        # Recovery has written blocks up to this one.
        self._recovered_block = 0
        self._known_number = -1
        self._sync_count = 0
        self._is_sync_slow = False
        self._ticks = 0
        self._timer: asyncio.TimerHandle | None = None
        self._started_at = 0.0
        self._log_size: dict[str, int] = {}

    @property
    def tap(self) -> LogWriter:
        """Takes the journal's blocks, when this node leads.

        Raises:
            RuntimeError: it does not
        """
        if self._writer is None:
            raise RuntimeError("this node has made no claim")
        return self._writer

    @property
    def at(self) -> Position:
        """Up to where the log is known."""
        return self._writer.at if self._writer is not None else self.standby.progress.at

    @property
    def waiting_bytes(self) -> int:
        """What is in the journal and not known to be committed."""
        return self._writer.waiting_bytes if self._writer is not None else 0

    @property
    def standby_waiting_bytes(self) -> int:
        """What is committed and not known to be synced by a standby; 0 if that is not awaited."""
        return self._standby_syncs.waiting_bytes if self._standby_syncs is not None else 0

    @property
    def resync_count(self) -> int:
        """How often this leader had to read the log to know what became of a record."""
        return self._writer.reading_count if self._writer is not None else 0

    @property
    def log_size(self) -> dict[str, int]:
        """What the stream's leader has said last of its size; empty before."""
        return self._log_size

    @property
    def server(self) -> str:
        """The server of the log that is asked."""
        return self._engine.client.server

    @property
    def trouble(self) -> str:
        """Why the log does not answer, or why this node never leads; "" when all is well."""
        return self.roles.trouble or self._engine.trouble

    def start(self) -> None:
        """Follow the log."""
        self._started_at = self._loop.time()
        self._engine.start(self)
        self._engine.listen(self._topics.commits, self._commit_told)
        self._engine.listen(self._topics.signs, self._sign_given)
        self.standby.follow()
        self._tick()

    def stop(self) -> None:
        """Say nothing more, and hear nothing."""
        if self._timer is not None:
            self._timer.cancel()
        self._engine.stop()

    def lead(self, leading: Leading, recovered_block: int, position: LeaderPosition) -> None:
        """The broker is there; its recovery has written blocks up to this one."""
        self._leading = leading
        self._position = position
        self._recovered_block = recovered_block
        self._standbys = Standbys(
            self._name, (self.standby.progress.log_id or b"").hex(), self._clock.now()
        )
        if self.needs_standby:
            self._standby_syncs = StandbySyncs(self._synced_on_standby)
            self._standby_waits_since = self._clock.now()
        self._engine.listen(self._topics.reports, self._reported)
        self._engine.ask_size(self._size_told)
        self.tap.request()

    def is_all_safe(self) -> bool:
        """Have all that was appended made safe; return whether it is, or never will be."""
        self.tap.request()
        return not self.tap.unsafe_bytes or self.tap.has_ended

    def _tick(self) -> None:
        now = self._clock.look()
        if self._vitals is not None:
            self._vitals.lived(now)
        if self._clock.missed_s:
            self.roles.was_busy(now, self._clock.missed_s)
        self._timer = self._loop.call_later(TICK_S, self._tick)
        self._ticks += 1
        if not self._ticks % REPORT_TICKS:
            self._look_at_reports(now)
        writer = self._writer
        if writer is not None:
            if writer.at.number != self._known_number or not writer.is_under_way:
                self._known_number = writer.at.number
                self.roles.committed(now, is_all=not writer.is_under_way)
            if not self._ticks % WRITER_TICKS:
                writer.tick()
                if self._is_sync_slow:
                    # It sends no beats, and would not hear that somebody else has claimed.
                    writer.look()
            self._look_at_standby_syncs(now, writer)
            self._look_at_stall(now)
        if self._leading is not None:
            self._look_at_sync(now, self._leading)
            if not self._ticks % POSITION_TICKS:
                self._write_position(self._leading)
        self.roles.tick(now)

    # Reports

    @property
    def standbys(self) -> list[dict[str, object]]:
        """The standbys that this node hears, when it leads."""
        return self._standbys.facts(self._clock.now()) if self._standbys is not None else []

    def _look_at_reports(self, now: float) -> None:
        if self._standbys is not None:
            for name in self._standbys.look(now):
                if self._standby_syncs is not None:
                    self._standby_syncs.withdrawn(name)
            if not self._ticks % SIZE_TICKS:
                self._engine.ask_size(self._size_told)
        else:
            self._tell_report()

    def _tell_report(self) -> None:
        progress = self.standby.progress
        if self.roles.role is Role.STANDBY and progress.log_id is not None:
            report = self._report(self._loop.time(), progress, progress.log_id)
            self._engine.tell(self._topics.reports, encode(report))

    def _size_told(self, size: dict[str, int]) -> None:
        self._log_size = size

    @property
    def can_take_over(self) -> bool:
        """Whether this node is a standby that is whole, has the log, and the log answers it."""
        return self.roles.role is Role.STANDBY and self._can_take_over(self._loop.time())

    def _can_take_over(self, now: float) -> bool:
        progress, at = self.standby.progress, self.standby.progress.caught_up_at
        has_log = at is not None and now - at <= CAUGHT_UP_S and not self.roles.trouble
        return has_log and progress.is_whole

    def _report(self, now: float, progress: Progress, log_id: bytes) -> Report:
        at, synced = progress.at, progress.synced
        caught_up_at = progress.caught_up_at
        age_s = now - (self._started_at if caught_up_at is None else caught_up_at)
        return Report(
            log=log_id.hex(),
            node=self._name,
            address=self._address,
            epoch=at.epoch,
            sequence=at.sequence,
            generation=at.generation,
            offset=at.offset,
            synced_sequence=synced.sequence,
            synced_number=synced.number,
            synced_checksum=synced.checksum,
            synced_lsn=synced.lsn,
            is_whole=progress.is_whole,
            can_take_over=self._can_take_over(now),
            lag=progress.lag,
            lag_s=age_s,
        )

    def _reported(self, payload: bytes) -> None:
        """A standby has told where it is, or somebody else has said something."""
        standbys, leading = self._standbys, self._leading
        if standbys is None or leading is None or self.roles.role is not Role.LEADER:
            return
        report = standbys.parse(payload)
        if report is None:
            return
        now = self._clock.now()
        behind = leading.bytes_behind(report.generation, report.offset)
        standbys.heard(
            now,
            report,
            lag=max(0, self.at.sequence - report.sequence),
            lag_bytes=max(0, behind - self.waiting_bytes),
            segment_bytes=leading.segment_bytes,
        )
        self.roles.standby_heard(now, report.node, can_take_over=report.can_take_over)
        syncs = self._standby_syncs
        if syncs is not None and report.is_whole:
            syncs.reported(report.node, report.synced_number, report.synced_checksum)
        elif syncs is not None:
            syncs.withdrawn(report.node)

    # Signs of a leader that is busy

    def _sign_given(self, payload: bytes) -> None:
        """If this is about the leader that this standby follows, that one is alive."""
        progress = self.standby.progress
        if self.roles.role is not Role.STANDBY or progress.log_id is None:
            return
        try:
            sign = parse_sign(payload, progress.log_id.hex())
        except ReportError as error:
            log.debug("replication.sign_ignored", reason=str(error))
            return
        if sign.epoch == progress.at.epoch:
            self.roles.leader_works(self._clock.now(), sign.step_age_s, sign.work_age_s)

    # What a standby has synced, where that is awaited

    def _commit_told(self, _: bytes) -> None:
        """A leader waits for what it has just committed."""
        if self.roles.role is Role.STANDBY:
            self.standby.awaited()

    def synced(self) -> None:
        """See `StandbyOwner`."""
        self._tell_report()

    def _synced_on_standby(self, lsn: int) -> None:
        self.tap.held_bytes = self.standby_waiting_bytes
        if self._leading is not None:
            self._leading.synced_on_standby(lsn)

    def _note_committed(self, syncs: StandbySyncs, writer: LogWriter) -> None:
        self._noted_number = writer.at.number
        syncs.committed(writer.at, writer.committed_bytes)
        writer.held_bytes = syncs.waiting_bytes

    def _look_at_standby_syncs(self, now: float, writer: LogWriter) -> None:
        syncs = self._standby_syncs
        if syncs is None:
            return
        if writer.at.number != self._noted_number:
            # A beat, of which nobody is told; a standby may name it.
            self._note_committed(syncs, writer)
        if not self._awaits_standby or syncs.number != self._known_synced:
            self._known_synced = syncs.number
            self._standby_waits_since = now

    @property
    def _awaits_standby(self) -> bool:
        """Whether a block is committed, whole, and not known to be synced by a standby."""
        syncs = self._standby_syncs
        whole = self.tap.whole if syncs is not None else None
        return syncs is not None and whole is not None and whole.number > syncs.number

    def _is_standby_late(self, now: float) -> bool:
        return self._awaits_standby and now - self._standby_waits_since >= STALLED_S

    def _look_at_sync(self, now: float, leading: Leading) -> None:
        """A sync that is under way at two looks takes long."""
        if not leading.is_syncing or leading.sync_count != self._sync_count:
            self._sync_count = leading.sync_count
            self._is_sync_slow = False
            self.roles.sync_ended()
        elif not self._is_sync_slow:
            self._is_sync_slow = True
            self.roles.sync_began(now)

    def _write_position(self, leading: Leading) -> None:
        """Say up to where the directory has the log, so that the next start need not compare."""
        if self._position is None or self._is_writing_position:
            return
        job = self._position.next_job(self.tap.whole, leading.safe_block)
        if job is not None:
            self._is_writing_position = True
            future = self._loop.run_in_executor(self._executor, job)
            future.add_done_callback(self._position_written)

    def _position_written(self, future: asyncio.Future[None]) -> None:
        self._is_writing_position = False
        try:
            future.result()
        except OSError as error:
            # The one before is still there; a disk that fails is found by the journal's syncs.
            log.warning("replication.position_failed", reason=error.strerror or str(error))

    def _look_at_stall(self, now: float) -> None:
        is_late = self._is_standby_late(now)
        if is_late and not self._was_standby_late:
            log.warning("replication.standby_awaited", waiting_bytes=self.standby_waiting_bytes)
        self._was_standby_late = is_late
        is_stalled = is_late or self.roles.uncommitted_s(now) >= STALLED_S
        if is_stalled != self.is_stalled and self._leading is not None:
            self.is_stalled = is_stalled
            self._leading.stalled(is_stalled=is_stalled)

    # LogAnswers: of the writer, if there is one

    def acked(self, token: int, sequence: int) -> None:
        if self._writer is not None:
            self._writer.acked(token, sequence)

    def refused(self, token: int) -> None:
        if self._writer is not None:
            self._writer.refused(token)

    def lost(self) -> None:
        if self._writer is not None:
            self._writer.lost()
        else:
            self.standby.lost()

    def found(self, token: int, sequence: int, raw: bytes) -> None:
        if self._writer is not None:
            self._writer.found(token, sequence, raw)
        else:
            self.standby.found(token, sequence, raw)

    def ended(self, token: int, last: int) -> None:
        if self._writer is not None:
            self._writer.ended(token, last)
        else:
            self.standby.ended(token, last)

    # LogEdge: what the writer sends is noted

    def _gather(self, job: Callable[[], None]) -> None:
        """Call back when those who were answered have had time to say more."""
        took_s = self._loop.time() - self._sent_at
        self._loop.call_later(min(max(took_s, SHORTEST_GATHER_S), LONGEST_GATHER_S), job)

    def send(self, token: int, subject: str, expected: int, parts: Sequence[bytes]) -> None:
        self._sent_at = self._loop.time()
        self.roles.appended(self._clock.now())
        self._engine.send(token, subject, expected, parts)

    def read_from(self, token: int, sequence: int) -> None:
        self._engine.read_from(token, sequence)

    def purge(self, subject: str) -> None:
        self._engine.purge(subject)

    # StandbyOwner

    def record_read(self, *, is_handover: bool) -> None:
        is_claim = self._mirror.last_kind == record.CLAIM
        self.roles.record_read(is_handover=is_handover, is_claim=is_claim)

    def end_read(self, last: int, *, is_complete: bool) -> None:
        self.roles.end_read(self._clock.now(), last, is_complete=is_complete)

    def failed(self, error: OSError) -> None:
        self._owner.fail(f"cannot write the copy of the log: {error.strerror or error}")

    def broken(self, reason: str) -> None:
        """See `LogOwner` and `StandbyOwner`."""
        self.roles.broken(reason)
        self._owner.fail(reason)

    # RoleActions

    def claim(self) -> None:
        self.standby.pause(self._claim_at)

    def _claim_at(self, at: Position) -> None:
        log.info("replication.claiming", epoch=at.epoch + 1, sequence=at.sequence)
        writer = self._writer = LogWriter(self, self, self._subjects, at, gather=self._gather)
        writer.claim(self._name, self._random_bytes(record.NONCE_SIZE))

    def recover(self) -> None:
        self.standby.stop(self._owner.recover)

    def serve(self) -> None:
        self._owner.serve()

    def beat(self) -> None:
        self.tap.beat()

    def hand_over(self) -> None:
        self.tap.hand_over()

    def end(self, reason: str) -> None:
        self._owner.end(reason)

    # LogOwner

    def claimed(self) -> None:
        self.roles.claimed(self._clock.now())

    def committed(self, block: int, lsn: int) -> None:
        leading = self._leading
        if leading is None:
            return
        if self._standby_syncs is not None:
            if self.tap.whole == self.tap.at:
                # No standby can say that it has a part of a block.
                self._engine.tell(self._topics.commits, b"")
            self._note_committed(self._standby_syncs, self.tap)
        leading.committed(block, lsn)
        if not self.roles.is_serving and block >= self._recovered_block:
            self.roles.recovered()

    def deposed(self, epoch: int) -> None:
        if self.roles.role is Role.CANDIDATE:
            log.info("replication.passed_over", epoch=epoch)
            self._writer = None
            self.roles.passed_over(self._clock.now())
            self.standby.follow()
        else:
            self.roles.deposed(epoch)

    def handed_over(self) -> None:
        self.roles.handed_over()
