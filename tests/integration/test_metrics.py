"""The Prometheus endpoint (METRIC-01 … METRIC-09)."""

from __future__ import annotations

import math
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pika
import pytest

from tests.integration.management import ManagedBroker, ask, managed_broker
from tests.waiting import LIMIT_S

PROMTOOL = shutil.which("promtool") or ""
SAMPLE = re.compile(r"^(?P<name>[a-z_:]+)(?:\{(?P<labels>.*)\})? (?P<value>\S+)$")
CHURN = ("declared", "created", "deleted")
STRANGE = 'a"b\\c'


@pytest.fixture(scope="module")
def managed(module_path: Path) -> Iterator[ManagedBroker]:
    with (
        managed_broker(module_path) as broker,
        pika.BlockingConnection(pika.URLParameters(broker.process.url)) as connection,
    ):
        channel = connection.channel()
        channel.confirm_delivery()
        for name in ("q", STRANGE):
            channel.queue_declare(name)
            for _ in range(3):
                channel.basic_publish("", name, b"x")
        channel.basic_get("q")
        yield broker


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


def test_labels_that_dashboards_join_by(managed: ManagedBroker) -> None:
    found = samples(managed.metrics())
    labels = {name: labels for name, labels in found if name.endswith("_info")}
    for label in ("rabbitmq_cluster", "rabbitmq_node", "rabbitmq_cluster_permanent_id"):
        assert f'{label}="' in labels["rabbitmq_identity_info"]
    for label in ("rabbitmq_version", "prometheus_plugin_version", "erlang_version"):
        assert f'{label}="' in labels["rabbitmq_build_info"]


def test_counters_have_the_protocol_and_the_type_of_queue(managed: ManagedBroker) -> None:
    found = samples(managed.metrics())
    assert found["rabbitmq_global_messages_received_confirm_total", 'protocol="amqp091"'] == 6
    assert found["rabbitmq_global_publishers", 'protocol="amqp091"'] == 1
    delivered = {
        labels: value
        for (name, labels), value in found.items()
        if name == "rabbitmq_global_messages_delivered_total"
    }
    assert delivered == {
        f'protocol="amqp091",queue_type="rabbit_{kind}_queue"': float(kind == "classic")
        for kind in ("classic", "quorum", "stream")
    }


def test_deliveries_by_way(managed: ManagedBroker) -> None:
    def counted() -> dict[str, float]:
        found = samples(managed.metrics())
        labels = 'protocol="amqp091",queue_type="rabbit_classic_queue"'
        ways = ("consume_auto_ack", "consume_manual_ack", "get_auto_ack", "get_manual_ack")
        names = (*(f"delivered_{way}" for way in ways), "get_empty", "delivered")
        return {name: found[f"rabbitmq_global_messages_{name}_total", labels] for name in names}

    def churned() -> list[float]:
        found = samples(managed.metrics())
        return [found[f"rabbitmq_queues_{verb}_total", ""] for verb in CHURN]

    before, churn = counted(), churned()
    with pika.BlockingConnection(pika.URLParameters(managed.process.url)) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        channel.queue_declare("ways")
        for _ in range(10):
            channel.basic_publish("", "ways", b"x")
        for auto_ack, count in ((True, 1), (False, 2)):
            for _ in range(count):
                channel.basic_get("ways", auto_ack=auto_ack)
        channel.basic_qos(prefetch_count=3)
        got: list[int] = []
        channel.basic_consume("ways", lambda _c, method, _p, _b: got.append(method.delivery_tag))
        while len(got) < 3:
            connection.process_data_events(LIMIT_S)
        with connection.channel() as other:
            other.basic_consume("ways", lambda *_: got.append(0), auto_ack=True)
            while len(got) < 7:
                connection.process_data_events(LIMIT_S)
            other.basic_get("ways")
        channel.queue_declare("ways")
        channel.queue_delete("ways")
    after = counted()
    assert {name: after[name] - before[name] for name in after} == {
        "delivered_consume_auto_ack": 4,
        "delivered_consume_manual_ack": 3,
        "delivered_get_auto_ack": 1,
        "delivered_get_manual_ack": 2,
        "get_empty": 1,
        "delivered": 10,
    }
    assert [now - then for now, then in zip(churned(), churn, strict=True)] == [2, 1, 1]


