"""Changes of what is in a virtual host: queues, exchanges, bindings, and messages.

Thin calls of control commands, which check the user's permissions.

Spec: HTTP-05, HTTP-16, HTTP-18 … HTTP-22
"""

from __future__ import annotations

import base64
import binascii
from contextlib import suppress
from typing import Annotated, Any, Final, Literal
from urllib.parse import quote

from msgspec import Meta, Struct, field

from vouchmq.management.api.call import NO_CONTENT, Answer, Call, changed
from vouchmq.management.api.errors import ApiError, bad_request
from vouchmq.management.broker import CommandRefused, Row
from vouchmq.management.resources.exchanges import (
    binding_of,
    exchange_name,
    properties_key,
)

TRUE: Final = frozenset({True, "true"})
NOT_FOUND: Final = 404
# What ends a channel over AMQP is told as AMQP tells it.
CLOSES_CHANNEL: Final = frozenset({403, 404, 406})
ALIVENESS: Final = "aliveness-test"
# Texts are accepted as well: rabbitmqadmin sends them.
Flag = bool | Literal["true", "false"]
# Clients in PHP send an empty list for an empty table.
Table = dict[str, Any] | Annotated[list[Any], Meta(max_length=0)]


class QueueBody(Struct):
    """A queue to declare."""

    durable: Flag = True
    auto_delete: Flag = False
    arguments: Table = field(default_factory=dict)


class ExchangeBody(Struct):
    """An exchange to declare."""

    type: str
    durable: Flag = True
    auto_delete: Flag = False
    internal: Flag = False
    arguments: Table = field(default_factory=dict)


class BindingBody(Struct):
    """A binding to make."""

    routing_key: str = ""
    arguments: Table = field(default_factory=dict)


class PublishBody(Struct):
    """A message to publish."""

    routing_key: str
    properties: dict[str, Any]
    payload: str
    payload_encoding: Literal["string", "base64"]


class GetBody(Struct):
    """How many messages to get, and what becomes of them."""

    count: int | str
    ackmode: str
    encoding: Literal["auto", "base64"]
    truncate: int | str | None = None


async def put_queue(call: Call) -> object:
    """Declare a queue."""
    vhost, body = await call.vhost(), call.content(QueueBody)
    answer = await call.do(
        "put queue",
        vhost=vhost,
        name=call.names["queue"],
        durable=body.durable in TRUE,
        auto_delete=body.auto_delete in TRUE,
        arguments=body.arguments or {},
    )
    return changed(answer)


async def delete_queue(call: Call) -> object:
    """Delete a queue."""
    await call.do(
        "delete queue",
        vhost=await call.vhost(),
        name=call.names["queue"],
        if_unused=call.query.get("if-unused") == "true",
        if_empty=call.query.get("if-empty") == "true",
    )
    return NO_CONTENT


async def purge_queue(call: Call) -> object:
    """Remove the ready messages of a queue."""
    await call.do("purge queue", vhost=await call.vhost(), name=call.names["queue"])
    return NO_CONTENT


async def pause_queue(call: Call) -> object:
    """Have nobody get messages of a queue, until it is resumed."""
    await call.do("pause queue", vhost=await call.vhost(), name=call.names["queue"])
    return NO_CONTENT


async def resume_queue(call: Call) -> object:
    """Have a paused queue go on."""
    await call.do("resume queue", vhost=await call.vhost(), name=call.names["queue"])
    return NO_CONTENT


async def put_exchange(call: Call) -> object:
    """Declare an exchange."""
    vhost, body = await call.vhost(), call.content(ExchangeBody)
    answer = await call.do(
        "put exchange",
        vhost=vhost,
        name=exchange_name(call.names["exchange"]),
        type=body.type,
        durable=body.durable in TRUE,
        auto_delete=body.auto_delete in TRUE,
        internal=body.internal in TRUE,
        arguments=body.arguments or {},
    )
    return changed(answer)


