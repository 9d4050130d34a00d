"""Peeking shows messages wherever they are, and changes nothing."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast

import pytest
from pamqp import commands

from tests import wire
from tests.unit.server.admin.listings import listed
from tests.unit.server.admin.operating import asked, begun, refused
from tests.unit.server.amqp_client import bodies, declare, got, publish
from tests.unit.server.in_memory import SETTINGS, WALL_MS, Client, World
from vouchmq.server.channel.channel import Channel


@pytest.fixture
def world() -> World:
    return World()


@pytest.fixture
def client(world: World) -> Client:
    client = world.connect()
    client.open()
    return client


def peeked(world: World, **arguments: object) -> list[dict[str, Any]]:
    reader = begun(world, "peek", **arguments)
    world.run_turns()
    assert reader.facts is not None
    assert (reader.facts["ok"], reader.facts["count"]) == (True, len(reader.lines))
    return reader.lines


def seen(world: World, **arguments: object) -> list[bytes]:
    return [row["body"] for row in peeked(world, **arguments)]


def numbered(count: int) -> list[bytes]:
    return [b"%06d" % n for n in range(count)]


def test_nothing_changes_by_it(world: World, client: Client) -> None:
    declare(client, "q", delivery_limit=0, message_ttl=60_000, expires=60_000)
    publish(client, "q", *numbered(5), content_type="text/plain", headers={"n": 1})
    before = listed(world, "queues")
    world.pass_time(1)
    for _ in range(3):
        rows = peeked(world, name="q", first=1, count=3)
    assert [(row["place"], row["body"]) for row in rows] == [
        (1, b"000001"),
        (2, b"000002"),
        (3, b"000003"),
    ]
    assert {row["state"] for row in rows} == {"ready"}
    assert {row["redelivered"] for row in rows} == {False}
    assert rows[0]["properties"] == {"content_type": "text/plain", "headers": {"n": 1}}
    assert (rows[0]["exchange"], rows[0]["routing_key"]) == ("", "q")
    assert rows[0]["arrived_ms"] == WALL_MS + 1_000_000
    assert listed(world, "queues") == before
    assert not got(client, "q").method.redelivered
    assert bodies(client, "q") == numbered(5)[1:]


def test_bodies_are_cut_and_may_span_frames(world: World, client: Client) -> None:
    declare(client, "q")
    body = b"0123456789" * 30_000
    assert asked(world, "publish", routing_key="q", body=body)["routed"]
    [row] = peeked(world, name="q", body_bytes=10_000)
    assert (row["size"], row["body"]) == (300_000, body[:10_000])
    assert seen(world, name="q", body_bytes=None) == [body]
    assert seen(world, name="q", body_bytes=0) == [b""]


def test_a_queue_that_is_on_disk_is_read_from_there(world: World, client: Client) -> None:
    client.declare("q", durable=True)
    publish(client, "q", *numbered(3000), delivery_mode=2)
    world.sync()
    world.disk.crash(0)
    reborn = World(disk=world.disk)
    line = reborn.vhost.queues["q"].ready
    assert (len(line.ready), line.count) == (0, 3000)
    assert seen(reborn, name="q", first=1490, count=1000) == numbered(3000)[1490:2490]
    assert seen(reborn, name="q", first=2990, count=1000) == numbered(3000)[2990:]
    assert seen(reborn, name="q", first=3000) == []
    assert (len(line.ready), line.count) == (0, 3000)


@pytest.mark.parametrize("mode", [1, 2])
def test_a_queue_that_is_partly_paged_out(mode: int) -> None:
    world = World(replace(SETTINGS, queue_memory_bytes=1 << 16, queues_memory_bytes=1 << 17))
    client = world.connect()
    client.open()
    client.declare("q", durable=True)
    for at in range(0, 2000, 100):
        publish(
            client,
            "q",
            *(b"%06d" % n + bytes(200) for n in range(at, at + 100)),
            delivery_mode=mode,
        )
        world.sync()
    backlog = world.vhost.queues["q"].ready.backlog
    assert backlog is not None
    assert backlog.paged_count
    before = (world.pager.total, backlog.paged_count)
    expected = numbered(2000)
    for first in (0, 1, 99, 500, 1950):
        found = seen(world, name="q", first=first, count=100, body_bytes=6)
        assert found == expected[first : first + 100]
    assert (world.pager.total, backlog.paged_count) == before
    assert [body[:6] for body in bodies(client, "q")] == expected


def test_what_came_back_stands_at_its_place(world: World, client: Client) -> None:
    declare(client, "q")
    publish(client, "q", *numbered(6000))
    # Some from the midst come back, more than a turn merges.
    client.consume("q", "c")
    client.method(1, commands.Basic.Cancel(consumer_tag="c"))
    client.hear()
    client.send(*(wire.ack(1, tag) for tag in range(1, 6001, 3)))
    publish(client, "q", b"new")
    client.ask(1, commands.Channel.Close(0, "", 0, 0))
    expected = [body for at, body in enumerate(numbered(6000)) if at % 3] + [b"new"]
    for first in (3999, 0, 2500):
        assert seen(world, name="q", first=first, count=100) == expected[first : first + 100]
    rows = peeked(world, name="q", first=3999)
    assert [row["redelivered"] for row in rows] == [True, False]
    client.open()
    assert bodies(client, "q") == expected


def test_priorities_in_the_order_of_delivery(world: World, client: Client) -> None:
    declare(client, "q", max_priority=5)
    for priority in (1, 5, 1, 3):
        publish(client, "q", b"%d" % priority, priority=priority)
    assert seen(world, name="q") == [b"5", b"3", b"1", b"1"]
    assert seen(world, name="q", first=1, count=2) == [b"3", b"1"]
    assert bodies(client, "q") == [b"5", b"3", b"1", b"1"]


def test_who_holds_what_since_when(world: World) -> None:
    world = World(replace(SETTINGS, consumer_timeout_ms=60_000))
    client = world.connect()
    client.open()
    client.open(2)
    declare(client, "q")
    publish(client, "q", *numbered(6))
    client.qos(3, channel=2)
    client.consume("q", "c", 2)
    client.method(1, commands.Basic.Get(queue="q"))
    client.hear()
    client.send(wire.ack(2, 2))
    world.now += 5
    client.hear()
    rows = peeked(world, name="q", state="unacknowledged")
    name = client.connection.label
    shown = [
        (row["body"], row["connection"], row["channel"], row["consumer"], row["delivery_tag"])
        for row in rows
    ]
    assert shown == [
        (b"000003", name, 1, "", 1),
        (b"000000", name, 2, "c", 1),
        (b"000002", name, 2, "c", 3),
        (b"000004", name, 2, "c", 4),
    ]
    assert [row["held_since_ms"] for row in rows] == [
        *[WALL_MS + 1_000_000] * 3,
        WALL_MS + 1_005_000,
    ]
    [row] = peeked(world, name="q", state="unacknowledged", first=2, count=1)
    assert (row["place"], row["body"]) == (2, b"000002")
    assert world.vhost.queues["q"].unacked_count == 4
    client.ask(1, commands.Tx.Select())
    client.send(wire.ack(1, 1))
    assert len(peeked(world, name="q", state="unacknowledged")) == 4


def test_what_waits_for_a_retry_and_what_is_delayed(world: World, client: Client) -> None:
    declare(client, "q", delayed_retry_type="all", delayed_retry_min=5_000)
    publish(client, "q", b"again")
    assert got(client, "q", no_ack=False) is not None
    client.send(wire.method(1, commands.Basic.Reject(delivery_tag=1, requeue=True)))
    client.hear()
    assert seen(world, name="q") == []
    [row] = peeked(world, name="q", state="waiting")
    assert (row["body"], row["due_ms"]) == (b"again", WALL_MS + 1_005_000)
    arguments = {"x-delayed-type": "direct"}
    client.ask(
        1,
        commands.Exchange.Declare(
            exchange="x",
            exchange_type="x-delayed-message",
            durable=True,
            arguments=arguments,  # type: ignore[arg-type]
        ),
    )
    for delay in (9000, 3000, 6000):
        block = commands.Basic.Properties(headers={"x-delay": delay})
        client.send(wire.publish(1, "k", b"%d" % delay, block, exchange="x"))
    client.hear()
    rows = peeked(world, exchange="x", first=1)
    assert [(row["body"], row["state"], row["due_ms"]) for row in rows] == [
        (b"6000", "delayed", WALL_MS + 1_006_000),
        (b"9000", "delayed", WALL_MS + 1_009_000),
    ]


def test_any_offset_of_a_stream(world: World, client: Client) -> None:
    table = {"x-queue-type": "stream"}
    client.ask(1, commands.Queue.Declare(queue="s", durable=True, arguments=table))  # type: ignore[arg-type]
    for at in range(0, 2500, 500):
        publish(client, "s", *numbered(2500)[at : at + 500])
    world.sync()
    for first in (0, 7, 1499, 2490):
        rows = peeked(world, name="s", first=first, count=1200)
        assert [row["place"] for row in rows] == list(range(first, min(first + 1200, 2500)))
        assert [row["body"] for row in rows] == numbered(2500)[first : first + 1200]
    assert seen(world, name="s", first=2500) == []
    publish(client, "s", b"not on disk yet")
    assert seen(world, name="s", first=2500) in ([], [b"not on disk yet"])


def test_many_come_in_slices(world: World, client: Client) -> None:
    declare(client, "q")
    publish(client, "q", *numbered(1000))
    world.tick_s = 0.01
    reader = begun(world, "peek", name="q", count=1000)
    assert 0 < len(reader.lines) < 1000
    world.run_turns()
    assert [row["body"] for row in reader.lines] == numbered(1000)
    gone = begun(world, "peek", name="q", count=1000)
    gone.is_open = False
    world.run_turns()
    assert len(gone.lines) < 1000


def test_permissions_and_mistakes(world: World, client: Client) -> None:
    client.declare("mine", exclusive=True)
    publish(client, "mine", b"m")
    text = "ACCESS_REFUSED - read access to queue 'mine' in vhost '/' refused for user 'poor'"
    assert refused(world, "peek", name="mine", user="poor") == (403, text)
    assert refused(world, "peek", name="mine", user="other")[0] == 405
    assert seen(world, name="mine") == [b"m"]
    assert refused(world, "peek", name="none")[0] == 404
    assert refused(world, "peek", exchange="amq.direct")[0] == 404
    assert refused(world, "peek")[0] == 400
    assert refused(world, "peek", name="q", exchange="x")[0] == 400
    assert refused(world, "peek", name="mine", state="eaten")[0] == 400


def test_large_bodies_come_in_small_pieces(world: World, client: Client) -> None:
    """LIMIT-23: rows are made until they have a mebibyte together."""
    declare(client, "q")
    for _ in range(9):
        assert asked(world, "publish", routing_key="q", body=b"x" * 600_000)["routed"]
    reader = begun(world, "peek", name="q", body_bytes=None)
    sizes = []
    send = reader.send

    def heard(content: Any) -> None:
        sizes.append(len(content.get("rows", ())))
        send(content)

    reader.send = heard  # type: ignore[method-assign]
    world.run_turns()
    assert len(reader.lines) == 9
    assert max(sizes) == 2


def test_who_holds_nothing_of_a_queue_is_passed_over_in_slices(
    world: World, client: Client
) -> None:
    """LIMIT-23: there may be very many channels and deliveries of other queues."""
    declare(client, "q")
    declare(client, "other")
    publish(client, "other", *numbered(400))
    publish(client, "q", *numbered(400))
    for _ in range(400):
        client.send(wire.method(1, commands.Basic.Get(queue="other")))
        client.send(wire.method(1, commands.Basic.Get(queue="q")))
    client.hear()
    world.tick_s = 0.001  # a slice is two looks at the clock
    reader = begun(world, "peek", name="q", state="unacknowledged", first=399, count=1)
    turns = 0
    while reader.facts is None:
        scheduled, world.scheduled[:] = list(world.scheduled), []
        for job in scheduled:
            job()
        turns += 1
    assert [row["place"] for row in reader.lines] == [399]
    # 400 runs of others and 399 deliveries before the one: 64 between two looks.
    assert turns > 5


def test_since_when_is_known_to_the_second_without_a_timeout(world: World, client: Client) -> None:
    """HTTP-34: once a second each channel notes how far it has come, and nothing per delivery."""
    declare(client, "q")
    publish(client, "q", *numbered(6))
    check = world.runtime.periodic_check.check

    def since() -> list[int]:
        rows = peeked(world, name="q", state="unacknowledged")
        return [(row["held_since_ms"] - WALL_MS) // 1000 for row in rows]

    for _ in range(2):
        client.send(wire.method(1, commands.Basic.Get(queue="q")))
    assert since() == [1000, 1000]
    world.now += 1
    check(0)
    world.now += 1
    client.send(wire.method(1, commands.Basic.Get(queue="q")))
    check(0)
    world.now += 8
    check(0)
    client.send(wire.method(1, commands.Basic.Get(queue="q")))
    assert since() == [1001, 1001, 1002, 1010]
    client.send(wire.ack(1, 2, multiple=True))
    check(0)
    assert since() == [1002, 1010]


class Asked:
    """A channel that says when it is to note times."""

    def __init__(self, noted: list[object]) -> None:
        self._noted = noted

    def note_times(self) -> None:
        self._noted.append(None)


def test_very_many_channels_note_times_in_slices(world: World) -> None:
    """LIMIT-23."""
    for _ in range(200):
        world.connect().open()
    noted: list[object] = []
    stand_in = cast("Channel", Asked(noted))
    for connection in world.connections:
        connection.channels.update(dict.fromkeys(connection.channels, stand_in))
    world.tick_s = 0.0005
    check = world.runtime.periodic_check
    check.check(0)
    assert 0 < len(noted) < 200
    check.check(0)  # the last round goes on
    world.tick_s = 0.0
    world.run_turns()
    assert len(noted) == 200
