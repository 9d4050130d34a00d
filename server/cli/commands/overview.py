"""`vouchmq status`, `top`, `watch` and `drain`."""

from __future__ import annotations

import sys
import time
from importlib import import_module
from typing import TYPE_CHECKING

import click

from vouchmq.server.cli.options import broker_options, json_option, local_broker_options

if TYPE_CHECKING:
    from vouchmq.server.cli.client import Broker


@click.command()
@json_option
@broker_options
def status(broker: Broker, as_json: bool) -> int:
    """Show one page about a running broker: version, listeners, alarms, memory, disk, journal,
    totals, and the settings that are not their defaults.

    Exit 0 on success, 2 if no broker uses the data directory.
    """
    code: int = import_module("vouchmq.server.cli.running.status").run(broker, as_json=as_json)
    return code


@click.command()
@click.option(
    "--show",
    type=click.Choice(["queues", "connections"]),
    default="queues",
    help="What the rows are. Default: queues",
)
@click.option("--sort", metavar="COLUMN", default="", help="Sort by this column, as it is headed.")
@click.option(
    "--interval",
    "interval_s",
    metavar="SECONDS",
    type=click.FloatRange(0.1, 3600),
    default=2.0,
    help="Time between two looks. Default: 2",
)
@click.option("--once", is_flag=True, help="Print the rates of one interval, and end.")
@json_option
@broker_options
def top(broker: Broker, show: str, sort: str, interval_s: float, once: bool, as_json: bool) -> int:
    """Show rates of queues or connections on a terminal as they change, the busiest first.

    In a pipe or a script use --once. Exit 0 on success, 2 if no broker uses the data directory.
    """
    module = import_module("vouchmq.server.cli.running.top")
    view = module.VIEWS[show]
    if sort and sort not in view.heads:
        raise click.BadOptionUsage("sort", f"no column {sort!r}; there are {', '.join(view.heads)}")
    table = module.Top(broker, time.monotonic, view, sort)
    code: int
    if once:
        code = module.print_once(table, time.sleep, interval_s, sys.stdout, as_json=as_json)
        return code
    if as_json or not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise click.UsageError(
            "--json needs --once" if as_json else "top needs a terminal; elsewhere use --once"
        )
    code = import_module("vouchmq.server.cli.running.top_screen").run(table, interval_s)
    return code


@click.command()
@click.argument("events", metavar="[EVENT…]", nargs=-1)
@click.option("--vhost", metavar="NAME", help="Only what concerns this virtual host.")
@json_option
@broker_options
def watch(broker: Broker, events: tuple[str, ...], vhost: str | None, as_json: bool) -> int:
    """Show what comes and goes in a broker, a line for each event, until you press Ctrl-C.

    EVENT is how its name begins: queue, connection.closed, alarm. With --json each event is an
    object on a line of its own. Exit 2 if no broker uses the data directory, or it ends.
    """
    module = import_module("vouchmq.server.cli.running.watch")
    code: int = module.run(broker, events, vhost, as_json=as_json)
    return code


@click.command()
@click.option(
    "--timeout",
    "timeout_s",
    metavar="SECONDS",
    type=click.FloatRange(0),
    help="Longest wait; the broker goes on draining. Default: for ever",
)
@json_option
@local_broker_options
def drain(broker: Broker, timeout_s: float | None, as_json: bool) -> int:
    """Have a broker accept nobody else and stop when the last connection has closed; wait for that.

    Clients are not disconnected. SIGTERM stops the broker at once. Exit 0 when it has stopped, 1 if
    connections are left after --timeout, 2 if no broker uses the data directory.
    """
    module = import_module("vouchmq.server.cli.running.drain")
    code: int = module.run(broker, timeout_s, time.monotonic, time.sleep, as_json=as_json)
    return code
