"""What is known of brokers and epochs as a whole: which lines are there, how each epoch ended.

Small enough for the driver, whatever the size of the ledger, and for a JSON file between the runs
of an incremental audit. From it follow the places where something is missing (`holes`), behind
which nothing can be proven. Must not know messages.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from typing import Any, Final

LINE_BITS: Final = 38
"""A line's place in the life of its broker is `epoch << 38 | number`."""
LAST_LINE: Final = (1 << LINE_BITS) - 1
ALL_LSNS: Final = 1 << 62
"""Higher than any."""
RESTARTS: Final = ("clean", "crash")
"""`boot.w` of a new process; `on` goes on with the old one."""


@dataclass
class Epoch:
    """What is there of one epoch."""

    spans: list[list[int]] = field(default_factory=list)  # [first, last] numbers that are there
    first_t: int | None = None
    last_t: int | None = None
    boot: dict[str, Any] | None = None
    end: str | None = None
    gaps: list[list[int]] = field(default_factory=list)  # [number of the line, events lost]
    synced_lsn: int = 0  # highest that a `syn` named
    lowest_lsn: int | None = None  # that was published
    highest_lsn: int = 0  # the same
    first_file: int = 1  # the lowest number of its files that are there

    @property
    def events(self) -> int:
        """How many lines there are, each counted once."""
        return sum(last - first + 1 for first, last in self.spans)

    @property
    def last_n(self) -> int:
        """The highest number that is there, -1 when there is none."""
        return self.spans[-1][1] if self.spans else -1

    @property
    def lost(self) -> int:
        """Events that the broker had to drop."""
        return sum(lost for _, lost in self.gaps)

    def absent(self) -> Iterator[tuple[int, int]]:
        """Stretches of numbers that are not there, below the highest that is."""
        due = 0
        for first, last in self.spans:
            if first > due:
                yield due, first - 1
            due = last + 1


@dataclass
class Broker:
    """The epochs of a broker, by their numbers."""

    epochs: dict[int, Epoch] = field(default_factory=dict)

    def ordered(self) -> list[tuple[int, Epoch]]:
        """(number, epoch) of each epoch, from the oldest to the newest."""
        return sorted(self.epochs.items())

    def ends_short(self, number: int) -> tuple[int, bool]:
        """Of an epoch: lines missing at its end, and whether more than lines may be missing.

        The boot after it says how far the epoch went, and whether the journal went further.
        """
        epoch = self.epochs[number]
        after = next((e for o, e in self.ordered() if o > number), None)
        if after is None:
            return 0, False
        boot = after.boot or {}
        previous, last = boot.get("prev_o"), boot.get("prev_n")
        short = max(0, last - epoch.last_n) if previous == number and last is not None else 0
        tail = bool(boot.get("dark")) or previous != number
        prev_lsn, message_lsn = boot.get("prev_lsn"), boot.get("msg")
        if message_lsn is None:  # of an older broker; notes have LSNs, too, which no line names
            message_lsn = boot.get("wm", 0)
        if prev_lsn is not None and message_lsn > prev_lsn:
            tail = True
        if boot.get("w") == "clean" and epoch.end is None and not short:
            # Who stops in order says so.
            tail = True
        return short, tail

    def holes(self) -> list[int]:
        """Places behind which something is missing, ascending."""
        found: list[int] = []
        for number, epoch in self.ordered():
            head = number << LINE_BITS
            for first, _ in epoch.absent():
                insort(found, head | first)
            short, tail = self.ends_short(number)
            if short or tail:
                insort(found, head | min(LAST_LINE, epoch.last_n + 1))
        return found

    @property
    def is_cut(self) -> bool:
        """Whether the oldest files are gone, by their age: the ledger begins within an epoch."""
        if not self.epochs:
            return False
        oldest = self.epochs[min(self.epochs)]
        return oldest.first_file > 1 and bool(oldest.spans) and oldest.spans[0][0] > 0

    @property
    def horizon(self) -> int:
        """Copies with a lower LSN were published in files that are gone; 0: there are none."""
        if not self.is_cut:
            return 0
        lowest = (epoch.lowest_lsn for _, epoch in self.ordered())
        return next((lsn for lsn in lowest if lsn is not None), ALL_LSNS)

    def beginnings(self) -> list[int]:
        """Epochs before which there was no ledger: the first there is, those after a dark time."""
        first = min(self.epochs, default=0)
        return [
            number
            for number, epoch in self.ordered()
            if number == first or (epoch.boot is not None and epoch.boot.get("dark"))
        ]

    def unseen(self, number: int) -> bool:
        """Whether the broker did something behind this epoch of which nothing tells."""
        return self.ends_short(number)[1]

    def restarts(self, ways: tuple[str, ...] = RESTARTS) -> list[int]:
        """Epochs that a new process began, ascending; one without its boot line may be one."""
        return [
            number
            for number, epoch in self.ordered()
            if (epoch.boot["w"] in ways if epoch.boot else number != min(self.epochs))
        ]

    def missing(self, number: int) -> int:
        """Lines of an epoch that should be there.

        Gaps that the broker admits do not count, nor do files that went by their age.
        """
        epoch = self.epochs[number]
        is_cut = self.is_cut and number == min(self.epochs)
        absent = sum(last - first + 1 for first, last in epoch.absent() if first > 0 or not is_cut)
        return max(0, absent - epoch.lost) + self.ends_short(number)[0]

    def ended(self, number: int) -> str | None:
        """How an epoch ended: stop, off, crash; None while it lasts."""
        epoch = self.epochs[number]
        if epoch.end is not None or number == max(self.epochs):
            return epoch.end
        return "crash"


