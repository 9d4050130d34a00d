"""Where streams begin and end: asked of a broker that says neither.

    consume(last) ──▶ fence, take, ack ──▶ … ──▶ two fences without news ──▶ the tail

A consumer at `last` gets the newest messages. A synchronous method on its channel is a fence: what
was sent before its answer is here by then. Waiting for silence instead is wrong on a busy machine,
and the message count of a declare is none for the streams of some brokers. Where a stream has a
process of its own a fence must reach that as well (`_reach_writer`). Everything found here
is an offset that was delivered, or one past it; a range may end there. Must not know Spark.

Spec: STREAM-16, STREAM-20
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, TypeVar

from vouchmq.kit.bulk import BulkClosed, BulkConnection, BulkError
from vouchmq.spark.sink.property_edit import stream_offset
from vouchmq.spark.source.consumer import CAPABILITY
from vouchmq.spark.source.data_directory import DirectoryGuard, Seen
from vouchmq.spark.source.places import PLACE_BYTES, SEQUENCE, places_of

if TYPE_CHECKING:
    from vouchmq.kit.bulk import BulkChannel, Delivery
    from vouchmq.spark.options import SourceOptions

OFFSET: Final = "x-stream-offset"

# Window of a probe: the newest messages of a stream, whatever their number.
_PREFETCH: Final = 1000
# What VouchMQ gives from `last` on, unless there are fewer.
_LAST_MESSAGES: Final = 256
_QUIET_FENCES: Final = 2
# While somebody publishes there is always news; what came after the question need not be in.
_LONG_ENOUGH_S: Final = 1.0
# A broker that has messages and does not send them is busy reading them from its disk.
_PATIENCE_S: Final = 10.0
_FENCE_PAUSE_S: Final = 0.005
# Between two questions to a broker that is away.
AWAY_PAUSE_S: Final = 0.1
# An offset that no stream gets to.
_NEVER: Final = 2**62

# Reply codes of a connection that was lost, or closed by an operator or a broker that goes down.
_AWAY: Final = frozenset({0, 320})

_T = TypeVar("_T")

log = logging.getLogger(__name__)


class NotAStreamError(Exception):
    """What is read as a stream is a queue."""


class StreamGoneError(Exception):
    """A stream was deleted while it was read."""


@dataclass(frozen=True, slots=True)
class Tail:
    """The newest end of a stream.

    Attributes:
        next: one past the offset of the newest message, 0 when there is none
        mean_bytes: of the newest messages, body and properties; 0 when there is none
        queue_id: of the stream; None when there is no message, or the broker does not tell
    """

    next: int
    mean_bytes: float = 0.0
    queue_id: int | None = None


def offset_of_delivery(queue: str, delivery: Delivery) -> int:
    """Where a message stands in its stream.

    Raises:
        NotAStreamError: it came from a queue.
    """
    offset = stream_offset(delivery[4])
    if offset is None:
        raise NotAStreamError(
            f"queue '{queue}' is not a stream (its messages have no {OFFSET}): use mode spool "
            "or queue"
        )
    return offset


class Probe:
    """A connection of its own for questions about streams; opened again when it was lost.

    It needs no heartbeats, as nobody reads from it between two questions: every question has a
    time limit, and TCP notices a host that is gone.
    """

    def __init__(self, options: SourceOptions) -> None:
        """Note the options; the connection is opened by the first question."""
        self._options = options
        self._guard = DirectoryGuard()
        self._connection: BulkConnection | None = None
        self._has_connected = False
        self._watched: dict[str, int] = {}
        self._watchers: list[BulkChannel] = []

    def __enter__(self) -> Probe:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection; the next question opens another."""
        self._watched, self._watchers = {}, []
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def insist(self, question: Callable[[], _T]) -> _T:
        """An answer, asked for again while the broker is away: for `readTimeoutMs`.

        A broker that was never there is not waited for, unless it may be one of several.

        Raises:
            BulkError: it is away for longer, or has refused something
        """
        deadline = time.monotonic() + self._options.read_timeout_ms / 1000
        while True:
            try:
                return question()
            except BulkError as error:
                is_awaited = self._has_connected or self._options.has_several_brokers
                if not (is_awaited and is_away(error)) or time.monotonic() > deadline:
                    raise
                log.warning("%s; waiting for it", error)
            time.sleep(AWAY_PAUSE_S)

    def newest(self, queue: str) -> Tail:
        """The end of a stream as it was when asked, or later.

        Raises:
            BulkClosed: the broker's code and text, or the connection was lost (code 0)
            NotAStreamError: it is a queue
        """
        return self._ask(lambda connection: newest(connection, queue))

    def oldest(self, queue: str) -> int | None:
        """The offset of the oldest message there is; None when there is none. Raises: as newest."""
        return self._ask(lambda connection: first_offset(connection, queue, "first"))

    def since(self, queue: str, when: datetime) -> int:
        """The offset of the first message that arrived then, or of one shortly before.

        RabbitMQ finds the chunk of messages that it is in. Raises: as newest.
        """
        found = self._ask(lambda connection: first_offset(connection, queue, when))
        return self.newest(queue).next if found is None else found

    def require(self, seen: Seen | None) -> None:
        """A checkpoint has read here; see `DirectoryGuard`.

        Raises:
            ForeignDirectoryError: the broker does not hold what was seen
        """
        self._guard.require(seen)

    def position(self) -> Seen | None:
        """Where was read until now; None where the broker does not tell. Raises: as newest."""
        return self._ask(lambda _: self._guard.position())

    def is_watching(self, positions: dict[str, int]) -> bool:
        """Whether `news` waits for what comes at these positions."""
        return bool(self._watched) and self._watched == positions

    def news(self, positions: dict[str, int], timeout_s: float) -> bool:
        """Whether something arrives at these positions, or has: waited for until then.

        Consumers stay open for the next call with the same positions, so that asking often costs
        next to nothing.

        Raises:
            BulkClosed: as newest; a stream was deleted: 404
        """
        return self._ask(lambda connection: self._news(connection, positions, timeout_s))

    def _news(
        self, connection: BulkConnection, positions: dict[str, int], timeout_s: float
    ) -> bool:
        if not self.is_watching(positions):
            self._stop_watching()
            for queue, position in positions.items():
                self._watchers.append(_consumer(connection, queue, position, prefetch=1))
            self._watched = dict(positions)
        deadline = time.monotonic() + timeout_s
        while True:
            if any(channel.arrived[0] or channel.cancelled for channel in self._watchers):
                self._stop_watching()
                return True
            left = deadline - time.monotonic()
            if left <= 0:
                return False
            connection.poll(left)

    def _stop_watching(self) -> None:
        watchers, self._watchers, self._watched = self._watchers, [], {}
        for channel in watchers:
            channel.close()

    def _ask(self, question: Callable[[BulkConnection], _T]) -> _T:
        """Put a question; once more when the connection was lost since the last one."""
        is_fresh = self._connection is None
        try:
            return question(self._opened())
        except BulkError as error:
            if self._connection is not None and self._connection.ended is not None:
                self.close()
            if is_fresh or not is_away(error):
                raise
        return question(self._opened())

    def _opened(self) -> BulkConnection:
        if self._connection is None:
            connection = connect(self._options, "driver")
            try:
                self._guard.connected(connection)
            except BaseException:
                connection.close()
                raise
            self._connection = connection
            self._has_connected = True
        return self._connection


