"""The Prometheus endpoint (METRIC-01 … METRIC-09)."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterator

import pika
import pytest

from tests.integration.management import ManagedBroker, ask
from tests.waiting import LIMIT_S

PROMTOOL = shutil.which("promtool") or ""
SAMPLE = re.compile(r"^(?P<name>[a-z_:]+)(?:\{(?P<labels>.*)\})? (?P<value>\S+)$")
STRANGE = 'a"b\\c'


@pytest.fixture(scope="module")
def managed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ManagedBroker]:
    broker = ManagedBroker(tmp_path_factory.mktemp("metrics"))
    try:
        with pika.BlockingConnection(pika.URLParameters(broker.process.url)) as connection:
            channel = connection.channel()
            channel.confirm_delivery()
            for name in ("q", STRANGE):
                channel.queue_declare(name)
                for _ in range(3):
                    channel.basic_publish("", name, b"x")
            channel.basic_get("q")
            yield broker
        assert broker.process.stop() == 0, broker.process.output()
        assert broker.process.complaints() == []
    finally:
        broker.process.kill9()


def samples(text: str) -> dict[tuple[str, str], float]:
    """Values by name and labels."""
    found: dict[tuple[str, str], float] = {}
    for line in text.splitlines():
        if line.startswith("#"):
            continue
        parsed = SAMPLE.match(line)
        assert parsed is not None, line
        found[parsed["name"], parsed["labels"] or ""] = float(parsed["value"])
    return found


def test_totals(managed: ManagedBroker) -> None:
    found = samples(managed.metrics())
    value = {name: value for (name, labels), value in found.items() if not labels}
    assert value["rabbitmq_queues"] == 2
    assert value["rabbitmq_connections"] == value["rabbitmq_channels"] == 1
    assert value["rabbitmq_queue_messages"] == 6
    assert value["rabbitmq_queue_messages_unacked"] == 1
    assert value["rabbitmq_channel_messages_confirmed_total"] == 6
    assert found["rabbitmq_global_messages_received_total", 'protocol="amqp091"'] == 6
    assert value["rabbitmq_alarms_memory_used_watermark"] == 0
    assert value["rabbitmq_process_open_fds"] > 10
    assert value["rabbitmq_process_resident_memory_bytes"] > 1_000_000
    assert value["rabbitmq_io_sync_ops_total"] >= 1
    assert any(name == "rabbitmq_build_info" for name, _ in found)


def test_objects_one_by_one(managed: ManagedBroker) -> None:
    found = samples(managed.metrics("/metrics/per-object"))
    assert found["rabbitmq_queue_messages_ready", 'queue="q",vhost="/"'] == 2
    # Labels are escaped.
    assert found["rabbitmq_queue_messages_ready", r'queue="a\"b\\c",vhost="/"'] == 3
    [(labels, published)] = [
        (labels, value)
        for (name, labels), value in found.items()
        if name == "rabbitmq_channel_messages_published_total"
    ]
    assert published == 6
    assert re.fullmatch(r'channel="127\.0\.0\.1:\d+ -> 127\.0\.0\.1:\d+ \(1\)"', labels)
    assert any(name == "rabbitmq_connection_incoming_bytes_total" for name, _ in found)
    # What is no object's is there, too.
    assert found["rabbitmq_queues", ""] == 2


def test_chosen_families(managed: ManagedBroker) -> None:
    path = "/metrics/detailed?family=queue_coarse_metrics&family=queue_consumer_count"
    found = samples(managed.metrics(f"{path}&vhost=/"))
    assert {name for name, _ in found} == {
        *("rabbitmq_detailed_queue_messages", "rabbitmq_detailed_queue_messages_ready"),
        *("rabbitmq_detailed_queue_messages_unacked", "rabbitmq_detailed_queue_consumers"),
    }
    assert samples(managed.metrics(f"{path}&vhost=other")) == {}
    for query in ("", "?family=nope"):
        got = ask(managed.metrics_port, "GET", f"/metrics/detailed{query}")
        assert got.status == 400
        assert "queue_coarse_metrics" in got.body


def test_the_content_type(managed: ManagedBroker) -> None:
    got = ask(managed.metrics_port, "GET", "/metrics")
    assert got.headers["content-type"].startswith("text/plain; version=0.0.4")


@pytest.mark.skipif(not PROMTOOL, reason="promtool is not installed")
@pytest.mark.parametrize(
    "path", ["/metrics", "/metrics/per-object", "/metrics/detailed?family=queue_metrics"]
)
def test_promtool_accepts_it(managed: ManagedBroker, path: str) -> None:
    """What it only has an opinion about (exit code 3) is RabbitMQ's choice of names."""
    done = subprocess.run(
        [PROMTOOL, "check", "metrics"],
        input=managed.metrics(path),
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    complaints = [line for line in done.stderr.splitlines() if not line.startswith("rabbitmq_")]
    assert complaints == [], done.stderr
    assert done.returncode in {0, 3}, done.stderr
