"""The table: medians with their spread, the ratio, CPU per message, and each demand's verdict."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from bench.run import Row, Spread, idle_values
from bench.servers import Server
from bench.targets import IDLE, Kind, Target, targets_of

OURS, CEILING = "vouchmq", "sink"
LATENCIES = tuple(
    f"{name}_{part}_ms" for name in ("confirm", "delivery", "cycle") for part in ("p50", "p99")
)
"""Shown in every row that has them."""
HEADROOM = 2.0
"""How much faster against the sink the generator must be for a rate to be the broker's."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """A demand held against what was measured; `passed` is None when it could not be."""

    target: Target
    measured: float | None
    passed: bool | None


def verdicts(rows: Sequence[Row], servers: Sequence[Server]) -> list[Verdict]:
    """Judge every demand on the scenarios that were played, and on the idle servers."""
    found = [_judge(target, row) for row in rows for target in targets_of(row.scenario.name)]
    idle = {server.name: idle_values(server) for server in servers}
    for target in targets_of(IDLE):
        ours, theirs = (idle.get(name, {}).get(target.value) for name in (OURS, target.peer))
        found.append(_verdict(target, ours, theirs))
    return found


def verdict_as_json(verdict: Verdict) -> dict[str, object]:
    """Put a verdict into the results."""
    return {
        "scenario": verdict.target.scenario,
        "value": verdict.target.value,
        "peer": verdict.target.peer or None,
        "must": _demand_text(verdict.target, verdict.target.must),
        "aim": _demand_text(verdict.target, verdict.target.aim),
        "measured": verdict.measured,
        "passed": verdict.passed,
    }


def limited_by_generator(row: Row) -> list[str]:
    """Name the brokers that the sink is less than HEADROOM ahead of: of them the row says little.

    Empty, too, when the sink was not asked.
    """
    names = dict.fromkeys(entry.server for entry in row.rounds)
    return [name for name in names if name != CEILING and _is_near(row, name)]


def peers_of(names: Sequence[str]) -> list[str]:
    """Pick those that VouchMQ is held against."""
    return [name for name in names if name not in (OURS, CEILING)]


def show(console: Console, rows: Sequence[Row], servers: Sequence[Server]) -> None:
    """Print everything."""
    names = [server.name for server in servers]
    peers = peers_of(names)
    judged = [entry for entry in verdicts(rows, servers) if entry.target.peer in ("", *peers)]
    table = Table(title="median (min - max) of the rounds")
    ratios = [f"/ {peer}" for peer in peers]
    for title in ("scenario", "value", *names, *ratios, "must", "aim", "verdict"):
        table.add_column(title, overflow="fold", no_wrap=title == "scenario")
    for row in rows:
        for line in _lines(row, names, judged):
            table.add_row(*line)
        table.add_section()
    for line in _idle_lines(servers, names, judged):
        table.add_row(*line)
    console.print(table)
    for row in rows:
        for error in row.errors():
            console.print(f"[red]ERROR[/red] {row.scenario.name}: {escape(error)}")
        if near := limited_by_generator(row):
            console.print(
                f"[yellow]FLAG[/yellow] {row.scenario.name}: "
                f"{', '.join(near)} within {HEADROOM:g}x of the sink"
            )
    for name in names:
        counts = [row.quiet_count(name) for row in rows]
        quiet, played = (sum(part) for part in zip(*counts, strict=True))
        console.print(f"quiet rounds of {name}: {quiet} of {played}")


def _judge(target: Target, row: Row) -> Verdict:
    ours, theirs = row.spread(OURS, target.value), row.spread(target.peer, target.value)
    return _verdict(target, _median(ours), _median(theirs))


def _verdict(target: Target, ours: float | None, theirs: float | None) -> Verdict:
    measured = ours if target.kind is Kind.AT_MOST else _ratio(ours, theirs)
    return Verdict(target, measured, None if measured is None else target.met_by(measured))


