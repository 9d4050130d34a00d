"""The HTTP API of a leader, whose log three servers keep."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.engine.brokers import Brokers, status
from tests.engine.servers import MISSING, Cluster, loopback_cluster, program
from tests.integration.broker_process import run_command
from tests.integration.management import FLAGS, READY, ask, login
from tests.waiting import wait_until

pytestmark = pytest.mark.skipif(program() is None, reason=MISSING)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    """Three servers."""
    made = loopback_cluster(tmp_path / "engine")
    try:
        made.start()
        yield made
    finally:
        made.stop()


@pytest.fixture
def brokers(tmp_path: Path, cluster: Cluster) -> Iterator[Brokers]:
    """A leader and a standby, both of them told to run a management process."""
    made = Brokers(tmp_path, cluster, more=FLAGS)
    try:
        made.start()
        made.leader.wait_until(lambda: READY.search(made.leader.output()))
        yield made
    finally:
        made.kill()


def url_of(brokers: Brokers) -> str:
    """The address of the leader's HTTP API, with a login."""
    return f"http://guest:guest@127.0.0.1:{port_of(brokers)}"


def port_of(brokers: Brokers) -> int:
    """Where the leader's management process listens."""
    return int(READY.findall(brokers.leader.output())[-1])


def node_of(brokers: Brokers) -> dict[str, Any]:
    """The leader as its HTTP API tells it."""
    got = ask(port_of(brokers), "GET", "/api/nodes", headers=login("guest", "guest"))
    assert got.status == 200, got
    [node] = got.body
    named = ask(port_of(brokers), "GET", "/api/nodes/first", headers=login("guest", "guest"))
    assert set(named.body) == set(node)
    found: dict[str, Any] = node
    return found


def test_the_node_tells_of_its_shared_log(brokers: Brokers) -> None:
    wait_until(lambda: node_of(brokers)["shared_log"]["standbys"])
    node = node_of(brokers)
    log = node["shared_log"]
    assert node["replication_alarm"] is False
    assert (log["role"], log["leader"], log["stream"]) == ("leader", "first", "orders")
    assert (log["epoch"], log["trouble"]) == (1, "")
    assert log["committed_sequence"] >= log["sequence"] > 0
    [standby] = log["standbys"]
    assert standby["node"] == "second"
    assert standby["address"].startswith("127.0.0.1:")
    assert log["leader_address"] == f"127.0.0.1:{brokers.leader.port}"
    assert standby["address"] != log["leader_address"]
    assert standby["sequence"] > 0
    assert standby["heard_s"] >= 0
    assert set(log) == set(status(brokers.leader))
    # A standby serves no HTTP.
    assert status(brokers.standby)["role"] == "standby"
    assert not READY.search(brokers.standby.output())


def test_the_role_is_asked_for_over_http(brokers: Brokers) -> None:
    wait_until(lambda: node_of(brokers)["shared_log"]["standbys"])
    log = node_of(brokers)["shared_log"]
    told = run_command("ha", "status", "--json", "--url", url_of(brokers))
    assert (told.returncode, told.stderr) == (0, "")
    assert json.loads(told.stdout)["leader"] == "first"
    shown = run_command("ha", "status", "--url", url_of(brokers)).stdout
    assert f"standby:              second at {log['standbys'][0]['address']}, can" in shown
    assert "no limit" in shown
    assert "3 of 3 servers have all of it" in shown


def test_a_standby_says_whom_to_ask(brokers: Brokers) -> None:
    place = ("--data-dir", str(brokers.standby.data_dir))
    told = run_command("ledger", "inventory", *place)
    text = "vouchmq: ledger inventory: this broker is a standby: ask the leader, first\n"
    assert (told.returncode, told.stderr) == (1, text)
    told = run_command("doctor", *place, *brokers.settings)
    assert "ok      broker: process" in told.stdout
    assert "a standby that can take over" in told.stdout
    assert "ok      shared log: 3 of 3 servers have all of the stream orders" in told.stdout
    assert "ports" not in told.stdout
    told = run_command("ha", "handover", *place)
    assert (told.returncode, told.stderr) == (
        1,
        "vouchmq: ha handover: this broker does not lead\n",
    )


def test_a_log_without_a_majority_raises_the_alarm(brokers: Brokers, cluster: Cluster) -> None:
    lost = cluster.servers[1:]
    for each in lost:
        each.kill()
    wait_until(lambda: node_of(brokers)["replication_alarm"])
    told = run_command("ha", "status", "--url", url_of(brokers))
    assert told.returncode == 1
    assert "publishers blocked:   yes" in told.stdout
    # What the standby says of itself is what the leader hears of it.
    wait_until(lambda: not status(brokers.standby)["can_take_over"])
    told = run_command("ha", "status", "--data-dir", str(brokers.standby.data_dir))
    assert told.returncode == 1
    assert "can take over:        no" in told.stdout
    told = run_command("doctor", "--data-dir", str(brokers.standby.data_dir), *brokers.settings)
    assert told.returncode == 1
    assert "error   shared log: " in told.stdout
    assert "warning broker: process" in told.stdout
    for each in lost:
        each.start()
    cluster.wait_until_ready()
    wait_until(lambda: not node_of(brokers)["replication_alarm"])
