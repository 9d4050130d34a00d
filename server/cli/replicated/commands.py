"""`vouchmq ha create`, `resize`, `rescue`, `position`, `status` and `handover`."""

from __future__ import annotations

import json
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

import click

from vouchmq.server.cli.options import (
    broker_options,
    json_option,
    local_broker_options,
    only_here,
    settings_options,
)
from vouchmq.server.cli.program import Group
from vouchmq.server.cli.units import amount, plural
from vouchmq.server.cli.values import Directory
from vouchmq.server.settings.sizes import parse_amount

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from vouchmq.server.cli.client import Broker
    from vouchmq.server.settings.settings import Settings

NO_LIMIT: Final = -1
# How the servers of the log are reached.
LOG_SETTINGS: Final = (
    *("ha_log", "ha_stream", "ha_credentials", "ha_tls_ca_file", "ha_tls_cert_file"),
    *("ha_tls_key_file", "ha_monitors", "ha_unsafe_log"),
)
# The size of a segment says how small the log may be.
STREAM_SETTINGS: Final = ("segment_size_bytes", *LOG_SETTINGS)
# In this order; what a role has not is left out.
FACTS: Final = {
    "node": "node",
    "role": "role",
    "is_serving": "serves clients",
    "is_stalled": "publishers blocked",
    "leader": "leader",
    "leader_address": "leader's address",
    "stream": "stream",
    "server": "connected to",
    "epoch": "epoch",
    "committed_sequence": "last record",
    "sequence": "applied up to record",
    "synced_sequence": "synced up to record",
    "lag": "records behind",
    "can_take_over": "can take over",
    "uncommitted_bytes": "bytes not committed",
    "standby_waiting_bytes": "bytes on no standby",
    "trouble": "trouble",
}
POSITION_FACTS: Final = {
    "directory": "directory",
    "is_running": "in use by a broker",
    "log": "log",
    "epoch": "epoch",
    "sequence": "has records up to",
    "lsn": "last LSN",
    "block": "last block",
}


class Amount(click.ParamType[int]):
    """A number of bytes, with a unit or without."""

    name = "size"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """See click."""
        if isinstance(value, int):
            return value
        try:
            found = parse_amount(str(value))
        except ValueError:
            found = None
        if found is None or found.share is not None:
            self.fail(f"expected an amount such as 200GB or 1048576, not {value!r}", param, ctx)
        return found.octets


@click.group(cls=Group)
def ha() -> None:
    """Make a shared log for several brokers, and see who leads."""


def stream_options(command: Callable[..., int]) -> Callable[..., int]:
    """Give a command the options of a stream that it makes."""
    with_size = click.option(
        "--max-bytes",
        type=Amount(),
        default=NO_LIMIT,
        metavar="SIZE",
        help="Largest size of the log, such as 200GB, at least four segments; when it is full, "
        "publishers are blocked. Default: as much as the servers may store",
    )(command)
    return click.option(
        "--replicas",
        type=click.IntRange(1, 5),
        default=3,
        show_default=True,
        help="Servers that keep each record; with fewer than 3 a broker refuses the log.",
    )(with_size)


@ha.command(short_help="Make the stream that is the log.")
@click.option(
    "--from",
    "source",
    type=Directory(),
    metavar="DIR",
    help="The data directory of a stopped broker: the log begins with all that it has.",
)
@stream_options
@json_option
@settings_options(*STREAM_SETTINGS)
@only_here
def create(
    source: Path | None, replicas: int, max_bytes: int, as_json: bool, settings: Settings
) -> int:
    """Make the stream that the settings name, on the servers that they name; once, before the first
    broker starts.

    The stream gets the settings that the brokers require; so does an existing one without records.
    A stream with records is left as it is, and refused.

    With --from the log has everything that a broker without a log has stored in DIR, and DIR is the
    directory of its first node. The broker must be stopped, and nothing in DIR may be damaged. If
    this is interrupted, run it again: it goes on, and until it is complete no broker uses the log.
    """
    if source is not None:
        made = import_module("vouchmq.server.cli.replicated.copying").copy_directory
        facts = made(
            settings, source, "create", replicas=replicas, max_bytes=max_bytes, is_rescue=False
        )
        return _tell_copy(facts, as_json=as_json)
    make = import_module("vouchmq.server.cli.replicated.stream").create
    facts = make(settings, replicas=replicas, max_bytes=max_bytes)
    if as_json:
        click.echo(json.dumps(facts))
    else:
        click.echo(f"stream {facts['stream']} with {replicas} replicas, log {facts['log']}")
    return 0


