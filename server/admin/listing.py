"""`list queues` and the like: the views of a listing, in slices.

A slice takes `SLICE_S` of a turn at most, then the loop goes on; and while the reader does not
read, nothing is made for it.

Must not know sockets.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from vouchmq.server.admin.views import Selection

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from msgspec import Struct

    from vouchmq.server.admin.commands import Command, ControlCommands, Reply

# A listing has this much of a turn.
SLICE_S: Final = 0.002
LOOK_EACH: Final = 16
"""Rows between two looks at the clock."""


class RowSender:
    """Sends rows that are made one after the other.

    Args:
        later: runs something in another turn of the loop
        clock: monotonic seconds
    """

    def __init__(
        self, later: Callable[[Callable[[], None]], object], clock: Callable[[], float]
    ) -> None:
        self._later = later
        self._clock = clock

    def send(self, rows: Iterator[Struct | None], reply: Reply, **facts: object) -> None:
        """Send them all, then the answer: these facts, and how many there were."""
        self._go_on(rows, reply, 0, facts)

    def _go_on(
        self, rows: Iterator[Struct | None], reply: Reply, count: int, facts: dict[str, object]
    ) -> None:
        """Send rows until this slice is over."""
        if not reply.is_open:
            return
        if reply.is_full:
            reply.when_writable(lambda: self._go_on(rows, reply, count, facts))
            return
        ends_at = self._clock() + SLICE_S
        found: list[Struct] = []
        is_done = True
        for at, row in enumerate(rows, 1):
            # A step without a row is one of those that a row is worked out in.
            if row is not None:
                found.append(row)
            if at % LOOK_EACH == 0 and self._clock() >= ends_at:
                is_done = False
                break
        count += len(found)
        if found:
            reply.send({"rows": found})
        if is_done:
            reply({"ok": True, "count": count, **facts})
        else:
            self._later(lambda: self._go_on(rows, reply, count, facts))


class ListingCommands:
    """A command for each listing.

    Args:
        listings: what can be listed
        kinds: the views of which each is made
        sender: sends it
    """

    def __init__(
        self,
        listings: Mapping[str, Callable[[Selection], Iterator[Struct | None]]],
        kinds: Mapping[str, type[Struct]],
        sender: RowSender,
    ) -> None:
        self._listings = listings
        self._kinds = kinds
        self._sender = sender

    def register(self, commands: ControlCommands) -> None:
        """Enter a command for each listing."""
        for name, listing in self._listings.items():
            columns = list(self._kinds[name].__struct_fields__)
            commands.register(f"list {name}", Selection, self._command(listing, columns))

    def _command(
        self, listing: Callable[[Selection], Iterator[Struct | None]], columns: list[str]
    ) -> Command[Selection]:
        def begin(wanted: Selection, reply: Reply) -> None:
            reply.send({"columns": columns})
            self._sender.send(listing(wanted), reply)

        return begin
