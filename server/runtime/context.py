"""What all connections of one broker share: journal, turn, watermark, reply names, limits.

The modules below `server/edge/` get their clock, their randomness and their journal from here, as
arguments of `app.py`. Nothing here knows frames.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import structlog

from vouchmq.protocol.errors import NotAllowed
from vouchmq.server.broker.counters import (
    ChannelCounters,
    ClosedCounters,
    ConfirmTimes,
    ConnectionCounters,
)
from vouchmq.server.channel.reply_to import ReplyNames
from vouchmq.server.runtime.work_budget import WorkBudget

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from vouchmq.server.auth.users import User
    from vouchmq.server.broker.broker import Broker
    from vouchmq.server.broker.enqueue import Enqueuer
    from vouchmq.server.broker.events import EventBus
    from vouchmq.server.broker.features.feature import FeatureContext
    from vouchmq.server.broker.queues.api import Queue
    from vouchmq.server.connection.committed import Commits
    from vouchmq.server.ledger.active import ActiveLedger, RunningLedger
    from vouchmq.server.runtime.alarms import Alarms
    from vouchmq.server.runtime.turn import Turn

log = structlog.get_logger(__name__)


class StagedContent(Protocol):
    """A large content that is written in pieces, before the block that is to hold it."""

    raw: bytes
    is_due: bool
    """Set when the next block is to hold it, or none is."""

    def go_on(self, is_over: Callable[[], bool]) -> bool:
        """Write pieces of it until it is over; whether there is nothing left to write."""


class MessageLog(Protocol):
    """The journal, as publishing and settling need it."""

    next_lsn: int

    @property
    def unsafe_bytes(self) -> int:
        """Octets handed over but not yet known to be on disk, and in the log if there is one."""

    def take(self, count: int) -> int:
        """Reserve LSNs for messages that are not stored; returns the first."""

    def append_run(self, queue_ids: tuple[int, ...], tail: bytes, raws: list[bytes]) -> int:
        """Store a run for these queues; returns its first LSN."""

    def unsettle(self, queue_id: int, lsns: Sequence[int]) -> None:
        """Take settles of a queue's copies back that were refused."""

    def barrier(self) -> int:
        """An LSN that is synced once everything buffered so far is."""

    def stage(self, raw: bytes) -> StagedContent | None:
        """Begin to write a large content that is to be stored; None if that is not worth it."""


class Waiter(Protocol):
    """Who has something to say when the watermark has moved."""

    def release(self, watermark: int) -> bool:
        """Say it; False while more has to wait."""

    def storage_failed(self) -> None:
        """The disk has failed: nothing more will ever be synced (CONF-12)."""


class StorageClient(Protocol):
    """A connection, as far as the disk concerns it."""

    def storage_refused(self, first_lsn: int) -> None:
        """Nothing from this LSN on was stored: say so to whoever hoped for it (CONF-12)."""


@dataclass(slots=True, frozen=True)
class Limits:
    """Values of the settings that the state machines need, in the units of their names."""

    max_message_size_bytes: int = 128 * 1024 * 1024
    tx_max_bytes: int = 64 * 1024 * 1024
    connection_memory_bytes: int = 512 * 1024 * 1024
    deliver_high_water_bytes: int = 1024 * 1024
    unsynced_limit_bytes: int = 32 * 1024 * 1024
    consumer_max_per_channel: int = 0
    consumer_timeout_ms: int = 0
    channel_max_per_node: int = 0
    default_consumer_prefetch: int = 0
    reject_immediate: bool = False
    reject_prefetch_size: bool = False
    reject_recover: bool = False
    reject_flow: bool = False
    qos_apply_to_existing_consumers: bool = False
    auth_failure_delay_s: float = 3.0
    handshake_timeout_s: float = 10.0
    initial_frame_max: int = 8192
    blocked_log_after_s: float = 30.0


