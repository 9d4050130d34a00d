"""How does cost grow? CPU time per message and the longest stall of the loop, size by size.

    python -m bench.curves --list
    python -m bench.curves queues bindings --quick
    python -m bench.curves --out bench/results/curves.json
    python -m bench.curves backlog --sizes 10000000 --out bench/results/curves.json

Each point has a broker of its own, with a clock in its loop (`bench/loop_clock.py`). CPU time is
that of the whole process tree; a stall is the CPU time of the loop's thread between two ticks of
the clock, so that what else the machine does hardly counts. `python -m bench.plots` draws what
`--out` has written.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Final

from rich.console import Console
from rich.table import Table

from bench.curves.curve import Curve
from bench.curves.flows import FLOWS
from bench.curves.moves import MOVES
from bench.curves.stage import LONG_MS, stage
from bench.curves.storms import STORMS
from bench.run import conditions

CURVES: Final = (*FLOWS, *MOVES, *STORMS)
Point = dict[str, object]


def play(curve: Curve, size: int, directory: Path, *, quick: bool) -> Point:
    """Measure one point on a broker of its own."""
    with stage(directory, curve.flags) as one:
        curve.play(one, size, quick)
    longest = max(one.stalls.items(), key=lambda item: item[1].cpu_ms)
    return {
        "size": size,
        "cpu_us": {name: round(value, 3) for name, value in one.series.items()},
        "stall_cpu_ms": {name: round(pause.cpu_ms, 1) for name, pause in one.stalls.items()},
        "longest": {
            "series": longest[0],
            "cpu_ms": round(longest[1].cpu_ms, 1),
            "of_it_collector_ms": round(longest[1].gc_ms, 1),
            "wall_ms": round(longest[1].wall_ms, 1),
        },
        "long_stall_count": one.long_stall_count,
        "load": round(os.getloadavg()[0], 1),
    }


def show(console: Console, curve: Curve, points: list[Point]) -> None:
    """Print the table of one curve."""
    table = Table(title=f"{curve.title}: CPU us per {curve.per} (longest stall, CPU ms)")
    for point in points:
        assert isinstance(point["cpu_us"], dict)
    table.add_column("")
    for point in points:
        table.add_column(f"{point['size']:,}", justify="right")
    names = dict.fromkeys(name for point in points for name in _of(point, "stall_cpu_ms"))
    for name in names:
        cells = []
        for point in points:
            cost, stall = (_of(point, key).get(name) for key in ("cpu_us", "stall_cpu_ms"))
            colour = "red" if stall is not None and stall > LONG_MS else "green"
            cells.append(f"{'' if cost is None else cost} ([{colour}]{stall}[/{colour}])")
        table.add_row(name, *cells)
    console.print(table)


def _of(point: Point, key: str) -> dict[str, float]:
    found = point[key]
    assert isinstance(found, dict)
    return found


def main() -> int:
    """Run what the command line asks for; with --gate 1 when a stall was too long."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.curves",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("curves", nargs="*", metavar="CURVE", help="all when none is named")
    parser.add_argument("--list", action="store_true", help="list the curves and stop")
    parser.add_argument("--quick", action="store_true", help="fewer sizes, fewer messages")
    parser.add_argument("--sizes", type=int, nargs="+", help="these sizes instead")
    parser.add_argument("--work-dir", type=Path, help="where data directories go")
    parser.add_argument("--gate", action="store_true", help=f"exit 1 for stalls over {LONG_MS} ms")
    parser.add_argument(
        "--out", type=Path, metavar="FILE", help="write JSON; other points are kept"
    )
    options = parser.parse_args()
    console = Console() if sys.stdout.isatty() else Console(width=170)
    by_name = {curve.name: curve for curve in CURVES}
    if unknown := sorted(set(options.curves) - set(by_name)):
        console.print(f"no such curve: {', '.join(unknown)}; see --list", style="red")
        return 2
    if options.list:
        for curve in CURVES:
            print(f"{curve.name:20} {curve.title}: {', '.join(f'{n:,}' for n in curve.sizes)}")
        return 0
    is_long = False
    for name in options.curves or by_name:
        curve = by_name[name]
        points = []
        for size in options.sizes or (curve.quick if options.quick else curve.sizes):
            with tempfile.TemporaryDirectory(prefix="vouchmq-curve-", dir=options.work_dir) as made:
                where = {**conditions(Path(made)), "quick": options.quick}
                points.append(play(curve, size, Path(made) / "point", quick=options.quick))
            print(name, json.dumps(points[-1]), flush=True)
            is_long |= bool(points[-1]["long_stall_count"])
            points[-1]["conditions"] = where
            if options.out:
                keep(options.out, curve, points[-1])
        show(console, curve, points)
    return 1 if options.gate and is_long else 0


def keep(path: Path, curve: Curve, point: Point) -> None:
    """Write a point down at once, in the place of an earlier one of its size."""
    stored = json.loads(path.read_text()) if path.exists() else {"curves": {}}
    kept = stored["curves"].get(curve.name, {}).get("points", ())
    points = [other for other in kept if other["size"] != point["size"]]
    points.append(point)
    stored["curves"][curve.name] = {
        "title": curve.title,
        "per": curve.per,
        "points": sorted(points, key=lambda other: other["size"]),
    }
    path.write_text(json.dumps(stored, indent=1) + "\n")


if __name__ == "__main__":
    sys.exit(main())
