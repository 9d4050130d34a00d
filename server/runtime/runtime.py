"""The composition root: one broker put together, with everything that touches the world passed in.

`server/edge/app.py` gives `BrokerRuntime` the real disk, clock and loop; the simulator gives it
others, and both run the same wiring. No logic of AMQP is here, only who is told of what.

A start, in `BrokerRuntime.__init__`:

    turn, alarms, pager, enqueuer, dead letter publisher, features, broker     nothing is read yet
    _open_journal      recovery; from here on there is a journal
    GroupCommit        its watermark is what recovery has found
    _restore           definitions, then messages by LSN, then notes of features
    _new_context       what connections share
    _open_ledger       if there is one

What holds:

- Definitions are restored before messages, messages before notes: a feature's note is about
  messages that must be in place.
- Everything recovery has found counts as durable. It was written again and synced where that was
  not proven.
- Copies whose queue no definition knows are dropped, so that their segments come free.
- The journal is written by `_write_journal` alone, and the ledger's lines go to the operating
  system before it.

The end is decided here as well. A full disk (`DISK_FULL`) is survived: `WriteRejection` takes the
refused messages back out of the queues. Any other failed write, a failed sync, an exception inside
the journal or files that have gone from the data directory end the process (`_storage_failed`),
because no page can be trusted afterwards. Files are looked for before a watermark counts, but not
more often than every `FILES_S`: without that look 200 of 200 publishes were confirmed after the
journal's files had been deleted, with it 4 (commit 319f2e7).

What it costs: the journal is opened by a constructor that has already built what needs it, so those
get a function that returns the journal, not the journal.
"""

from __future__ import annotations

import errno
from contextlib import suppress
from typing import TYPE_CHECKING, Final

import structlog

from vouchmq.server.broker.broker import Broker, keeper_of
from vouchmq.server.broker.dead_letter.pace import DeadLetterPace
from vouchmq.server.broker.dead_letter.publisher import DeadLetterPublisher
from vouchmq.server.broker.delays.delay import held_for
from vouchmq.server.broker.delays.delay_queue import DelayQueue
from vouchmq.server.broker.enqueue import Enqueuer
from vouchmq.server.broker.features.apply import FeatureBuilder
from vouchmq.server.broker.features.effective import features_of
from vouchmq.server.broker.features.options import STREAM, X_DEAD_LETTER_EXCHANGE
from vouchmq.server.broker.paging.paged_store import DiskPages, JournalClock
from vouchmq.server.broker.paging.pager import Pager
from vouchmq.server.broker.queues.classic import Queue
from vouchmq.server.broker.streams.stream import Stream
from vouchmq.server.broker.timers import Timers
from vouchmq.server.edge.errors import StartupError
from vouchmq.server.edge.sizes import parse_amount
from vouchmq.server.ledger.ledger import Ledger, LedgerConfig
from vouchmq.server.ledger.text import file_name_part
from vouchmq.server.runtime.alarms import Alarms
from vouchmq.server.runtime.compaction_scheduler import CompactionScheduler
from vouchmq.server.runtime.context import BrokerContext, Limits
from vouchmq.server.runtime.disk_full import WriteRejection, free_octets
from vouchmq.server.runtime.memory_relief import MemoryRelief
from vouchmq.server.runtime.turn import Turn
from vouchmq.server.version import VERSION
from vouchmq.store.compaction.compactor import Compactor
from vouchmq.store.errors import ReadFailed, WriteFailed
from vouchmq.store.recovery.recover import open_journal
from vouchmq.store.scratch import Scratch
from vouchmq.store.sync.group_commit import GroupCommit

if TYPE_CHECKING:
    from collections.abc import Callable

    from vouchmq.server.broker.policy.policies import PolicyMatch
    from vouchmq.server.broker.queues.spec import QueueSpec
    from vouchmq.server.connection.connection import Connection
    from vouchmq.server.edge.settings import Settings
    from vouchmq.server.ledger.files import LedgerFiles
    from vouchmq.store.disk import Disk
    from vouchmq.store.journal.journal import Journal
    from vouchmq.store.recovery.recover import Recovered, RecoveryReport
    from vouchmq.store.sync.worker import SyncWorker

