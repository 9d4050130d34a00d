"""A row, round by round: its arms in turn, in the other order every second round, and the verdicts.

What else the machine does hits neighbours alike, so a ratio is taken within a round and its median
over the rounds is judged. How many processors were busy with something else is noted beside each
go; figures of rounds with much of it mean little by themselves.
"""

from __future__ import annotations

import os
import resource
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final

from bench import process_tree
from bench.pipeline.row import Demand, Place, Row, Values
from bench.servers import Server

SETTLE_S: Final = 0.3
"""After a go, for what the brokers and Spark still have to put away."""


@dataclass(slots=True)
class Played:
    """All rounds of a row on one broker, or on none."""

    row: Row
    server: str
    rounds: list[dict[str, Values]] = field(default_factory=list)
    """For each round the figures by arm."""
    error: str = ""

    def figures(self, demand: Demand) -> list[float]:
        """A demand's figure in each round that has one."""
        found = [demand.figure(played) for played in self.rounds]
        return [figure for figure in found if figure is not None]

    def spread(self, arm: str, value: str) -> tuple[float, float, float] | None:
        """Least, median and largest of a figure of an arm."""
        found = [played[arm][value] for played in self.rounds if value in played.get(arm, {})]
        return (min(found), statistics.median(found), max(found)) if found else None

    @property
    def demands(self) -> list[Demand]:
        """Those that are about this broker."""
        return [each for each in self.row.demands if each.server in ("", self.server)]


def play(row: Row, place: Place, round_count: int, told: Callable[[str], None]) -> Played:
    """Play all rounds of a row in one place; whatever goes wrong is its `error`."""
    made = Played(row, place.name)
    try:
        told(f"{row.name} {place.name}: making ready")
        with row.measure(place) as go:
            for number in range(round_count):
                played: dict[str, Values] = {}
                for arm in row.arms if number % 2 == 0 else reversed(row.arms):
                    told(f"{row.name} {place.name}: {arm} {number + 1}/{round_count}")
                    with busy_elsewhere(place.server) as values:
                        values |= go(arm)
                    played[arm] = values
                    time.sleep(SETTLE_S)
                made.rounds.append(played)
    except Exception as error:  # noqa: BLE001 - a row that fails must not hide the others
        made.error = f"{type(error).__name__}: {error}"
    return made


@contextmanager
def busy_elsewhere(server: Server | None) -> Iterator[Values]:
    """Collect a go's figures, and with them how many processors somebody else kept busy."""
    values: Values = {}
    began, busy, own = time.monotonic(), process_tree.machine_busy_s(), own_cpu_s(server)
    yield values
    foreign = process_tree.machine_busy_s() - busy - (own_cpu_s(server) - own)
    values["foreign_cores"] = round(max(0.0, foreign / (time.monotonic() - began)), 2)


def own_cpu_s(server: Server | None) -> float:
    """CPU time of this process, of its children, also those that have ended, and of the broker."""
    members = process_tree.members(os.getpid())
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    spent = process_tree.cpu_s(os.getpid()) + ended.ru_utime + ended.ru_stime
    if server is not None and server.pid is not None and server.pid not in members:
        spent += process_tree.cpu_s(server.pid)
    return spent


def as_json(played: Played) -> dict[str, object]:
    """Put a row's rounds and verdicts into the results."""
    return {
        "name": played.row.name,
        "server": played.server,
        "question": played.row.question,
        "error": played.error,
        "demands": [
            {
                "figure": demand.subject,
                "demanded": demand.text,
                "median": rounded(statistics.median(figures)) if figures else None,
                "low_high": [rounded(min(figures)), rounded(max(figures))] if figures else None,
                "met": demand.is_met(statistics.median(figures))
                if figures and demand.text
                else None,
            }
            for demand in played.demands
            for figures in [played.figures(demand)]
        ],
        "rounds": [
            {arm: {name: rounded(value) for name, value in values.items()} for arm, values in each}
            for each in (played_round.items() for played_round in played.rounds)
        ],
    }


def rounded(value: float) -> float:
    """Three digits say all that such a figure knows, whole numbers above a thousand."""
    return float(round(value)) if abs(value) >= 1000 else float(f"{value:.3g}")


def is_missed(played: Played) -> bool:
    """Whether a demand was held against a figure and not met."""
    return any(
        not demand.is_met(statistics.median(figures))
        for demand in played.demands
        if (figures := played.figures(demand))
    )
