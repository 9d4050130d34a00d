"""Draw curves (`bench/curves`): CPU time per item over sizes, and the longest stalls below.

Both axes of both panels are logarithmic: a flat line costs the same at each size, and one that
rises with the frame's diagonal costs in proportion. The line at 20 ms is what no stall should
exceed.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final
from xml.sax.saxutils import escape

from bench.report import number

WIDTH: Final = 760
MARGIN: Final = 16
LEFT: Final = 64
RIGHT: Final = 470
LEGEND: Final = RIGHT + 20
TOP: Final = 104
PANEL_HEIGHT: Final = 190
GAP: Final = 56
LINE_HEIGHT: Final = 18
LONG_MS: Final = 20.0
LEAST_STALL_MS: Final = 0.5
"""Less than this is drawn as this."""
COLOURS: Final = 6
STYLE: Final = """
  svg { font: 12px ui-monospace, SFMono-Regular, Menlo, Consolas, monospace; background: #ffffff }
  text { fill: #1f2328 } .title { font-size: 15px; font-weight: 600 } .name { font-weight: 600 }
  .faint { fill: #57606a } .right { text-anchor: end } .middle { text-anchor: middle }
  .rule { stroke: #d0d7de } .limit { stroke: #cf222e; stroke-dasharray: 6 4 }
  polyline { fill: none; stroke-width: 2 } circle { stroke: none }
  polyline.c0 { stroke: #0969da } circle.c0 { fill: #0969da }
  polyline.c1 { stroke: #bf8700 } circle.c1 { fill: #bf8700 }
  polyline.c2 { stroke: #1a7f37 } circle.c2 { fill: #1a7f37 }
  polyline.c3 { stroke: #8250df } circle.c3 { fill: #8250df }
  polyline.c4 { stroke: #bf3989 } circle.c4 { fill: #bf3989 }
  polyline.c5 { stroke: #6e7781 } circle.c5 { fill: #6e7781 }
  @media (prefers-color-scheme: dark) {
    svg { background: #0d1117 } text { fill: #e6edf3 } .faint { fill: #9198a1 }
    .rule { stroke: #30363d } .limit { stroke: #f85149 }
    polyline.c0 { stroke: #58a6ff } circle.c0 { fill: #58a6ff }
    polyline.c1 { stroke: #d29922 } circle.c1 { fill: #d29922 }
    polyline.c2 { stroke: #3fb950 } circle.c2 { fill: #3fb950 }
    polyline.c3 { stroke: #a371f7 } circle.c3 { fill: #a371f7 }
    polyline.c4 { stroke: #db61a2 } circle.c4 { fill: #db61a2 }
    polyline.c5 { stroke: #8b949e } circle.c5 { fill: #8b949e }
  }
"""

Results = Mapping[str, Any]
Values = Mapping[int, Mapping[str, float]]
"""By size and series."""


@dataclass(frozen=True, slots=True)
class Panel:
    """One frame with its axes: where a value is drawn in it."""

    top: int
    sizes: Sequence[int]
    low: float
    high: float

    def x(self, size: int) -> float:
        """Where a size is; none at all is left of one, as far as one is of two."""
        first, at, last = (math.log10(n or 0.5) for n in (self.sizes[0], size, self.sizes[-1]))
        share = (at - first) / (last - first) if last > first else 0.5
        return LEFT + share * (RIGHT - LEFT)

    def y(self, value: float) -> float:
        """Where a value is."""
        low, high = math.log10(self.low), math.log10(self.high)
        share = (math.log10(max(value, self.low)) - low) / (high - low)
        return self.top + (1 - share) * PANEL_HEIGHT

    def draw(self) -> Iterator[str]:
        """Draw frame, decades and sizes."""
        bottom = self.top + PANEL_HEIGHT
        decade = self.low
        while decade <= self.high * 1.001:
            y = self.y(decade)
            yield f'<line class="rule" x1="{LEFT}" x2="{RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>'
            yield _text(LEFT - 8, y + 4, number(decade), "faint right")
            decade *= 10
        for size in self.sizes:
            x = self.x(size)
            yield f'<line class="rule" x1="{x:.1f}" x2="{x:.1f}" y1="{self.top}" y2="{bottom}"/>'
            yield _text(x, bottom + 16, short(size), "faint middle")

    def line(self, points: Sequence[tuple[int, float]], colour: int) -> Iterator[str]:
        """Draw one series."""
        places = [(self.x(size), self.y(value)) for size, value in points]
        text = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
        yield f'<polyline class="c{colour}" points="{text}"/>'
        for x, y in places:
            yield f'<circle class="c{colour}" cx="{x:.1f}" cy="{y:.1f}" r="3"/>'


def draw_curves(results: Results, source: str) -> dict[str, str]:
    """Draw each curve of a stored run: SVG by its name."""
    return {name: _picture(curve, source) for name, curve in results["curves"].items()}


def short(size: int) -> str:
    """Write a size with as few digits as it has: 1k, 64Ki, 10M."""
    for unit, factor in (("Mi", 1 << 20), ("M", 10**6), ("k", 10**3), ("Ki", 1 << 10)):
        if size >= factor and not size % factor:
            return f"{size // factor}{unit}"
    return str(size)


def _picture(curve: Results, source: str) -> str:
    points = curve["points"]
    sizes = [point["size"] for point in points]
    names = list(dict.fromkeys(name for point in points for name in point["stall_cpu_ms"]))
    costs = {point["size"]: point["cpu_us"] for point in points}
    stalls = {point["size"]: point["stall_cpu_ms"] for point in points}
    cost = Panel(TOP, sizes, *_decades(costs))
    low, high = _decades(stalls, LEAST_STALL_MS)
    stall = Panel(TOP + PANEL_HEIGHT + GAP, sizes, low, max(high, 100.0))
    parts = list(_heading(curve, points))
    parts += [_text(LEFT, TOP - 10, f"CPU us per {curve['per']}", "name"), *cost.draw()]
    parts += [_text(LEFT, stall.top - 10, "longest stall, CPU ms", "name"), *stall.draw()]
    limit = stall.y(LONG_MS)
    parts.append(
        f'<line class="limit" x1="{LEFT}" x2="{RIGHT}" y1="{limit:.1f}" y2="{limit:.1f}"/>'
    )
    for index, name in enumerate(names):
        colour = index % COLOURS
        for panel, values in ((cost, costs), (stall, stalls)):
            parts += _series(panel, values, name, colour, panel.top + 12 + 2 * LINE_HEIGHT * index)
    height = stall.top + max(PANEL_HEIGHT + 32, LINE_HEIGHT * 2 * len(names) + 12)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" '
        f'viewBox="0 0 {WIDTH} {height}" role="img">\n<title>{escape(curve["title"])}</title>\n'
        f"<desc>drawn from {escape(source)}</desc>\n<style>{STYLE}</style>\n"
        + "\n".join(parts)
        + "\n</svg>\n"
    )


def _series(panel: Panel, values: Values, name: str, colour: int, y: int) -> Iterator[str]:
    """Draw a line, and beside the frame its name and its values."""
    points = [(size, found[name]) for size, found in values.items() if name in found]
    if points:
        yield from panel.line(points, colour)
        yield f'<circle class="c{colour}" cx="{LEGEND}" cy="{y - 4}" r="4"/>'
        yield _text(LEGEND + 10, y, name)
        yield _text(LEGEND + 10, y + 15, " · ".join(number(value) for _, value in points), "faint")


def _heading(curve: Results, points: Sequence[Results]) -> Iterator[str]:
    told = [point["conditions"] for point in points]
    commits = ", ".join(dict.fromkeys(each["commit"] for each in told))
    loads = [point["load"] for point in points]
    quick = "quick, shortened points · " if any(each["quick"] for each in told) else ""
    lines = (
        f"{quick}one run of each point · load {min(loads):g} to {max(loads):g}",
        f"{told[-1]['at'][:10]} · commit {commits} · {told[-1]['cpu_count']} processors, "
        f"{told[-1]['machine']} · Python {told[-1]['python']}",
    )
    yield _text(MARGIN, 26, curve["title"], "title")
    for index, line in enumerate(lines):
        yield _text(MARGIN, 46 + 17 * index, line, "faint")


def _decades(values: Values, least: float = 0.0) -> tuple[float, float]:
    """Whole powers of ten around all values, at least one decade apart."""
    found = [max(value, least) for one in values.values() for value in one.values()]
    found = [value for value in found if value > 0] or [1.0]
    low, high = math.floor(math.log10(min(found))), math.ceil(math.log10(max(found)))
    return 10.0**low, 10.0 ** max(high, low + 1)


def _text(x: float, y: float, text: str, kind: str = "") -> str:
    named = f' class="{kind}"' if kind else ""
    return f'<text{named} x="{x:g}" y="{y:g}">{escape(text)}</text>'