SYNC_OCTETS: Final = 8 * 1024 * 1024
# What shares of memory are shares of, where nobody says.
SOME_OCTETS: Final = 1 << 40
# So long at most after the journal's files were removed something may still be confirmed.
FILES_S: Final = 0.5
# Pages that the disk refused are told at most this often.
TELL_S: Final = 60.0
# What messages in queues may take of the watermark, whatever is set (LIMIT-21).
QUEUES_SHARE: Final = 0.4
# A disk without room: it takes back nothing that it took, and may have room again (LIMIT-15).
DISK_FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT})
ORPHANS: Final = "its declaration was damaged; its messages are in the files set aside"

log = structlog.get_logger(__name__)


def never(delay_s: float, job: Callable[[], None]) -> None:
    """A clock that rings for nobody, for who gives none."""


def limits_of(settings: Settings) -> Limits:
    """The settings that the state machines below the edge need."""
    return Limits(
        max_message_size_bytes=settings.max_message_size_bytes,
        tx_max_bytes=settings.tx_max_bytes,
        connection_memory_bytes=settings.connection_memory_bytes,
        deliver_high_water_bytes=settings.deliver_high_water_bytes,
        unsynced_limit_bytes=settings.unsynced_limit_bytes,
        consumer_max_per_channel=settings.consumer_max_per_channel,
        consumer_timeout_ms=settings.consumer_timeout_ms,
        channel_max_per_node=settings.channel_max_per_node,
        default_consumer_prefetch=settings.default_consumer_prefetch,
        reject_immediate=settings.compat_reject_immediate,
        reject_prefetch_size=settings.compat_reject_prefetch_size,
        reject_recover=settings.compat_reject_recover,
        reject_flow=settings.compat_reject_flow,
        qos_apply_to_existing_consumers=settings.qos_apply_to_existing_consumers,
        auth_failure_delay_s=settings.auth_failure_delay_s,
        handshake_timeout_s=settings.handshake_timeout_s,
        initial_frame_max=settings.initial_frame_max,
        blocked_log_after_s=settings.blocked_connection_log_after_s,
    )


def ledger_config_of(settings: Settings) -> LedgerConfig:
    """The settings of the ledger."""
    return LedgerConfig(
        broker=settings.ledger_broker or file_name_part(settings.node),
        version=VERSION,
        is_synced=settings.ledger_sync == "group",
        tells_ids=settings.ledger_detail == "messages",
        buffer_octets=settings.ledger_buffer_bytes,
        file_octets=settings.ledger_file_bytes,
        rotate_s=settings.ledger_rotate_s,
        inventory_s=settings.ledger_inventory_s,
    )


