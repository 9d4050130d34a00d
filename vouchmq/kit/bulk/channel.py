"""One channel of a bulk connection: deliveries out of its inbox, settlements, publishes.

What is asked of it and answered (declare, consume, qos) is done one call at a time and waits for
the broker; settlements and publishes are only written. Everything that has come for the channel
is in its inbox; `take` never waits.
"""

from __future__ import annotations

import struct
import threading
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias, TypeVar

from pamqp import base
from pamqp.commands import Basic, Channel, Confirm, Connection, Exchange, Queue
from pamqp.common import FieldValue

from vouchmq.kit.bulk.columns import Columns, columns_of, rows_of
from vouchmq.kit.bulk.confirms import Confirms, PublishWatch
from vouchmq.kit.bulk.errors import BulkClosed, BulkError, BulkTimeout
from vouchmq.kit.bulk.frames import Delivery, Inbox
from vouchmq.kit.bulk.methods import method_frame, named
from vouchmq.kit.bulk.publish import AnyRow, Encoder
from vouchmq.kit.bulk.publish_run import PublishRun
from vouchmq.kit.bulk.result import PublishResult
from vouchmq.protocol.constants import BASIC_ACK, BASIC_NACK, FRAME_END_OCTET, Ids

if TYPE_CHECKING:
    from vouchmq.kit.bulk.ports import ConnectionPort

Arguments: TypeAlias = "Mapping[str, object] | None"

WINDOW: Final = 2000
TIMEOUT_S: Final = 30.0

_SETTLE: Final = struct.Struct(">BHIHHQB")
_CLOSED_HERE: Final = "the channel was closed here"

Answer = TypeVar("Answer", bound=base.Frame)


class QueueState(NamedTuple):
    """A queue as declare-ok has it."""

    queue: str
    message_count: int
    consumer_count: int