def _ratio(ours: float | None, theirs: float | None) -> float | None:
    return ours / theirs if ours is not None and theirs else None


def _median(spread: Spread | None) -> float | None:
    return spread.median if spread else None


def _is_near(row: Row, name: str) -> bool:
    value = row.scenario.ceiling or row.scenario.headline
    ceiling, measured = row.spread(CEILING, value), row.spread(name, value)
    if ceiling is None or measured is None:
        return False
    if value.endswith("_ms"):
        return ceiling.median * HEADROOM > measured.median
    return ceiling.median < measured.median * HEADROOM


def _lines(row: Row, names: Sequence[str], judged: Sequence[Verdict]) -> Iterator[list[str]]:
    mine = [entry for entry in judged if entry.target.scenario == row.scenario.name]
    shown = [row.scenario.headline, *(entry.target.value for entry in mine), *row.scenario.also]
    measured = [value for value in LATENCIES if any(row.spread(name, value) for name in names)]
    values = list(dict.fromkeys([*shown, *measured, "cpu_us", "machine_cpu_us"]))
    if row.errors():
        values = values[:1]
    label = row.scenario.name
    for value in values:
        spreads = {name: row.spread(name, value) for name in names}
        about = [entry for entry in mine if entry.target.value == value]
        ending = _demand(about) if not row.errors() else ["", "", "[red]error[/red]"]
        cells = [_spread_text(spread) for spread in spreads.values()]
        ratios = _ratio_texts({name: _median(spread) for name, spread in spreads.items()})
        yield [label, value, *cells, *ratios, *ending]
        label = ""
    counts = ["{} of {}".format(*row.quiet_count(name)) for name in names]
    yield ["", "quiet rounds", *counts, *[""] * (len(peers_of(names)) + 3)]


def _idle_lines(
    servers: Sequence[Server], names: Sequence[str], judged: Sequence[Verdict]
) -> Iterator[list[str]]:
    idle = {server.name: idle_values(server) for server in servers}
    for value in ("rss_mb", "pss_mb", "connection_kb"):
        cells = {name: idle[name].get(value) for name in names}
        about = [
            entry
            for entry in judged
            if (entry.target.scenario, entry.target.value) == (IDLE, value)
        ]
        texts = [number(cell) if cell is not None else "-" for cell in cells.values()]
        yield [IDLE, value, *texts, *_ratio_texts(cells), *_demand(about)]


def _demand(about: Sequence[Verdict]) -> list[str]:
    words = {None: "-", True: "[green]pass[/green]", False: "[red]FAIL[/red]"}
    must = [_demand_text(entry.target, entry.target.must) for entry in about]
    aim = [_demand_text(entry.target, entry.target.aim) for entry in about]
    verdict = [words[entry.passed] for entry in about]
    return ["\n".join(lines) for lines in (must, aim, verdict)]


def _demand_text(target: Target, number: float) -> str:
    if target.kind is Kind.AT_MOST:
        return f"<= {number:g}"
    return f"{target.kind.value} {number:g}x {target.peer}"


def _spread_text(spread: Spread | None) -> str:
    if spread is None:
        return "-"
    if spread.low == spread.high:
        return number(spread.median)
    return f"{number(spread.median)} ({number(spread.low)} - {number(spread.high)})"


def _ratio_texts(measured: Mapping[str, float | None]) -> list[str]:
    """Say what VouchMQ's figure is in parts of each peer's."""
    ratios = [_ratio(measured.get(OURS), measured[peer]) for peer in peers_of(list(measured))]
    return ["-" if ratio is None else f"{ratio:.2f}" for ratio in ratios]


def number(value: float) -> str:
    """Write a figure with three digits, or all of a large one."""
    if value >= 10_000:
        return f"{value:,.0f}"
    return f"{value:.0f}" if value >= 1_000 else f"{value:.3g}"
