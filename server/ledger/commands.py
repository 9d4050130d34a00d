"""What can be asked of the ledger over the control socket, and how it is answered.

Must not know sockets.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from vouchmq.server.ledger.ledger import Ledger

    Answer = Callable[[Mapping[str, object]], None]


class Owner(Protocol):
    """The running broker; its ledger is None where none is configured."""

    ledger: Ledger | None


class Commands(Protocol):
    """The registry of control commands, as far as the ledger registers some."""

    def register(self, name: str, command: Callable[[Answer], None], /) -> None:
        """See `ControlCommands.register`."""


class LedgerCommands:
    """Answers what is asked of the ledger.

    Args:
        owner: of the ledger
        soon: has something called in the loop's thread
    """

    def __init__(self, owner: Owner, soon: Callable[..., object]) -> None:
        self._owner = owner
        self._soon = soon

    def register(self, commands: Commands) -> None:
        """Register on, off, status, inventory and rotate."""
        commands.register("ledger on", self._on)
        commands.register("ledger off", self._off)
        commands.register("ledger status", self._status)
        commands.register("ledger inventory", self._inventory)
        commands.register("ledger rotate", self._rotate)

    @property
    def _ledger(self) -> Ledger:
        ledger = self._owner.ledger
        if ledger is None:
            raise RuntimeError("this broker has no ledger")
        return ledger

    def _path_later(self, answer: Answer) -> Callable[[str], None]:
        """What gives the path of a file as the answer, in whatever thread it is known."""

        def tell(path: str) -> None:
            self._soon(answer, {"ok": True, "path": path})

        return tell

    def _on(self, answer: Answer) -> None:
        try:
            self._ledger.switch_on()
        except OSError as error:
            answer({"ok": False, "error": error.strerror or str(error)})
        else:
            answer({"ok": True})

    def _off(self, answer: Answer) -> None:
        if self._ledger.is_on:
            self._ledger.switch_off(done=self._path_later(answer))
        else:
            answer({"ok": True})

    def _status(self, answer: Answer) -> None:
        answer({"ok": True, **self._ledger.status()})

    def _inventory(self, answer: Answer) -> None:
        if self._is_on(answer):
            self._ledger.take_inventory(self._path_later(answer))

    def _rotate(self, answer: Answer) -> None:
        if self._is_on(answer):
            self._ledger.rotate(self._path_later(answer))

    def _is_on(self, answer: Answer) -> bool:
        if not self._ledger.is_on:
            answer({"ok": False, "error": "it is off"})
        return self._ledger.is_on
