"""Makes queues of all kinds, and does for them what takes more than one queue knows.

Must not know connections, the disk or the loop.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import structlog

from vouchmq.server.broker.delays import DelayQueue, delaying_exchange
from vouchmq.server.broker.features.dedup import KeyWindow, keys_of, window_of
from vouchmq.server.broker.features.effective import features_of
from vouchmq.server.broker.features.options import STREAM
from vouchmq.server.broker.queues.classic import ClassicQueue
from vouchmq.server.broker.streams.stream import Stream

if TYPE_CHECKING:
    from vouchmq.server.broker.dead_letter.publisher import DeadLetterPublisher
    from vouchmq.server.broker.enqueue import Enqueuer
    from vouchmq.server.broker.features.feature import FeatureContext
    from vouchmq.server.broker.paging.paged_store import JournalClock
    from vouchmq.server.broker.paging.pager import Pager
    from vouchmq.server.broker.policy.policies import PolicyMatch
    from vouchmq.server.broker.queues.api import Queue
    from vouchmq.server.broker.queues.spec import QueueSpec
    from vouchmq.server.broker.timers import Timers
    from vouchmq.server.broker.vhost import VHost
    from vouchmq.server.ledger.active import ActiveLedger
    from vouchmq.server.runtime.disk_full import WriteRejection
    from vouchmq.server.runtime.turn import Turn
    from vouchmq.store.journal.journal import Journal

log = structlog.get_logger(__name__)


class QueueServices:
    """What a queue asks of the broker around it.

    Args:
        vhosts: where queues live
        turn: writes the journal
        enqueuer: tells whether what is stored must stand in one block
        journal: where messages are
    """

    def __init__(
        self, vhosts: dict[str, VHost[Queue]], turn: Turn, enqueuer: Enqueuer, journal: Journal
    ) -> None:
        self._vhosts = vhosts
        self._turn = turn
        self._enqueuer = enqueuer
        self._journal = journal

    def serve(self, queue: Queue) -> bool:
        """Let waiting consumers have what is there before somebody looks at what is left."""
        turn = self._turn
        if not queue.has_consumers or self._enqueuer.is_gathering:
            return False
        turn.write_through(self._journal.next_lsn - 1)
        if not turn.delivers:
            return False
        queue.dispatch()
        turn.write_first()
        return True

    def unused(self, queue: Queue) -> None:
        """Its last consumer has gone, which may be its end (QUEUE-08)."""
        vhost = self._vhosts.get(queue.spec.vhost)
        if vhost is not None:
            vhost.consumer_gone(queue)

    def expire(self, queue: Queue) -> None:
        """Nobody has used it for so long (TTL-20)."""
        log.info("queue.expired", vhost=queue.spec.vhost, queue=queue.spec.name)
        vhost = self._vhosts.get(queue.spec.vhost)
        if vhost is not None:
            vhost.end_queue(queue)


class QueueFactory:
    """Makes the queues of one broker, and knows those that the journal keeps.

    Args:
        services: what queues ask of the broker
        turn: asked for dispatches
        journal: keeps messages
        pager: keeps the memory of all queues within bounds
        timers: for deadlines
        journal_clock: tells the journal's clock from the loop's
        feature_context: what the features of queues need
        dead_letter_publisher: publishes delayed messages that are due
        write_rejection: stands in front of the journal
        active_ledger: the ledger while it is on
        delayed_most: messages that a delaying exchange holds at most, 0: any number
    """

    def __init__(
        self,
        services: QueueServices,
        turn: Turn,
        journal: Journal,
        *,
        pager: Pager,
        timers: Timers,
        journal_clock: JournalClock,
        feature_context: FeatureContext,
        dead_letter_publisher: DeadLetterPublisher,
        write_rejection: WriteRejection,
        active_ledger: ActiveLedger,
        delayed_most: int,
    ) -> None:
        self._services = services
        self._turn = turn
        self._journal = journal
        self._pager = pager
        self._timers = timers
        self._journal_clock = journal_clock
        self._feature_context = feature_context
        self._dead_letter_publisher = dead_letter_publisher
        self._write_rejection = write_rejection
        self._active_ledger = active_ledger
        self._delayed_most = delayed_most
        self._stored: dict[int, Queue] = {}
        self._windows: dict[int, KeyWindow] = {}

    def new_queue(self, spec: QueueSpec) -> Queue:
        """Make a queue as its arguments want it; see `Broker`."""
        features = features_of(spec.arguments)
        around = (self._turn, self._journal, self._pager)
        queue: Queue
        if delaying_exchange(spec.name) is not None:
            queue = DelayQueue(
                spec,
                *around,
                timers=self._timers,
                release=self._dead_letter_publisher.release,
                most=self._delayed_most,
            )
        elif features.type == STREAM:
            queue = Stream(spec, *around, self._timers, self._journal_clock)
        else:
            queue = ClassicQueue(spec, *around, self._services.unused, self._feature_context)
        queue.apply_options(features)
        if spec.stored:
            self._stored[spec.queue_id] = queue
        if self._active_ledger.ledger is not None:
            self._active_ledger.ledger.declared(queue)
        return queue

    def new_window(self, spec: QueueSpec) -> KeyWindow | None:
        """Make the keys of a de-duplicating exchange; see `VHost`."""
        keys = keys_of(spec.arguments)
        if keys is None:
            return None
        window = window_of(spec, keys, self._feature_context)
        if spec.stored:
            self._windows[spec.queue_id] = window
        return window

    def regulate(self, queue: Queue, policy_match: PolicyMatch) -> None:
        """Policies have changed what a queue is to have (POLICY-04)."""
        queue.apply_options(features_of(queue.spec.arguments, policy_match))
        if self._active_ledger.ledger is not None:
            self._active_ledger.ledger.changed(queue)

    def drop_queue(self, queue_id: int) -> int:
        """The queue is gone, or the keys of an exchange; gives the LSN of that."""
        self._stored.pop(queue_id, None)
        self._windows.pop(queue_id, None)
        return self._write_rejection.drop_queue(queue_id)

    def remember_only(self, queues: dict[int, Queue], windows: dict[int, KeyWindow]) -> None:
        """These are all that there are; others were made and deleted again by a replay."""
        self._stored = queues
        self._windows = windows

    # What the journal asks of them

    def recall(self, scope_id: int, key: bytes) -> bytes | None:
        """The value of a note by now; who is gone wants none."""
        queue, window = self._stored.get(scope_id), self._windows.get(scope_id)
        if queue is not None:
            return queue.recall(key)
        return window.recall(key) if window is not None else None

    def position_of(self, queue_id: int, lsn: int) -> int | None:
        """The offset of a message in a stream."""
        queue = self._stored.get(queue_id)
        return queue.position_of(lsn) if queue is not None else None
