"""`vouchmq replay`: its command line, what it says while it runs and at its end.

Exit codes: 0 all is replayed; 1 it failed, or was stopped before its end; 2 something that was
given cannot be used.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

from vouchmq.kit.bulk import BulkConnection
from vouchmq.kit.bulk.url import targets
from vouchmq.spark.command_line import (
    EXIT_FAILED,
    Line,
    Parser,
    Stop,
    UsageError,
    add_options,
    add_session,
    asking,
    counted,
    listening,
    place,
    run,
    shown,
    whole,
)
from vouchmq.spark.options import OptionError, SinkOptions
from vouchmq.spark.replay.edit import Edit

if TYPE_CHECKING:
    from vouchmq.spark.replay.replay import Replayed, ReplayPlan

_SHORTSTR: Final = 255


def parser() -> Parser:
    """The options of `vouchmq replay`."""
    made = Parser(
        prog="vouchmq replay",
        description="Publish the messages of an archive again, each to its original exchange with "
        "its original routing key unless you specify others.",
        allow_abbrev=False,
    )
    made.add_argument(
        "--from",
        dest="source",
        required=True,
        type=place,
        metavar="DIR",
        help="directory of the archive",
    )
    made.add_argument("--url", required=True, help="URL of the broker: amqp:// or amqps://")
    made.add_argument("--exchange", type=_short, metavar="X", help="instead of the original one")
    made.add_argument("--routing-key", type=_short, metavar="K", help="instead of the original one")
    made.add_argument(
        "--where", metavar="SQL", help="only rows for which this SQL expression is true"
    )
    made.add_argument(
        "--rate", type=whole(1), metavar="N", help="maximum messages per second (no limit)"
    )
    made.add_argument(
        "--order",
        action="store_true",
        help="keep the order of messages within each original queue",
    )
    made.add_argument(
        "--drop-x-death",
        action="store_true",
        help="remove the dead-letter history from the headers",
    )
    made.add_argument(
        "--keep-expiration",
        action="store_true",
        help="keep the original expiration, which starts over",
    )
    made.add_argument(
        "--checkpoint",
        type=place,
        metavar="DIR",
        help="directory that stores the progress, to resume after a stop",
    )
    add_options(made, "sink")
    add_session(made)
    return made


def main(arguments: Sequence[str] | None = None) -> int:
    """Run `vouchmq replay`; returns its exit code."""
    given = parser().parse_args(arguments)

    def command() -> int:
        from vouchmq.spark.replay.replay import ReplayPlan

        source = given.source.absolute()
        if not source.is_dir():
            raise UsageError(f"--from: {source} is not a directory")
        if next(source.rglob("*.parquet"), None) is None:
            raise UsageError(f"--from: {source} holds no Parquet files")
        plan = ReplayPlan(
            source=source,
            url=given.url,
            edit=Edit(
                archive=source.name,
                user=_user(given.url),
                drops_death=given.drop_x_death,
                keeps_expiration=given.keep_expiration,
            ),
            exchange=given.exchange,
            routing_key=given.routing_key,
            where=given.where,
            rate=given.rate,
            in_order=given.order,
            checkpoint=None if given.checkpoint is None else given.checkpoint.absolute(),
            cores=given.cores,
            options=dict(given.option),
        )
        _look_at_broker(SinkOptions.parse(plan.sink), plan.exchange)
        return _replay(plan, given.memory, dict(given.conf))

    from vouchmq.spark.java import JavaError

    return run("replay", command, (OptionError, JavaError))


def _short(text: str) -> str:
    if len(text.encode("utf-8", "surrogateescape")) > _SHORTSTR:
        raise argparse.ArgumentTypeError(f"longer than {_SHORTSTR} octets")
    return text


def _user(url: str) -> str:
    """Who we are to the broker: the only one whose name may stand in a message (PUB-06)."""
    with asking():
        users = {target.user for target in targets(url)}
    return users.pop() if len(users) == 1 else ""


def _look_at_broker(asked: SinkOptions, exchange: str | None) -> None:
    """Whether the broker lets us in and has the exchange: said before Spark starts."""
    limit_s = asked.connect_timeout_ms / 1000
    with (
        asking(),
        BulkConnection.open(asked.url, connect_timeout_s=limit_s) as connection,
    ):
        if exchange:
            connection.channel().exchange_declare(exchange, passive=True)


def _replay(plan: ReplayPlan, memory: str, conf: Mapping[str, str]) -> int:
    import vouchmq.spark
    from vouchmq.spark.replay.replay import replay
    from vouchmq.spark.session import session

    line = Line()
    line.begin("starting Spark")
    more = {**plan.session, **conf}
    with (
        session("vouchmq replay", cores=plan.cores, memory=memory, more=more) as spark,
        # After Spark's own, which would end every job at once.
        listening() as stop,
    ):
        vouchmq.spark.register(spark)
        try:
            done = replay(spark, plan, line, stop)
        finally:
            line.clear()
    _say(plan, done, stop)
    return EXIT_FAILED if done.before + done.messages < done.total else 0


def _say(plan: ReplayPlan, done: Replayed, stop: Stop) -> None:
    if not done.total:
        which = " that fits --where" if plan.where is not None else ""
        text = f"there is no message{which} in {plan.source}"
    elif done.before == done.total:
        text = f"all of {counted(done.total, 'message')} were replayed before"
    else:
        where = _named(plan.exchange)
        text = (
            f"replayed {counted(done.messages, 'message')} of {plan.source.name} to {where}, "
            f"{done.seconds:.0f} s"
        )
        if done.before:
            text += f"; {shown(done.before)} were replayed before"
    left = done.total - done.before - done.messages
    if stop and left:
        text += f"; stopped with {shown(left)} left"
        if plan.checkpoint is not None:
            text += ", run it again to go on"
    sys.stdout.write(text + "\n")


def _named(exchange: str | None) -> str:
    if exchange is None:
        return "their own exchanges"
    return f"exchange '{exchange}'" if exchange else "the default exchange"
