"""What the journal and the broker tell each other: at a start, and when a segment begins or goes.

    recovered ─▶ definitions ─▶ messages ─▶ notes of features ─▶ the journal asks from now on
    nothing refuses the start any more ─▶ it is recorded

What holds:

- Definitions are restored before messages, messages before notes: a feature's note is about
  messages that must be in place.
- Everything recovery has found counts as durable. It was written again and synced where that was
  not proven.
- Copies whose queue no definition knows are dropped, so that their segments come free.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

import structlog

from vouchmq.server.broker.broker import keeper_of
from vouchmq.server.broker.definitions import VHostSet

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from vouchmq.server.broker.broker import Broker
    from vouchmq.server.broker.queues.api import Queue
    from vouchmq.server.runtime.disk_full import WriteRejection
    from vouchmq.server.runtime.queue_factory import QueueFactory
    from vouchmq.server.settings.accounts import VHostAccount
    from vouchmq.store.journal.journal import Journal
    from vouchmq.store.recovery.recover import Recovered

ORPHANS: Final = "its declaration was damaged; its messages are in the quarantined files"

log = structlog.get_logger(__name__)


class BrokerState:
    """The state of one broker that outlives it; the journal's `StateOwner`.

    Args:
        broker: virtual hosts and what is declared in them
        queue_factory: knows the queues that the journal keeps
        write_rejection: stands in front of the journal
        journal: keeps all that
    """

    def __init__(
        self,
        broker: Broker[Queue],
        queue_factory: QueueFactory,
        write_rejection: WriteRejection,
        journal: Journal,
    ) -> None:
        self._broker = broker
        self._queue_factory = queue_factory
        self._write_rejection = write_rejection
        self._journal = journal

    def restore(
        self,
        recovered: Recovered,
        accounts: Iterable[VHostAccount],
    ) -> None:
        """Take in what recovery found, then what settings say of virtual hosts.

        Args:
            recovered: definitions, queues and notes
            accounts: virtual hosts that must exist, and what is to be so with them
        """
        broker = self._broker
        broker.restore(recovered.definitions)
        queues = broker.stored_queues()
        windows = broker.stored_windows()
        self._queue_factory.remember_only(queues, windows)
        self._restore_messages(recovered, queues)
        for queue_id, queue in queues.items():
            queue.restore_notes(recovered.notes.get(queue_id, {}))
        for scope_id, window in windows.items():
            window.restore(recovered.notes.get(scope_id, {}))
        for account in accounts:
            _seed_vhost(broker, account)
        self._journal.ask(self)

    def record_start(self, recovered_lsn: int, random_token: Callable[[], str]) -> None:
        """The broker has started on this data directory, and is about to serve (DURABLE-27).

        Args:
            recovered_lsn: the last one that recovery found
            random_token: names this start, and a new data directory
        """
        data_directory = self._broker.data_directory
        self._write_rejection.define(data_directory.begin(recovered_lsn, random_token))
        for vhost in self._broker.vhosts.values():
            vhost.policy_engine.complete()
        self._journal.learn_definitions()

    def _restore_messages(self, recovered: Recovered, queues: dict[int, Queue]) -> None:
        ids = sorted(queues)
        for queue_id, copies in recovered.queues.items():
            queue = keeper_of(queues, ids, queue_id)
            if queue is None:
                if recovered.report.damaged:
                    log.error(
                        "queue.orphaned", queue_id=queue_id, count=copies.count, meaning=ORPHANS
                    )
                self._write_rejection.drop_queue(queue_id)
            else:
                queue.restore(queue_id, copies.spans, copies.delivered_lsn)
                if copies.positions is not None:
                    queue.restore_offsets(copies.positions.split)

    # See `StateOwner`

    def definitions(self) -> list[bytes]:
        """The records of all current definitions, for the head of a segment."""
        return self._broker.definitions()

    def recall(self, scope_id: int, key: bytes) -> bytes | None:
        """The value of a note by now."""
        return self._queue_factory.recall(scope_id, key)

    def position_of(self, queue_id: int, lsn: int) -> int | None:
        """The offset of a message in a stream."""
        return self._queue_factory.position_of(queue_id, lsn)


def _seed_vhost(broker: Broker[Queue], account: VHostAccount) -> None:
    """Have what the configuration says of a virtual host; the rest stays as it is."""
    vhost = broker.vhosts.get(account.name)
    before = vhost.settings() if vhost is not None else VHostSet(account.name)
    queue_type: str | None = account.default_queue_type
    if queue_type is None:
        queue_type = before.default_queue_type
    after = before.limited(
        max_connections=account.max_connections,
        max_queues=account.max_queues,
        max_exchanges=account.max_exchanges,
    )
    broker.put_vhost(replace(after, default_queue_type=queue_type))
