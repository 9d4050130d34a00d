"""Keeps the files of the journal while somebody copies them.

    backup begin ─▶ extents of all segments, and where the journal ends; the answer waits
    backup end   ─▶ whether they were kept to the end; both are answered

Segments only grow at their end, so what was there at the beginning can be copied while the broker
goes on, as long as none is removed or used again (`SegmentChain.is_held`). They are kept until the
copy is complete, whoever makes it goes away, it takes too long, or the disk alarm is raised: a disk
that runs full needs the room.

Must not know sockets or files.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol

import structlog

from vouchmq.server.admin.commands import Arguments, CommandRefused
from vouchmq.store.journal.segments import SegmentExtent

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from vouchmq.server.admin.commands import ControlCommands, Reply
    from vouchmq.server.broker.data_directory import DataDirectory
    from vouchmq.store.journal.journal import Journal

log = structlog.get_logger(__name__)

LOOK_S: Final = 1.0
# Longer than any copy should take; it is there for one that hangs.
MOST_S: Final = 24 * 3600.0
# Each in a turn of its own: a few hundred microseconds.
ROWS_EACH: Final = 1000
CONFLICT: Final = 409
GONE: Final = 410


class Begin(Arguments, frozen=True):
    """The arguments of `backup begin`."""

    limit_s: float = MOST_S


class End(Arguments, frozen=True):
    """The arguments of `backup end`: the number that `backup begin` gave."""

    number: int


class Alarm(Protocol):
    """What tells that the disk runs full."""

    is_disk_low: bool
    is_storage_failing: bool


class BackupCommands:
    """The commands of one broker.

    Args:
        journal: what is copied
        data_directory: its identity
        alarms: tell when the disk needs the room
        request_sync: behind the next sync, files go that were kept
        later: runs something in another turn of the loop
        call_later: runs something in so many seconds
        clock: monotonic seconds
    """

    def __init__(
        self,
        journal: Journal,
        data_directory: DataDirectory,
        alarms: Alarm,
        *,
        request_sync: Callable[[], object],
        later: Callable[[Callable[[], None]], object],
        call_later: Callable[[float, Callable[[], None]], object],
        clock: Callable[[], float],
    ) -> None:
        self._journal = journal
        self._data_directory = data_directory
        self._alarms = alarms
        self._request_sync = request_sync
        self._later = later
        self._call_later = call_later
        self._clock = clock
        self._count = 0
        self._reply: Reply | None = None
        self._began_at = 0.0
        self._ends_at = 0.0
        self._why_ended = "there was none"

    def register(self, commands: ControlCommands) -> None:
        """Register begin and end."""
        commands.register("backup begin", Begin, self._begin)
        commands.register("backup end", End, self._end)

    def _begin(self, arguments: Begin, reply: Reply) -> None:
        if self._reply is not None:
            raise CommandRefused("another backup is being made", CONFLICT)
        if self._is_disk_low():
            raise CommandRefused("the disk alarm is raised: files cannot be kept", CONFLICT)
        self._count += 1
        self._reply = reply
        self._began_at = self._clock()
        self._ends_at = self._began_at + min(arguments.limit_s, MOST_S)
        self._journal.chain.is_held = True
        number = self._count
        reply.when_gone(lambda: self._give_up(number, "whoever made it has gone"))
        # As of now, all of it; it is sent in pieces.
        extents = self._journal.chain.extents()
        facts = {
            "number": number,
            "data_directory": self._data_directory.identity,
            "start": self._data_directory.start,
            "end": self._journal.end(),
        }
        size_bytes = sum(extent.size_bytes for extent in extents)
        log.info("backup.begun", segments=len(extents), size_bytes=size_bytes)
        reply.send({"columns": SegmentExtent._fields})
        self._tell(reply, extents, facts)
        self._call_later(LOOK_S, lambda: self._look(number))

    def _tell(self, reply: Reply, extents: Sequence[SegmentExtent], facts: object) -> None:
        if extents:
            reply.send({"rows": extents[:ROWS_EACH]})
            self._later(lambda: self._tell(reply, extents[ROWS_EACH:], facts))
        else:
            reply.send({"backup": facts})

    def _end(self, arguments: End, reply: Reply) -> None:
        kept = self._reply
        if kept is None or arguments.number != self._count:
            raise CommandRefused(f"the backup was given up: {self._why_ended}", GONE)
        log.info("backup.ended", duration_ms=self._release())
        kept({"ok": True})
        reply({"ok": True})

    def _look(self, number: int) -> None:
        """Whether the files are still to be kept."""
        if self._reply is None or number != self._count:
            return
        if self._is_disk_low():
            self._give_up(number, "the disk alarm was raised")
        elif self._clock() >= self._ends_at:
            self._give_up(number, "it took too long")
        else:
            self._call_later(LOOK_S, lambda: self._look(number))

    def _give_up(self, number: int, reason: str) -> None:
        reply = self._reply
        if reply is None or number != self._count:
            return
        self._why_ended = reason
        log.warning("backup.given_up", reason=reason, duration_ms=self._release())
        reply({"ok": False, "error": f"the backup was given up: {reason}", "code": GONE})

    def _release(self) -> int:
        """Let files go again; how long they were kept, in milliseconds."""
        self._reply = None
        chain = self._journal.chain
        chain.is_held = False
        if chain.has_retired:
            self._request_sync()
        return round((self._clock() - self._began_at) * 1000)

    def _is_disk_low(self) -> bool:
        return self._alarms.is_disk_low or self._alarms.is_storage_failing