class BrokerContext:
    """The shared state of one broker.

    Args:
        broker: its virtual hosts
        journal: where messages are stored
        turn: what runs once per loop turn
        limits: configured limits
        connections: all there are
        clock: monotonic seconds
        random_token: 22 random characters of base64url, at least 128 bits
        name: of this node, for error texts
        alarms: of memory and disk
        active_ledger: the ledger while it is on
        events: told who comes and goes
        commits: with a shared log, what deliveries wait for
    """

    def __init__(
        self,
        broker: Broker[Queue],
        journal: MessageLog,
        turn: Turn,
        limits: Limits,
        *,
        connections: Iterable[StorageClient],
        enqueuer: Enqueuer,
        feature_context: FeatureContext,
        clock: Callable[[], float],
        random_token: Callable[[], str],
        name: str,
        alarms: Alarms,
        active_ledger: ActiveLedger,
        events: EventBus,
        commits: Commits | None = None,
    ) -> None:
        self.commits = commits
        self.broker = broker
        self.journal = journal
        self.turn = turn
        self.limits = limits
        self.clock = clock
        self.budget = WorkBudget(clock, turn.later)
        self.random_token = random_token
        self.replies = ReplyNames(random_token)
        self.enqueuer = enqueuer
        self.timers = feature_context.timers
        self.feature_context = feature_context
        self.active_ledger = active_ledger
        self.events = events
        self._refused_lsns = range(0)  # what the block was to hold that the disk refused last
        self.watermark = turn.watermark
        self.confirm_times = ConfirmTimes()
        self.has_failed = False
        self.name = name
        # False when the log shows warnings only: a line for each connection is not even made.
        self.logs_connections = True
        self.alarms = alarms
        self._connections = connections
        self.closed_counters = ClosedCounters(ChannelCounters(), ConnectionCounters())
        self._waiters: dict[Waiter, None] = {}
        self._channels: dict[str, int] = {}

    @property
    def ledger(self) -> RunningLedger | None:
        """The ledger, None while it is off."""
        return self.active_ledger.ledger

    def channel_opened(self, user: User) -> None:
        """Count a channel.

        Raises:
            NotAllowed: 530 with ids 0,0, a limit is reached (CHAN-04, GEN-05)
        """
        count = self._channels.get(user.name, 0)
        if 0 <= user.max_channels <= count:
            raise NotAllowed(
                f"number of channels opened for user '{user.name}' has reached the maximum "
                f"allowed user limit of ({user.max_channels})",
                ids=(0, 0),
            )
        most = self.limits.channel_max_per_node
        if most and sum(self._channels.values()) >= most:
            raise NotAllowed(
                f"number of channels opened on node '{self.name}' has reached the maximum "
                f"allowed limit of ({most})",
                ids=(0, 0),
            )
        self._channels[user.name] = count + 1

    def channel_closed(self, user: User) -> None:
        """Count a closed channel out of the limits."""
        self._channels[user.name] -= 1
        if not self._channels[user.name]:
            del self._channels[user.name]

    def waits(self, waiter: Waiter) -> None:
        """Call this waiter whenever the watermark moves, until it has nothing left to say."""
        if self.has_failed:
            waiter.storage_failed()
            return
        self._waiters[waiter] = None

    def forget(self, waiter: Waiter) -> None:
        """The channel is closed: it waits for no LSN any more."""
        self._waiters.pop(waiter, None)

    def synced(self, watermark: int) -> None:
        """Everything up to `watermark` is on disk: say so, and write it out at once."""
        self.watermark = watermark
        self.confirm_times.synced_at = self.clock()
        try:
            self.turn.synced(watermark)
            for waiter in list(self._waiters):
                if waiter.release(watermark):
                    self._waiters.pop(waiter, None)
        finally:
            self.turn.flush()

    def storage_refused(self, first_lsn: int, last_lsn: int) -> None:
        """The disk took no block: what was given it is gone, as if it had not come (CONF-12)."""
        self._refused_lsns = range(first_lsn, last_lsn + 1)
        for vhost in self.broker.vhosts.values():
            for queue in vhost.every_queue():
                queue.forget_refused(first_lsn)
            for exchange in vhost.exchanges.values():
                if exchange.window is not None:
                    exchange.window.forget_refused(first_lsn)
        for connection in list(self._connections):
            connection.storage_refused(first_lsn)

    def was_refused(self, lsn: int) -> bool:
        """Whether the disk refused what was just stored under this LSN.

        A duplicate waits for the LSN of its original, which may be older than any refusal.
        """
        return lsn in self._refused_lsns

    def storage_failed(self) -> None:
        """A write or sync has failed, which is final: nack what waits (CONF-12, DURABLE-21)."""
        self.has_failed = True
        self.turn.stop_delivering()
        waiters, self._waiters = self._waiters, {}
        for waiter in waiters:
            waiter.storage_failed()
        self.turn.flush()
