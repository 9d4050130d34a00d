"""Small ledgers of brokers that never were: an honest one that follows orders, and its faults.

`World` plays a broker by a list of orders, small numbers that any test may draw, and writes the
ledger that such a broker would write. `spoil` then does to the lines what a fault would. Written
from the description of the events only; shares no code with the audit.
"""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Iterable, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any, Final

from vouchmq.server.ledger.files import LedgerFiles
from vouchmq.server.version import VERSION

Event = dict[str, Any]
Order = tuple[int, int, int]

QUEUES: Final[tuple[Event, ...]] = (
    {"qid": 1, "v": "/", "k": "orders", "ty": "classic", "d": 1, "pri": 0},
    {"qid": 2, "v": "/", "k": "vip", "ty": "classic", "d": 1, "pri": 1},
    {"qid": 3, "v": "/", "k": "scratch", "ty": "classic", "d": 0, "pri": 0},
    {"qid": 4, "v": "shop", "k": "log", "ty": "stream", "d": 2, "pri": 0},
    {"qid": 5, "v": "shop", "k": "quorate", "ty": "quorum", "d": 2, "pri": 0},
)
FANS: Final = ((1,), (2,), (3,), (4,), (5,), (1, 5), (1, 3, 4), ())
PREFETCH: Final = 6
START_T: Final = 1_770_000_000_000_000


