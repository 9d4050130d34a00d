"""The seals of ledger files, and the clock in them: whether lines are as the broker wrote them.

    file ──▶ Look: its seals one after the other, where it begins and ends ─┐
    file ──▶ Look ──────────────────────────────────────────────────────────┴▶ judge: do they link?

A seal is a hash of the lines since the one before and of that (docs/operate/ledger.md). Each file
can be looked at by itself, since its first seal says which one it follows; a Look is plain data, so
that an incremental audit need not read a file twice. Must not know Spark, nor what lines mean
beyond their number and time.
"""

from __future__ import annotations

import gzip
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from hashlib import sha256
from itertools import groupby, pairwise
from pathlib import Path
from typing import Any, Final

from vouchmq.spark.ledger import events

SEAL: Final = re.compile(rb'(?:,"prev_seal":"([0-9a-f]*)")?,"seal":"([0-9a-f]{64})"\}\n')
HEAD: Final = re.compile(rb'^\{"b":"([^"]*)","o":(\d+),"n":(\d+),"t":(\d+),', re.MULTILINE)
END: Final = b"}\n"
TAMPERED, CLOCK = "tampered", "clock"
CHANGED: Final = "these lines are not the ones that were sealed"

Stamp = tuple[int, int]
"""Number and time of a line."""
Epoch = tuple[str, int]
"""A broker's id and the number of an epoch."""


@dataclass(frozen=True, slots=True)
class Fault:
    """Something wrong with lines `first` to `last` of a file; `n` and `t` are of the first."""

    kind: str
    broker: str
    epoch: int
    n: int
    t: int | None
    file: str
    first: int
    last: int
    why: str

    @property
    def detail(self) -> str:
        """The file and lines of the fault, and what is wrong with them."""
        lines = f":{self.first}" if self.first == self.last else f":{self.first}-{self.last}"
        return f"{self.file}{lines if self.first else ''}: {self.why}"


@dataclass(slots=True)
class Look:
    """What one file says.

    Attributes:
        begins: the seal that its first one follows, "" for none; None: it does not say
        seal: its last one, None if it has none
        behind: the seal that the lines behind that would have, "" if there are none
        of: brokers and epochs that its lines name, which its name may not say
        stamps: of its first and its last line; empty if none can be read
    """

    path: str
    broker: str
    epoch: int
    number: int
    lines: int = 0
    seals: int = 0
    unsealed: int = 0
    begins: str | None = None
    seal: str | None = None
    behind: str = ""
    of: list[list[Any]] = field(default_factory=list)
    stamps: list[list[int]] = field(default_factory=list)
    faults: list[Fault] = field(default_factory=list)

    @property
    def name(self) -> str:
        """Of the file, without its directories."""
        return Path(self.path).name

    def fault(
        self, kind: str, stamp: Sequence[int] | None, where: tuple[int, int], why: str
    ) -> Fault:
        """A fault of this file, at a line and an octet."""
        n, t = stamp or (0, None)
        return Fault(kind, self.broker, self.epoch, n, t, self.name, *where, why)

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Look:
        """A Look from the plain data that `to_json` makes."""
        return cls(**{**data, "faults": [Fault(**each) for each in data["faults"]]})


@dataclass(frozen=True, slots=True)
class Head:
    """The last seal of a broker, to be noted elsewhere, and the line that has it."""

    broker: str
    epoch: int
    n: int
    seal: str


@dataclass(frozen=True, slots=True)
class Seals:
    """What all files together say."""

    faults: tuple[Fault, ...] = ()
    heads: tuple[Head, ...] = ()
    sealed: int = 0  # lines
    unsealed: int = 0
    seals: int = 0


def to_json(looks: Iterable[Look]) -> list[dict[str, Any]]:
    """Looks as plain data, which `Look.from_json` reads."""
    return [asdict(each) for each in looks]


def read(path: Path) -> bytes:
    """The lines of a file."""
    data = path.read_bytes()
    return gzip.decompress(data) if path.suffix == ".gz" else data


