"""`vouchmq list`: what an operator sees of a running broker."""

from __future__ import annotations

import sys
from pathlib import Path

import pika
import pytest

from tests.integration.broker_process import BrokerProcess, run_command
from vouchmq.server.admin.views import columns_of
from vouchmq.server.cli.client import LocalBroker, Refused
from vouchmq.server.cli.running.listing import Shown, show

COUNTED = (
    *("published", "confirmed", "nacked", "returned", "unroutable"),
    *("delivered", "redelivered", "acked", "rejected"),
    *("dead_lettered", "expired", "dropped"),
)
DEAD_LETTERS = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}


def listed(data_dir: Path, *what: str) -> str:
    done = run_command("list", *what, "--data-dir", str(data_dir))
    assert done.returncode == 0, done.stderr
    return done.stdout


def rows(broker: BrokerProcess, what: str) -> list[dict[str, object]]:
    return broker.listed(what)


def test_what_is_there(broker: BrokerProcess) -> None:
    with pika.BlockingConnection(pika.URLParameters(broker.url)) as connection:
        channel = connection.channel()
        channel.queue_declare("q\t1", durable=True, arguments={"x-max-length": 3})
        channel.basic_publish("", "q\t1", b"x")
        channel.confirm_delivery()
        text = listed(broker.data_dir, "queues")
        head, line = text.splitlines()
        cells = dict(zip(head.split("\t"), line.split("\t"), strict=True))
        assert cells["name"] == "q\\t1"
        assert (cells["durable"], cells["messages_ready"]) == ("true", "1")
        assert cells["arguments"] == '{"x-max-length": 3}'
        [one] = rows(broker, "connections")
        assert (one["user"], one["state"], one["channels"]) == ("guest", "running", 1)
        [open_channel] = rows(broker, "channels")
        assert open_channel["confirm"] is True
    for what in ("vhosts", "exchanges", "alarms", "store"):
        assert rows(broker, what)
    assert rows(broker, "bindings") == rows(broker, "consumers") == []
    for what in ("bindings", "consumers"):
        [head] = listed(broker.data_dir, what).splitlines()
        assert head.split("\t") == columns_of(what)


def numbers(row: dict[str, object]) -> dict[str, object]:
    """Those of a row that count something, and are not 0."""
    return {name: row[name] for name in COUNTED if row.get(name)}


def published_to_default(broker: BrokerProcess) -> tuple[int, int]:
    """Messages published to the default exchange, and their copies in queues."""
    [row] = [row for row in rows(broker, "exchanges") if row["name"] == ""]
    return int(str(row["published_in"])), int(str(row["published_out"]))


def test_what_is_counted(broker: BrokerProcess) -> None:
    """Each number is exact, and those of closed channels and deleted queues stay in the totals."""
    before = rows(broker, "overview")[0]
    been_in, been_out = published_to_default(broker)
    with pika.BlockingConnection(pika.URLParameters(broker.url)) as connection:
        channel = connection.channel()
        channel.queue_declare("dead")
        channel.queue_declare("work", durable=True, arguments=dict(DEAD_LETTERS))
        channel.queue_declare("short", arguments={"x-max-length": 2})
        channel.confirm_delivery()
        persistent = pika.BasicProperties(delivery_mode=2)
        for _ in range(10):
            channel.basic_publish("", "work", b"x", persistent)
        for _ in range(5):
            channel.basic_publish("", "short", b"x")
        channel.basic_publish("", "nowhere", b"x")
        with pytest.raises(pika.exceptions.UnroutableError):
            channel.basic_publish("", "nowhere", b"x", mandatory=True)
        tags = [channel.basic_get("work")[0].delivery_tag for _ in range(8)]
        channel.basic_ack(tags[3], multiple=True)
        channel.basic_nack(tags[4], requeue=True)
        channel.basic_reject(tags[5], requeue=False)
        again, _, _ = channel.basic_get("work")
        assert again.redelivered
        channel.queue_declare("work", passive=True)
        expected = {
            "published": 17,
            "confirmed": 17,
            "returned": 1,
            "unroutable": 1,
            "delivered": 9,
            "redelivered": 1,
            "acked": 4,
            "rejected": 2,
        }
        [mine] = rows(broker, "channels")
        assert numbers(mine) == expected
        queues = {row["name"]: numbers(row) for row in rows(broker, "queues")}
        assert queues["work"] == {
            "published": 10,
            "delivered": 9,
            "redelivered": 1,
            "acked": 4,
            "rejected": 2,
            "dead_lettered": 1,
        }
        assert queues["short"] == {"published": 5, "dropped": 3}
        assert queues["dead"] == {"published": 1}
        now_in, now_out = published_to_default(broker)
        assert (now_in - been_in, now_out - been_out) == (17, 15)
        [one] = rows(broker, "connections")
        for name in ("received_bytes", "sent_bytes"):
            assert int(str(one[name])) > 17
        for name in ("work", "short", "dead"):
            channel.queue_delete(name)
    after = rows(broker, "overview")[0]
    total = {name: int(str(after[name])) - int(str(before[name])) for name in COUNTED}
    dropped = {"dead_lettered": 1, "dropped": 3}
    assert {name: count for name, count in total.items() if count} == expected | dropped
    assert (after["connections"], after["channels"], after["consumers"]) == (0, 0, 0)
    assert int(str(after["received_bytes"])) >= int(str(one["received_bytes"]))


def test_many_queues(broker: BrokerProcess) -> None:
    with pika.BlockingConnection(pika.URLParameters(broker.url)) as connection:
        channel = connection.channel()
        for number in range(1000):
            channel.queue_declare(f"many{number}")
        names = [str(row["name"]) for row in rows(broker, "queues")]
        assert [name for name in names if "many" in name] == [f"many{n}" for n in range(1000)]


def test_no_broker(tmp_path: Path) -> None:
    done = run_command("list", "queues", "--data-dir", str(tmp_path))
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(f"vouchmq: no broker runs on data directory {tmp_path}")
    assert "Traceback" not in done.stderr
    assert sys.executable not in done.stderr


def test_what_the_broker_refuses_is_said(
    broker: BrokerProcess, capsys: pytest.CaptureFixture[str]
) -> None:
    """A newer command may ask an older broker."""
    with pytest.raises(Refused, match="list moons: this broker has no command 'list moons'") as e:
        show(LocalBroker(broker.data_dir), "moons", Shown(), {})
    assert (e.value.exit_code, e.value.code) == (1, 404)
    assert capsys.readouterr() == ("", "")
