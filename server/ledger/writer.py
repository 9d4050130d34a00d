"""The book of one epoch: numbers its lines, keeps them until written, counts what it drops.

    event ──▶ numbered, kept ──▶ lines ──▶ buffer, bounded ──▶ file
                                             └─ full: dropped, a `gap` line tells how many

An event costs little while a turn runs; lines are made of all that a turn has left at once, and
have the time of the first of them.

Lines are written at the latest before the journal's block of the same turn, so that a process that
is killed cannot leave a settled message without its event. Nothing here may raise, nothing waits:
evidence that cannot be kept says so itself. Must not know what the events mean, nor files.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol

import structlog

if TYPE_CHECKING:
    from collections.abc import Callable

# So much is written without waiting for the end of the turn.
WRITE_OCTETS: Final = 256 * 1024
# Of a line beside its event and the broker's name: not exact, as it only bounds the memory.
AROUND_OCTETS: Final = 56
# A disk that refuses is tried again after this.
RETRY_US: Final = 200_000

log = structlog.get_logger(__name__)


class Sink(Protocol):
    """The file that lines go to."""

    def write(self, data: bytes) -> None:
        """Append whole lines, all of them or none.

        Raises:
            OSError: the disk refuses; nothing was appended
        """

    def failing(self, is_so: bool) -> None:
        """Lines are being dropped, or no longer: to be known after a crash."""


class Growing(Protocol):
    """Who has an event that the next thing to happen may belong to."""

    def finish(self) -> str:
        """The event as it is now; it grows no more."""


class LedgerWriter:
    """The lines of one epoch.

    Args:
        broker: the broker's id
        epoch: its number
        sink: takes the lines
        clock_us: microseconds since 1970, never going back
        limit_octets: more than so much is not kept in memory
        after_gap: called when lines were dropped and the disk takes them again
    """

    __slots__ = (
        *(
            "_after_gap",
            "_around_octets",
            "_clock_us",
            "_events",
            "_head",
            "_limit_octets",
            "_lines",
            "_lost",
            "_retry_at_us",
            "_sink",
            "_time_us",
        ),
        *("_is_refused", "_number", "deal", "epoch", "growing", "highest_lsn", "lost_count"),
        "octets",
    )

    def __init__(
        self,
        broker: str,
        epoch: int,
        sink: Sink,
        clock_us: Callable[[], int],
        limit_octets: int,
        after_gap: Callable[[], None] = lambda: None,
    ) -> None:
        self.epoch = epoch
        self._number = 0  # of the next line
        self.growing: Growing | None = None  # gives its event when another one comes
        self.octets = 0  # in memory
        self.lost_count = 0  # lines that were dropped in this epoch
        self.highest_lsn = 0  # that a line has named
        self.deal = -1  # of the first line of the batch that is being dealt out
        self._head = f'{{"b":"{broker}","o":{epoch},"n":'
        self._sink = sink
        self._clock_us = clock_us
        self._limit_octets = limit_octets
        self._after_gap = after_gap
        self._around_octets = len(self._head) + AROUND_OCTETS
        self._events: list[str] = []  # the last of them has the number before the next one
        self._time_us = 0  # of these
        self._lines: list[str] = []
        self._lost = 0  # since the last line that was kept
        self._retry_at_us = 0
        self._is_refused = False

    def put(self, event: str) -> None:
        """Write down an event: `kind","key":value,…`, as JSON without what all lines begin with."""
        if self.growing is not None:
            self._finish()
        if self.octets > WRITE_OCTETS:
            self.flush()
            if self.octets > self._limit_octets:
                self._drop()
                return
        self._keep(event)

    def _keep(self, event: str) -> None:
        if not self._events:
            self._time_us = self._clock_us()
        self._events.append(event)
        self._number += 1
        self.octets += len(event) + self._around_octets

    def begin(self, growing: Growing) -> None:
        """Write down an event as soon as the next one comes, as it is then."""
        if self.growing is not None:
            self._finish()
        self.growing = growing

    def _finish(self) -> None:
        growing, self.growing = self.growing, None
        if growing is not None:
            self.put(growing.finish())

    @property
    def number(self) -> int:
        """The number of the next line in its epoch."""
        if self.growing is not None:
            self._finish()
        return self._number

    def name(self, event: str) -> None:
        """Write down what later lines refer to: it is dropped last, as they say nothing without."""
        if self.growing is not None:
            self._finish()
        if self.octets > 2 * self._limit_octets:
            self._drop()
            return
        self._keep(event)

    def _write_out(self) -> None:
        """Make lines of the events."""
        head, between = self._head, f',"t":{self._time_us},"e":"'
        first = self._number - len(self._events)
        lines = [
            f"{head}{number}{between}{event}}}\n"
            for number, event in enumerate(self._events, first)
        ]
        self._lines += lines
        self._events.clear()

    def flush(self) -> None:
        """Hand all lines to the file; what it refuses is tried again in a while."""
        if self.growing is not None:
            self._finish()
        if self._events:
            self._write_out()
        if not self._lines or (self._retry_at_us and self._clock_us() < self._retry_at_us):
            return
        try:
            self._sink.write("".join(self._lines).encode("ascii"))
        except OSError as error:
            self._retry_at_us = self._clock_us() + RETRY_US
            if not self._is_refused:
                self._is_refused = True
                log.error("ledger.write_failed", reason=str(error), meaning="events may be dropped")
                self._sink.failing(True)
            return
        self._lines.clear()
        self.octets = 0
        if self._is_refused:
            self._accepted()

    def close(self) -> None:
        """The epoch ends: write what is left, as far as the disk takes it."""
        self._retry_at_us = 0
        self.flush()
        if self._lines:
            log.error(
                "ledger.incomplete",
                count=len(self._lines),
                meaning="the last lines of the file are missing",
            )

    def _drop(self) -> None:
        if self._events:
            self._write_out()
        self._number += 1
        self._lost += 1
        if self._lost == 1:
            log.error(
                "ledger.buffer_full", meaning="events are dropped; a gap line will record how many"
            )

    def _accepted(self) -> None:
        """The disk takes lines again: say how many it has cost."""
        lost, self._lost = self._lost, 0
        self._retry_at_us = 0
        self._is_refused = False
        self._sink.failing(False)
        self.lost_count += lost
        log.info("ledger.write_resumed", count=lost, meaning="count events were dropped")
        if lost:
            self.name(f'gap","lost":{lost}')
            self._after_gap()
        self.flush()
