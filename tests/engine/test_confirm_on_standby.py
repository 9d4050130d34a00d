"""Confirms that wait for the disk of a standby, on a real engine."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.engine.brokers import Brokers, Publisher, declare, left_on, status
from tests.engine.servers import MISSING, NatsServer, program, wait_until
from tests.integration.broker_process import BrokerProcess, run_command

pytestmark = pytest.mark.skipif(program() is None, reason=MISSING)


@pytest.fixture
def brokers(tmp_path: Path, engine: NatsServer) -> Iterator[Brokers]:
    """Two brokers that run; the one that leads waits for the other."""
    made = Brokers(tmp_path, engine, more=("--ha-confirm", "log+standby"))
    try:
        made.start()
        yield made
    finally:
        made.kill()


def wait_until_stalled(leader: BrokerProcess, *, is_stalled: bool) -> None:
    """By its state: on a busy machine the alarm was also raised before the standby had started."""
    leader.wait_until(lambda: status(leader).get("is_stalled") is is_stalled)


def test_what_was_confirmed_is_on_a_standby_whatever_else_is_lost(
    brokers: Brokers, engine: NatsServer
) -> None:
    """The engine loses all that it has acknowledged, and the leader is lost with its disk."""
    declare(brokers.leader)
    publisher = Publisher(brokers.leader, lambda _: None)
    publisher.wait(100)
    brokers.standby.kill9()
    brokers.leader.kill9()
    publisher.join()
    shutil.rmtree(brokers.leader.data_dir)
    engine.kill()
    shutil.rmtree(engine.directory / "jetstream")
    engine.start()
    wait_until(engine.is_ready, "a server")
    made = run_command(
        *("ha", "rescue", "--data-dir", str(brokers.standby.data_dir)),
        *("--replicas", "1", *brokers.log),
    )
    assert made.returncode == 0, made.stderr
    brokers.standby.start()
    found = {body for body, _ in left_on(brokers.standby)}
    assert set(publisher.confirmed) <= found <= set(publisher.published)


def test_nothing_is_confirmed_while_no_standby_syncs(brokers: Brokers) -> None:
    declare(brokers.leader)
    publisher = Publisher(brokers.leader, lambda _: None)
    publisher.wait(10)
    brokers.standby.kill9()
    wait_until_stalled(brokers.leader, is_stalled=True)
    brokers.leader.wait_for_log("replication.standby_awaited")
    brokers.leader.wait_for_log("alarm.raised", "replication")
    confirmed = len(publisher.confirmed)
    said = run_command("ha", "status", "--data-dir", str(brokers.leader.data_dir))
    assert said.returncode == 1
    assert "bytes on no standby" in said.stdout
    assert int(str(status(brokers.leader)["standby_waiting_bytes"])) > 0
    # The log has it.
    assert status(brokers.leader)["uncommitted_bytes"] == 0
    assert len(publisher.confirmed) == confirmed
    brokers.standby.begin()
    wait_until_stalled(brokers.leader, is_stalled=False)
    brokers.leader.wait_for_log("alarm.cleared", "replication")
    publisher.wait(10)
    publisher.is_to_end = True
    publisher.join()
    assert publisher.failure is None
    assert {body for body, _ in left_on(brokers.leader)} == set(publisher.published)


def test_a_paused_standby_goes_on_and_what_waits_is_confirmed(brokers: Brokers) -> None:
    declare(brokers.leader)
    publisher = Publisher(brokers.leader, lambda _: None)
    publisher.wait(10)
    os.kill(brokers.standby.pid, signal.SIGSTOP)
    wait_until_stalled(brokers.leader, is_stalled=True)
    os.kill(brokers.standby.pid, signal.SIGCONT)
    publisher.wait(50)
    publisher.is_to_end = True
    publisher.join()
    assert publisher.failure is None
