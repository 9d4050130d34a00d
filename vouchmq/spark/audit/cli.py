"""`vouchmq audit`: ledgers in; tables, a verdict, ten lines and the worst lives out.

    vouchmq audit PATH… --out DIR
    spark-submit …/vouchmq/spark/audit/cli.py PATH… --out DIR

Exit codes: 0 every confirmed message is accounted for, 1 findings of a kind in --fail-on, 2 bad
input, 3 something is missing that a verdict needs, and nothing is worse.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib.util import find_spec
from typing import TYPE_CHECKING, Final

from vouchmq.spark.audit import audit, input, summary_text, tables, verdicts
from vouchmq.spark.audit.result import INTERNAL, POISON_DELIVERIES, Job
from vouchmq.spark.command_line import (
    EXIT_UNUSABLE,
    Parser,
    UsageError,
    add_session,
    place,
    run,
    whole,
)
from vouchmq.spark.java import JavaError
from vouchmq.spark.ledger import lines
from vouchmq.spark.witness import witness

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FAIL_ON: Final = ("tampered", "LOST", "double_end", "early_confirm", "order")
KINDS: Final = tuple(dict.fromkeys((*verdicts.FINDINGS, *witness.FINDINGS)))


def parser() -> Parser:
    """The options of `vouchmq audit`."""
    made = Parser(
        prog="vouchmq audit",
        description="Verify what became of every message, from the ledgers of brokers.",
        allow_abbrev=False,
    )
    made.add_argument(
        "paths", nargs="*", type=path, metavar="PATH", help="ledger directory or file"
    )
    made.add_argument(
        "--data-dir",
        type=place,
        metavar="DIR",
        help="data directory of a running broker, which takes inventories first and is told the "
        "result",
    )
    made.add_argument(
        "--shared-log",
        action="store_true",
        help="the ledgers are of all brokers of one shared log: audit them as one",
    )
    made.add_argument(
        "--witness",
        nargs="+",
        type=path,
        default=[],
        metavar="DIR",
        help="events recorded by clients, to compare with a ledger if one is given",
    )
    made.add_argument(
        "--out", type=place, required=True, metavar="DIR", help="directory for the tables"
    )
    made.add_argument(
        "--incremental",
        action="store_true",
        help="continue after the last run",
    )
    _add_scope(made)
    made.add_argument(
        "--fail-on",
        type=kinds,
        metavar="KINDS",
        help=f"findings that make the exit code 1 (of ledgers {','.join(FAIL_ON)}; "
        f"of witnesses {','.join(witness.FAIL_ON)})",
    )
    made.add_argument(
        "--poison-deliveries",
        type=whole(2),
        metavar="N",
        help=f"list copies delivered this often ({POISON_DELIVERIES})",
    )
    made.add_argument(
        "--partition-by-queue",
        action="store_true",
        help=f"one directory per queue, for at most {tables.MOST_QUEUES}",
    )
    made.add_argument("--report", type=place, metavar="FILE", help="write an HTML report")
    add_session(made)
    return made


def _add_scope(made: Parser) -> None:
    """Options that choose copies."""
    made.add_argument(
        "--since", type=moment, metavar="TIME", help="messages published at or after it"
    )
    made.add_argument("--until", type=moment, metavar="TIME", help="messages published before it")
    made.add_argument("--vhost", help="only queues of this virtual host")
    made.add_argument("--queue", type=pattern, metavar="REGEX", help="queues whose names match")


def path(text: str) -> str:
    """The type of an argument that is a path, kept as it was written."""
    return str(place(text))


def moment(text: str) -> int:
    """The type of an argument that is a time: µs since 1970, UTC unless it says otherwise."""
    try:
        told = datetime.fromisoformat(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a time such as 2026-01-31 or 2026-01-31T12:00:00Z"
        ) from error
    told = told if told.tzinfo else told.replace(tzinfo=UTC)
    return round(told.timestamp() * 1_000_000)


def pattern(text: str) -> str:
    """The type of an argument that is a regular expression."""
    try:
        re.compile(text)
    except re.error as error:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a regular expression: {error}"
        ) from error
    return text


def kinds(text: str) -> tuple[str, ...]:
    """The type of an argument that lists kinds of findings."""
    named = tuple(part.strip() for part in text.split(",") if part.strip())
    for kind in named:
        if kind not in KINDS:
            raise argparse.ArgumentTypeError(
                f"{kind!r} is not a finding; they are {', '.join(KINDS)}"
            )
    return named


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns the exit code."""
    options = parser().parse_args(arguments)
    if find_spec("pyspark") is None:
        sys.stderr.write("vouchmq audit: needs pyspark: pip install 'vouchmq[spark]'\n")
        return EXIT_UNUSABLE
    codes: list[int] = []
    code = run("audit", lambda: _audit(options, codes), (lines.LedgerError, JavaError, OSError))
    # Whatever went wrong, it is not a finding.
    return code if codes else max(code, EXIT_UNUSABLE)


