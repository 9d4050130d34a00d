"""The journal writer: what is buffered goes to the disk, and all who wait hear what became of it.

    turn ─▶ write ─▶ Journal.write ─┬─ written: settlements, dead letters, compaction go on
                                    ├─ a full disk: `WriteRejection` takes back what it held
                                    └─ anything else: `storage_failed`, and the process ends
    turn ─▶ sync ─▶ GroupCommit.sync_now or GroupCommit.request
    GroupCommit ─▶ synced ─▶ ledger, confirms (`BrokerContext.synced`), the probe of a full disk
    with a shared log: GroupCommit, committed, synced_on_standby if that is awaited ─▶ `Watermark`
        ─▶ synced, when all have it; the end of a turn ─▶ `BlockTap.request`

What holds:

- Nobody else writes the journal, and the ledger's lines go to the operating system before it.
- A full disk (`DISK_FULL`) is survived. Any other failed write, a failed sync, an exception inside
  the journal or files that have gone from the data directory end the process, because no page can
  be trusted afterwards.
- Files are looked for before a watermark counts, but not more often than every `FILES_S`: without
  that look 200 of 200 publishes were confirmed after the journal's files had been deleted, with it
  4 (commit 319f2e7).

It is the last part of a broker to be built, from everything that has to hear of the disk; the turn
gets it with `Turn.start`. Must not know files or sockets.

Spec: DURABLE-21, DURABLE-23, LIMIT-15
"""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING, Final

import structlog

from vouchmq.store.errors import WriteFailed
from vouchmq.store.replication.watermark import Watermark
from vouchmq.store.sync.group_commit import GroupCommit

if TYPE_CHECKING:
    from collections.abc import Callable

    from vouchmq.server.broker.dead_letter.publisher import DeadLetterPublisher
    from vouchmq.server.broker.paging.pager import Pager
    from vouchmq.server.ledger.active import ActiveLedger
    from vouchmq.server.runtime.compaction_scheduler import CompactionScheduler
    from vouchmq.server.runtime.context import BrokerContext
    from vouchmq.server.runtime.disk_full import WriteRejection
    from vouchmq.store.journal.journal import Journal
    from vouchmq.store.sync.group_commit import ExtraSyncTargets
    from vouchmq.store.sync.worker import SyncWorker

SYNC_OCTETS: Final = 8 * 1024 * 1024
# So much is synced while the turn that has written it goes on; less, when all else is done.
EARLY_OCTETS: Final = 32 * 1024
# The loop waits for a sync itself if so many sockets at most were read since the last one: that of
# the publisher.
LONE_SLICES: Final = 1
# For a single message so many: its publisher's, and that of the consumer that has acked the one
# before. For several, whoever has a window goes on beside the sync, and unlike messages came a
# fifth slower. With four, the p99 of deliveries at 2,000 messages a second was twice as long.
ONE_MESSAGE_SLICES: Final = 2
# So long at most after the journal's files were removed something may still be confirmed.
FILES_S: Final = 0.5
# A disk without room: it takes back nothing that it took, and may have room again (LIMIT-15).
DISK_FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT})

log = structlog.get_logger(__name__)


