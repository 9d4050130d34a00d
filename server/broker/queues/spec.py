"""What a queue is by declaration, and what the vhost asks of a queue.

What else others ask of a queue is in `api.py`; the vhost needs no more than the protocol here, so
that either can be tested without the other.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from vouchmq.protocol.errors import ResourceLocked
from vouchmq.protocol.fields import Table
from vouchmq.server.broker.counters import QueueCounters
from vouchmq.server.broker.equivalence import require_same_flag
from vouchmq.server.broker.features.options import levels_of
from vouchmq.server.broker.names import queue_text


@dataclass(slots=True, frozen=True)
class QueueSpec:
    """A queue as it was declared.

    `queue_id` is the number under which the journal keeps the queue, 0 when it is not stored; it
    is never given twice. `exclusive_owner` is the connection that alone may use the queue.
    """

    name: str
    vhost: str
    queue_id: int
    durable: bool
    exclusive_owner: object | None
    auto_delete: bool
    arguments: Table

    @property
    def stored(self) -> bool:
        """Whether the queue survives a restart: an exclusive one dies before (QUEUE-06)."""
        return self.durable and self.exclusive_owner is None

    @property
    def store_ids(self) -> range:
        """The numbers that are the queue's alone: one for each priority level (PRIO-01)."""
        return range(self.queue_id, self.queue_id + levels_of(self.arguments)[0] + 1)

    @property
    def text(self) -> str:
        """The {Q} of error texts (GEN-04)."""
        return queue_text(self.name, self.vhost)

    def require_access(self, owner: object) -> None:
        """Let the connection `owner` use the queue.

        Raises:
            ResourceLocked: 405, it is exclusive to another connection.

        Spec: QUEUE-30
        """
        if self.exclusive_owner is not None and self.exclusive_owner is not owner:
            raise self._locked()

    def require_equivalent(
        self, durable: bool, exclusive_owner: object | None, auto_delete: bool
    ) -> None:
        """Compare the flags of a later declaration, exclusiveness first.

        Raises:
            ResourceLocked: 405, it is exclusive and should not be, or the reverse.
            PreconditionFailed: 406, naming the first other difference.

        Spec: QUEUE-20, QUEUE-21
        """
        if self.exclusive_owner is not exclusive_owner:
            raise self._locked()
        require_same_flag("durable", self.text, durable, self.durable)
        require_same_flag("auto_delete", self.text, auto_delete, self.auto_delete)

    def _locked(self) -> ResourceLocked:
        return ResourceLocked(
            f"cannot obtain exclusive access to locked {self.text}. It could be originally "
            "declared on another connection or the exclusive property value does not match that "
            "of the original declaration."
        )


class QueueLike(Protocol):
    """What the vhost asks of a queue; `counters`: what has become of its messages."""

    counters: QueueCounters

    if not TYPE_CHECKING:
        __slots__ = ()  # or whoever implements it had a `__dict__` for nothing

    spec: QueueSpec  # the declaration
    is_paused: bool  # nobody gets anything out of it

    @property
    def ready_count(self) -> int:
        """Messages waiting; unacked ones do not count (QUEUE-01)."""

    @property
    def consumer_count(self) -> int:
        """All consumers, whether they can take a message or not."""

    @property
    def store_ids(self) -> list[int]:
        """Under which the journal keeps its copies, none when it keeps none."""

    def pause(self, *, is_paused: bool) -> None:
        """Hand out nothing from now on, or go on; what comes in does (HTTP-36)."""

    def used(self) -> None:
        """It was declared, also passively: its expiry begins anew, and what is told of it is true
        now (TTL-20).
        """

    def purge_some(self, most: int) -> int:
        """Drop a part of what is ready; 0 when `purge` is to do the rest at once."""

    def purge(self) -> int:
        """Drop the ready messages and say how many they were (QUEUE-60)."""

    def deleted(self) -> None:
        """The queue is out of the vhost: drop its messages and cancel its consumers (CONS-40).

        That it is gone has been logged already, for all its messages at once.
        """
