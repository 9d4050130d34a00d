"""The ledger of a real broker under real clients: killed, switched, asked, and read afterwards."""

from __future__ import annotations

import json
import random
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pika
import pytest

from tests.integration.broker_process import (
    PROJECT,
    BrokerProcess,
    StartError,
    clean_environment,
)
from tests.integration.ledger_load import connect, declare_all, doomed, load
from tests.ledger_reader import Audit, Line, lines_in
from tests.waiting import LIMIT_S

KILLS = 3
Start = Callable[..., BrokerProcess]


@pytest.fixture
def start(tmp_path: Path, referee_url: str | None) -> Iterator[Start]:
    """Starts brokers with a ledger."""
    if referee_url is not None:
        pytest.skip("a ledger is VouchMQ's own")
    brokers: list[BrokerProcess] = []

    def started(*flags: str, name: str = "broker", ledger: str = "on") -> BrokerProcess:
        directory = tmp_path / name
        directory.mkdir(exist_ok=True)
        broker = BrokerProcess(directory, flags=("--ledger-enabled", ledger, *flags))
        brokers.append(broker)
        broker.start()
        return broker

    yield started
    for broker in brokers:
        broker.kill9()


def ask(broker: BrokerProcess, verb: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "vouchmq", "ledger", verb, "--data-dir", str(broker.data_dir)],
        cwd=PROJECT,
        env=clean_environment(),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def path_of(broker: BrokerProcess, verb: str) -> Path:
    done = ask(broker, verb)
    assert done.returncode == 0, done.stderr
    return Path(done.stdout.strip())


def checked(broker: BrokerProcess) -> Audit:
    audit = Audit(lines_in(broker.data_dir / "ledger"))
    assert audit.faults == []
    assert audit.lost == []
    assert audit.double_ends() == []
    assert audit.disorder() == []
    return audit


def publish(broker: BrokerProcess, queue: str, count: int, *, durable: bool = True) -> None:
    with connect(broker.url) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        channel.queue_declare(queue, durable=durable)
        for number in range(count):
            channel.basic_publish(
                "", queue, b"%d" % number, pika.BasicProperties(delivery_mode=2), mandatory=True
            )


def fetch(broker: BrokerProcess, queue: str, count: int) -> None:
    with connect(broker.url) as connection:
        channel = connection.channel()
        for _ in range(count):
            method, _, _ = channel.basic_get(queue)
            channel.basic_ack(method.delivery_tag)


@pytest.mark.slow
# pika leaves sockets behind when its broker is killed.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("sync", ["off", "group"])
def test_nothing_is_lost_over_kills(start: Start, sync: str) -> None:
    draw = random.Random(sync)
    broker = start("--ledger-rotate-s", "1", "--ledger-sync", sync, "--ledger-file-bytes", "200000")
    for number in range(KILLS + 1):
        declare_all(broker.url)
        with load(broker.url, number):
            time.sleep(1.5 + draw.random())
            if number < KILLS:
                broker.kill9()
        if number < KILLS:
            broker.start()
    assert broker.stop() == 0
    audit = checked(broker)
    assert audit.kinds["boot"] == KILLS + 1
    assert audit.kinds["end"] == 1
    assert audit.confirmed_count > 500
    assert audit.summary()["acked"] > 200
    for kind in ("ret", "cnf", "dlv", "req", "dle", "mov", "drp", "syn", "inv"):
        assert audit.kinds[kind], kind
    assert broker.complaints() == []


def test_it_is_off_unless_wanted(start: Start) -> None:
    broker = start(ledger="off")
    publish(broker, "q", 3)
    assert ask(broker, "status").stdout.split()[:4] == ["on", "no", "broker", "vouchmq@localhost"]
    refused = ask(broker, "inventory")
    assert (refused.returncode, refused.stderr) == (1, "vouchmq: ledger inventory: it is off\n")
    assert broker.stop() == 0
    assert not (broker.data_dir / "ledger").exists()


