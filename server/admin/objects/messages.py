"""`publish` and `get`: as a client does it.

A message is answered for when a client would have its confirm. What is got is taken, or let be:
then it is shown as redelivered the next time, and that is all. Must not know sockets.

Spec: HTTP-18, HTTP-20, PERM-05
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Final, Literal

import structlog
from msgspec import Meta, Struct, field
from pamqp import commands as amqp

from vouchmq.protocol.constants import (
    BASIC_ACK,
    BASIC_GET_EMPTY,
    BASIC_GET_OK,
    BASIC_PUBLISH,
    BASIC_RETURN,
)
from vouchmq.protocol.errors import NotFound, ResourceError
from vouchmq.protocol.fields import decode_shortstr, encode_shortstr
from vouchmq.protocol.properties import classify
from vouchmq.protocol.reader import PUBLISHES
from vouchmq.protocol.runs import FRAME_HEADER, body_size
from vouchmq.server.admin.audit import Changing, who
from vouchmq.server.admin.objects.queues import QueueArguments
from vouchmq.server.admin.objects.values import (
    block_of,
    body_of,
    content_of,
    named,
    properties_of,
    short,
)
from vouchmq.server.broker.names import queue_text
from vouchmq.server.broker.queues.settlement import Outcome

if TYPE_CHECKING:
    from collections.abc import Mapping

    from vouchmq.protocol.constants import Ids
    from vouchmq.server.admin.commands import ControlCommands, Reply
    from vouchmq.server.admin.objects.operator import Operator, OperatorConnection

log = structlog.get_logger(__name__)

MANDATORY: Final = 1
# Of one command: what it holds and sends is in memory together.
MOST_GOT: Final = 10_000
MOST_GOT_BYTES: Final = 64 * 1024 * 1024

AckMode = Literal[
    "ack_requeue_true", "ack_requeue_false", "reject_requeue_true", "reject_requeue_false"
]
# What becomes of what was got.
OUTCOMES: Final[Mapping[AckMode, Outcome]] = {
    "ack_requeue_true": Outcome.LOOKED_AT,
    "reject_requeue_true": Outcome.LOOKED_AT,
    "ack_requeue_false": Outcome.ACKED,
    "reject_requeue_false": Outcome.DISCARDED,
}


class Publish(Changing, frozen=True, kw_only=True):
    """A message; `properties` by their names, `headers` among them."""

    vhost: str = "/"
    exchange: str = ""
    routing_key: str
    properties: dict[str, object] = field(default_factory=dict)
    body: bytes = b""


class Get(QueueArguments, frozen=True, kw_only=True):
    """Messages at the head of a queue.

    Args:
        count: at most
        ackmode: what becomes of them
        body_bytes: of each body, more is cut off; None: all
    """

    count: Annotated[int, Meta(ge=1, le=MOST_GOT)] = 1
    ackmode: AckMode = "ack_requeue_true"
    body_bytes: Annotated[int, Meta(ge=0)] | None = None


class GotMessage(Struct, frozen=True, array_like=True):
    """A message that was got; `messages` were left in the queue, `size` is that of its body."""

    exchange: str
    routing_key: str
    redelivered: bool
    messages: int
    properties: Mapping[str, object]
    size: int
    body: bytes


class MessageCommands:
    """The commands that publish and get messages.

    Args:
        operator: opens connections for commands
    """

    def __init__(self, operator: Operator) -> None:
        self._operator = operator

    def register(self, commands: ControlCommands) -> None:
        """Enter the commands."""
        commands.register("publish", Publish, self._publish)
        commands.register("get", Get, self._get)

    def _publish(self, asked: Publish, reply: Reply) -> None:
        short(exchange=asked.exchange, routing_key=asked.routing_key)
        content = content_of(block_of(asked.properties), asked.body, 1)
        alarms = self._operator.context.alarms
        if alarms.is_raised:
            raise ResourceError(f"publishers are blocked: {alarms.reason}")
        is_routed = True

        def heard(connection: OperatorConnection, ids: Ids, _payload: bytes, _raw: bytes) -> None:
            nonlocal is_routed
            if ids == BASIC_RETURN:
                is_routed = False
            elif ids == BASIC_ACK:
                connection.answer(routed=is_routed)

        connection = self._operator.open(asked.vhost, asked.user, reply, heard)
        channel = connection.channel
        connection.call(amqp.Confirm.Select(nowait=True))

        def publish() -> None:
            most = channel.context.limits.max_message_size_bytes
            if len(asked.body) > most:
                channel.refuse_too_large(len(asked.body))
            mode = classify(block_of(asked.properties))
            key = publish_frame(asked.exchange, asked.routing_key)
            channel.publish((PUBLISHES, 1, key, [content], mode, len(content)))

        connection.do(publish)

    def _get(self, asked: Get, reply: Reply) -> None:
        if not asked.name:
            raise NotFound(f"no {queue_text('', asked.vhost)}")
        GotMessages(self._operator, asked, reply).begin()


def publish_frame(exchange: str, routing_key: str) -> bytes:
    """The frame of a mandatory basic.publish on channel 1."""
    names = encode_shortstr(exchange) + encode_shortstr(routing_key)
    class_id, method_id = BASIC_PUBLISH
    payload = b"".join(
        (
            class_id.to_bytes(2, "big"),
            method_id.to_bytes(2, "big"),
            b"\x00\x00",
            names,
            bytes((MANDATORY,)),
        )
    )
    return FRAME_HEADER.pack(1, 1, len(payload)) + payload + b"\xce"


class GotMessages:
    """One `get`, in slices: what was got is held until all are there.

    Args:
        operator: opens a connection for it
        asked: what is wanted
        reply: where rows and the answer go
    """

    def __init__(self, operator: Operator, asked: Get, reply: Reply) -> None:
        self._asked = asked
        self._reply = reply
        self._left = asked.count
        self._rows: list[GotMessage] = []
        self._is_settled = False
        self._connection = operator.open(asked.vhost, asked.user, reply, self._heard)

    def begin(self) -> None:
        """Get the first."""
        self._reply.when_gone(lambda: self._connection.do(self._settle))
        connection = self._connection
        connection.call(named(amqp.Basic.Get(), queue=self._asked.name))
        self._left -= 1
        connection.do(lambda: connection.channel.in_slices(self._step))

    def _step(self) -> bool:
        """Get one more; whether it was the last."""
        connection = self._connection
        unacked = connection.channel.unacked
        if self._is_settled or connection.is_over:
            return True
        is_enough = self._left <= 0 or unacked.octets > MOST_GOT_BYTES
        if is_enough or unacked.count < self._asked.count - self._left:
            self._settle()
            return True
        connection.handle(named(amqp.Basic.Get(), queue=self._asked.name))
        self._left -= 1
        return False

    def _settle(self) -> None:
        """Decide on what was got, and answer when all of it has been heard."""
        if self._is_settled:
            return
        self._is_settled = True
        asked, channel = self._asked, self._connection.channel
        # Who has gone takes nothing along.
        outcome = OUTCOMES[asked.ackmode] if self._reply.is_open else Outcome.LOOKED_AT
        count = channel.unacked.count
        channel.settle(channel.unacked.take_all(), outcome)
        if count and outcome is not Outcome.LOOKED_AT:
            log.info(
                "admin.messages_taken",
                **who(asked),
                vhost=asked.vhost,
                queue=asked.name,
                count=count,
            )
        channel.context.turn.later(self._end)

    def _end(self) -> None:
        """What has been said before this turn is heard by now."""
        connection = self._connection
        connection.outbox.flush()
        if self._rows and not connection.is_over:
            self._reply.send({"columns": GotMessage.__struct_fields__})
            self._reply.send({"rows": self._rows})
        connection.answer(count=len(self._rows))

    def _heard(self, _: OperatorConnection, ids: Ids, payload: bytes, raw: bytes) -> None:
        if ids == BASIC_GET_EMPTY or ids != BASIC_GET_OK:
            return
        exchange, at = decode_shortstr(payload, 13)
        routing_key, at = decode_shortstr(payload, at)
        self._rows.append(
            GotMessage(
                exchange=exchange,
                routing_key=routing_key,
                redelivered=payload[12] != 0,
                messages=int.from_bytes(payload[at : at + 4], "big"),
                properties=properties_of(raw),
                size=body_size(raw),
                body=body_of(raw, self._asked.body_bytes),
            )
        )
