"""The broker with a bug built in: `PLANTED_BUG=no-sync python -m tests.fault.planted serve …`.

A harness that has never caught anything proves nothing. Each bug is one that was made before,
somewhere, by somebody careful; the tests show which harness notices it.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Sequence
from typing import Final

import vouchmq.server.edge.app
from vouchmq.server.broker.delays import DelayQueue
from vouchmq.server.broker.features.dedup import KeyWindow
from vouchmq.server.broker.message import Message
from vouchmq.server.broker.queues.api import ConsumerPort
from vouchmq.server.broker.queues.classic import ClassicQueue
from vouchmq.server.broker.queues.ready_list import ReadyList
from vouchmq.server.broker.queues.settlement import DeadLetterReason
from vouchmq.server.cli.main import main
from vouchmq.server.faults.sync_worker import Unsynced
from vouchmq.store.journal.journal import Journal, SyncTicket
from vouchmq.store.sync.group_commit import GroupCommit

VARIABLE: Final = "PLANTED_BUG"
LAZY_S: Final = 0.05
RARE: Final = int(os.environ.get("PLANTED_RARE", "1000"))
"""One message in so many is lost."""
SOMETIMES: Final = 5


def helper_only() -> None:
    """No bug: every sync is the helper's, for who wants to know which process is hit."""

    def sync_now(self: GroupCommit, *, with_consumer: bool = False, has_sent: bool = False) -> None:
        del with_consumer, has_sent
        self.request()

    GroupCommit.sync_now = sync_now  # type: ignore[method-assign]


def no_sync() -> None:
    """Syncs are reported, not made."""
    vouchmq.server.edge.app.start_worker = Unsynced  # type: ignore[attr-defined]


def confirm_before_sync() -> None:
    """What has been written counts as synced."""
    request = GroupCommit.request

    def hasty(self: GroupCommit) -> None:
        request(self)
        self._on_synced(self._journal.written_lsn)

    GroupCommit.request = hasty  # type: ignore[method-assign]


def confirm_by_wrong_lsn() -> None:
    """A sync also speaks for what is written while it runs."""
    reap = GroupCommit.on_readable

    def on_readable(self: GroupCommit) -> None:
        if self._ticket is not None:
            self._ticket = SyncTicket(
                self._journal.written_lsn, self._ticket.size_bytes, self._ticket.scope
            )
        reap(self)

    GroupCommit.on_readable = on_readable  # type: ignore[method-assign]


def confirm_before_write() -> None:
    """Blocks are written at leisure, and confirmed at once."""
    write, begin_sync = Journal.write, Journal.begin_sync
    last = 0.0

    def lazy(self: Journal) -> int:
        nonlocal last
        if time.monotonic() - last < LAZY_S:
            self.wants_sync = True
            return self.next_lsn - 1
        last = time.monotonic()
        return write(self)

    def generous(self: Journal) -> SyncTicket:
        ticket = begin_sync(self)
        return SyncTicket(self.next_lsn - 1, ticket.size_bytes, ticket.scope)

    Journal.write = lazy  # type: ignore[method-assign]
    Journal.begin_sync = generous  # type: ignore[method-assign]


def forget_deliveries() -> None:
    """That a message was delivered is not written down."""
    Journal.delivered = lambda self, queue_id, lsn: None  # type: ignore[method-assign]


def forget_acks() -> None:
    """That a message was acked is not written down."""

    def settle(self: Journal, queue_id: int, lsns: Sequence[int]) -> None:
        del self, queue_id, lsns

    Journal.settle = settle  # type: ignore[method-assign]


def split_turns() -> None:
    """Every run of messages is a block of its own, also inside a transaction."""
    append_run = Journal.append_run

    def impatient(self: Journal, queue_ids: tuple[int, ...], tail: bytes, raws: list[bytes]) -> int:
        lsn = append_run(self, queue_ids, tail, raws)
        self.write()
        return lsn

    Journal.append_run = impatient  # type: ignore[method-assign]


def forget_keys() -> None:
    """The keys of a window do not survive a restart."""
    KeyWindow.restore = lambda self, notes: None  # type: ignore[method-assign]


def forget_delayed() -> None:
    """What a delaying exchange holds does not survive a restart."""
    DelayQueue.restore = lambda self, store_id, spans, delivered_lsn: None  # type: ignore[method-assign]


def lose_dead_letters() -> None:
    """What dies is gone."""

    def dead_letter(self: ClassicQueue, messages: list[Message], reason: DeadLetterReason) -> None:
        del reason
        self.drop(messages)

    ClassicQueue.dead_letter = dead_letter  # type: ignore[method-assign]


def lose_some() -> None:
    """Now and then a message is taken from its queue and given to nobody."""
    take = ClassicQueue.take

    def careless(self: ClassicQueue, line: ReadyList, count: int) -> list[Message]:
        batch = take(self, line, count)
        kept = [message for message in batch if (message[2] >> 1) % RARE]
        self.unacked_count -= len(batch) - len(kept)
        return kept

    ClassicQueue.take = careless  # type: ignore[method-assign]


def overtake() -> None:
    """Now and then the head of a queue is sent to its end."""
    take = ReadyList.take
    taken = 0

    def unfair(self: ReadyList, count: int) -> list[Message]:
        nonlocal taken
        taken += 1
        if taken % SOMETIMES == 0 and len(self.ready) > 1:
            self.ready.rotate(-1)
        return take(self, count)

    ReadyList.take = unfair  # type: ignore[method-assign]


def forget_redelivered() -> None:
    """Deliveries are never marked as redelivered."""
    hand_out = ClassicQueue.deliver

    def innocent(
        self: ClassicQueue,
        consumer: ConsumerPort,
        line: ReadyList,
        batch: list[Message],
        mark: int = -1,
    ) -> bool:
        del mark
        return hand_out(self, consumer, line, batch, 0)

    ClassicQueue.deliver = innocent  # type: ignore[method-assign]


BUGS: Final[dict[str, Callable[[], None]]] = {
    "helper-only": helper_only,
    "no-sync": no_sync,
    "confirm-before-sync": confirm_before_sync,
    "confirm-by-wrong-lsn": confirm_by_wrong_lsn,
    "confirm-before-write": confirm_before_write,
    "forget-deliveries": forget_deliveries,
    "forget-acks": forget_acks,
    "split-turns": split_turns,
    "forget-keys": forget_keys,
    "forget-delayed": forget_delayed,
    "lose-letters": lose_dead_letters,
    "lose-some": lose_some,
    "overtake": overtake,
    "forget-redelivered": forget_redelivered,
}

if __name__ == "__main__":
    BUGS[os.environ[VARIABLE]]()
    sys.exit(main())