def test_no_broker_is_one_line(tmp_path: Path) -> None:
    for directory in (tmp_path, tmp_path / "none"):
        done = subprocess.run(
            [sys.executable, "-m", "vouchmq", "ledger", "status", "--data-dir", str(directory)],
            cwd=PROJECT,
            env=clean_environment(),
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            check=False,
        )
        assert done.returncode == 2
        assert done.stderr.startswith(f"vouchmq: no broker runs on data directory {directory} (")
        assert done.stderr.count("\n") == 1


def test_the_socket_of_a_killed_broker_is_no_broker(start: Start) -> None:
    broker = start()
    assert (broker.data_dir / "control.sock").stat().st_mode & 0o777 == 0o600
    broker.kill9()
    assert ask(broker, "status").returncode == 2
    broker.start()
    assert ask(broker, "status").returncode == 0


def test_switched_on_and_off_in_between(start: Start) -> None:
    broker = start(ledger="off")
    publish(broker, "q", 20)
    with connect(broker.url) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        channel.queue_declare("short", exclusive=True)
        channel.basic_publish("", "short", b"before")
        channel.basic_qos(prefetch_count=5)
        taken = channel.consume("q", inactivity_timeout=60)
        tags = [next(taken)[0].delivery_tag for _ in range(3)]
        assert ask(broker, "on").returncode == 0
        assert ask(broker, "on").returncode == 0
        channel.basic_publish("", "short", b"after")
        for tag in tags:
            channel.basic_ack(tag)
        method, _, _ = channel.basic_get("short", auto_ack=True)
        assert method is not None
        path = path_of(broker, "off")
        assert path.exists()
        channel.basic_ack(next(taken)[0].delivery_tag)
        channel.cancel()
    assert ask(broker, "on").returncode == 0
    assert broker.stop() == 0
    audit = checked(broker)
    assert audit.kinds["boot"] == 2
    lines = lines_in(broker.data_dir / "ledger")
    boots = [line for line in lines if line["e"] == "boot"]
    assert [(line["w"], line["dark"], line["prev_o"]) for line in boots] == [
        ("on", 0, None),
        ("on", 1, 1),
    ]
    assert [line["w"] for line in lines if line["e"] == "end"] == ["off", "stop"]
    # 20 published, three acked in sight and one in the dark.
    assert len(audit.held[1]) == 16


def test_a_life_without_a_ledger_is_told_to_the_next(start: Start) -> None:
    broker = start()
    publish(broker, "q", 5)
    broker.stop()
    broker._flags[1] = "off"
    broker.start()
    fetch(broker, "q", 5)
    broker.kill9()
    broker._flags[1] = "on"
    broker.start()
    broker.stop()
    audit = checked(broker)
    boots = [line for line in lines_in(broker.data_dir / "ledger") if line["e"] == "boot"]
    assert [(line["w"], line["dark"]) for line in boots] == [("clean", 0), ("clean", 1)]
    assert audit.held[1] == set()


@pytest.mark.parametrize("is_killed", [False, True], ids=["stop", "kill -9"])
def test_what_is_noted_of_returns_is_no_message_that_is_missing(
    start: Start, is_killed: bool
) -> None:
    """Notes have LSNs, which no line names: the audit must not take them for a hole."""
    broker = start()
    with connect(broker.url) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        channel.queue_declare("q", durable=True, arguments={"x-queue-type": "quorum"})
        for _ in range(5):
            channel.basic_publish("", "q", b"", pika.BasicProperties(delivery_mode=2))
        for _ in range(3):
            method, _, _ = channel.basic_get("q")
            channel.basic_reject(method.delivery_tag, requeue=True)
    if is_killed:
        broker.kill9()
    else:
        broker.stop()
    broker.start()
    broker.stop()
    checked(broker)
    lines = lines_in(broker.data_dir / "ledger")
    boot = [line for line in lines if line["e"] == "boot"][1]
    published = max(line["lsn"][1] for line in lines if line["e"] == "pub")
    assert (boot["msg"], boot["prev_lsn"] >= published) == (published, True)
    # A clean stop syncs the notes as well, so that its ledger knows of them.
    assert boot["wm"] > published
    assert boot["wm"] > boot["prev_lsn"] if is_killed else boot["wm"] == boot["prev_lsn"]