class World:
    """A broker that keeps its word, and a ledger of it.

    Args:
        broker: its id
        start_t: when it starts
        loses_ends: a crash may undo the last ends, and a full disk refuses some dead letters
    """

    def __init__(self, broker: str, start_t: int = START_T, *, loses_ends: bool = False) -> None:
        self.broker = broker
        self.loses_ends = loses_ends
        self.lines: list[Event] = []
        self.epoch = 0
        self.t = start_t
        self.lsn = 1
        self.synced = 0
        self.highest_named = 0
        self.ended: list[tuple[int, int]] = []
        """Copies that have ended in this epoch: queue, LSN."""
        self.kept: dict[int, list[int]] = {queue["qid"]: [] for queue in QUEUES}
        """Sources of dead letters that a full disk did not take."""
        self.boot(None)

    # What the broker does, each as one order. -------------------------------------------------

    def follow(self, orders: Iterable[Order]) -> None:
        """Carry out orders; one that makes no sense at the moment does nothing."""
        acts = (
            *(self.publish, self.publish, self.sync, self.confirm, self.confirm, self.deliver),
            *(self.deliver, self.ack, self.ack, self.requeue, self.reject, self.expire),
            *(self.inventory, self.restart, self.nowhere, self.fetch, self.take_back, self.gap),
            *(self.publish, self.sync, self.confirm, self.confirm, self.inventory, self.inventory),
        )
        for act, x, y in orders:
            acts[act % len(acts)](x, y)

    def boot(self, way: str | None) -> None:
        """A new epoch begins: its queues, routes, consumers, and what the queues hold."""
        previous = self.lines[-1] if self.lines else None
        self.epoch += 1
        self.n = 0
        self.put(
            "boot",
            fmt=1,
            ver="0",
            w=way or "clean",
            wm=self.synced,
            sync="off",
            prev_o=previous["o"] if previous else None,
            prev_n=previous["n"] if previous else None,
            prev_lsn=self.highest_named if previous else None,
            dark=0,
        )
        if previous is None:
            self.ready: dict[int, list[int]] = {queue["qid"]: [] for queue in QUEUES}
            self.persistent: dict[int, int] = {}
        self.unacked: dict[tuple[int, int], list[int]] = {}
        self.delivered: set[tuple[int, int]] = getattr(self, "delivered", set())
        self.numbers = {1: 0, 2: 0}
        self.unconfirmed: list[tuple[int, int, int]] = []  # channel, number, LSN to wait for
        for queue in QUEUES:
            self.put("que", **queue, w="declared" if previous is None else "recovered")
        for place, fan in enumerate(FANS):
            self.put("rte", id=place, v="/", x=f"x{len(fan)}", k="k", m=int(not fan))
        for queue in QUEUES:
            self.put(
                "con",
                id=queue["qid"] * 10,
                qid=queue["qid"],
                c=9,
                h=1,
                g="g",
                pf=PREFETCH,
                na=int(queue["qid"] == 3),
                w="start",
            )
        for channel in self.numbers:
            self.put("sel", c=7, h=channel, w="confirm")
        if previous is not None:
            self.inventory_of([queue["qid"] for queue in QUEUES if queue["d"]], "boot")

    def publish(self, x: int, y: int) -> None:
        """A run of messages is routed."""
        fan, channel, count = FANS[x % (len(FANS) - 1)], 1 + y % 2, 1 + (x + y) % 5
        first = self.numbers[channel] + 1
        self.numbers[channel] += count
        lsn = [self.lsn, self.lsn + count - 1]
        self.lsn += count
        persistent = int(y % 3 != 0)
        self.put(
            "pub",
            rt=FANS.index(fan),
            c=7,
            h=channel,
            s=[first, first + count - 1],
            p=persistent,
            z=10 * count,
            lsn=lsn,
            to=list(fan),
        )
        self.highest_named = lsn[1]
        for offset in range(count):
            self.persistent[lsn[0] + offset] = persistent
            for qid in fan:
                self.ready[qid].append(lsn[0] + offset)
            waits = lsn[0] + offset if any(self.stores(qid, lsn[0]) for qid in fan) else 0
            self.unconfirmed.append((channel, first + offset, waits))

    def nowhere(self, x: int, y: int) -> None:
        """A mandatory message leads to no queue."""
        channel = 1 + y % 2
        self.numbers[channel] += 1
        number = self.numbers[channel]
        self.put(
            "pub",
            rt=len(FANS) - 1,
            c=7,
            h=channel,
            s=[number, number],
            p=x % 2,
            z=0,
            lsn=None,
            to=[],
        )
        self.put("ret", c=7, h=channel, i=[[number, number]], w=312)
        self.unconfirmed.append((channel, number, 0))

    def sync(self, x: int, y: int) -> None:
        """What was written is on disk, which may have room again for what it did not take."""
        self.move_kept(x, y)
        self.synced = self.lsn - 1
        self.put("syn", wm=self.synced, us=1 + self.t % 400)

    def confirm(self, x: int, y: int) -> None:
        """The publishes of a channel are confirmed that may be, in one piece or in two."""
        channel = 1 + x % 2
        due = [each for each in self.unconfirmed if each[0] == channel and each[2] <= self.synced]
        self.unconfirmed = [each for each in self.unconfirmed if each not in due]
        numbers = [number for _, number, _ in due]
        for some in (numbers[: 1 + y], numbers[1 + y :]):
            if some:
                self.put("cnf", c=7, h=channel, i=ranges(some), ok=1, wm=self.synced)

    def deliver(self, x: int, y: int) -> None:
        """A consumer gets what is at the head of its queue."""
        qid = 1 + x % 5
        if qid == 4:
            # Of a stream anything may be read at any time.
            held = self.ready[4]
            if held:
                at = y % len(held)
                self.put("dlv", qid=4, cid=40, tag=1, r=0, na=0, i=[[held[at]] * 2])
                self.put("ack", qid=4, cid=40, i=[[held[at]] * 2])
            return
        room = PREFETCH - len(self.unacked.get((qid, qid * 10), ()))
        taken = self.ready[qid][: min(1 + y % 4, room if qid != 3 else 4)]
        if not taken:
            return
        if qid == 2:
            taken = taken[::-1]
        again = int((qid, taken[0]) in self.delivered)
        same = [lsn for lsn in taken if int((qid, lsn) in self.delivered) == again]
        self.ready[qid] = [lsn for lsn in self.ready[qid] if lsn not in same]
        self.delivered |= {(qid, lsn) for lsn in same}
        more = {"s": [[lsn + 100, lsn + 100] for lsn in same]} if y % 7 == 3 else {}
        no_ack = int(qid == 3)
        self.put(
            "dlv",
            qid=qid,
            cid=qid * 10,
            i=ranges(same),
            tag=1,
            r=again,
            na=no_ack,
            **more,
        )
        if not no_ack:
            self.unacked.setdefault((qid, qid * 10), []).extend(same)

    def fetch(self, x: int, y: int) -> None:
        """Get, with an ack to come or without."""
        qid = (1, 5)[x % 2]
        if not self.ready[qid]:
            return
        lsn = self.ready[qid].pop(0)
        again = int((qid, lsn) in self.delivered)
        self.delivered.add((qid, lsn))
        self.put(
            "dlv",
            qid=qid,
            cid=0,
            i=[[lsn, lsn]],
            tag=5,
            r=again,
            na=y % 2,
        )
        if y % 2 == 0:
            self.unacked.setdefault((qid, 0), []).append(lsn)

    def ack(self, x: int, y: int) -> None:
        """Some of what is unacked is acked."""
        taken = self._settle(x, y)
        if taken:
            (qid, cid), lsns = taken
            self.put("ack", qid=qid, cid=cid, i=ranges(lsns))
            self.ended += [(qid, lsn) for lsn in lsns]

    def requeue(self, x: int, y: int) -> None:
        """Some of what is unacked goes back to where it was."""
        taken = self._settle(x, y)
        if taken:
            (qid, cid), lsns = taken
            self.ready[qid] = sorted([*lsns, *self.ready[qid]])
            self.put("req", qid=qid, cid=cid, i=ranges(lsns), w="nack")

    def reject(self, x: int, y: int) -> None:
        """Some of what is unacked dies, into another queue or for good."""
        taken = self._settle(x, y)
        if not taken:
            return
        (qid, _), lsns = taken
        if y % 2:
            self.put("drp", qid=qid, i=ranges(lsns), w="rejected")
            self.ended += [(qid, lsn) for lsn in lsns]
            return
        self.put("dle", qid=qid, i=ranges(lsns), w="rejected", x="dead")
        if self.loses_ends and y % 8 == 6:
            # A full disk takes none of it: what died is kept, and moved later.
            self.put("uns", qid=qid, i=ranges(lsns))
            self.kept[qid] = sorted([*self.kept[qid], *lsns])
            return
        self.ended += [(qid, lsn) for lsn in lsns]
        self._moved(qid, lsns)

    def move_kept(self, x: int, y: int) -> None:
        """The disk has room again: dead letters that were kept are moved."""
        del y
        qid = 1 + x % 5
        lsns, self.kept[qid] = self.kept[qid], []
        if lsns:
            self.put("dle", qid=qid, i=ranges(lsns), w="resent", x="")
            self._moved(qid, lsns)

    def _moved(self, qid: int, lsns: list[int]) -> None:
        """Into the queue of dead letters."""
        first = self.lsn
        self.lsn += len(lsns)
        self.put(
            "mov",
            w="dead_letter",
            src=qid,
            si=ranges(lsns),
            lsn=[first, self.lsn - 1],
            to=[5],
            p=self.persistent[lsns[0]],
        )
        self.highest_named = self.lsn - 1
        for offset, lsn in enumerate(lsns):
            self.persistent[first + offset] = self.persistent[lsn]
            self.ready[5].append(first + offset)

    def expire(self, x: int, y: int) -> None:
        """What is at the head of a queue, or of a stream, goes by a rule."""
        qid = 1 + x % 5
        taken, self.ready[qid] = self.ready[qid][: 1 + y % 2], self.ready[qid][1 + y % 2 :]
        if taken:
            self.put("drp", qid=qid, i=ranges(taken), w="retention" if qid == 4 else "expired")
            self.ended += [(qid, lsn) for lsn in taken]

    def take_back(self, x: int, y: int) -> None:
        """A commit is refused after its acks were counted."""
        taken = self._settle(x, y)
        if taken:
            (qid, cid), lsns = taken
            self.put("ack", qid=qid, cid=cid, i=ranges(lsns))
            self.put("uns", qid=qid, i=ranges(lsns))
            self.unacked[(qid, cid)] = sorted([*lsns, *self.unacked[(qid, cid)]])

    def gap(self, x: int, y: int) -> None:
        """Now and then the ledger's disk is too slow; events are dropped."""
        if x % 7 == 0 and y % 3 == 0:
            self.n += 2
            self.put("gap", lost=2)

    def inventory(self, x: int, y: int) -> None:
        """All that a queue holds, in one part or in two."""
        qid = 1 + x % 5
        self.inventory_of([qid], "periodic", parts=1 + y % 2)

    def inventory_of(self, qids: Sequence[int], way: str, parts: int = 1) -> None:
        """Inventories of queues."""
        for qid in qids:
            held = sorted(
                [
                    *self.ready[qid],
                    *self.kept[qid],
                    *[m for (q, _), lsns in self.unacked.items() if q == qid for m in lsns],
                ]
            )
            told = ranges(held)
            half = (len(told) + 1) // 2 if parts == 2 else len(told)
            at = self.n
            for part, piece in enumerate((told[:half], told[half:])[:parts], 1):
                self.put(
                    "inv",
                    qid=qid,
                    at=at,
                    i=piece,
                    full=1,
                    w=way,
                    part=part,
                    parts=parts,
                )

    def restart(self, x: int, y: int) -> None:
        """The broker stops, or is killed and loses what was not synced: messages, and ends."""
        crash = x % 2 == 1
        for (qid, _), lsns in self.unacked.items():
            self.ready[qid] = sorted([*lsns, *self.ready[qid]])
        for qid, kept in self.kept.items():
            self.ready[qid] = sorted([*kept, *self.ready[qid]])
            self.kept[qid] = []
        if self.loses_ends and crash and x % 4 == 3:
            undone = set(self.ended[::-1][:y])
            for qid, lsn in undone:
                self.ready[qid] = sorted([lsn, *self.ready[qid]])
            # The next leader is another machine, whose clock is behind.
            self.t -= 5000 * (y % 3)
        self.ended = []
        if crash:
            lost_above = self.synced if y % 2 else self.lsn
        else:
            self.synced = self.lsn - 1
            self.put("syn", wm=self.synced, us=5)
            lost_above = self.lsn
            self.put("end", w="stop")
        for qid, lsns in self.ready.items():
            self.ready[qid] = [lsn for lsn in lsns if self.stores(qid, lsn) and lsn <= lost_above]
        if crash:
            self.synced = min(self.lsn - 1, lost_above)
        self.boot("crash" if crash else "clean")

    # ------------------------------------------------------------------------------------------

    def stores(self, qid: int, lsn: int) -> bool:
        """Whether a queue writes this message down."""
        kept = QUEUES[qid - 1]["d"]
        return kept == 2 or (kept == 1 and self.persistent[lsn] == 1)

    def _settle(self, x: int, y: int) -> tuple[tuple[int, int], list[int]] | None:
        there = sorted(key for key, lsns in self.unacked.items() if lsns)
        if not there:
            return None
        key = there[x % len(there)]
        taken, self.unacked[key] = self.unacked[key][: 1 + y % 4], self.unacked[key][1 + y % 4 :]
        return key, taken

    def put(self, kind: str, **keys: Any) -> None:
        """Write a line."""
        self.t += 137
        self.lines.append(
            {"b": self.broker, "o": self.epoch, "n": self.n, "t": self.t, "e": kind, **keys}
        )
        self.n += 1


