"""`vouchmq ha create`, `status` and `handover`."""

from __future__ import annotations

import json
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

import click

from vouchmq.server.cli.options import (
    json_option,
    local_broker_options,
    only_here,
    settings_options,
)
from vouchmq.server.cli.program import Group
from vouchmq.server.settings.sizes import parse_amount

if TYPE_CHECKING:
    from vouchmq.server.cli.client import Broker
    from vouchmq.server.settings.settings import Settings

NO_LIMIT: Final = -1
# In this order; what a role has not is left out.
FACTS: Final = {
    "node": "node",
    "role": "role",
    "is_serving": "serves clients",
    "leader": "leader",
    "stream": "stream",
    "server": "connected to",
    "epoch": "epoch",
    "sequence": "last record",
    "synced_sequence": "synced up to record",
    "lag": "records behind",
    "is_complete": "can take over",
    "uncommitted_bytes": "bytes not committed",
    "trouble": "trouble",
}


class Amount(click.ParamType[int]):
    """A number of bytes, with a unit or without."""

    name = "size"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """See click."""
        if isinstance(value, int):
            return value
        try:
            amount = parse_amount(str(value))
        except ValueError as error:
            self.fail(str(error), param, ctx)
        if amount.share is not None:
            self.fail(f"expected an amount such as 200GB, not {value}", param, ctx)
        return amount.octets


@click.group(cls=Group)
def ha() -> None:
    """Make a shared log for several brokers, and see who leads."""


@ha.command(short_help="Make the stream that is the log.")
@click.option(
    "--replicas",
    type=click.IntRange(1, 5),
    default=3,
    show_default=True,
    help="Servers that keep each record; with fewer than 3 a broker refuses the log.",
)
@click.option(
    "--max-bytes",
    type=Amount(),
    default=NO_LIMIT,
    metavar="SIZE",
    help="Largest size of the log, such as 200GB; when it is full, publishers are blocked. "
    "Default: as much as the servers may store",
)
@json_option
@settings_options(
    "ha_log", "ha_stream", "ha_credentials", "ha_tls_ca_file", "ha_monitors", "ha_unsafe_log"
)
@only_here
def create(replicas: int, max_bytes: int, as_json: bool, settings: Settings) -> int:
    """Make the stream that the settings name, on the servers that they name; once, before the first
    broker starts.

    The stream gets the settings that the brokers require. An existing stream with records is left
    as it is, and refused.
    """
    made = import_module("vouchmq.server.cli.replicated.create")
    facts = made.create(settings, replicas=replicas, max_bytes=max_bytes)
    if as_json:
        click.echo(json.dumps(facts))
    else:
        click.echo(f"stream {facts['stream']} with {replicas} replicas, log {facts['log']}")
    return 0


@ha.command(short_help="Show the role of a running broker.")
@json_option
@local_broker_options
def status(broker: Broker, as_json: bool) -> int:
    """Show the role of the broker that runs on a data directory, how far it has the log, and, if it
    leads, the standbys that it hears.

    Exit 0 if it leads or can take over, 1 if it cannot.
    """
    facts = broker.ask("ha status")
    facts.pop("ok", None)
    if as_json:
        click.echo(json.dumps(facts))
    else:
        for name, text in FACTS.items():
            if name in facts and facts[name] != "":
                click.echo(f"{text + ':':<22}{_shown(facts[name])}")
        for each in facts.get("standbys", ()):
            click.echo(f"{'standby:':<22}{_standby(each)}")
    is_well = facts.get("is_serving") or facts.get("is_complete")
    return 0 if is_well and not facts.get("trouble") else 1


@ha.command(short_help="Have a standby lead in place of this broker.")
@json_option
@local_broker_options
def handover(broker: Broker, as_json: bool) -> int:
    """Have the broker that runs on a data directory stop leading: it closes its clients, has the
    log commit what it holds, and begins again as a standby. The standby with the lowest rank takes
    over at once.

    The command is refused if the broker does not lead.
    """
    broker.ask("ha handover")
    click.echo(json.dumps({"ok": True}) if as_json else "handing over")
    return 0


def _standby(facts: dict[str, Any]) -> str:
    """One line about a standby that the leader hears."""
    can = "can" if facts["can_take_over"] else "cannot"
    return (
        f"{facts['node']}, {can} take over, {facts['lag']} records and {facts['lag_bytes']} bytes"
        f" behind, synced up to record {facts['synced_sequence']}"
    )


def _shown(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return str(value)
