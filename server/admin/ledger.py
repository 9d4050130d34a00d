"""What can be asked of the ledger over the control socket, and how it is answered.

Must not know sockets.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Protocol

from vouchmq.server.admin.commands import Arguments, CommandRefused

if TYPE_CHECKING:
    from collections.abc import Callable

    from vouchmq.server.admin.commands import ControlCommands, Reply
    from vouchmq.server.ledger.ledger import Ledger


class Owner(Protocol):
    """The running broker; its ledger is None where none is configured."""

    ledger: Ledger | None


class LedgerCommands:
    """Answers what is asked of the ledger.

    Args:
        owner: of the ledger
        soon: has something called in the loop's thread
    """

    def __init__(self, owner: Owner, soon: Callable[..., object]) -> None:
        self._owner = owner
        self._soon = soon

    def register(self, commands: ControlCommands) -> None:
        """Register on, off, status, inventory and rotate."""
        for name, command in (
            ("on", self._on),
            ("off", self._off),
            ("status", self._status),
            ("inventory", self._inventory),
            ("rotate", self._rotate),
        ):
            commands.register(f"ledger {name}", Arguments, partial(self._do, command))

    def _do(self, command: Callable[[Ledger, Reply], None], _: Arguments, reply: Reply) -> None:
        ledger = self._owner.ledger
        if ledger is None:
            raise CommandRefused("this broker has no ledger")
        command(ledger, reply)

    def _path_later(self, reply: Reply) -> Callable[[str], None]:
        """What gives the path of a file as the answer, in whatever thread it is known."""

        def tell(path: str) -> None:
            self._soon(reply, {"ok": True, "path": path})

        return tell

    def _on(self, ledger: Ledger, reply: Reply) -> None:
        try:
            ledger.switch_on()
        except OSError as error:
            raise CommandRefused(error.strerror or str(error)) from error
        reply({"ok": True})

    def _off(self, ledger: Ledger, reply: Reply) -> None:
        if ledger.is_on:
            ledger.switch_off(done=self._path_later(reply))
        else:
            reply({"ok": True})

    def _status(self, ledger: Ledger, reply: Reply) -> None:
        reply({"ok": True, **ledger.status()})

    def _inventory(self, ledger: Ledger, reply: Reply) -> None:
        _require_on(ledger)
        ledger.take_inventory(self._path_later(reply))

    def _rotate(self, ledger: Ledger, reply: Reply) -> None:
        _require_on(ledger)
        ledger.rotate(self._path_later(reply))


def _require_on(ledger: Ledger) -> None:
    if not ledger.is_on:
        raise CommandRefused("it is off")
