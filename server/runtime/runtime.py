"""The composition root: one broker put together, with everything that touches the world passed in.

`server/edge/app.py` calls `start_broker` with the real disk, clock and loop; unit tests and the
simulator call it with others, and all run the same wiring. A start has these phases:

    open_journal         recovery: what was found, and a journal that can be written
    BrokerRuntime        builds every part, with that journal; nothing is read or written
    BrokerState.restore  definitions, messages, notes
    seed_users           users of the configuration, or the default one; then the ledger
    restored             whoever starts the broker does the rest, and may refuse the start
    record_start         the start counts (DURABLE-27); then `Turn.start`

No logic is here, of AMQP or of the disk, only who is given what. Each part gets what it needs when
it is made, so the order of `BrokerRuntime.__init__` is that of dependence: the turn and what
messages pass, then queues and virtual hosts, then what connections share, at last the journal
writer, which tells nearly all of them what became of a block. What the turn asks of the writer in
return waits for `Turn.start`.

What holds: what the process gives (`Host`, the disk, the worker) and what the operator chose is
known here alone; parts get values, not settings. Nothing is called back before `start_broker` has
restored everything, so no part has to be safe while it is half built.

Nothing is written behind the head of the new segment before `Turn.start`. So a start that is
refused removes that segment, and the directory is what it was: sealed, if it was, and without that
start.

What was tried: opening the journal inside this constructor, behind all that needs it. Those then
got a function that returned the journal, and callbacks that were set afterwards, and a segment
begun during recovery asked an empty broker for its definitions: after damage that took more than a
segment to carry over the next start found no queues.

What it costs: the one link that is made after its ends, between the turn and the writer; and two
more objects that only share a fact, who is connected and which ledger is on.
"""

from __future__ import annotations

import base64
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final, Protocol

import structlog

from vouchmq.server.auth.authenticator import Authenticator
from vouchmq.server.auth.connection_limits import ConnectionLimits
from vouchmq.server.auth.failed_logins import FailedLogins
from vouchmq.server.auth.slow_checks import SlowChecks
from vouchmq.server.broker import definitions as d
from vouchmq.server.broker.broker import Broker
from vouchmq.server.broker.dead_letter.pace import DeadLetterPace
from vouchmq.server.broker.dead_letter.publisher import DeadLetterPublisher
from vouchmq.server.broker.enqueue import Enqueuer
from vouchmq.server.broker.events import EventBus
from vouchmq.server.broker.features.feature import FeatureContext
from vouchmq.server.broker.features.options import X_DEAD_LETTER_EXCHANGE
from vouchmq.server.broker.paging.paged_store import DiskPages, JournalClock
from vouchmq.server.broker.paging.pager import Pager
from vouchmq.server.broker.timers import MillisecondClock, Timers
from vouchmq.server.connection.committed import Commits
from vouchmq.server.errors import StartupError
from vouchmq.server.ledger.active import ActiveLedger
from vouchmq.server.ledger.inventory import LedgerConnection
from vouchmq.server.ledger.ledger import Ledger, LedgerConfig
from vouchmq.server.ledger.text import file_name_part
from vouchmq.server.runtime.alarms import Alarms
from vouchmq.server.runtime.broker_state import BrokerState
from vouchmq.server.runtime.compaction_scheduler import CompactionScheduler
from vouchmq.server.runtime.context import BrokerContext, Limits, StorageClient
from vouchmq.server.runtime.disk_full import WriteRejection, free_octets
from vouchmq.server.runtime.flow import FlowControl
from vouchmq.server.runtime.journal_writer import JournalWriter
from vouchmq.server.runtime.memory_relief import MemoryRelief
from vouchmq.server.runtime.periodic_check import PeriodicCheck
from vouchmq.server.runtime.queue_factory import QueueFactory, QueueServices
from vouchmq.server.runtime.turn import Turn
from vouchmq.server.settings.sizes import parse_amount
from vouchmq.server.version import VERSION
from vouchmq.store.compaction.compactor import Compactor
from vouchmq.store.errors import ReadFailed
from vouchmq.store.recovery.recover import open_journal
from vouchmq.store.replication.log_writer import EPOCH_LSNS
from vouchmq.store.scratch import Scratch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from vouchmq.server.auth.slow_checks import Elsewhere
    from vouchmq.server.broker.queues.api import Queue
    from vouchmq.server.broker.vhost import VHost
    from vouchmq.server.connection.connection import Connection
    from vouchmq.server.ledger.files import LedgerFiles
    from vouchmq.server.settings.settings import Settings
    from vouchmq.store.disk import Disk
    from vouchmq.store.journal.journal import Journal
    from vouchmq.store.journal.segments import BlockTap
    from vouchmq.store.recovery.recover import RecoveryReport
    from vouchmq.store.sync.worker import SyncWorker

