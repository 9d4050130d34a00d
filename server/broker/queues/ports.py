"""What a queue may ask of a consumer, and of those it reports to.

A queue knows its consumers only through this page: it never sees a channel or a socket.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from vouchmq.server.broker.enqueue import Author
    from vouchmq.server.broker.message import Message
    from vouchmq.server.broker.queues.classic import Queue


class ConsumerPort(Protocol):
    """A consumer, seen from its queue."""

    priority: int
    no_ack: bool

    @property
    def shares_room(self) -> bool:
        """True when its room depends on other consumers' deliveries or on message sizes."""

    @property
    def judges_size(self) -> bool:
        """True when a smaller head may find room where another found none."""

    @property
    def has_outstanding(self) -> bool:
        """True while deliveries to it are unsettled."""

    def capacity(self, head: Message) -> int:
        """How many messages it can take now, `head` being the first; 0 when it must wait.

        Its queue hears of it when that has changed, see `Queue.credit_available`.
        """

    def deliver(
        self, messages: list[Message], mark: int, shown: list[Message] | None = None
    ) -> None:
        """Take these messages; those with a seq up to `mark` had been handed out before.

        `shown` are the same as the client is to see them, if that is something else.
        """

    def queue_deleted(self) -> None:
        """The queue is gone, and this consumer with it (CONS-40)."""


class Dispatcher(Protocol):
    """Who calls `Queue.dispatch` once per loop turn; `watermark` is the highest LSN on disk."""

    watermark: int

    def wants_dispatch(self, queue: Queue) -> None:
        """Put the queue on this turn's list; the queue sees to it that it stands there once."""

    def waits_for_sync(self, queue: Queue) -> None:
        """Wake this queue when the watermark moves, once: what came to it is not on disk yet."""


class SettlementLog(Protocol):
    """Where it is written down what became of stored copies: the journal."""

    def settle(self, queue_id: int, lsns: Sequence[int]) -> None:
        """These copies are gone."""

    def delivered(self, queue_id: int, lsn: int) -> None:
        """Every copy up to `lsn` has been handed out at least once (DURABLE-12)."""


class NoteLog(Protocol):
    """Where features of a queue write down what must be known after a restart: the journal."""

    def note(self, scope_id: int, key: bytes, value: bytes) -> int:
        """Something about a queue to be known after a restart; the newest value counts.

        The first octet of the key says whose it is, see `FeatureHooks.recall`.
        """

    def unnote(self, scope_id: int, key: bytes) -> None:
        """It need not be known any more."""


class QueueRecorder(Protocol):
    """Where a queue writes what becomes of its copies while the ledger is on.

    `docs/operate/ledger.md` says what the lines mean.
    """

    @property
    def qid(self) -> int:
        """The number of the queue in the ledger."""

    def dropped(self, messages: Sequence[Message], why: str) -> None:
        """These copies are gone, and nothing is left of them."""

    def died(self, messages: Sequence[Message], why: str, exchange: str) -> None:
        """These copies are gone as dead letters."""

    def back(self, messages: Sequence[Message]) -> None:
        """Their end was refused by the disk: they are in the queue again."""

    def lost(self, lsns: Iterable[int], why: str) -> None:
        """Copies are gone, by their LSNs."""

    def lost_ranges(self, ranges: Iterable[tuple[int, int]], why: str) -> None:
        """Copies are gone, by ranges of their LSNs."""

    def moves(self, messages: Sequence[Message], raws: Sequence[bytes], why: str) -> Author:
        """Copies that leave for other queues; `raws` is what of each of them arrives there."""

    def purged(self, queue: Queue) -> None:
        """What was ready is gone, and has been told of."""

    def deleted(self, queue: Queue) -> None:
        """The queue is about to go, with all that it holds, unacked or not."""

    def dealing(self) -> None:
        """A batch is dealt to several consumers from here on …"""

    def dealt(self) -> None:
        """… to here: what they get is one step in the order of the queue."""
