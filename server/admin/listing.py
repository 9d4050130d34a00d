"""`list queues` and the like: the views of a listing, in slices.

A slice takes `SLICE_S` of a turn at most, then the loop goes on, with the listing of somebody else
if several are under way; and while the reader does not read, nothing is made for it.

Must not know sockets.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final

from vouchmq.server.admin.views import Selection

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from msgspec import Struct

    from vouchmq.server.admin.commands import Command, ControlCommands, Reply

# All listings together have this much of a turn.
SLICE_S: Final = 0.001
LOOK_EACH: Final = 16
"""Rows between two looks at the clock."""


class _Sending:
    """A listing on its way: rows that are still to be made, and how many have been sent."""

    __slots__ = ("count", "facts", "reply", "rows")

    def __init__(
        self, rows: Iterator[Struct | None], reply: Reply, facts: dict[str, object]
    ) -> None:
        self.rows = rows
        self.reply = reply
        self.facts = facts
        self.count = 0


class RowSender:
    """Sends rows that are made one after the other; who asks for many at once waits for others.

    Args:
        later: runs something in another turn of the loop
        clock: monotonic seconds
    """

    def __init__(
        self, later: Callable[[Callable[[], None]], object], clock: Callable[[], float]
    ) -> None:
        self._later = later
        self._clock = clock
        # In the order in which they are served next.
        self._waiting: deque[_Sending] = deque()
        self._is_scheduled = False

    def send(self, rows: Iterator[Struct | None], reply: Reply, **facts: object) -> None:
        """Send them all, then the answer: these facts, and how many there were."""
        self._enter(_Sending(rows, reply, facts))

    def _enter(self, sending: _Sending) -> None:
        self._waiting.append(sending)
        if not self._is_scheduled:
            self._serve()

    def _serve(self) -> None:
        """A slice of the listing that has waited longest."""
        self._is_scheduled = False
        sending = self._waiting.popleft()
        reply = sending.reply
        try:
            if reply.is_open:
                if reply.is_full:
                    reply.when_writable(lambda: self._enter(sending))
                elif not self._go_on(sending):
                    self._waiting.append(sending)
        finally:
            # Also when a view could not be made: the others are served.
            if self._waiting and not self._is_scheduled:
                self._is_scheduled = True
                self._later(self._serve)

    def _go_on(self, sending: _Sending) -> bool:
        """Send rows until this slice is over; whether that was all."""
        ends_at = self._clock() + SLICE_S
        found: list[Struct] = []
        is_done = True
        for at, row in enumerate(sending.rows, 1):
            # A step without a row is one of those that a row is worked out in.
            if row is not None:
                found.append(row)
            if at % LOOK_EACH == 0 and self._clock() >= ends_at:
                is_done = False
                break
        sending.count += len(found)
        if found:
            sending.reply.send({"rows": found})
        if is_done:
            sending.reply({"ok": True, "count": sending.count, **sending.facts})
        return is_done


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