def ranges(numbers: Sequence[int]) -> list[list[int]]:
    """Numbers as [first, last], in the order given."""
    found: list[list[int]] = []
    for number in numbers:
        if found and number == found[-1][1] + 1:
            found[-1][1] = number
        else:
            found.append([number, number])
    return found


_ENDS: Final = ("ack", "cnf", "dlv", "inv", "dle", "drp")
_WAYS: Final[tuple[tuple[str, ...], ...]] = (
    *((), ()),  # a line is missing; a line is there twice
    *(("dlv",), ("syn", "cnf"), ("ack", "cnf", "dlv", "inv", "req"), _ENDS, ("dlv",), ("con",)),
    *(("ret",), _ENDS, ("ack", "dlv"), ("inv", "ack"), ("pub",), ("inv", "cnf")),
    *(("dlv", "cnf"), ("dlv", "cnf", "req"), ("pub", "dlv", "ack", "syn")),
)
"""Kinds of lines that a fault is about."""


def damage(lines: Sequence[Event], faults: Iterable[Order]) -> list[Event]:
    """The lines after these faults: some of a broker that lies, some of a ledger that lacks."""
    found = [copy.deepcopy(line) for line in lines]
    for kind, where, x in faults:
        way = kind % len(_WAYS)
        places = [at for at, line in enumerate(found) if not _WAYS[way] or line["e"] in _WAYS[way]]
        if not places:
            continue
        at = places[where % len(places)]
        if way == 0:
            del found[at]
        elif way == 1:
            found.insert((at + x) % len(found), copy.deepcopy(found[at]))
        elif way in (5, 9, 10):
            _again(found, at)
        elif way in (14, 15):
            _forget(found, at)
        else:
            _falsify(found[at], way, x)
    return found


