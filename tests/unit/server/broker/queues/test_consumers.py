"""Single active consumer as clients see it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from pamqp import commands

from tests import wire
from tests.unit.server.amqp_client import declare, publish
from tests.unit.server.in_memory import World, closes_channel, delivery

if TYPE_CHECKING:
    from tests.unit.server.in_memory import Client


@pytest.fixture
def world() -> World:
    """A broker."""
    return World()


@pytest.fixture
def client(world: World) -> Client:
    """A client with channels 1 and 2 open and a queue `q` with one active consumer."""
    client = world.connect()
    client.open()
    client.open(2)
    declare(client, "q", single_active_consumer=True)
    return client


def who(client: Client) -> list[tuple[str, bytes]]:
    """Deliveries heard, as (consumer tag, body)."""
    return [(tag, body) for tag, _, body, _ in (delivery(what) for _, what in client.hear())]


def test_first_is_served_alone_then_the_next(client: Client) -> None:
    """CONS-30, CONS-31."""
    for tag in ("a", "b", "c"):
        client.consume("q", tag)
    publish(client, "q", b"1", b"2")
    assert who(client) == [("a", b"1"), ("a", b"2")]
    client.ask(1, commands.Basic.Cancel("a"))
    publish(client, "q", b"3")
    assert who(client) == [("b", b"3")]


def test_outstanding_ones_of_a_dead_channel_go_to_the_successor(client: Client) -> None:
    """CONS-31."""
    client.consume("q", "a", channel=2)
    client.consume("q", "b")
    publish(client, "q", b"1")
    assert who(client) == [("a", b"1")]
    client.method(2, commands.Channel.Close(0, "", 0, 0))
    heard = [what for _, what in client.hear() if isinstance(what, wire.Content)]
    assert [delivery(what) for what in heard] == [("b", 1, b"1", True)]


def test_successor_by_priority_then_age(client: Client) -> None:
    """CONS-30, CONS-32: nobody is displaced in a classic queue."""
    client.consume("q", "a")
    client.consume("q", "old")
    for tag, priority in (("high", 5), ("higher", 5)):
        client.method(
            1,
            commands.Basic.Consume(queue="q", consumer_tag=tag, arguments={"x-priority": priority}),
        )
        client.hear()
    publish(client, "q", b"1")
    assert who(client) == [("a", b"1")]
    for tag, successor in (("a", "high"), ("high", "higher"), ("higher", "old")):
        client.ask(1, commands.Basic.Cancel(tag))
        publish(client, "q", b"x")
        assert who(client) == [(successor, b"x")]


def test_exclusive_is_refused(client: Client) -> None:
    """CONS-05."""
    text = "ACCESS_REFUSED - queue 'q' in vhost '/' in exclusive use"
    with closes_channel(client, 403, text, (60, 20)):
        client.method(1, commands.Basic.Consume(queue="q", consumer_tag="x", exclusive=True))


def test_all_of_them_hear_of_the_deletion(client: Client) -> None:
    """CONS-40."""
    client.consume("q", "a", channel=2)
    client.consume("q", "b", channel=2)
    client.method(1, commands.Queue.Delete(queue="q"))
    client.world.sync()
    said = [what for channel, what in client.hear() if channel == 2]
    assert [what.consumer_tag for what in said if isinstance(what, commands.Basic.Cancel)] == [
        "a",
        "b",
    ]
