"""Which publishes of a channel the broker has confirmed, nacked or returned, by row.

Knows no socket: rows are noted when they are sent, outcomes come from the inbox in the order in
which the broker wrote them. Work is per outcome, not per message: a confirm that speaks for 500
publishes costs as much as one that speaks for one.

Spec: CONF-05, CONF-08
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from itertools import islice
from typing import Protocol, TypeAlias

from vouchmq.kit.bulk.errors import BulkError
from vouchmq.kit.bulk.frames import Outcome, Returned
from vouchmq.kit.bulk.result import PublishResult

# exchange, routing key, properties as on the wire, body
Row: TypeAlias = tuple[str, str, bytes, bytes]


class PublishWatch(Protocol):
    """Somebody who wants to know of each step of a publish, in time; a witness for one."""

    def sending(self, first: int, rows: Sequence[Row]) -> None:
        """These rows, counted from `first`, are about to be sent."""

    def settled(self, rows: Sequence[int], *, confirmed: bool) -> None:
        """The broker has confirmed or nacked these rows."""

    def returned(self, row: int, message: Returned) -> None:
        """The broker has returned this row (-1: it could not be told which)."""


class Confirms:
    """The publishes of one `publish_many` on their way.

    `base` is the number of publishes on the channel before its first row: row r has the publish
    number base + r + 1.
    """

    __slots__ = ("_base", "_early", "_keeps_rows", "_low", "_rows", "_search", "_watch", "result")

    def __init__(self, base: int, *, keeps_rows: bool, watch: PublishWatch | None) -> None:
        self.result = PublishResult()
        self._base = base
        # All numbers up to here have their outcome; some above it, too.
        self._low = base
        self._early: set[int] = set()
        # The rows above `_low`, in their order, as far as returns have to be recognised.
        self._rows: deque[Row] = deque()
        self._keeps_rows = keeps_rows
        self._search = 0
        self._watch = watch

    def outstanding(self, sent: int) -> int:
        """How many of the first `sent` rows have no outcome yet."""
        return self._base + sent - self._low - len(self._early)

    def note(self, first: int, rows: Sequence[Row]) -> None:
        """These rows are sent now."""
        if self._watch is not None:
            self._watch.sending(first, rows)
        if self._keeps_rows:
            self._rows.extend(rows)

    def take(self, outcomes: deque[Outcome | Returned], sent: int) -> bool:
        """Take what the broker said about the first `sent` rows; False when it said nothing.

        Raises:
            BulkError: it speaks of a publish that was never sent
        """
        if not outcomes:
            return False
        while outcomes:
            outcome = outcomes.popleft()
            if isinstance(outcome, Returned):
                self._return(outcome)
            else:
                self._settle(*outcome, self._base + sent)
        return True

    def _settle(self, number: int, is_multiple: bool, is_ack: bool, newest: int) -> None:
        if number > newest:
            raise BulkError(f"the broker confirmed publish {number}, but only {newest} were sent")
        low = self._low
        early = self._early
        if is_multiple:
            # Number 0 speaks for everything so far.
            until = number or newest
            if until <= low:
                return
            count = until - low
            if early or self._watch is not None or not is_ack:
                settled = [each for each in range(low + 1, until + 1) if each not in early]
                count = len(settled)
                self._early = early = {each for each in early if each > until}
                self._tell(settled, is_ack)
            self._low = until
        else:
            if number <= low or number in early:
                return
            count = 1
            early.add(number)
            if self._watch is not None or not is_ack:
                self._tell([number], is_ack)
        if is_ack:
            self.result.confirmed += count
        if early:
            self._advance()
        self._forget(self._low - low)

    def _tell(self, numbers: Sequence[int], is_ack: bool) -> None:
        rows = [number - self._base - 1 for number in numbers]
        if not is_ack:
            self.result.nacked.extend(rows)
        if self._watch is not None:
            self._watch.settled(rows, confirmed=is_ack)

    def _advance(self) -> None:
        low = self._low
        early = self._early
        while low + 1 in early:
            low += 1
            early.remove(low)
        self._low = low

    def _forget(self, count: int) -> None:
        """The oldest `count` rows have their outcome: no return will come for them."""
        if not self._keeps_rows:
            return
        for _ in range(count):
            self._rows.popleft()
        self._search = max(0, self._search - count)

    def _return(self, message: Returned) -> None:
        row = self._row_of(message)
        self.result.returned.append(
            (row, message.code, message.text, message.exchange, message.routing_key)
        )
        if self._watch is not None:
            self._watch.returned(row, message)

    def _row_of(self, message: Returned) -> int:
        """The row a returned message was, -1 when none looks like it.

        A return carries no number, but returns come in the order of their publishes and before
        their confirm, so the first one after the last return that looks the same is the one.
        """
        wanted = message[2:]
        place = self._found(wanted, 4)
        if place < 0:
            # Brokers may rewrite properties (BCC is taken out, for one).
            place = self._found(wanted, 2)
        if place < 0:
            return -1
        self._search = place + 1
        return self._low - self._base + place

    def _found(self, wanted: tuple[str, str, bytes, bytes], fields: int) -> int:
        body = wanted[3]
        rows = islice(self._rows, self._search, None)
        for place, row in enumerate(rows, self._search):
            if row[3] == body and row[:fields] == wanted[:fields]:
                return place
        return -1
