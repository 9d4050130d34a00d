"""Which data directory this is, and what it remembers of its earlier starts.

A client that keeps what it has seen (a queue id and a position, the offset of a stream) keeps
numbers that another directory gives to other messages. So a directory has a random identity, each
start of the broker on it another one, and an LSN that is on disk says how far a client has looked.
A directory restored from a backup lacks the start, or ended it before that LSN. Must not know who
asks.

Spec: DURABLE-26, DURABLE-27, DURABLE-28
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from vouchmq.server.broker import definitions as d

# Starts that are remembered; they stand in the head of each segment.
KEPT_STARTS: Final = 100


class DataDirectory:
    """The identity of a data directory; empty until `begin`."""

    def __init__(self) -> None:
        self.identity = ""
        # The highest LSN that each start has found, oldest start first.
        self._starts: dict[str, int] = {}

    @property
    def start(self) -> str:
        """The identity of this start of the broker."""
        return next(reversed(self._starts), "")

    def restore(self, record: d.DataDirectoryStarted) -> None:
        """What a record of it says; the newest one counts."""
        self.identity = record.identity
        self._starts = dict(record.starts)

    def begin(self, found_lsn: int, random_name: Callable[[], str]) -> bytes:
        """The broker starts; the record that says so.

        Args:
            found_lsn: the highest LSN that was recovered
            random_name: 22 characters that nobody can guess
        """
        self.identity = self.identity or random_name()
        self._starts[random_name()] = found_lsn
        while len(self._starts) > KEPT_STARTS:
            del self._starts[next(iter(self._starts))]
        return self.records()[0]

    def records(self) -> list[bytes]:
        """What makes it known again; nothing as long as there is nothing to know."""
        if not self.identity:
            return []
        starts = list(self._starts.items())
        return [d.encode(d.DataDirectoryStarted(self.identity, starts))]

    def mismatch(self, identity: str, start: str, lsn: int, next_lsn: int) -> str:
        """Why what somebody has seen is not in this directory; empty when all of it is.

        Args:
            identity: of the directory that was seen
            start: the start of the broker that was seen last
            lsn: that was on disk then
            next_lsn: not given to anything yet
        """
        if identity != self.identity:
            return f"this is data directory '{self.identity}', not '{identity}'"
        if start not in self._starts:
            return (
                f"data directory '{identity}' does not know start '{start}': it was restored from "
                f"a backup, or was started {KEPT_STARTS} times since"
            )
        starts = list(self._starts)
        # What the next start found is what this one had left on disk.
        found = [self._starts[each] for each in starts[starts.index(start) + 1 :]]
        last_lsn = found[0] if found else next_lsn - 1
        if lsn > last_lsn:
            return (
                f"start '{start}' of data directory '{identity}' ended at LSN {last_lsn}, before "
                f"{lsn}: it was restored from a backup"
            )
        return ""
