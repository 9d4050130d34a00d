"""`vouchmq definitions export`."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

import click

from vouchmq.server.cli.options import settings_options
from vouchmq.server.cli.program import Group

if TYPE_CHECKING:
    from vouchmq.server.settings.settings import Settings


@click.group(cls=Group)
def definitions() -> None:
    """Export definitions."""


@definitions.command(short_help="Print the definitions in a data directory.")
@settings_options("data_dir")
def export(settings: Settings) -> int:
    """Print virtual hosts, policies, durable exchanges, queues and bindings of a data directory in
    the format that --load-definitions reads.

    Nothing is changed; the broker may be running. The exit codes are those of store check.
    """
    code: int = import_module("vouchmq.server.cli.data_dir.definitions").export(settings.data_dir)
    return code
