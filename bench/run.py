"""The run: every scenario, round by round in turn on each server, all up at the same time.

Taking turns within one run is what makes ratios hold on a machine that others use too; a
round starts only when the servers that are not asked have come to rest.
"""

from __future__ import annotations

import os
import platform
import statistics
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from bench.measure import QUIET_FOREIGN_CORES, Round, play
from bench.scenarios import catalogue
from bench.servers import ROOT, Server
from bench.shape import Scenario

QUIET_CORES = 0.05
QUIET_WINDOW_S = 0.1
QUIET_LIMIT_S = 5.0
MIB = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Spread:
    """Min, median and max of a value over the rounds."""

    low: float
    median: float
    high: float


@dataclass(slots=True)
class Row:
    """All rounds of one scenario."""

    scenario: Scenario
    rounds: list[Round] = field(default_factory=list)

    def spread(self, server: str, value: str) -> Spread | None:
        """Summarize one value of one server; None when no round has it."""
        found = [
            entry.values[value]
            for entry in self.rounds
            if entry.server == server and value in entry.values
        ]
        return Spread(min(found), statistics.median(found), max(found)) if found else None

    def quiet_count(self, server: str) -> tuple[int, int]:
        """Count the rounds of one server that were quiet, and all of them."""
        mine = [entry for entry in self.rounds if entry.server == server]
        return sum(entry.is_quiet for entry in mine), len(mine)

    def errors(self) -> list[str]:
        """List what went wrong, each with its server."""
        return [f"{entry.server}: {entry.error}" for entry in self.rounds if entry.error]


def play_all(
    servers: Sequence[Server],
    scenarios: Sequence[Scenario],
    round_count: int,
    *,
    quick: bool,
    told: Callable[[str], None],
) -> list[Row]:
    """Play all rounds; `told` hears which one is next."""
    rows = []
    for scenario in scenarios:
        row = Row(scenario)
        shape = scenario.shape.quick() if quick else scenario.shape
        for number in range(1, round_count + 1):
            for server in servers:
                told(f"{scenario.name}: {server.name} {number}/{round_count}")
                server.require_alive()
                await_quiet([other for other in servers if other is not server])
                row.rounds.append(play(server, shape))
        rows.append(row)
    return rows


def await_quiet(servers: Sequence[Server]) -> None:
    """Wait until the servers use next to no CPU; give up after some seconds."""
    deadline = time.monotonic() + QUIET_LIMIT_S
    watched = [server for server in servers if server.pid is not None]
    while watched and time.monotonic() < deadline:
        before = sum(server.cpu_s() or 0.0 for server in watched)
        time.sleep(QUIET_WINDOW_S)
        if sum(server.cpu_s() or 0.0 for server in watched) - before < QUIET_CORES * QUIET_WINDOW_S:
            return


def as_json(
    servers: Sequence[Server], rows: Sequence[Row], *, quick: bool, work_dir: Path
) -> dict[str, object]:
    """Put the run into one object: conditions, summaries, and every round as measured."""
    return {
        "conditions": {**conditions(work_dir), "quick": quick},
        "servers": {
            server.name: {"version": server.version, **idle_values(server)} for server in servers
        },
        "scenarios": [_row_as_json(row, [server.name for server in servers]) for row in rows],
    }


def idle_values(server: Server) -> dict[str, float]:
    """Memory of the server before the first scenario, and of one idle connection."""
    values: dict[str, float] = {}
    if server.idle is not None:
        rss, pss = server.idle.rss_bytes / MIB, server.idle.pss_bytes / MIB
        values |= {"rss_mb": round(rss, 1), "pss_mb": round(pss, 1)}
    if server.connection_bytes is not None:
        values["connection_kb"] = round(server.connection_bytes / 1024, 2)
    return values


def conditions(work_dir: Path) -> dict[str, object]:
    """Describe machine, software and commit."""
    return {
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": _git("rev-parse", "--short", "HEAD"),
        "uncommitted": bool(_git("status", "--porcelain", "--untracked-files=no")),
        "machine": _processor(),
        "cpu_count": os.cpu_count(),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "file_system": file_system(work_dir),
        "load_average": list(os.getloadavg()),
        "quiet_foreign_cores": QUIET_FOREIGN_CORES,
    }


def file_system(directory: Path) -> str:
    """Name the type of file system a directory is on; syncs cost nothing on tmpfs."""
    best, kind = "", "unknown"
    path = str(directory.resolve())
    for line in Path("/proc/mounts").read_text().splitlines():
        _, mount, mounted_kind, *_ = line.split()
        if path.startswith(mount) and len(mount) >= len(best):
            best, kind = mount, mounted_kind
    return kind


def _row_as_json(row: Row, names: Sequence[str]) -> dict[str, object]:
    summary = {}
    for name in names:
        values = sorted(
            {value for entry in row.rounds if entry.server == name for value in entry.values}
        )
        spreads = {value: row.spread(name, value) for value in values}
        summary[name] = {
            value: {"min": spread.low, "median": spread.median, "max": spread.high}
            for value, spread in spreads.items()
            if spread
        }
    return {
        "name": row.scenario.name,
        "group": catalogue.group_of(row.scenario),
        "question": row.scenario.question,
        "headline": row.scenario.headline,
        "summary": summary,
        "quiet_rounds": {name: "{} of {}".format(*row.quiet_count(name)) for name in names},
        "rounds": [
            {
                "server": entry.server,
                "values": entry.values,
                "is_quiet": entry.is_quiet,
                "error": entry.error,
            }
            for entry in row.rounds
        ],
    }


def _git(*arguments: str) -> str:
    command = ["git", "-C", str(ROOT), *arguments]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError:
        return ""
    return done.stdout.strip()


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()
