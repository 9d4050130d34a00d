"""`vouchmq status`: the page, and what it says of numbers."""

from __future__ import annotations

import io
import json
from typing import Any

import pytest

from tests.unit.server.cli.brokers import AnsweringBroker
from vouchmq.server.admin.totals import OverviewView
from vouchmq.server.cli.running import status
from vouchmq.server.cli.units import amount, count, duration, plural

STATUS: dict[str, Any] = {
    "uptime_s": 7500.5,
    "node": "n@h",
    "version": "1.2.3",
    "build": "compiled",
    "pid": 7,
    "python": "3.11",
    "data_directory": "/d",
    "settings": {"port": "0"},
    "management": [
        {"pid": 9, "hosts": ["127.0.0.1", "::1"], "port": 15672, "metrics_port": 15692},
    ],
    "listeners": {"host": "::1", "hosts": ["127.0.0.1", "::1"], "port": 5672, "tls_port": 5671},
}
OVERVIEW: dict[str, Any] = {
    **dict.fromkeys(OverviewView.__struct_fields__, 1),
    "messages_ready": 1_234_567,
    "queues": 2,
    "sent_bytes": 3 << 20,
}
MEMORY = {"name": "memory", "raised": True, "measured_bytes": 2 << 30, "limit_bytes": 1 << 30}
DISK = {"name": "disk", "raised": False, "measured_bytes": 5 << 30, "limit_bytes": 1 << 20}
STORAGE = {"name": "storage", "raised": False, "measured_bytes": 5 << 30, "limit_bytes": 0}
STORE = {
    "last_lsn": 12,
    "watermark_lsn": 10,
    "segments": 1,
    "syncs": 3,
    "last_sync_ms": 1.25,
    "max_sync_ms": 30.0,
}


def broker_with(disk: dict[str, Any] = DISK, **store: int) -> AnsweringBroker:
    listings = {
        "list overview": [OVERVIEW],
        "list alarms": [MEMORY, disk, STORAGE],
        "list store": [STORE | store],
    }
    return AnsweringBroker({"status": STATUS}, listings)


def page(broker: AnsweringBroker) -> dict[str, str]:
    """The lines of the page, by their first words."""
    out = io.StringIO()
    assert status.run(broker, as_json=False, out=out) == 0
    lines = out.getvalue().splitlines()
    return {line[:16].strip(): line[16:] for line in lines}


def test_the_page() -> None:
    out = io.StringIO()
    status.run(broker_with(), as_json=False, out=out)
    assert out.getvalue().startswith("VouchMQ 1.2.3 (compiled, Python 3.11)\n")
    shown = page(broker_with())
    assert shown["process"] == "7, up 2 h 5 min"
    assert shown["listeners"] == (
        "127.0.0.1:5672, [::1]:5672, 127.0.0.1:5671 (TLS), [::1]:5671 (TLS)"
    )
    assert shown["alarms"] == "memory"
    assert shown["memory"] == "2.0 GiB, alarm above 1.0 GiB"
    assert shown["disk"] == "5.0 GiB free, alarm below 1.0 MiB"
    assert shown["journal"] == (
        "1 segment; last LSN 12, 2 of them since the last sync; 3 syncs, last 1.2 ms, longest "
        "30.0 ms"
    )
    assert shown["objects"] == "1 virtual host, 1 exchange, 2 queues"
    assert shown["messages"] == "1,234,567 ready, 1 unacknowledged"


def test_what_is_not_known_or_has_no_limit() -> None:
    unknown = DISK | {"measured_bytes": 1 << 62, "limit_bytes": 0}
    shown = page(broker_with(unknown, watermark_lsn=12))
    assert shown["disk"] == "not measured yet, no alarm"
    assert "all synced" in shown["journal"]


def test_the_same_for_programs() -> None:
    out = io.StringIO()
    status.run(broker_with(), as_json=True, out=out)
    document = json.loads(out.getvalue())
    assert document == {
        **STATUS,
        "overview": OVERVIEW,
        "alarms": [MEMORY, DISK, STORAGE],
        "store": STORE,
    }


@pytest.mark.parametrize(
    ("shown", "text"),
    [
        *((amount(0), "0 B"), (amount(1023), "1023 B"), (amount(1536), "1.5 KiB")),
        *((amount(1 << 40), "1.0 TiB"), (amount(1 << 51), "2048.0 TiB")),
        *((duration(59.9), "59 s"), (duration(60), "1 min"), (duration(3600), "1 h 0 min")),
        *((duration(90000), "1 d 1 h"), (count(0), "0"), (count(9999), "9999")),
        *((count(12_345), "12.3k"), (count(123_456), "123k"), (count(12_345_678), "12.3M")),
        *((count(2e10), "20.0G"), (plural(1, "queue"), "1 queue"), (plural(0, "x"), "0 xs")),
    ],
)
def test_numbers_as_people_read_them(shown: str, text: str) -> None:
    assert shown == text


def test_the_management_processes_are_told() -> None:
    told = page(broker_with())["management"]
    assert told == "process 9, 127.0.0.1:15672, [::1]:15672, metrics on port 15692"
    broker = AnsweringBroker(
        {"status": {**STATUS, "management": []}},
        {"list overview": [OVERVIEW], "list alarms": [MEMORY, DISK], "list store": [STORE]},
    )
    assert page(broker)["management"] == "not running"
