"""A paused queue takes everything and hands out nothing, also after a restart."""

from __future__ import annotations

import pytest
from pamqp import commands

from tests import wire
from tests.unit.server.admin.listings import listed
from tests.unit.server.admin.operating import asked, begun, refused
from tests.unit.server.amqp_client import bodies, declare, got, publish
from tests.unit.server.in_memory import Client, World


@pytest.fixture
def world() -> World:
    return World()


@pytest.fixture
def client(world: World) -> Client:
    client = world.connect()
    client.open()
    return client


def given(client: Client) -> list[bytes]:
    return [body for _, _, body, _ in client.deliveries()]


def paused(world: World) -> dict[str, bool]:
    return {row["name"]: row["paused"] for row in listed(world, "queues")}


@pytest.mark.parametrize("arguments", [{}, {"max_priority": 3}, {"single_active_consumer": True}])
def test_consumers_wait_and_go_on(
    world: World, client: Client, arguments: dict[str, object]
) -> None:
    declare(client, "q", **arguments)
    client.qos(2)
    client.consume("q", "a")
    publish(client, "q", b"1", b"2", b"3")
    assert given(client) == [b"1", b"2"]
    assert asked(world, "pause queue", name="q") == {"ok": True, "changed": True}
    assert asked(world, "pause queue", name="q") == {"ok": True, "changed": False}
    client.send(wire.ack(1, 2, multiple=True))
    publish(client, "q", b"4")
    assert client.hear() == []
    client.consume("q", "b")
    assert client.hear() == []
    assert got(client, "q") is None
    [row] = listed(world, "queues")
    assert (row["paused"], row["messages_ready"], row["consumers"]) == (True, 2, 2)
    client.method(1, commands.Basic.Cancel(consumer_tag="b"))
    assert client.names() == ["Basic.CancelOk"]
    assert asked(world, "resume queue", name="q") == {"ok": True, "changed": True}
    assert given(client) == [b"3", b"4"]


def test_what_expires_while_paused_is_gone(world: World, client: Client) -> None:
    declare(client, "dead")
    declare(client, "q", message_ttl=100, dead_letter_exchange="", dead_letter_routing_key="dead")
    client.consume("q", "c")
    asked(world, "pause queue", name="q")
    publish(client, "q", b"1")
    world.pass_time(1)
    asked(world, "resume queue", name="q")
    assert client.hear() == []
    assert bodies(client, "dead") == [b"1"]


def test_an_immediate_publish_finds_nobody(world: World, client: Client) -> None:
    declare(client, "q")
    client.consume("q", "c")
    asked(world, "pause queue", name="q")
    client.send(wire.publish(1, "q", b"now", immediate=True))
    assert client.names() == ["Basic.Return"]


def test_a_stream_may_be_paused(world: World, client: Client) -> None:
    table = {"x-queue-type": "stream"}
    client.ask(1, commands.Queue.Declare(queue="s", durable=True, arguments=table))  # type: ignore[arg-type]
    client.qos(10)
    client.consume("s", "c")
    asked(world, "pause queue", name="s")
    publish(client, "s", b"1", b"2")
    world.sync()
    assert client.hear() == []
    asked(world, "resume queue", name="s")
    assert given(client) == [b"1", b"2"]


def test_a_restart_keeps_it_and_deleting_ends_it(world: World, client: Client) -> None:
    client.declare("q", durable=True)
    client.declare("other", durable=True)
    publish(client, "q", b"1", delivery_mode=2)
    asked(world, "pause queue", name="q")
    asked(world, "pause queue", name="other")
    asked(world, "resume queue", name="other")
    for _ in range(2):
        # The second finds it in the definitions that the first has written anew.
        world.disk.crash(0)
        world = World(disk=world.disk)
        assert paused(world) == {"q": True, "other": False}
    client = world.connect()
    client.open()
    client.consume("q", "c")
    assert client.hear() == []
    asked(world, "resume queue", name="q")
    assert given(client) == [b"1"]
    asked(world, "pause queue", name="q")
    asked(world, "delete queue", name="q")
    asked(world, "put queue", name="q")
    world.disk.crash(0)
    assert paused(World(disk=world.disk)) == {"q": False, "other": False}


def test_it_is_answered_when_it_is_on_disk(world: World, client: Client) -> None:
    client.declare("q", durable=True)
    reader = begun(world, "pause queue", name="q")
    world.run_turn()
    assert not reader.has_answer()
    world.sync()
    assert reader.facts == {"ok": True, "changed": True}


def test_permissions_and_mistakes(world: World, client: Client) -> None:
    text = "ACCESS_REFUSED - configure access to queue 'q' in vhost '/' refused for user 'poor'"
    assert refused(world, "pause queue", name="q", user="poor") == (403, text)
    assert refused(world, "resume queue", name="q") == (
        404,
        "NOT_FOUND - no queue 'q' in vhost '/'",
    )
    client.declare("mine", exclusive=True)
    assert refused(world, "pause queue", name="mine")[0] == 405
