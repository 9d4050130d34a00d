"""What must, may and must not be on the disk: one record for each block the broker has written.

The journal promises more than that nothing confirmed is lost: what one turn did is there as a
whole or not at all, and only if everything before it is. So after a crash the durable state must
be exactly the state after some record. Which ones are allowed follows from what was promised:
not older than what a client has been told (confirm, commit-ok, -ok of a definition), not older
than what a completed sync has covered, and after a mere kill exactly the newest.

A record whose write failed is a branch of its own: it may be on the disk, but then nothing
after it is. Definitions of a block that begins a new segment may be there without the block,
for a segment opens with all of them; nobody has been told of them then.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

Copy = tuple[str, int]  # queue, message
Item = tuple[object, ...]  # a durable queue, exchange or binding


class Violation(AssertionError):  # noqa: N818 - what it is called everywhere
    """The broker has broken a promise."""


@dataclass(slots=True)
class Record:
    """What one block changed."""

    added: set[Copy] = field(default_factory=set)
    removed: set[Copy] = field(default_factory=set)
    handed: set[Copy] = field(default_factory=set)
    defined: set[Item] = field(default_factory=set)
    undefined: set[Item] = field(default_factory=set)
    dropped: set[Copy] = field(default_factory=set)  # those of `removed` whose queue is gone
    begins_segment: bool = False

    def is_empty(self) -> bool:
        return not (self.added or self.removed or self.handed or self.defined or self.undefined)

    def define(self, item: Item) -> None:
        self.undefined.discard(item)
        self.defined.add(item)

    def undefine(self, item: Item) -> None:
        self.defined.discard(item)
        self.undefined.add(item)


@dataclass(slots=True)
class Found:
    """A recovered broker: per queue its messages in order, each with its redelivered flag."""

    queues: dict[str, list[tuple[int, bool]]]
    items: set[Item]

    def copies(self) -> set[Copy]:
        return {(queue, number) for queue, held in self.queues.items() for number, _ in held}

    def flagged(self) -> set[Copy]:
        return {
            (q, number) for q, held in self.queues.items() for number, is_again in held if is_again
        }


@dataclass(slots=True)
class State:
    """What is durable after some record."""

    copies: set[Copy] = field(default_factory=set)
    handed: set[Copy] = field(default_factory=set)
    items: set[Item] = field(default_factory=set)

    def apply(self, record: Record) -> None:
        self.copies |= record.added
        self.copies -= record.removed
        self.handed |= record.handed
        self.handed &= self.copies
        self.items -= record.undefined
        self.items |= record.defined

    def apply_definitions(self, record: Record) -> None:
        """A new segment begins with all definitions, those of the block behind it included."""
        self.items -= record.undefined
        self.items |= record.defined
        self.copies -= record.dropped
        self.handed &= self.copies

    def clone(self) -> State:
        return State(set(self.copies), set(self.handed), set(self.items))


class Ledger:
    """The records since the last recovery. Record numbers grow for the life of one process.

    `base` is the state after record `floor`, which is known to be durable.
    """

    def __init__(self, base: State) -> None:
        self.base = base
        self.floor = 0
        self.records: list[Record] = []
        self.failed: list[tuple[int, Record]] = []
        self.current = Record()  # decided, not yet written
        self.latest = Record()  # in the block just written; its deliveries are still to be seen
        self.promised = 0
        self.promises: dict[int, str] = {}
        self.submitted = 0
        self.is_broken = False  # the last write has failed
        self.writes_now = 0  # in this very turn
        self.fails_now = False  # deliveries of this turn were in the block that failed
        self.is_writing = False

    @property
    def written(self) -> int:
        """Number of the newest record."""
        return self.floor + len(self.records)

    @property
    def pending(self) -> int:
        """Number that what is decided now will get."""
        return self.written + 1

    def told(self) -> tuple[Record, ...]:
        """Where a delivery belongs that is seen now: the journal is written before the sockets.

        What was in a block that failed may be on the disk, and is written again otherwise.
        """
        if not self.is_broken:
            return (self.latest,)
        return (self.current, self.failed[-1][1]) if self.fails_now else (self.current,)

    # What happens.

    def wrote(self) -> None:
        """A block was handed to the disk, with everything decided so far."""
        self.is_broken = False
        self.writes_now += 1
        if self.records and self.written > self.submitted and self.current.is_empty():
            self.latest = self.records[-1]
            if self.latest.is_empty():
                return
        self.latest, self.current = self.current, Record()
        self.records.append(self.latest)

    def write_failed(self) -> None:
        """The same, but it may be there in part, as a whole or not at all."""
        failed = self.current
        self.failed.append((self.written, failed))
        # Settlements, marks and definitions ride with the next block.
        self.current = Record(
            removed=failed.removed - failed.added,
            handed=failed.handed - failed.added,
            defined=set(failed.defined),
            undefined=set(failed.undefined),
            dropped=failed.dropped - failed.added,
        )
        self.is_broken = True
        # A turn's first block is written before anything of the turn is handed out.
        self.fails_now = self.writes_now > 0
        self.writes_now += 1

    def sync_submitted(self) -> int:
        """A sync begins that covers everything written; gives what to say when it is done."""
        self.submitted = self.written
        return self.written

    def sync_done(self, number: int) -> None:
        """All records up to `number` are durable."""
        while self.floor < number:
            self.base.apply(self.records.pop(0))
            self.floor += 1

    def promise(self, number: int, what: str) -> None:
        """A client has been told of what record `number` holds."""
        if number > self.written:
            raise Violation(f"{what} was told before it was written")
        if number > self.promised:
            self.promised = number
            self.promises = {number: what}

    def turn_ended(self) -> None:
        self.fails_now = False
        self.writes_now = 0

    # What must be there.

    def state_of(self, found: Found, *, is_killed: bool) -> State:
        """The allowed state that `found` is.

        Raises:
            Violation: it is none of them
        """
        least = self.written if is_killed else max(self.promised, self.floor)
        copies, flagged = found.copies(), found.flagged()
        unflagged = None
        for number, state in self._states():
            if number >= least and state.copies == copies and state.items == found.items:
                if state.handed <= flagged:
                    return state
                unflagged = unflagged or state.handed - flagged
        if unflagged:
            raise Violation(f"handed out before, but not redelivered: {shown(unflagged)}")
        raise Violation(self._explain(found, least))

    def _states(self) -> Iterator[tuple[int, State]]:
        """Every state that a crash might leave, oldest first. Each is changed by the next."""
        state = self.base.clone()
        yield self.floor, state
        for number, record in enumerate(self.records, self.floor + 1):
            yield from self._branches(number - 1, state)
            if record.begins_segment:
                yield from self._early(number - 1, state, record)
            state.apply(record)
            yield number, state
        yield from self._branches(self.written, state)
        if self.is_writing:
            yield from self._early(self.written, state, self.current)

    def _branches(self, number: int, state: State) -> Iterator[tuple[int, State]]:
        for at, record in self.failed:
            if at == number:
                branch = state.clone()
                branch.apply(record)
                yield number, branch
                yield from self._early(number, state, record)

    @staticmethod
    def _early(number: int, state: State, record: Record) -> Iterator[tuple[int, State]]:
        if record.defined or record.undefined:
            branch = state.clone()
            branch.apply_definitions(record)
            yield number, branch

    def _explain(self, found: Found, least: int) -> str:
        """Why no state fits, against the one that is nearest."""
        copies = found.copies()
        best: tuple[int, int, str] | None = None
        for number, state in self._states():
            lost, back = state.copies - copies, copies - state.copies
            gone, items = state.items - found.items, found.items - state.items
            distance = len(lost) + len(back) + len(gone) + len(items)
            if best is None or (distance, -number) < best[:2]:
                parts = [
                    f"{what}: {shown(which)}"
                    for what, which in (
                        ("lost", lost),
                        ("came back or never published", back),
                        ("definitions lost", gone),
                        ("definitions that came back", items),
                    )
                    if which
                ]
                text = "; ".join(parts) or "whole, but too old"
                best = (distance, -number, f"against record {number}: {text}")
        return (
            f"recovered is no state from record {least} (of {self.floor} … {self.written}) on; "
            f"{best[2] if best else ''}; last promise: {self.promises}"
        )


def shown(which: Iterable[object]) -> str:
    """A few of many."""
    some = sorted(which, key=repr)
    return ", ".join(map(repr, some[:4])) + (f" and {len(some) - 4} more" if len(some) > 4 else "")
