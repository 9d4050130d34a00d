"""The whole broker: totals, the node, its name and what it can do.

Spec: HTTP-10, HTTP-11, HTTP-12
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from vouchmq.management.api.errors import not_found
from vouchmq.management.api.listed import of_visitor
from vouchmq.management.api.paging import Page, projected
from vouchmq.management.api.stats import DEPTHS, OVERVIEW, depths, message_stats, with_details
from vouchmq.management.metrics.node import open_descriptors
from vouchmq.management.metrics.shared_log import asked_log
from vouchmq.server.version import VERSION

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from vouchmq.management.api.call import Call
    from vouchmq.management.broker import Row

PRODUCT: Final = "VouchMQ"
EXCHANGE_TYPES: Final = (
    *("direct", "fanout", "headers", "topic"),
    *("x-consistent-hash", "x-delayed-message", "x-message-deduplication"),
)
TOTALS: Final = "overview-details"
# How numbers are shown, and their columns.
NODE: Final = {
    "mem_used": "memory_bytes",
    "disk_free": "disk_free_bytes",
    "sockets_used": "connections",
    "io_sync_count": "syncs",
    "io_sync_bytes": "synced_bytes",
}
CHURN: Final = {
    "channel_closed": "channels_closed",
    "channel_created": "channels_opened",
    "connection_closed": "connections_closed",
    "connection_created": "connections_opened",
    "queue_created": "queues_created",
    "queue_declared": "queues_declared",
    "queue_deleted": "queues_deleted",
}
OBJECTS: Final = ("channels", "connections", "consumers", "exchanges", "queues")
# Of which users who do not monitor see their own, and the listings that tell whose they are.
OWNED: Final = {
    "connections": "connections",
    "channels": "channels",
    "consumers": "consumer-details",
}
# What RabbitMQ's clients ask for, and this broker has had from the beginning.
FEATURES: Final = (
    *("drop_unroutable_metric", "empty_basic_get_metric", "implicit_default_bindings"),
    *("quorum_queue", "stream_queue", "user_limits", "virtual_host_metadata"),
)


async def overview(call: Call) -> object:
    """Totals of the broker; of messages only for users who monitor, and of what they may see."""
    facts = await call.broker.ask("status")
    [row] = await call.broker.rows(TOTALS)
    if not call.visitor.sees_all:
        row = await _seen_row(call, row)
    stats = message_stats(OVERVIEW, row)
    found = {
        "management_version": VERSION,
        "rates_mode": "basic",
        "exchange_types": _named(EXCHANGE_TYPES, "exchange type"),
        "product_version": facts["version"],
        "product_name": PRODUCT,
        "rabbitmq_version": facts["version"],
        "cluster_name": facts["node"],
        "erlang_version": f"Python {facts['python']}",
        "erlang_full_version": f"Python {facts['python']}, {facts['build']}",
        "release_series_support_status": "supported",
        "disable_stats": False,
        "enable_queue_totals": False,
        "message_stats": stats,
        "churn_rates": _churn(row),
        "queue_totals": depths(row),
        "object_totals": {name: row[name] for name in OBJECTS},
        "statistics_db_event_queue": 0,
        "node": facts["node"],
        "listeners": [*listeners_of(facts), call.listener(facts["node"])],
        "contexts": [{**each, "node": facts["node"]} for each in _contexts(call)],
    }
    return projected(found, call.query)


async def nodes(call: Call) -> object:
    """The one node there is."""
    return Page(call.query).of([await _node(call)])


async def node(call: Call) -> object:
    """The node, by its name."""
    found = await _node(call)
    if found["name"] != call.names["node"]:
        raise not_found()
    return projected(found, call.query)


async def cluster_name(call: Call) -> object:
    """The name of the broker."""
    return {"name": (await call.broker.ask("status"))["node"]}


async def feature_flags(call: Call) -> object:
    """Features of RabbitMQ that clients may ask for."""
    features = [
        {
            "name": name,
            "desc": name.replace("_", " "),
            "doc_url": "",
            "state": "enabled",
            "stability": "stable",
            "provided_by": PRODUCT,
        }
        for name in FEATURES
    ]
    return Page(call.query).of(features)


async def deprecated_features(call: Call) -> object:
    """Features that are to go: there are none."""
    return Page(call.query).of([])


def listeners_of(facts: Mapping[str, Any]) -> list[Row]:
    """Where the broker listens for clients."""
    where = facts["listeners"]
    ports = [("amqp", where["port"])]
    if "tls_port" in where:
        ports.append(("amqp/ssl", where["tls_port"]))
    return [
        {"node": facts["node"], "protocol": protocol, "ip_address": host, "port": port}
        for protocol, port in ports
        for host in where["hosts"]
    ]


async def _seen_row(call: Call, row: Row) -> Row:
    """The totals of what a user may see; what is counted for the whole broker only is 0."""
    found: Row = dict.fromkeys(row, 0)
    rates = dict.fromkeys(DEPTHS, 0.0)
    for name, listing in (("queues", "queue-details"), ("exchanges", "exchanges")):
        rows = await call.broker.rows(listing)
        rows = [each for each in rows if call.visitor.may_enter(each["vhost"])]
        found[name] = len(rows)
        if name == "queues":
            for column in DEPTHS:
                found[column] = sum(each[column] for each in rows)
                rates[column] = sum(each["rates"].get(column, 0.0) for each in rows)
    for name, listing in OWNED.items():
        found[name] = len(of_visitor(call, await call.broker.rows(listing)))
    return {**found, "node": row["node"], "version": row["version"], "rates": rates}


def _churn(row: Row) -> dict[str, Any]:
    rates = dict(row["rates"])
    row = dict(row)
    for what in ("channels", "connections"):
        opened, closed = f"{what}_opened", f"{what}_closed"
        row[closed] = max(0, row[opened] - row[what])
        rates[closed] = max(0.0, rates.get(opened, 0.0) - rates.get(what, 0.0))
    return with_details(CHURN, row, rates)


async def _node(call: Call) -> Row:
    facts = await call.broker.ask("status")
    [row] = await call.broker.rows(TOTALS)
    [store] = await call.broker.rows("store")
    alarms = {each["name"]: each for each in await call.broker.rows("alarms")}
    log = await asked_log(call.broker, facts)
    memory, disk = alarms["memory"], alarms["disk"]
    average_ms = store["last_sync_ms"]
    numbers = {
        "memory_bytes": memory["measured_bytes"],
        "disk_free_bytes": disk["measured_bytes"],
        "connections": row["connections"],
        "syncs": store["syncs"],
        "synced_bytes": store["synced_bytes"],
    }
    return {
        "name": facts["node"],
        "type": "disc",
        "running": True,
        "os_pid": str(facts["pid"]),
        "uptime": int(facts["uptime_s"] * 1000),
        "processors": facts["processors"],
        **_descriptors(facts),
        **with_details(NODE, numbers, row["rates"]),
        "sockets_total": facts["descriptor_limit"],
        "mem_limit": memory["limit_bytes"],
        "mem_alarm": memory["raised"],
        "disk_free_limit": disk["limit_bytes"],
        "disk_free_alarm": disk["raised"],
        "storage_alarm": alarms["storage"]["raised"],
        **({} if log is None else _shared_log(log, alarms["replication"])),
        "io_sync_avg_time": average_ms,
        "journal_segments": store["segments"],
        **_churn(row),
        "exchange_types": _named(EXCHANGE_TYPES, "exchange type"),
        "auth_mechanisms": _named(facts["auth_mechanisms"], "SASL mechanism"),
        "db_dir": facts["data_directory"],
        "applications": [
            {"name": "vouchmq", "description": PRODUCT, "version": facts["version"]},
            {"name": "python", "description": "Python", "version": facts["python"]},
        ],
        "contexts": _contexts(call),
        "enabled_plugins": [],
        "log_files": ["<stdout>"],
        "run_queue": 0,
        "partitions": [],
        "cluster_links": [],
        "rates_mode": "basic",
    }


def _shared_log(log: Row, alarm: Row) -> Row:
    """The log of several brokers, and the alarm that it, or an awaited standby, stands still."""
    return {"shared_log": log, "replication_alarm": alarm["raised"]}


def _contexts(call: Call) -> list[Row]:
    """What is served over HTTP: this."""
    _, host, port = call.listening
    return [{"description": f"{PRODUCT} Management", "path": "/", "ip": host, "port": str(port)}]


def _descriptors(facts: Mapping[str, Any]) -> Row:
    """File descriptors of the broker: counted here, where it costs the broker nothing."""
    used = open_descriptors(facts["pid"])
    return {"fd_total": facts["descriptor_limit"]} | ({} if used is None else {"fd_used": used})


def _named(names: Iterable[str], what: str) -> list[Row]:
    return [{"name": name, "description": f"{name} {what}", "enabled": True} for name in names]
