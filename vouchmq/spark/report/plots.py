"""Plots of the report: matplotlib draws them, the page's own colours and fonts dress them.

A plot becomes SVG inside the page. What matplotlib is told as a colour is only a place holder:
every one is replaced by a variable of the style sheet, so that one drawing follows light and dark.
Text stays text. Knows columns of numbers and nothing of what they mean.
"""

from __future__ import annotations

import io
import math
import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from markupsafe import Markup

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

INK: Final = "#010101"
FAINT: Final = "#010102"
GOOD: Final = "#010103"
BAD: Final = "#010104"
UNSURE: Final = "#010105"
LINES: Final = ("#020201", "#020202", "#020203", "#020204", "#020205", "#020206")
HEATS: Final = tuple(f"#0303{level:02x}" for level in range(1, 9))
_VARIABLES: Final = {
    INK: "--ink",
    FAINT: "--faint",
    GOOD: "--good",
    BAD: "--bad",
    UNSURE: "--unsure",
    **{colour: f"--line-{number}" for number, colour in enumerate(LINES, 1)},
    **{colour: f"--heat-{number}" for number, colour in enumerate(HEATS, 1)},
}
WIDTH_IN: Final = 9.0
"""Of a plot. The page shows it 544 to 864 pixels wide, and a text of 11 as one of 9 to 15."""
ROW_IN: Final = 0.3
_MINUTE_DAYS: Final = 1 / 1440
# From so many microseconds on a duration is told in units of so many, which are called so.
_UNITS: Final = (
    (7_200_000_000, 3_600_000_000, "h"),
    (120_000_000, 60_000_000, "min"),
    (1_000_000, 1_000_000, "s"),
    (1000, 1000, "ms"),
    (-math.inf, 1, "µs"),
)
_STYLE: Final[dict[Any, Any]] = {
    "svg.fonttype": "none",
    "font.size": 11,
    "axes.edgecolor": FAINT,
    "axes.labelcolor": INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "axes.grid": True,
    "axes.titlesize": 11,
    "axes.titlecolor": INK,
    "axes.titlelocation": "left",
    "grid.color": FAINT,
    "grid.linewidth": 0.5,
    "grid.alpha": 0.6,
    "text.color": INK,
    # A queue may be called `$x$`: that is its name and no formula.
    "text.parse_math": False,
    "xtick.color": INK,
    "ytick.color": INK,
    "legend.frameon": False,
    "lines.linewidth": 1.6,
    "savefig.transparent": True,
}


@dataclass(frozen=True, slots=True)
class Series:
    """A line of a plot: its name and a value for each point, None where there is none."""

    name: str
    values: Sequence[float | None]


@dataclass(frozen=True, slots=True)
class Bar:
    """A bar: what it stands for, how long, in which colour."""

    label: str
    value: float
    colour: str = LINES[0]


@dataclass(frozen=True, slots=True)
class Span:
    """Something with a beginning and an end; `mark` is written behind it."""

    label: str
    begin_us: int
    end_us: int
    colour: str
    mark: str = ""


def lines(
    name: str, title: str, times_us: Sequence[int], series: Sequence[Series], unit: str
) -> Markup:
    """A plot of one or several lines over time, as SVG."""
    with _drawing(name, title, 2.7) as (figure, made):
        axes = figure.subplots()
        _lines_on(axes, times_us, series)
        axes.set_ylabel(unit)
        axes.set_ylim(bottom=0)
        axes.yaxis.set_major_formatter(_grouped)
        _legend(figure, len(series))
    return made[0]


def latencies(
    name: str, title: str, panels: Sequence[tuple[str, Sequence[int], Sequence[Series]]]
) -> Markup:
    """Panels above each other with lines over time, durations in µs on a logarithmic axis."""
    with _drawing(name, title, 0.6 + 1.7 * len(panels)) as (figure, made):
        everything = figure.subplots(len(panels), 1, sharex=True, squeeze=False)
        for axes, (heading, times_us, series) in zip(everything[:, 0], panels, strict=True):
            _lines_on(axes, times_us, series)
            axes.set_title(heading)
            _duration_axis(axes)
        _legend(figure, max(len(series) for _, _, series in panels))
    return made[0]


def heat(
    name: str,
    title: str,
    times_us: Sequence[int],
    width_us: int,
    cells: Mapping[tuple[int, int], int],
    bins_per_octave: int,
) -> Markup:
    """How many by time and duration: `cells` has counts by (time of a column, bin of a duration).

    Colours go up with the logarithm of the count: rare slow ones are what people look for.
    """
    top = max(cells.values(), default=1)
    with _drawing(name, title, 2.7) as (figure, made):
        axes = figure.subplots()
        axes.grid(visible=False)
        levels: dict[int, list[tuple[int, int]]] = {}
        for cell, count in cells.items():
            share = math.log1p(count) / math.log1p(top)
            levels.setdefault(min(len(HEATS) - 1, int(share * len(HEATS))), []).append(cell)
        for level, members in sorted(levels.items()):
            _fill(axes, members, width_us, bins_per_octave, HEATS[level])
        bins = [number for _, number in cells]
        axes.set_xlim(_days(min(times_us)), _days(max(times_us) + width_us))
        axes.set_ylim(2 ** (min(bins) / bins_per_octave), 2 ** ((max(bins) + 1) / bins_per_octave))
        _duration_axis(axes)
        _time_axis(axes)
    return made[0]


