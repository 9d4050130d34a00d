"""Reads ledgers of the broker and follows every copy through them, in plain Python.

Small and slow on purpose: what it says is the measure for the broker's pens, and it shares no code
with them nor with the audit. What it finds wrong is a list of sentences.
"""

from __future__ import annotations

import gzip
import json
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from hashlib import sha256
from itertools import pairwise
from pathlib import Path
from typing import Any

Line = dict[str, Any]
Copy = tuple[int, int]  # qid, LSN


def lines_in(directory: Path, *, with_open: bool = False) -> list[Line]:
    """All lines of a directory in the order of their numbers, each once; all seals must fit."""
    assert seal_faults(directory) == []
    found: dict[tuple[str, int, int], Line] = {}
    for path in sorted(directory.iterdir()):
        if path.name.endswith(".jsonl") or (with_open and path.name.endswith(".open")):
            data = path.read_bytes()
        elif path.name.endswith(".jsonl.gz"):
            data = gzip.decompress(path.read_bytes())
        else:
            continue
        if not with_open:
            assert data.endswith(b"\n"), path
        for text in data.splitlines():
            line = json.loads(text)
            found[line["b"], line["o"], line["n"]] = line
    return [found[key] for key in sorted(found)]


NAME = re.compile(r"\.?(.+)-(\d{8})-(\d{8})\.jsonl(?:\.gz|\.open)?")


def seal_faults(directory: Path) -> list[str]:
    """Where the lines of a directory are not those that were sealed: `file:first-last why`.

    Lines without a seal are allowed at the end of an epoch alone, which a crash may have cut, and
    in files of a broker that did not seal at all.
    """
    chains: dict[str, list[tuple[int, int, str, bytes]]] = defaultdict(list)
    for path in directory.iterdir():
        name = NAME.fullmatch(path.name)
        # One that has been given up meanwhile is not there.
        if name is not None and path.exists():
            data = path.read_bytes()
            data = gzip.decompress(data) if path.suffix == ".gz" else data
            chains[name[1]].append((int(name[2]), int(name[3]), path.name, data))
    return [fault for files in chains.values() for fault in SealChain().faults(sorted(files))]


SEALED = re.compile(rb'(?:,"prev_seal":"([0-9a-f]*)")?,"seal":"(.{64})"}\n$')


class SealChain:
    """Follows the seals of one broker."""

    def __init__(self) -> None:
        self._seal: str | None = None  # what the next one goes on from; None: nobody knows
        self._pending = b""
        self._has_sealed = False

    def faults(self, files: list[tuple[int, int, str, bytes]]) -> Iterator[str]:
        """Of its files, in their order: epoch, number, name and lines."""
        before = (0, 0)
        last = {epoch: number for epoch, number, *_ in files}
        for epoch, number, name, data in files:
            self._begin(before, (epoch, number))
            before = (epoch, number)
            yield from self._in_file(name, data)
            if self._pending and self._has_sealed and last[epoch] != number:
                yield f"{name}: lines without a seal, and it is not the last of its epoch"

    def _begin(self, before: tuple[int, int], place: tuple[int, int]) -> None:
        if place[0] > before[0]:
            if place != (before[0] + 1, 1):
                self._seal = None
            elif not self._has_sealed:
                # Lines of a build that did not seal, or of a first flush that a crash has torn.
                self._seal = None if self._pending else ""
            elif self._pending and self._seal is not None:
                self._seal = seal_of(self._seal, self._pending)
            self._pending = b""
        elif place[1] != before[1] + 1:
            self._seal = None

    def _in_file(self, name: str, data: bytes) -> Iterator[str]:
        first, is_first = 1, True
        for count, line in enumerate(data.splitlines(keepends=True), 1):
            said = SEALED.search(line)
            if said is None:
                self._pending += line
                continue
            begins = None if said[1] is None else said[1].decode()
            why = self._misfit(begins, is_first=is_first)
            if is_first or begins is not None:
                self._seal = begins
            sealed = self._pending + line[: said.start()] + b"}\n"
            seal = said[2].decode(errors="replace")
            if self._seal is not None and seal_of(self._seal, sealed) != seal:
                why = "not what was sealed"
            if why:
                yield f"{name}:{first}-{count} {why}"
            self._seal, self._pending, first, is_first = seal, b"", count + 1, False
            self._has_sealed = True

    def _misfit(self, begins: str | None, *, is_first: bool) -> str:
        if not is_first:
            return "" if begins is None else "the beginning of a file"
        if begins is None:
            return "the beginning of the file is not there"
        return "" if self._seal in (None, begins) else "follows something else"


