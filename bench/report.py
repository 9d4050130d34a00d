"""The table: medians with their spread, the ratio, CPU per message, and each demand's verdict."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from bench.run import Row, Spread, idle_values
from bench.servers import Server
from bench.targets import IDLE, Kind, Target, targets_of

OURS, THEIRS, CEILING = "vouchmq", "rabbitmq", "sink"
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
    idle = {server.name: idle_values(server).get("rss_mb") for server in servers}
    return found + [
        _verdict(target, idle.get(OURS), idle.get(THEIRS)) for target in targets_of(IDLE)
    ]


def verdict_as_json(verdict: Verdict) -> dict[str, object]:
    """Put a verdict into the results."""
    return {
        "scenario": verdict.target.scenario,
        "value": verdict.target.value,
        "must": _demand_text(verdict.target, verdict.target.must),
        "aim": _demand_text(verdict.target, verdict.target.aim),
        "measured": verdict.measured,
        "passed": verdict.passed,
    }


def limited_by_generator(row: Row) -> bool:
    """True when the sink shows less than HEADROOM above our figure: the row says little."""
    return _is_near(row, OURS) or _is_near(row, THEIRS)


def show(console: Console, rows: Sequence[Row], servers: Sequence[Server]) -> None:
    """Print everything."""
    names = [server.name for server in servers]
    judged = {
        (entry.target.scenario, entry.target.value, entry.target.kind): entry
        for entry in verdicts(rows, servers)
    }
    table = Table(title="median (min - max) of the rounds")
    for title in ("scenario", "value", *names, "ratio", "must", "aim", "verdict"):
        table.add_column(title, overflow="fold", no_wrap=title == "scenario")
    for row in rows:
        for line in _lines(row, names, list(judged.values())):
            table.add_row(*line)
        table.add_section()
    for line in _idle_lines(servers, names, list(judged.values())):
        table.add_row(*line)
    console.print(table)
    for row in rows:
        for error in row.errors():
            console.print(f"[red]ERROR[/red] {row.scenario.name}: {escape(error)}")
        if limited_by_generator(row):
            console.print(
                f"[yellow]FLAG[/yellow] {row.scenario.name}: within {HEADROOM:g}x of the sink"
            )


def _judge(target: Target, row: Row) -> Verdict:
    ours, theirs = row.spread(OURS, target.value), row.spread(THEIRS, target.value)
    return _verdict(target, _median(ours), _median(theirs))


def _verdict(target: Target, ours: float | None, theirs: float | None) -> Verdict:
    measured = ours if target.kind is Kind.AT_MOST else _ratio(ours, theirs)
    return Verdict(target, measured, None if measured is None else target.met_by(measured))


def _ratio(ours: float | None, theirs: float | None) -> float | None:
    return ours / theirs if ours is not None and theirs else None


def _median(spread: Spread | None) -> float | None:
    return spread.median if spread else None


def _is_near(row: Row, name: str) -> bool:
    ceiling, measured = (
        row.spread(CEILING, row.scenario.headline),
        row.spread(name, row.scenario.headline),
    )
    if ceiling is None or measured is None:
        return False
    if row.scenario.headline.endswith("_ms"):
        return ceiling.median * HEADROOM > measured.median
    return ceiling.median < measured.median * HEADROOM


def _lines(row: Row, names: Sequence[str], judged: Sequence[Verdict]) -> Iterator[list[str]]:
    mine = [entry for entry in judged if entry.target.scenario == row.scenario.name]
    shown = [row.scenario.headline, *(entry.target.value for entry in mine), *row.scenario.also]
    values = list(dict.fromkeys([*shown, "cpu_us"]))
    if row.errors():
        values = values[:1]
    label = row.scenario.name
    for value in values:
        spreads = [row.spread(name, value) for name in names]
        by_name = dict(zip(names, spreads, strict=True))
        ours, theirs = by_name.get(OURS), by_name.get(THEIRS)
        ratio = _ratio(_median(ours), _median(theirs))
        about = [entry for entry in mine if entry.target.value == value]
        ending = _demand(about) if not row.errors() else ["", "", "[red]error[/red]"]
        yield [label, value, *map(_spread_text, spreads), _ratio_text(ratio), *ending]
        label = ""


def _idle_lines(
    servers: Sequence[Server], names: Sequence[str], judged: Sequence[Verdict]
) -> Iterator[list[str]]:
    idle = {server.name: idle_values(server) for server in servers}
    for value in ("rss_mb", "pss_mb"):
        cells = [idle[name].get(value) for name in names]
        ours, theirs = idle.get(OURS, {}).get(value), idle.get(THEIRS, {}).get(value)
        about = [
            entry
            for entry in judged
            if (entry.target.scenario, entry.target.value) == (IDLE, value)
        ]
        texts = [_number(cell) if cell is not None else "-" for cell in cells]
        yield [IDLE, value, *texts, _ratio_text(_ratio(ours, theirs)), *_demand(about)]


def _demand(about: Sequence[Verdict]) -> list[str]:
    words = {None: "-", True: "[green]pass[/green]", False: "[red]FAIL[/red]"}
    must = " ".join(_demand_text(entry.target, entry.target.must) for entry in about)
    aim = " ".join(_demand_text(entry.target, entry.target.aim) for entry in about)
    return [must, aim, " ".join(words[entry.passed] for entry in about)]


def _demand_text(target: Target, number: float) -> str:
    if target.kind is Kind.AT_MOST:
        return f"<= {number:g}"
    return f"{target.kind.value} {number:g}x"


def _spread_text(spread: Spread | None) -> str:
    if spread is None:
        return "-"
    if spread.low == spread.high:
        return _number(spread.median)
    return f"{_number(spread.median)} ({_number(spread.low)} - {_number(spread.high)})"


def _ratio_text(ratio: float | None) -> str:
    return "-" if ratio is None else f"{ratio:.2f}"


def _number(value: float) -> str:
    if value >= 10_000:
        return f"{value:,.0f}"
    return f"{value:.0f}" if value >= 1_000 else f"{value:.3g}"
