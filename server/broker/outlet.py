"""What a queue may ask of a consumer, and of the rooms it reports to.

A queue knows its consumers only through this page: it never sees a channel or a socket.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence

    from server.broker.message import Message
    from server.broker.queue import Queue


class Outlet(Protocol):
    """A consumer, seen from its queue."""

    priority: int
    no_ack: bool

    @property
    def shares_room(self) -> bool:
        """True when its room depends on other consumers' deliveries or on message sizes."""

    @property
    def has_outstanding(self) -> bool:
        """True while deliveries to it are unsettled."""

    def room(self, head: Message) -> int:
        """How many messages it can take now, `head` being the first; 0 when it must wait."""

    def deliver(
        self, messages: list[Message], mark: int, shown: list[Message] | None = None
    ) -> None:
        """Take these messages; those with a seq up to `mark` had been handed out before.

        `shown` are the same as the client is to see them, if that is something else.
        """

    def queue_deleted(self) -> None:
        """The queue is gone, and this consumer with it (CONS-40)."""


class Dispatcher(Protocol):
    """Who calls `Queue.dispatch` once per loop turn."""

    def wants_dispatch(self, queue: Queue) -> None:
        """Put the queue on this turn's list; the queue sees to it that it stands there once."""


class CopyLog(Protocol):
    """Where the fate of stored copies is written down: the journal."""

    def settle(self, queue_id: int, lsns: Sequence[int]) -> None:
        """These copies are gone."""

    def delivered(self, queue_id: int, lsn: int) -> None:
        """Every copy up to `lsn` has been handed out at least once (DURABLE-12)."""


class NoteLog(Protocol):
    """Where rooms of a queue write down what must be known after a restart: the journal."""

    def note(self, scope_id: int, key: bytes, value: bytes) -> int:
        """Something about a queue to be known after a restart; the newest value counts.

        The first octet of the key says whose it is, see `care.py`.
        """

    def unnote(self, scope_id: int, key: bytes) -> None:
        """It need not be known any more."""
