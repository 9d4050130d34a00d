"""`vouchmq status`."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

import click

from vouchmq.server.cli.options import broker_options, json_option

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
    code: int = import_module("vouchmq.server.cli.status").run(broker, as_json=as_json)
    return code
