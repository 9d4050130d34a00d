"""`vouchmq list queues`, `connections` and so on, and `vouchmq show queue`…"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Final

import click

from vouchmq.server.cli.options import broker_options, json_option, vhost_option
from vouchmq.server.cli.program import Group
from vouchmq.server.cli.values import Names

if TYPE_CHECKING:
    from collections.abc import Callable

    from vouchmq.server.cli.client import Broker

LISTINGS: Final = {
    "overview": "The whole broker: what there is, and totals since its start.",
    "vhosts": "Virtual hosts.",
    "queues": "Queues, their messages and consumers.",
    "exchanges": "Exchanges.",
    "bindings": "Bindings, without those of the default exchange.",
    "connections": "Connections.",
    "channels": "Channels, with unacknowledged deliveries and unconfirmed publishes.",
    "consumers": "Consumers.",
    "users": "Users, with tags and limits.",
    "permissions": "What users may do in virtual hosts.",
    "topic-permissions": "Which keys users may use with topic exchanges.",
    "policies": "Policies.",
    "operator-policies": "Operator policies.",
    "parameters": "Parameters of virtual hosts.",
    "global-parameters": "Parameters of the whole broker.",
    "alarms": "Alarms, with the values and limits that they compare.",
    "store": "The journal: LSNs, segments, syncs.",
}
# The others are of the whole broker.
OF_VHOSTS: Final = frozenset(LISTINGS) - {"overview", "global-parameters", "alarms", "store"}
# What `show` shows, and whether its name is one of a virtual host.
OBJECTS: Final = {"queue": True, "exchange": True, "vhost": False, "connection": False}


@click.group(cls=Group)
def listing() -> None:
    """List what a running broker has."""


def _add(name: str, text: str) -> None:
    @listing.command(
        name,
        short_help=text,
        help=f"{text}\n\nThe broker that uses a data directory is asked. A terminal gets a table "
        "of as many columns as fit, a pipe or a file all of them, separated by tabs; with --json "
        "each row is an object on a line of its own. Exit 0 on success, 1 if the broker refuses, "
        "2 if no broker uses the directory.",
    )
    @_vhost_filter(name)
    @click.option(
        "--columns",
        metavar="NAME,…",
        type=Names(),
        default=(),
        help="Only these, in this order; the first line of the output names all there are.",
    )
    @click.option("--sort", metavar="COLUMN", default="", help="Sort by this column.")
    @click.option("--reverse", is_flag=True, help="Sort the other way round, the largest first.")
    @json_option
    @broker_options
    def run(
        broker: Broker,
        columns: tuple[str, ...],
        sort: str,
        reverse: bool,
        as_json: bool,
        vhost: str | None = None,
    ) -> int:
        if reverse and not sort:
            raise click.UsageError("--reverse needs --sort")
        module = import_module("vouchmq.server.cli.running.listing")
        selected = {} if vhost is None else {"vhost": vhost}
        shown = module.Shown(columns, sort, reverse, as_json)
        code: int = module.show(broker, name, shown, selected)
        return code


def _vhost_filter(name: str) -> Callable[[Callable[..., int]], Callable[..., int]]:
    if name not in OF_VHOSTS:
        return lambda command: command
    return click.option("--vhost", metavar="NAME", help="Only those in this virtual host.")


for _name, _text in LISTINGS.items():
    _add(_name, _text)


@click.group(cls=Group)
def show() -> None:
    """Show one object with what belongs to it."""


def _add_object(kind: str, is_of_vhost: bool) -> None:
    @show.command(
        kind,
        help=f"Show one {kind} with everything that is known of it. Exit 1 if there is none of "
        "this name, 2 if no broker uses the data directory.",
        short_help=f"Show one {kind}.",
    )
    @click.argument("name", metavar="NAME")
    @_vhost_of_object(is_of_vhost)
    @json_option
    @broker_options
    def run(broker: Broker, name: str, as_json: bool, vhost: str | None = None) -> int:
        module = import_module("vouchmq.server.cli.running.objects")
        code: int = module.show(broker, kind, name, vhost, as_json=as_json)
        return code


def _vhost_of_object(is_of_vhost: bool) -> Callable[[Callable[..., int]], Callable[..., int]]:
    return vhost_option if is_of_vhost else lambda command: command


for _kind, _is_of_vhost in OBJECTS.items():
    _add_object(_kind, _is_of_vhost)
