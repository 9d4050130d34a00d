"""One client does its worst: how long does everybody else wait?

    python -m bench.abuse --list
    python -m bench.abuse purges dead_letter_cycle --scale 0.1
    python -m bench.abuse --out bench/results/abuse.json

Each case has a broker of its own, with a clock in its loop (`bench/loop_clock.py`). While the
abuse goes on, and for a second afterwards, a client in another process asks for a message of an
empty queue every ten milliseconds; what counts is its longest wait. On a machine that does other
things as well a wait may be the machine's: the longest pause of the loop in processor time is
the broker's own. Cases about memory tell the largest resident set beside the watermark.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Final

from rich.console import Console
from rich.table import Table

from bench import servers
from bench.abuse.bystander import Waits, bystander
from bench.abuse.cases import CASES as SINGLE_CASES
from bench.abuse.cases import MIB, SETTLE_S, Case, Stage
from bench.abuse.floods import FLOODS
from bench.abuse.http import FLAGS, HTTP
from bench.abuse.many import MANY
from bench.abuse.storm import STORMS
from bench.backlog.broker import Peak, Row, rss_mib
from bench.run import conditions

CASES: Final = (*SINGLE_CASES, *MANY, *FLOODS, *STORMS, *HTTP)
LONGEST_MS: Final = 50.0
COMMAND: Final = (
    f"{shlex.quote(sys.executable)} -m bench.loop_clock {{clock}} serve --port 0 "
    "--data-dir {{data_dir}} --log-level warning"
)


def play(case: Case, scale: float, directory: Path) -> Row:
    """Start a broker, prepare, abuse it beside a bystander, and tell what that cost."""
    clock = directory / "pauses"
    flags = [
        flag.format(
            definitions=directory / "definitions.json",
            certificates=directory / "certificates",
            tls_port=servers.free_ports(1)[0],
        )
        for flag in case.flags
    ]
    (directory / "definitions.json").write_text("{}")
    if "--tls-port" in flags:
        maker = [sys.executable, str(servers.ROOT / "tools" / "certificates.py")]
        subprocess.run([*maker, str(directory / "certificates")], check=True)
    if case.watermark_bytes:
        flags += ["--vm-memory-high-watermark", str(case.watermark_bytes)]
    command = COMMAND.format(clock=shlex.quote(str(clock))) + "".join(f" {flag}" for flag in flags)
    with servers.vouchmq(command, directory) as server, ExitStack() as stack:
        assert server.pid is not None
        stage = Stage(server.address, server.pid, directory, scale, stack)
        case.prepare(stage)
        before_mib, cpu_s = rss_mib(server.pid), server.cpu_s() or 0.0
        began, first_s = time.perf_counter(), time.monotonic()
        with Peak(server.pid) as peak, bystander(server.address) as waits:
            case.abuse(stage)
            took_s = time.perf_counter() - began
            time.sleep(SETTLE_S)
        server.require_alive()
        lines = [tuple(map(float, line.split())) for line in clock.read_text().splitlines()]
        row = {
            "took_s": round(took_s, 2),
            "cpu_s": round((server.cpu_s() or 0.0) - cpu_s, 2),
            "rss_before_mib": before_mib,
            "rss_peak_mib": peak.rss_mib,
            "load": round(os.getloadavg()[0], 1),
        }
    if case.watermark_bytes:
        row["watermark_mib"] = case.watermark_bytes // MIB
    return {**row, **stage.found, **judged(waits, [line for line in lines if line[0] >= first_s])}


def judged(waits: Waits, pauses: Sequence[tuple[float, ...]]) -> Row:
    """The bystander's waits and the loop's pauses, in milliseconds."""
    row: Row = {
        "asked": len(waits.waits_ms),
        "wait_p50_ms": round(waits.percentile_ms(0.5), 1),
        "wait_p99_ms": round(waits.percentile_ms(0.99), 1),
        "wait_worst_ms": round(waits.worst_ms, 1),
        "pause_worst_ms": round(max((pause[1] for pause in pauses), default=0.0), 1),
        "pause_worst_cpu_ms": round(max((pause[2] for pause in pauses), default=0.0), 1),
    }
    if waits.error:
        row["error"] = waits.error
    return row


def show(console: Console, rows: dict[str, Row]) -> None:
    """Print the table."""
    table = Table(title="Beside the abuse, in milliseconds")
    for title in ("", "wait p50", "wait p99", "worst wait", "longest pause", "of it CPU"):
        table.add_column(title, justify="right" if title else "left")
    for title in ("CPU s", "RSS MiB"):
        table.add_column(title, justify="right")
    columns = ("wait_p50_ms", "wait_p99_ms", "wait_worst_ms", "pause_worst_ms")
    for name, row in rows.items():
        cells = [str(row[key]) for key in (*columns, "pause_worst_cpu_ms", "cpu_s", "rss_peak_mib")]
        table.add_row(name, *cells)
        if "error" in row:
            table.add_row("", f"[red]{row['error']}[/red]")
    console.print(table)


def main() -> int:
    """Run what the command line asks for; 1 when a bystander was cut off or waited too long."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.abuse",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("cases", nargs="*", metavar="CASE", help="all when none is named")
    parser.add_argument("--list", action="store_true", help="list the cases and stop")
    parser.add_argument("--scale", type=float, default=1.0, help="shrink what is counted (1.0)")
    parser.add_argument("--management", action="store_true", help="in all cases, beside them")
    parser.add_argument("--work-dir", type=Path, help="where data directories go")
    parser.add_argument("--gate", action="store_true", help="exit 1 for waits over 50 ms")
    parser.add_argument("--out", type=Path, metavar="FILE", help="write JSON; other rows are kept")
    options = parser.parse_args()
    console = Console()
    by_name = {case.name: case for case in CASES}
    if unknown := sorted(set(options.cases) - set(by_name)):
        console.print(f"no such case: {', '.join(unknown)}; see --list", style="red")
        return 2
    if options.list:
        for case in CASES:
            print(f"{case.name:20} {case.what}")
        return 0
    rows: dict[str, Row] = {}
    for name in options.cases or by_name:
        with tempfile.TemporaryDirectory(prefix="vouchmq-abuse-", dir=options.work_dir) as made:
            where = conditions(Path(made))
            case = by_name[name]
            if options.management and "--management" not in case.flags:
                case = replace(case, flags=(*case.flags, *FLAGS))
            rows[name] = {**play(case, options.scale, Path(made)), "conditions": where}
        shown = {key: value for key, value in rows[name].items() if key != "conditions"}
        print(name, json.dumps(shown), flush=True)
    show(console, rows)
    if options.out:
        kept = json.loads(options.out.read_text())["cases"] if options.out.exists() else {}
        command = "python -m bench.abuse " + " ".join(sys.argv[1:])
        text = {"command": command, "cases": {**kept, **rows}}
        options.out.write_text(json.dumps(text, indent=1) + "\n")
    failed = any("error" in row for row in rows.values())
    is_late = any(float(str(row["wait_worst_ms"])) > LONGEST_MS for row in rows.values())
    return 1 if failed or (options.gate and is_late) else 0


if __name__ == "__main__":
    sys.exit(main())