@ha.command(short_help="Set the largest size of the log.")
@click.option(
    "--max-bytes",
    type=Amount(),
    required=True,
    metavar="SIZE",
    help="Largest size of the log, such as 400GB, at least four segments and what it has.",
)
@json_option
@settings_options(*STREAM_SETTINGS)
@only_here
def resize(max_bytes: int, as_json: bool, settings: Settings) -> int:
    """Set the largest size of the stream that the settings name, while brokers use it. If it was
    full, what waited for room is committed, and publishers go on.

    Nothing else of the stream is changed.
    """
    change = import_module("vouchmq.server.cli.replicated.stream").resize
    facts = change(settings, max_bytes=max_bytes)
    if as_json:
        click.echo(json.dumps(facts))
    else:
        has, limit = amount(facts["bytes"]), amount(facts["max_bytes"])
        click.echo(f"stream {facts['stream']}: {has} of at most {limit}")
    return 0


@ha.command(short_help="Make a new log of a node, when the log is lost.")
@stream_options
@json_option
@settings_options("data_dir", *STREAM_SETTINGS)
@only_here
def rescue(replicas: int, max_bytes: int, as_json: bool, settings: Settings) -> int:
    """Make a new log of what a node has stored, when the servers of the log have lost records that
    they had acknowledged. Stop all brokers, and take the node that is furthest: see vouchmq ha
    position.

    The data directory becomes that of the first node of the new log; those of other nodes must be
    emptied. Nothing in it may be damaged. A stream with records is left as it is, and refused: name
    another with --ha-stream, or remove it. If this is interrupted, run it again: it goes on, and
    until it is complete no broker uses the log.
    """
    made = import_module("vouchmq.server.cli.replicated.copying").copy_directory
    facts = made(
        settings,
        settings.data_dir,
        "rescue",
        replicas=replicas,
        max_bytes=max_bytes,
        is_rescue=True,
    )
    return _tell_copy(facts, as_json=as_json)


def _tell_copy(facts: dict[str, Any], *, as_json: bool) -> int:
    if as_json:
        click.echo(json.dumps(facts))
    else:
        what = amount(facts["size_bytes"]) if facts["is_new"] else "it has all"
        click.echo(
            f"stream {facts['stream']}, log {facts['log']}: {what} of {facts['directory']};"
            " the log is complete, start the brokers"
        )
    return 0


@ha.command(short_help="Show how far a stopped node is.")
@json_option
@settings_options("data_dir")
@only_here
def position(as_json: bool, settings: Settings) -> int:
    """Show what a data directory has of the log, without changing it. Of several nodes of one log
    that one is furthest which has the highest last LSN, or, where that is the same, the highest
    last block.

    Exit 0 if the directory is intact, 1 if it is damaged, 2 if it cannot be read.
    """
    facts = import_module("vouchmq.server.cli.replicated.position").position_of(settings.data_dir)
    if as_json:
        click.echo(json.dumps(facts))
    else:
        for name, text in POSITION_FACTS.items():
            if name in facts:
                click.echo(f"{text + ':':<22}{_shown(facts[name])}")
        for line in facts["damage"]:
            click.echo(line)
    return 1 if facts["damage"] else 0


@ha.command(short_help="Show the role of a running broker.")
@json_option
@broker_options
def status(broker: Broker, as_json: bool) -> int:
    """Show the role of a broker, how far it has the log, and, if it leads, the standbys that it
    hears. A standby has no HTTP API, so --url asks a leader.

    Exit 0 if it serves clients and the log commits what they publish, or if it can take over;
    1 if neither.
    """
    facts = broker.ask("ha status")
    facts.pop("ok", None)
    if as_json:
        click.echo(json.dumps(facts))
    else:
        for name, text in FACTS.items():
            if name in facts and facts[name] != "":
                click.echo(f"{text + ':':<22}{_shown(facts[name])}")
        if facts.get("log"):
            click.echo(f"{'log:':<22}{_log(facts['log'])}")
        for each in facts.get("standbys", ()):
            click.echo(f"{'standby:':<22}{_standby(each)}")
    serves = facts.get("is_serving") and not facts.get("is_stalled")
    return 0 if serves or facts.get("can_take_over") else 1


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


def _log(size: dict[str, int]) -> str:
    """One line about the stream: its size, its limit, the servers that have it."""
    limit = f" of at most {amount(size['max_bytes'])}" if size["max_bytes"] >= 0 else ", no limit"
    servers = f"{size['current_replicas']} of {size['replicas']} servers have all of it"
    return f"{amount(size['bytes'])}{limit}, {plural(size['records'], 'record')}, {servers}"


def _standby(facts: dict[str, Any]) -> str:
    """One line about a standby that the leader hears."""
    where = f" at {facts['address']}" if facts.get("address") else ""
    can = "can" if facts["can_take_over"] else "cannot"
    return (
        f"{facts['node']}{where}, {can} take over, {plural(facts['lag'], 'record')} and"
        f" {amount(facts['lag_bytes'])} behind, synced up to record {facts['synced_sequence']},"
        f" heard {facts['heard_s']:.1f} s ago"
    )


def _shown(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return str(value)