def is_away(error: BulkError) -> bool:
    """Whether the broker may be back soon: it is lost, or goes down, and has refused nothing."""
    if isinstance(error, BulkClosed):
        return error.is_connection and error.code in _AWAY
    # The one from several URLs, or an answer that took too long.
    return True


def connect(options: SourceOptions, who: str) -> BulkConnection:
    """A connection as the options say, without heartbeats."""
    return BulkConnection.open(
        options.url,
        connect_timeout_s=options.connect_timeout_ms / 1000,
        read_timeout_s=options.read_timeout_ms / 1000,
        heartbeat_s=0,
        name=f"vouchmq.spark stream {who}",
    )


def newest(connection: BulkConnection, queue: str) -> Tail:
    """The end of a stream; see `Probe.newest`."""
    tail = _newest(connection, queue)
    # RabbitMQ's `last` is the newest chunk, also one that it is still writing and gives nobody
    # yet. Its count may still say 0 then; its first chunk tells better.
    if not tail.next and first_offset(connection, queue, "first") is not None:
        return _newest(connection, queue, at_least=1)
    return tail


def _newest(connection: BulkConnection, queue: str, at_least: int = 0) -> Tail:
    channel = _consumer(connection, queue, "last", asks_id=_is_exact(connection))
    try:
        tail, count, size = 0, 0, 0
        queue_id = None
        added = PLACE_BYTES if _is_exact(connection) else 0
        at_least = max(at_least, _at_least(connection, channel, queue))
        _reach_writer(connection, channel, queue)
        for deliveries in _until_quiet(channel, at_least):
            tail = offset_of_delivery(queue, deliveries[-1]) + 1
            place = places_of([deliveries[-1][4]])[0]
            queue_id = place[0] if place is not None else None
            count += len(deliveries)
            size += sum(len(each[4]) + len(each[5]) - added for each in deliveries)
            channel.ack(deliveries[-1][0], multiple=True)
        return Tail(tail, size / count if count else 0.0, queue_id)
    finally:
        channel.close()


