"""What the judge of witnesses must say, written down once more without Spark: slow and obvious."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

Line = dict[str, Any]


@dataclass
class MessageLines:
    """All lines of one message."""

    events: list[Line] = field(default_factory=list)

    def count(self, *kinds: str) -> int:
        return sum(each["e"] in kinds for each in self.events)

    def times(self, *kinds: str) -> list[int]:
        return [each["t"] for each in self.events if each["e"] in kinds]

    @property
    def fresh(self) -> int:
        """Most deliveries to one queue that were not marked as redelivered."""
        counts: dict[str, int] = {}
        for each in self.events:
            if each["e"] in ("received", "drained") and not each.get("r"):
                counts[each["k"]] = counts.get(each["k"], 0) + 1
        return max(counts.values(), default=0)

    @property
    def came_after_ack(self) -> bool:
        for queue in {each["k"] for each in self.events}:
            here = MessageLines([each for each in self.events if each["k"] == queue])
            acks, taken = here.times("acked"), here.times("received", "drained")
            if acks and taken and max(taken) > min(acks):
                return True
        return False

    def state(self, emptied: int | None, *, is_complete: bool) -> str:
        if not self.count("sent"):
            return "orphan"
        for kind, state in (("received", "received"), ("drained", "drained"), ("returned",) * 2):
            if self.count(kind):
                return state
        if not self.count("confirmed"):
            return "nacked" if self.count("nacked") else "unconfirmed"
        if emptied is not None and min(self.times("confirmed")) >= emptied:
            return "open"
        return "LOST" if is_complete else "unproven"

    def findings(self, state: str) -> set[str]:
        sent, confirmed = self.count("sent"), self.count("confirmed")
        nacked, returned = self.count("nacked"), self.count("returned")
        taken = self.times("received", "drained")
        found = {
            "LOST": state == "LOST",
            "orphan": state == "orphan",
            "duplicate": self.fresh > max(sent, 1),
            "confirm_twice": sent > 0 and confirmed > sent,
            "confirm_and_nack": sent > 0 and nacked > 0 and confirmed + nacked > sent,
            "returned_received": returned > 0 and returned >= sent and bool(taken),
            "nacked_received": nacked > 0 and nacked >= sent and bool(taken),
            "acked_unreceived": self.count("acked") > 0 and not taken,
            "clock": bool(taken) and sent > 0 and min(taken) < min(self.times("sent")),
            "received_after_ack": self.came_after_ack,
        }
        return {kind for kind, is_so in found.items() if is_so}


def judge(lines: Iterable[Line]) -> tuple[dict[str, str], set[tuple[str, str]]]:
    """States by message, and findings as (kind, message)."""
    once = {
        (each["w"], each.get("o"), each["n"]) if each.get("n") is not None else id(each): each
        for each in lines
    }
    messages: dict[str, MessageLines] = {}
    numbers: dict[tuple[str, int], set[int]] = {}
    emptied: int | None = None
    for each in once.values():
        if each.get("n") is not None:
            numbers.setdefault((each["w"], each["o"]), set()).add(each["n"])
        if each["m"]:
            messages.setdefault(each["m"], MessageLines()).events.append(each)
        elif each["e"] == "drained":
            emptied = max(emptied or 0, each["t"])
    is_complete = all(max(seen) + 1 == len(seen) for seen in numbers.values())
    states = {m: message.state(emptied, is_complete=is_complete) for m, message in messages.items()}
    found = {(kind, m) for m, message in messages.items() for kind in message.findings(states[m])}
    return states, found
