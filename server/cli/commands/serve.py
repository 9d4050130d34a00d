"""`vouchmq serve` and `ping`."""

from __future__ import annotations

import json
from importlib import import_module
from pathlib import Path
from typing import Final

import click

from vouchmq.server.cli.options import (
    given_on_command_line,
    json_option,
    only_here,
    settings_options,
)
from vouchmq.server.cli.program import complain, import_structlog
from vouchmq.server.settings import settings as s

EXIT_NO_ANSWER: Final = 1


@click.command(
    epilog="You can also set each of these in the configuration file or in the environment: "
    f"{s.flag_name('data_dir')} is {s.environment_name('data_dir')}."
)
@settings_options(*(field.name for field in s.scalar_fields()))
def serve(settings: s.Settings) -> int:
    """Run the broker until SIGTERM or SIGINT."""
    # Not before the settings are known: a mistake in them is told without waiting for this.
    import_structlog()
    code: int = import_module("vouchmq.server.edge.app").run(settings)
    return code


@click.command()
@json_option
@settings_options("host", "port", "data_dir")
@only_here
def ping(settings: s.Settings, as_json: bool) -> int:
    """Ask the broker that uses a data directory, wherever it listens; the one at the host and port
    of the settings if no broker uses it, or if you give --host or --port.

    Exit 0 if the broker answers or is a standby, 1 with the reason if it does not answer.
    """
    check = import_module("vouchmq.server.cli.running.ping")
    host, port = settings.host[0], settings.port
    if not given_on_command_line("host", "port"):
        if check.is_standby(Path(settings.data_dir)):
            said = json.dumps({"ok": True, "reason": "", "role": check.STANDBY})
            click.echo(said if as_json else check.STANDBY)
            return 0
        host, port = check.listeners(Path(settings.data_dir)) or (host, port)
    problem: str = check.ping(host, port)
    if as_json:
        click.echo(json.dumps({"host": host, "port": port, "ok": not problem, "reason": problem}))
    elif problem:
        complain(problem)
    return EXIT_NO_ANSWER if problem else 0