def seal_of(before: str, lines: bytes) -> str:
    """The seal of lines that follow another one's."""
    return sha256(before.encode() + lines).hexdigest()


def expand(ranges: Iterable[list[int]]) -> Iterator[int]:
    """The numbers in ranges."""
    for first, last in ranges:
        assert first <= last, (first, last)
        yield from range(first, last + 1)


@dataclass
class CopyOutcome:
    """What is known of one copy."""

    persistent: bool
    stored: bool  # the queue keeps it over a restart
    number: tuple[int, int, int, int] | None = None  # epoch, connection, channel, publish number
    moved: tuple[int, int] | None = None  # epoch and LSN, if the broker published it
    is_confirmed: bool = False
    ends: list[str] = field(default_factory=list)
    deliveries: int = 0
    out_to: int | None = None  # cid
    was_out_to: int | None = None  # before it ended


class Audit:
    """Follows the copies of one broker through its lines."""

    def __init__(self, lines: list[Line]) -> None:
        self.faults: list[str] = []
        self.outcomes: dict[Copy, CopyOutcome] = {}
        self.queues: dict[int, Line] = {}
        self.held: dict[int, set[int]] = defaultdict(set)
        self.kinds: Counter[str] = Counter(line["e"] for line in lines)
        self.resurrected = 0
        self.lost: list[Copy] = []
        self.confirmed_count = 0
        self.inventories = 0
        self._numbers: dict[tuple[int, int, int, int], list[Copy]] = {}
        self._consumers: dict[int, Line] = {}
        self._routes: dict[int, Line] = {}
        self._published: dict[tuple[int, int], int] = {}
        self._owed: dict[tuple[int, int], dict[int, int]] = {}  # LSNs of publishes, by number
        self._silent: dict[tuple[int, tuple[int, int]], tuple[Line, list[int]]] = {}
        self._moved_to: dict[Copy, list[Copy]] = defaultdict(list)
        self._returned: set[tuple[int, int, int, int]] = set()
        self._watermark = 0
        self._epoch = 0
        self._first_deliveries: dict[int, list[tuple[int, int, int]]] = defaultdict(list)
        self._is_dark = False
        self._ended = True
        for line in self._with_inventories_in_place(lines):
            self._take(line)
        for line, numbers in self._silent.values():
            self.fault(line, f"never answered: {numbers}")

    def fault(self, line: Line, text: str) -> None:
        self.faults.append(f"{line['o']}/{line['n']} {line['e']}: {text}: {json.dumps(line)[:300]}")

    def _with_inventories_in_place(self, lines: list[Line]) -> Iterator[Line]:
        """Inventories whole, where they were taken."""
        parts: dict[tuple[int, int, int], list[Line]] = defaultdict(list)
        for line in lines:
            if line["e"] == "inv":
                parts[line["o"], line["at"], line["qid"]].append(line)
        whole: dict[tuple[int, int], list[Line]] = defaultdict(list)
        for (epoch, at, _), some in parts.items():
            assert [each["part"] for each in some] == list(range(1, len(some) + 1))
            if len(some) == some[0]["parts"]:
                ranges = [pair for each in some for pair in each["i"]]
                flat = [number for pair in ranges for number in pair]
                assert flat == sorted(flat), some[0]
                whole[epoch, at].append(some[0] | {"i": ranges})
        before = (0, -1)
        for line in lines:
            place = (line["o"], line["n"])
            if line["e"] == "gap":
                assert place[1] > before[1], line
            elif place[0] == before[0]:
                assert place[1] == before[1] + 1, (before, line)
            else:
                assert place[1] == 0, line
                assert line["e"] == "boot", line
            before = place
            yield from whole.pop(place, [])
            if line["e"] != "inv":
                yield line
        assert not whole

    # Lines

    def _take(self, line: Line) -> None:
        getattr(self, f"_{line['e']}")(line)

    def _boot(self, line: Line) -> None:
        assert line["fmt"] == 1
        assert line["wm"] >= 0
        if line["prev_o"] is not None and self._epoch:
            assert line["prev_o"] == self._epoch
            if line["w"] != "on":
                assert (line["w"] == "clean") == self._ended, line
        self._epoch = line["o"]
        self._watermark = line["wm"]
        self._consumers.clear()
        self._routes.clear()
        self._published.clear()
        self._owed.clear()
        self._is_dark = bool(line["dark"]) or line["w"] == "on"
        self._ended = False
        self._in_boot = line["w"] != "on"
        for outcome in self.outcomes.values():
            outcome.out_to = None
            if line["w"] == "crash":
                outcome.deliveries = 0  # the mark may have been lost with the power

    def _end(self, line: Line) -> None:
        self._ended = True

    def _que(self, line: Line) -> None:
        self.queues[line["qid"]] = line

    def _rte(self, line: Line) -> None:
        assert line["id"] not in self._routes
        self._routes[line["id"]] = line

    def _con(self, line: Line) -> None:
        if line["w"] == "start":
            assert line["id"] not in self._consumers
        self._consumers[line["id"]] = line

    def _new(self, line: Line, lsns: Iterable[int]) -> list[Copy]:
        copies = []
        for lsn in lsns:
            for qid in line["to"]:
                if (qid, lsn) in self.outcomes:
                    self.fault(line, f"an LSN twice {qid, lsn}")
                kind = self.queues[qid]["d"]
                stored = kind == 2 or (kind == 1 and line["p"] == 1)
                self.outcomes[qid, lsn] = CopyOutcome(line["p"] == 1, stored)
                self.held[qid].add(lsn)
                copies.append((qid, lsn))
        return copies

    def _pub(self, line: Line) -> None:
        route = self._routes[line["rt"]]
        first, last = line["s"]
        channel = (line["c"], line["h"])
        if first != self._published.get(channel, first - 1) + 1:
            self.fault(line, "publish numbers with a hole")
        self._published[channel] = last
        if line["lsn"] is None:
            if line["to"]:
                self.fault(line, "no LSN")
            for number in range(first, last + 1):
                self._numbers[line["o"], *channel, number] = []
                if route["m"] and not line.get("rj"):
                    self._returned.add((line["o"], *channel, number))
            return
        lsns = range(line["lsn"][0], line["lsn"][1] + 1)
        assert len(lsns) == last - first + 1, line
        if "m" in line:
            assert len(line["m"]) == len(lsns)
        for number, lsn in zip(range(first, last + 1), lsns, strict=True):
            key = (line["o"], *channel, number)
            self._numbers[key] = self._new(line, [lsn])
            for copy in self._numbers[key]:
                self.outcomes[copy].number = key
            if channel in self._owed:
                self._owed[channel][number] = lsn

    def _mov(self, line: Line) -> None:
        first, last = line["lsn"]
        new = self._new(line, range(first, last + 1))
        for copy in new:
            self.outcomes[copy].moved = (line["o"], copy[1])
        if line["src"]:
            sources = list(expand(line["si"]))
            assert len(sources) == last - first + 1, line
            for lsn in sources:
                source = (line["src"], lsn)
                if lsn not in self.held[line["src"]] and not self._is_moved_again(source):
                    self.fault(line, f"moved what is not there: {lsn}")
            for copy in new:
                self._moved_to[line["src"], sources[copy[1] - first]].append(copy)

    def _is_moved_again(self, source: Copy) -> bool:
        """Whether a full disk has refused to move it before, and its queue has gone since."""
        if self.queues[source[0]]["w"] != "deleted":
            return False
        return any(
            self.outcomes[copy].ends == ["dropped refused"] for copy in self._moved_to[source]
        )

    def _sel(self, line: Line) -> None:
        channel = (line["c"], line["h"])
        self._owed[channel] = {}

    def _answered(self, line: Line, channel: tuple[int, int]) -> None:
        """Who waits for what is on disk is answered with all others that wait for that."""
        owed = self._owed.get(channel, {})
        for number in expand(line["i"]):
            owed.pop(number, None)
        late = [number for number, lsn in owed.items() if lsn <= line["wm"]]
        if late and not self._is_dark:
            self._silent[line["o"], channel] = (line, late[:3])
        else:
            self._silent.pop((line["o"], channel), None)

    def _ret(self, line: Line) -> None:
        for number in expand(line["i"]):
            key = (line["o"], line["c"], line["h"], number)
            if key not in self._numbers:
                self.fault(line, "returned what was not published")
            self._returned.discard(key)

    def _cnf(self, line: Line) -> None:
        self._answered(line, (line["c"], line["h"]))
        for number in expand(line["i"]):
            key = (line["o"], line["c"], line["h"], number)
            copies = self._numbers.pop(key, None)
            if copies is None:
                if not self._is_dark:
                    self.fault(line, f"confirmed what was not published, or twice: {number}")
                continue
            if key in self._returned:
                self.fault(line, f"no return for {number}")
            for copy in copies:
                outcome = self.outcomes[copy]
                if line["ok"]:
                    self.confirmed_count += 1
                    outcome.is_confirmed = True
                    if outcome.stored and copy[1] > min(line["wm"], self._watermark):
                        self.fault(line, f"confirmed too early: {copy}")

    def _syn(self, line: Line) -> None:
        assert line["wm"] >= self._watermark
        self._watermark = line["wm"]
        for copy, outcome in self.outcomes.items():
            if (
                outcome.moved is not None
                and outcome.moved[0] == line["o"]
                and copy[1] <= line["wm"]
            ):
                outcome.is_confirmed = True

    def _is_stream(self, qid: int) -> bool:
        return bool(self.queues[qid]["ty"] == "stream")

    def _dlv(self, line: Line) -> None:
        qid, cid = line["qid"], line["cid"]
        if cid and self._consumers[cid]["qid"] != qid:
            self.fault(line, "consumer of another queue")
        if "s" in line:
            assert len(list(expand(line["s"]))) == len(list(expand(line["i"])))
        for lsn in expand(line["i"]):
            outcome = self.outcomes.get((qid, lsn))
            if lsn not in self.held[qid] or outcome is None:
                if not self._is_dark:
                    self.fault(line, f"delivered what is not there: {lsn}")
                continue
            if self._is_stream(qid):
                continue
            if outcome.deliveries and not line["r"]:
                self.fault(line, f"delivered again, not marked: {lsn}")
            if not outcome.deliveries and not line["r"] and not self.queues[qid]["pri"]:
                step = int(line["deal"] if "deal" in line else line["n"])
                self._first_deliveries[qid].append((line["o"], step, lsn))
            if outcome.out_to is not None and line["tag"] and not line["r"]:
                self.fault(line, f"delivered while it was out: {lsn}")
            outcome.deliveries += 1
            outcome.out_to = cid
            if line["na"]:
                self._ends(line, qid, lsn, "no_ack")

    def _ends(self, line: Line, qid: int, lsn: int, how: str) -> None:
        if lsn not in self.held[qid]:
            self.fault(line, f"ended what is not there: {lsn}")
            return
        self.held[qid].discard(lsn)
        outcome = self.outcomes.get((qid, lsn))
        if outcome is not None:
            outcome.ends.append(how)
            outcome.was_out_to, outcome.out_to = outcome.out_to, None

    def _ack(self, line: Line) -> None:
        qid = line["qid"]
        for lsn in expand(line["i"]):
            if self._is_stream(qid):
                continue
            outcome = self.outcomes.get((qid, lsn))
            if outcome is not None and outcome.out_to != line["cid"] and not self._is_dark:
                self.fault(line, f"acked by another than got it: {lsn}")
            self._ends(line, qid, lsn, "acked")

    def _req(self, line: Line) -> None:
        for lsn in expand(line["i"]):
            outcome = self.outcomes.get((line["qid"], lsn))
            if outcome is not None and not self._is_stream(line["qid"]):
                if outcome.out_to != line["cid"] and not self._is_dark:
                    self.fault(line, f"given back by another than got it: {lsn}")
                outcome.out_to = None

    def _dle(self, line: Line) -> None:
        for lsn in expand(line["i"]):
            self._ends(line, line["qid"], lsn, "dead_lettered")

    def _drp(self, line: Line) -> None:
        for lsn in expand(line["i"]):
            self._ends(line, line["qid"], lsn, f"dropped {line['w']}")

    def _uns(self, line: Line) -> None:
        for lsn in expand(line["i"]):
            outcome = self.outcomes.get((line["qid"], lsn))
            if lsn in self.held[line["qid"]]:
                self.fault(line, f"back, and was never gone: {lsn}")
            self.held[line["qid"]].add(lsn)
            if outcome is not None and outcome.ends:
                outcome.ends.pop()
                outcome.out_to = outcome.was_out_to

    def _gap(self, line: Line) -> None:
        assert line["lost"] > 0

    def _inv(self, line: Line) -> None:
        self.inventories += 1
        qid, there = line["qid"], set(expand(line["i"]))
        held = self.held[qid]
        if line["w"] not in {"boot", "on"}:
            if there != held:
                missing, more = sorted(held - there)[:9], sorted(there - held)[:9]
                self.fault(line, f"inventory: not there {missing}, not expected {more}")
            self.held[qid] = there
            return
        for lsn in held - there:
            outcome = self.outcomes.get((qid, lsn))
            if (
                outcome is not None
                and outcome.stored
                and outcome.is_confirmed
                and not self._is_dark
            ):
                self.lost.append((qid, lsn))
            elif outcome is not None:
                outcome.ends.append("gone")
        for lsn in there - held:
            outcome = self.outcomes.get((qid, lsn))
            if outcome is None:
                self.outcomes[qid, lsn] = CopyOutcome(True, True)
                if not self._is_dark and qid in self.queues and self._epoch > 1:
                    self.fault(line, f"from nowhere: {lsn}")
            else:
                outcome.ends.clear()
                self.resurrected += 1
        self.held[qid] = there

    # Verdicts

    def disorder(self) -> list[tuple[int, int]]:
        """First deliveries of a queue that are not in the order of publishing.

        Only within an epoch: what was written down when the broker was killed may never have left,
        and is then delivered for the first time once more.
        """
        found = []
        for qid, places in self._first_deliveries.items():
            pairs = pairwise(sorted(places))
            found += [(qid, b[2]) for a, b in pairs if b[0] == a[0] and b[2] < a[2]]
        return found

    def double_ends(self) -> list[tuple[Copy, list[str]]]:
        return [
            (copy, outcome.ends) for copy, outcome in self.outcomes.items() if len(outcome.ends) > 1
        ]

    def summary(self) -> dict[str, int]:
        counts: Counter[str] = Counter()
        for (qid, lsn), outcome in self.outcomes.items():
            counts[
                outcome.ends[-1] if outcome.ends else "held" if lsn in self.held[qid] else "?"
            ] += 1
        return dict(counts)
