"""`vouchmq bench`."""

from __future__ import annotations

import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

import click

from vouchmq.server.cli.options import json_option, settings_options_as_needed
from vouchmq.server.cli.program import EXIT_MISTAKE, CommandFailed

if TYPE_CHECKING:
    from collections.abc import Callable

    from vouchmq.server.settings.settings import Settings

WILDCARDS = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}  # noqa: S104


@click.command()
@click.option("--url", metavar="URL", help="amqp://user:password@host:port/vhost of any broker.")
@click.option("--publishers", type=click.IntRange(1, 64), default=1, help="Default: 1")
@click.option("--consumers", type=click.IntRange(0, 64), default=1, help="Default: 1")
@click.option(
    "--size",
    "size_bytes",
    metavar="BYTES",
    type=click.IntRange(8, 64 * 1024 * 1024),
    default=256,
    help="Of each body. Default: 256",
)
@click.option(
    "--rate",
    metavar="N",
    type=click.FloatRange(0),
    default=0,
    help="Messages in a second, of all publishers together. Default: 0, as fast as possible",
)
@click.option(
    "--window",
    metavar="N",
    type=click.IntRange(0, 100_000),
    default=1000,
    help="So many publishes of each publisher may be unconfirmed; 0: no confirms. Default: 1000",
)
@click.option("--transient", is_flag=True, help="A transient queue and messages.")
@click.option(
    "--queue-type", type=click.Choice(["classic", "quorum", "stream"]), help="Default: classic"
)
@click.option(
    "--prefetch",
    metavar="N",
    type=click.IntRange(0, 65535),
    default=500,
    help="Of each consumer; 0: no limit. Default: 500",
)
@click.option("--auto-ack", is_flag=True, help="Consumers do not acknowledge.")
@click.option(
    "--duration",
    "duration_s",
    metavar="SECONDS",
    type=click.FloatRange(0.1, 86400),
    default=10.0,
    help="Default: 10",
)
@click.option(
    "--warm-up",
    "warm_up_s",
    metavar="SECONDS",
    type=click.FloatRange(0, 3600),
    default=1.0,
    help="Before it, not measured. Default: 1",
)
@json_option
@settings_options_as_needed("data_dir")
def bench(
    url: str | None,
    transient: bool,
    queue_type: str | None,
    as_json: bool,
    load_settings: Callable[[], Settings],
    **given: Any,
) -> int:
    """Measure how much any AMQP 0-9-1 broker takes and delivers, and how long that takes.

    The broker is that on --data-dir, with user guest, unless --url is given. It is loaded through a
    queue of its own, which is deleted afterwards. Every message that is due in the measured time is
    counted. With --rate its time runs from when the rate had it due, so that a stall counts for all
    messages that had to wait for it.

    Exit 0 on success, 1 if the broker refuses, ends or does not answer, 2 if no broker uses the
    directory or the URL cannot be used.
    """
    module = import_module("vouchmq.kit.load.run")
    workers = import_module("vouchmq.kit.load.workers")
    if url is not None:
        try:
            import_module("vouchmq.kit.bulk.url").targets(url)
        except ValueError as error:
            raise CommandFailed(str(error), EXIT_MISTAKE) from None
    load = workers.Load(
        url=url or _local(load_settings()),
        queue=module.queue_name(),
        persistent=not transient,
        **given,
    )
    try:
        result = module.measure(load, {"x-queue-type": queue_type} if queue_type else {})
    except module.LoadFailed as error:
        raise CommandFailed(str(error)) from None
    module.show(result, sys.stdout, as_json=as_json)
    return 0


def _local(settings: Settings) -> str:
    """Where the broker on the data directory listens."""
    client = import_module("vouchmq.server.cli.client")
    found = client.LocalBroker(settings.data_dir).ask("listeners")
    host = str(found["host"])
    shown = f"[{host}]" if ":" in host else host
    return f"amqp://guest:guest@{WILDCARDS.get(host, shown)}:{found['port']}/"
