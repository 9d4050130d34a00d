"""`vouchmq status`: one page about a running broker.

    status, overview, alarms, store ─▶ a document ─▶ JSON, or lines for people

Must not know how the broker is asked.
"""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any, Final, TextIO

from vouchmq.server.cli.running.listing import cell
from vouchmq.server.cli.units import amount, duration, plural

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from vouchmq.server.cli.client import Broker

Facts = dict[str, Any]
# Free space that nobody has measured yet.
UNKNOWN_BYTES: Final = 1 << 62
TOTALS: Final = (
    ("published", "confirmed", "nacked", "returned", "unroutable"),
    ("delivered", "redelivered", "acked", "rejected"),
    ("dead_lettered", "dead_letters_dropped", "expired", "dropped"),
)


def run(broker: Broker, *, as_json: bool, out: TextIO | None = None) -> int:
    """Print the page; returns the exit code.

    Raises:
        CommandFailed: there is no broker
    """
    out = sys.stdout if out is None else out
    document = gather(broker)
    if as_json:
        out.write(json.dumps(document, indent=2) + "\n")
    else:
        out.writelines(f"{line}\n" for line in lines(document))
    return 0


def gather(broker: Broker) -> Facts:
    """What the page says, for programs."""
    status = broker.ask("status")
    del status["ok"]
    [overview] = broker.rows("list overview")
    [store] = broker.rows("list store")
    return {
        **status,
        "overview": overview,
        "alarms": list(broker.rows("list alarms")),
        "store": store,
    }


def lines(document: Facts) -> Iterator[str]:
    """The page for people."""
    overview = document["overview"]
    yield f"VouchMQ {document['version']} ({document['build']}, Python {document['python']})"
    width = 16
    for name, text in _facts(document):
        yield f"{name.ljust(width)}{text}"
    yield "since the start"
    for names in TOTALS:
        yield "  " + ", ".join(f"{name.replace('_', ' ')} {overview[name]:,}" for name in names)
    yield (
        f"  received {amount(overview['received_bytes'])}, sent {amount(overview['sent_bytes'])}, "
        f"connections {overview['connections_opened']:,}, channels {overview['channels_opened']:,}"
    )
    if document["settings"]:
        yield "settings other than the defaults"
        for name, value in document["settings"].items():
            yield f"  {name} = {cell(value)}"


def _facts(document: Facts) -> Iterator[tuple[str, str]]:
    overview, store = document["overview"], document["store"]
    alarms = {alarm["name"]: alarm for alarm in document["alarms"]}
    yield "node", cell(document["node"])
    yield "process", f"{document['pid']}, up {duration(document['uptime_s'])}"
    yield "data directory", cell(document["data_directory"])
    yield "listeners", _listeners(document["listeners"])
    yield "management", _management(document.get("management", ())) or "not running"
    yield "alarms", ", ".join(name for name, each in alarms.items() if each["raised"]) or "none"
    memory, disk = alarms["memory"], alarms["disk"]
    yield (
        "memory",
        f"{amount(memory['measured_bytes'])}, alarm above {amount(memory['limit_bytes'])}",
    )
    yield "disk", _disk(disk)
    yield (
        "journal",
        f"{plural(store['segments'], 'segment')}; last LSN {store['last_lsn']}, "
        f"{_synced(store)}; {store['syncs']:,} syncs, "
        f"last {store['last_sync_ms']:.1f} ms, longest {store['max_sync_ms']:.1f} ms",
    )
    yield (
        "clients",
        f"{plural(overview['connections'], 'connection')} "
        f"({overview['connections_blocked']:,} blocked), "
        f"{plural(overview['channels'], 'channel')}, {plural(overview['consumers'], 'consumer')}",
    )
    yield (
        "objects",
        f"{plural(overview['vhosts'], 'virtual host')}, "
        f"{plural(overview['exchanges'], 'exchange')}, {plural(overview['queues'], 'queue')}",
    )
    yield (
        "messages",
        f"{overview['messages_ready']:,} ready, "
        f"{overview['messages_unacknowledged']:,} unacknowledged",
    )


def _synced(store: Mapping[str, Any]) -> str:
    waiting = store["last_lsn"] - store["watermark_lsn"]
    return f"{waiting:,} of them since the last sync" if waiting > 0 else "all synced"


def _disk(alarm: Mapping[str, Any]) -> str:
    free = alarm["measured_bytes"]
    shown = "not measured yet" if free >= UNKNOWN_BYTES else f"{amount(free)} free"
    limit = alarm["limit_bytes"]
    return f"{shown}, alarm below {amount(limit)}" if limit else f"{shown}, no alarm"


def _management(found: Sequence[Mapping[str, Any]]) -> str:
    """Where the HTTP API is."""
    return "; ".join(
        f"process {each['pid']}, {', '.join(_at(each['hosts'], each['port']))}, "
        f"metrics on port {each['metrics_port']}{' (TLS)' if each.get('tls') else ''}"
        for each in found
    )


def _listeners(facts: Mapping[str, Any]) -> str:
    found = _at(facts["hosts"], facts["port"])
    found += [f"{each} (TLS)" for each in _at(facts["hosts"], facts.get("tls_port", 0))]
    return ", ".join(found)


def _at(hosts: Sequence[str], port: int) -> list[str]:
    """Addresses with a port; none without one."""
    shown = [f"[{host}]" if ":" in host else host for host in hosts]
    return [f"{host}:{port}" for host in shown] if port else []
