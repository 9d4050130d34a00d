"""Where paged messages are: the journal for what it holds anyway, scratch pages for the rest.

A page that cannot be written leaves its messages in memory, which is told once in a while. One
that cannot be read is as final as a failed sync: its queue can neither pass over it nor wait.

Spec: LIMIT-21, DURABLE-21
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol

from vouchmq.protocol.contents import with_readable_headers
from vouchmq.store.errors import ReadFailed

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from vouchmq.server.broker.message import Message
    from vouchmq.store.scratch import Scratch


# Steps of the journal, each of about a microsecond, that one read takes at most (LIMIT-23).
FETCH_STEPS: Final = 4096


class ReadableJournal(Protocol):
    """The journal, as far as it is concerned here."""

    @property
    def read_steps(self) -> int:
        """Steps that all reads have taken so far."""

    def fetch_runs(
        self, lsns: Sequence[int], limit_bytes: int, limit_steps: int
    ) -> list[tuple[int, bytes, Sequence[bytes], int]]:
        """Return stored messages as (first LSN, tail, raws, wall-clock ms when they arrived)."""


class JournalClock:
    """The time of day as the journal writes it down, and back.

    While the broker runs its clock is the loop's, which nobody sets; the time of day is looked at
    once, at the start. So a clock that is set meanwhile moves no deadline (GEN-07), and one that
    was set back while the broker was down makes no message younger than new (DURABLE-20).

    Args:
        now_ms: the loop's clock
        wall_ms: the time of day
    """

    def __init__(self, now_ms: Callable[[], int], wall_ms: Callable[[], int]) -> None:
        self._now_ms = now_ms
        self._started_ms = now_ms()
        self._offset_ms = wall_ms() - self._started_ms

    def now_ms(self) -> int:
        """The present, as the journal writes it."""
        return self._now_ms() + self._offset_ms

    def journal_ms(self, loop_ms: int) -> int:
        """What the journal writes of that moment."""
        return loop_ms + self._offset_ms

    def loop_ms(self, journal_ms: int) -> int:
        """When that was by the loop's clock; 0, which nobody knows, is now."""
        now_ms = self._now_ms()
        return min(journal_ms - self._offset_ms, now_ms) if journal_ms else now_ms

    def before_start_ms(self, journal_ms: int) -> int:
        """The same of a moment before this start, whenever it is asked (DURABLE-20)."""
        started_ms = self._started_ms
        return min(journal_ms - self._offset_ms, started_ms) if journal_ms else started_ms

    def to_come_ms(self, journal_ms: int) -> int:
        """When that will be by the loop's clock."""
        return journal_ms - self._offset_ms


class DiskPages:
    """A `PagedStore` on the data directory.

    Args:
        journal: holds stored messages
        scratch: pages of messages that the journal does not hold
        failed: told, once or more, that something cannot be read back
        clock: tells the loop's clock from the journal's
        recovered_lsn: the last LSN that the start found; what has one up to that came before it,
            and an older version may have stored it
    """

    def __init__(
        self,
        journal: ReadableJournal,
        scratch: Scratch,
        failed: Callable[[str], None],
        clock: JournalClock,
        recovered_lsn: int = 0,
    ) -> None:
        self._journal = journal
        self._scratch = scratch
        self._failed = failed
        self._clock = clock
        self._recovered_lsn = recovered_lsn

    @property
    def read_steps(self) -> int:
        """See `PagedStore`."""
        return self._journal.read_steps

    def fetch_runs(
        self, lsns: Sequence[int], limit_octets: int
    ) -> list[tuple[int, bytes, Sequence[bytes], int]]:
        """See `PagedStore`. What an older version has stored is given as this one stores it."""
        try:
            runs = self._journal.fetch_runs(lsns, limit_octets, FETCH_STEPS)
        except ReadFailed as error:
            self._failed(str(error))
            raise

        clock, recovered_lsn = self._clock, self._recovered_lsn
        # A run does not go beyond the block in which it was written.
        return [
            (first, tail, with_readable_headers(raws), clock.before_start_ms(arrived))
            if first <= recovered_lsn
            else (first, tail, raws, clock.loop_ms(arrived))
            for first, tail, raws, arrived in runs
        ]

    def page_out(self, messages: list[Message]) -> int:
        """See `PagedStore`."""
        return self._scratch.page_out(messages)

    def page_in(self, page: int) -> list[Message]:
        """See `PagedStore`."""
        return self._paged(self._scratch.page_in, page)

    def read_page(self, page: int) -> list[Message]:
        """See `PagedStore`."""
        return self._paged(self._scratch.read, page)

    def _paged(self, read: Callable[[int], list[Message]], page: int) -> list[Message]:
        try:
            return read(page)
        except OSError as error:
            reason = f"cannot read a page of queued messages: {error.strerror or error}"
            self._failed(reason)
            raise ReadFailed(reason) from error

    def drop_page(self, page: int) -> None:
        """See `PagedStore`."""
        self._scratch.drop_page(page)