def test_lsns_are_never_given_again(start: Start) -> None:
    """Transient messages leave nothing in the journal that would keep their numbers."""
    broker = start()
    with doomed(broker.url) as connection:
        channel = connection.channel()
        channel.queue_declare("q")
        for _ in range(500):
            channel.basic_publish("", "q", b"transient")
        while channel.queue_declare("q", passive=True).method.message_count < 500:
            time.sleep(0.01)
        broker.kill9()
    broker._flags[1] = "off"  # nor by a broker that keeps none
    broker.start()
    publish(broker, "q2", 20)
    broker.stop()
    broker._flags[1] = "on"
    broker.start()
    publish(broker, "q2", 20)
    broker.stop()
    published = [line for line in lines_in(broker.data_dir / "ledger") if line["e"] == "pub"]
    numbers = [lsn for line in published for lsn in range(line["lsn"][0], line["lsn"][1] + 1)]
    assert len(numbers) == len(set(numbers)) == 520
    inventory = [line for line in lines_in(broker.data_dir / "ledger") if line["e"] == "inv"]
    held = {lsn for first, last in inventory[-1]["i"] for lsn in range(first, last + 1)}
    assert len(held) == 40
    assert held & set(numbers) <= set(numbers[500:])


def test_an_inventory_on_request(start: Start) -> None:
    broker = start()
    publish(broker, "one", 50)
    publish(broker, "two", 3)
    fetch(broker, "one", 10)
    path = path_of(broker, "inventory")
    lines: list[Line] = [json.loads(line) for line in path.read_text().splitlines()]
    taken = [line for line in lines if line["e"] == "inv" and line["w"] == "request"]
    counts = {line["qid"]: sum(last - first + 1 for first, last in line["i"]) for line in taken}
    assert counts == {1: 40, 2: 3}
    assert path_of(broker, "rotate") == path
    lines_of_status = ask(broker, "status").stdout.splitlines()
    status = dict(line.split(maxsplit=1) for line in lines_of_status)
    sealed = [line["seal"] for line in lines if "seal" in line]
    assert status["seal"] == sealed[-1]
    publish(broker, "two", 1)
    assert path_of(broker, "rotate") != path
    broker.stop()
    checked(broker)


def test_compressed_and_with_ids(start: Start) -> None:
    broker = start("--ledger-compress", "gz", "--ledger-detail", "messages")
    with connect(broker.url) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        channel.queue_declare("q", durable=True)
        for name in ("eins", "zwei-ü", None):
            channel.basic_publish("", "q", b"x", pika.BasicProperties(message_id=name))
    assert path_of(broker, "rotate").name.endswith(".jsonl.gz")
    broker.stop()
    checked(broker)
    told = [line for line in lines_in(broker.data_dir / "ledger") if line["e"] == "pub"]
    assert [each for line in told for each in line["m"]] == ["eins", "zwei-ü", None]


def test_what_keeps_it_from_starting_is_one_line(start: Start, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StartError) as failed:
        start("--ledger-dir", str(tmp_path / "file" / "ledger"), name="first")
    assert str(failed.value).strip().startswith("vouchmq: ledger directory")
    assert str(failed.value).count("\n") == 1
    shared = ("--ledger-dir", str(tmp_path / "shared"))
    start(*shared, name="second")
    with pytest.raises(StartError) as failed:
        start(*shared, name="third")
    assert "another broker called vouchmq@localhost writes there" in str(failed.value)
    start(*shared, "--ledger-broker", "other", name="fourth")
    with pytest.raises(StartError) as failed:
        start("--ledger-sync", "sometimes", name="fifth")
    assert "expected one of off, group, not 'sometimes'" in str(failed.value)


