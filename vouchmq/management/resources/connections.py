"""Connections, channels and consumers.

Spec: HTTP-13, HTTP-14, HTTP-15, HTTP-33, HTTP-38
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Final

from msgspec import Meta, Struct

from vouchmq.management.api.call import ADMINISTRATORS, NO_CONTENT
from vouchmq.management.api.errors import not_found
from vouchmq.management.api.listed import of_visitor
from vouchmq.management.api.paging import Page, projected
from vouchmq.management.api.stats import CHANNEL, message_stats, with_details

if TYPE_CHECKING:
    from vouchmq.management.api.call import Call
    from vouchmq.management.broker import Row

CONNECTIONS: Final = "connection-details"
CHANNELS: Final = "channel-details"
CONSUMERS: Final = "consumer-details"
BYTES: Final = {"recv_oct": "received_bytes", "send_oct": "sent_bytes"}
# Of a connection without TLS.
UNENCRYPTED: Final = (
    *("peer_cert_issuer", "peer_cert_subject", "peer_cert_validity"),
    *("ssl_cipher", "ssl_hash", "ssl_key_exchange", "ssl_protocol"),
)


class PrefetchBody(Struct, frozen=True, forbid_unknown_fields=True):
    """The prefetch limit of a consumer; 0 is none."""

    prefetch_count: Annotated[int, Meta(ge=0, le=65535)]


async def connections(call: Call) -> object:
    """All connections, those of a virtual host or of a user."""
    page = Page(call.query)
    vhost = await call.vhost()
    user = call.names.get("user")
    if user is not None:
        call.require_self(user)
    rows = of_visitor(call, await call.broker.rows(CONNECTIONS, vhost=vhost))
    if user is not None:
        rows = [row for row in rows if row["user"] == user]
    facts = await call.broker.ask("status")
    rows.sort(key=lambda row: str(row["name"]))
    return page.of([_connection(row, facts) for row in rows])


async def connection(call: Call) -> object:
    """One connection, by its name."""
    row = await _row(call)
    facts = await call.broker.ask("status")
    return projected(_connection(row, facts), call.query)


async def channels(call: Call) -> object:
    """All channels, those of a virtual host or of a connection."""
    page = Page(call.query)
    vhost = await call.vhost()
    name = (await _row(call))["name"] if "connection" in call.names else None
    rows = of_visitor(call, await call.broker.rows(CHANNELS, vhost=vhost, name=name))
    node = await node_of(call)
    rows.sort(key=lambda row: (str(row["connection"]), row["number"]))
    return page.of([_channel(row, node) for row in rows])


async def channel(call: Call) -> object:
    """One channel, by its name."""
    found = await _channel_row(call)
    node = await node_of(call)
    consumed = [
        consumer_item(row, node)
        for row in await call.broker.rows(CONSUMERS, vhost=found["vhost"])
        if (row["connection"], row["channel"]) == (found["connection"], found["number"])
    ]
    details = {"consumer_details": consumed, "deliveries": [], "publishes": []}
    return projected({**_channel(found, node), **details}, call.query)


async def close_channel(call: Call) -> object:
    """Close a channel; its client is told the reason."""
    row = await _channel_row(call)
    reason = call.headers.get("x-reason", "")
    given = {"reason": reason} if reason else {}
    await call.do("close channel", name=row["connection"], number=row["number"], **given)
    return NO_CONTENT


async def put_prefetch(call: Call) -> object:
    """Change the prefetch limit of a consumer."""
    body = call.content(PrefetchBody)
    row = await _channel_row(call)
    await call.do(
        "set prefetch",
        name=row["connection"],
        number=row["number"],
        tag=call.names["consumer"],
        prefetch=body.prefetch_count,
    )
    return NO_CONTENT


async def _channel_row(call: Call) -> Row:
    """The channel of the path, if it may be seen.

    Raises:
        ApiError: 404
    """
    name = call.names["channel"]
    rows = of_visitor(call, await call.broker.rows(CHANNELS, name=name.rpartition(" (")[0]))
    for row in rows:
        if channel_name(row["connection"], row["number"]) == name:
            return row
    raise not_found()


async def consumers(call: Call) -> object:
    """All consumers, or those of a virtual host."""
    page = Page(call.query)
    vhost = await call.seen_vhost()
    rows = of_visitor(call, await call.broker.rows(CONSUMERS, vhost=vhost))
    node = await node_of(call)
    rows.sort(key=lambda row: (str(row["vhost"]), str(row["queue"]), str(row["tag"])))
    return page.of([consumer_item(row, node) for row in rows])


async def node_of(call: Call) -> str:
    """The name of the broker."""
    return str((await call.broker.ask("status"))["node"])


def channel_name(connection: str, number: int) -> str:
    """How RabbitMQ calls a channel."""
    return f"{connection} ({number})"


def ends_of(name: str) -> tuple[str, int, str, int]:
    """Host and port of the client and of the broker, from the name of a connection."""
    peer, _, here = name.partition(" -> ")
    (peer_host, _, peer_port), (host, _, port) = (each.rpartition(":") for each in (peer, here))
    return peer_host.strip("[]"), _number(peer_port), host.strip("[]"), _number(port)


def time_of(wall_ms: int) -> str:
    """A time of day as RabbitMQ tells it."""
    return datetime.fromtimestamp(wall_ms / 1000, UTC).isoformat(timespec="milliseconds")


def consumer_item(row: Row, node: str) -> Row:
    """A consumer as the HTTP API shows it."""
    peer_host, peer_port, _, _ = ends_of(row["connection"])
    status = "single_active" if row["single_active"] else "up" if row["active"] else "waiting"
    item = {
        "ack_required": row["ack_required"],
        "active": row["active"],
        "activity_status": status,
        "arguments": {"x-priority": row["priority"]} if row["priority"] else {},
        "channel_details": {
            "connection_name": row["connection"],
            "name": channel_name(row["connection"], row["channel"]),
            "node": node,
            "number": row["channel"],
            "peer_host": peer_host,
            "peer_port": peer_port,
            "user": row["user"],
        },
        "consumer_tag": row["tag"],
        "exclusive": row["exclusive"],
        "messages_unacknowledged": row["unacknowledged"],
        "prefetch_count": row["prefetch"],
        "queue": {"name": row["queue"], "vhost": row["vhost"]},
    }
    # What RabbitMQ does not tell, where there is anything to tell.
    more = {
        "oldest_unacknowledged_age": row["oldest_held_ms"],
        "stream_offset": row["offset"],
        "stream_lag": row["behind"],
    }
    return {**item, **{name: value for name, value in more.items() if value is not None}}


async def _row(call: Call) -> Row:
    """The row of the connection in the path."""
    rows = await call.broker.rows(CONNECTIONS, name=call.names["connection"])
    found = of_visitor(call, rows)
    if not found:
        raise not_found()
    return found[0]


def _connection(row: Row, facts: Row) -> Row:
    """A connection to the broker that `status` tells these facts of."""
    peer_host, peer_port, host, port = ends_of(row["name"])
    name = row["name"]
    # What a client shows of itself over TLS is not known here.
    is_encrypted = port == facts["listeners"].get("tls_port")
    plain = {} if is_encrypted else dict.fromkeys(UNENCRYPTED)
    is_blocked = row["blocked"] and row["state"] == "running"
    return {
        "auth_mechanism": row["mechanism"],
        "channel_max": row["channel_max"],
        "channels": row["channels"],
        "client_properties": row["client_properties"],
        "connected_at": row["opened_at_ms"],
        "frame_max": row["frame_max"],
        "host": host,
        "name": name,
        "node": facts["node"],
        "peer_host": peer_host,
        "peer_port": peer_port,
        "port": port,
        "protocol": "AMQP 0-9-1",
        **with_details(BYTES, row, row["rates"]),
        "send_pend": row["pending_bytes"],
        "ssl": is_encrypted,
        **plain,
        "state": "blocked" if is_blocked else row["state"],
        "timeout": row["heartbeat_s"],
        "type": "network",
        "unacknowledged_bytes": row["unacknowledged_bytes"],
        "user": row["user"],
        "user_provided_name": row["client_name"],
        "user_who_performed_action": row["user"],
        "vhost": row["vhost"],
    }


def _channel(row: Row, node: str) -> Row:
    owner = row["connection"]
    name = channel_name(owner, row["number"])
    peer_host, peer_port, _, _ = ends_of(owner)
    item = {
        "acks_uncommitted": row["uncommitted_acks"],
        "confirm": row["confirm"],
        "connection_details": {
            "name": owner,
            "node": node,
            "peer_host": peer_host,
            "peer_port": peer_port,
            "user": row["user"],
        },
        "consumer_count": row["consumers"],
        "global_prefetch_count": row["prefetch"],
        "messages_unacknowledged": row["unacknowledged"],
        "messages_uncommitted": row["uncommitted"],
        "messages_unconfirmed": row["unconfirmed"],
        "name": name,
        "node": node,
        "number": row["number"],
        "pending_raft_commands": 0,
        "prefetch_count": row["consumer_prefetch"],
        "state": "running",
        "transactional": row["transactional"],
        "user": row["user"],
        "user_who_performed_action": row["user"],
        "vhost": row["vhost"],
    }
    if row["idle_since_ms"] is not None:
        item["idle_since"] = time_of(row["idle_since_ms"])
    stats = message_stats(CHANNEL, row)
    return {**item, "message_stats": stats} if stats else item


def _number(text: str) -> int:
    return int(text) if text.isascii() and text.isdigit() else 0


async def close_connection(call: Call) -> object:
    """Close a connection; its client is told the reason."""
    row = await _row(call)
    reason = call.headers.get("x-reason", "")
    given = {"reason": reason} if reason else {}
    await call.do("close connection", name=row["name"], **given)
    return NO_CONTENT


async def close_connections_of_user(call: Call) -> object:
    """Close all connections of a user."""
    call.require_self(call.names["user"], ADMINISTRATORS)
    rows = of_visitor(call, await call.broker.rows("connections"))
    for row in rows:
        if row["user"] == call.names["user"]:
            await call.do("close connection", name=row["name"])
    return NO_CONTENT