def test_bytes_of_queues(managed: ManagedBroker) -> None:
    """METRIC-05."""
    with pika.BlockingConnection(pika.URLParameters(managed.process.url)) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        properties = pika.BasicProperties(delivery_mode=2, timestamp=1_700_000_000)
        for name, kind in (("sized", "classic"), ("kept", "stream")):
            channel.queue_declare(name, durable=True, arguments={"x-queue-type": kind})
            for body in (b"x" * 5, b"y" * 7, b"z" * 11):
                channel.basic_publish("", name, body, properties)
        channel.basic_qos(prefetch_count=2)
        arguments = {"x-stream-offset": "first"}
        got: list[bytes] = []
        channel.basic_consume("kept", lambda *each: got.append(each[3]), arguments=arguments)
        while len(got) < 2:
            connection.process_data_events(LIMIT_S)
        channel.basic_get("sized")
        found = samples(managed.metrics("/metrics/detailed?family=queue_metrics&vhost=/"))

        def numbers(queue: str) -> dict[str, float]:
            prefix, labels = "rabbitmq_detailed_queue_", f'vhost="/",queue="{queue}"'
            return {
                name.removeprefix(prefix): value
                for (name, seen), value in found.items()
                if sorted(seen.split(",")) == sorted(labels.split(","))
            }

        sized = numbers("sized")
        assert (sized["messages_bytes"], sized["messages_ready_bytes"]) == (23, 18)
        assert (sized["messages_unacked_bytes"], sized["messages_ram_bytes"]) == (5, 23)
        assert (sized["messages_persistent"], sized["messages_persistent_bytes"]) == (3, 23)
        assert (sized["messages_paged_out"], sized["messages_paged_out_bytes"]) == (0, 0)
        assert sized["head_message_timestamp"] == 1_700_000_000
        assert (sized["consumer_capacity"], sized["messages_published_total"]) == (0, 3)
        assert math.isnan(numbers("q")["head_message_timestamp"])
        # What a reader of a stream has is in the stream.
        kept = numbers("kept")
        assert kept["messages_bytes"] == kept["messages_ready_bytes"] >= 23
        assert kept["messages_unacked_bytes"] == 12
        listed = managed.get("/queues/%2F/kept")
        assert (listed["messages"], listed["messages_unacknowledged"]) == (3, 2)
        whole = sum(each["messages"] for each in managed.get("/queues"))
        assert managed.get("/overview")["queue_totals"]["messages"] == whole
        assert managed.get("/vhosts/%2F")["messages"] == whole
        assert samples(managed.metrics())["rabbitmq_queue_messages", ""] == whole
        for name in ("sized", "kept"):
            channel.queue_delete(name)


def test_logins(managed: ManagedBroker) -> None:
    def attempts() -> dict[str, float]:
        found = samples(managed.metrics())
        return {
            f"{name.split('_')[3]} {labels}": value
            for (name, labels), value in found.items()
            if name.startswith("rabbitmq_auth_attempts")
        }

    before = attempts()
    assert managed.ask("GET", "/whoami", password="wrong").status == 401
    assert managed.ask("GET", "/whoami").status == 200
    with pytest.raises(pika.exceptions.AMQPConnectionError):
        pika.BlockingConnection(pika.URLParameters(managed.process.url.replace("guest@", "no@")))
    after = attempts()
    assert {name: after[name] - before[name] for name in after} == {
        'total protocol="amqp091"': 1,
        'total protocol="http"': 2,
        'succeeded protocol="amqp091"': 0,
        'succeeded protocol="http"': 1,
        'failed protocol="amqp091"': 1,
        'failed protocol="http"': 1,
    }


