"""A broker with names that clients of older versions could make: bytes that are no UTF-8."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pamqp import base, commands

from vouchmq.protocol.codec import Command
from vouchmq.server.channel.methods import handle

if TYPE_CHECKING:
    from pathlib import Path

    from tests.simulation.sim_disk import SimDisk
    from tests.unit.server.in_memory import Client, World
    from vouchmq.protocol.fields import Table

ODD = b"a\xff\xfe\x00\n\"\\'{}\x1b".decode("utf-8", "surrogateescape")
"""What no text can hold, and what each kind of text would have to escape."""


def kept(name: str) -> str:
    """What is left of the name of a queue or exchange: line ends are removed (QUEUE-05)."""
    return name.replace("\r", "").replace("\n", "")


def call(client: Client, method: base.Frame, arguments: Table, **names: str) -> None:
    """Have a method done on channel 1, past the decoder, which refuses such names (FRAME-57)."""
    for attribute, name in names.items():
        setattr(method, attribute, name)
    ids = divmod(method.index, 0x10000)
    handle(client.connection.channels[1], Command(method, ids, arguments))
    client.world.sync()


def declare_all(world: World, name: str, table: Table) -> Client:
    """One of everything that has a name or arguments of a client; gives the client."""
    client = world.connect()
    client.open()
    exchange, queue = f"x{kept(name)}", f"q{kept(name)}"
    call(
        client,
        commands.Exchange.Declare(durable=True),
        table,
        exchange=exchange,
        exchange_type="topic",
    )
    call(client, commands.Queue.Declare(durable=True), table, queue=queue)
    call(client, commands.Queue.Bind(), table, queue=queue, exchange=exchange, routing_key=name)
    call(
        client,
        commands.Exchange.Bind(),
        table,
        destination=exchange,
        source="amq.headers",
        routing_key=name,
    )
    call(client, commands.Basic.Consume(), table, queue=queue, consumer_tag=name)
    return client


def write_out(disk: SimDisk, directory: Path) -> None:
    """A simulated disk as a real data directory."""
    directory.mkdir(exist_ok=True)
    for name in disk.listdir():
        file = disk.open(name)
        (directory / name).write_bytes(file.read(0, file.size()))