def bars(name: str, title: str, rows: Sequence[Bar], unit: str, *, logarithmic: bool) -> Markup:
    """Bars beside their labels, the first on top, each with its value behind it."""
    from matplotlib.ticker import MaxNLocator

    with _drawing(name, title, 0.75 + ROW_IN * len(rows)) as (figure, made):
        axes = figure.subplots()
        places = range(len(rows))
        axes.barh(
            places, [row.value for row in rows], color=[row.colour for row in rows], height=0.66
        )
        axes.set_yticks(places, [shortened(row.label) for row in rows])
        axes.set_ylim(len(rows) - 0.5, -0.5)
        axes.tick_params(axis="y", length=0)
        axes.grid(visible=False, axis="y")
        if logarithmic:
            axes.set_xscale("log")
            axes.set_xlim(0.7, max(row.value for row in rows) * 6)
        else:
            axes.set_xlim(0, max(row.value for row in rows) * 1.18 or 1)
            axes.xaxis.set_major_locator(MaxNLocator(7, integer=all(not r.value % 1 for r in rows)))
        for place, row in zip(places, rows, strict=True):
            axes.annotate(
                f"{row.value:,.4g}" if row.value % 1 else f"{row.value:,.0f}",
                (row.value, place),
                xytext=(4, 0),
                textcoords="offset points",
                va="center",
            )
        axes.set_xlabel(unit)
        axes.xaxis.set_major_formatter(_grouped)
    return made[0]


