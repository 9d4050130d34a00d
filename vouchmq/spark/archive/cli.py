"""`vouchmq archive`: its command line, what it says while it runs and at its end.

Exit codes: 0 done, or stopped while it would have gone on for ever; 1 it failed, or was stopped
before its end; 2 something that was given cannot be used.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from contextlib import closing
from functools import partial
from typing import Final

from vouchmq.spark.archive.archive import (
    PARQUET,
    TABLES,
    Archived,
    ArchivePlan,
    Waiting,
    claim,
    follow,
    look_at_queues,
    start,
)
from vouchmq.spark.command_line import (
    EXIT_FAILED,
    Line,
    Parser,
    Stop,
    UsageError,
    add_options,
    add_session,
    counted,
    listening,
    place,
    run,
    whole,
    with_source,
)
from vouchmq.spark.options import SPOOL, STREAM, OptionError, SourceOptions

INTERVAL_S: Final = 10


def parser() -> Parser:
    """The options of `vouchmq archive`."""
    made = Parser(
        prog="vouchmq archive",
        description="Copy a queue (which empties it) or a stream into a table of Parquet files, "
        "each message exactly once even if a process is killed. Run it again to continue.",
        allow_abbrev=False,
    )
    made.add_argument("--url", required=True, help="URL of the broker: amqp:// or amqps://")
    made.add_argument(
        "--queue", required=True, metavar="NAME", help="one name, or several separated by commas"
    )
    made.add_argument(
        "--to", required=True, type=place, metavar="DIR", help="directory of the archive"
    )
    made.add_argument(
        "--checkpoint",
        required=True,
        type=place,
        metavar="DIR",
        help="directory that stores the progress",
    )
    made.add_argument(
        "--mode", choices=(SPOOL, STREAM), default=SPOOL, help="whether to read a queue or a stream"
    )
    when = made.add_mutually_exclusive_group()
    when.add_argument("--once", action="store_true", help="stop after what is there now")
    when.add_argument(
        "--interval",
        type=whole(0),
        default=INTERVAL_S,
        metavar="S",
        help=f"seconds between two batches ({INTERVAL_S})",
    )
    made.add_argument(
        "--partition-by", choices=("day",), help="one directory per day (column archived_day)"
    )
    made.add_argument(
        "--table",
        choices=TABLES,
        default=PARQUET,
        help="another table format; specify its package with --conf spark.jars.packages=…",
    )
    add_options(made, "source")
    add_session(made)
    return made


def main(arguments: Sequence[str] | None = None) -> int:
    """Run `vouchmq archive`; returns its exit code."""
    given = parser().parse_args(arguments)
    plan = ArchivePlan(
        url=given.url,
        queue=given.queue,
        to=given.to.absolute(),
        checkpoint=given.checkpoint.absolute(),
        mode=given.mode,
        interval_s=None if given.once else float(given.interval),
        by_day=given.partition_by == "day",
        table=given.table,
        cores=given.cores,
        options=dict(given.option),
    )

    def archive() -> int:
        asked = plan.check()
        look_at_queues(asked)
        claim(plan)
        return _archive(plan, asked, given.memory, dict(given.conf))

    from vouchmq.spark.java import JavaError

    return run("archive", archive, (OptionError, JavaError))


def _archive(plan: ArchivePlan, asked: SourceOptions, memory: str, conf: Mapping[str, str]) -> int:
    import vouchmq.spark
    from vouchmq.spark.session import session

    line = Line()
    line.begin("starting Spark")
    with (
        closing(Waiting(asked)) as waiting,
        session("vouchmq archive", cores=plan.cores, memory=memory, more=conf) as spark,
        # After Spark's own, which would end every job at once.
        listening() as stop,
    ):
        vouchmq.spark.register(spark)

        def archive() -> Archived:
            try:
                query = start(spark, plan)
            except Exception as error:
                line.clear()
                if plan.table != PARQUET and "DATA_SOURCE_NOT_FOUND" in str(error):
                    raise UsageError(
                        f"--table: Spark does not find {plan.table}: specify its package with "
                        "--conf spark.jars.packages=…"
                    ) from None
                raise
            try:
                hush = partial(spark.sparkContext.setLogLevel, "OFF")
                return follow(query, waiting, line, stop, hush)
            finally:
                line.clear()

        done = with_source(archive, lambda: not stop)
    _say(plan, done, stop)
    return EXIT_FAILED if stop and plan.interval_s is None else 0


def _say(plan: ArchivePlan, done: Archived, stop: Stop) -> None:
    what = f"{plan.mode} '{plan.queue}'" if plan.mode == STREAM else f"queue '{plan.queue}'"
    if stop and not done.messages:
        text = f"no batch of {what} was finished"
    elif not done.messages:
        text = f"nothing new in {what}; {plan.to} is as it was"
    else:
        text = (
            f"archived {counted(done.messages, 'message')} of {what} in "
            f"{counted(done.batches, 'batch')}, {done.seconds:.0f} s, to {plan.to}"
        )
    if stop:
        text += "; stopped, run it again to go on"
    sys.stdout.write(text + "\n")
