"""The table on the terminal: every arm's figures with their spread, every demand's verdict."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from bench.pipeline.rounds import Played


def number(value: float) -> str:
    """A figure as people read it."""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def spread(low: float, median: float, high: float) -> str:
    """A median with its spread."""
    return f"{number(median)} ({number(low)} - {number(high)})"


def show(console: Console, played: Sequence[Played]) -> None:
    """Print everything."""
    table = Table(title="median (min - max) of the rounds")
    for title in ("row", "broker", "figure", "measured", "demand", "verdict"):
        table.add_column(title, overflow="fold")
    for one in played:
        for arm in one.row.arms:
            names = {name for each in one.rounds for name in each.get(arm, {})}
            for name in sorted(names):
                found = one.spread(arm, name)
                if found:
                    table.add_row(one.row.name, one.server, f"{name} {arm}", spread(*found))
        for demand in one.demands:
            figures = one.figures(demand)
            if not figures:
                table.add_row(one.row.name, one.server, demand.subject, "-", demand.text, "-")
                continue
            median = statistics.median(figures)
            verdict = "" if not demand.text else "ok" if demand.is_met(median) else "[red]MISSED"
            measured = spread(min(figures), median, max(figures))
            subject = f"[bold]{demand.subject}"
            table.add_row(one.row.name, one.server, subject, measured, demand.text, verdict)
        table.add_section()
    console.print(table)
    for one in played:
        if one.error:
            console.print(f"[red]ERROR[/red] {one.row.name} {one.server}: {escape(one.error)}")