def look(path: Path) -> Look:
    """Read a file; what is no line of a ledger is passed over, as others tell of it."""
    data = read(path)
    named = events.FILE_NAME.fullmatch(path.name)
    first = HEAD.search(data)
    if named is not None:
        made = Look(str(path), named["broker"], int(named["epoch"]), int(named["number"]))
    elif first is not None:
        made = Look(str(path), first[1].decode(errors="replace"), int(first[2]), 0)
    else:
        made = Look(str(path), "", 0, 0)
    made.lines = data.count(b"\n")
    _look_at_seals(made, data)
    _look_at_clock(made, stamps_of(data))
    return made


def seal_of(before: str, lines: bytes | memoryview) -> str:
    """The seal of lines that follow those of another one."""
    made = sha256(before.encode("ascii"))
    made.update(lines)
    return made.hexdigest()


def _look_at_seals(made: Look, data: bytes) -> None:
    view, at = memoryview(data), 0
    for found in SEAL.finditer(data):
        begins = None if found[1] is None else found[1].decode()
        why = ""
        if made.seal is None:
            made.begins = begins
            why = "" if begins is not None else "the beginning of the file is not there"
        elif begins is not None:
            why = "the beginning of another file"
        before = made.seal if begins is None else begins
        if before is not None:
            hashed = sha256(before.encode("ascii"))
            hashed.update(view[at : found.start()])
            hashed.update(END)
            if hashed.hexdigest() != found[2].decode():
                why = CHANGED
        if why:
            made.faults.append(_of_lines(made, data, at, found.end(), why))
        made.seal, at = found[2].decode(), found.end()
        made.seals += 1
    made.unsealed = data.count(b"\n", at)
    if made.unsealed and made.seal is not None:
        made.behind = seal_of(made.seal, view[at:])


def _of_lines(made: Look, data: bytes, start: int, end: int, why: str) -> Fault:
    head = HEAD.match(data, start)
    stamp = (int(head[3]), int(head[4])) if head is not None else None
    first = data.count(b"\n", 0, start) + 1
    return made.fault(TAMPERED, stamp, (first, data.count(b"\n", 0, end)), why)


def stamps_of(data: bytes) -> dict[Epoch, list[Stamp]]:
    """Number and time of each line that can be read, ascending, by broker and epoch."""
    found: dict[tuple[bytes, bytes], list[Stamp]] = {}
    for broker, epoch, n, t in HEAD.findall(data):
        found.setdefault((broker, epoch), []).append((int(n), int(t)))
    told: dict[Epoch, list[Stamp]] = {}
    for (name, number), stamps in found.items():
        is_ascending = all(one[0] < other[0] for one, other in pairwise(stamps))
        each = stamps if is_ascending else sorted(set(stamps))
        told[name.decode(errors="replace"), int(number)] = each
    return told


def _look_at_clock(made: Look, found: dict[Epoch, list[Stamp]]) -> None:
    made.of = [list(each) for each in found]
    if len(found) == 1:
        ((epoch, stamps),) = found.items()
        made.stamps = [list(stamps[0]), list(stamps[-1])]
        made.faults += _jumps(made.name, epoch, stamps)


def _jumps(file: str, epoch: Epoch, stamps: Iterable[Sequence[int]]) -> Iterator[Fault]:
    for one, other in pairwise(stamps):
        if other[1] < one[1] and other[0] != one[0]:
            why = f"line {other[0]} is {one[1] - other[1]} µs older than line {one[0]}"
            yield Fault(CLOCK, *epoch, other[0], other[1], file, 0, 0, why)


def judge(looks: Iterable[Look], ended: dict[tuple[str, int], str | None]) -> Seals:
    """What the files of all brokers say together.

    Args:
        looks: of all files that are there
        ended: how epochs ended, by broker and number: `stop`, `off`, `crash`; None: it lasts
    """
    chosen: dict[tuple[str, int, int, str], Look] = {}
    for each in looks:
        # The same file may be there twice, or once more as it was while it was written to.
        key = (each.broker, each.epoch, each.number, each.path if not each.number else "")
        if key not in chosen or chosen[key].lines < each.lines:
            chosen[key] = each
    ordered = sorted(chosen.values(), key=lambda each: (each.broker, each.epoch, each.number))
    faults = [fault for each in ordered for fault in each.faults if fault.kind == TAMPERED]
    heads: list[Head] = []
    for _, group in groupby(ordered, key=lambda each: each.broker):
        files = list(group)
        faults += _links(files, ended)
        last = next((each for each in reversed(files) if each.seal is not None), None)
        if last is not None:
            n = last.stamps[1][0] - last.unsealed if last.stamps else 0
            heads.append(Head(last.broker, last.epoch, n, str(last.seal)))
    faults += _clock(ordered)
    return Seals(
        tuple(faults),
        tuple(heads),
        sum(each.lines - each.unsealed for each in ordered),
        sum(each.unsealed for each in ordered),
        sum(each.seals for each in ordered),
    )