class JournalWriter:
    """Writes the journal of one broker.

    Args:
        journal: what is buffered
        worker: does the syncs
        context: who waits for the disk
        pager: runs behind each write, when what it may page out is known
        write_rejection: what a full disk refuses
        dead_letter_publisher: told what became of dead letters
        compaction_scheduler: looks when a segment was begun
        active_ledger: whose lines go first
        fatal: called once, with a line for the log, when the store can no longer keep its word
        extra_targets: files that are synced in front of the journal
        segment_octets: what must be free before publishers go on after a full disk
        needs_standby: with a shared log, nothing is told to be safe before a standby has synced it
    """

    def __init__(
        self,
        journal: Journal,
        worker: SyncWorker,
        context: BrokerContext,
        *,
        pager: Pager,
        write_rejection: WriteRejection,
        dead_letter_publisher: DeadLetterPublisher,
        compaction_scheduler: CompactionScheduler,
        active_ledger: ActiveLedger,
        fatal: Callable[[str], None],
        extra_targets: ExtraSyncTargets | None,
        segment_octets: int,
        needs_standby: bool = False,
    ) -> None:
        self._journal = journal
        self._context = context
        self._turn = context.turn
        self._clock = context.clock
        self._pager = pager
        self._write_rejection = write_rejection
        self._dead_letter_publisher = dead_letter_publisher
        self._pace = dead_letter_publisher.pace
        self._compaction_scheduler = compaction_scheduler
        self._active_ledger = active_ledger
        self._fatal = fatal
        self._segment_octets = segment_octets
        # What is not asked for a sync for itself gets one after so much of it. Who is not read
        # until less is unsynced may be the last to ask for anything.
        self._most_unsynced = min(SYNC_OCTETS, context.limits.unsynced_limit_bytes // 2)
        self._files_looked_at = self._clock()
        self._generation = journal.chain.tail_generation
        self._synced_slices = 0
        self._is_closed = False
        self._watermark = Watermark(journal.written_lsn, self._synced, needs_standby=needs_standby)
        self.commit = GroupCommit(
            journal,
            worker,
            on_synced=self._watermark.synced_here if journal.chain.is_tapped else self._synced,
            on_failed=self._sync_failed,
            clock=self._clock,
            extra_targets=extra_targets,
        )
        if journal.chain.is_tapped:
            self._turn.observers[self._commit_written] = None

    # Writing

    def write(self) -> None:
        """Write what is buffered as one block, and page out; `sync` is to follow.

        Of much a sync is asked for at once: it then runs beside what the turn has still to do.
        """
        if self._turn.ledger is not None:
            self._turn.ledger.flush()  # first: no settle may be on disk whose event is not
        if self._context.has_failed or self._is_closed:
            return
        if self._journal.next_lsn != self._write_rejection.refused_lsn:
            self._hand_to_disk()
            if self._journal.unsynced_bytes > EARLY_OCTETS and self._is_sync_due():
                self.commit.request()
        self._pager.run()
        if self._pager.is_behind:
            self._turn.wake()

    def write_through(self, lsn: int) -> bool:
        """Have the block with this LSN written now; False if the disk refused it."""
        if lsn > self._journal.written_lsn:
            self.write()
            if self._is_sync_due():
                self.commit.request()
        return lsn <= self._journal.written_lsn

    def probe(self) -> None:
        """While a full disk refuses, try whether it takes a block again."""
        self._write_rejection.probe(self.write_through)

    def _hand_to_disk(self) -> None:
        journal = self._journal
        try:
            journal.write()
        except WriteFailed as error:
            if error.errno not in DISK_FULL:
                self.storage_failed(str(error))
                return
            self._dead_letter_publisher.refused(error.first_lsn)
            self._write_rejection.refused(self._context, error.first_lsn, error.last_lsn)
        except Exception as error:
            # Nobody can say what the journal holds after a bug in it: no word of ours would count.
            log.exception("internal_error", where="journal")
            self.storage_failed(f"a bug in the journal: {error!r}")
            return
        else:
            self._write_rejection.written()
            if self._dead_letter_publisher.awaits_disk:
                self._dead_letter_publisher.written()
            generation = journal.chain.tail_generation
            if generation != self._generation:
                # A segment was begun: others may have something to compact by now.
                self._generation = generation
                self._compaction_scheduler.look()

    @property
    def has_unwritten(self) -> bool:
        """See `turn.Writer`."""
        return self._journal.brings_new

    @property
    def wants_sync(self) -> bool:
        """Whether a sync should begin; while one is under way, the next one follows by itself."""
        return self.commit.is_idle and self._is_sync_due()

    def _is_sync_due(self) -> bool:
        """What compaction has moved, and settles, ask for none."""
        journal = self._journal
        if not (journal.wants_sync or journal.unsynced_bytes > self._most_unsynced):
            return False
        return not (self._context.has_failed or self._is_closed)

    def sync(self, *, has_sent: bool = False) -> None:
        """Have what was written synced if that is wanted; wait for it if nobody else is there."""
        if not self.wants_sync:
            return
        slice_count = self._context.budget.slice_count
        slices = slice_count - self._synced_slices
        self._synced_slices = slice_count
        is_one = self._journal.written_lsn - self.commit.watermark <= 1
        limit = ONE_MESSAGE_SLICES if is_one else LONE_SLICES
        if slices <= limit and self._journal.unsynced_bytes <= EARLY_OCTETS:
            self.commit.sync_now(with_consumer=slices > LONE_SLICES, has_sent=has_sent)
        else:
            self.commit.request()

    def _commit_written(self) -> None:
        """A shared log begins with what the turn has written, also while an older sync runs.

        Else a record would wait for that sync, and the next sync for nothing that it needs. At the
        end of the turn, so that a message and the mark of its delivery share a record.
        """
        if self._journal.wants_sync and not self._context.has_failed:
            self._journal.chain.request_commit()

    # What became of it

    def _synced(self, watermark: int) -> None:
        if self._clock() - self._files_looked_at >= FILES_S and not self.has_its_files():
            return
        ledger = self._active_ledger.ledger
        if ledger is not None:
            # As group commit has it, not as it is told: a confirm may not be its own evidence. With
            # a shared log, no more than that has.
            safe = min(watermark, self.commit.watermark)
            ledger.synced(safe, self.commit.counters.last_sync_ms)
        self._context.synced(watermark)
        self._write_rejection.synced(watermark, self._has_room)
        self._pace.look()

    def committed(self, block: int, lsn: int) -> None:
        """The shared log has everything up to this block and this LSN for good."""
        if self._context.has_failed:
            return
        self._journal.committed(block)
        self._watermark.committed(lsn)
        if self._context.commits is not None:
            self._context.commits.passed(block)
        if self.wants_sync:
            self._turn.wake()

    def synced_on_standby(self, lsn: int) -> None:
        """A standby of the shared log has everything up to this LSN on its disk."""
        if not self._context.has_failed:
            self._watermark.synced_on_standby(lsn)

    def _has_room(self) -> bool:
        # A file that waits is room as well, but compaction's first: it makes more of it.
        compaction = self._compaction_scheduler
        compaction.look()
        spare_octets = 0 if compaction.is_at_work else self._journal.chain.spare_bytes
        return self._context.alarms.disk_free_octets + spare_octets >= self._segment_octets

    def _sync_failed(self, error: int) -> None:
        if error == errno.ESRCH:
            self.storage_failed("the sync helper process has ended")
        else:
            self.storage_failed(f"cannot sync the journal: {errno.errorcode.get(error, error)}")

    def storage_failed(self, reason: str) -> None:
        """A failed write or sync is final: no page can be trusted after it (DURABLE-21)."""
        if not self._context.has_failed:
            self._context.storage_failed()
            self._fatal(reason)

    def has_its_files(self) -> bool:
        """Whether the journal's files are where they were; if not, no word of ours counts.

        What is written to a file that was removed is not found again, however well it is synced.
        Spec: DURABLE-23
        """
        self._files_looked_at = self._clock()
        try:
            missing = self._journal.chain.missing()
        except OSError as error:
            missing = f"the data directory cannot be read: {error.strerror or error}"
        if missing:
            self.storage_failed(missing)
        return not missing

    # The end

    def seal(self) -> bool:
        """Write what is left, and have the journal say that it ends here (DURABLE-22).

        Returns:
            whether that is done, or cannot be; if not, ask again when no sync is under way
        """
        if not self._is_closed:
            self.write()
            self._is_closed = True
        if self._context.has_failed or self._journal.seal():
            return True
        self.commit.request()
        return False

    def discard(self) -> None:
        """Write nothing at all: the start is refused, and nobody has been served."""
        self._is_closed = True
        self._journal.discard()

    def close(self) -> None:
        """Write nothing any more, and close the journal's files."""
        self._is_closed = True
        self._journal.close()
