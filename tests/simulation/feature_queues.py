"""Queues that write everything that happens to them into the books of the world they are in.

They are the broker's own, watched from outside: what comes in, what goes out and why. Without
books (while a copy of a crashed disk is being looked at) they are nothing but queues.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import vouchmq.server.runtime.queue_factory
from tests.simulation import crashes
from vouchmq.server.broker.delays import DelayQueue
from vouchmq.server.broker.queues.api import Queue, always
from vouchmq.server.broker.queues.classic import ClassicQueue

if TYPE_CHECKING:
    from tests.simulation.feature_books import Books
    from vouchmq.server.broker.message import Message
    from vouchmq.server.broker.queues.api import ConsumerPort
    from vouchmq.server.broker.queues.ready_list import ReadyList, RunSize
    from vouchmq.server.broker.queues.settlement import DeadLetterReason, Outcome


class OpenBooks:
    """Whose books are open."""

    books: Books | None = None


class WatchedQueue(ClassicQueue):
    """A queue that writes into the books."""

    __slots__ = ()

    def enqueue(self, messages: Iterable[Message], size: RunSize, *, stored: bool) -> None:
        some = list(messages)
        super().enqueue(some, size, stored=stored)
        if OpenBooks.books is not None:
            OpenBooks.books.came(self, some)

    def settle(self, messages: list[Message]) -> None:
        if OpenBooks.books is not None:
            OpenBooks.books.settled(self, messages)
        super().settle(messages)

    def discard(self, messages: list[Message], reason: DeadLetterReason) -> None:
        if OpenBooks.books is not None:
            OpenBooks.books.discarded(self, messages)
        super().discard(messages, reason)

    def requeue(self, messages: list[Message], outcome: Outcome) -> None:
        if OpenBooks.books is not None:
            OpenBooks.books.requeued(self, messages, outcome)
        super().requeue(messages, outcome)

    def dead_letter(self, messages: list[Message], reason: DeadLetterReason) -> None:
        if OpenBooks.books is None:
            super().dead_letter(messages, reason)
            return
        with OpenBooks.books.burying(self, messages, reason):
            super().dead_letter(messages, reason)

    def unsettle(self, messages: list[Message]) -> None:
        if OpenBooks.books is not None:
            OpenBooks.books.came_back(self, messages)
        super().unsettle(messages)

    def forget_refused(self, first_lsn: int) -> None:
        if OpenBooks.books is not None:
            OpenBooks.books.forgotten(self, first_lsn)
        super().forget_refused(first_lsn)

    def purge(self) -> int:
        if OpenBooks.books is None:
            return super().purge()
        if self.hooks is not None:
            self.hooks.run_outside_dispatch()
        OpenBooks.books.purging(self)
        return super().purge()

    def deleted(self) -> None:
        if OpenBooks.books is not None:
            OpenBooks.books.deleted(self)
        super().deleted()

    def dispatch(self) -> None:
        if OpenBooks.books is None:
            super().dispatch()
            return
        with OpenBooks.books.trying(self):
            OpenBooks.books.unserved = self.spec.name
            super().dispatch()
        OpenBooks.books.dispatched(self)

    def get(
        self, *, no_ack: bool, may_leave: Callable[[int], bool] = always
    ) -> tuple[Message, Message, bool] | None:
        found = super().get(no_ack=no_ack, may_leave=may_leave)
        if OpenBooks.books is not None and found is not None:
            OpenBooks.books.got(self, found[0], found[2])
        return found

    def take(self, line: ReadyList, count: int) -> list[Message]:
        batch = super().take(line, count)
        if OpenBooks.books is not None:
            OpenBooks.books.taken(self, line, batch)
        return batch

    def deliver(
        self, port: ConsumerPort, line: ReadyList, batch: list[Message], mark: int = -1
    ) -> bool:
        if OpenBooks.books is not None:
            OpenBooks.books.handed_out(self, port, batch, line.mark if mark < 0 else mark)
        return super().deliver(port, line, batch, mark)

    def on_publish_refused(self, message: Message) -> None:
        if OpenBooks.books is not None:
            OpenBooks.books.turned_away.add(crashes.number_in(message[0]))
        super().on_publish_refused(message)


class WatchedHold(DelayQueue):
    """A hold that writes into the books."""

    __slots__ = ()

    def __init__(
        self, *around: Any, release: Callable[[Queue, str, list[Message]], None], **more: Any
    ) -> None:
        def watched(delay_queue: Queue, exchange: str, messages: list[Message]) -> None:
            if OpenBooks.books is None:
                release(delay_queue, exchange, messages)
                return
            with OpenBooks.books.releasing(self, exchange, messages):
                release(delay_queue, exchange, messages)

        super().__init__(*around, release=watched, **more)

    def enqueue(self, messages: Iterable[Message], size: RunSize, *, stored: bool) -> None:
        some = list(messages)
        super().enqueue(some, size, stored=stored)
        if OpenBooks.books is not None:
            OpenBooks.books.came(self, some)

    def forget_refused(self, first_lsn: int) -> None:
        if OpenBooks.books is not None:
            OpenBooks.books.forgotten(self, first_lsn)
        super().forget_refused(first_lsn)

    def deleted(self) -> None:
        if OpenBooks.books is not None:
            OpenBooks.books.deleted(self)
        super().deleted()


@contextmanager
def watched_queues(kind: type[WatchedQueue] = WatchedQueue) -> Iterator[None]:
    """Every queue that is made is one of these."""
    with (
        patch.object(vouchmq.server.runtime.queue_factory, "ClassicQueue", kind),
        patch.object(vouchmq.server.runtime.queue_factory, "DelayQueue", WatchedHold),
    ):
        try:
            yield
        finally:
            OpenBooks.books = None