# What shares of memory are shares of, where nobody says.
SOME_OCTETS: Final = 1 << 40
TOKEN_BYTES: Final = 16
# What messages in queues may take of the watermark, whatever is set (LIMIT-21).
QUEUES_SHARE: Final = 0.4

log = structlog.get_logger(__name__)


def never(delay_s: float, job: Callable[[], None]) -> None:
    """A clock that rings for nobody, for who gives none."""


def report_bug(error: BaseException) -> None:
    """Log what nobody expected in a turn."""
    # What cannot be read back has ended the broker already, and is no bug.
    if not isinstance(error, ReadFailed):
        log.error("internal_error", where="turn", exc_info=error)


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """What a broker needs of the process that it runs in.

    `clock` gives monotonic seconds, `wall_ms` the time of day in milliseconds, `random_token` 22
    random base64url characters. `call_soon` runs a callable in the next loop turn, `call_later` in
    so many seconds; without it compaction runs in every turn. `report` is told of exceptions in
    turns, so that one queue's bug stops no other. `fatal` is called once, with a line
    for the log, when the store can no longer keep its word. `memory_octets` is how much memory
    there is, for limits that are shares of it. `elsewhere` computes what takes long; without it
    that is computed at once.
    """

    call_soon: Callable[[Callable[[], None]], object]
    clock: Callable[[], float]
    wall_ms: Callable[[], int]
    random_token: Callable[[], str]
    fatal: Callable[[str], None]
    call_later: Callable[[float, Callable[[], None]], object] | None = None
    memory_octets: int = SOME_OCTETS
    elsewhere: Elsewhere | None = None
    report: Callable[[BaseException], None] = report_bug

    @property
    def now_ms(self) -> Callable[[], int]:
        """What tells the clock in whole milliseconds; each message that is stored asks it."""
        return MillisecondClock(self.clock).now_ms

    def random_bytes(self, count: int) -> bytes:
        """So many random bytes, 16 of each token."""
        tokens = (self.random_token() for _ in range(-(-count // TOKEN_BYTES)))
        return b"".join(base64.urlsafe_b64decode(f"{each}==") for each in tokens)[:count]


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


def start_broker(
    settings: Settings,
    disk: Disk,
    worker: SyncWorker,
    host: Host,
    *,
    progress: Callable[[int, int], None] | None = None,
    ledger_files: LedgerFiles | None = None,
    restored: Callable[[BrokerRuntime], None] | None = None,
    tap: BlockTap | None = None,
) -> BrokerRuntime:
    """Recover what the data directory holds, build a broker around it and let it turn.

    Args:
        settings: what the operator chose
        disk: the data directory
        worker: does the syncs
        host: clock, loop and chance
        progress: told during recovery how many of how many segments are done
        ledger_files: where the ledger is kept, if there is to be any
        restored: called when everything is restored and nothing written; it may change definitions
        tap: takes blocks to a shared log; what that commits is for `JournalWriter.committed`

    Raises:
        StoreError: the data directory is locked, damaged beyond use or of a newer format
        StartupError: the ledger or `restored` refuses; no trace of this start is left
    """
    journal_clock = JournalClock(host.now_ms, host.wall_ms)
    journal, recovered = open_journal(
        disk,
        segment_size_bytes=settings.segment_size_bytes,
        wall_ms=journal_clock.now_ms,
        refuse_damage=settings.recovery_on_corruption == "refuse",
        whole_bytes=settings.recovery_read_bytes,
        progress=progress,
        tap=tap,
    )
    recovered_lsn = journal.next_lsn - 1
    _leave_out_lsns(journal, tap, ledger_files)
    runtime = BrokerRuntime(
        settings,
        disk,
        worker,
        host,
        journal,
        journal_clock,
        recovered_lsn=recovered_lsn,
        report=recovered.report,
        ledger_files=ledger_files,
    )
    with suppress(OSError):
        runtime.scratch.sweep()
    runtime.state.restore(recovered, settings.all_vhosts())
    seed_users(runtime, settings)
    others_have_led = _others_have_led(tap, ledger_files, recovered_lsn)
    _settle_start(runtime, settings, restored, others_have_led=others_have_led)
    runtime.state.record_start(recovered_lsn, host.random_token)
    runtime.turn.start(runtime.journal_writer)
    return runtime


def _leave_out_lsns(
    journal: Journal, tap: BlockTap | None, ledger_files: LedgerFiles | None
) -> None:
    """Go on behind LSNs that somebody else may know for other messages."""
    if ledger_files is not None:
        # No LSN that the ledger has named is given to another message.
        journal.take(max(0, ledger_files.before.lsn - journal.next_lsn + 1))
    if tap is not None:
        # Those that the leader before has given to messages which are not in the log.
        journal.take(EPOCH_LSNS)


def _others_have_led(
    tap: BlockTap | None, ledger_files: LedgerFiles | None, recovered_lsn: int
) -> bool:
    """Whether another leader of a shared log has written since this broker's ledger ended.

    Each leaves out so many LSNs that this alone tells.
    """
    if tap is None or ledger_files is None:
        return False
    return recovered_lsn - ledger_files.before.lsn > EPOCH_LSNS // 2


def _settle_start(
    runtime: BrokerRuntime,
    settings: Settings,
    restored: Callable[[BrokerRuntime], None] | None,
    *,
    others_have_led: bool,
) -> None:
    """Do what may still refuse the start."""
    try:
        if runtime.ledger is not None and settings.ledger_enabled:
            try:
                runtime.ledger.switch_on(
                    at_start=True,
                    message_lsn=runtime.report.message_lsn,
                    others_have_led=others_have_led,
                )
            except OSError as error:
                raise StartupError(f"the ledger: {error.strerror or error}") from error
        if restored is not None:
            restored(runtime)
    except StartupError:
        runtime.discard()
        raise


class CommandConnection(LedgerConnection, StorageClient, Protocol):
    """The connection of an operator's command, which is none of a client."""


class AllConnections:
    """The connections of clients and of operators' commands, for those who tell all of them.

    Args:
        clients: their connections

    `commands` are those of commands.
    """

    def __init__(self, clients: Mapping[Connection, None]) -> None:
        self._clients = clients
        self.commands: dict[CommandConnection, None] = {}

    def __iter__(self) -> Iterator[Connection | CommandConnection]:
        yield from self._clients
        yield from self.commands

    def __len__(self) -> int:
        return len(self._clients) + len(self.commands)

    def __contains__(self, connection: object) -> bool:
        return connection in self._clients or connection in self.commands


class BrokerRuntime:
    """The parts of one broker. Made by `start_broker` only; the arguments are those of it.

    `journal` is what recovery opened, `recovered_lsn` its last LSN then: all up to it is on disk.
    """

    def __init__(
        self,
        settings: Settings,
        disk: Disk,
        worker: SyncWorker,
        host: Host,
        journal: Journal,
        journal_clock: JournalClock,
        *,
        recovered_lsn: int,
        report: RecoveryReport,
        ledger_files: LedgerFiles | None,
    ) -> None:
        self.journal, self.report = journal, report
        self.connections: dict[Connection, None] = {}
        self.all_connections = AllConnections(self.connections)
        active_ledger = ActiveLedger()
        vhosts: dict[str, VHost[Queue]] = {}
        # The turn, and what messages pass.
        flow = FlowControl(host.clock, host.call_later, settings.publisher_flow_messages)
        self.turn = turn = Turn(host.call_soon, host.report, host.clock, flow, recovered_lsn)
        self.events = EventBus()
        self.alarms = new_alarms(settings, host, turn, self.events)
        self.timers = Timers(host.now_ms, host.call_later or never)
        self.scratch = new_scratch(settings, disk, worker)
        pages = DiskPages(journal, self.scratch, turn.storage_failed, journal_clock, recovered_lsn)
        self.pager = new_pager(settings, pages, self.alarms)
        self.write_rejection = WriteRejection(
            journal, turn.wake, self.alarms, lambda: free_octets(disk)
        )
        self.enqueuer = Enqueuer(journal, self.timers.now_ms)
        pace = new_pace(host, turn, self.alarms, vhosts)
        self.dead_letter_publisher = DeadLetterPublisher(
            vhosts.get,
            self.enqueuer,
            journal,
            host.wall_ms,
            turn.wake,
            pace,
            heeds_clients=settings.compat_client_x_death,
            most_hops=settings.dlx_max_hops,
        )
        # Queues and virtual hosts, then what connections share.
        services = QueueServices(vhosts, turn, self.enqueuer, journal)
        self.feature_context = self._new_feature_context(settings, services, journal_clock)
        factory = self._new_queue_factory(settings, services, journal_clock, active_ledger)
        self.broker = self._new_broker(settings, host, factory, vhosts)
        self.state = BrokerState(self.broker, factory, self.write_rejection, journal)
        self.authenticator = new_authenticator(settings, host, self.broker)
        self.connection_limits = ConnectionLimits(settings.connection_max)
        self.has_new_default_user = False
        self.context = self._new_context(settings, host, active_ledger)
        self.memory_relief = MemoryRelief(self.alarms, lambda: list(self.connections), host.clock)
        self.ledger = self._new_ledger(settings, host, ledger_files)
        # The disk, and all who hear of it.
        self.compaction_scheduler = self._new_compaction_scheduler(settings, host)
        extra = ledger_files if settings.ledger_sync == "group" else None
        self.journal_writer = self._new_journal_writer(settings, host, worker, active_ledger, extra)
        self.commit = self.journal_writer.commit
        self.periodic_check = self._new_periodic_check(disk, active_ledger)

    def _new_feature_context(
        self,
        settings: Settings,
        services: QueueServices,
        journal_clock: JournalClock,
    ) -> FeatureContext:
        return FeatureContext(
            self.timers,
            self.dead_letter_publisher,
            self.journal,
            journal_clock,
            serve=services.serve,
            expire=services.expire,
            only_failures=settings.delivery_count_mode == "failures",
            retry_interval_ms=settings.dlx_retry_interval_ms,
        )

    def _new_queue_factory(
        self,
        settings: Settings,
        services: QueueServices,
        journal_clock: JournalClock,
        active_ledger: ActiveLedger,
    ) -> QueueFactory:
        return QueueFactory(
            services,
            self.turn,
            self.journal,
            pager=self.pager,
            timers=self.timers,
            journal_clock=journal_clock,
            feature_context=self.feature_context,
            dead_letter_publisher=self.dead_letter_publisher,
            write_rejection=self.write_rejection,
            active_ledger=active_ledger,
            delayed_most=settings.delayed_max_messages,
        )

    def _new_broker(
        self,
        settings: Settings,
        host: Host,
        factory: QueueFactory,
        vhosts: dict[str, VHost[Queue]],
    ) -> Broker[Queue]:
        return Broker(
            new_queue=factory.new_queue,
            define=self.write_rejection.define,
            drop_queue=factory.drop_queue,
            random_name=host.random_token,
            relaxed_redeclare=settings.relaxed_redeclare,
            regulate=factory.regulate,
            new_window=factory.new_window,
            vhosts=vhosts,
            later=self.turn.later,
            in_slices=lambda steps: self.context.budget.go_through(steps),
            events=self.events,
        )

    def _new_context(
        self, settings: Settings, host: Host, active_ledger: ActiveLedger
    ) -> BrokerContext:
        return BrokerContext(
            self.broker,
            self.journal,
            self.turn,
            limits_of(settings),
            connections=self.all_connections,
            enqueuer=self.enqueuer,
            feature_context=self.feature_context,
            clock=host.clock,
            random_token=host.random_token,
            name=settings.node,
            alarms=self.alarms,
            active_ledger=active_ledger,
            events=self.events,
            commits=new_commits(settings, self.journal),
        )

    def _new_journal_writer(
        self,
        settings: Settings,
        host: Host,
        worker: SyncWorker,
        active_ledger: ActiveLedger,
        extra_targets: LedgerFiles | None,
    ) -> JournalWriter:
        return JournalWriter(
            self.journal,
            worker,
            self.context,
            pager=self.pager,
            write_rejection=self.write_rejection,
            dead_letter_publisher=self.dead_letter_publisher,
            compaction_scheduler=self.compaction_scheduler,
            active_ledger=active_ledger,
            fatal=host.fatal,
            extra_targets=extra_targets,
            segment_octets=settings.segment_size_bytes,
            needs_standby=settings.ha_confirm == "log+standby",
        )

    def _new_periodic_check(self, disk: Disk, active_ledger: ActiveLedger) -> PeriodicCheck:
        return PeriodicCheck(
            self.context,
            disk,
            self.journal_writer,
            pager=self.pager,
            compaction_scheduler=self.compaction_scheduler,
            pace=self.dead_letter_publisher.pace,
            memory_relief=self.memory_relief,
            active_ledger=active_ledger,
            connections=self.connections,
        )

    def _new_ledger(
        self, settings: Settings, host: Host, files: LedgerFiles | None
    ) -> Ledger | None:
        if files is None:
            return None
        since_us = host.wall_ms() * 1000 - int(host.clock() * 1_000_000)
        return Ledger(
            ledger_config_of(settings),
            files,
            self.context,
            self.all_connections,
            lambda: since_us + int(host.clock() * 1_000_000),
            self.dead_letter_publisher.kept_of,
        )

    def _new_compaction_scheduler(self, settings: Settings, host: Host) -> CompactionScheduler:
        return CompactionScheduler(
            Compactor(self.journal, tell_corrupt, host.clock),
            self.journal.chain,
            self.alarms,
            self.turn,
            clock=host.clock,
            later=host.call_later or (lambda _, step: self.turn.later(step)),
            is_refused=lambda: self.write_rejection.refused_lsn != 0,
            segment_octets=settings.segment_size_bytes,
        )

    def discard(self) -> None:
        """Let go of everything before the start is recorded: the data directory is what it was."""
        if self.ledger is not None:
            self.ledger.close()
        self.scratch.close()
        try:
            self.journal_writer.discard()
        except OSError as error:
            meaning = "the next start finds an empty segment"
            log.warning("broker.cleanup_failed", reason=str(error), meaning=meaning)

    def close(self) -> None:
        """Close the journal's files and remove scratch files; nothing is written any more."""
        if self.ledger is not None:
            self.ledger.close()
        self.journal_writer.close()
        self.scratch.close()


def new_commits(settings: Settings, journal: Journal) -> Commits | None:
    """What deliveries wait for: the shared log, if there is one and they are to."""
    if not journal.chain.is_tapped or settings.ha_deliver != "committed":
        return None
    return Commits(journal.chain, journal.chain.request_commit)


def new_authenticator(settings: Settings, host: Host, broker: Broker[Queue]) -> Authenticator:
    """Who may log in, by the records of the broker."""
    failures = FailedLogins(settings.auth_failures_max, settings.auth_failures_window_s, host.clock)
    return Authenticator(
        broker.accounts,
        settings.loopback_users,
        host.random_bytes,
        failures,
        checks=SlowChecks(host.elsewhere) if host.elsewhere is not None else None,
        algorithm=settings.password_hashing_algorithm,
    )


def seed_users(runtime: BrokerRuntime, settings: Settings) -> None:
    """Have the users of the configuration; where none was ever kept, the default one (AUTH-01)."""
    accounts = runtime.broker.accounts
    runtime.has_new_default_user = not accounts.is_kept and not settings.users
    for account in settings.all_users():
        if settings.users or runtime.has_new_default_user:
            runtime.authenticator.seed(account)
    is_unused = settings.default_user not in {"guest", *accounts.users}
    if is_unused and not settings.users:
        log.warning(
            "users.default_unused",
            user=settings.default_user,
            meaning="the data directory has users already: default_user is made once",
        )
    accounts.change(d.AccountsKept())


def new_alarms(settings: Settings, host: Host, turn: Turn, events: EventBus) -> Alarms:
    """Alarms with the thresholds of the settings."""
    return Alarms(
        parse_amount(settings.vm_memory_high_watermark).of(host.memory_octets),
        parse_amount(settings.disk_free_limit).of(host.memory_octets),
        turn.later,
        events,
    )


def new_scratch(settings: Settings, disk: Disk, worker: SyncWorker) -> Scratch:
    """Where the pager leaves what the journal does not hold."""
    remove = partial(worker.unlink, disk)
    return Scratch(disk, file_size_bytes=settings.segment_size_bytes, remove=remove)


def new_pager(settings: Settings, pages: DiskPages, alarms: Alarms) -> Pager:
    """A pager with the bounds of the settings."""
    most = int(alarms.memory_limit_octets * QUEUES_SHARE)
    return Pager(pages, settings.queue_memory_bytes, min(settings.queues_memory_bytes, most))


def new_pace(
    host: Host, turn: Turn, alarms: Alarms, vhosts: dict[str, VHost[Queue]]
) -> DeadLetterPace:
    """The pace of dead letters: none are sent while the disk is short of room."""

    def source_of(queue: Queue) -> str:
        """What gives a queue its dead letter exchange (DLX-23)."""
        if X_DEAD_LETTER_EXCHANGE in queue.spec.arguments:
            return f"argument {X_DEAD_LETTER_EXCHANGE}"
        vhost = vhosts.get(queue.spec.vhost)
        policy = vhost.policy_engine.policy_of_queue(queue).policy if vhost is not None else None
        return f"policy {policy.name}" if policy is not None else ""

    return DeadLetterPace(
        host.clock,
        lambda: turn.count,
        lambda: alarms.is_disk_low or alarms.is_storage_failing,
        turn.later,
        source_of,
    )


def tell_corrupt(name: str, reason: str) -> None:
    """Log that a segment cannot be compacted."""
    meaning = "the segment is not compacted; run vouchmq store check"
    log.error("segment.corrupt", segment=name, reason=reason, meaning=meaning)
