"""The connection of a query in mode queue or spool, and the one thread that reads from it.

Lives in the driver-side process for as long as the query runs. Between triggers nobody else would
answer heartbeats, and a batch may last longer than the heartbeat: so a thread polls all the time.
What has arrived waits in the channels until the next trigger takes it. Each queue has a channel of
its own, its `QueueChannel`.

    broker ──▶ pump thread: poll ──▶ channels ──▶ take() of the trigger
    broker ◀──────────────────────── channels ◀── ack() of the trigger

When the connection is lost, what has arrived is dropped, because the broker delivers it again, and
the `generation` counts up: acks of an older one are not sent, their tags mean nothing any more.
Must not know Spark, rows, nor files.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

from vouchmq.kit import bulk
from vouchmq.spark.options import SourceOptions, refuse
from vouchmq.spark.source.data_directory import (
    POSITION,
    DirectoryGuard,
    ForeignDirectoryError,
    Seen,
)
from vouchmq.spark.source.places import SEQUENCE
from vouchmq.spark.source.queue_channel import Portion, QueueChannel

# What a broker that numbers deliveries says of itself.
CAPABILITY: Final = "queue_sequence"
HEARTBEAT_S: Final = 30
# The longest that anybody waits for the pump thread to hear of it.
POLL_S: Final = 0.05
BACK_OFF_S: Final = (0.1, 2.0)
# So long a broker may be away before the query fails.
LOST_FOR_S: Final = 300.0
# All of connection.start-ok must fit into a first frame of 4096 bytes.
_NAMED_QUEUES: Final = 10
_NAME_LENGTH: Final = 200
# How long the end of a query waits for its thread.
_END_S: Final = 2.0

log = logging.getLogger("vouchmq.spark")


class ConsumerError(Exception):
    """The query cannot go on; the text is for its user."""


class _CancelledError(Exception):
    """The broker has cancelled the consumer of a queue."""


class Barrier:
    """Whether everything that was sent before it has certainly arrived at the broker.

    Where the broker tells its position, it is on disk as well, or committed in a shared log.
    """

    def __init__(self, generation: int) -> None:
        self.generation = generation
        self.is_passed = False


class QueueConsumer:
    """Consumers of some queues.

    Args:
        options: as the user gave them
        connect: opens a connection; see `BulkConnection.open`
    """

    def __init__(
        self, options: SourceOptions, *, connect: Callable[..., Any] = bulk.BulkConnection.open
    ) -> None:
        self._options = options
        self._open = connect
        self.queue_channels = [QueueChannel(queue) for queue in options.queues]
        self._guard = DirectoryGuard(asks_separately=True)
        # The thread that connects, and the trigger that asks.
        self._guard_lock = threading.Lock()
        self.generation = 0
        # Whether deliveries have numbers; known once connected.
        self.has_sequence = False
        self.is_connected = False
        # Messages waiting in the queues when they were last connected to.
        self.ready_at_connect = 0
        self._connection: Any = None
        # To ask how much is waiting, and of which generation it is.
        self._side_connection: Any = None
        self._side_channel: Any = None
        self._side_generation = 0
        self._failure: Exception | None = None
        self._news = threading.Condition()
        # Fences to be asked for by the thread: whoever waits for one holds up a trigger.
        self._fences: deque[Barrier] = deque()
        self._ending = threading.Event()
        self._thread: threading.Thread | None = None
        self._is_unlimited = False

    # From the triggers

    def start(self) -> None:
        """Connect, consume and begin to read.

        Raises:
            ConsumerError: no broker, no queue, no permission, or somebody else has it exclusively
        """
        began = time.monotonic()
        is_told = False
        while True:
            try:
                self._connect()
                break
            except ForeignDirectoryError:
                self._hang_up()
                raise
            except bulk.BulkError as error:
                self._hang_up()
                if time.monotonic() - began > self._patience_s(error):
                    raise ConsumerError(self._refusal(error)) from error
                if not is_told:
                    log.warning("vouchmq source: waiting: %s", self._refusal(error))
                    is_told = True
                time.sleep(BACK_OFF_S[0])
        self._thread = threading.Thread(target=self._pump, name="vouchmq-feed", daemon=True)
        self._thread.start()

    def _patience_s(self, error: bulk.BulkError) -> float:
        """How long a start waits for this to pass."""
        if is_exclusive_elsewhere(error):
            return self._options.connect_timeout_ms / 1000
        if self._options.has_several_brokers and is_passing(error):
            return self._options.read_timeout_ms / 1000
        return 0.0

    def stop(self) -> None:
        """End the thread and the connection; what is not acked goes back to the queues."""
        self._ending.set()
        if self._thread is not None:
            self._thread.join(_END_S)
        self._close_side_connection()
        self._hang_up()

    def check(self) -> None:
        """Raise what has ended the consumer, if anything has."""
        if self._failure is not None:
            raise self._failure

    def arrived(self) -> tuple[int, int]:
        """Messages and bytes that wait to be taken."""
        with self._news:
            counts = [queue_channel.arrived() for queue_channel in self.queue_channels]
        return sum(count for count, _ in counts), sum(size for _, size in counts)

    def wait(self, is_enough: Callable[[], bool], timeout_s: float) -> bool:
        """Wait until something is so; looked at whenever something has arrived.

        Raises:
            ConsumerError: the consumer has ended
        """
        deadline = time.monotonic() + timeout_s
        with self._news:
            while True:
                self.check()
                if is_enough():
                    return True
                left = deadline - time.monotonic()
                if left <= 0:
                    return False
                self._news.wait(left)

    def take(self, max_messages: int, max_bytes: int) -> list[Portion]:
        """Up to so much of what has arrived, evenly from all queues; one message at least.

        Raises:
            ConsumerError: the consumer has ended
        """
        self.check()
        with self._news:
            waiting = [
                queue_channel for queue_channel in self.queue_channels if queue_channel.arrived()[0]
            ]
            taken: dict[str, Portion] = {}
            while waiting and max_messages > 0 and (max_bytes > 0 or not taken):
                share = max(1, max_messages // len(waiting))
                for queue_channel in list(waiting):
                    deliveries, size = queue_channel.take(min(share, max_messages), max_bytes)
                    if deliveries:
                        portion = taken.setdefault(
                            queue_channel.queue, Portion(queue_channel, self.generation, [])
                        )
                        portion.deliveries.extend(deliveries)
                        max_messages -= len(deliveries)
                        max_bytes -= size
                    if not queue_channel.arrived()[0]:
                        waiting.remove(queue_channel)
                    if max_messages <= 0 or max_bytes <= 0:
                        break
            return list(taken.values())

    def untake(self, portion: Portion) -> None:
        """Give back what was taken, to be taken first again; in the order it came."""
        with self._news:
            if portion.generation == self.generation:
                portion.queue_channel.put_back(portion.deliveries)

    def ack(self, portions: Iterable[Portion]) -> bool:
        """Ack these deliveries; whether all could be: none of a connection that is gone."""
        sent = [self._ack_tags(portion) for portion in portions]
        return all(sent)

    def _ack_tags(self, portion: Portion) -> bool:
        tags = [delivery[0] for delivery in portion.deliveries]
        with self._news:
            if portion.generation != self.generation or not self.is_connected:
                return False
            channel = portion.queue_channel.channel
            through, singles = portion.queue_channel.settle(tags) if tags else (0, [])
        try:
            if through:
                channel.ack(through, multiple=True)
            if singles:
                channel.ack_many(singles)
        except bulk.BulkError as error:
            # The thread that reads finds the same and connects again.
            log.debug("acks that could not be sent: %s", error)
            return False
        return True

    def fence(self) -> Barrier:
        """Ask for a sign that the acks so far have arrived; without waiting for it."""
        fence = Barrier(self.generation)
        self._fences.append(fence)
        return fence

    def ready_count(self) -> int:
        """Messages waiting in the queues, by the broker's count; 0 while there is no connection."""
        try:
            channels = [
                (queue_channel.channel, queue_channel.queue)
                for queue_channel in self.queue_channels
            ]
            return sum(channel.declare_passive(queue)[0] for channel, queue in channels if channel)
        except bulk.BulkError as error:
            log.debug("messages could not be counted: %s", error)
            return 0

    def waiting_count(self) -> int | None:
        """As `ready_count`, at any time; None while nobody can tell.

        Over a connection of its own: in ours the answer would come behind all that is being
        delivered, which may be more than there is room for.
        """
        try:
            if self._side_connection is not None and self._side_generation != self.generation:
                self._close_side_connection()
            if self._side_connection is None:
                if (connection := self._connection) is None:
                    return None
                self._side_generation = self.generation
                self._side_connection = connection.another(name="vouchmq.spark backlog")
                self._side_channel = self._side_connection.channel()
            ask = self._side_channel.declare_passive
            return sum(int(ask(queue_channel.queue)[0]) for queue_channel in self.queue_channels)
        except bulk.BulkError as error:
            log.debug("messages could not be counted: %s", error)
            self._close_side_connection()
            return None

    def _close_side_connection(self) -> None:
        side, self._side_connection, self._side_channel = self._side_connection, None, None
        try:
            if side is not None:
                side.close()
        except bulk.BulkError as error:
            log.debug("closing the connection: %s", error)

    def next_properties(self) -> list[bytes]:
        """Of the message of each queue that is next to be taken, as far as there is one."""
        with self._news:
            first = [queue_channel.first() for queue_channel in self.queue_channels]
        return [delivery[4] for delivery in first if delivery is not None]

    def refuse_streams(self) -> None:
        """Look again at queues that have messages and have given none.

        Raises:
            ConsumerError: one is a stream, which gives a consumer of a queue only what is new
        """
        try:
            for queue_channel in self.queue_channels:
                if not queue_channel.is_known and self._is_stream(queue_channel.queue):
                    raise ConsumerError(self._stream_text(queue_channel.queue))
        except bulk.BulkError as error:
            log.debug("queues could not be looked at: %s", error)

    def require(self, seen: Seen | None) -> None:
        """A checkpoint has read here; see `DirectoryGuard`.

        Raises:
            ForeignDirectoryError: the broker does not hold what was seen
        """
        with self._guard_lock:
            self._guard.require(seen)

    def position(self, portions: Iterable[Portion]) -> tuple[bool, Seen | None]:
        """Where these were read, once everything that was delivered is on disk.

        Without a connection there is no such answer: then they are taken back, or come again.

        Returns:
            Whether they may be handed out; and where they were read, None if the broker is silent.
        """
        try:
            with self._guard_lock:
                return True, self._guard.position()
        except bulk.BulkError as error:
            log.debug("the broker could not be asked for its position: %s", error)
        for portion in portions:
            self.untake(portion)
        return False, None

    def unlimited(self, is_unlimited: bool) -> None:
        """Whether to read on above `maxBufferedBytes`: a replay must see what it waits for."""
        self._is_unlimited = is_unlimited

    # In the thread

    def _pump(self) -> None:
        try:
            while not self._ending.is_set():
                try:
                    self._turn()
                except (bulk.BulkError, _CancelledError) as error:
                    if not self._ending.is_set():
                        self._recover(error)
        except (ConsumerError, ForeignDirectoryError) as error:
            self._fail(error)
        except Exception as error:  # noqa: BLE001 - whatever it was, the query must hear of it
            self._fail(ConsumerError(f"reading from the broker failed: {error!r}"))
        finally:
            self._hang_up()

    def _turn(self) -> None:
        while self._fences:
            self._pass(self._fences.popleft())
        if self.arrived()[1] < self._options.max_buffered_bytes or self._is_unlimited:
            self._connection.poll(POLL_S)
        else:
            self._connection.beat()
            self._ending.wait(POLL_S)
        self._look()
        with self._news:
            self._news.notify_all()

    def _pass(self, fence: Barrier) -> None:
        if fence.generation == self.generation:
            if self._guard.has_identity:
                # Of acks that have only arrived, the next leader of a shared log knows nothing.
                self.queue_channels[0].channel.declare_passive(POSITION)
            else:
                for queue_channel in self.queue_channels:
                    queue_channel.channel.fence()
            fence.is_passed = True

    def _look(self) -> None:
        """What goes wrong without an exception; and whether the first message is of a stream."""
        for queue_channel in self.queue_channels:
            if queue_channel.channel.cancelled is not None:
                raise _CancelledError(queue_channel.queue)
            if queue_channel.is_known:
                continue
            with self._news:
                is_suspicious = queue_channel.is_suspicious()
            if is_suspicious:
                if self._is_stream(queue_channel.queue):
                    raise ConsumerError(self._stream_text(queue_channel.queue))
                queue_channel.is_known = True

    @staticmethod
    def _stream_text(queue: str) -> str:
        return f"queue '{queue}' is a stream; read it with option mode stream"

    def _is_stream(self, queue: str) -> bool:
        """A header alone proves nothing, it may have come with a copied message.

        Of a stream nothing can be fetched singly: 540, or whatever else, while a queue with an
        exclusive consumer answers 403 and any other one gives a message.
        """
        probe = self._connection.channel()
        try:
            got = probe.get(queue)
            if got is not None:
                probe.nack(got[0])
            probe.close()
        except bulk.BulkClosed as error:
            return error.code == 540
        return False

    def _recover(self, error: Exception) -> None:
        """Connect again after a loss.

        Raises:
            ConsumerError: it was no loss but a refusal, or it lasts too long
        """
        is_over = isinstance(error, bulk.BulkError) and not is_passing(error)
        if not is_over:
            log.warning("vouchmq source: %s", self._loss(error, self.arrived()[0]))
        self._hang_up()
        self._fences.clear()
        if is_over:
            raise ConsumerError(self._refusal(error)) from error
        deadline = time.monotonic() + LOST_FOR_S
        pause = BACK_OFF_S[0]
        while not self._ending.wait(pause):
            try:
                self._connect()
            except bulk.BulkError as again:
                self._hang_up()
                if not (is_passing(again) or is_exclusive_elsewhere(again)):
                    raise ConsumerError(self._refusal(again)) from again
                if time.monotonic() > deadline:
                    raise ConsumerError(
                        f"could not connect to a broker for {LOST_FOR_S:.0f} s: "
                        f"{self._refusal(again)}"
                    ) from again
                pause = min(2 * pause, BACK_OFF_S[1])
            else:
                log.warning("vouchmq source: reconnected")
                return

    def _connect(self) -> None:
        options = self._options
        connection = self._connection = self._open(
            options.url,
            connect_timeout_s=options.connect_timeout_ms / 1000,
            read_timeout_s=options.read_timeout_ms / 1000,
            heartbeat_s=HEARTBEAT_S,
            name=connection_name(options.queues),
        )
        with self._guard_lock:
            self._guard.connected(connection)
        is_offered = CAPABILITY in connection.capabilities
        if options.dedupe == "seq" and not is_offered:
            refuse("dedupe", "seq needs a broker that numbers deliveries; this one does not")
        if self.has_sequence and not is_offered:
            raise ConsumerError("this broker does not number deliveries; the previous one did")
        self.has_sequence = is_offered and options.dedupe in (None, "seq")
        ready = 0
        for queue_channel in self.queue_channels:
            channel = connection.channel()
            ready += channel.declare_passive(queue_channel.queue)[0]
            channel.qos(options.prefetch)
            queue_channel.begin(channel)
            channel.consume(
                queue_channel.queue,
                exclusive=options.exclusive,
                arguments=self._consumer_arguments(),
            )
        with self._news:
            self.ready_at_connect = ready
            self.is_connected = True
            self._news.notify_all()

    def _consumer_arguments(self) -> dict[str, Any]:
        options = self._options
        arguments: dict[str, Any] = {}
        if self.has_sequence:
            arguments[SEQUENCE] = True
        if options.consumer_priority is not None:
            arguments["x-priority"] = options.consumer_priority
        if options.consumer_timeout_ms is not None:
            arguments["x-consumer-timeout"] = options.consumer_timeout_ms
        return arguments

    def _hang_up(self) -> None:
        with self._news:
            connection, self._connection = self._connection, None
            if self.is_connected:
                self.generation += 1
            self.is_connected = False
            for queue_channel in self.queue_channels:
                queue_channel.end()
            self._news.notify_all()
        try:
            # Whoever waits for its answer hears that it is closed.
            self._guard.close()
            if connection is not None:
                connection.close()
        except bulk.BulkError as error:
            log.debug("closing the connection: %s", error)

    def _fail(self, error: Exception) -> None:
        log.error("vouchmq source: the query ends: %s", error)
        with self._news:
            self._failure = error
            self._news.notify_all()

    def _refusal(self, error: Exception) -> str:
        text = str(error)
        if is_exclusive_elsewhere(error):
            text += (
                "; another query or consumer reads this queue: end it, or wait until the broker "
                "has noticed that it is gone"
            )
        return text

    def _loss(self, error: Exception, dropped: int) -> str:
        if isinstance(error, _CancelledError):
            what = (
                f"the broker has cancelled the consumer of queue '{error}': the queue was deleted, "
                "or a batch lasted longer than the consumer timeout (then make batches smaller or "
                "raise option consumerTimeoutMs)"
            )
        elif is_delivery_timeout(error):
            what = (
                f"{error}: a batch lasted longer than the broker's delivery timeout and is "
                "redelivered; make batches smaller, or raise consumer_timeout at the broker"
            )
        else:
            what = f"connection lost: {error}"
        return f"{what}; {dropped} buffered messages dropped, they are delivered again"


