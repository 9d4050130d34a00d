"""Commands that act on a broker without sockets, and what they are answered."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tests.unit.server.admin.listings import Reader
from vouchmq.server.admin.commands import ControlCommands
from vouchmq.server.admin.objects.waiting import Waits
from vouchmq.server.edge.control.commands import register_object_commands

if TYPE_CHECKING:
    from tests.unit.server.in_memory import World


def begun(world: World, command: str, **arguments: object) -> Reader:
    """A command that has been asked for, and whoever waits for its answer."""
    registry = ControlCommands()
    waits = Waits.after(world.turn, world.call_later, lambda: world.now)
    register_object_commands(registry, world.runtime, waits)
    reader = Reader()
    registry.run({"command": command, **arguments}, reader)
    return reader


def asked(world: World, command: str, **arguments: object) -> dict[str, Any]:
    """What a command is answered in the end."""
    reader = begun(world, command, **arguments)
    world.sync()
    assert reader.facts is not None, command
    # Nothing of it stays.
    assert not world.runtime.all_connections.commands
    return dict(reader.facts)


def refused(world: World, command: str, **arguments: object) -> tuple[int, str]:
    """Why a command is refused: code and text."""
    answer = asked(world, command, **arguments)
    assert answer["ok"] is False, answer
    return answer["code"], answer["error"]