class BulkChannel:
    """Made by `BulkConnection.channel()`; a context manager that closes itself.

    Every method raises `BulkClosed` once the channel or its connection has ended, with the code
    and text the broker gave.
    """

    def __init__(self, connection: ConnectionPort, number: int, inbox: Inbox) -> None:
        self._connection = connection
        self._number = number
        self._inbox = inbox
        self._answers: deque[base.Frame] = deque()
        self._calling = threading.Lock()
        self._publishing = threading.Lock()
        self._closed: BulkClosed | None = None
        self._cancelled: str | None = None
        self._prefetch = 0
        self._is_confirming = False
        self._is_paused = False
        self._published = 0
        self._encoders: dict[bool, Encoder] = {}

    def __enter__(self) -> BulkChannel:
        """Return the channel; the end of `with` closes it."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close, unless it has ended already."""
        self.close()

    def __repr__(self) -> str:
        state = "open" if self.ended is None else f"closed: {self.ended}"
        return f"<BulkChannel {self._number}, {state}>"

    @property
    def connection(self) -> ConnectionPort:
        """The connection it is on."""
        return self._connection

    @property
    def ended(self) -> BulkClosed | None:
        """Why the channel can be used no more; None while it can."""
        return self._closed or self._connection.ended

    @property
    def cancelled(self) -> str | None:
        """The tag of a consumer that the broker has cancelled; its queue was deleted, for one."""
        return self._cancelled

    # Queues and exchanges.

    def declare_passive(self, queue: str, *, arguments: Arguments = None) -> tuple[int, int]:
        """Messages ready and consumers of a queue that is there; else `BulkClosed`, 404."""
        method = Queue.Declare(passive=True, arguments=_table(arguments))
        answer = self._call(named(method, queue=queue), Queue.DeclareOk)
        return answer.message_count or 0, answer.consumer_count or 0

    def declare(
        self,
        queue: str = "",
        *,
        durable: bool = True,
        exclusive: bool = False,
        auto_delete: bool = False,
        arguments: Arguments = None,
    ) -> QueueState:
        """Declare a queue; an empty name lets the broker choose one."""
        method = Queue.Declare(
            durable=durable,
            exclusive=exclusive,
            auto_delete=auto_delete,
            arguments=_table(arguments),
        )
        answer = self._call(named(method, queue=queue), Queue.DeclareOk)
        return QueueState(answer.queue or "", answer.message_count or 0, answer.consumer_count or 0)

    def bind(
        self, queue: str, exchange: str, routing_key: str = "", *, arguments: Arguments = None
    ) -> None:
        """Bind a queue to an exchange."""
        method = Queue.Bind(arguments=_table(arguments))
        named(method, queue=queue, exchange=exchange, routing_key=routing_key)
        self._call(method, Queue.BindOk)

    def delete(self, queue: str) -> int:
        """Delete a queue; how many messages went with it."""
        return self._call(named(Queue.Delete(), queue=queue), Queue.DeleteOk).message_count or 0

    def purge(self, queue: str) -> int:
        """Drop the ready messages of a queue; how many."""
        return self._call(named(Queue.Purge(), queue=queue), Queue.PurgeOk).message_count or 0

    def exchange_declare(
        self,
        exchange: str,
        kind: str = "direct",
        *,
        durable: bool = True,
        passive: bool = False,
        arguments: Arguments = None,
    ) -> None:
        """Declare an exchange, or look whether it is there."""
        method = Exchange.Declare(durable=durable, passive=passive, arguments=_table(arguments))
        self._call(named(method, exchange=exchange, exchange_type=kind), Exchange.DeclareOk)

    def exchange_delete(self, exchange: str) -> None:
        """Delete an exchange, and wait for the broker's answer."""
        self._call(named(Exchange.Delete(), exchange=exchange), Exchange.DeleteOk)

    # Consuming.

    def qos(self, prefetch: int) -> None:
        """How many deliveries each consumer that starts from now on may hold unsettled."""
        self._call(Basic.Qos(prefetch_count=prefetch), Basic.QosOk)
        self._prefetch = prefetch

    def fence(self) -> None:
        """Wait until the broker has worked off what was sent on this channel so far.

        What it delivered before its answer is in the inbox then. It is basic.qos again.
        """
        self._call(Basic.Qos(prefetch_count=self._prefetch), Basic.QosOk)

    def consume(
        self,
        queue: str,
        *,
        tag: str = "",
        no_ack: bool = False,
        exclusive: bool = False,
        arguments: Arguments = None,
    ) -> str:
        """Start a consumer; its tag. Use a channel of its own for each."""
        method = Basic.Consume(no_ack=no_ack, exclusive=exclusive, arguments=_table(arguments))
        named(method, queue=queue, consumer_tag=tag)
        return self._call(method, Basic.ConsumeOk).consumer_tag or ""

    def cancel(self, tag: str) -> None:
        """End a consumer; what it was given stays, in the inbox and to be settled."""
        self._call(Basic.Cancel(consumer_tag=tag), Basic.CancelOk)

    def get(self, queue: str, *, no_ack: bool = False) -> Delivery | None:
        """One message, None when the queue has none ready."""
        inbox = self._inbox
        inbox.take_got()
        method = named(Basic.Get(no_ack=no_ack), queue=queue)
        try:
            self._call(method, Basic.GetEmpty, or_else=lambda: inbox.got is not None)
        except _Elsewhere:
            return self._inbox.take_got()
        return None

    @property
    def arrived(self) -> tuple[int, int]:
        """How many deliveries wait to be taken, and the bytes of their bodies and properties."""
        inbox = self._inbox
        return len(inbox.deliveries), inbox.received_bytes - inbox.taken_bytes

    def take(self, max_messages: int, max_bytes: int | None = None) -> list[Delivery]:
        """What has arrived, up to a number of messages and of bytes; no I/O.

        The message that passes `max_bytes` is the last one, so there is always one at least.

        Raises:
            BulkClosed: there is nothing left, and nothing can come any more
        """
        waiting = self._inbox.deliveries
        count = min(max_messages, len(waiting))
        if not count:
            if max_messages > 0 and self.ended is not None:
                raise self.ended.again()
            return []
        taken: list[Delivery] = []
        size = 0
        if max_bytes is None:
            taken = [waiting.popleft() for _ in range(count)]
            size = sum([len(each[4]) + len(each[5]) for each in taken])
        else:
            while count and size < max_bytes:
                delivery = waiting.popleft()
                size += len(delivery[4]) + len(delivery[5])
                taken.append(delivery)
                count -= 1
        self._inbox.taken_bytes += size
        return taken

    def wait(self, count: int, timeout_s: float, max_bytes: int | None = None) -> list[Delivery]:
        """Poll until `count` have arrived, or the time is over; up to `count` of them.

        It returns early with what there is when the consumer is cancelled.

        Raises:
            BulkClosed: nothing had arrived, and nothing can come any more
        """
        waiting = self._inbox.deliveries
        self._connection.poll_until(
            lambda: (
                len(waiting) >= count or self._cancelled is not None or self._closed is not None
            ),
            timeout_s,
            is_quiet=True,
        )
        return self.take(count, max_bytes)

    def take_columns(
        self, max_messages: int, max_bytes: int | None = None
    ) -> dict[str, list[object]]:
        """As `take`, a list for each field: tag, redelivered, exchange, routing_key, …"""
        return columns_of(self.take(max_messages, max_bytes))

    # Settling: written at once, never answered.

    def ack(self, tag: int, multiple: bool = False) -> None:
        """Settle a delivery, or all up to it."""
        self._settle(BASIC_ACK, (tag,), int(multiple))

    def ack_many(self, tags: Iterable[int]) -> None:
        """Settle these deliveries, each by itself, in one write."""
        self._settle(BASIC_ACK, tags, 0)

    def nack(self, tag: int, multiple: bool = False, requeue: bool = True) -> None:
        """Refuse a delivery, or all up to it: back to the queue, or dropped or dead-lettered."""
        self._settle(BASIC_NACK, (tag,), int(multiple) | int(requeue) << 1)

    def _settle(self, ids: Ids, tags: Iterable[int], bits: int) -> None:
        self._check()
        pack = _SETTLE.pack
        number = self._number
        class_id, method_id = ids
        frames = [pack(1, number, 13, class_id, method_id, tag, bits) for tag in tags]
        if frames:
            self._connection.write(FRAME_END_OCTET.join(frames) + FRAME_END_OCTET)

    # Publishing.

    def confirm_select(self) -> None:
        """Ask for a confirm of every publish from now on."""
        if not self._is_confirming:
            self._call(Confirm.Select(), Confirm.SelectOk)
            self._is_confirming = True

    def publish_many(
        self,
        rows: Iterable[AnyRow],
        *,
        mandatory: bool = False,
        window: int = WINDOW,
        timeout_s: float = TIMEOUT_S,
        watch: PublishWatch | None = None,
    ) -> PublishResult:
        """Publish rows of exchange, routing key, properties and body, and wait for every confirm.

        Without `confirm_select` it returns when the broker has worked them off, and `confirmed`
        stays 0. Publishing pauses while the broker blocks the connection (FLOW-10).

        Args:
            rows: properties as on the wire (`encode_properties`), or what that function takes
            mandatory: what reaches no queue comes back, as `returned`
            window: so many publishes may be unconfirmed at a time
            timeout_s: longest wait without any confirm, blocked or not
            watch: told of every step

        Raises:
            RowError: a row cannot be sent
            BulkTimeout: no confirm in time
            BulkClosed: the channel or the connection ended; an exchange is missing, for one

        `published` of the exception is what was known by then.
        """
        if window < 1:
            raise ValueError(f"window must be at least 1, not {window}")
        with self._publishing:
            confirms = Confirms(self._published, keeps_rows=mandatory, watch=watch)
            run = PublishRun(self, confirms, window, timeout_s, is_confirming=self._is_confirming)
            try:
                run.send(iter(rows), self._encoder(mandatory))
                run.finish()
            except BulkError as error:
                run.take()
                error.published = confirms.result
                raise
            finally:
                self._published += run.sent if self._is_confirming else 0
            return confirms.result

    def publish_columns(
        self,
        columns: Columns,
        *,
        mandatory: bool = False,
        window: int = WINDOW,
        timeout_s: float = TIMEOUT_S,
        watch: PublishWatch | None = None,
    ) -> PublishResult:
        """As `publish_many`, from columns: `body`, and exchange, routing_key, properties."""
        return self.publish_many(
            rows_of(columns), mandatory=mandatory, window=window, timeout_s=timeout_s, watch=watch
        )

    def close(self) -> None:
        """Close the channel; what is unsettled goes back to its queues."""
        if self.ended is None:
            try:
                self._call(
                    Channel.Close(reply_code=200, reply_text="", class_id=0, method_id=0),
                    Channel.CloseOk,
                )
            except BulkClosed:
                # The broker was faster.
                return
            self._end(BulkClosed(0, _CLOSED_HERE, is_connection=False))

    # What the connection and a publish in progress call.

    def open(self) -> None:
        """Open it at the broker."""
        self._call(Channel.Open(), Channel.OpenOk)

    def receive(self, method: base.Frame) -> bytes:
        """Take a method that has come for this channel; the frame it asks for in return."""
        if isinstance(method, Channel.Close):
            self._end(closed_by(method))
            return method_frame(self._number, Channel.CloseOk())
        if isinstance(method, Channel.Flow):
            self._is_paused = not method.active
            return method_frame(self._number, Channel.FlowOk(active=method.active))
        if isinstance(method, Basic.Cancel):
            self._cancelled = method.consumer_tag
            if method.nowait:
                return b""
            return method_frame(self._number, Basic.CancelOk(consumer_tag=method.consumer_tag))
        self._answers.append(method)
        return b""

    @property
    def inbox(self) -> Inbox:
        """What has come for it."""
        return self._inbox

    @property
    def may_publish(self) -> bool:
        """False while the broker wants no publishes, on this channel or at all."""
        return not self._is_paused and not self._connection.is_blocked

    def _encoder(self, is_mandatory: bool) -> Encoder:
        encoder = self._encoders.get(is_mandatory)
        if encoder is None:
            frame_max = self._connection.frame_max
            encoder = Encoder(self._number, frame_max, is_mandatory=is_mandatory)
            self._encoders[is_mandatory] = encoder
        return encoder

    def _call(
        self,
        method: base.Frame,
        expected: type[Answer],
        *,
        or_else: Callable[[], bool] | None = None,
    ) -> Answer:
        """Send a method and wait for its answer.

        With `or_else`, an answer that comes another way is told by raising `_Elsewhere`.
        """
        with self._calling:
            self._check()
            frame = method_frame(self._number, method)
            self._answers.clear()
            self._connection.write(frame)
            answers = self._answers

            def has_come() -> bool:
                return bool(answers) or self._closed is not None or (or_else or bool)()

            limit_s = self._connection.read_timeout_s
            if not self._connection.poll_until(has_come, limit_s):
                text = f"no answer to {method.name} in {limit_s:g} s"
                # It may come yet, and would be taken for the answer to the next call.
                self._end(BulkClosed(0, text, is_connection=False))
                raise BulkTimeout(text)
            if answers:
                answer = answers.popleft()
                if isinstance(answer, expected):
                    return answer
                raise BulkError(f"{answer.name} in answer to {method.name}")
            self._check()
            raise _Elsewhere

    def _check(self) -> None:
        ended = self.ended
        if ended is not None:
            raise ended.again()

    def _end(self, reason: BulkClosed) -> None:
        if self._closed is None:
            self._closed = reason
            self._connection.forget(self._number)


def closed_by(method: Channel.Close | Connection.Close) -> BulkClosed:
    """What the broker's close says, as exception."""
    is_connection = isinstance(method, Connection.Close)
    return BulkClosed(method.reply_code or 0, method.reply_text, is_connection=is_connection)


class _Elsewhere(Exception):  # noqa: N818 - no error
    """The answer is not a method of its own: basic.get-ok with its content."""


def _table(arguments: Arguments) -> dict[str, FieldValue]:
    return dict(arguments or {})  # type: ignore[arg-type]  # pamqp refuses what is no field value
