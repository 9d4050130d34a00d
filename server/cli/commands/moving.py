"""`vouchmq peek`, `tail` and `move`."""

from __future__ import annotations

import time
from importlib import import_module
from typing import TYPE_CHECKING, Any

import click

from vouchmq.server.cli.options import body_bytes_option, broker_options, json_option, vhost_option

if TYPE_CHECKING:
    from vouchmq.server.cli.client import Broker

STATES = ("ready", "unacknowledged", "waiting")


@click.command()
@click.argument("name", metavar="[QUEUE]", required=False)
@click.option("--exchange", metavar="NAME", help="Instead of a queue: what an exchange delays.")
@click.option(
    "--state",
    type=click.Choice(STATES),
    default="ready",
    help="unacknowledged: what consumers hold; waiting: for a retry, or as dead letters that no "
    "queue takes. Default: ready",
)
@click.option(
    "--first",
    metavar="N",
    type=click.IntRange(0),
    default=0,
    help="The place of the first message, or its offset in a stream. Default: 0",
)
@click.option(
    "--count",
    metavar="N",
    type=click.IntRange(1, 10_000),
    default=10,
    help="At most so many messages. Default: 10",
)
@body_bytes_option
@vhost_option
@json_option
@broker_options
def peek(
    broker: Broker,
    name: str | None,
    exchange: str | None,
    state: str,
    first: int,
    count: int,
    body_bytes: int,
    vhost: str,
    as_json: bool,
) -> int:
    """Show messages of a queue or stream where they are. Nothing changes by it: none is taken,
    marked as redelivered or moved.

    With --json each is an object on a line of its own, its body in base64 if it is no text. Exit 0
    on success, also of an empty queue, 1 if the broker refuses, 2 if no broker uses the directory.
    """
    if (name is None) == (exchange is None):
        raise click.UsageError("expected either QUEUE or --exchange")
    arguments = {
        "vhost": vhost,
        "name": name,
        "exchange": exchange,
        "state": state,
        "first": first,
        "count": count,
        "body_bytes": body_bytes,
    }
    module = import_module("vouchmq.server.cli.running.moving")
    code: int = module.peek(broker, arguments, as_json=as_json)
    return code


@click.command()
@click.argument("name", metavar="QUEUE")
@click.option(
    "--last",
    metavar="N",
    type=click.IntRange(0, 1000),
    default=0,
    help="Begin with so many of those that are there. Default: 0",
)
@click.option(
    "--first", metavar="OFFSET", type=click.IntRange(0), help="Of a stream: begin at this offset."
)
@click.option("--count", metavar="N", type=click.IntRange(1), help="End after so many messages.")
@body_bytes_option
@click.option(
    "--interval",
    "interval_s",
    metavar="SECONDS",
    type=click.FloatRange(0.05, 60),
    default=0.25,
    help="Time between two looks. Default: 0.25",
)
@vhost_option
@json_option
@broker_options
def tail(broker: Broker, first: int | None, last: int, **given: Any) -> int:
    """Show the messages of a queue or stream as they come, without consuming any, until you press
    Ctrl-C.

    A stream is shown completely. A queue is looked at again and again: what consumers have finished
    with between two looks is not seen, and its number is told on the error output. With --json each
    message is an object on a line of its own.

    Exit 0 after --count messages, 1 if there is no such queue or the broker refuses, 2 if no broker
    uses the directory or it ends.
    """
    if first is not None and last:
        raise click.UsageError("expected --first or --last, not both")
    module = import_module("vouchmq.server.cli.running.tail")
    code: int = module.run(broker, module.Wanted(first=first, last=last, **given), time.sleep)
    return code


@click.command()
@click.argument("name", metavar="QUEUE")
@click.option("--to-queue", metavar="NAME", help="Where they go.")
@click.option("--to-exchange", metavar="NAME", help="Which exchange routes them.")
@click.option("--routing-key", metavar="KEY", help="For an exchange. Default: each message's own")
@click.option("--back", is_flag=True, help="Dead letters go to the queues where they died.")
@click.option("--keep", is_flag=True, help="Copy them: they stay in the queue as well.")
@click.option(
    "--count",
    metavar="N",
    type=click.IntRange(1),
    help="At most so many from the head. Default: all that are ready now",
)
@click.option(
    "--id",
    "ids",
    metavar="ID",
    type=click.IntRange(0),
    multiple=True,
    help="This one, as `vouchmq peek` shows it. May be given again.",
)
@vhost_option
@json_option
@broker_options
def move(
    broker: Broker,
    name: str,
    to_queue: str | None,
    to_exchange: str | None,
    routing_key: str | None,
    back: bool,
    keep: bool,
    count: int | None,
    ids: tuple[int, ...],
    vhost: str,
    as_json: bool,
) -> int:
    """Move ready messages of a queue to another queue, to an exchange, or back to where they died.

    Each message is in exactly one place at any time, also if the broker is killed meanwhile. Exit
    0 if all have gone, 1 if one could not, which stays with all behind it, or the broker refuses, 2
    if no broker uses the directory.
    """
    if [to_queue is not None, to_exchange is not None, back].count(True) != 1:
        raise click.UsageError("expected one of --to-queue, --to-exchange and --back")
    if back and keep:
        raise click.UsageError("--keep cannot be used with --back")
    arguments: dict[str, object] = {
        "vhost": vhost,
        "name": name,
        "count": count,
        "ids": list(ids) or None,
    }
    if not back:
        arguments |= {
            "to_queue": to_queue,
            "to_exchange": to_exchange,
            "routing_key": routing_key,
            "keep": keep,
        }
    command = "return dead letters" if back else "move"
    module = import_module("vouchmq.server.cli.running.moving")
    code: int = module.move(broker, command, arguments, as_json=as_json)
    return code
