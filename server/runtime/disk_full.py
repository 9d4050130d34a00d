"""What becomes of blocks that a full disk refuses, and how it is found that it takes them again.

    turn ──▶ journal writer ──▶ written
                  └─ refused: alarm, nacks, closes; definitions are given to the journal again

A refused block costs what it held: messages leave their queues, a commit is taken back, and who
declared something is told that it failed. Definitions stay in memory, as undoing them would need
a history; they go into the next block that is written, and until that is synced nobody is told
that they exist, since every -ok waits for it. Settlements and marks are kept by the
journal itself.

While the disk refuses, a turn tries again only when somebody wants something new stored, and a
probe tries each time the gauges are read. Must not know files, nor what an error number means.

Spec: CONF-12, LIMIT-15, TX-09
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import structlog

if TYPE_CHECKING:
    from collections.abc import Callable

    from vouchmq.server.runtime.alarms import Alarms
    from vouchmq.server.runtime.context import BrokerContext

log = structlog.get_logger(__name__)


class Refusable(Protocol):
    """The journal, as far as it is concerned here."""

    next_lsn: int

    def define(self, record: bytes) -> int:
        """Buffer a change of definitions; its LSN."""

    def drop_queue(self, queue_id: int) -> int:
        """Buffer that a queue is gone; its LSN."""

    def barrier(self) -> int:
        """An LSN that is synced no earlier than all that is buffered now."""


class Measured(Protocol):
    """A disk whose room can be told."""

    def free_bytes(self) -> int:
        """The free space of the data directory's file system."""


def free_octets(disk: Measured) -> int:
    """What is free; none if that cannot be told."""
    try:
        return disk.free_bytes()
    except OSError as error:
        log.error("disk.free_space_unknown", reason=str(error))
        return 0


class WriteRejection:
    """Stands between those who want something stored and the journal.

    Args:
        journal: takes what is to be stored
        wake: sees to it that a turn is run
        alarms: the storage alarm is raised and cleared here
        free_octets: measures what is free on the disk
    """

    def __init__(
        self,
        journal: Refusable,
        wake: Callable[[], None],
        alarms: Alarms,
        free_octets: Callable[[], int],
    ) -> None:
        self._journal = journal
        self._wake = wake
        self._alarms = alarms
        self._free_octets = free_octets
        self._unwritten: list[Callable[[], int]] = []
        self._probe_lsn = 0
        self._has_only_probe = False
        self._has_new = False  # messages came because of the last refusal, and wait for the disk
        # The next LSN when the disk refused the last block; nothing new until it grows. 0: fine.
        self.refused_lsn = 0

    # What the broker wants stored

    def define(self, record: bytes) -> int:
        """Buffer a change of definitions; gives its LSN."""
        # Operators are no clients, whose every word is followed by a turn.
        self._wake()
        self._unwritten.append(lambda: self._journal.define(record))
        return self._journal.define(record)

    def drop_queue(self, queue_id: int) -> int:
        """Buffer that a queue is gone; gives its LSN."""
        self._unwritten.append(lambda: self._journal.drop_queue(queue_id))
        return self._journal.drop_queue(queue_id)

    # What came of it

    def written(self) -> None:
        """The disk has taken everything that was buffered."""
        self.refused_lsn = 0
        self._has_new = False
        self._unwritten.clear()

    def refused(self, context: BrokerContext, first_lsn: int, last_lsn: int) -> None:
        """The disk took nothing of what was buffered under these LSNs, both included."""
        journal = self._journal
        # First, so that nobody publishes because of what follows.
        if not self._alarms.is_storage_failing:
            self._alarms.storage_failed(self._free_octets())
        if not self.refused_lsn:
            log.warning("journal.disk_full", count=max(0, last_lsn - first_lsn + 1))
        if last_lsn >= first_lsn:
            self._resubmit()
            given_lsn = journal.next_lsn
            if not self._has_only_probe:
                context.storage_refused(first_lsn, last_lsn)
            # What was let go may have died meanwhile: its dead letters go with the next probe.
            self._has_new = journal.next_lsn > given_lsn
        self.refused_lsn = journal.next_lsn
        # What was written before says nothing of the disk as it is now.
        self._probe_lsn = 0

    def _resubmit(self) -> None:
        # Who waits for the old LSN of one waits long enough: the next block that is written
        # passes it, and holds the definition.
        for give in self._unwritten:
            give()

    # Whether it works again

    def probe(self, write_through: Callable[[int], bool]) -> None:
        """While the disk refuses: have a block written and synced (LIMIT-15)."""
        if self._alarms.is_storage_failing and not self._probe_lsn:
            lsn = self._journal.barrier()
            self._has_only_probe = lsn == self.refused_lsn and not self._has_new
            if write_through(lsn):
                self._probe_lsn = lsn
            self._has_only_probe = False

    def synced(self, watermark: int, has_room: Callable[[], bool]) -> None:
        """Everything up to `watermark` is on disk; `has_room`: for a segment, so all may go on."""
        if self._probe_lsn and watermark >= self._probe_lsn:
            self._probe_lsn = 0
            # A small block may fit where the next segment does not.
            if has_room():
                self._alarms.storage_recovered()