def first_offset(connection: BulkConnection, queue: str, start: str | datetime) -> int | None:
    """The offset of the first message from `start` on; None when there is none yet."""
    channel = _consumer(connection, queue, start, prefetch=1)
    try:
        at_least = min(1, _at_least(connection, channel, queue)) if start == "first" else 0
        _reach_writer(connection, channel, queue)
        for deliveries in _until_quiet(channel, at_least):
            return offset_of_delivery(queue, deliveries[0])
        return None
    finally:
        channel.close()


def _consumer(
    connection: BulkConnection,
    queue: str,
    start: str | int | datetime,
    prefetch: int = _PREFETCH,
    *,
    asks_id: bool = False,
) -> BulkChannel:
    channel = connection.channel()
    channel.qos(prefetch)
    arguments: dict[str, Any] = {OFFSET: start}
    if asks_id:
        arguments[SEQUENCE] = True
    channel.consume(queue, arguments=arguments)
    return channel


def _is_exact(connection: BulkConnection) -> bool:
    """Whether counts are those of the moment, and what there is is sent at once: VouchMQ."""
    return CAPABILITY in connection.capabilities


def _reach_writer(connection: BulkConnection, channel: BulkChannel, queue: str) -> None:
    """Have what a new consumer gets at once sent before the next fence is answered.

    RabbitMQ's channel asks the stream's writer to tell it when there is something, goes on, and
    sends nothing before that is said. A second consumer makes it ask the same process for
    something that it waits for; the first answer is in by then. The fence is answered after that.
    """
    if not _is_exact(connection):
        channel.consume(queue, arguments={OFFSET: _NEVER})
        channel.fence()


def _at_least(connection: BulkConnection, channel: BulkChannel, queue: str) -> int:
    """How many messages must come from `last` on."""
    count, _ = channel.declare_passive(queue)
    # RabbitMQ's count lags behind and its `last` may be one message.
    return min(count, _LAST_MESSAGES if _is_exact(connection) else 1)


def _until_quiet(channel: BulkChannel, at_least: int) -> Iterator[list[Delivery]]:
    """What arrives until nothing more does; each piece is to be acked, which makes room."""
    began = time.monotonic()
    quiet = seen = 0
    while quiet < _QUIET_FENCES:
        channel.fence()
        deliveries = channel.take(_PREFETCH)
        lasted_s = time.monotonic() - began
        if deliveries:
            quiet = 0
            seen += len(deliveries)
            yield deliveries
            if seen >= at_least and lasted_s > _LONG_ENOUGH_S:
                return
        elif channel.cancelled is not None:
            raise StreamGoneError("the stream was deleted while the source was looking for its end")
        elif seen >= at_least or lasted_s > _PATIENCE_S:
            quiet += 1
        else:
            time.sleep(_FENCE_PAUSE_S)
