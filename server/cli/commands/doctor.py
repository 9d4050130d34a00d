"""`vouchmq doctor`; it has an option for each setting, which takes the others no time."""

from __future__ import annotations

from importlib import import_module

import click

from vouchmq.server.cli.options import json_option, only_here, settings_options
from vouchmq.server.settings.settings import Settings, scalar_fields


@click.command()
@json_option
@settings_options(*(field.name for field in scalar_fields()))
@only_here
def doctor(settings: Settings, as_json: bool) -> int:
    """Check a set-up and say how to mend what is wrong: data directory, disk and its syncs,
    memory, file descriptors, clock, ports, certificates, logins, durability, the shared log.

    It takes the settings of `vouchmq serve`. A broker may be running on the data directory, or be
    about to. Nothing is changed; a file without a name is written and synced in the directory. Exit
    0 if nothing is wrong, 1 if something is, 2 if a setting is wrong.
    """
    code: int = import_module("vouchmq.server.cli.doctor.run").run(settings, as_json=as_json)
    return code