class BrokerRuntime:
    """One broker: journal recovered, virtual hosts restored, ready for connections.

    Args:
        settings: what the operator chose
        disk: the data directory
        worker: does the syncs
        call_soon: runs a callable in the next loop turn
        clock: monotonic seconds
        wall_ms: the time of day in milliseconds
        random_token: 22 random base64url characters
        fatal: called once, with a line for the log, when the store can no longer keep its word
        memory_octets: how much memory there is, for limits that are shares of it
        call_later: runs a callable in so many seconds; without it compaction runs in every turn
        progress: told during recovery how many of how many segments are done
        ledger_files: where the ledger is kept, if there is to be any

    Raises:
        StoreError: the data directory is locked, damaged beyond use or of a newer format
    """

    def __init__(
        self,
        settings: Settings,
        disk: Disk,
        worker: SyncWorker,
        *,
        call_soon: Callable[[Callable[[], None]], object],
        clock: Callable[[], float],
        wall_ms: Callable[[], int],
        random_token: Callable[[], str],
        fatal: Callable[[str], None],
        memory_octets: int = SOME_OCTETS,
        call_later: Callable[[float, Callable[[], None]], object] | None = None,
        progress: Callable[[int, int], None] | None = None,
        ledger_files: LedgerFiles | None = None,
    ) -> None:
        self.ledger: Ledger | None = None
        self.connections: dict[Connection, None] = {}
        self._fatal, self._disk, self._clock, self._files_looked_at = fatal, disk, clock, clock()
        self._delayed_most = settings.delayed_max_messages
        self.turn = Turn(call_soon, self._write_journal, self._report, clock)
        self._is_closed, self._told = False, (-TELL_S, 0)  # when, and of how many refused pages
        now_ms = lambda: int(clock() * 1000)  # noqa: E731
        self.journal_clock = JournalClock(now_ms, wall_ms)
        self._scratch = Scratch(disk, file_size_bytes=settings.segment_size_bytes)
        self.alarms = self._new_alarms(settings, memory_octets)
        self.pager = self._new_pager(settings)
        self.journal: Journal
        self.write_rejection = WriteRejection(
            lambda: self.journal,
            self._write_journal,
            self.alarms,
            free_octets=lambda: free_octets(disk),
            has_room=lambda: self._has_room(settings.segment_size_bytes),
        )
        self.timers = Timers(now_ms, call_later or never)
        self.enqueuer = Enqueuer(lambda: self.journal, now_ms)
        self.dead_letter_publisher = self._new_dead_letter_publisher(settings, wall_ms)
        self.feature_builder = self._new_feature_builder(settings)
        self._stored: dict[int, Queue] = {}
        self.broker = self._new_broker(settings, random_token)
        self.journal, recovered = self._open_journal(settings, progress)
        recovered_lsn = self.journal.next_lsn - 1
        if ledger_files is not None:
            # No LSN that the ledger has named is given to another message.
            self.journal.take(max(0, ledger_files.before.lsn - recovered_lsn))
        self.report: RecoveryReport = recovered.report
        self.commit = GroupCommit(
            self.journal, worker, on_synced=self._synced, on_failed=self._sync_failed, clock=clock
        )
        self.compaction_scheduler = self._new_compaction_scheduler(settings, call_later)
        self._restore(recovered, settings, lambda: self._begin(recovered_lsn, random_token))
        self.context = self._new_context(settings, random_token, recovered_lsn)
        self.memory_relief = MemoryRelief(self.alarms, lambda: list(self.connections), clock)
        if ledger_files is not None:
            self._open_ledger(settings, ledger_files, wall_ms)
        self.turn.wake()

    def _restore(self, recovered: Recovered, settings: Settings, begin: Callable[[], None]) -> None:
        """Queues and messages of the journal, then the virtual hosts that must exist."""
        with suppress(OSError):
            self._scratch.sweep()
        self.broker.restore(recovered.definitions)
        queues = self._stored = self.broker.stored_queues()
        ids = sorted(queues)
        for queue_id, copies in recovered.queues.items():
            queue = keeper_of(queues, ids, queue_id)
            if queue is None:
                if recovered.report.damaged:
                    log.error(
                        "queue.orphaned", queue_id=queue_id, count=copies.count, meaning=ORPHANS
                    )
                self.write_rejection.drop_queue(queue_id)
            else:
                queue.restore(queue_id, copies.spans, copies.delivered_lsn)
                if isinstance(queue, Stream) and copies.positions is not None:
                    queue.restore_offsets(copies.positions.split)
        for queue_id, queue in queues.items():
            self.feature_builder.restore(queue, recovered.notes.get(queue_id, {}))
        for account in settings.all_vhosts():
            vhost, _ = self.broker.create_vhost(account.name)
            vhost.queue_limit = account.max_queues if account.max_queues >= 0 else None
            vhost.exchange_limit = account.max_exchanges if account.max_exchanges >= 0 else None
            vhost.default_queue_type = account.default_queue_type
        begin()

    def _begin(self, recovered_lsn: int, random_token: Callable[[], str]) -> None:
        """Note that the broker has started on this data directory (DURABLE-27)."""
        self.journal.ask(self)
        self._define(self.broker.data_directory.begin(recovered_lsn, random_token))
        self.journal.learn_definitions()

    def _open_ledger(
        self, settings: Settings, files: LedgerFiles, wall_ms: Callable[[], int]
    ) -> None:
        clock = self._clock
        since_us = wall_ms() * 1000 - int(clock() * 1_000_000)
        self.ledger = Ledger(
            ledger_config_of(settings),
            files,
            self.context,
            self.connections,
            lambda: since_us + int(clock() * 1_000_000),
            self.dead_letter_publisher.kept_of,
        )
        if settings.ledger_sync == "group":
            self.commit.extra_targets = files
        if settings.ledger_enabled:
            try:
                self.ledger.switch_on(at_start=True, message_lsn=self.report.message_lsn)
            except OSError as error:
                raise StartupError(f"the ledger: {error.strerror or error}") from error

    def check(self, memory_octets: int) -> bool:
        """Look at memory in use, disk space and a disk that has refused (LIMIT-01, LIMIT-15).

        Returns:
            True when memory was let go (LIMIT-28)
        """
        self.alarms.read(memory_octets, free_octets(self._disk))
        if not self._has_its_files():
            return False
        self.write_rejection.probe()
        self._tell_of_pager()
        self.compaction_scheduler.look()
        if self.ledger is not None:
            self.ledger.look()
        self.dead_letter_publisher.pace.look()
        return self.memory_relief.look()

    def check_memory(self, memory_octets: int) -> bool:
        """The same of memory alone."""
        self.alarms.read(memory_octets, self.alarms.disk_free_octets)
        return self.memory_relief.look()

    def _has_its_files(self) -> bool:
        """Whether the journal's files are where they were; if not, no word of ours counts.

        What is written to a file that was removed is not found again, however well it is synced.
        Spec: DURABLE-23
        """
        self._files_looked_at = self._clock()
        try:
            missing = self.journal.chain.missing()
        except OSError as error:
            missing = f"the data directory cannot be read: {error.strerror or error}"
        if missing:
            self._storage_failed(missing)
        return not missing

    def _has_room(self, octets: int) -> bool:
        # A file that waits is room as well, but compaction's first: it makes more of it.
        self.compaction_scheduler.look()
        spare_octets = 0 if self.compaction_scheduler.is_at_work else self.journal.chain.spare_bytes
        return self.alarms.disk_free_octets + spare_octets >= octets

    def seal(self) -> bool:
        """Write what is left, and have the journal say that it ends here (DURABLE-22).

        Returns:
            whether that is done, or cannot be; if not, ask again when no sync is under way
        """
        if not self._is_closed:
            self._write_journal()
            self._is_closed = True
        if self.context.has_failed or self.journal.seal():
            return True
        self.commit.request()
        return False

    def close(self) -> None:
        """Close the journal's files and remove scratch files; nothing is written any more."""
        if self.ledger is not None:
            self.ledger.close()
        self._is_closed = True
        self.journal.close()
        self._scratch.close()

    def _tell_of_pager(self) -> None:
        told_at, told_count = self._told
        refused_count = self.pager.refused_count
        if refused_count == told_count or self._clock() - told_at < TELL_S:
            return
        self._told = (self._clock(), refused_count)
        log.warning(
            "paging.write_failed",
            count=refused_count - told_count,
            reason=str(self.pager.last_error),
            meaning="messages that should be paged out stay in memory",
        )

    def _open_journal(
        self, settings: Settings, progress: Callable[[int, int], None] | None
    ) -> tuple[Journal, Recovered]:
        return open_journal(
            self._disk,
            segment_size_bytes=settings.segment_size_bytes,
            wall_ms=self.journal_clock.now_ms,
            refuse_damage=settings.recovery_on_corruption == "refuse",
            whole_bytes=settings.recovery_read_bytes,
            progress=progress,
        )

    def _new_dead_letter_publisher(
        self, settings: Settings, wall_ms: Callable[[], int]
    ) -> DeadLetterPublisher:
        return DeadLetterPublisher(
            lambda name: self.broker.vhosts.get(name),
            self.enqueuer,
            lambda: self.journal,
            wall_ms,
            self.turn.wake,
            DeadLetterPace(
                self._clock,
                lambda: self.turn.count,
                lambda: self.alarms.is_disk_low or self.alarms.is_storage_failing,
                self.turn.later,
                self._dead_letter_source,
            ),
            heeds_clients=settings.compat_client_x_death,
            most_hops=settings.dlx_max_hops,
        )

    def _dead_letter_source(self, queue: Queue) -> str:
        """What gives a queue its dead letter exchange (DLX-23)."""
        if X_DEAD_LETTER_EXCHANGE in queue.spec.arguments:
            return f"argument {X_DEAD_LETTER_EXCHANGE}"
        vhost = self.broker.vhosts.get(queue.spec.vhost)
        policy = vhost.policy_engine.policy_of_queue(queue).policy if vhost is not None else None
        return f"policy {policy.name}" if policy is not None else ""

    def _new_alarms(self, settings: Settings, memory_octets: int) -> Alarms:
        return Alarms(
            parse_amount(settings.vm_memory_high_watermark).of(memory_octets),
            parse_amount(settings.disk_free_limit).of(memory_octets),
            self.turn.later,
        )

    def _new_feature_builder(self, settings: Settings) -> FeatureBuilder:
        feature_builder = FeatureBuilder(
            self.timers,
            self.dead_letter_publisher,
            self.pager,
            lambda: self.journal,
            self.journal_clock,
            only_failures=settings.delivery_count_mode == "failures",
        )
        feature_builder.retry_interval_ms = settings.dlx_retry_interval_ms
        feature_builder.serve = self._serve
        feature_builder.expire = self._expire
        return feature_builder

    def _new_context(
        self, settings: Settings, random_token: Callable[[], str], recovered_lsn: int
    ) -> BrokerContext:
        context = BrokerContext(
            self.broker,
            self.journal,
            self.turn,
            limits_of(settings),
            connections=self.connections,
            enqueuer=self.enqueuer,
            feature_builder=self.feature_builder,
            clock=self._clock,
            random_token=random_token,
            name=settings.node,
            alarms=self.alarms,
        )
        context.hand_over = self.write_rejection.flush_through
        context.unsettle = self.journal.unsettle
        # Whatever recovery has found is on disk: who waits for it waits no longer.
        context.watermark = self.turn.watermark = recovered_lsn
        return context

    def _new_broker(self, settings: Settings, random_token: Callable[[], str]) -> Broker[Queue]:
        return Broker(
            new_queue=self._new_queue,
            define=self._define,
            drop_queue=self._drop_queue,
            random_name=random_token,
            relaxed_redeclare=settings.relaxed_redeclare,
            regulate=self._regulate,
        )

    def _new_compaction_scheduler(
        self,
        settings: Settings,
        call_later: Callable[[float, Callable[[], None]], object] | None,
    ) -> CompactionScheduler:
        return CompactionScheduler(
            Compactor(self.journal, self._segment_corrupt, self._clock),
            self.journal.chain,
            self.alarms,
            self.turn,
            clock=self._clock,
            later=call_later or (lambda _, step: self.turn.later(step)),
            is_refused=lambda: self.write_rejection.refused_lsn != 0,
            segment_octets=settings.segment_size_bytes,
        )

    def _new_pager(self, settings: Settings) -> Pager:
        journal = lambda: self.journal  # noqa: E731
        pages = DiskPages(journal, self._scratch, self._storage_failed, self.journal_clock)
        most = int(self.alarms.memory_limit_octets * QUEUES_SHARE)
        return Pager(pages, settings.queue_memory_bytes, min(settings.queues_memory_bytes, most))

    def _new_queue(self, spec: QueueSpec) -> Queue:
        features = features_of(spec.arguments)
        queue: Queue
        if held_for(spec.name) is not None:
            queue = self._new_delay_queue(spec)
        elif features.type == STREAM:
            around = (self.turn, self.journal, self.pager, self.timers)
            queue = Stream(spec, *around, self.journal_clock)
        else:
            queue = Queue(spec, self.turn, self.journal, self.pager, self._unused)
        self.feature_builder.apply_options(queue, features)
        if spec.stored:
            self._stored[spec.queue_id] = queue
        if self.ledger is not None:
            self.ledger.declared(queue)
        return queue

    def _define(self, record: bytes) -> int:
        # Operators are no clients, whose every word is followed by a turn.
        self.turn.wake()
        return self.write_rejection.define(record)

    def _regulate(self, queue: Queue, policy_match: PolicyMatch) -> None:
        """Policies have changed what a queue is to have (POLICY-04)."""
        self.feature_builder.apply_options(queue, features_of(queue.spec.arguments, policy_match))
        if self.ledger is not None:
            self.ledger.changed(queue)

    def _new_delay_queue(self, spec: QueueSpec) -> DelayQueue:
        return DelayQueue(
            spec,
            self.turn,
            self.journal,
            self.pager,
            self._unused,
            timers=self.timers,
            release=self.dead_letter_publisher.release,
            most=self._delayed_most,
        )

    def _serve(self, queue: Queue) -> bool:
        """Let waiting consumers have what is there before somebody looks at what is left."""
        if not queue.has_consumers or self.enqueuer.is_gathering:
            return False
        self.write_rejection.flush_through(self.journal.next_lsn - 1)
        if self.context.has_failed:
            return False
        queue.dispatch()
        self.turn.write_first()
        return True

    def _drop_queue(self, queue_id: int) -> int:
        self._stored.pop(queue_id, None)
        return self.write_rejection.drop_queue(queue_id)

    def definitions(self) -> list[bytes]:
        """See `StateOwner`."""
        return self.broker.definitions()

    def recall(self, scope_id: int, key: bytes) -> bytes | None:
        """The value of a note by now; who is gone wants none."""
        queue = self._stored.get(scope_id)
        if isinstance(queue, Stream):
            return queue.recall(key)
        return queue.hooks.recall(key) if queue is not None and queue.hooks is not None else None

    def position_of(self, queue_id: int, lsn: int) -> int | None:
        """The offset of a message in a stream."""
        queue = self._stored.get(queue_id)
        return queue.position_of(lsn) if isinstance(queue, Stream) else None

    def _unused(self, queue: Queue) -> None:
        vhost = self.broker.vhosts.get(queue.spec.vhost)
        if vhost is not None:
            vhost.consumer_gone(queue)

    def _expire(self, queue: Queue) -> None:
        log.info("queue.expired", vhost=queue.spec.vhost, queue=queue.spec.name)
        vhost = self.broker.vhosts.get(queue.spec.vhost)
        if vhost is not None:
            vhost.end_queue(queue)

    def _write_journal(self) -> None:
        if self.turn.ledger is not None:
            self.turn.ledger.flush()  # first: no settle may be on disk whose event is not
        if self.context.has_failed or self._is_closed:
            return
        if self.journal.next_lsn != self.write_rejection.refused_lsn:
            self._hand_to_disk()
        self.pager.run()
        if self.pager.is_behind:
            self.turn.wake()

    def _hand_to_disk(self) -> None:
        try:
            self.journal.write()
        except WriteFailed as error:
            if error.errno not in DISK_FULL:
                self._storage_failed(str(error))
                return
            self.dead_letter_publisher.refused(error.first_lsn)
            self.write_rejection.refused(self.context, error.first_lsn, error.last_lsn)
        except Exception as error:
            # Nobody can say what the journal holds after a bug in it: no word of ours would count.
            log.exception("internal_error", where="journal")
            self._storage_failed(f"a bug in the journal: {error!r}")
            return
        else:
            self.write_rejection.written()
            self.dead_letter_publisher.written()
            self.compaction_scheduler.written()
        # What compaction has moved, and settles, ask for no sync; after so much of it one is made
        # all the same. Who is not read until less is unsynced may be the last to ask for anything.
        most = min(SYNC_OCTETS, self.context.limits.unsynced_limit_bytes // 2)
        if self.journal.wants_sync or self.journal.unsynced_bytes > most:
            self.commit.request()

    def _synced(self, watermark: int) -> None:
        if self._clock() - self._files_looked_at >= FILES_S and not self._has_its_files():
            return
        if self.ledger is not None:
            # As group commit has it, not as it is told: a confirm may not be its own evidence.
            self.ledger.synced(self.commit.watermark, self.commit.counters.last_sync_ms)
        self.context.synced(watermark)
        self.write_rejection.synced(watermark)
        self.dead_letter_publisher.pace.look()

    def _sync_failed(self, error: int) -> None:
        if error == errno.ESRCH:
            self._storage_failed("the sync helper process has ended")
        else:
            self._storage_failed(f"cannot sync the journal: {errno.errorcode.get(error, error)}")

    def _storage_failed(self, reason: str) -> None:
        """A failed write or sync is final: no page can be trusted after it (DURABLE-21)."""
        # What cannot be read while there is no node yet ends the start.
        context: BrokerContext | None = getattr(self, "context", None)
        if context is not None and not context.has_failed:
            context.storage_failed()
            self._fatal(reason)

    def _segment_corrupt(self, name: str, reason: str) -> None:
        meaning = "the segment is not compacted; run vouchmq store check"
        log.error("segment.corrupt", segment=name, reason=reason, meaning=meaning)

    def _report(self, error: BaseException) -> None:
        # What cannot be read back has ended the broker already, and is no bug.
        if not isinstance(error, ReadFailed):
            log.error("internal_error", where="turn", exc_info=error)
