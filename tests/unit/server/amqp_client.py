"""What tests tell a client to do, and what they look at: declare, publish, get, refuse."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pamqp import commands

from tests import wire
from vouchmq.protocol.fields import as_text, decode_table
from vouchmq.protocol.properties import Properties

if TYPE_CHECKING:
    from tests.unit.server.in_memory import Client
    from vouchmq.protocol.fields import Table
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.unit.server.in_memory import Client


def declare(client: Client, name: str, **arguments: object) -> None:
    """Declare a queue; argument names without their x- and with underscores."""
    table = {"x-" + key.replace("_", "-"): value for key, value in arguments.items()}
    client.ask(1, commands.Queue.Declare(queue=name, arguments=table))  # type: ignore[arg-type]


def publish(client: Client, queue: str, *bodies: bytes, **properties: object) -> None:
    """Publish bodies with properties to a queue."""
    block = commands.Basic.Properties(**properties)  # type: ignore[arg-type]
    client.send(*(wire.publish(1, queue, body, block) for body in bodies))
    client.world.run_turns()


def bodies(client: Client, queue: str) -> list[bytes]:
    """Everything that can be got from a queue."""
    found: list[bytes] = []
    while True:
        client.method(1, commands.Basic.Get(queue=queue, no_ack=True))
        ((_, what),) = client.hear()
        if not isinstance(what, wire.Content):
            return found
        found.append(what.body)


def got(client: Client, queue: str, *, no_ack: bool = True) -> Any:
    """The head of a queue, None when it is empty; untyped, for its headers may be anything."""
    client.method(1, commands.Basic.Get(queue=queue, no_ack=no_ack))
    ((_, what),) = client.hear()
    return what if isinstance(what, wire.Content) else None


def headers_of(client: Client, queue: str) -> Table:
    """The typed headers of the head of a queue, which is taken."""
    client.method(1, commands.Basic.Get(queue=queue, no_ack=True))
    client.world.run_turns()
    octets = bytes(client.octets)
    client.octets.clear()
    header = next(payload for kind, _, payload in wire.raw_frames(octets) if kind == 2)
    return Properties(header[12:]).headers or decode_table(b"")


def deaths(table: Table) -> list[dict[str, object]]:
    """x-death with plain values, fields in their order."""
    field = table["x-death"]
    assert isinstance(field.value, tuple)
    found = []
    for event in field.value:
        assert isinstance(event.value, dict)
        found.append(
            {
                key: [as_text(item) for item in value.value]
                if value.kind == "A"
                else (as_text(value) if value.kind == "S" else value.value)
                for key, value in event.value.items()
            }
        )
    return found


def reject(client: Client, queue: str) -> None:
    """Get the head of a queue and refuse it."""
    what = got(client, queue, no_ack=False)
    assert what is not None
    tag = what.method.delivery_tag
    client.send(wire.nack(1, tag, requeue=False))
    client.world.run_turns()


def confirms(client: Client) -> list[tuple[str, int, bool]]:
    """The confirms heard, as (name, number, multiple)."""
    said = []
    for _, what in client.hear():
        if isinstance(what, commands.Basic.Ack | commands.Basic.Nack):
            said.append((what.name, what.delivery_tag or 0, bool(what.multiple)))
    return said