@dataclass
class Facts:
    """All brokers of an audit, and what was odd about their files."""

    brokers: dict[str, Broker] = field(default_factory=dict)
    reasons: list[str] = field(default_factory=list)  # words of `dle` and `drp`, by their code
    broken: list[str] = field(default_factory=list)  # file:line, the first of them
    broken_count: int = 0
    torn: int = 0
    unread: list[list[Any]] = field(default_factory=list)  # [broker, epoch] of another format

    def codes(self) -> dict[str, int]:
        """A number for each broker, which stays the same while brokers are added."""
        return {name: code for code, name in enumerate(self.brokers)}

    def epochs(self) -> Iterator[tuple[int, str, int, Epoch]]:
        """Code and id of the broker, number and facts of the epoch."""
        for code, (name, broker) in enumerate(self.brokers.items()):
            for number, epoch in broker.ordered():
                yield code, name, number, epoch

    def times(self) -> list[int]:
        """Times of the first and the last line of each epoch."""
        return [
            time_us
            for *_, epoch in self.epochs()
            for time_us in (epoch.first_t, epoch.last_t)
            if time_us is not None
        ]

    def reason_code(self, word: str) -> int:
        """The number of a reason, a new one if need be."""
        if word not in self.reasons:
            self.reasons.append(word)
        return self.reasons.index(word)

    def missing(self) -> int:
        """Lines that should be there, over all."""
        return sum(b.missing(number) for b in self.brokers.values() for number in b.epochs)

    def cut_at(self) -> int | None:
        """Since when there is a ledger, µs since 1970, where older files of a broker are gone."""
        times = [
            broker.epochs[min(broker.epochs)].first_t
            for broker in self.brokers.values()
            if broker.is_cut
        ]
        return max((t for t in times if t is not None), default=None)

    def unseen(self) -> int:
        """Times of which nothing tells, over all: whole epochs that are absent, the ledger off."""
        return sum(b.unseen(number) for b in self.brokers.values() for number in b.epochs)

    def lost(self) -> int:
        """Events that brokers had to drop, over all."""
        return sum(epoch.lost for _, _, _, epoch in self.epochs())

    def completeness(self) -> list[tuple[Any, ...]]:
        """Rows of the table: b, o, first_t, last_t, events, missing, gaps, ended, unseen.

        Times are in µs.
        """
        rows = []
        for _, name, number, epoch in self.epochs():
            broker = self.brokers[name]
            told = (broker.missing(number), epoch.lost, broker.ended(number))
            unseen = int(broker.unseen(number))
            rows.append((name, number, epoch.first_t, epoch.last_t, epoch.events, *told, unseen))
        return rows

    def overlaps(self) -> Iterator[tuple[str, int, int]]:
        """Brokers with an epoch that goes on after the next one has begun; both epochs."""
        for name, broker in self.brokers.items():
            for (old, before), (new, after) in pairwise(broker.ordered()):
                boot = after.boot
                if boot is None or boot.get("prev_o") != old or boot.get("prev_n") is None:
                    chained, beyond = False, False
                else:
                    chained, beyond = True, before.last_n > boot["prev_n"]
                overlap = (
                    before.last_t is not None
                    and after.first_t is not None
                    and before.last_t > after.first_t
                )
                if beyond or (overlap and not chained):
                    yield name, old, new

    def to_json(self) -> dict[str, Any]:
        """As plain data, for `from_json`."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Facts:
        """What `to_json` made; numbers of epochs were turned into text by JSON."""
        brokers = {
            name: Broker({int(number): Epoch(**epoch) for number, epoch in each["epochs"].items()})
            for name, each in data["brokers"].items()
        }
        return cls(**{**data, "brokers": brokers})


def merged(spans: Iterable[Iterable[int]]) -> list[list[int]]:
    """Spans of numbers as few as possible, ascending."""
    found: list[list[int]] = []
    for first, last in sorted(map(tuple, spans)):
        if found and first <= found[-1][1] + 1:
            found[-1][1] = max(found[-1][1], last)
        else:
            found.append([first, last])
    return found
