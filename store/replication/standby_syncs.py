"""What a standby has synced of what the log has committed, as far as the leader can know it.

    committed ─▶ the last records ─────────────┐
    reported ──▶ what each standby said last ──┴─▶ one names such a record ─▶ `on_synced`

Where confirms wait for a standby, this is the third number of the `Watermark`: what was confirmed
is on the disks of two brokers then, whatever the engine loses of what it has acknowledged.

The invariant: *a report counts only if the record that it names is the one that this leader has
committed under that number*. Both have its checksum, and each record has that of the one before, so
the same checksum means the same log up to there. By the number alone a leader would believe a
standby of another history: an engine that has lost its end lets the claim of another node stand
where this leader's last records stood, and a standby syncs that claim, and what follows on it,
under the same numbers.

A report may be ahead of this leader, as the engine's answer to an append comes later than the
record to whoever reads. It is kept until the answer is there, or until this standby says something
else: its directory may have been lost meanwhile. One about a record that is kept no longer tells
nothing, and a later one will.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable

    from vouchmq.store.replication.log_view import Position

# A standby that is further behind names a later one by and by.
MOST_RECORDS: Final = 4096


class _Record(NamedTuple):
    """A committed record.

    Args:
        checksum: of it
        lsn: highest LSN up to its end
        committed_bytes: of blocks that this leader had committed with it
    """

    checksum: int
    lsn: int
    committed_bytes: int


class StandbySyncs:
    """Tells `on_synced` the highest LSN that a standby has synced; it never goes back.

    Args:
        on_synced: is told it
    """

    __slots__ = (
        "_committed_bytes",
        "_on_synced",
        "_records",
        "_reports",
        "_synced_bytes",
        "number",
    )

    def __init__(self, on_synced: Callable[[int], None]) -> None:
        # Of the last record that is known to be synced by a standby, -1 before any.
        self.number = -1
        self._on_synced = on_synced
        # By number, in their order.
        self._records: dict[int, _Record] = {}
        # Number and checksum, by node; only those that may still tell something.
        self._reports: dict[str, tuple[int, int]] = {}
        self._committed_bytes = self._synced_bytes = 0

    @property
    def waiting_bytes(self) -> int:
        """What is committed in the log, and not known to be synced by any standby."""
        return self._committed_bytes - self._synced_bytes

    def committed(self, at: Position, committed_bytes: int) -> None:
        """The log has another record.

        Args:
            at: where it ends
            committed_bytes: of blocks that this leader has committed
        """
        self._records[at.number] = _Record(at.checksum, at.lsn, committed_bytes)
        self._committed_bytes = committed_bytes
        if len(self._records) > MOST_RECORDS:
            del self._records[next(iter(self._records))]
        self._look(at.number)

    def reported(self, node: str, number: int, checksum: int) -> None:
        """A standby says that its directory has everything up to this record, after any crash."""
        self.withdrawn(node)
        if number > self.number:
            self._reports[node] = number, checksum
            self._look(next(reversed(self._records), -1))

    def withdrawn(self, node: str) -> None:
        """What a standby has said, and what is not committed yet, does not count any more."""
        self._reports.pop(node, None)

    def _look(self, last: int) -> None:
        """Compare what was reported with what is committed, `last` being the newest record."""
        for node, (number, checksum) in list(self._reports.items()):
            if number > last:
                continue
            del self._reports[node]
            found = self._records.get(number)
            if found is not None and found.checksum == checksum:
                self._passed(number, found)

    def _passed(self, number: int, found: _Record) -> None:
        self.number = number
        self._synced_bytes = found.committed_bytes
        while self._records and (first := next(iter(self._records))) <= number:
            del self._records[first]
        self._on_synced(found.lsn)
