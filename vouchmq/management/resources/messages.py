"""Messages of a queue as they are, without consuming any; and moving them.

Spec: HTTP-20, HTTP-34, HTTP-37
"""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING, Annotated, Final, Literal

from msgspec import Meta, Struct, ValidationError, convert
from msgspec.structs import asdict

from vouchmq.management.api.errors import bad_request

if TYPE_CHECKING:
    from collections.abc import Mapping

    from vouchmq.management.api.call import Call
    from vouchmq.management.broker import Row

MOST: Final = 1000
# What a cut may leave of one character.
LONGEST_CHARACTER: Final = 4
PARAMETERS: Final[Mapping[str, tuple[str, str]]] = {
    "state": ("string", "`ready` (default), `unacknowledged`, or `waiting` for a retry"),
    "first": ("integer", "position of the first, from 0; of a stream an offset"),
    "count": ("integer", "1 … 1000, by default 50"),
    "body_bytes": ("integer", "how much of each body, by default 65536; more is cut off"),
    "encoding": ("string", "`auto` (default): text where a body is text; `base64`: never"),
}


class Wanted(Struct, frozen=True, forbid_unknown_fields=True):
    """The parameters."""

    state: Literal["ready", "unacknowledged", "waiting"] = "ready"
    first: Annotated[int, Meta(ge=0)] = 0
    count: Annotated[int, Meta(ge=1, le=MOST)] = 50
    body_bytes: Annotated[int, Meta(ge=0)] = 65536
    encoding: Literal["auto", "base64"] = "auto"


class ReturnBody(Struct, frozen=True, forbid_unknown_fields=True):
    """Which messages are to go.

    Args:
        count: so many from the head at most; by default all that are ready
        ids: these, as they are shown
    """

    count: Annotated[int, Meta(ge=1)] | None = None
    ids: Annotated[list[int], Meta(min_length=1)] | None = None


class MoveBody(ReturnBody, frozen=True, forbid_unknown_fields=True):
    """Which messages are to go, and where: to a queue or to an exchange.

    Args:
        to_queue: name
        to_exchange: name
        routing_key: for an exchange; by default that of each message
        keep: they stay as well
    """

    to_queue: str | None = None
    to_exchange: str | None = None
    routing_key: str | None = None
    keep: bool = False


async def move(call: Call) -> object:
    """Move or copy messages."""
    return await _moved(call, "move", call.content(MoveBody))


async def return_dead_letters(call: Call) -> object:
    """Move dead letters back to the queues in which they died."""
    return await _moved(call, "return dead letters", call.content(ReturnBody))


async def _moved(call: Call, command: str, body: ReturnBody) -> object:
    given = {name: value for name, value in asdict(body).items() if value is not None}
    answer = await call.do(command, vhost=await call.vhost(), name=call.names["queue"], **given)
    return {"moved": answer["moved"], "stopped": answer["stopped"]}


async def messages(call: Call) -> object:
    """Messages from a position on; nothing changes by it."""
    try:
        wanted = convert(dict(call.query), Wanted, strict=False)
    except ValidationError as error:
        raise bad_request(str(error)) from None
    rows = await call.broker.found(
        "peek",
        user=call.visitor.user,
        vhost=await call.vhost(),
        name=call.names["queue"],
        state=wanted.state,
        first=wanted.first,
        count=wanted.count,
        body_bytes=wanted.body_bytes,
    )
    return [_shown(row, wanted.encoding) for row in rows]


def _shown(row: Row, encoding: str) -> Row:
    payload, how = text_of(row["body"], row["size"], encoding)
    item: Row = {
        "position": row["place"],
        "id": row["id"],
        "state": row["state"],
        "exchange": row["exchange"],
        "routing_key": row["routing_key"],
        "redelivered": row["redelivered"],
        "properties": row["properties"],
        "payload_bytes": row["size"],
        "payload": payload,
        "payload_encoding": how,
        "arrived_at": row["arrived_ms"],
    }
    if row["due_ms"] is not None:
        item["due_at"] = row["due_ms"]
    if row["connection"]:
        item["held_by"] = {
            "channel": f"{row['connection']} ({row['channel']})",
            "consumer_tag": row["consumer"],
            "delivery_tag": row["delivery_tag"],
            "since": row["held_since_ms"],
        }
    return item


def text_of(body: bytes, size: int, encoding: str) -> tuple[str, str]:
    """A body, or the beginning of one, as text or in base64.

    Args:
        body: what there is of it
        size: of all of it
        encoding: `auto` or `base64`
    """
    if encoding == "auto":
        try:
            return body.decode(), "string"
        except UnicodeDecodeError as error:
            # A cut may go through a character.
            if len(body) < size and len(body) - error.start < LONGEST_CHARACTER:
                return body[: error.start].decode(), "string"
    return base64.b64encode(body).decode(), "base64"
