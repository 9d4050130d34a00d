"""Brokers that share a log on a real engine: one leads, and the other takes over."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import cast

import pika
import pytest
from pika.exceptions import AMQPError

from tests.engine.brokers import Brokers, Publisher, declare, left_on, status
from tests.engine.proxy import Proxy
from tests.engine.servers import MISSING, NatsServer, program, wait_until
from tests.integration.broker_process import BrokerProcess, run_command
from vouchmq.store.disk import FileDisk
from vouchmq.store.replication.log_view import Position
from vouchmq.store.replication.log_writer import EPOCH_LSNS
from vouchmq.store.replication.position_file import PositionFile

pytestmark = pytest.mark.skipif(program() is None, reason=MISSING)

PERSISTENT = pika.BasicProperties(delivery_mode=2)
PREFETCH = 20


@pytest.fixture
def brokers(tmp_path: Path, engine: NatsServer) -> Iterator[Brokers]:
    """Two brokers, not started."""
    made = Brokers(tmp_path, engine)
    try:
        yield made
    finally:
        made.kill()


def test_a_standby_has_all_that_a_killed_leader_has_confirmed(brokers: Brokers) -> None:
    brokers.start()
    declare(brokers.leader)
    assert run_command("ping", "--data-dir", str(brokers.standby.data_dir)).stdout == "standby\n"
    seen: set[bytes] = set()
    publisher = Publisher(brokers.leader, lambda _: None)
    publisher.wait(50)
    connection = pika.BlockingConnection(pika.URLParameters(brokers.leader.url))
    consumer = connection.channel()
    consumer.basic_qos(prefetch_count=PREFETCH)
    for _, _, body in consumer.consume("q"):
        seen.add(body)
        if len(seen) == PREFETCH:
            break
    publisher.wait(50)
    brokers.leader.kill9()
    publisher.join()
    with suppress(AMQPError):
        connection.close()
    brokers.standby.wait_until_ready()
    found = left_on(brokers.standby)
    bodies = [body for body, _ in found]
    assert len(set(bodies)) == len(bodies)
    assert set(publisher.confirmed) <= set(bodies) <= set(publisher.published)
    assert [body for body, is_again in found if is_again] == sorted(seen, key=int)
    assert status(brokers.standby)["epoch"] == 2


def standbys(broker: BrokerProcess) -> list[dict[str, object]]:
    """Those that a leader hears."""
    found = status(broker).get("standbys", [])
    assert isinstance(found, list)
    return found


def test_a_leader_hears_where_its_standby_is(brokers: Brokers) -> None:
    brokers.start()
    declare(brokers.leader)
    publisher = Publisher(brokers.leader, lambda _: None)
    publisher.wait(50)
    publisher.is_to_end = True
    publisher.join()

    def has_all() -> bool:
        return any(each["can_take_over"] and not each["lag_bytes"] for each in standbys(leader))

    leader = brokers.leader
    leader.wait_until(has_all)
    [found] = standbys(leader)
    assert (found["node"], found["epoch"]) == ("second", 1)
    said = run_command("ha", "status", "--data-dir", str(leader.data_dir))
    assert said.returncode == 0
    address = found["address"]
    # A beat may have been committed since the standby read last.
    shown = rf" second at {address}, can take over, \d+ records? and \d+ B behind"
    assert re.search(shown, said.stdout)
    leader.wait_until(lambda: not standbys(leader)[0]["lag"])
    assert "standbys" not in status(brokers.standby)
    leader.wait_until(lambda: status(leader).get("log"))
    size = cast("dict[str, int]", status(leader)["log"])
    assert (size["replicas"], size["current_replicas"], size["max_bytes"]) == (1, 1, -1)
    assert size["bytes"] > 0
    os.kill(brokers.standby.pid, signal.SIGSTOP)
    publisher = Publisher(leader, lambda _: None)
    publisher.wait(50)
    publisher.is_to_end = True
    publisher.join()
    before = standbys(leader)[0]
    os.kill(brokers.standby.pid, signal.SIGCONT)
    leader.wait_until(
        lambda: cast("int", standbys(leader)[0]["sequence"]) > cast("int", before["sequence"]) + 20
    )


def test_a_leader_that_was_replaced_confirms_nothing_and_begins_again(brokers: Brokers) -> None:
    brokers.start()
    declare(brokers.leader)
    publisher = Publisher(brokers.leader, lambda _: None)
    publisher.wait(50)
    os.kill(brokers.leader.pid, signal.SIGSTOP)
    brokers.standby.wait_until_ready()
    before = len(publisher.confirmed)
    os.kill(brokers.leader.pid, signal.SIGCONT)
    publisher.join()
    assert publisher.failure is not None
    bodies = [body for body, _ in left_on(brokers.standby)]
    # What was confirmed before the pause may be heard after it, but is committed.
    assert set(publisher.confirmed) <= set(bodies)
    assert len(publisher.confirmed) - before <= 1
    brokers.leader.wait_for_log("replication.stepped_down", "claim of epoch 2")
    brokers.leader.wait_until(lambda: status(brokers.leader).get("leader") == "second")
    assert status(brokers.leader)["role"] == "standby"
    handed = run_command("ha", "handover", "--data-dir", str(brokers.standby.data_dir))
    assert handed.returncode == 0, handed.stderr
    brokers.leader.wait_until(lambda: status(brokers.leader).get("is_serving"))
    assert status(brokers.leader)["epoch"] == 3
    assert brokers.leader.stop() == 0
    brokers.standby.wait_until(lambda: status(brokers.standby).get("is_serving"))
    assert brokers.standby.stop() == 0


def test_a_broker_that_has_led_can_be_stopped_as_a_standby(brokers: Brokers) -> None:
    """It goes on in the same process, which had SIGTERM blocked for the thread that takes it."""
    brokers.start()
    handed = run_command("ha", "handover", "--data-dir", str(brokers.leader.data_dir))
    assert handed.returncode == 0, handed.stderr
    brokers.leader.wait_until(lambda: status(brokers.leader).get("leader") == "second")
    assert brokers.leader.stop() == 0


def test_publishers_are_blocked_while_the_log_does_not_commit(
    brokers: Brokers, engine: NatsServer
) -> None:
    brokers.leader.start()
    declare(brokers.leader)
    heard: list[str] = []
    publisher = Publisher(brokers.leader, heard.append)
    publisher.wait(10)
    engine.signal(signal.SIGSTOP)
    brokers.leader.wait_for_log("alarm.raised", "replication")
    engine.signal(signal.SIGCONT)
    brokers.leader.wait_for_log("alarm.cleared", "replication")
    publisher.wait(10)
    publisher.is_to_end = True
    publisher.join()
    assert publisher.failure is None
    assert {body for body, _ in left_on(brokers.leader)} == set(publisher.published)


def test_an_engine_that_cannot_keep_the_log_is_refused(brokers: Brokers) -> None:
    refused = run_command("serve", "--data-dir", str(brokers.leader.data_dir), *brokers.log)
    assert refused.returncode == 2
    assert refused.stderr.startswith("vouchmq: ha_monitors: name the monitoring addresses")
    monitors = brokers.leader._flags[brokers.leader._flags.index("--ha-monitors") + 1]
    refused = run_command(
        *("serve", "--port", "0", "--data-dir", str(brokers.leader.data_dir)),
        *(*brokers.log, "--ha-monitors", monitors),
    )
    assert refused.returncode == 2
    assert "set its replicas to 3" in refused.stderr.splitlines()[-1]
    refused = run_command(
        *("serve", "--port", "0", "--data-dir", str(brokers.leader.data_dir)),
        *(*brokers.log[:2], "--ha-monitors", monitors, "--ha-stream", "another"),
    )
    assert refused.returncode == 2
    assert "vouchmq ha create" in refused.stderr.splitlines()[-1]


def test_a_leader_says_up_to_where_its_directory_has_the_log(brokers: Brokers) -> None:
    """So that it has little to compare when it is a standby again; LSNs go on far above."""

    def position() -> Position:
        with closing(PositionFile(FileDisk(brokers.leader.data_dir))) as file:
            assert file.at is not None
            return file.at

    brokers.start()
    before = position()
    declare(brokers.leader)
    publisher = Publisher(brokers.leader, lambda _: None)
    publisher.wait(20)
    wait_until(lambda: position().block > before.block + 20, "a position of the leader")
    publisher.is_to_end = True
    publisher.join()
    assert position().epoch == 1
    assert position().lsn >= EPOCH_LSNS


@pytest.fixture
def proxy(engine: NatsServer) -> Iterator[Proxy]:
    """Stands before the server."""
    made = Proxy(engine.ports[0])
    try:
        yield made
    finally:
        made.close()


def test_a_leader_that_hears_no_answers_lets_its_clients_go(
    tmp_path: Path, engine: NatsServer, proxy: Proxy
) -> None:
    """Its records arrive, so its claim is there; another one leads, and it cannot know."""
    brokers = Brokers(
        tmp_path,
        engine,
        leader_port=proxy.port,
        more=("--ha-stepdown-after-s", "5"),
    )
    try:
        brokers.start()
        declare(brokers.leader)
        publisher = Publisher(brokers.leader, lambda _: None)
        publisher.wait(20)
        brokers.leader.wait_until(lambda: standbys(brokers.leader))
        proxy.is_deaf = True
        brokers.standby.wait_until_ready()
        publisher.join()
        assert publisher.failure is not None
        assert "CONNECTION_FORCED" in str(publisher.failure)
        brokers.leader.wait_for_log("replication.stepped_down", "nothing was committed for 5 s")
        found = [body for body, _ in left_on(brokers.standby)]
        assert set(publisher.confirmed) <= set(found) <= set(publisher.published)
        proxy.is_deaf = False
        brokers.leader.wait_until(lambda: status(brokers.leader).get("leader") == "second")
    finally:
        brokers.kill()
