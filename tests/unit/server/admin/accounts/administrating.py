"""An administrator of a broker without sockets, and what is answered."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tests.unit.server.admin.listings import Reader
from tests.unit.server.in_memory import SETTINGS, World
from vouchmq.server.admin.accounts.administration import Administration
from vouchmq.server.admin.commands import ControlCommands
from vouchmq.server.admin.listing import RowSender
from vouchmq.server.auth.passwords import SHA256
from vouchmq.server.edge.control.commands import register_account_commands


class Administrator:
    """Whoever may open the control socket of a broker."""

    def __init__(self, world: World | None = None) -> None:
        self.world = world or World(replace(SETTINGS, password_hashing_algorithm=SHA256))
        self.commands = ControlCommands()
        sender = RowSender(self.world.scheduled.append, lambda: self.world.now)
        register_account_commands(self.commands, Administration(self.world.runtime), sender)

    def begin(self, command: str, **arguments: object) -> Reader:
        """Ask, and do not wait for the disk."""
        reader = Reader()
        self.commands.run({"command": command, **arguments}, reader)
        return reader

    def ask(self, command: str, **arguments: object) -> dict[str, Any]:
        """The answer, once it is there."""
        reader = self.begin(command, **arguments)
        self.world.sync()
        assert reader.facts is not None, command
        return dict(reader.facts)

    def do(self, command: str, **arguments: object) -> dict[str, Any]:
        """The answer to something that is done."""
        answer = self.ask(command, **arguments)
        assert answer["ok"], answer
        return answer

    def refused(self, command: str, **arguments: object) -> tuple[int, str]:
        """Why something is not done, with nothing written."""
        count = len(self.world.calls.records)
        answer = self.ask(command, **arguments)
        assert not answer["ok"], answer
        assert len(self.world.calls.records) == count
        return answer["code"], answer["error"]

    def restart(self) -> Administrator:
        """The next start on the same disk, after a power cut."""
        self.world.sync()
        self.world.disk.crash(1)
        return Administrator(World(self.world.settings, disk=self.world.disk))
