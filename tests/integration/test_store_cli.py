"""`vouchmq store check` and `store dump` as an operator meets them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pika
import pytest

from tests.integration.broker_process import PROJECT, BrokerProcess, clean_environment
from tests.integration.moving import blocking
from vouchmq.server.cli.data_dir.store import check, dump
from vouchmq.store.disk import FileDisk
from vouchmq.store.journal.journal import Journal
from vouchmq.store.recovery.recover import open_journal

QUEUE = (
    b'{"v":1,"op":"queue","vhost":"/","name":"orders","queue_id":1,'
    b'"auto_delete":false,"arguments":""}'
)
VHOST = b'{"v":1,"op":"vhost","vhost":"/"}'
HEADER = bytes.fromhex("003c000000000000000000051000") + b"\x02"
CONTENT = (
    b"\x02\0\x01" + len(HEADER).to_bytes(4, "big") + HEADER + b"\xce"
    b"\x03\0\x01\0\0\0\x05hello\xce"
)  # fmt: skip


def filled(directory: Path, count: int = 3) -> None:
    disk = FileDisk(directory)
    journal, _ = open_journal(disk, segment_size_bytes=1 << 20, wall_ms=lambda: 0)
    journal.define(VHOST)
    journal.define(QUEUE)
    for _ in range(count):
        journal.append_run((1,), b"\0\x06orders", [CONTENT])
        synced(journal)
    journal.close()
    disk.close()


def synced(journal: Journal) -> None:
    journal.write()
    ticket = journal.begin_sync()
    for target in ticket.targets:
        target.sync()
    journal.end_sync(ticket)


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "vouchmq", "store", *arguments],
        cwd=PROJECT,
        env=clean_environment(None),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_check_says_what_is_there(tmp_path: Path) -> None:
    filled(tmp_path)
    done = run("check", str(tmp_path))
    assert (done.returncode, done.stderr) == (0, "")
    assert "no damage" in done.stdout
    assert "orders" in done.stdout
    document = json.loads(run("check", str(tmp_path), "--json").stdout)
    assert [(q["name"], q["count"]) for q in document["queues"]] == [("orders", 3)]


@pytest.mark.parametrize("verb", ["check", "dump"])
def test_the_directory_of_the_settings_is_the_default(verb: str, tmp_path: Path) -> None:
    filled(tmp_path)
    done = run(verb, "--data-dir", str(tmp_path))
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == run(verb, str(tmp_path)).stdout


def test_dump_shows_messages(tmp_path: Path) -> None:
    filled(tmp_path)
    done = run("dump", str(tmp_path), "--queue", "orders", "--json")
    assert done.returncode == 0
    messages = [json.loads(line) for line in done.stdout.splitlines()]
    assert [m["lsn"] for m in messages] == sorted({m["lsn"] for m in messages})
    assert bytes.fromhex(messages[0]["body"]) == b"hello"
    assert messages[0]["properties"] == {"delivery_mode": 2}
    assert (messages[0]["exchange"], messages[0]["routing_key"]) == ("", "orders")


def test_priority_levels_are_their_queue(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    """PRIO-01: the journal keeps each level under a number of its own."""
    broker = BrokerProcess(tmp_path)
    request.addfinalizer(broker.kill9)
    broker.start()
    counts = {"graded": 6, "quorum": 2, "plain": 1}
    with blocking(broker) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        kinds: list[dict[str, Any]] = [{"x-max-priority": 5}, {"x-queue-type": "quorum"}, {}]
        for (queue, count), arguments in zip(counts.items(), kinds, strict=True):
            channel.queue_declare(queue, durable=True, arguments=arguments)
            for number in range(count):
                properties = pika.BasicProperties(delivery_mode=2, priority=number)
                channel.basic_publish("", queue, b"", properties)
    broker.kill9()
    document = json.loads(run("check", str(broker.data_dir), "--json").stdout)
    assert {each["name"]: each["count"] for each in document["queues"]} == counts
    graded = document["queues"][0]
    assert graded["last_lsn"] - graded["first_lsn"] == 5
    for queue, count in counts.items():
        done = run("dump", str(broker.data_dir), "--queue", queue, "--json")
        queues = [json.loads(line)["queues"] for line in done.stdout.splitlines()]
        assert queues == [[queue]] * count


@pytest.mark.parametrize("verb", ["check", "dump"])
def test_what_cannot_be_read_is_one_line(verb: str, tmp_path: Path) -> None:
    for directory in (tmp_path / "nowhere", tmp_path):
        done = run(verb, str(directory))
        assert done.returncode == 2
        assert done.stdout == ""
        assert len(done.stderr.strip().splitlines()) == 1
        assert str(directory) in done.stderr


def test_damage_is_exit_1(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    filled(tmp_path, count=6)
    segment = next(tmp_path.glob("*.journal"))
    octets = bytearray(segment.read_bytes())
    octets[octets.find(b"hello")] ^= 0xFF
    segment.write_bytes(octets)
    assert check(tmp_path, as_json=False) == 1
    assert "DAMAGED" in capsys.readouterr().out
    assert dump(tmp_path, queue=None, vhost=None, as_json=False) == 1
    assert segment.read_bytes() == octets


def test_an_unknown_queue_is_told(tmp_path: Path) -> None:
    filled(tmp_path)
    done = run("dump", str(tmp_path), "--queue", "nope")
    assert done.returncode == 2
    assert "nope" in done.stderr