def _links(files: list[Look], ended: dict[tuple[str, int], str | None]) -> Iterator[Fault]:
    """Whether each file of a broker follows the one before, and each epoch the one before."""
    due: str | None = None  # what the next file has to follow; None: nobody knows
    before: Look | None = None
    for each in files:
        place = (each.epoch, each.number)
        if before is None or not each.number or not before.number:
            due = None
        elif each.epoch == before.epoch:
            due = before.seal if each.number == before.number + 1 else None
        else:
            due = _over(before, due) if place == (before.epoch + 1, 1) else None
        if before is not None and due is not None and each.begins is not None:
            is_same = each.epoch == before.epoch
            fits = each.begins == due and not (is_same and before.unsealed)
            if not fits and not (is_same and _is_cut(before, each, ended)):
                yield _unlinked(before, each)
        before = each


def _over(last: Look, due: str | None) -> str | None:
    """What the epoch behind this file has to follow: lines without a seal count as if they had one.

    Args:
        last: of its epoch
        due: what it has itself to follow
    """
    if last.seal is not None:
        return last.behind or last.seal
    # Nothing but a first flush that a crash has torn, or of a build that did not seal.
    try:
        return None if due is None else seal_of(due, read(Path(last.path)))
    except OSError:
        return None


def _is_cut(one: Look, other: Look, ended: dict[tuple[str, int], str | None]) -> bool:
    """Whether lines are missing between two files of an epoch that a crash has ended.

    A power cut may take the end of a file and not the next one; what is missing is told as such.
    """
    if not one.stamps or not other.stamps:
        return False
    is_hole = other.stamps[0][0] > one.stamps[1][0] + 1
    return is_hole and ended.get((one.broker, one.epoch)) in ("crash", None)


def _unlinked(one: Look, other: Look) -> Fault:
    if one.unsealed:
        stamp = (one.stamps[1][0] - one.unsealed + 1, one.stamps[1][1]) if one.stamps else None
        where = (one.lines - one.unsealed + 1, one.lines)
        return one.fault(TAMPERED, stamp, where, f"{CHANGED}; {other.name} follows others")
    why = f"{other.name} does not go on from here: the end of this file, or that one, is another"
    return one.fault(TAMPERED, one.stamps[1] if one.stamps else None, (one.lines, one.lines), why)


def _clock(looks: list[Look]) -> Iterator[Fault]:
    """Lines that are older than the line before in their epoch."""
    by_epoch: dict[Epoch, list[Look]] = {}
    for each in looks:
        for broker, number in each.of:
            by_epoch.setdefault((broker, number), []).append(each)
    for epoch, some in by_epoch.items():
        if all(len(each.of) == 1 for each in some):
            some.sort(key=lambda each: each.stamps[0])
            if all(one.stamps[1][0] < other.stamps[0][0] for one, other in pairwise(some)):
                yield from (f for each in some for f in each.faults if f.kind == CLOCK)
                for one, other in pairwise(some):
                    yield from _jumps(other.name, epoch, (one.stamps[1], other.stamps[0]))
                continue
        # Lines of one are among those of another: all of them once more, in their order.
        yield from _clock_of(epoch, some)


def _clock_of(epoch: Epoch, looks: Iterable[Look]) -> Iterator[Fault]:
    where: dict[Stamp, str] = {}
    for each in looks:
        try:
            found = stamps_of(read(Path(each.path)))
        except OSError:
            continue  # removed by its age since
        where.update(dict.fromkeys(found.get(epoch, ()), each.name))
    for stamps in pairwise(sorted(where)):
        yield from _jumps(where[stamps[1]], epoch, stamps)