def test_streams_numbers_and_hidden_queues(start: Start) -> None:
    broker = start()
    with connect(broker.url) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        channel.queue_declare("s", durable=True, arguments={"x-queue-type": "stream"})
        channel.queue_declare("q", durable=True)
        channel.exchange_declare(
            "later", "x-delayed-message", durable=True, arguments={"x-delayed-type": "fanout"}
        )
        channel.queue_bind("q", "later")
        for number in range(10):
            channel.basic_publish("", "s", b"%d" % number)
        for delay in (50, 30, 600_000):
            channel.basic_publish(
                "later", "", b"d", pika.BasicProperties(delivery_mode=2, headers={"x-delay": delay})
            )
        channel.basic_qos(prefetch_count=10)
        for _ in range(2):
            taken = channel.consume("s", arguments={"x-stream-offset": "first"})
            for _ in range(10):
                channel.basic_ack(next(taken)[0].delivery_tag)
            channel.cancel()
        while channel.queue_declare("q", passive=True).method.message_count < 2:
            time.sleep(0.01)
        taken = channel.consume("q", arguments={"x-queue-seq": True}, inactivity_timeout=60)
        for _ in range(2):
            channel.basic_ack(next(taken)[0].delivery_tag)
        channel.cancel()
    broker.stop()
    audit = checked(broker)
    lines = lines_in(broker.data_dir / "ledger")
    kinds = {line["k"]: line for line in lines if line["e"] == "que"}
    assert kinds["s"]["ty"] == "stream"
    assert kinds["s"]["d"] == 2
    hold = next(line for name, line in kinds.items() if name.startswith("\n"))
    assert hold["pri"] == 1
    assert len(audit.held[kinds["s"]["qid"]]) == 10
    assert len(audit.held[hold["qid"]]) == 1
    assert audit.held[kinds["q"]["qid"]] == set()
    moves = [line for line in lines if line["e"] == "mov"]
    assert {line["w"] for line in moves} == {"delayed"}
    assert sum(line["lsn"][1] - line["lsn"][0] + 1 for line in moves) == 2
    numbered = [line["s"] for line in lines if line["e"] == "dlv" and "s" in line]
    assert [pair for each in numbered for pair in each] in ([[1, 2]], [[1, 1], [2, 2]])


def test_transactions_returns_and_deleted_queues(start: Start) -> None:
    broker = start()
    with connect(broker.url) as connection:
        channel = connection.channel()
        channel.tx_select()
        channel.queue_declare("q", durable=True)
        for _ in range(3):
            channel.basic_publish("", "q", b"x", pika.BasicProperties(delivery_mode=2))
        channel.tx_commit()
        channel.basic_publish("", "q", b"never")
        channel.tx_rollback()
        method, _, _ = channel.basic_get("q")
        channel.basic_ack(method.delivery_tag)
        channel.tx_rollback()
        channel.basic_ack(method.delivery_tag)
        channel.tx_commit()
        other = connection.channel()
        other.queue_declare("gone")
        for _ in range(4):
            other.basic_publish("", "gone", b"y")
        method, _, _ = other.basic_get("gone")
        other.queue_delete("gone")
        other.basic_ack(method.delivery_tag)
        for _ in range(2):
            other.basic_publish("", "q", b"z")
        other.basic_get("q")
        other.queue_purge("q")
    broker.stop()
    audit = checked(broker)
    found = audit.summary()
    assert found == {"acked": 1, "dropped deleted": 4, "dropped purged": 3, "held": 1}
    lines = lines_in(broker.data_dir / "ledger")
    assert [line["i"] for line in lines if line["e"] == "cnf"] == [[[1, 3]]]
    assert {line["w"] for line in lines if line["e"] == "que"} >= {"declared", "deleted", "purged"}
