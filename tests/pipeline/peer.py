"""The other side of a sink: makes queues, takes everything out of them, makes their broker ill."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from vouchmq.kit.bulk import BulkChannel, BulkConnection, BulkError, decode_properties

PATIENCE_S = 60.0


class Stored(NamedTuple):
    """A message as a queue gives it back."""

    body: bytes
    id: str | None
    headers: dict[str, Any]
    properties: bytes


@contextmanager
def channel(url: str) -> Iterator[BulkChannel]:
    """A channel on a connection of its own."""
    with BulkConnection.open(url) as connection:
        yield connection.channel()


def knows(url: str, user: str) -> bool:
    """Whether a user, whose password is the name, may log in."""
    try:
        BulkConnection.open(url.replace("guest:guest", f"{user}:{user}")).close()
    except BulkError:
        return False
    return True


def declare(url: str, queue: str, **arguments: object) -> None:
    """Declare a durable queue; `_` in names of arguments are hyphens."""
    with channel(url) as made:
        named = {name.replace("_", "-"): value for name, value in arguments.items()}
        made.declare(queue, durable=True, arguments=named)


def count(url: str, queue: str) -> int:
    """How many messages are ready."""
    with channel(url) as made:
        return made.declare_passive(queue)[0]


def drain(url: str, queue: str) -> list[Stored]:
    """All messages of a queue, which is deleted."""
    with channel(url) as made:
        ready = made.declare_passive(queue)[0]
        made.consume(queue, no_ack=True)
        taken = made.wait(ready, PATIENCE_S) if ready else []
        assert len(taken) == ready
        made.delete(queue)
    stored = []
    for *_, raw, body in taken:
        said = decode_properties(raw)
        stored.append(Stored(body, said.message_id or None, dict(said.headers or {}), raw))
    return stored


def limited_user(vhost: str = "/") -> str:
    """Definitions with a user who may log in and write nowhere."""
    return json.dumps(
        {
            "users": [
                {"name": "guest", "password": "guest", "tags": "administrator"},
                {"name": "limited", "password": "limited", "tags": ""},
            ],
            "vhosts": [{"name": vhost}],
            "permissions": [
                {"user": "guest", "vhost": vhost, "configure": ".*", "write": ".*", "read": ".*"},
                {"user": "limited", "vhost": vhost, "configure": "", "write": "^$", "read": ""},
            ],
        }
    )
