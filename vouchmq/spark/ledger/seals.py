"""The seals of ledger files, and the clock in them: whether lines are as the broker wrote them.

    file ──▶ Look: its seals one after the other, where it begins and ends ─┐
    file ──▶ Look ──────────────────────────────────────────────────────────┴▶ links: do they fit?

A seal is a hash of the lines since the one before and of that (docs/operate/ledger.md). Each file
can be looked at by itself, since its first seal says which one it follows; a Look is plain data, so
that an incremental audit need not read a file twice. Must not know Spark, nor what lines mean
beyond their number and time.
"""

from __future__ import annotations

import gzip
import re
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from hashlib import sha256
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

from vouchmq.spark.ledger import events

SEAL: Final = re.compile(rb'(?:,"prev_seal":"([0-9a-f]*)")?,"seal":"([0-9a-f]{64})"\}\n')
HEAD: Final = re.compile(rb'^\{"b":"([^"]*)","o":(\d+),"n":(\d+),"t":(\d+),', re.MULTILINE)
BOOT: Final = re.compile(rb'"e":"boot",.*?"ver":"(\d+)\.(\d+)\.(\d+)[^"]*"')
END: Final = b"}\n"
TAMPERED, CLOCK = "tampered", "clock"
CHANGED: Final = "these lines are not the ones that were sealed"
STRIPPED: Final = "these lines have no seal, and the build that wrote them seals"
FOREIGN: Final = "this line is of another broker or epoch than its file"
FIRST_SEALING: Final = (0, 1, 0)
"""The first version that was published; each of them seals."""
READ_BYTES: Final = 1 << 20
NO_NUMBER: Final = -1
"""Of a file whose name does not say which one of its epoch it is."""

Stamp = tuple[int, int]
"""Number and time of a line."""
Epoch = tuple[str, int]
"""A broker's id and the number of an epoch."""
Ended = dict[Epoch, str | None]
"""How epochs ended: `stop`, `off`, `crash`; None: it lasts."""


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
        version: of the broker that began the epoch, if its first line is here and says it
        tail: stamps of the first and the last line that no seal covers
        repeats: some number is there more than once
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
    version: list[int] = field(default_factory=list)
    tail: list[list[int]] = field(default_factory=list)
    repeats: bool = False
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

    @property
    def stripped(self) -> tuple[Fault, ...]:
        """Seals that are not there, of builds that have written them."""
        return tuple(each for each in self.faults if each.why == STRIPPED)


def to_json(looks: Iterable[Look]) -> list[dict[str, Any]]:
    """Looks as plain data, which `Look.from_json` reads."""
    return [asdict(each) for each in looks]


def read_look(look: Look) -> bytes:
    """The lines of a file that was looked at; none if it was removed since."""
    try:
        return read_all(Path(look.path))[0]
    except OSError:
        return b""


def look(path: Path) -> Look:
    """Read a file; what is no line of a ledger is passed over, as others tell of it.

    A file that is damaged is read as far as that is possible, and has a fault.

    Raises:
        FileNotFoundError: it is gone
    """
    try:
        data, damage = read_all(path)
    except FileNotFoundError:
        raise
    except OSError as error:
        data, damage = b"", error.strerror or str(error)
    found = stamps_of(data)
    made = Look(str(path), *_identity(path.name, data, found))
    is_torn = not data.endswith(b"\n") and bool(data)
    made.lines = data.count(b"\n") + is_torn
    _look_at_seals(made, data)
    _look_at_head(made, data)
    _look_at_lines(made, data, found)
    if damage:
        why = f"the file cannot be read to its end: {damage}"
        made.faults.append(made.fault(TAMPERED, None, (made.lines + 1, made.lines + 1), why))
    return made


def _identity(name: str, data: bytes, found: dict[Epoch, list[Stamp]]) -> tuple[str, int, int]:
    """Whose file it is, of which epoch, and which number it has there."""
    named = events.FILE_NAME.fullmatch(name)
    if named is not None:
        number = int(named["number"])
        own = next((each for each in found if events.belongs(named, *each)), None)
        return (*(own or (named["broker"], int(named["epoch"]))), number)
    first = HEAD.search(data)
    if first is not None:
        return first[1].decode(errors="replace"), int(first[2]), NO_NUMBER
    return "", 0, NO_NUMBER


def read_all(path: Path) -> tuple[bytes, str]:
    """What can be read of a file, and what is wrong with the rest of it.

    Raises:
        OSError: it cannot be opened or read at all
    """
    if path.suffix != ".gz":
        return path.read_bytes(), ""
    pieces: list[bytes] = []
    try:
        with gzip.open(path) as file:
            while piece := file.read(READ_BYTES):
                pieces.append(piece)
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        return b"".join(pieces), str(error)
    return b"".join(pieces), ""


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
    made.unsealed = made.lines - data.count(b"\n", 0, at)
    if made.unsealed:
        heads = [[int(n), int(t)] for _, _, n, t in HEAD.findall(data, at)]
        # A closed file ends with a whole line.
        made.tail = [heads[0], heads[-1]] if heads and data.endswith(END) else []
        if made.seal is not None:
            made.behind = seal_of(made.seal, view[at:])