def _audit(options: argparse.Namespace, codes: list[int]) -> int:
    paths = input.check(options)
    from vouchmq.spark.session import session

    with session(
        "vouchmq audit", cores=options.cores, memory=options.memory, more=dict(options.conf)
    ) as spark:
        found = [_ledgers(spark, options, paths)] if paths else []
        if options.witness:
            found.append(_witnesses(spark, options, paths))
    codes += found
    code = next(code for code in (1, 3, 0) if code in codes)
    if len(found) > 1:
        audit.note_exit(options.out, code)
        sys.stdout.write(f"together   the ledger exit {found[0]}, the witnesses exit {found[1]}")
        sys.stdout.write(f" (exit {code})\n")
    if options.data_dir is not None:
        why = input.record(options.data_dir, options.out)
        if why:
            sys.stderr.write(f"vouchmq audit: the broker was not told the result: {why}\n")
        else:
            sys.stdout.write("recorded   by the broker, which shows it with `ledger status`\n")
    return code


def _ledgers(spark: SparkSession, options: argparse.Namespace, paths: tuple[str, ...]) -> int:
    scope = tables.Scope(options.since, options.until, options.vhost, options.queue)
    poison = options.poison_deliveries or POISON_DELIVERIES
    job = Job(
        *(paths, options.out, scope, poison),
        by_queue=options.partition_by_queue,
        is_shared=options.shared_log,
    )
    fail_on = FAIL_ON if options.fail_on is None else options.fail_on
    if options.incremental:
        from vouchmq.spark.audit import incremental

        result = incremental.run(spark, job)
    else:
        result = audit.run(spark, job)
    write = sys.stdout.write
    for name in result.facts.broken:
        write(f"broken     {name}\n")
    if len(result.facts.broken) < result.facts.broken_count:
        write(f"broken     … {result.facts.broken_count} lines in all\n")
    for line in summary_text.summary(result, fail_on):
        write(f"{line}\n")
    for line in summary_text.worst_lives(result.worst, result.lives):
        write(f"{line}\n")
    write(f"tables     {options.out}\n")
    code = result.exit_code(fail_on)
    audit.write_summary(result, fail_on)
    if options.report is not None:
        from vouchmq.spark.report import report

        try:
            report.write(options.out, options.report)
        except OSError as error:
            said = error.strerror or str(error)
            raise UsageError(f"--report {options.report}: {said}") from error
        write(f"report     {options.report}\n")
    return code


def _witnesses(spark: SparkSession, options: argparse.Namespace, paths: tuple[str, ...]) -> int:
    out = options.out / "witness" if paths else options.out
    ledger_lines = None
    if paths:
        ledger_lines = spark.read.parquet(str(options.out / INTERNAL / "full" / "lines"))
    result = witness.run(spark, options.witness, out, ledger_lines)
    for line in (*result.summary(), *result.worst):
        sys.stdout.write(f"{line}\n")
    return result.exit_code(witness.FAIL_ON if options.fail_on is None else options.fail_on)


if __name__ == "__main__":
    sys.exit(main())
