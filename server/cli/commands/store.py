"""`vouchmq store check` and `dump`."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

import click

from vouchmq.server.cli.options import Directory, json_option, settings_options_as_needed
from vouchmq.server.cli.program import Group

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from vouchmq.server.settings.settings import Settings


@click.group(cls=Group)
def store() -> None:
    """Inspect a data directory."""


@store.command(short_help="Summarize a data directory and verify its checksums.")
@click.argument("directory", metavar="[DIR]", type=Directory(), required=False)
@json_option
@settings_options_as_needed("data_dir")
def check(directory: Path | None, as_json: bool, load_settings: Callable[[], Settings]) -> int:
    """Read a data directory without changing it; the broker may be running.

    It is DIR, or else that of the settings.

    Exit 0 if it is intact, 1 if it is damaged, 2 if it cannot be read.
    """
    code: int = import_module("vouchmq.server.cli.store").check(
        directory or load_settings().data_dir, as_json=as_json
    )
    return code


@store.command(short_help="Print the messages in a data directory.")
@click.argument("directory", metavar="[DIR]", type=Directory(), required=False)
@click.option("--queue", metavar="NAME", help="Only messages in queues with this name.")
@click.option("--vhost", metavar="NAME", help="Only queues in this virtual host.")
@json_option
@settings_options_as_needed("data_dir")
def dump(
    directory: Path | None,
    queue: str | None,
    vhost: str | None,
    as_json: bool,
    load_settings: Callable[[], Settings],
) -> int:
    """Print each live message of a data directory in publishing order, without changing anything.

    It is DIR, or else that of the settings.

    With --json each is an object on a line of its own. The exit codes are those of check.
    """
    code: int = import_module("vouchmq.server.cli.store").dump(
        directory or load_settings().data_dir, queue=queue, vhost=vhost, as_json=as_json
    )
    return code
