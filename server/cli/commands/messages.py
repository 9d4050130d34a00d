"""`vouchmq publish` and `get`."""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

import click

from vouchmq.server.cli.options import broker_options, json_option, vhost_option
from vouchmq.server.cli.program import CommandFailed
from vouchmq.server.cli.values import Assignment

if TYPE_CHECKING:
    from vouchmq.server.cli.client import Broker

PERSISTENT = 2
EXIT_MISTAKE = 2


@click.command()
@click.argument("body", metavar="[BODY]", required=False)
@click.option("--exchange", metavar="NAME", default="", help="Default: the default exchange")
@click.option("--routing-key", metavar="KEY", default="", help="Default: empty")
@click.option("--file", metavar="FILE", help="The body is what this file holds; - reads the input.")
@click.option(
    "--property",
    "properties",
    metavar="NAME=VALUE",
    type=Assignment(),
    multiple=True,
    help='A property such as content_type=text/plain or headers={"a": 1}.',
)
@click.option("--transient", is_flag=True, help="Not to be stored: delivery mode 1 instead of 2.")
@vhost_option
@json_option
@broker_options
def publish(
    broker: Broker,
    body: str | None,
    exchange: str,
    routing_key: str,
    file: str | None,
    properties: tuple[tuple[str, object], ...],
    transient: bool,
    vhost: str,
    as_json: bool,
) -> int:
    """Publish a message and wait until the broker has confirmed it.

    Exit 0 if a queue got it, 1 if none did or the broker refuses, 2 if no broker uses the
    directory.
    """
    if (body is None) == (file is None):
        raise click.UsageError("expected either BODY or --file")
    given = {"delivery_mode": 1 if transient else PERSISTENT, **dict(properties)}
    arguments = {
        "vhost": vhost,
        "exchange": exchange,
        "routing_key": routing_key,
        "properties": given,
        "body": read(file, "--file")
        if file is not None
        else str(body).encode("utf-8", "surrogateescape"),
    }
    module = import_module("vouchmq.server.cli.running.changes")
    code: int = module.publish(broker, arguments, as_json=as_json)
    return code


def read(file: str, option: str) -> bytes:
    """What a file holds; - is the input.

    Raises:
        CommandFailed: it cannot be read
    """
    try:
        return sys.stdin.buffer.read() if file == "-" else Path(file).read_bytes()
    except OSError as error:
        raise CommandFailed(f"{option} {file}: {error.strerror}", EXIT_MISTAKE) from None


@click.command()
@click.argument("name", metavar="QUEUE")
@click.option(
    "--count",
    metavar="N",
    type=click.IntRange(1, 10_000),
    default=1,
    help="At most so many messages. Default: 1",
)
@click.option("--ack", is_flag=True, help="Acknowledge them: they leave the queue.")
@click.option("--reject", is_flag=True, help="Reject them: they are dead-lettered or dropped.")
@click.option(
    "--body-bytes",
    metavar="N",
    type=click.IntRange(0),
    help="Show so much of each body. Default: all of it",
)
@vhost_option
@json_option
@broker_options
def get(
    broker: Broker,
    name: str,
    count: int,
    ack: bool,
    reject: bool,
    body_bytes: int | None,
    vhost: str,
    as_json: bool,
) -> int:
    """Show messages from the head of a queue. They return to it, marked as redelivered, unless
    --ack or --reject is given.

    With --json each is an object on a line of its own, its body in base64 if it is no text. Exit 0
    on success, also of an empty queue, 1 if the broker refuses, 2 if no broker uses the directory.
    """
    if ack and reject:
        raise click.UsageError("expected --ack or --reject, not both")
    mode = "ack_requeue_false" if ack else "reject_requeue_false" if reject else "ack_requeue_true"
    arguments = {
        "vhost": vhost,
        "name": name,
        "count": count,
        "ackmode": mode,
        "body_bytes": body_bytes,
    }
    code: int = import_module("vouchmq.server.cli.running.changes").get(
        broker, arguments, as_json=as_json
    )
    return code