async def delete_exchange(call: Call) -> object:
    """Delete an exchange."""
    await call.do(
        "delete exchange",
        vhost=await call.vhost(),
        name=exchange_name(call.names["exchange"]),
        if_unused=call.query.get("if-unused") == "true",
    )
    return NO_CONTENT


async def post_binding(call: Call) -> object:
    """Bind a queue or an exchange to an exchange."""
    vhost, body = await call.vhost(), call.content(BindingBody)
    ends = _ends(call)
    await call.do(
        "put binding",
        vhost=vhost,
        **ends,
        routing_key=body.routing_key,
        arguments=body.arguments or {},
    )
    key = properties_key(body.routing_key, dict(body.arguments or {}))
    return Answer(201, None, {"location": f"{quote(ends['destination'], safe='')}/{quote(key)}"})


async def delete_binding(call: Call) -> object:
    """Remove a binding."""
    row = await binding_of(call)
    await call.do(
        "delete binding",
        vhost=row["vhost"],
        **_ends(call),
        routing_key=row["routing_key"],
        arguments=row["arguments"],
    )
    return NO_CONTENT


async def publish(call: Call) -> object:
    """Publish a message; it is answered when the disk has it, if it is persistent."""
    vhost, body = await call.vhost(), call.content(PublishBody)
    try:
        answer = await call.do(
            "publish",
            vhost=vhost,
            exchange=exchange_name(call.names["exchange"]),
            routing_key=body.routing_key,
            properties=body.properties,
            body=_payload(body),
        )
    except CommandRefused as error:
        if error.code not in CLOSES_CHANNEL:
            raise
        raise bad_request(f"{error.code} {error.text}") from None
    return {"routed": answer["routed"]}


async def get_messages(call: Call) -> object:
    """Get messages from the head of a queue."""
    vhost, body = await call.vhost(), call.content(GetBody)
    limit = {} if body.truncate is None else {"body_bytes": _count("truncate", body.truncate)}
    rows, _ = await call.broker.both(
        "get",
        user=call.visitor.user,
        origin=call.origin,
        vhost=vhost,
        name=call.names["queue"],
        count=_count("count", body.count),
        ackmode=body.ackmode,
        **limit,
    )
    return [_message(row, body.encoding) for row in rows]


async def aliveness(call: Call) -> object:
    """Whether a message can be published and got: on a queue of its own."""
    where = {"vhost": await call.vhost(), "name": ALIVENESS}
    await call.do("put queue", **where, durable=False)
    await call.do("publish", vhost=where["vhost"], routing_key=ALIVENESS, body=b"test", exchange="")
    rows, _ = await call.broker.both(
        "get", user=call.visitor.user, **where, ackmode="ack_requeue_false"
    )
    if not rows:
        raise ApiError(503, "failed", "the message did not come back")
    return {"status": "ok"}


def _ends(call: Call) -> dict[str, str]:
    """Source and destination of the bindings in the path."""
    kind = "queue" if "queue" in call.names else "exchange"
    name = call.names["queue"] if kind == "queue" else exchange_name(call.names["destination"])
    source = exchange_name(call.names["exchange"])
    return {"source": source, "destination": name, "destination_type": kind}


def _payload(body: PublishBody) -> bytes:
    if body.payload_encoding == "string":
        return body.payload.encode()
    try:
        return base64.b64decode(body.payload, validate=True)
    except binascii.Error:
        raise bad_request("payload is not base64") from None


def _count(name: str, value: int | str) -> int:
    try:
        return int(value)
    except ValueError:
        raise bad_request(f"{name}: not a number") from None


def _message(row: Row, encoding: str) -> Row:
    payload, kind = base64.b64encode(row["body"]).decode(), "base64"
    if encoding == "auto":
        with suppress(UnicodeDecodeError):
            payload, kind = row["body"].decode(), "string"
    return {
        "payload_bytes": row["size"],
        "redelivered": row["redelivered"],
        "exchange": row["exchange"],
        "routing_key": row["routing_key"],
        "message_count": row["messages"],
        # An empty list, as RabbitMQ has it.
        "properties": row["properties"] or [],
        "payload": payload,
        "payload_encoding": kind,
    }
