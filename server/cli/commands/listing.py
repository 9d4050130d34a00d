"""`vouchmq list queues`, `connections` and so on."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Final

import click

from vouchmq.server.cli.options import json_option, settings_options
from vouchmq.server.cli.program import Group

if TYPE_CHECKING:
    from vouchmq.server.settings.settings import Settings

LISTINGS: Final = {
    "overview": "The whole broker: what there is, and totals since its start.",
    "vhosts": "Virtual hosts.",
    "queues": "Queues, their messages and consumers.",
    "exchanges": "Exchanges.",
    "bindings": "Bindings, without those of the default exchange.",
    "connections": "Connections.",
    "channels": "Channels, with unacknowledged deliveries and unconfirmed publishes.",
    "consumers": "Consumers.",
    "alarms": "Alarms, with the values and limits that they compare.",
    "store": "The journal: LSNs, segments, syncs.",
}


@click.group(cls=Group)
def listing() -> None:
    """List what a running broker has."""


def _add(name: str, text: str) -> None:
    @listing.command(
        name,
        short_help=text,
        help=f"{text}\n\nThe broker that uses a data directory is asked. A terminal gets a table, "
        "a pipe or a file columns separated by tabs; with --json each row is an object on a line "
        "of its own. Exit 0 on success, 1 if the broker refuses, 2 if no broker uses the "
        "directory.",
    )
    @json_option
    @settings_options("data_dir")
    def run(settings: Settings, as_json: bool) -> int:
        show = import_module("vouchmq.server.cli.listing").run
        code: int = show(settings.data_dir, name, as_json=as_json)
        return code


for _name, _text in LISTINGS.items():
    _add(_name, _text)
