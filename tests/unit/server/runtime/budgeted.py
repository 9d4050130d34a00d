"""A world in which every look at the clock takes time."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pamqp import commands

from tests import wire
from tests.unit.server.in_memory import World, name_of
from vouchmq.server.runtime.work_budget import SLICE_S

if TYPE_CHECKING:
    from tests.unit.server.in_memory import Client


TICK_S = 0.001


# Looks at the clock in one slice, and what is done at most in one: each look is behind some work.
LOOKS = round(SLICE_S / TICK_S) + 1


def opened(world: World) -> Client:
    """A client with channel 1 open."""
    client = world.connect()
    client.open()
    return client


def said(client: Client) -> list[str]:
    """Names of what has been written to a client by now; no turn is run for it."""
    octets, client.octets = bytes(client.octets), bytearray()
    return [name_of(what) for _, what in wire.hear(octets)]


GET = wire.method(1, commands.Basic.Get(queue="q"))
