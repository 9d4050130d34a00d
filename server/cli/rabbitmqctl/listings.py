"""`list_queues` and the like: RabbitMQ's columns, made from the rows of our listings.

A column that RabbitMQ has and this broker does not know is refused, with those there are. What
RabbitMQ calls a pid is the name of the connection here, or that of the channel: `close_connection`
takes it. Must not know how the broker is asked.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from vouchmq.server.cli.rabbitmqctl.changes import require_user, require_vhost
from vouchmq.server.cli.rabbitmqctl.words import Mistake

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from vouchmq.server.cli.client import Broker
    from vouchmq.server.cli.rabbitmqctl.output import Output
    from vouchmq.server.cli.rabbitmqctl.words import Words

Row = dict[str, Any]
PEERS: Final = re.compile(r"(.+):(\d+) -> (.+):(\d+)")
WAIT: Final = "Timeout: {timeout} seconds ..."
TIMEOUT_S: Final = 60.0


class Listing(NamedTuple):
    """One `list_…` command.

    Args:
        source: the listing of the control socket
        banner: with `{vhost}`
        default: columns that are shown if none is asked for
        columns: where RabbitMQ's columns come from: a column of ours, or a function of the row
        is_of_vhost: it takes `-p`
        is_timed: RabbitMQ says first how long it would wait
    """

    source: str
    banner: str
    default: tuple[str, ...]
    columns: Mapping[str, str | Callable[[Row], object]]
    is_of_vhost: bool = True
    is_timed: bool = False


def _peer(at: int) -> Callable[[Row], object]:
    """A part of the name of a connection: peer host, peer port, host, port."""

    def find(row: Row) -> object:
        found = PEERS.fullmatch(row["name"])
        part = found[at] if found is not None else ""
        return int(part) if part.isdigit() else part.strip("[]")

    return find


def _channel(row: Row) -> str:
    return f"{row['connection']} ({row['channel' if 'channel' in row else 'number']})"


def _same(*names: str) -> dict[str, str]:
    return {name: name for name in names}


LISTINGS: Final[Mapping[str, Listing]] = {
    "list_queues": Listing(
        "queues",
        "Listing queues for vhost {vhost} ...",
        ("name", "messages"),
        {
            **_same("name", "durable", "auto_delete", "exclusive", "arguments", "policy", "type"),
            **_same("messages", "messages_ready", "messages_unacknowledged", "consumers"),
            "operator_policy": "operator_policy",
            "state": lambda _: "running",
        },
        is_timed=True,
    ),
    "list_exchanges": Listing(
        "exchanges",
        "Listing exchanges for vhost {vhost} ...",
        ("name", "type"),
        _same("name", "type", "durable", "auto_delete", "internal", "arguments", "policy"),
    ),
    "list_bindings": Listing(
        "bindings",
        "Listing bindings for vhost {vhost}...",
        (
            *("source_name", "source_kind", "destination_name", "destination_kind"),
            *("routing_key", "arguments"),
        ),
        {
            **_same("routing_key", "arguments", "vhost"),
            "source_name": "source",
            "source_kind": lambda _: "exchange",
            "destination_name": "destination",
            "destination_kind": "destination_type",
        },
    ),
    "list_connections": Listing(
        "connection-details",
        "Listing connections ...",
        ("user", "peer_host", "peer_port", "state"),
        {
            **_same("name", "user", "vhost", "state", "channels", "frame_max", "channel_max"),
            "client_properties": "client_properties",
            "auth_mechanism": "mechanism",
            "timeout": "heartbeat_s",
            "connected_at": "opened_at_ms",
            "pid": "name",
            "recv_oct": "received_bytes",
            "send_oct": "sent_bytes",
            "peer_host": _peer(1),
            "peer_port": _peer(2),
            "host": _peer(3),
            "port": _peer(4),
            "user_provided_name": "client_name",
        },
        is_of_vhost=False,
    ),
    "list_channels": Listing(
        "channels",
        "Listing channels ...",
        ("pid", "user", "consumer_count", "messages_unacknowledged"),
        {
            **_same("connection", "number", "user", "vhost", "confirm", "transactional"),
            "pid": _channel,
            "name": _channel,
            "consumer_count": "consumers",
            "messages_unacknowledged": "unacknowledged",
            "messages_unconfirmed": "unconfirmed",
            "global_prefetch_count": "prefetch",
        },
        is_of_vhost=False,
    ),
    "list_consumers": Listing(
        "consumers",
        "Listing consumers in vhost {vhost} ...",
        ("queue_name", "channel_pid", "consumer_tag", "ack_required", "prefetch_count", "active"),
        {
            **_same("ack_required", "active", "priority"),
            "queue_name": "queue",
            "channel_pid": _channel,
            "consumer_tag": "tag",
            "prefetch_count": "prefetch",
        },
    ),
    "list_users": Listing(
        "users",
        "Listing users ...",
        ("user", "tags"),
        {"user": "name", "tags": "tags"},
        is_of_vhost=False,
    ),
    "list_vhosts": Listing(
        "vhosts",
        "Listing vhosts ...",
        ("name",),
        _same("name", "description", "tags", "default_queue_type"),
        is_of_vhost=False,
    ),
    "list_permissions": Listing(
        "permissions",
        'Listing permissions for vhost "{vhost}" ...',
        ("user", "configure", "write", "read"),
        _same("user", "configure", "write", "read"),
    ),
    "list_topic_permissions": Listing(
        "topic-permissions",
        'Listing topic permissions for vhost "{vhost}" ...',
        ("user", "exchange", "write", "read"),
        _same("user", "exchange", "write", "read"),
    ),
    **{
        f"list_{prefix}policies": Listing(
            listing,
            f'Listing {shown} for vhost "{{vhost}}" ...',
            ("vhost", "name", "pattern", "apply-to", "definition", "priority"),
            {
                **_same("vhost", "name", "pattern", "priority"),
                "apply-to": "apply_to",
                "definition": lambda row: _compact(row["definition"]),
            },
        )
        for prefix, listing, shown in (
            ("", "policies", "policies"),
            ("operator_", "operator-policies", "operator policy overrides"),
        )
    },
}


def _compact(value: object) -> str:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)


def show(broker: Broker, words: Words, output: Output) -> None:
    """Print one listing.

    Raises:
        Mistake: a column is unknown
    """
    listing = LISTINGS[words.command]
    words.allow(*(["vhost"] if listing.is_of_vhost else []))
    columns = words.arguments or listing.default
    for name in columns:
        if name not in listing.columns:
            raise Mistake(f"there is no column {name}; there are {', '.join(listing.columns)}")
    if listing.is_timed:
        output.banner(WAIT.format(timeout=float(words.values.get("timeout", TIMEOUT_S))))
    output.banner(listing.banner.format(vhost=words.vhost))
    selected = {"vhost": words.vhost} if listing.is_of_vhost else {}
    if "permissions" in words.command:
        require_vhost(broker, words.vhost)
    rows = _bindings(broker, words.vhost) if listing.source == "bindings" else None
    found = broker.rows(f"list {listing.source}", **selected) if rows is None else rows
    output.rows(columns, (_made(listing, columns, row) for row in found))


def _made(listing: Listing, columns: tuple[str, ...], row: Row) -> Row:
    made: Row = {}
    for name in columns:
        source = listing.columns[name]
        made[name] = row[source] if isinstance(source, str) else source(row)
    return made


def _bindings(broker: Broker, vhost: str) -> Iterator[Row]:
    """All bindings, first those that every queue has to the default exchange."""
    for queue in broker.rows("list queues", vhost=vhost):
        yield {
            "vhost": vhost,
            "source": "",
            "destination": queue["name"],
            "destination_type": "queue",
            "routing_key": queue["name"],
            "arguments": {},
        }
    yield from broker.rows("list bindings", vhost=vhost)


def list_user_permissions(broker: Broker, words: Words, output: Output) -> None:
    """list_user_permissions <username>"""
    words.allow()
    (name,) = words.take("username")
    output.banner(f'Listing permissions for user "{name}" ...')
    require_user(broker, name)
    rows = (row for row in broker.rows("list permissions") if row["user"] == name)
    output.rows(("vhost", "configure", "write", "read"), rows)
