"""The commands of the control socket: a name, and who does it.

    {"verb": "list queues"} ─▶ registry ─▶ a handler, which answers once, or row by row

A room that can do something for an operator registers its commands by name; nobody has to know all
of them. Listings are answered in slices: one takes `SLICE_S` of a turn at most, then the loop goes
on, and while the reader does not read, nothing is made for it.

Must not know sockets.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict
from typing import TYPE_CHECKING, Final, Protocol

from vouchmq.server.admin.views import columns_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from vouchmq.server.admin.views import View, Views

# A listing has this much of a turn. A view of a queue and its line of JSON take some 15 us, so
# that 50,000 queues are some 350 slices.
SLICE_S: Final = 0.002
LOOK_EACH: Final = 16
"""Rows between two looks at the clock."""


class Reply(Protocol):
    """Where an answer goes. Called: the whole of it, and the end."""

    def __call__(self, facts: Mapping[str, object], /) -> None:
        """Answer with one object, which ends the command."""

    @property
    def is_open(self) -> bool:
        """False when nobody reads any more."""

    @property
    def is_full(self) -> bool:
        """True while more is on its way to the reader than should be."""

    def send(self, lines: bytes) -> None:
        """Whole lines that come before the answer."""

    def when_writable(self, job: Callable[[], None]) -> None:
        """Have this called once it is not full any more; never, when the reader goes."""


Command = Callable[[Reply], None]


class ControlCommands:
    """What may be asked over the control socket, by name."""

    def __init__(self) -> None:
        self._commands: dict[str, Command] = {}

    def register(self, name: str, command: Command) -> None:
        """Have `command` called with the reply when `name` is asked for.

        Raises:
            ValueError: the name is taken
        """
        if name in self._commands:
            raise ValueError(f"the command {name!r} is registered already")
        self._commands[name] = command

    def find(self, name: str) -> Command | None:
        """The command of this name."""
        return self._commands.get(name)

    @property
    def names(self) -> list[str]:
        """The names of all registered commands, sorted."""
        return sorted(self._commands)


class ListingCommands:
    """`list queues` and the like: a line of JSON for each view, then the answer.

    Args:
        views: what can be listed
        later: runs something in another turn of the loop
        clock: monotonic seconds
    """

    def __init__(
        self,
        views: Views,
        later: Callable[[Callable[[], None]], object],
        clock: Callable[[], float],
    ) -> None:
        self._views = views
        self._later = later
        self._clock = clock

    def register(self, commands: ControlCommands) -> None:
        """Enter a command for each listing."""
        for name, listing in self._views.listings.items():
            commands.register(f"list {name}", self._command(listing, columns_of(name)))

    def _command(self, listing: Callable[[], Iterator[View | None]], columns: list[str]) -> Command:
        def begin(reply: Reply) -> None:
            self._go_on(listing(), columns, reply, 0)

        return begin

    def _go_on(
        self, rows: Iterator[View | None], columns: list[str], reply: Reply, count: int
    ) -> None:
        """Send rows until this slice is over."""
        if not reply.is_open:
            return
        if reply.is_full:
            reply.when_writable(lambda: self._go_on(rows, columns, reply, count))
            return
        ends_at = self._clock() + SLICE_S
        lines: list[str] = []
        is_done = True
        for at, row in enumerate(rows, 1):
            # A step without a row is one of those that a row is worked out in.
            if row is not None:
                lines.append(json.dumps(asdict(row)))
            if at % LOOK_EACH == 0 and self._clock() >= ends_at:
                is_done = False
                break
        count += len(lines)
        if lines:
            lines.append("")
            reply.send("\n".join(lines).encode())
        if is_done:
            # Without rows nothing else names the columns.
            reply({"ok": True, "rows": count, "columns": columns})
        else:
            self._later(lambda: self._go_on(rows, columns, reply, count))
