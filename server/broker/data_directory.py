"""Which data directory this is, and what it remembers of its earlier starts.

A client that keeps what it has seen (a queue id and a position, the offset of a stream) keeps
numbers that another directory gives to other messages. So a directory has a random identity, each
start of the broker on it another one, and an LSN that is on disk says how far a client has looked.
A directory restored from a backup lacks the start, or ended it before that LSN. To know that takes
something of every start: of the newest their names, of thousands before them 12 bytes. Must not
know who asks.

Spec: DURABLE-26, DURABLE-27, DURABLE-28
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Callable, Iterator
from itertools import islice
from struct import Struct
from typing import Final

from vouchmq.server.broker import definitions as d

# Starts that are remembered; they stand in the head of each segment.
KEPT_STARTS: Final = 100
# Of those before, what is remembered: a digest and the LSN that was found. With 5,000 the record is
# 80 kB; a directory that is started every night gets there in 13 years.
KEPT_EARLIER: Final = 5_000
_EARLIER: Final = Struct(">4sQ")


class DataDirectory:
    """The identity of a data directory; empty until `begin`."""

    def __init__(self) -> None:
        self.identity = ""
        # The highest LSN that each start has found, oldest start first.
        self._starts: dict[str, int] = {}
        # The same of those before, packed.
        self._earlier = b""

    @property
    def start(self) -> str:
        """The identity of this start of the broker."""
        return next(reversed(self._starts), "")

    def restore(self, record: d.DataDirectoryStarted) -> None:
        """What a record of it says; the newest one counts."""
        self.identity = record.identity
        self._starts = dict(record.starts)
        self._earlier = base64.b64decode(record.earlier)

    def begin(self, found_lsn: int, random_name: Callable[[], str]) -> bytes:
        """The broker starts; the record that says so.

        Args:
            found_lsn: the highest LSN that was recovered
            random_name: 22 characters that nobody can guess
        """
        self.identity = self.identity or random_name()
        self._starts[random_name()] = found_lsn
        while len(self._starts) > KEPT_STARTS:
            oldest = next(iter(self._starts))
            self._earlier += _EARLIER.pack(_digest(oldest), self._starts.pop(oldest))
        self._earlier = self._earlier[-KEPT_EARLIER * _EARLIER.size :]
        return self.records()[0]

    def records(self) -> list[bytes]:
        """What makes it known again; nothing as long as there is nothing to know."""
        if not self.identity:
            return []
        starts = list(self._starts.items())
        earlier = base64.b64encode(self._earlier).decode("ascii")
        return [d.encode(d.DataDirectoryStarted(self.identity, starts, earlier))]

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
        # What the next start found is what this one had left on disk.
        found = list(islice(self._found_from(start), 2))
        if not found:
            return (
                f"data directory '{identity}' does not know start '{start}': it was restored from "
                f"a backup, or was started {KEPT_STARTS + KEPT_EARLIER} times since"
            )
        last_lsn = found[1] if len(found) > 1 else next_lsn - 1
        if lsn > last_lsn:
            return (
                f"start '{start}' of data directory '{identity}' ended at LSN {last_lsn}, before "
                f"{lsn}: it was restored from a backup"
            )
        return ""

    def _found_from(self, start: str) -> Iterator[int]:
        """The highest LSNs that a start has found and those after it; none if it is not known."""
        if start in self._starts:
            names = iter(self._starts)
            while next(names) != start:
                pass
            yield self._starts[start]
            yield from (self._starts[each] for each in names)
            return
        wanted, is_known = _digest(start), False
        for digest, found_lsn in _EARLIER.iter_unpack(self._earlier):
            is_known = is_known or digest == wanted
            if is_known:
                yield found_lsn
        if is_known:
            yield from self._starts.values()


def _digest(start: str) -> bytes:
    return hashlib.blake2b(start.encode("ascii", "replace"), digest_size=4).digest()
