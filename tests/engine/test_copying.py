"""Logs that begin with a directory: of one broker, and of a node whose log was lost."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel
from pika.exceptions import AMQPError

from tests.engine.servers import MISSING, NatsServer, program, wait_until
from tests.integration.broker_process import (
    PROJECT,
    BrokerProcess,
    clean_environment,
    run_command,
)
from vouchmq.server.cli.client import LocalBroker
from vouchmq.server.cli.program import CommandFailed
from vouchmq.server.cli.replicated.position import position_of
from vouchmq.server.edge.replicated.engine import Engine, ask
from vouchmq.server.replication.connection import Options
from vouchmq.server.replication.jetstream import API

pytestmark = pytest.mark.skipif(program() is None, reason=MISSING)

PERSISTENT = pika.BasicProperties(delivery_mode=2)
MIB = 1 << 20


def start(engine: NatsServer) -> None:
    engine.start()
    wait_until(engine.is_ready, "a server")


class Place:
    """A directory for brokers of one log; `log` are the flags that name it."""

    def __init__(self, directory: Path, engine: NatsServer, stream: str = "orders") -> None:
        self.directory = directory
        self.engine = engine
        self.log = ["--ha-log", f"nats://127.0.0.1:{engine.ports[0]}", "--ha-stream", stream]
        self.brokers: list[BrokerProcess] = []

    def broker(self, name: str, *, is_alone: bool = False) -> BrokerProcess:
        """One on the data directory of this name, in the log or alone; not started."""
        (self.directory / name).mkdir(exist_ok=True)
        flags = ["--node", name, "--segment-size-bytes", str(MIB)]
        if not is_alone:
            flags += [*self.log, "--ha-monitors", self.engine.monitor, "--ha-unsafe-log", "on"]
            flags += ["--ha-takeover-after-s", "2", "--log-level", "info"]
        made = BrokerProcess(self.directory / name, flags=flags)
        self.brokers.append(made)
        return made

    def command(self, *words: str) -> list[str]:
        """One of `vouchmq ha`, with the log."""
        return ["ha", *words, "--replicas", "1", *self.log]

    def run(self, *words: str) -> subprocess.CompletedProcess[str]:
        return run_command(*self.command(*words))

    def refused(self, *words: str) -> str:
        """The line with which a command is refused."""
        done = self.run(*words)
        assert done.returncode, done.stdout
        assert done.stderr.count("\n") == 1, done.stderr
        return done.stderr


@pytest.fixture
def place(tmp_path: Path, engine: NatsServer) -> Iterator[Place]:
    made = Place(tmp_path, engine)
    try:
        yield made
    finally:
        for each in made.brokers:
            each.kill9()


@contextmanager
def channel_on(broker: BrokerProcess) -> Iterator[BlockingChannel]:
    with pika.BlockingConnection(pika.URLParameters(broker.url)) as connection:
        yield connection.channel()


def status(broker: BrokerProcess) -> dict[str, object]:
    """What `vouchmq ha status` says; nothing while the broker starts."""
    try:
        return LocalBroker(broker.data_dir).ask("ha status")
    except CommandFailed:
        return {}


def position(broker: BrokerProcess) -> dict[str, object]:
    """What `vouchmq ha position` says."""
    return position_of(broker.data_dir)


def refused_start(broker: BrokerProcess) -> str:
    """The line with which a broker does not start."""
    broker.begin()
    assert broker.wait() == 2
    return broker.output().splitlines()[-1]


def corrupt(path: Path, offset: int) -> None:
    with path.open("r+b") as file:
        file.seek(offset)
        octet = file.read(1)
        file.seek(offset)
        file.write(bytes([octet[0] ^ 0x20]))


def bodies(channel: BlockingChannel, queue: str) -> list[tuple[bytes, bool]]:
    found: list[tuple[bytes, bool]] = []
    while True:
        method, _, body = channel.basic_get(queue, auto_ack=True)
        if method is None:
            return found
        found.append((body, method.redelivered))


def fill(broker: BrokerProcess) -> None:
    """Everything that a broker stores, and segments that are gone in between."""
    user = run_command("put", "user", "ann", "--data-dir", str(broker.data_dir))
    assert user.returncode == 0, user.stderr
    with channel_on(broker) as channel:
        channel.confirm_delivery()
        channel.exchange_declare("events", "topic", durable=True)
        channel.queue_declare("q", durable=True)
        channel.queue_bind("q", "events", "a.*")
        channel.queue_declare("levels", durable=True, arguments={"x-max-priority": 5})
        dead = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}
        channel.queue_declare("mortal", durable=True, arguments=dead)
        channel.queue_declare("dead", durable=True)
        channel.queue_declare("bulk", durable=True)
        channel.queue_declare("log", durable=True, arguments={"x-queue-type": "stream"})
        for number in range(100):
            channel.basic_publish("events", "a.b", b"q%d" % number, PERSISTENT)
        for level in (1, 5, 3):
            properties = pika.BasicProperties(delivery_mode=2, priority=level)
            channel.basic_publish("", "levels", b"level %d" % level, properties)
        for number in range(30):
            channel.basic_publish("", "log", b"entry %d" % number, PERSISTENT)
        # The largest takes several records.
        for number in range(8):
            channel.basic_publish("", "bulk", b"%d" % number * (600_000 + 150_000 * number))
        for number in range(5):
            channel.basic_publish("", "mortal", b"m%d" % number, PERSISTENT)
        for _ in range(3):
            method, _, _ = channel.basic_get("mortal")
            channel.basic_reject(method.delivery_tag, requeue=False)
        for _ in range(12):
            channel.basic_publish("", "bulk", b"x" * 400_000, PERSISTENT)
        for _ in range(20):
            method, _, body = channel.basic_get("bulk", auto_ack=True)
            assert body
        for _ in range(20):
            method, _, _ = channel.basic_get("q")
            channel.basic_ack(method.delivery_tag)
        channel.basic_publish("", "bulk", b"last" * 300_000, PERSISTENT)
        # Of these each needs a segment of its own, and none is emptied.
        channel.queue_declare("large", durable=True)
        for number in range(4):
            channel.basic_publish("", "large", b"%d" % number * 700_000, PERSISTENT)


def has_all(broker: BrokerProcess) -> None:
    """See that a broker has what `fill` has left, when five of `q` were out."""
    with channel_on(broker) as channel:
        found = bodies(channel, "q")
        assert found == [(b"q%d" % number, number < 25) for number in range(20, 100)]
        assert [body for body, _ in bodies(channel, "levels")] == [
            b"level 5",
            b"level 3",
            b"level 1",
        ]
        assert [body for body, _ in bodies(channel, "mortal")] == [b"m3", b"m4"]
        assert [body for body, _ in bodies(channel, "dead")] == [b"m0", b"m1", b"m2"]
        assert bodies(channel, "bulk") == [(b"last" * 300_000, False)]
        large = [(b"%d" % number * 700_000, False) for number in range(4)]
        assert bodies(channel, "large") == large
        channel.basic_publish("events", "a.c", b"still bound", PERSISTENT)
        assert bodies(channel, "q") == [(b"still bound", False)]
        channel.basic_qos(prefetch_count=30)
        entries = []
        for method, _, body in channel.consume("log", arguments={"x-stream-offset": "first"}):
            entries.append(body)
            channel.basic_ack(method.delivery_tag)
            if len(entries) == 30:
                break
        assert entries == [b"entry %d" % number for number in range(30)]
        channel.cancel()
    assert "ann" in {row["name"] for row in broker.listed("users")}


def test_a_log_begins_with_the_directory_of_one_broker(place: Place) -> None:
    alone = place.broker("first", is_alone=True)
    alone.start()
    fill(alone)
    connection = pika.BlockingConnection(pika.URLParameters(alone.url))
    channel = connection.channel()
    for _ in range(5):
        channel.basic_get("q")
    assert "in use by another broker" in place.refused("create", "--from", str(alone.data_dir))
    alone.kill9()
    with suppress(AMQPError):
        connection.close()
    assert len([*alone.data_dir.glob("*.journal")]) > 3
    damaged = place.directory / "damaged"
    shutil.copytree(alone.data_dir, damaged, ignore=shutil.ignore_patterns("*.sock"))
    name = max(damaged.glob("*.journal")).name
    corrupt(damaged / name, 100)
    said = place.refused("create", "--from", str(damaged))
    assert f"{name} is damaged at offset 0" in said
    shutil.rmtree(damaged)
    said = place.refused("rescue", "--data-dir", str(alone.data_dir))
    assert "belongs to no log" in said
    first = place.broker("first")
    done = place.run("create", "--from", str(first.data_dir))
    assert done.returncode == 0, done.stderr
    before = messages_in(place.engine)
    again = place.run("create", "--from", str(first.data_dir), "--json")
    assert again.returncode == 0, again.stderr
    assert json.loads(again.stdout)["is_new"] is False
    assert json.loads(again.stdout)["log"] in done.stdout
    assert messages_in(place.engine) == before
    assert position(first)["epoch"] == 1
    first.start()
    assert status(first)["epoch"] == 2
    second = place.broker("second")
    second.begin()
    second.wait_until(lambda: status(second).get("is_complete"))
    assert status(second)["leader"] == "first"
    first.kill9()
    second.wait_until_ready()
    has_all(second)
    # What was a directory of its own follows as any other.
    first.begin()
    first.wait_until(lambda: status(first).get("leader") == "second")
    first.wait_until(lambda: status(first).get("is_complete"))


def publish(broker: BrokerProcess, first: int, count: int, size: int = 1) -> None:
    with channel_on(broker) as channel:
        channel.confirm_delivery()
        channel.queue_declare("q", durable=True)
        for number in range(first, first + count):
            channel.basic_publish("", "q", b"%d " % number * size, PERSISTENT)


def numbers(broker: BrokerProcess) -> list[int]:
    with channel_on(broker) as channel:
        return [int(body.split()[0]) for body, _ in bodies(channel, "q")]


def remove_stream(engine: NatsServer) -> None:
    """As an operator does, or as an engine that has lost it."""
    engine.kill()
    shutil.rmtree(engine.directory / "jetstream")
    start(engine)


def messages_in(engine: NatsServer) -> int:
    found = engine.report("/jsz?streams=true")
    return sum(
        stream["state"]["messages"]
        for account in found.get("account_details", ())
        for stream in account.get("stream_detail", ())
    )


def killed_half_way(place: Place, *words: str, when: Callable[[], bool]) -> None:
    """Run a command, and kill it at this moment."""
    process = subprocess.Popen(
        [sys.executable, "-m", "vouchmq", *place.command(*words)],
        cwd=PROJECT,
        env=clean_environment(),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        wait_until(when, "the middle of a copy")
    finally:
        process.send_signal(signal.SIGKILL)
        assert process.wait() == -signal.SIGKILL


def test_a_log_that_is_gone_is_made_again_of_a_node(place: Place, engine: NatsServer) -> None:
    assert place.run("create").returncode == 0
    first, second = place.broker("first"), place.broker("second")
    first.start()
    second.begin()
    second.wait_until(lambda: status(second).get("leader") == "first")
    publish(first, 0, 20, 400_000)
    second.wait_until(lambda: status(second).get("is_complete"))
    second.kill9()
    publish(first, 20, 20)
    first.kill9()
    here, there = position(first), position(second)
    assert here["log"] == there["log"]
    assert isinstance(here["lsn"], int)
    assert isinstance(there["lsn"], int)
    assert here["lsn"] > there["lsn"]
    rescue = ("rescue", "--data-dir", str(first.data_dir))
    assert "the log to which this directory belongs" in place.refused(*rescue)
    remove_stream(engine)
    assert "there is no stream orders" in refused_start(first)
    taken = place.refused("create", "--from", str(first.data_dir))
    assert f"belongs to the log {here['log']}: vouchmq ha rescue" in taken
    killed_half_way(place, *rescue, when=lambda: messages_in(engine) > 5)
    assert "is not complete" in refused_start(first)
    assert "is not complete" in refused_start(second)
    other = ("rescue", "--data-dir", str(second.data_dir))
    assert "the unfinished copy of another directory" in place.refused(*other)
    before = messages_in(engine)
    done = place.run(*rescue, "--json")
    assert done.returncode == 0, done.stderr
    assert messages_in(engine) > before
    assert json.loads(done.stdout)["log"] != here["log"]
    again = place.run(*rescue)
    assert again.returncode == 0, again.stderr
    assert "the log is complete, start the brokers" in again.stdout
    line = refused_start(second)
    assert f"the directory follows the log {there['log']}" in line
    assert "empty the directory" in line
    assert position(second) == there
    shutil.rmtree(second.data_dir)
    first.start()
    second.begin()
    second.wait_until(lambda: status(second).get("is_complete"))
    publish(first, 40, 5)
    first.kill9()
    second.wait_until_ready()
    assert numbers(second) == [*range(45)]


def test_a_leader_that_still_runs_cannot_write_to_the_log_in_place_of_its_own(
    place: Place, engine: NatsServer
) -> None:
    assert place.run("create").returncode == 0
    first, second = place.broker("first"), place.broker("second")
    first.start()
    second.begin()
    publish(first, 0, 20)
    second.wait_until(lambda: status(second).get("is_complete"))
    assert second.stop() == 0
    # While it knows nothing of that: what it has under way is for the stream of this name.
    os.kill(first.pid, signal.SIGSTOP)
    servers = Engine((engine.server,), Options(), "orders", ())
    removed = asyncio.run(ask(servers, f"{API}STREAM.DELETE.orders", b""))
    assert b'"success":true' in removed.payload
    rescue = ("rescue", "--data-dir", str(second.data_dir))
    done = place.run(*rescue)
    assert done.returncode == 0, done.stderr
    before = messages_in(engine)
    os.kill(first.pid, signal.SIGCONT)
    assert first.wait() == 1
    assert "the log begins again at sequence 1000000001" in first.output()
    assert messages_in(engine) == before
    assert "the directory follows the log" in refused_start(first)
    second.start()
    assert numbers(second) == [*range(20)]


def test_a_log_that_has_lost_its_end_is_made_again_in_another_stream(
    place: Place, engine: NatsServer
) -> None:
    assert place.run("create").returncode == 0
    first, second = place.broker("first"), place.broker("second")
    first.start()
    publish(first, 0, 20)
    second.begin()
    second.wait_until(lambda: status(second).get("is_complete"))
    first.kill9()
    second.kill9()
    engine.kill()
    kept = place.directory / "kept"
    shutil.copytree(engine.directory / "jetstream", kept)
    start(engine)
    first.start()
    publish(first, 20, 20)
    first.kill9()
    engine.kill()
    shutil.rmtree(engine.directory / "jetstream")
    kept.rename(engine.directory / "jetstream")
    start(engine)
    first.begin()
    first.wait_for_log("replication.broken")
    assert first.wait() == 2
    rescue = ("rescue", "--data-dir", str(first.data_dir))
    assert "the log to which this directory belongs" in place.refused(*rescue)
    anew = Place(place.directory, engine, "again")
    done = anew.run(*rescue)
    assert done.returncode == 0, done.stderr
    first = anew.broker("first")
    place.brokers.append(first)
    first.start()
    assert numbers(first) == [*range(40)]
    # Who has not heard of it does not take the old one for a log that goes on.
    old = place.broker("first")
    first.kill9()
    assert "the directory follows the log" in refused_start(old)