def connection_name(queues: Sequence[str]) -> str:
    """What operators see of a query: its queues, as far as a line goes."""
    name = "vouchmq.spark " + ", ".join(queues[:_NAMED_QUEUES])
    if len(queues) > _NAMED_QUEUES or len(name) > _NAME_LENGTH:
        name = f"{name[:_NAME_LENGTH]}… ({len(queues)} queues)"
    return name


def is_exclusive_elsewhere(error: Exception) -> bool:
    """Whether somebody else consumes exclusively, or anybody at all while we ask for that."""
    return isinstance(error, bulk.BulkClosed) and error.code == 403 and "exclusive" in error.text


def is_delivery_timeout(error: Exception) -> bool:
    """Whether the broker has closed the channel because a delivery was not acked in time."""
    return isinstance(error, bulk.BulkClosed) and error.code == 406 and "timed out" in error.text


def is_passing(error: Exception) -> bool:
    """Whether it makes sense to connect again: lost, shut down, overslept; and not refused."""
    if not isinstance(error, bulk.BulkClosed):
        # No answer in time; or none of several brokers is there, whatever each has said.
        return True
    if is_delivery_timeout(error):
        return True
    # 320: closed by an operator or by the broker's end. 541: it has a fault of its own.
    return error.is_connection and error.code in (0, 320, 541)
