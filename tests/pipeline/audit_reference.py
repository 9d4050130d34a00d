"""The verdicts once more, in plain Python: slow, for small ledgers, and independent of Spark.

Written from the description in docs/guides/audit.md, event by event and copy by copy; it shares no
code with `vouchmq.spark`. What both say must be the same for any ledger, however spoilt.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

Event = dict[str, Any]
Line = tuple[int, int]
"""Epoch and number."""
CopyKey = tuple[str, int, int]


@dataclass
class Copy:
    """Everything that lines say of one copy."""

    published: list[tuple[Line, bool, bool, tuple[int, int], int]] = field(default_factory=list)
    confirms: list[tuple[Line, int, int, bool]] = field(default_factory=list)
    deliveries: list[tuple[Line, Line, int, int, int, int]] = field(default_factory=list)
    ends: list[tuple[Line, str]] = field(default_factory=list)
    taken_back: int = 0
    requeues: list[Line] = field(default_factory=list)
    inventories: list[tuple[Line, bool]] = field(default_factory=list)


@dataclass
class Epoch:
    """What lines say of one epoch."""

    numbers: set[int] = field(default_factory=set)
    boot: Event | None = None
    end: str | None = None
    lost: int = 0
    synced_lsn: int = 0


class Reference:
    """The audit of the ledgers of several brokers."""

    def __init__(self, lines: Iterable[Event]) -> None:
        once: dict[tuple[str, int, int], Event] = {}
        for line in lines:
            once.setdefault((line["b"], line["o"], line["n"]), line)
        self.lines = [once[key] for key in sorted(once)]
        self.epochs: dict[str, dict[int, Epoch]] = defaultdict(dict)
        self.queues: dict[tuple[str, int], Event] = {}
        self.newest: dict[tuple[str, int], Line] = {}
        self.copies: dict[CopyKey, Copy] = defaultdict(Copy)
        self.findings: set[tuple[str, int, int | None, str]] = set()
        self._read_epochs()
        self.holes = {broker: sorted(self._holes(broker)) for broker in self.epochs}
        self._read_queues()
        self._read_copies()
        self._confirm()
        self._consumers()
        self.states = {key: self._state(key, copy) for key, copy in self.copies.items()}
        for key, copy in self.copies.items():
            self._judge(key, copy)
        self._order()
        self._unanswered()
        self._clock()

    # Brokers and epochs. ----------------------------------------------------------------------

    def _read_epochs(self) -> None:
        for line in self.lines:
            epoch = self.epochs[line["b"]].setdefault(line["o"], Epoch())
            epoch.numbers.add(line["n"])
            if line["e"] == "boot":
                epoch.boot = line
            elif line["e"] == "end":
                epoch.end = line["w"]
            elif line["e"] == "gap":
                epoch.lost += line["lost"]
            elif line["e"] == "syn":
                epoch.synced_lsn = max(epoch.synced_lsn, line["wm"])

    def _end_of(self, broker: str, number: int) -> tuple[int, bool]:
        """Lines missing at an epoch's end, and whether more than they may be."""
        later = sorted(other for other in self.epochs[broker] if other > number)
        if not later:
            return 0, False
        epoch, boot = self.epochs[broker][number], self.epochs[broker][later[0]].boot or {}
        follows = boot.get("prev_o") == number
        short = max(0, boot["prev_n"] - max(epoch.numbers)) if follows else 0
        reached = boot["wm"] if boot.get("msg") is None else boot["msg"]
        unsynced = boot.get("prev_lsn") is not None and reached > boot["prev_lsn"]
        silent = boot.get("w") == "clean" and epoch.end is None and not short
        return short, not follows or bool(boot.get("dark")) or unsynced or silent

    def _holes(self, broker: str) -> Iterator[Line]:
        for number, epoch in self.epochs[broker].items():
            last = max(epoch.numbers)
            for n in range(last):
                if n not in epoch.numbers and (n == 0 or n - 1 in epoch.numbers):
                    yield number, n
            short, more = self._end_of(broker, number)
            if short or more:
                yield number, last + 1

    def missing(self, broker: str, number: int) -> int:
        """Lines of an epoch that should be there."""
        epoch = self.epochs[broker][number]
        absent = max(epoch.numbers) + 1 - len(epoch.numbers)
        return max(0, absent - epoch.lost) + self._end_of(broker, number)[0]

    def restarts(self, broker: str, *ways: str) -> list[int]:
        """Epochs that began with a new process."""
        first = min(self.epochs[broker])
        return [
            number
            for number, epoch in self.epochs[broker].items()
            if (epoch.boot["w"] in ways if epoch.boot else number != first)
        ]

    def hole_between(self, broker: str, low: Line, high: Line) -> bool:
        """Whether something is missing there."""
        return any(low < hole < high for hole in self.holes[broker])

    def hole_before(self, line: Event) -> bool:
        """Whether something of this line's epoch is missing before it."""
        return any(o == line["o"] and n <= line["n"] for o, n in self.holes[line["b"]])

    # Copies. ----------------------------------------------------------------------------------

    def _read_queues(self) -> None:
        for line in self.lines:
            if line["e"] == "que":
                told = self.queues.setdefault((line["b"], line["qid"]), dict(line))
                told["d"] = min(told["d"], line["d"])
                told["pri"] = max(told["pri"], line["pri"])
        parts: dict[tuple[str, int, Line], list[Event]] = defaultdict(list)
        for line in self.lines:
            if line["e"] == "inv":
                at = line["n"] if line.get("at") is None else line["at"]
                parts[line["b"], line["qid"], (line["o"], at)].append(line)
        for (broker, qid, at), told_of in parts.items():
            if len({part["part"] for part in told_of}) != max(part["parts"] for part in told_of):
                continue
            self.newest[broker, qid] = max(self.newest.get((broker, qid), at), at)
            for part in told_of:
                for lsn in expand(part["i"]):
                    begins = part["w"] in ("boot", "on")
                    self.copies[broker, qid, lsn].inventories.append((at, begins))

    def is_stream(self, broker: str, qid: int) -> bool:
        """Whether a delivery is no end there."""
        return bool(self.queues.get((broker, qid), {}).get("ty") == "stream")

    def _read_copies(self) -> None:
        for line in self.lines:
            here = (line["o"], line["n"])
            kind = line["e"]
            if kind in ("pub", "mov") and line["lsn"] is not None:
                number = (line["o"], -1) if kind == "mov" else (line["c"], line["h"])
                for qid in line["to"]:
                    for offset, lsn in enumerate(expand([line["lsn"]])):
                        first = line["s"][0] + offset if kind == "pub" else -1
                        self.copies[line["b"], qid, lsn].published.append(
                            (here, bool(line["p"]), kind == "mov", number, first)
                        )
            elif kind in ("dlv", "ack", "req", "dle", "drp", "uns"):
                for place, lsn in enumerate(expand(line["i"])):
                    self._tell(self.copies[line["b"], line["qid"], lsn], line, here, place)

    def _tell(self, copy: Copy, line: Event, here: Line, place: int) -> None:
        kind = line["e"]
        if kind == "dlv":
            dealt = here if line.get("deal") is None else (line["o"], line["deal"])
            place = -1 if line.get("deal") is not None else place
            copy.deliveries.append((dealt, here, place, line["r"], line["na"], line["cid"]))
            if line["na"]:
                copy.ends.append((here, "delivered_no_ack"))
        elif kind == "ack":
            copy.ends.append((here, "acked"))
        elif kind == "req":
            copy.requeues.append(here)
        elif kind == "uns":
            copy.taken_back += 1
        else:
            copy.ends.append((here, "dead_lettered" if kind == "dle" else "dropped"))

    def _claims(self) -> set[tuple[str, int, int]]:
        """Confirms that speak of a watermark beyond the last sync before them."""
        found: set[tuple[str, int, int]] = set()
        synced: dict[tuple[str, int], int | None] = {}
        holes = {broker: list(holes) for broker, holes in self.holes.items()}
        for line in self.lines:
            broker, epoch, n = line["b"], line["o"], line["n"]
            while holes[broker] and holes[broker][0] < (epoch, n):
                # What was synced there nobody knows; the next sync says.
                synced[broker, holes[broker].pop(0)[0]] = None
            if line["e"] in ("boot", "syn"):
                synced[broker, epoch] = line["wm"]
            elif line["e"] == "cnf" and line["ok"] == 1:
                limit = synced.get((broker, epoch))
                if limit is not None and line["wm"] > limit:
                    found.add((broker, epoch, n))
        return found

    def _confirm(self) -> None:
        """Confirms find their publishes; those that went nowhere are judged at once."""
        claims = self._claims()
        by_number: dict[tuple[str, int, int, int, int], list[CopyKey]] = defaultdict(list)
        for key, copy in self.copies.items():
            for here, _, moved, (c, h), number in copy.published:
                if not moved:
                    by_number[key[0], here[0], c, h, number].append(key)
        nowhere: dict[tuple[str, int, int, int, int], Event] = {}
        returned: set[tuple[str, int, int, int, int]] = set()
        twice: dict[tuple[str, int, int, int, int], int] = defaultdict(int)
        routes = {(e["b"], e["o"], e["id"]): e["m"] for e in self.lines if e["e"] == "rte"}
        for line in self.lines:
            channel = (line["b"], line["o"], line.get("c", 0), line.get("h", 0))
            if line["e"] == "pub" and not line["to"]:
                nowhere |= {(*channel, number): line for number in expand([line["s"]])}
            elif line["e"] == "ret":
                returned |= {(*channel, number) for number in expand(line["i"])}
            elif line["e"] == "cnf":
                here = (line["o"], line["n"])
                told = (here, line["ok"], line["wm"], (line["b"], *here) in claims)
                for number in expand(line["i"]):
                    twice[(*channel, number)] += 1
                    for key in by_number.get((*channel, number), ()):
                        self.copies[key].confirms.append(told)
        self._nowhere(nowhere, returned, twice, routes)

    def _nowhere(
        self,
        nowhere: dict[tuple[str, int, int, int, int], Event],
        returned: set[tuple[str, int, int, int, int]],
        twice: dict[tuple[str, int, int, int, int], int],
        routes: dict[tuple[str, int, int], int],
    ) -> None:
        acked = defaultdict(list)
        for line in self.lines:
            if line["e"] == "cnf":
                for number in expand(line["i"]):
                    acked[line["b"], line["o"], line["c"], line["h"], number].append(line)
        for key, line in nowhere.items():
            if twice[key] > 1:
                self.findings.add((line["b"], 0, key[4], "confirm_twice"))
            owed = routes.get((line["b"], line["o"], line["rt"])) == 1 and not line.get("rj")
            sure = [e for e in acked[key] if e["ok"] == 1 and not self.hole_before(e)]
            if owed and key not in returned and sure:
                self.findings.add((line["b"], 0, key[4], "nack_lost_in_returns"))

    # Consumers. -------------------------------------------------------------------------------

    def _consumers(self) -> None:
        """Prefetch kept, and nobody served who never came."""
        begun: dict[tuple[str, int, int], int] = {}
        for line in self.lines:
            if line["e"] == "con" and line["w"] in ("start", "known"):
                place = (line["b"], line["o"], line["id"])
                begun[place] = min(begun.get(place, line["n"]), line["n"])
        prefetch: dict[tuple[str, int, int], int] = {}
        unacked: dict[tuple[str, int, int], int] = defaultdict(int)
        for line in self.lines:
            cid = line.get("id") if line["e"] == "con" else line.get("cid", 0)
            place = (line["b"], line["o"], cid or 0)
            if line["e"] == "con" and line["w"] != "stop" and not line["na"]:
                prefetch[place] = line["pf"]
            elif line["e"] == "dlv" and cid:
                self._delivered(line, place, begun, prefetch, unacked)
            elif line["e"] in ("ack", "req") and cid:
                unacked[place] -= len(expand(line["i"]))
            elif line["e"] in ("dle", "drp"):
                for lsn in expand(line["i"]):
                    unacked[line["b"], line["o"], self._had(line, lsn)] -= 1

    def _delivered(
        self,
        line: Event,
        place: tuple[str, int, int],
        begun: dict[tuple[str, int, int], int],
        prefetch: dict[tuple[str, int, int], int],
        unacked: dict[tuple[str, int, int], int],
    ) -> None:
        known = begun.get(place)
        if (known is None or known > line["n"]) and not self.hole_before(line):
            self.findings.add((*place, "unknown_consumer"))
        if line["na"]:
            return
        unacked[place] += len(expand(line["i"]))
        most = prefetch.get(place, 0)
        if most and unacked[place] > most and not self.hole_before(line):
            self.findings.add((*place, "over_prefetch"))

    def _had(self, line: Event, lsn: int) -> int:
        """Who had a copy unacked when it ended by this line; 0: nobody."""
        if self.is_stream(line["b"], line["qid"]):
            return 0
        copy, over = self.copies[line["b"], line["qid"], lsn], (line["o"], line["n"])
        # Whatever came later counts for nothing, nor do clocks: those of leaders may differ.
        told = [(here, 0 if na else cid) for _, here, _, _, na, cid in copy.deliveries]
        told += [(here, 0) for here, how in copy.ends if how != "delivered_no_ack"]
        told += [(here, 0) for here in copy.requeues]
        last, cid = max((each for each in told if each[0] < over), default=(over, 0))
        return cid if last[0] == over[0] else 0

    # Verdicts. --------------------------------------------------------------------------------

    def persists(self, key: CopyKey, copy: Copy) -> bool:
        """Whether the queue has written it down."""
        stored = self.queues.get(key[:2], {}).get("d", 0)
        persistent = any(persistent for _, persistent, *_ in copy.published)
        return bool(stored == 2 or (stored == 1 and persistent))

    def ends(self, key: CopyKey, copy: Copy) -> list[tuple[Line, str]]:
        """Ends that count in this queue, in the order of lines."""
        return sorted(
            (here, how)
            for here, how in copy.ends
            if not self.is_stream(*key[:2]) or how in ("dead_lettered", "dropped")
        )

    def first_sight(self, key: CopyKey, copy: Copy) -> Line | None:
        """The first line that tells of a copy, beside its publish."""
        told = [dealt for dealt, *_ in copy.deliveries] + [at for at, _ in copy.inventories]
        told += [here for here, _ in self.ends(key, copy)] + copy.requeues
        return min(told, default=None)

    def is_known(self, key: CopyKey, copy: Copy) -> bool:
        """Whether it was there before the ledger was."""
        begins = [at for at, begin in copy.inventories if begin]
        seen = self.first_sight(key, copy)
        if copy.published or not begins or seen is None or min(begins) > seen:
            return False
        epochs, own = self.epochs[key[0]], min(begins)[0]
        return own == min(epochs) or bool((epochs[own].boot or {}).get("dark"))

    def over_at(self, key: CopyKey, copy: Copy) -> Line:
        """The end that an inventory must not be behind."""
        ends = self.ends(key, copy)
        first, last = ends[0][0], ends[-1][0]
        again = max((at for at, _ in copy.inventories), default=first)
        # A crash may have undone one end, and a full disk another.
        undone = (len(ends) - copy.taken_back >= 2 or again > last) and any(
            first[0] < o <= again[0] for o in self.restarts(key[0], "crash")
        )
        return last if copy.taken_back and not undone else first

    def _state(self, key: CopyKey, copy: Copy) -> str:
        broker = key[0]
        known, seen = self.is_known(key, copy), self.first_sight(key, copy)
        if not copy.published and not known:
            # Who is told of by an `uns` alone was seen nowhere.
            before = seen is not None and self.hole_between(broker, (-1, 0), seen)
            return "unproven" if before else "orphan"
        ends = self.ends(key, copy)
        count = len(ends) - copy.taken_back
        last_seen = max((at for at, _ in copy.inventories), default=None)
        if count >= 1:
            if ends and last_seen is not None and last_seen > self.over_at(key, copy):
                return "resurrected"
            return "double_end" if count >= 2 else ends[-1][1]
        begin = min(here for here, *_ in copy.published) if copy.published else seen
        return self._open_state(key, copy, begin or (0, 0), last_seen, known=known)

    def _open_state(
        self, key: CopyKey, copy: Copy, begin: Line, last_seen: Line | None, *, known: bool
    ) -> str:
        broker, newest = key[0], self.newest.get(key[:2])
        restarts = self.restarts(broker, "clean", "crash")
        if self.queues.get(key[:2], {}).get("d", 0) == 0 and any(o > begin[0] for o in restarts):
            return "transient_gone"
        if newest is not None and last_seen == newest:
            return "known" if known else "queued"
        if newest is None or begin >= newest:
            return "open"
        if known or self.hole_between(broker, begin, newest):
            return "unproven"
        if not self.persists(key, copy) and any(begin[0] < o <= newest[0] for o in restarts):
            return "transient_gone"
        confirmed = any(ok == 1 for _, ok, _, _ in copy.confirms) or any(
            moved and self.epochs[broker][here[0]].synced_lsn >= key[2] > 0
            for here, _, moved, *_ in copy.published
        )
        return "LOST" if confirmed else "unconfirmed_gone"

    def _judge(self, key: CopyKey, copy: Copy) -> None:
        state = self.states[key]
        if state in ("LOST", "double_end", "orphan"):
            self.findings.add((*key, state))
        if any(ok == 1 for _, ok, *_ in copy.confirms) and self.persists(key, copy):
            lowest = min(wm for _, _, wm, _ in copy.confirms)
            if lowest < key[2] or any(claimed for *_, claimed in copy.confirms):
                self.findings.add((*key, "early_confirm"))
        if len(copy.confirms) > 1:
            self.findings.add((*key, "confirm_twice"))
        if state == "resurrected":
            over, again = self.over_at(key, copy), max(at for at, _ in copy.inventories)
            crashed = any(over[0] < o <= again[0] for o in self.restarts(key[0], "crash"))
            if not crashed and not self.hole_between(key[0], over, again):
                self.findings.add((*key, "resurrected"))
        self._judge_flag(key, copy)
        self._judge_ack(key, copy)

    def _judge_ack(self, key: CopyKey, copy: Copy) -> None:
        """Acked though nobody had it: never delivered, or put back since."""
        ends = self.ends(key, copy)
        if self.states[key] == "orphan" or self.is_stream(*key[:2]):
            return
        if len(ends) - copy.taken_back < 1 or ends[-1][1] != "acked":
            return
        if not copy.published and not self.is_known(key, copy):
            return
        over = ends[-1][0]
        published = min((here for here, *_ in copy.published), default=(-1, 0))
        begin = published if published >= (over[0], 0) else (over[0], -1)
        boot = self.epochs[key[0]][over[0]].boot
        was_on = boot is not None and boot["w"] == "on"
        no_boot = boot is None and over[0] != min(self.epochs[key[0]])
        if self.hole_between(key[0], begin, over):
            return
        if (was_on or no_boot) and published < (over[0], 0):
            return
        last = max((here for _, here, *_ in copy.deliveries), default=None)
        back = max(copy.requeues, default=None)
        if last is None:
            had = False
        elif last > over:
            had = min(dealt for dealt, *_ in copy.deliveries) < over
        else:
            had = last[0] == over[0] and (back is None or back < last or back > over)
        if not had:
            self.findings.add((*key, "acked_undelivered"))

    def _unanswered(self) -> None:
        """Publishes that no confirm answers, though one of their channel knew them to be safe."""
        eras: dict[tuple[str, int, int, int], list[list[Any]]] = defaultdict(list)
        for line in self.lines:
            channel = (line["b"], line["o"], line.get("c", 0), line.get("h", 0))
            if line["e"] == "sel":
                eras[channel].append([(line["o"], line["n"]), None])
            elif line["e"] == "cnf" and eras[channel]:
                era = eras[channel][-1]
                era[1] = max(era[1] or 0, line["wm"])
        for key, copy in self.copies.items():
            if copy.confirms or any(moved for _, _, moved, *_ in copy.published):
                continue
            if not copy.published:
                continue
            here = min(here for here, *_ in copy.published)
            c, h = max(where for _, _, _, where, _ in copy.published)
            owed = [
                era
                for era in eras[key[0], here[0], c, h]
                if era[0] < here and era[1] is not None and era[1] >= key[2]
            ]
            if owed and not self.hole_between(key[0], here, (here[0] + 1, -1)):
                self.findings.add((*key, "unanswered"))

    def _clock(self) -> None:
        """Lines that are older than the one before them in their epoch."""
        for before, after in pairwise(self.lines):
            is_same = (before["b"], before["o"]) == (after["b"], after["o"])
            if is_same and after["t"] < before["t"]:
                self.findings.add((after["b"], after["o"], after["n"], "clock"))

    def _judge_flag(self, key: CopyKey, copy: Copy) -> None:
        told = sorted(copy.deliveries)
        unmarked = [dealt for dealt, _, _, r, *_ in told if r == 0]
        if self.is_stream(*key[:2]) or len(told) < 2 or not unmarked:
            return
        first, again = told[0][0], max(unmarked)
        if again <= first:
            return
        epoch = self.epochs[key[0]][first[0]]
        in_order = epoch.end in ("stop", "off")
        if again[0] == first[0] or (self.persists(key, copy) and in_order):
            self.findings.add((*key, "redelivered_flag"))

    def _order(self) -> None:
        """First deliveries of a queue, in the order in which they were made."""
        firsts: dict[tuple[str, int], list[tuple[Line, int, int]]] = defaultdict(list)
        for key, copy in self.copies.items():
            queue = self.queues.get(key[:2], {})
            if not copy.deliveries or queue.get("pri") == 1 or self.is_stream(*key[:2]):
                continue
            dealt, _, place, again, *_ = min(
                copy.deliveries, key=lambda d: (d[0], d[2] < 0, d[2], d[3])
            )
            if again or (copy.requeues and min(copy.requeues) <= dealt):
                continue
            if copy.ends and min(copy.ends)[0] < dealt:
                # Who was lost undid that end, and younger ones were delivered meanwhile.
                continue
            firsts[key[:2]].append((dealt, place, key[2]))
        for (broker, qid), told in firsts.items():
            told.sort(key=lambda first: (first[0], first[2]))
            for before, after in pairwise(told):
                if after[2] < before[2]:
                    self.findings.add((broker, qid, after[2], "order"))
            for batch in {first[0] for first in told}:
                own = [first for first in told if first[0] == batch and first[1] >= 0]
                for before, after in pairwise(own):
                    if after[1] < before[1]:
                        self.findings.add((broker, qid, after[2], "order"))


def expand(ranges: Iterable[Iterable[int]]) -> list[int]:
    """All numbers of ranges, in their order."""
    return [number for first, last in ranges for number in range(first, last + 1)]