def _falsify(line: Event, way: int, x: int) -> None:
    """A line that says something else than what happened."""
    kind = line["e"]
    if way == 2:
        line["r"] = 1 - line["r"]
    elif way == 3:
        line["wm"] = max(0, line["wm"] + x % 7 - 3)
    elif way in (4, 11, 13) and line["i"]:
        first, last = line["i"][0]
        line["i"] = [[first + 1, last], *line["i"][1:]] if last > first else line["i"][1:]
    elif way == 6:
        line["i"] = ranges([n for span in line["i"] for n in range(span[0], span[1] + 1)][::-1])
    elif way == 7:
        line["id"] += 1000
    elif way == 8:
        line["i"] = [[span[0] + 50, span[1] + 50] for span in line["i"]]
    elif way == 16:
        line["t"] -= 1000
    elif way == 12 and line["to"]:
        line["to"] = line["to"][1:]
    if kind == "dlv" and way in (4, 6):
        line.pop("s", None)


def _forget(lines: list[Event], at: int) -> None:
    """It is not told, and the numbers behind it are as if it had not happened."""
    _renumber(lines, lines[at], -1)
    del lines[at]


def _renumber(lines: list[Event], line: Event, step: int) -> None:
    for other in lines:
        if other["o"] == line["o"] and other["n"] > line["n"]:
            other["n"] += step
            if other.get("at") is not None and other["at"] > line["n"]:
                other["at"] += step
        elif other["e"] == "boot" and other.get("prev_o") == line["o"]:
            other["prev_n"] += step