@pytest.mark.parametrize(
    "name",
    [
        "vouchmq_journal_sync_duration_seconds",
        "vouchmq_confirm_latency_seconds",
        "vouchmq_loop_lag_seconds",
        "vouchmq_journal_block_size_bytes",
    ],
)
def test_histograms(managed: ManagedBroker, name: str) -> None:
    found = samples(managed.metrics())
    buckets = [value for (each, _), value in found.items() if each == f"{name}_bucket"]
    assert buckets == sorted(buckets)
    assert found[f"{name}_bucket", 'le="+Inf"'] == buckets[-1] == found[f"{name}_count", ""]
    assert found[f"{name}_sum", ""] >= 0.0


def test_confirms_are_in_the_histogram(managed: ManagedBroker) -> None:
    name = ("vouchmq_confirm_latency_seconds_count", "")
    before = samples(managed.metrics())[name]
    with pika.BlockingConnection(pika.URLParameters(managed.process.url)) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        channel.queue_declare("kept", durable=True)
        for _ in range(5):
            channel.basic_publish("", "kept", b"x", pika.BasicProperties(delivery_mode=2))
        channel.queue_delete("kept")
    assert samples(managed.metrics())[name] == before + 5


# What the dashboard RabbitMQ-Overview of rabbitmq_prometheus asks for.
ASKED_FOR = """
rabbitmq_build_info rabbitmq_identity_info
rabbitmq_connections rabbitmq_connections_opened_total rabbitmq_connections_closed_total
rabbitmq_channels rabbitmq_channels_opened_total rabbitmq_channels_closed_total
rabbitmq_queues rabbitmq_queues_created_total rabbitmq_queues_declared_total
rabbitmq_queues_deleted_total
rabbitmq_consumers rabbitmq_queue_messages_ready rabbitmq_queue_messages_unacked
rabbitmq_process_resident_memory_bytes rabbitmq_resident_memory_limit_bytes
rabbitmq_disk_space_available_bytes rabbitmq_process_open_fds rabbitmq_process_max_fds
rabbitmq_process_open_tcp_sockets rabbitmq_process_max_tcp_sockets
rabbitmq_global_publishers rabbitmq_global_messages_received_total
rabbitmq_global_messages_received_confirm_total rabbitmq_global_messages_confirmed_total
rabbitmq_global_messages_routed_total rabbitmq_global_messages_unroutable_dropped_total
rabbitmq_global_messages_unroutable_returned_total rabbitmq_global_messages_redelivered_total
rabbitmq_global_messages_acknowledged_total rabbitmq_global_messages_delivered_total
rabbitmq_global_messages_delivered_consume_auto_ack_total
rabbitmq_global_messages_delivered_consume_manual_ack_total
rabbitmq_global_messages_delivered_get_auto_ack_total
rabbitmq_global_messages_delivered_get_manual_ack_total
rabbitmq_global_messages_get_empty_total
"""


def test_the_dashboard_of_rabbitmq_finds_its_metrics(managed: ManagedBroker) -> None:
    served = {name for name, _ in samples(managed.metrics())}
    assert set(ASKED_FOR.split()) - served == set()


def test_what_is_routed_counts_once_for_each_queue(managed: ManagedBroker) -> None:
    """As in RabbitMQ: what clients publish, and neither dead letters nor what leads nowhere."""
    name = ("rabbitmq_global_messages_routed_total", 'protocol="amqp091"')
    before = samples(managed.metrics())[name]
    with pika.BlockingConnection(pika.URLParameters(managed.process.url)) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        channel.exchange_declare("fan", "fanout")
        dead = {"x-dead-letter-exchange": "fan", "x-max-length": 1}
        for queue, arguments in (("one", None), ("two", dead)):
            channel.queue_declare(queue, arguments=arguments)
        channel.queue_bind("one", "fan")
        channel.basic_publish("fan", "", b"to one")
        channel.queue_bind("two", "fan")
        channel.basic_publish("fan", "", b"to both")
        channel.basic_publish("", "two", b"the one before is dead-lettered")
        channel.basic_publish("", "nowhere", b"to none")
        assert samples(managed.metrics())[name] == before + 4
        for queue in ("one", "two"):
            channel.queue_delete(queue)
        channel.exchange_delete("fan")
    # What is gone has counted.
    assert samples(managed.metrics())[name] == before + 4


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
