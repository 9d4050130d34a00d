"""Length limits as clients see them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from pamqp import commands

from tests import wire
from tests.unit.server.amqp_client import bodies, confirms, declare, got, publish
from tests.unit.server.in_memory import World, closes_channel, delivery

if TYPE_CHECKING:
    from tests.unit.server.in_memory import Client


@pytest.fixture
def world() -> World:
    """A broker."""
    return World()


@pytest.fixture
def client(world: World) -> Client:
    """A client with channel 1 open."""
    client = world.connect()
    client.open()
    return client


class TestDropHead:
    """LEN-01 … LEN-06."""

    def test_oldest_go_first(self, client: Client) -> None:
        declare(client, "q", max_length=2)
        publish(client, "q", b"a", b"b", b"c")
        assert bodies(client, "q") == [b"b", b"c"]

    def test_by_octets_of_bodies(self, client: Client) -> None:
        declare(client, "q", max_length_bytes=5)
        publish(client, "q", b"aa", b"bb", b"cc")
        assert bodies(client, "q") == [b"bb", b"cc"]
        publish(client, "q", b"too large")
        assert bodies(client, "q") == []
        publish(client, "q", b"aa", b"bb")
        assert bodies(client, "q") == [b"aa", b"bb"]

    def test_dropped_ones_are_dead_letters(self, client: Client) -> None:
        """DLX-03."""
        declare(client, "dead")
        declare(client, "q", max_length=1, dead_letter_exchange="", dead_letter_routing_key="dead")
        publish(client, "q", b"a", b"b", b"c")
        assert bodies(client, "dead") == [b"a", b"b"]

    def test_an_expired_one_among_the_dropped_died_of_that(self, client: Client) -> None:
        """TTL-03: it reached the head when the one before it was dropped."""
        declare(client, "dead")
        declare(client, "q", max_length=1, dead_letter_exchange="", dead_letter_routing_key="dead")
        short = commands.Basic.Properties(expiration="0")
        messages = [(b"a", None), (b"b", short), (b"c", None), (b"d", None)]
        client.send(*(wire.publish(1, "q", body, block) for body, block in messages))
        client.world.run_turns()
        dead = [got(client, "dead") for _ in range(3)]
        reasons = [(one.body, one.properties.headers["x-death"][0]["reason"]) for one in dead]
        assert reasons == [(b"a", "maxlen"), (b"b", "expired"), (b"c", "maxlen")]

    def test_none_is_kept_but_who_waits_gets_it(self, client: Client) -> None:
        """LEN-04."""
        declare(client, "q", max_length=0)
        publish(client, "q", b"lost")
        assert client.message_count("q") == 0
        client.consume("q", "t")
        publish(client, "q", b"a", b"b")
        assert [delivery(what)[2] for _, what in client.hear()] == [b"a", b"b"]

    def test_requeued_ones_count_as_entering(self, client: Client) -> None:
        """LEN-06."""
        declare(client, "q", max_length=2)
        publish(client, "q", b"a")
        client.method(1, commands.Basic.Get(queue="q"))
        client.hear()
        publish(client, "q", b"b", b"c")
        client.send(wire.nack(1, 1))
        client.world.run_turns()
        assert bodies(client, "q") == [b"b", b"c"]


class TestReject:
    """LEN-20 … LEN-24, CONF-07, PUB-23, TX-09."""

    def test_full_queue_nacks_each(self, client: Client) -> None:
        declare(client, "q", max_length=2, overflow="reject-publish")
        client.ask(1, commands.Confirm.Select())
        publish(client, "q", b"a", b"b", b"c", b"d")
        assert confirms(client) == [
            ("Basic.Nack", 3, False),
            ("Basic.Nack", 4, False),
            ("Basic.Ack", 2, True),
        ]
        assert bodies(client, "q") == [b"a", b"b"]
        publish(client, "q", b"e")
        assert confirms(client) == [("Basic.Ack", 5, False)]

    def test_never_more_octets_than_allowed(self, client: Client) -> None:
        """LEN-21, measured on RabbitMQ."""
        declare(client, "q", max_length_bytes=10, overflow="reject-publish")
        publish(client, "q", b"aaaa", b"bbbb", b"cccc")
        assert bodies(client, "q") == [b"aaaa", b"bbbb"]

    def test_expired_one_makes_room(self, client: Client) -> None:
        """TTL-06: also in the turn in which it came."""
        client.ask(1, commands.Confirm.Select())
        declare(client, "q", max_length=1, overflow="reject-publish")
        short = commands.Basic.Properties(expiration="0")
        client.send(wire.publish(1, "q", b"a", short), wire.publish(1, "q", b"b"))
        assert not [name for name, _, _ in confirms(client) if name == "Basic.Nack"]
        assert bodies(client, "q") == [b"b"]

    def test_waiting_consumer_makes_room(self, client: Client) -> None:
        declare(client, "q", max_length=1, overflow="reject-publish")
        client.consume("q", "t", no_ack=True)
        publish(client, "q", b"a", b"b", b"c")
        assert [delivery(what)[2] for _, what in client.hear()] == [b"a", b"b", b"c"]

    def test_zero_refuses_even_so(self, client: Client) -> None:
        """LEN-22."""
        declare(client, "q", max_length=0, overflow="reject-publish")
        client.consume("q", "t")
        publish(client, "q", b"a")
        assert client.hear() == []

    def test_others_keep_their_copy(self, client: Client) -> None:
        """CONF-07."""
        declare(client, "full", max_length=0, overflow="reject-publish")
        declare(client, "open")
        for name in ("full", "open"):
            client.ask(1, commands.Queue.Bind(queue=name, exchange="amq.fanout"))
        client.ask(1, commands.Confirm.Select())
        client.send(wire.publish(1, "", b"x", exchange="amq.fanout"))
        assert confirms(client) == [("Basic.Nack", 1, False)]
        assert bodies(client, "open") == [b"x"]

    def test_refused_one_may_be_a_dead_letter(self, client: Client) -> None:
        """LEN-24."""
        declare(client, "dead")
        declare(
            client,
            "q",
            max_length=1,
            overflow="reject-publish-dlx",
            dead_letter_exchange="",
            dead_letter_routing_key="dead",
        )
        publish(client, "q", b"a", b"b")
        assert bodies(client, "q") == [b"a"]
        assert bodies(client, "dead") == [b"b"]

    def test_full_queues_in_a_cycle_end(self, client: Client) -> None:
        for name, other in (("a", "b"), ("b", "a")):
            declare(
                client,
                name,
                max_length=0,
                overflow="reject-publish-dlx",
                dead_letter_exchange="",
                dead_letter_routing_key=other,
            )
        publish(client, "a", b"x")
        assert client.world.dead_letter_publisher.dropped_count == 1

    def test_commit_is_all_or_nothing(self, client: Client) -> None:
        """TX-09."""
        declare(client, "q", max_length=1, overflow="reject-publish")
        declare(client, "other")
        client.ask(1, commands.Tx.Select())
        publish(client, "other", b"x")
        publish(client, "q", b"a", b"b")
        with closes_channel(client, 406, "PRECONDITION_FAILED - partial tx completion", (90, 20)):
            client.method(1, commands.Tx.Commit())
        client.open()
        assert bodies(client, "q") == []
        assert bodies(client, "other") == []