def _again(lines: list[Event], at: int) -> None:
    """It happens once more, later: the numbers behind it move on."""
    line = lines[at]
    again = copy.deepcopy(line)
    _renumber(lines, line, 1)
    again["n"] += 1
    if again.get("at") is not None:
        again["at"] = again["n"]
    lines.insert(at + 1, again)


def write_files(lines: Sequence[Event], directory: Path, sizes: Sequence[int]) -> list[Path]:
    """Ledger files of these many lines each, an epoch never together with another."""
    directory.mkdir(parents=True, exist_ok=True)
    written: list[Path] = []
    rest = list(lines)
    number = 0
    while rest:
        wanted = sizes[number % len(sizes)] if sizes else len(rest)
        epoch = rest[0]["o"]
        count = next(
            (place for place, line in enumerate(rest[:wanted]) if line["o"] != epoch),
            min(wanted, len(rest)),
        )
        path = directory / f"{rest[0]['b']}-{epoch:08d}-{number:08d}.jsonl"
        text = "".join(json.dumps(line, separators=(",", ":")) + "\n" for line in rest[:count])
        path.write_text(text, encoding="ascii")
        written.append(path)
        rest = rest[count:]
        number += 1
    return written


def _by_us(line: Event) -> Event:
    """A build that seals says its version."""
    return {**line, "ver": VERSION} if line["e"] == "boot" else line


def write_sealed(lines: Sequence[Event], directory: Path, chance: random.Random) -> list[Path]:
    """The files that a broker writes of these lines, a few at once; those of all epochs."""
    broker = lines[0]["b"]
    files = LedgerFiles(directory, broker)
    files.open(makes=True)
    for epoch, told in groupby(lines, key=lambda line: int(line["o"])):
        files.begin(epoch)
        rest = [json.dumps(_by_us(line), separators=(",", ":")) + "\n" for line in told]
        while rest:
            count = chance.randint(1, 6)
            files.write("".join(rest[:count]).encode("ascii"))
            rest = rest[count:]
            if chance.random() < 0.15:
                files.rotate(0)
        files.end(0, goes_dark=False)
    files.close()
    return sorted(directory.glob(f"{broker}-*"))
