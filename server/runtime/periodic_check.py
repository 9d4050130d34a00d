"""What is looked at about once a second: memory, disk, files, and work that waits for them.

Readings come in as numbers; who takes them, and how often, is up to `server/edge/`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import structlog

from vouchmq.server.runtime.disk_full import free_octets

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from vouchmq.server.broker.dead_letter.pace import DeadLetterPace
    from vouchmq.server.broker.paging.pager import Pager
    from vouchmq.server.connection.connection import Connection
    from vouchmq.server.ledger.active import ActiveLedger
    from vouchmq.server.runtime.compaction_scheduler import CompactionScheduler
    from vouchmq.server.runtime.context import BrokerContext
    from vouchmq.server.runtime.disk_full import Measured
    from vouchmq.server.runtime.journal_writer import JournalWriter
    from vouchmq.server.runtime.memory_relief import MemoryRelief

# Pages that the disk refused are told at most this often.
TELL_S: Final = 60.0
# So long connections are looked at in one turn, and so many between two looks at the clock.
SLICE_S: Final = 0.001
LOOK_EACH: Final = 64

log = structlog.get_logger(__name__)


class PeriodicCheck:
    """Looks after one broker.

    Args:
        context: its clock and alarms
        disk: whose free space is measured
        journal_writer: looks for its files, and probes a disk that has refused
        pager: whose refused pages are told
        compaction_scheduler: looks for work
        pace: dead letters that wait for the disk
        memory_relief: closes connections while memory is low
        active_ledger: the ledger while it is on
        connections: all there are
    """

    def __init__(
        self,
        context: BrokerContext,
        disk: Measured,
        journal_writer: JournalWriter,
        *,
        pager: Pager,
        compaction_scheduler: CompactionScheduler,
        pace: DeadLetterPace,
        memory_relief: MemoryRelief,
        active_ledger: ActiveLedger,
        connections: Collection[Connection],
    ) -> None:
        self._context = context
        self._connections = connections
        self._walk: Iterator[None] | None = None
        self._alarms = context.alarms
        self._clock = context.clock
        self._disk = disk
        self._journal_writer = journal_writer
        self._pager = pager
        self._compaction_scheduler = compaction_scheduler
        self._pace = pace
        self._memory_relief = memory_relief
        self._active_ledger = active_ledger
        self._told_at, self._told_count = -TELL_S, 0  # of refused pages

    def check(self, memory_octets: int) -> bool:
        """Look at memory in use, disk space and a disk that has refused (LIMIT-01, LIMIT-15).

        Returns:
            True when memory was let go (LIMIT-28)
        """
        self._alarms.read(memory_octets, free_octets(self._disk))
        if not self._journal_writer.has_its_files():
            return False
        self._journal_writer.probe()
        self._tell_of_pager()
        self._compaction_scheduler.look()
        if self._active_ledger.ledger is not None:
            self._active_ledger.ledger.look()
        self._pace.look()
        self._note_times()
        return self._memory_relief.look()

    def _note_times(self) -> None:
        """Have each channel note when its deliveries were made, some in each turn (LIMIT-23)."""
        if self._walk is None:
            self._walk = self._channels()
            self._go_on()

    def _go_on(self) -> None:
        if self._walk is None:
            return
        ends_at = self._clock() + SLICE_S
        for count, _ in enumerate(self._walk, 1):
            if count % LOOK_EACH == 0 and self._clock() >= ends_at:
                self._context.budget.put_off(self._go_on)
                return
        self._walk = None

    def _channels(self) -> Iterator[None]:
        for connection in list(self._connections):
            for channel in list(connection.channels.values()):
                channel.note_times()
            yield

    def check_memory(self, memory_octets: int) -> bool:
        """The same of memory alone."""
        self._alarms.read(memory_octets, self._alarms.disk_free_octets)
        return self._memory_relief.look()

    def _tell_of_pager(self) -> None:
        refused_count = self._pager.refused_count
        if refused_count == self._told_count or self._clock() - self._told_at < TELL_S:
            return
        log.warning(
            "paging.write_failed",
            count=refused_count - self._told_count,
            reason=str(self._pager.last_error),
            meaning="messages that should be paged out stay in memory",
        )
        self._told_at, self._told_count = self._clock(), refused_count
