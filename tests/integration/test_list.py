"""`vouchmq list`: what an operator sees of a running broker."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pika
import pytest

from tests.integration.broker_process import BrokerProcess, run_command
from vouchmq.server.cli import listing


def listed(data_dir: Path, *what: str) -> str:
    done = run_command("list", *what, "--data-dir", str(data_dir))
    assert done.returncode == 0, done.stderr
    return done.stdout


def rows(broker: BrokerProcess, what: str) -> list[dict[str, object]]:
    return [json.loads(line) for line in listed(broker.data_dir, what, "--json").splitlines()]


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
    assert listing.run(broker.data_dir, "moons", as_json=False) == 1
    assert capsys.readouterr() == ("", "vouchmq: list moons: no such verb\n")
