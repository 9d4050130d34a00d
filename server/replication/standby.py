"""A standby: brings what the log has into a mirror, off the event loop.

    follow ─▶ damaged segments, by their subjects ─▶ the log, from `Mirror.next_sequence` on
    found … ─▶ slices ─▶ the worker: Mirror.found, ended, sync ─▶ owner.record_read, end_read
    too much waits for the worker ─▶ the reading is held

What holds:

- The mirror is touched by one job at a time, and by nobody else while that runs. So the executor
  may have a thread for it, and the event loop waits for no disk.
- The next reading begins when all of the one before is applied. So whatever becomes of connections,
  it goes on at the mirror's own position, and what comes late has a token that nobody waits for.
- `end_read` is told when everything up to that end is applied. Silence can be measured by it.
- Summaries of full segments are made beside all that, one at a time, in another thread. One takes
  up to 4 s (64 MiB of small messages), and a leader may be waiting.
- A sync follows a second after the first record that is not synced, or `SYNC_BYTES`. Behind a
  reading that a leader has asked for (`awaited`) it follows at once, and the owner is told.

A segment that cannot be healed is tried again from time to time: the log may be damaged itself, or
an empty replica has answered. That of the position only before anything is applied behind it, as
its healing stops there.

What was tried: to apply each message within the call that brings it. A record of 512 KiB takes a
millisecond to check and write, a sync of 64 MiB a second on a slow disk, and meanwhile the servers
get no answer to their pings.

Must not know who leads or should: `roles.py`.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final, Protocol, TypeVar

import structlog

from vouchmq.store.errors import LogBroken, OtherLog, UnsupportedFormat
from vouchmq.store.journal.segment import segment_name
from vouchmq.store.replication import record

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable
    from concurrent.futures import Executor

    from vouchmq.store.replication.log_view import Position
    from vouchmq.store.replication.mirror import Mirror
    from vouchmq.store.replication.own_segments import Healing
    from vouchmq.store.replication.record import Subjects

log = structlog.get_logger(__name__)

T = TypeVar("T")

# Between the end of a reading and the next one.
READ_AGAIN_S: Final = 0.1
SYNC_S: Final = 1.0
SYNC_BYTES: Final = 64 * 1024 * 1024
# One job applies about so much.
SLICE_BYTES: Final = 4 * 1024 * 1024
# While more than this waits for the worker, no further batch is asked for.
HOLD_BYTES: Final = 16 * 1024 * 1024
# Before a segment that could not be healed is tried again.
HEAL_AGAIN_S: Final = 10.0


class ReadableLog(Protocol):
    """What is asked of the engine: `log.NatsLog`."""

    def read_from(self, token: int, sequence: int) -> None:
        """Read all from there on; answered by `found` for each message, then `ended`."""

    def read_subject(self, token: int, subject: str) -> None:
        """Read all of a subject, answered in the same way."""

    def hold_reading(self) -> None:
        """Go on with no further batch."""

    def resume_reading(self) -> None:
        """Go on."""


class StandbyOwner(Protocol):
    """Who is told how it goes; nothing follows on one of the last two but `stop`."""

    def record_read(self, *, is_handover: bool) -> None:
        """Records that count were read and applied; whether the last of them is a handover."""

    def end_read(self, last: int, *, is_complete: bool) -> None:
        """Everything up to the end that the stream's leader has told is applied.

        Args:
            last: the sequence with which the log ended
            is_complete: nothing is damaged or missing, so that this node may claim
        """

    def synced(self) -> None:
        """All that was applied is synced, and a leader waits for that."""

    def broken(self, reason: str) -> None:
        """The log has lost something, or is another one: this node must not lead."""

    def failed(self, error: OSError) -> None:
        """The disk has refused: the process has to end."""


@dataclass(slots=True)
class Progress:
    """How far a standby is; times are those of the loop's clock.

    Args:
        at: up to where the log was read and applied
        damaged: generations of segments that are to be read again
        end: the sequence with which the log ended when that was asked last
        synced: up to where all is synced, and the directory says so
        log_id: of the log, once that is known
        is_whole: nothing of what was applied is damaged or missing
        caught_up_at: when the log was applied to its end last; None before
        heard_at: when a record of a leader was applied last
        leader: who has made the last claim that was read; empty if none was since the start
        is_handed_over: nothing has followed on a handover
        is_complete: this node has all that the log had, so that it may claim
        healed_count: segments that were read again and are whole
        read_bytes: of records
    """

    at: Position
    damaged: tuple[int, ...]
    end: int
    synced: Position
    log_id: bytes | None = None
    is_whole: bool = False
    caught_up_at: float | None = None
    heard_at: float | None = None
    leader: str = ""
    is_handed_over: bool = False
    is_complete: bool = False
    healed_count: int = 0
    read_bytes: int = 0

    @property
    def lag(self) -> int:
        """How many messages of the log are not applied."""
        return max(0, self.end - self.at.sequence)

    @property
    def synced_sequence(self) -> int:
        """Up to which message of the log all is synced."""
        return self.synced.sequence


class _Jobs:
    """What is done to the mirror: one at a time, in whatever thread."""

    def __init__(self, mirror: Mirror) -> None:
        self._mirror = mirror
        self._healing: Healing | None = None

    def apply(self, messages: list[tuple[int, bytes]]) -> None:
        """Take in messages of the log."""
        found = self._mirror.found
        for sequence, raw in messages:
            found(sequence, raw)

    def put(self, generation: int, messages: list[tuple[int, bytes]]) -> None:
        """Write messages of a segment that is read again, the first ones into a new file."""
        healing = self._healing
        if healing is None:
            healing = self._healing = self._mirror.heal(generation)
        for _, raw in messages:
            one = record.open_record(raw)
            # What is no record leaves a hole, which is found when all has come.
            if one is not None:
                healing.put(one.header.offset, one.body)

    def healed(self, generation: int) -> bool:
        """All of a segment has come: put it in its place if it is whole."""
        self.put(generation, [])
        healing, self._healing = self._healing, None
        return healing is not None and self._mirror.healed(healing)

    def drop_healing(self) -> None:
        """Begin that again with an empty file."""
        if self._healing is not None:
            self._healing.file.close()
            self._healing = None

    def close(self) -> None:
        """Close all files."""
        self.drop_healing()
        self._mirror.close()


class Standby:
    """Follows a log with a mirror: a `LogAnswers`, which the engine has to be started with.

    All calls and all that is told to `owner` are on the event loop; only the jobs are not.

        standby = Standby(engine, mirror, subjects, owner, loop, executor)
        engine.start(standby)        # or whoever passes the answers on
        standby.follow()
        standby.pause(claim)         # synced, and the mirror rests: `claim` gets the position
        standby.follow()             # the claim has failed
        standby.stop(recover)        # the claim is committed: the mirror's files are closed

    Args:
        engine: where the log is
        mirror: an open one
        subjects: names of what a segment's records have
        owner: is told how it goes
        loop: the running event loop
        executor: runs the jobs, one at a time, and beside them summaries: two threads
    """

    def __init__(
        self,
        engine: ReadableLog,
        mirror: Mirror,
        subjects: Subjects,
        owner: StandbyOwner,
        loop: asyncio.AbstractEventLoop,
        executor: Executor,
    ) -> None:
        self._engine = engine
        self._mirror = mirror
        self._subjects = subjects
        self._owner = owner
        self._loop = loop
        self._executor = executor
        self._is_following = False
        self._has_failed = False
        # A job is under way.
        self._is_working = False
        # Of readings; those of a leader's writer count from 1.
        self._token = 1 << 32
        self._is_reading = False
        # The next reading waits for nothing.
        self._is_urgent = False
        self._waiting: list[tuple[int, bytes]] = []
        self._waiting_bytes = 0
        # The end of a reading of which everything has come, and when.
        self._ended: tuple[int, float] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._first_generation = mirror.at.generation
        self._jobs = _Jobs(mirror)
        self._to_heal = list(mirror.damaged)
        self._heal_at = 0.0
        self._may_heal = False
        self._may_summarize = self._is_summarizing = False
        # The segment that is being read again, or 0.
        self._healing = 0
        # Those of which it was said that this failed.
        self._given_up: set[int] = set()
        self._reading_bytes = 0
        self._is_held = False
        self._unsynced_bytes = 0
        self._unsynced_since = 0.0
        self._is_dirty = self._is_sync_due = False
        # How often a leader has asked for what it has committed: until now, at the beginning of the
        # present reading, of what is applied, and of what the owner was told to be synced.
        self._asked = self._asked_read = self._asked_applied = self._asked_told = 0
        # What is called when nothing is under way any more; whether only if all went well.
        self._then: tuple[Callable[[], None], bool] | None = None
        # Copied from the mirror between two jobs, so that it may be read at any time.
        at = mirror.at
        self.progress = Progress(at, tuple(mirror.damaged), at.sequence, mirror.synced)

    # What the node asks for.

    def follow(self) -> None:
        """Read the log, and go on until `pause` or `stop`."""
        self._is_following = self._is_urgent = True
        self._go_on()

    def awaited(self) -> None:
        """A leader has committed something, and waits until it is synced here."""
        self._asked += 1
        if self._is_following:
            self._is_urgent = True
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None
            self._go_on()

    def pause(self, done: Callable[[Position], None]) -> None:
        """Read no more, sync what was applied; `done` gets the position up to which all is here."""
        self._rest(lambda: done(self._mirror.at), needs_success=True)

    def stop(self, done: Callable[[], None]) -> None:
        """Read no more, sync, close the mirror's files, call `done`; also where it has failed."""

        def close() -> None:
            self._jobs.close()
            done()

        self._rest(close, needs_success=False)

    def _rest(self, then: Callable[[], None], *, needs_success: bool) -> None:
        self._is_following = self._may_summarize = False
        self._drop_reading()
        self._is_sync_due = self._is_dirty
        self._then = then, needs_success
        self._go_on()

    # LogAnswers

    def acked(self, token: int, sequence: int) -> None:
        """Of a writer, nothing to this one."""

    def refused(self, token: int) -> None:
        """Of a writer, nothing to this one."""

    def lost(self) -> None:
        """The connection is gone: what has come is applied and synced, then the rest is read."""
        self._is_sync_due = self._is_dirty
        if self._healing:
            # From the beginning of that segment.
            self._drop_reading()
        self._is_reading = False
        self._is_urgent = True
        self._go_on()

    def found(self, token: int, sequence: int, raw: bytes) -> None:
        """A message of the present reading."""
        if token != self._token or not self._is_reading:
            return
        size = len(raw)
        self._waiting.append((sequence, raw))
        self._waiting_bytes += size
        self._reading_bytes += size
        if self._waiting_bytes >= SLICE_BYTES:
            if self._waiting_bytes >= HOLD_BYTES and not self._is_held:
                self._is_held = True
                self._engine.hold_reading()
            self._go_on()

    def ended(self, token: int, last: int) -> None:
        """The present reading is complete."""
        if token == self._token and self._is_reading:
            self._is_reading = False
            self._ended = last, self._loop.time()
            self._go_on()

    # Jobs.

    def _go_on(self) -> None:
        """Begin the next job; if there is none, the next reading, or tell who waits for it."""
        if self._is_working:
            return
        if not self._has_failed and self._begin_job():
            return
        if self._then is not None:
            then, needs_success = self._then
            if self._is_summarizing and not needs_success:
                # It writes into the directory that somebody else takes over then.
                return
            self._then = None
            if not (needs_success and self._has_failed):
                then()
        elif self._is_following and not self._has_failed:
            self._summarize_next()
            self._read_next()

    def _begin_job(self) -> bool:
        """Begin the job that is due; return whether there is one."""
        now = self._loop.time()
        jobs = self._jobs
        if self._is_dirty and (
            self._is_sync_due
            or self._unsynced_bytes >= SYNC_BYTES
            or now - self._unsynced_since >= SYNC_S
        ):
            self._work(self._mirror.sync, self._synced)
        elif self._waiting:
            messages, self._waiting = self._waiting, []
            size, self._waiting_bytes = self._waiting_bytes, 0
            self._resume()
            if self._healing:
                self._work(partial(jobs.put, self._healing, messages), _nothing)
            else:
                number = self._mirror.at.number
                self._work(partial(jobs.apply, messages), partial(self._applied, number, size))
        elif self._ended is not None:
            (last, ended_at), self._ended = self._ended, None
            if self._healing:
                self._work(partial(jobs.healed, self._healing), self._healed)
            else:
                self.progress.end = last
                self._work(
                    partial(self._mirror.ended, last), partial(self._end_applied, last, ended_at)
                )
        else:
            return False
        return True

    def _summarize_next(self) -> None:
        """Begin a summary, once the log was read to its end and nothing else is to be done."""
        if not self._may_summarize or self._is_summarizing:
            return
        self._may_summarize = False
        if generation := self._mirror.next_summary():
            self._is_summarizing = True
            job = partial(self._mirror.summarize, generation)
            future = self._loop.run_in_executor(self._executor, job)
            future.add_done_callback(self._summarized)

    def _summarized(self, future: asyncio.Future[None]) -> None:
        self._is_summarizing = False
        try:
            future.result()
        finally:
            self._go_on()

    def _work(self, job: Callable[[], T], done: Callable[[T], None]) -> None:
        self._is_working = True
        future = self._loop.run_in_executor(self._executor, job)
        future.add_done_callback(partial(self._worked, done))

    def _worked(self, done: Callable[[T], None], future: asyncio.Future[T]) -> None:
        self._is_working = False
        self._look()
        try:
            result = future.result()
        except (LogBroken, OtherLog, UnsupportedFormat) as error:
            self._has_failed = True
            log.error("replication.broken", reason=str(error))
            self._owner.broken(str(error))
        except OSError as error:
            self._has_failed = True
            self._owner.failed(error)
        else:
            done(result)
        self._go_on()

    def _look(self) -> None:
        """Copy what the mirror knows."""
        mirror, progress = self._mirror, self.progress
        progress.at = mirror.at
        progress.end = max(progress.end, mirror.at.sequence)
        progress.leader = mirror.leader
        progress.is_handed_over = mirror.last_kind == record.HANDOVER
        progress.is_complete = mirror.is_complete
        progress.damaged = tuple(mirror.damaged)
        progress.synced = mirror.synced
        progress.log_id = mirror.view.log_id
        progress.is_whole = not mirror.damaged and not mirror.view.jumps

    def _applied(self, number: int, size: int, _: None) -> None:
        now = self._loop.time()
        progress = self.progress
        progress.read_bytes += size
        self._unsynced_bytes += size
        if not self._is_dirty:
            self._is_dirty = True
            self._unsynced_since = now
        if progress.at.number != number:
            progress.heard_at = now
            self._owner.record_read(is_handover=progress.is_handed_over)

    def _end_applied(self, last: int, ended_at: float, _: None) -> None:
        progress = self.progress
        self._may_heal = True
        self._may_summarize = self._is_following and progress.is_complete
        if progress.is_complete:
            progress.caught_up_at = ended_at
        self._asked_applied = self._asked_read
        if self._is_dirty:
            self._is_sync_due = self._is_sync_due or self._asked_applied > self._asked_told
        else:
            self._tell_synced()
        self._owner.end_read(last, is_complete=progress.is_complete)

    def _synced(self, _: None) -> None:
        self._is_dirty = self._is_sync_due = False
        self._unsynced_bytes = 0
        self._tell_synced()

    def _tell_synced(self) -> None:
        if self._asked_applied > self._asked_told:
            self._asked_told = self._asked_applied
            self._owner.synced()

    def _healed(self, is_whole: bool) -> None:
        generation, self._healing = self._healing, 0
        self._to_heal.remove(generation)
        self._heal_at = self._loop.time() + HEAL_AGAIN_S
        if is_whole:
            self.progress.healed_count += 1
            log.info("replication.segment_healed", segment=segment_name(generation))
        elif generation not in self._given_up:
            self._given_up.add(generation)
            log.warning("replication.segment_damaged", segment=segment_name(generation))

    # Readings.

    def _read_next(self) -> None:
        if self._is_reading or self._timer is not None:
            return
        is_due = self._may_heal and self._loop.time() >= self._heal_at
        if is_due and not self._to_heal and self.progress.damaged:
            self._to_heal = [g for g in self.progress.damaged if g < self._first_generation]
        if self._is_urgent or self._to_heal or self._reading_bytes >= SLICE_BYTES:
            self._read()
        else:
            self._timer = self._loop.call_later(READ_AGAIN_S, self._time_passed)

    def _time_passed(self) -> None:
        self._timer = None
        self._is_urgent = True
        self._go_on()

    def _read(self) -> None:
        self._token += 1
        self._is_reading = True
        self._is_urgent = False
        self._reading_bytes = 0
        if self._to_heal:
            # Again only when the log was read meanwhile.
            self._may_heal = False
            # Of one that was broken off, nothing counts.
            self._jobs.drop_healing()
            self._healing = self._to_heal[0]
            self._engine.read_subject(self._token, self._subjects.of_segment(self._healing))
        else:
            self._asked_read = self._asked
            self._engine.read_from(self._token, self._mirror.next_sequence)

    def _drop_reading(self) -> None:
        """Nothing of the present reading counts any more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._is_reading = False
        self._healing = 0
        self._ended = None
        self._waiting, self._waiting_bytes = [], 0
        self._resume()

    def _resume(self) -> None:
        if self._is_held:
            self._is_held = False
            self._engine.resume_reading()


def _nothing(_: None) -> None:
    """After a job of which nothing follows."""
