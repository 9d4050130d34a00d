"""The command line: `python -m bench`; see README.md for the method and how to read the table.

Exit codes: 0 done, 1 a round failed (or, with --gate, a target was missed), 2 a server or
the generator could not be started.
"""

from __future__ import annotations

import argparse
import json
import shutil
import signal
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from rich.console import Console

from bench import report, servers
from bench.generator import GeneratorError
from bench.run import as_json, file_system, play_all
from bench.scenarios import catalogue
from bench.servers import DEFAULT_VOUCHMQ, Server, ServerError
from bench.targets import LAVINMQ, RABBITMQ

PLAIN_WIDTH = 170
"""Columns where there is no terminal to ask."""
PEERS = (RABBITMQ, LAVINMQ)
NAMES = ("vouchmq", *PEERS, "sink")


def parser() -> argparse.ArgumentParser:
    """Describe the command line."""
    made = argparse.ArgumentParser(
        prog="python -m bench",
        description="Measure VouchMQ beside its peers, round by round in one run.",
    )
    made.add_argument("--scenario", nargs="+", default=[], metavar="NAME", help="only these")
    made.add_argument("--list", action="store_true", help="list the scenarios and stop")
    made.add_argument("--rounds", type=int, default=3, help="rounds of each server (3)")
    made.add_argument("--quick", action="store_true", help="a fifth of the time and messages")
    made.add_argument("--out", type=Path, metavar="FILE", help="write the results there, as JSON")
    made.add_argument(
        "--vouchmq",
        default=DEFAULT_VOUCHMQ,
        metavar="CMD-or-URL",
        help="command that starts it, {data_dir} is filled in, or amqp:// URL of a running one",
    )
    made.add_argument(
        "--peer", action="append", choices=PEERS, help="a broker to compare with; may be repeated"
    )
    made.add_argument("--rabbitmq", metavar="URL|start", help="default: start")
    made.add_argument(
        "--lavinmq",
        metavar="CMD-or-URL",
        help="command that starts it (lavinmq), or amqp:// URL of a running one",
    )
    made.add_argument("--only", choices=NAMES, help="only this server, no ratios")
    made.add_argument(
        "--check-generator", action="store_true", help="play against the sink too: the ceiling"
    )
    made.add_argument("--work-dir", type=Path, help="where the servers keep their data (a new one)")
    made.add_argument("--gate", action="store_true", help="exit 1 also when a target is missed")
    return made


def main(arguments: Sequence[str] | None = None) -> int:
    """Run what the command line asks for."""
    made = parser()
    options = made.parse_args(arguments)
    for name in PEERS:
        if getattr(options, name) and name not in wanted_servers(options):
            made.error(f"--{name} is of no use without --peer {name}")
    console = Console() if sys.stdout.isatty() else Console(width=PLAIN_WIDTH)
    try:
        scenarios = catalogue.chosen(options.scenario)
    except ValueError as error:
        console.print(f"{error}", style="red")
        return 2
    if options.list:
        for scenario in scenarios:
            console.print(f"{scenario.name:36} {scenario.question}")
        return 0
    # Ended by a signal, it must still stop the servers it has started.
    signal.signal(signal.SIGTERM, lambda number, _frame: sys.exit(128 + number))
    work_dir = Path(tempfile.mkdtemp(prefix="vouchmq-bench-", dir=options.work_dir))
    if file_system(work_dir) == "tmpfs":
        console.print("[yellow]the data is on tmpfs: syncs cost nothing, see --work-dir[/yellow]")
    try:
        with ExitStack() as stack:
            running = start_servers(options, work_dir, stack)
            with console.status("") as status:
                rows = play_all(
                    running, scenarios, options.rounds, quick=options.quick, told=status.update
                )
            results = as_json(running, rows, quick=options.quick, work_dir=work_dir)
            report.show(console, rows, running)
            judged = report.verdicts(rows, running)
            results["limited_by_generator"] = {
                row.scenario.name: near
                for row in rows
                if (near := report.limited_by_generator(row))
            }
            results["targets"] = [report.verdict_as_json(entry) for entry in judged]
    except (ServerError, GeneratorError) as error:
        console.print(f"{error}", style="red", markup=False)
        return 2
    finally:
        shutil.rmtree(work_dir, ignore_errors=True)
    if options.out:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(json.dumps(results, indent=1) + "\n")
    is_missed = options.gate and any(entry.passed is False for entry in judged)
    return 1 if is_missed or any(row.errors() for row in rows) else 0


def start_servers(options: argparse.Namespace, work_dir: Path, stack: ExitStack) -> list[Server]:
    """Start the servers asked for; they stop with the stack."""
    starters = {
        "vouchmq": lambda: servers.vouchmq(options.vouchmq, work_dir),
        RABBITMQ: lambda: servers.rabbitmq(options.rabbitmq or "start", work_dir),
        LAVINMQ: lambda: servers.lavinmq(options.lavinmq or "lavinmq", work_dir),
        "sink": lambda: servers.sink(work_dir),
    }
    started = [stack.enter_context(starters[name]()) for name in wanted_servers(options)]
    return [servers.with_idle_connections(server) for server in started]


def wanted_servers(options: argparse.Namespace) -> list[str]:
    """List the servers asked for, in the order of their turns."""
    peers = options.peer or [RABBITMQ]
    wanted = [options.only] if options.only else ["vouchmq", *dict.fromkeys(peers)]
    return [*wanted, "sink"] if options.check_generator and "sink" not in wanted else wanted


if __name__ == "__main__":
    sys.exit(main())
