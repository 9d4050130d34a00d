"""The pipeline's figures: `python -m bench.pipeline`; see bench/README.md for the method.

    python -m bench.pipeline --list
    python -m bench.pipeline bulk_stream sink --rounds 3 --out bench/results/pipeline.json
    python -m bench.pipeline ledger_json --quick --rounds 1

Exit codes: 0 done, 1 a row failed (or, with --gate, a demand was missed), 2 a broker could not be
started or there is no such row.
"""

from __future__ import annotations

import argparse
import json
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Final

from rich.console import Console

from bench import servers
from bench.pipeline import catalogue, rounds, table
from bench.pipeline.rounds import Played
from bench.pipeline.row import OURS, THEIRS, Place, Row
from bench.run import conditions, file_system
from bench.servers import DEFAULT_VOUCHMQ, Server, ServerError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PLAIN_WIDTH: Final = 150
HEAP: Final = "1g"


def parser() -> argparse.ArgumentParser:
    """Describe the command line."""
    made = argparse.ArgumentParser(prog="python -m bench.pipeline", description=__doc__)
    made.formatter_class = argparse.RawDescriptionHelpFormatter
    made.add_argument("rows", nargs="*", metavar="ROW", help="only these")
    made.add_argument("--list", action="store_true", help="list the rows and stop")
    made.add_argument("--rounds", type=int, default=3, help="rounds of each row (3)")
    made.add_argument("--quick", action="store_true", help="a fifth of the messages")
    made.add_argument("--out", type=Path, metavar="FILE", help="JSON; other rows in it are kept")
    made.add_argument("--vouchmq", default=DEFAULT_VOUCHMQ, metavar="CMD-or-URL")
    made.add_argument("--rabbitmq", default="start", metavar="URL|start", help="default: start")
    made.add_argument("--only", choices=(OURS, THEIRS), help="only on this broker")
    made.add_argument("--work-dir", type=Path, help="where all data is kept (a new one)")
    made.add_argument("--gate", action="store_true", help="exit 1 also when a demand is missed")
    return made


def main(arguments: Sequence[str] | None = None) -> int:
    """Run what the command line asks for."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    options = parser().parse_args(given)
    console = Console() if sys.stdout.isatty() else Console(width=PLAIN_WIDTH)
    try:
        rows = catalogue.chosen(
            list(catalogue.rows()) if options.list and not options.rows else options.rows
        )
    except ValueError as error:
        console.print(f"{error}", style="red", markup=False)
        return 2
    if options.list:
        for row in rows:
            where = " ".join(row.servers) or "no broker"
            console.print(f"{row.name:24} {row.question} [{where}]", markup=False)
        return 0
    # Ended by a signal, it must still stop the brokers it has started.
    signal.signal(signal.SIGTERM, lambda number, _frame: sys.exit(128 + number))
    work_dir = Path(tempfile.mkdtemp(prefix="vouchmq-bench-", dir=options.work_dir))
    if file_system(work_dir) == "tmpfs":
        console.print("[yellow]the data is on tmpfs: syncs cost nothing, see --work-dir[/yellow]")
    try:
        with ExitStack() as stack:
            played, versions = play_all(rows, options, work_dir, stack, console)
            measured = {**conditions(work_dir), "quick": options.quick, "rounds": options.rounds}
    except ServerError as error:
        console.print(f"{error}", style="red", markup=False)
        return 2
    finally:
        shutil.rmtree(work_dir, ignore_errors=True)
    table.show(console, played)
    if options.out:
        keep(options.out, played, measured, versions)
    is_bad = any(one.error for one in played)
    return int(is_bad or (options.gate and any(rounds.is_missed(one) for one in played)))


def play_all(
    rows: Sequence[Row],
    options: argparse.Namespace,
    work_dir: Path,
    stack: ExitStack,
    console: Console,
) -> tuple[list[Played], dict[str, str]]:
    """Play the rows on each of their brokers; brokers and session end with the stack."""
    wanted = {name for row in rows for name in row.servers}
    if options.only:
        wanted &= {options.only}
    running: dict[str, Server] = {}
    if OURS in wanted:
        running[OURS] = stack.enter_context(servers.vouchmq(options.vouchmq, work_dir))
    if THEIRS in wanted:
        running[THEIRS] = stack.enter_context(servers.rabbitmq(options.rabbitmq, work_dir))
    session = one_session(stack)
    played = []
    with console.status("") as status:
        for row in rows:
            at: list[Server | None] = [running[name] for name in row.servers if name in running]
            for server in at if row.servers else [None]:
                directory = Path(tempfile.mkdtemp(prefix=f"{row.name}-", dir=work_dir))
                place = Place(server, directory, options.quick, session)
                played.append(rounds.play(row, place, options.rounds, status.update))
                shutil.rmtree(directory, ignore_errors=True)
                if server is not None:
                    server.require_alive()
    return played, {server.name: server.version for server in running.values()}


def one_session(stack: ExitStack) -> Callable[[], SparkSession]:
    """A session for all rows, started when the first one asks for it."""
    made: list[SparkSession] = []

    def session() -> SparkSession:
        if not made:
            # Only rows with Spark need it, and starting it takes ten seconds.
            from vouchmq.spark.session import session as local_session

            made.append(stack.enter_context(local_session("bench.pipeline", memory=HEAP)))
        return made[0]

    return session


def keep(
    path: Path, played: Sequence[Played], where: dict[str, object], versions: dict[str, str]
) -> None:
    """Write results; rows of the same name and broker are replaced, others stay as they were."""
    before = json.loads(path.read_text())["rows"] if path.exists() else []
    found = {(row["name"], row["server"]): row for row in before}
    for one in played:
        row = {**rounds.as_json(one), "conditions": where}
        if one.server:
            row["version"] = versions[one.server]
        found[one.row.name, one.server] = row
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"rows": list(found.values())}, indent=1) + "\n")


if __name__ == "__main__":
    sys.exit(main())
