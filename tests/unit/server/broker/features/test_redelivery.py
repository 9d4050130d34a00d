"""Delivery limits and delayed retries as clients see them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from pamqp import commands

from tests import wire
from tests.unit.server.amqp_client import bodies, declare, got, publish
from tests.unit.server.in_memory import World
from tests.unit.server.on_disk import DiskWorld

if TYPE_CHECKING:
    from tests.unit.server.in_memory import Client


@pytest.fixture
def world() -> World:
    """A broker."""
    return World()


@pytest.fixture
def client(world: World) -> Client:
    """A client with channel 1 open and a queue `dead`."""
    client = world.connect()
    client.open()
    declare(client, "dead")
    return client


TO_DEAD: dict[str, Any] = {"dead_letter_exchange": "", "dead_letter_routing_key": "dead"}


def give_back(client: Client, what: Any, *, reject: bool = False) -> None:
    """Return a delivery to its queue."""
    tag = what.method.delivery_tag
    if reject:
        client.method(1, commands.Basic.Reject(tag, True))
    else:
        client.send(wire.nack(1, tag))
    client.world.run_turns()


def counts(what: Any) -> tuple[int | None, int | None]:
    """x-delivery-count and x-acquired-count of a delivery."""
    headers = what.properties.headers or {}
    return headers.get("x-delivery-count"), headers.get("x-acquired-count")


def test_limit_of_two_means_three_deliveries(client: Client) -> None:
    """REDELIVER-10, REDELIVER-12, DLX-04."""
    declare(client, "q", delivery_limit=2, **TO_DEAD)
    publish(client, "q", b"x", headers={"x-delivery-count": 7})
    seen = []
    for _ in range(3):
        what = got(client, "q", no_ack=False)
        seen.append(counts(what))
        give_back(client, what)
    assert seen == [(7, None), (1, 1), (2, 2)]
    assert got(client, "q") is None
    dead_letter = got(client, "dead")
    assert dead_letter.properties.headers["x-death"][0]["reason"] == "delivery_limit"
    assert dead_letter.properties.headers["x-delivery-count"] == 7


def test_slow_work_is_not_poison(client: Client) -> None:
    """REDELIVER-11, REDELIVER-12: what a client has said of itself is not shown beside it."""
    declare(client, "q", delivery_limit=0, consumer_timeout=100, **TO_DEAD)
    publish(client, "q", b"x", headers={"x-delivery-count": 7})
    for number in range(3):
        [(_, what)] = client.consume("q", f"t{number}")
        assert counts(what) == ((None, number) if number else (7, None))
        client.world.pass_time(1)
        [(_, cancel)] = client.hear()
        assert isinstance(cancel, commands.Basic.Cancel)
    assert got(client, "dead") is None
    assert counts(got(client, "q")) == (None, 3)


def test_negative_is_unlimited(client: Client) -> None:
    declare(client, "q", delivery_limit=-1)
    publish(client, "q", b"x")
    for _ in range(30):
        give_back(client, got(client, "q", no_ack=False))
    assert bodies(client, "q") == [b"x"]


def test_end_of_a_channel_counts(client: Client) -> None:
    """REDELIVER-11."""
    declare(client, "q", delivery_limit=0, **TO_DEAD)
    publish(client, "q", b"x")
    client.open(2)
    client.method(2, commands.Basic.Get(queue="q"))
    client.hear()
    client.method(2, commands.Channel.Close(0, "", 0, 0))
    client.hear()
    assert bodies(client, "dead") == [b"x"]


@pytest.mark.parametrize(
    ("more", "delays"),
    [
        ({"delayed_retry_type": "all"}, [100, 200, 300]),
        ({"delayed_retry_type": "all", "delayed_retry_max": 150}, [100, 150, 150]),
        ({"delayed_retry_type": "failed"}, [100, 200, 300]),
        ({"delayed_retry_type": "returned"}, [0, 0, 0]),
        (
            {
                "delayed_retry_type": "all",
                "delayed_retry_backoff": "exponential",
                "delayed_retry_multiplier": 2,
            },
            [100, 200, 400],
        ),
    ],
)
def test_delays_grow(client: Client, more: dict[str, Any], delays: list[int]) -> None:
    """REDELIVER-20, REDELIVER-21."""
    declare(client, "q", delayed_retry_min=100, **more)
    publish(client, "q", b"x")
    for delay_ms in delays:
        what = got(client, "q", no_ack=False)
        assert what is not None
        give_back(client, what)
        if delay_ms:
            client.world.pass_time(delay_ms / 1000 - 0.002)
            assert client.message_count("q") == 0
            client.world.pass_time(0.004)
        assert client.message_count("q") == 1


def test_delayed_one_returns_to_its_place(client: Client) -> None:
    declare(client, "q", delayed_retry_type="all", delayed_retry_min=100)
    publish(client, "q", b"a", b"b")
    give_back(client, got(client, "q", no_ack=False))
    assert client.message_count("q") == 1
    client.world.pass_time(0.2)
    assert bodies(client, "q") == [b"a", b"b"]


def test_delayed_ones_count_toward_the_limit(client: Client) -> None:
    """REDELIVER-20."""
    declare(
        client,
        "q",
        delayed_retry_type="all",
        delayed_retry_min=100,
        max_length=1,
        overflow="reject-publish",
    )
    publish(client, "q", b"a")
    give_back(client, got(client, "q", no_ack=False))
    publish(client, "q", b"b")
    client.world.pass_time(0.2)
    assert bodies(client, "q") == [b"a"]


@pytest.mark.parametrize(
    "how",
    [
        wire.nack(2, 0, multiple=True),
        wire.method(2, commands.Basic.Recover(True)),
        wire.method(2, commands.Channel.Close(200, "", 0, 0)),
    ],
    ids=["nack", "recover", "close"],
)
def test_those_that_begin_to_wait_push_others_out_at_once(client: Client, how: bytes) -> None:
    """REDELIVER-20, LEN-06: who is out counts for nothing, who waits for a retry does."""
    declare(client, "q", max_length=2, delayed_retry_type="all", delayed_retry_min=100)
    client.open(2)
    publish(client, "q", b"a", b"b")
    for _ in range(2):
        client.method(2, commands.Basic.Get(queue="q"))
    client.hear()
    publish(client, "q", b"c", b"d")
    queue = client.world.vhost.queues["q"]
    assert (queue.held_count, queue.ready_count) == (2, 2)
    client.send(how)
    client.world.run_turns()
    assert (queue.held_count, queue.ready_count) == (2, 0)
    client.hear()
    client.world.pass_time(1)
    assert bodies(client, "q") == [b"a", b"b"]


def test_quorum_type_has_a_limit_and_gives_back_first(client: Client) -> None:
    """REDELIVER-14, PRIO-07, QUORUM-03, QUORUM-04."""
    arguments = {"x-queue-type": "quorum"}
    client.ask(1, commands.Queue.Declare(queue="q", durable=True, arguments=arguments))  # type: ignore[arg-type]
    publish(client, "q", b"low", priority=0)
    publish(client, "q", b"none")
    publish(client, "q", b"high", priority=31)
    client.world.sync()
    assert sum(len(raws) for _, _, raws in client.world.calls.runs) == 3  # transient ones, too
    first, second = got(client, "q", no_ack=False), got(client, "q", no_ack=False)
    assert (first.body, second.body) == (b"high", b"none")
    give_back(client, second)
    give_back(client, first)
    assert bodies(client, "q") == [b"none", b"high", b"low"]
    publish(client, "q", b"poison")
    for _ in range(21):
        give_back(client, got(client, "q", no_ack=False))
    assert got(client, "q") is None


def test_purge_spares_what_waits_for_its_retry(client: Client) -> None:
    """QUEUE-60, REDELIVER-20: what is ready goes, what is aside comes back with its count."""
    arguments = {
        "x-queue-type": "quorum",
        "x-delayed-retry-type": "all",
        "x-delayed-retry-min": 1000,
    }
    client.ask(1, commands.Queue.Declare(queue="q", durable=True, arguments=arguments))  # type: ignore[arg-type]
    publish(client, "q", b"waits", b"ready")
    give_back(client, got(client, "q", no_ack=False), reject=True)
    client.method(1, commands.Queue.Purge(queue="q"))
    client.hear()
    client.world.pass_time(1.1)
    what = got(client, "q", no_ack=False)
    assert (what.body, counts(what)[0]) == (b"waits", 1)


@pytest.mark.parametrize("is_purged", [False, True])
def test_a_restart_counts_nothing_for_one_that_expired_unseen(is_purged: bool) -> None:
    """REDELIVER-13, DLX-23: those behind it were out, so that the mark of its queue is past it."""
    world = DiskWorld()
    client = world.connect()
    client.open()
    table: Any = {"x-message-ttl": 1000, "x-delivery-limit": 1, "x-dead-letter-exchange": ""}
    client.ask(1, commands.Queue.Declare(queue="q", durable=True, arguments=table))
    client.send(wire.publish(1, "q", b"unseen", wire.persistent()))
    world.sync()
    world.now += 2
    world.context.alarms.is_disk_low = True  # no dead letters for now
    client.ask(1, commands.Basic.Qos(prefetch_count=1))
    client.method(1, commands.Basic.Consume(queue="q", consumer_tag="c"))
    client.hear()
    if is_purged:
        client.ask(1, commands.Queue.Purge(queue="q"))
    client.send(wire.publish(1, "q", b"seen", wire.persistent()))
    world.sync()
    assert [what.body for _, what in client.hear() if isinstance(what, wire.Content)] == [b"seen"]
    world.now -= 2  # so that what the broker knows of the expired one can be seen
    client = world.after_power_cut().connect()
    client.open()
    found = [got(client, "q", no_ack=False) for _ in range(2)]
    assert [(what.body, counts(what)[0]) for what in found] == [(b"unseen", None), (b"seen", 1)]


@pytest.mark.parametrize("waiting", [(0, 1, 4), (5,), (2, 3)])
def test_after_a_restart_a_retry_returns_to_its_original_position(waiting: tuple[int, ...]) -> None:
    """ACK-10, REDELIVER-22: messages older than it may still be on disk, and unread."""
    world = DiskWorld(rings=True)
    client = world.connect()
    client.open()
    table: Any = {"x-delayed-retry-type": "all", "x-delayed-retry-min": 10_000}
    client.ask(1, commands.Queue.Declare(queue="q", durable=True, arguments=table))
    for number in range(6):
        client.send(wire.publish(1, "q", b"%d" % number, wire.persistent()))
    world.sync()
    there = [got(client, "q", no_ack=False) for _ in range(6)]
    for number in waiting:
        give_back(client, there[number])
    # Delivery counts go to disk with the next block.
    client.send(wire.publish(1, "q", b"6", wire.persistent()))
    world.sync()
    world = world.after_power_cut()
    client = world.connect()
    client.open()
    assert [queue.ready_count for queue in world.vhost.queues.values()] == [7 - len(waiting)]
    world.pass_time(10.1)
    assert bodies(client, "q") == [b"%d" % number for number in range(7)]