def timeline(name: str, title: str, spans: Sequence[Span]) -> Markup:
    """Spans of time under each other, in the order given."""
    with _drawing(name, title, 0.7 + ROW_IN * len(spans)) as (figure, made):
        axes = figure.subplots()
        places = range(len(spans))
        least = max(1, (max(s.end_us for s in spans) - min(s.begin_us for s in spans)) // 300)
        for place, span in zip(places, spans, strict=True):
            # What lasted a moment is still to be seen.
            length = _days(max(span.end_us, span.begin_us + least)) - _days(span.begin_us)
            axes.barh(place, length, left=_days(span.begin_us), color=span.colour, height=0.5)
            axes.annotate(
                span.mark,
                (_days(span.begin_us) + length, place),
                xytext=(4, 0),
                textcoords="offset points",
                va="center",
            )
        axes.set_yticks(places, [shortened(span.label) for span in spans])
        axes.set_ylim(len(spans) - 0.5, -0.5)
        axes.tick_params(axis="y", length=0)
        axes.grid(visible=False, axis="y")
        axes.margins(x=0.12)
        _time_axis(axes)
    return made[0]


def shortened(label: str, most: int = 32) -> str:
    """A label that leaves room for the plot; the middle goes, as ends tell names apart."""
    label = "".join(letter if letter.isprintable() else "�" for letter in label)
    if len(label) <= most:
        return label
    half = (most - 1) // 2
    return f"{label[:half]}…{label[-half:]}"


def duration(value_us: float, _place: object = None) -> str:
    """Microseconds as people say them: 350 µs, 1.5 ms, 20 s."""
    size_us, name = _unit_of(value_us)
    return f"{value_us / size_us:,.3g} {name}"


def _unit_of(value_us: float) -> tuple[int, str]:
    """What a duration is told in: its microseconds and its name."""
    return next((size_us, name) for least, size_us, name in _UNITS if value_us >= least)


@contextmanager
def _drawing(name: str, title: str, height_in: float) -> Iterator[tuple[Figure, list[Markup]]]:
    """A figure to draw on; its SVG is in the list when the block has ended."""
    # Not when the package is imported: other modules do without it.
    import matplotlib as mpl
    from matplotlib.figure import Figure

    made: list[Markup] = []
    with mpl.rc_context({**_STYLE, "svg.hashsalt": name}), warnings.catch_warnings():
        # The reader's browser has the letters that the font used for measuring lacks.
        warnings.filterwarnings("ignore", message="Glyph .* missing from", category=UserWarning)
        figure = Figure(figsize=(WIDTH_IN, height_in), layout="constrained")
        yield figure, made
        drawn = io.StringIO()
        figure.savefig(drawn, format="svg", metadata={"Date": None, "Creator": None})
    made.append(_dressed(drawn.getvalue(), name, title))


def _dressed(svg: str, name: str, title: str) -> Markup:
    """Take off what belongs to a file, and put variables in the place of colours."""
    body = svg[svg.index("<svg") :]
    box = body.partition('viewBox="')[2].partition('"')[0]
    body = re.sub(r"<metadata>.*?</metadata>", "", body, flags=re.DOTALL)
    body = re.sub(r"<svg\b[^>]*>", "", body, count=1)
    # Several drawings share one page, so their ids must differ.
    body = re.sub(r'\bid="([^"]*)"', rf'id="{name}-\1"', body)
    body = re.sub(r"url\(#([^)]*)\)", rf"url(#{name}-\1)", body)
    body = re.sub(r'xlink:href="#([^"]*)"', rf'href="#{name}-\1"', body)
    # The page's font and line ends; a style of a drawing would be one of the whole page.
    body = re.sub(r"<style.*?</style>", "", body, flags=re.DOTALL)
    body = re.sub(r"font: ([\d.]+px) [^;\"]*", r"font-size: \1", body)
    body = re.sub(r"font-family: [^;\"]*;? ?", "", body)
    body = re.sub(r"#0[123]0[123]0[0-9a-f]", lambda found: f"var({_VARIABLES[found[0]]})", body)
    opened = Markup('<svg viewBox="{}" role="img" aria-label="{}">').format(box, title)
    return opened + Markup(body)  # noqa: S704 - of matplotlib, which escapes what it writes


def _lines_on(axes: Axes, times_us: Sequence[int], series: Sequence[Series]) -> None:
    at = [_days(time_us) for time_us in times_us]
    for each, colour in zip(series, LINES, strict=False):
        values = [math.nan if value is None else value for value in each.values]
        # A value between two pauses is no line.
        mark = "o" if len(at) < 3 or None in each.values else ""
        axes.plot(at, values, color=colour, label=each.name, marker=mark, markersize=3)
    if len(at) == 1:
        # Left to itself the axis would be years long.
        axes.set_xlim(at[0] - _MINUTE_DAYS, at[0] + _MINUTE_DAYS)
    _time_axis(axes)


def _legend(figure: Figure, count: int) -> None:
    handles, labels = figure.axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper left", ncols=min(count, 5))


def _fill(
    axes: Axes, cells: Sequence[tuple[int, int]], width_us: int, bins_per_octave: int, colour: str
) -> None:
    """All cells of a colour as one shape: thousands of single ones would fill the page."""
    from matplotlib.patches import PathPatch
    from matplotlib.path import Path

    corners = []
    for time_us, number in cells:
        left, right = _days(time_us), _days(time_us + width_us)
        low, high = (2 ** (each / bins_per_octave) for each in (number, number + 1))
        corners.append(
            Path([(left, low), (right, low), (right, high), (left, high), (left, low)], closed=True)
        )
    shape = Path.make_compound_path(*corners)
    axes.add_patch(PathPatch(shape, facecolor=colour, edgecolor="none"))


def _duration_axis(axes: Axes) -> None:
    """A logarithmic axis with labels wherever it begins and ends: what it shows must be there."""
    from matplotlib.ticker import LogLocator, NullFormatter, NullLocator

    axes.set_yscale("log")
    low, high = axes.get_ylim()
    if high < 10 * low:
        # There may be no power of ten in it: steps as on any axis.
        axes.set_yticks(_steps(low, high))
        axes.yaxis.set_minor_locator(NullLocator())
    elif high < 1000 * low:
        axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5), numticks=7))
    else:
        axes.yaxis.set_major_locator(LogLocator(numticks=7))
    axes.set_ylim(low, high)
    axes.yaxis.set_major_formatter(duration)
    axes.yaxis.set_minor_formatter(NullFormatter())


def _steps(low: float, high: float) -> list[float]:
    """Round durations in a view, in the unit that they are told in."""
    from matplotlib.ticker import MaxNLocator

    unit, _ = _unit_of(high)
    ticks = [float(tick) * unit for tick in MaxNLocator(5).tick_values(low / unit, high / unit)]
    return [tick for tick in ticks if low <= tick <= high]


def _time_axis(axes: Axes) -> None:
    from matplotlib.dates import AutoDateLocator, ConciseDateFormatter

    locator = AutoDateLocator(minticks=3, maxticks=8, tz=UTC)  # type: ignore[no-untyped-call]
    axes.xaxis.set_major_locator(locator)
    axes.xaxis.set_major_formatter(ConciseDateFormatter(locator, tz=UTC))  # type: ignore[no-untyped-call]


def _days(time_us: float) -> float:
    """What matplotlib counts time in."""
    return time_us / 86_400_000_000


def _grouped(value: float, _place: object) -> str:
    return f"{value:,.0f}" if value >= 1000 else f"{value:g}"


def instant(time_us: int) -> str:
    """A moment as text, UTC, to the millisecond."""
    at = datetime.fromtimestamp(time_us // 1_000_000, UTC)
    return f"{at:%Y-%m-%d %H:%M:%S}.{time_us // 1000 % 1000:03d}"
