"""Which states a crash may leave: what the broker had in its queues when each block was written.

Nothing is predicted: a recovered broker must have exactly what the running one had stored at one
of its blocks, counts, delays and definitions included, and that block is not older than what a
client was told of or a sync has covered. What the running one has is judged by the books.
"""

from __future__ import annotations

from collections.abc import Iterator

from tests.simulation.feature_listing import UNKNOWN, Kept, Place, Snapshot
from tests.simulation.ledger import Violation, shown


class States:
    """The snapshots since the last recovery; number `floor` is the oldest one that may be found."""

    def __init__(self, base: Snapshot) -> None:
        self.base = base
        self.floor = 0
        self.records: list[Snapshot] = []
        self.failed: list[tuple[int, Snapshot]] = []  # behind which record, and what it held
        self.promised = 0
        self.promises = ""
        self.submitted = 0
        self.candidate: Snapshot | None = None  # being written

    @property
    def written(self) -> int:
        """Number of the newest record."""
        return self.floor + len(self.records)

    @property
    def pending(self) -> int:
        """Number of the next one."""
        return self.written + 1

    def sync_submitted(self) -> int:
        """A sync begins that covers everything written."""
        self.submitted = self.written
        return self.written

    def sync_done(self, number: int) -> None:
        """All records up to this one are durable."""
        while self.floor < number:
            self.base = self.records.pop(0)
            self.floor += 1
        self.failed = [entry for entry in self.failed if entry[0] >= self.floor]

    def promise(self, number: int, what: str) -> None:
        """A client has been told of what this record holds."""
        if number > self.written:
            raise Violation(f"{what} was told before it was written")
        if number > self.promised:
            self.promised, self.promises = number, what

    # What is found

    def judge(self, found: Snapshot, *, is_killed: bool) -> None:
        """Find the state that it is.

        Raises:
            Violation: it is none that is allowed
        """
        least = self.written if is_killed else max(self.promised, self.floor)
        reasons: list[str] = []
        for number, state in self._states():
            if number < least:
                continue
            if fits(found, state):
                return
            reasons.append(f"record {number}: {difference(found, state)}")
        raise Violation(
            f"recovered is no state from {least} (of {self.floor} … {self.written}) on; "
            f"against {' | '.join(sorted(reasons, key=len)[:3])}; last promise: {self.promises}"
        )

    def _states(self) -> Iterator[tuple[int, Snapshot]]:
        before = self.base
        yield self.floor, before
        yield from self._branches(self.floor, before)
        for number, record in enumerate(self.records, self.floor + 1):
            if record.begins_segment:
                yield number - 1, early(before, record)
            yield number, record
            yield from self._branches(number, record)
            before = record
        if self.candidate is not None:
            yield self.written, early(before, self.candidate)
            yield self.written, self.candidate

    def _branches(self, number: int, before: Snapshot) -> Iterator[tuple[int, Snapshot]]:
        for at, record in self.failed:
            if at == number:
                yield number, early(before, record)
                yield number, record


def early(before: Snapshot, after: Snapshot) -> Snapshot:
    """A segment opens with all definitions; the block behind them may be lost."""
    return Snapshot(
        after.definitions,
        after.queues,
        {place: kept for place, kept in before.copies.items() if place[0] in after.queues},
        before.handed,
        before.out,
    )


def fits(found: Snapshot, state: Snapshot) -> bool:
    """Whether a broker that was in this state recovers as that."""
    if found.definitions != state.definitions or found.copies.keys() != state.copies.keys():
        return False
    if not {place for place in state.handed if place in found.copies} <= found.handed:
        return False
    return all(is_true(kept, state, place) for place, kept in found.copies.items())


def is_true(kept: Kept, state: Snapshot, place: Place) -> bool:
    """Whether that is what must be known of a copy."""
    return state.copies[place] is UNKNOWN or kept == after_crash(state, place)


def after_crash(state: Snapshot, place: Place) -> Kept:
    """What must be known of a copy: who was with a consumer has come back by that."""
    kept = state.copies[place]
    if place in state.out and kept.returns >= 0:
        return kept._replace(returns=kept.returns + 1, due_ms=0)
    return kept


def difference(found: Snapshot, state: Snapshot) -> str:
    """Why they do not fit."""
    parts = []
    if found.definitions != state.definitions:
        lost, more = state.definitions - found.definitions, found.definitions - state.definitions
        parts.append(f"definitions lost {shown(lost)}, more {shown(more)}")
    lost_copies, back = (
        state.copies.keys() - found.copies.keys(),
        found.copies.keys() - (state.copies.keys()),
    )
    if lost_copies:
        parts.append(f"lost {shown(lost_copies)}")
    if back:
        parts.append(f"came back {shown(back)}")
    if unflagged := state.handed & found.copies.keys() - found.handed:
        parts.append(f"handed out before, but not redelivered: {shown(unflagged)}")
    changed = {
        place: (after_crash(state, place), kept)
        for place, kept in found.copies.items()
        if place in state.copies and not is_true(kept, state, place)
    }
    if changed:
        parts.append(f"known differently: {shown(changed.items())}")
    return "; ".join(parts) or "nothing"
