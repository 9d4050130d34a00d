"""What Prometheus is told beyond the listings that people see (METRIC-04, METRIC-08)."""

from __future__ import annotations

from typing import Any

import pytest
from pamqp import commands

from tests import wire
from tests.unit.server.admin.listings import listed, samples_of, views_of
from tests.unit.server.amqp_client import declare, got, publish
from tests.unit.server.in_memory import HEADER, Client
from tests.unit.server.on_disk import DiskWorld
from vouchmq.server.admin.details import Details, OverviewDetails
from vouchmq.server.admin.views import ALL
from vouchmq.server.runtime.loop_lag import LOOK_S, LoopLag


@pytest.fixture
def world() -> DiskWorld:
    return DiskWorld()


@pytest.fixture
def client(world: DiskWorld) -> Client:
    client = world.connect()
    client.ask(1, commands.Channel.Open())
    return client


def histogram(world: DiskWorld, name: str) -> dict[str, Any]:
    [row] = listed(world, "histograms", name=name)
    assert len(row["counts"]) == len(row["bounds"]) + 1
    return row


def bucket(row: dict[str, Any], number: float) -> int:
    """How often numbers of the bucket of this one were observed."""
    at = sum(bound < number for bound in row["bounds"])
    return int(row["counts"][at])


def test_confirms_that_wait_for_the_disk(world: DiskWorld, client: Client) -> None:
    client.ask(1, commands.Confirm.Select())
    client.ask(1, commands.Queue.Declare(queue="q", durable=True))
    publish(client, "q", b"one", b"two", delivery_mode=2)
    world.pass_time(0.3)
    publish(client, "q", b"three", delivery_mode=2)
    world.pass_time(0.04)
    assert sum(histogram(world, "confirm_seconds")["counts"]) == 0
    world.sync()
    world.sync()
    row = histogram(world, "confirm_seconds")
    assert (sum(row["counts"]), bucket(row, 0.34), bucket(row, 0.04)) == (3, 2, 1)
    assert row["total"] == pytest.approx(2 * 0.34 + 0.04)


def test_a_transient_publish_waits_for_no_disk(world: DiskWorld, client: Client) -> None:
    client.ask(1, commands.Confirm.Select())
    declare(client, "q")
    publish(client, "q", b"one")
    assert client.hear()
    assert sum(histogram(world, "confirm_seconds")["counts"]) == 0


def test_syncs_and_blocks(world: DiskWorld, client: Client) -> None:
    client.ask(1, commands.Confirm.Select())
    client.ask(1, commands.Queue.Declare(queue="q", durable=True))
    syncs, blocks = histogram(world, "sync_seconds"), histogram(world, "block_bytes")
    publish(client, "q", b"x" * 3000, delivery_mode=2)
    world.sync()
    [store] = listed(world, "store")
    row = histogram(world, "sync_seconds")
    assert sum(row["counts"]) == store["syncs"] > sum(syncs["counts"])
    row = histogram(world, "block_bytes")
    assert bucket(row, 3100) == bucket(blocks, 3100) + 1
    assert row["total"] > blocks["total"] + 3000


def test_one_histogram_or_all(world: DiskWorld) -> None:
    names = [row["name"] for row in listed(world, "histograms")]
    assert names == ["sync_seconds", "confirm_seconds", "loop_lag_seconds", "block_bytes"]
    assert listed(world, "histograms", name="other") == []


def test_the_journal_in_bytes(world: DiskWorld, client: Client) -> None:
    client.ask(1, commands.Queue.Declare(queue="q", durable=True))
    publish(client, "q", *[b"x" * 1000] * 8, delivery_mode=2)
    world.sync()
    [full] = listed(world, "store-details")
    [store] = listed(world, "store")
    assert store.items() <= full.items()
    assert (full["live_messages"], full["dead_bytes"]) == (8, 0)
    assert full["journal_bytes"] > full["queued_bytes"] > 8000
    client.ask(1, commands.Queue.Purge(queue="q"))
    world.run_turns()
    [purged] = listed(world, "store-details")
    assert (purged["live_messages"], purged["pages_refused"], purged["moved_bytes"]) == (0, 0, 0)
    assert purged["dead_bytes"] > 8000


def test_logins(world: DiskWorld) -> None:
    world.connect()
    stranger = world.client()
    stranger.send(HEADER)
    stranger.log_in("nobody")
    stranger.sleep(10)
    assert "Connection.Close" in stranger.names()
    rows = {row["protocol"]: row for row in listed(world, "login-attempts")}
    assert rows == {
        "amqp091": {"protocol": "amqp091", "succeeded": 1, "failed": 1},
        "http": {"protocol": "http", "succeeded": 0, "failed": 0},
    }


def test_the_loop_is_late_when_its_timer_is() -> None:
    now = 50.0
    asked: list[float] = []
    jobs = []

    def call_later(delay_s: float, job: Any) -> None:
        asked.append(delay_s)
        jobs.append(job)

    lag = LoopLag(call_later, lambda: now)
    lag.start()
    for late_s in (0.0, 0.2, -0.01):
        now += LOOK_S + late_s
        jobs.pop()()
    assert asked == [LOOK_S] * 4
    assert lag.histogram.total == pytest.approx(0.2)
    assert sum(lag.histogram.counts) == 3


def test_the_overview_with_more_columns(world: DiskWorld, client: Client) -> None:
    client.open(2)
    client.ask(1, commands.Confirm.Select())
    client.ask(1, commands.Queue.Declare(queue="c", durable=True))
    declare_stream = commands.Queue.Declare(
        queue="s", durable=True, arguments={"x-queue-type": "stream"}
    )
    client.ask(1, declare_stream)
    publish(client, "c", b"one", b"two")
    publish(client, "s", b"three")
    client.send(wire.publish(2, "c", b"four", commands.Basic.Properties()))
    client.method(1, commands.Basic.Get(queue="c"))
    world.sync()
    [row] = listed(world, "overview-details")
    [plain] = listed(world, "overview")
    assert plain.items() <= row.items()
    assert (row["published"], row["published_confirm"], row["publishers"]) == (4, 3, 2)
    assert row["routed"] == 4
    types = row["by_type"]
    assert {name: each["published"] for name, each in types.items()} == {
        "classic": 3,
        "quorum": 0,
        "stream": 1,
    }
    assert types["classic"]["delivered"] == 1
    client.hear()
    for queue in "cs":
        client.ask(1, commands.Queue.Delete(queue=queue))
    [row] = listed(world, "overview-details")
    assert row["by_type"] == types


def test_the_age_of_the_oldest_unacked_delivery(world: DiskWorld, client: Client) -> None:
    """It is known from the looks that are made once a second."""
    details = Details(views_of(world), lambda: world.now, lambda: 0, samples_of(world))

    def oldest_s() -> float:
        world.runtime.periodic_check.check(0)
        *_, row = details.overview(ALL)
        assert isinstance(row, OverviewDetails)
        return row.oldest_unacked_s

    declare(client, "q")
    publish(client, "q", b"one", b"two")
    assert oldest_s() == 0.0
    got(client, "q", no_ack=False)
    assert oldest_s() == 0.0
    world.pass_time(10)
    got(client, "q", no_ack=False)
    assert oldest_s() == pytest.approx(10)
    world.pass_time(20)
    assert oldest_s() == pytest.approx(30)
    client.method(1, commands.Basic.Ack(delivery_tag=1))
    world.pass_time(3)
    # The other one was delivered twenty seconds after the first.
    assert oldest_s() == pytest.approx(23)
    client.method(1, commands.Basic.Ack(delivery_tag=2))
    assert oldest_s() == 0.0