def _look_at_head(made: Look, data: bytes) -> None:
    """Which build began the epoch; each line must be of the epoch whose file it is."""
    if told := BOOT.search(data, 0, data.find(b"\n") + 1):
        made.version = [int(part) for part in told.groups()]
    if made.number == NO_NUMBER:
        return
    own = f'{{"b":"{made.broker}","o":{made.epoch},"n":'.encode()
    if data.startswith(own) + data.count(b"\n" + own) == made.lines:
        return
    at = 0
    while at < len(data):
        if not data.startswith(own, at):
            head = HEAD.match(data, at)
            # What is no line at all is counted elsewhere; here somebody has put a seal on it.
            if head is not None or made.seals:
                stamp = (int(head[3]), int(head[4])) if head is not None else None
                line = data.count(b"\n", 0, at) + 1
                made.faults.append(made.fault(TAMPERED, stamp, (line, line), FOREIGN))
                return
        at = data.find(b"\n", at) + 1 or len(data)


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


def _look_at_lines(made: Look, data: bytes, found: dict[Epoch, list[Stamp]]) -> None:
    own = (made.broker, made.epoch)
    # Foreign lines in a file with a name are told of as such, and are of no other file.
    told = found if made.number == NO_NUMBER else {e: found[e] for e in (own,) if e in found}
    made.of = [list(each) for each in told]
    if len(told) == 1:
        ((epoch, stamps),) = told.items()
        made.stamps = [list(stamps[0]), list(stamps[-1])]
        made.faults += _jumps(made.name, epoch, stamps)
        head = f'{{"b":"{epoch[0]}","o":{epoch[1]},"n":'.encode()
        count = data.startswith(head) + data.count(b"\n" + head)
        is_ascending = all(one[0] < other[0] for one, other in pairwise(stamps))
        made.repeats = count > len(stamps) or not is_ascending


def _jumps(file: str, epoch: Epoch, stamps: Iterable[Sequence[int]]) -> Iterator[Fault]:
    for one, other in pairwise(stamps):
        if other[1] < one[1] and other[0] != one[0]:
            why = f"line {other[0]} is {one[1] - other[1]} µs older than line {one[0]}"
            yield Fault(CLOCK, *epoch, other[0], other[1], file, 0, 0, why)


def links(files: list[Look], ended: Ended) -> tuple[list[Fault], set[str]]:
    """Whether each file of a broker follows the one before, and each epoch the one before.

    Returns:
        what does not, and paths of files whose last lines are those that an epoch follows
    """
    faults: list[Fault] = []
    covered: set[str] = set()
    due: str | None = None  # what the next file has to follow; None: nobody knows
    before: Look | None = None
    for each in files:
        if before is None or NO_NUMBER in (each.number, before.number):
            due = None
        elif each.epoch == before.epoch:
            due = before.seal if each.number == before.number + 1 else None
        else:
            due = _over(before, due) if _begins_after(before, each) else None
        if before is not None and due is not None and each.begins is not None:
            is_same = each.epoch == before.epoch
            fits = each.begins == due and not (is_same and before.unsealed)
            if not fits and not (is_same and is_cut(before, each, ended)):
                faults.append(_unlinked(before, each))
            if not is_same:
                covered.add(before.path)
        before = each
    faults += _links_by_lines(files)
    return faults, covered


def _begins_after(before: Look, each: Look) -> bool:
    """Whether a file is the first of the epoch behind that of another one."""
    is_first = each.number == 1 or (bool(each.stamps) and each.stamps[0][0] == 0)
    return each.epoch == before.epoch + 1 and is_first


def follows(before: Look, each: Look) -> bool:
    """Whether a file is the next one of its epoch, by its number or by that of its first line."""
    if before.stamps and each.stamps and each.stamps[0][0] == before.stamps[1][0] + 1:
        return True
    return each.number == before.number + 1


def _links_by_lines(files: list[Look]) -> Iterator[Fault]:
    """The same of files whose lines follow each other, but not their numbers.

    Else whoever writes a part anew need only leave a number out.
    """
    by_first = {(each.epoch, each.stamps[0][0]): each for each in files if each.stamps}
    for before in files:
        if not before.stamps or before.seal is None:
            continue
        each = by_first.get((before.epoch, before.stamps[1][0] + 1))
        if each is None or each.number == before.number + 1 or each.begins is None:
            continue
        if each.begins != before.seal or before.unsealed:
            yield _unlinked(before, each)


def _over(last: Look, due: str | None) -> str | None:
    """What the epoch behind this file has to follow: lines without a seal count as if they had one.

    Args:
        last: of its epoch
        due: what it has itself to follow
    """
    if last.seal is not None:
        return last.behind or last.seal
    # Nothing but a first flush that a crash has torn, or of a build that did not seal.
    lines = read_look(last)
    return seal_of(due, lines) if due is not None and lines else None


def is_cut(one: Look, other: Look, ended: Ended) -> bool:
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


def clock(looks: list[Look]) -> Iterator[Fault]:
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
        found = stamps_of(read_look(each))
        where.update(dict.fromkeys(found.get(epoch, ()), each.name))
    for stamps in pairwise(sorted(where)):
        yield from _jumps(where[stamps[1]], epoch, stamps)
