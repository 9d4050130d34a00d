"""`vouchmq store check`, `dump`, `backup` and `restore`."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

import click

from vouchmq.server.cli.options import (
    json_option,
    only_here,
    settings_options,
    settings_options_as_needed,
)
from vouchmq.server.cli.program import Group
from vouchmq.server.cli.values import Directory
from vouchmq.server.settings.sizes import parse_amount

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from vouchmq.server.settings.settings import Settings


@click.group(cls=Group)
def store() -> None:
    """Inspect, back up and restore a data directory."""


@store.command(short_help="Summarize a data directory and verify its checksums.")
@click.argument("directory", metavar="[DIR]", type=Directory(), required=False)
@json_option
@settings_options_as_needed("data_dir")
@only_here
def check(directory: Path | None, as_json: bool, load_settings: Callable[[], Settings]) -> int:
    """Read a data directory without changing it; the broker may be running.

    It is DIR, or else that of the settings.

    Exit 0 if it is intact, 1 if it is damaged, 2 if it cannot be read.
    """
    code: int = import_module("vouchmq.server.cli.data_dir.store").check(
        directory or load_settings().data_dir, as_json=as_json
    )
    return code


@store.command(short_help="Print the messages in a data directory.")
@click.argument("directory", metavar="[DIR]", type=Directory(), required=False)
@click.option("--queue", metavar="NAME", help="Only messages in queues with this name.")
@click.option("--vhost", metavar="NAME", help="Only queues in this virtual host.")
@json_option
@settings_options_as_needed("data_dir")
@only_here
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
    code: int = import_module("vouchmq.server.cli.data_dir.store").dump(
        directory or load_settings().data_dir, queue=queue, vhost=vhost, as_json=as_json
    )
    return code


class Rate(click.ParamType[int]):
    """Bytes in a second."""

    name = "size"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """See click."""
        if isinstance(value, int):
            return value
        try:
            amount = parse_amount(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)
        if amount.share is not None or not amount.octets:
            self.fail(f"expected a size such as 50MiB, not {value!r}", param, ctx)
        return amount.octets


@store.command(short_help="Copy the data directory of a running broker.")
@click.argument("target", metavar="TARGET", type=Directory())
@click.option("--rate", metavar="SIZE", type=Rate(), default=0, help="Copy no more in a second.")
@click.option("--no-check", is_flag=True, help="Do not read and verify the backup afterwards.")
@json_option
@settings_options("data_dir")
@only_here
def backup(target: Path, rate: int, no_check: bool, as_json: bool, settings: Settings) -> int:
    """Copy the data directory of a running broker to a new directory below TARGET.

    It shares unchanged files with the newest backup there.

    Exit 0 on success, 1 if it fails or the copy is damaged, 2 if no broker uses the directory.
    """
    code: int = import_module("vouchmq.server.cli.data_dir.backup").run_backup(
        settings.data_dir, target, bytes_s=rate, is_checked=not no_check, as_json=as_json
    )
    return code


@store.command(short_help="Make a data directory of a backup.")
@click.argument("backup", metavar="BACKUP", type=Directory())
@click.argument("directory", metavar="DIR", type=Directory())
@json_option
@only_here
def restore(backup: Path, directory: Path, as_json: bool) -> int:
    """Copy a backup to DIR, which must be empty or missing, and verify it.

    Exit 0 on success, 1 if it fails or the backup is damaged.
    """
    module = import_module("vouchmq.server.cli.data_dir.backup")
    code: int = module.run_restore(backup, directory, as_json=as_json)
    return code
