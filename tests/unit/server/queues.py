"""What stands around a queue under test: consumers with room, a turn, a journal."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, cast

from tests.unit.server.broker.paging.paged_worlds import FakePagedStore
from vouchmq.server.broker.features.feature import FeatureContext
from vouchmq.server.broker.message import Message
from vouchmq.server.broker.paging.pager import Pager
from vouchmq.server.broker.queues.api import Queue
from vouchmq.server.broker.queues.classic import ClassicQueue
from vouchmq.server.broker.queues.spec import QueueSpec
from vouchmq.server.channel.consumer import Credit, DeliveryChannel
from vouchmq.server.connection.outbox import Outbox
from vouchmq.server.runtime.flow import FlowControl

QUEUE_ID = 5
TAIL = b"\x00\x01q"


@dataclass
class Shared:
    """Room that several outlets share; None is no limit."""

    left: int | None = None


@dataclass(eq=False)
class FakeConsumer:
    """A consumer with so much room; None is no limit."""

    name: str
    left: int | None = None
    priority: int = 0
    no_ack: bool = False
    shared: Shared | None = None
    served: list[tuple[int, bool]] = field(default_factory=list)  # (seq, redelivered)
    held: list[Message] = field(default_factory=list)
    is_told_of_deletion: bool = False
    queue: ClassicQueue | None = None
    on_served: Callable[[FakeConsumer, list[Message]], None] | None = None

    @property
    def shares_room(self) -> bool:
        return self.shared is not None

    @property
    def judges_size(self) -> bool:
        return False

    def capacity(self, head: bytes) -> int:
        rooms = [self.left, self.shared.left if self.shared is not None else None]
        return min((room for room in rooms if room is not None), default=1 << 30)

    @property
    def has_outstanding(self) -> bool:
        return bool(self.held)

    def deliver(
        self, messages: list[Message], mark: int, shown: list[Message] | None = None
    ) -> None:
        assert messages
        assert len(messages) <= self.capacity(messages[0][0])
        if self.left is not None:
            self.left -= len(messages)
        if self.shared is not None and self.shared.left is not None:
            self.shared.left -= len(messages)
        self.served += [(message[2], message[2] <= mark) for message in messages]
        if self.on_served is not None:
            self.on_served(self, messages)
        if self.no_ack:
            assert self.queue is not None
            self.queue.settle(messages)
        else:
            self.held += messages

    def give(self, left: int | None) -> None:
        """It has so much room now."""
        self.left = left
        assert self.queue is not None
        self.queue.credit_available(self)

    def queue_deleted(self) -> None:
        self.is_told_of_deletion = True


def silent_channel() -> DeliveryChannel:
    """A channel of consumers that nobody asks for anything."""
    outbox = Outbox(FakeFlusher(), lambda *_: True, 1 << 20, lambda: None)
    parts = SimpleNamespace(outbox=outbox, credit=Credit(), octets=b"\0\1", frame_max=4096)
    return cast("DeliveryChannel", parts)


class FakeFlusher:
    """Flushes nothing."""

    def wants_flush(self, outbox: Outbox) -> None:
        raise AssertionError("nothing is said here")


def no_flow_control() -> FlowControl:
    """One that holds nobody back."""
    return FlowControl(lambda: 0.0, None, 0)


@dataclass
class FakeTurn:
    """Remembers which queues asked for a dispatch."""

    asked: list[Queue] = field(default_factory=list)
    watermark: int = 0
    flow: FlowControl = field(default_factory=no_flow_control)

    def wants_dispatch(self, queue: Queue) -> None:
        self.asked.append(queue)

    def waits_for_sync(self, queue: Queue) -> None:
        raise AssertionError(f"{queue.spec.name} hands out what is not on disk")

    def run(self) -> None:
        """Dispatch those that asked, until none does."""
        while self.asked:
            asked, self.asked[:] = list(self.asked), []
            for queue in asked:
                queue.dispatch()


@dataclass
class FakeLog:
    """The fate of stored copies."""

    settled: list[int] = field(default_factory=list)
    mark: int = 0

    def settle(self, queue_id: int, lsns: Sequence[int]) -> None:
        assert queue_id == QUEUE_ID
        assert lsns
        self.settled += lsns

    def delivered(self, queue_id: int, lsn: int) -> None:
        assert queue_id == QUEUE_ID
        # As the journal does: a mark that is told again, or an older one, says nothing new.
        self.mark = max(self.mark, lsn)


def no_features() -> FeatureContext:
    """What is around queues that have no features, and cannot have any."""
    around: Any = SimpleNamespace(now_ms=lambda: 0)
    return FeatureContext(
        around, around, around, around, serve=lambda _: False, expire=lambda _: None
    )


@dataclass
class Stage:
    """A queue and all that it touches."""

    durable: bool = True
    turn: FakeTurn = field(default_factory=FakeTurn)
    log: FakeLog = field(default_factory=FakeLog)
    unused: list[ClassicQueue] = field(default_factory=list)
    store: FakePagedStore = field(default_factory=FakePagedStore)
    budget: tuple[int, int] = (1 << 62, 1 << 62)
    message_octets: int = 100
    queue: ClassicQueue = field(init=False)
    lsn: int = 0

    def __post_init__(self) -> None:
        self.pager = Pager(self.store, *self.budget)
        spec = QueueSpec("q", "/", QUEUE_ID, self.durable, None, False, {})
        self.queue = ClassicQueue(
            spec, self.turn, self.log, self.pager, self.unused.append, no_features()
        )

    def enqueue(self, count: int, *, stored: bool = False, size: int = 0) -> list[int]:
        """Publish a run of messages; gives their seqs."""
        size = size or self.message_octets
        raw = b"r" * size
        seqs = [2 * (self.lsn + number + 1) + stored for number in range(count)]
        self.lsn += count
        messages = [(raw, TAIL, seq, 0) for seq in seqs]
        if stored:
            self.store.stored.update({seq >> 1: (raw, TAIL) for seq in seqs})
        self.queue.enqueue(messages, (count, count * size, size), stored=stored)
        return seqs

    def consume(self, name: str, left: int | None = None, **more: object) -> FakeConsumer:
        """Add a consumer."""
        consumer = FakeConsumer(name, left, queue=self.queue, **more)  # type: ignore[arg-type]
        self.queue.add_consumer(consumer, exclusive=False)
        return consumer

    def ready_seqs(self) -> list[int]:
        """Ready messages in memory, in order, when what came back is at its place."""
        self.queue.take_in(at_once=True)
        return [message[2] for message in self.queue.ready.in_memory()]
