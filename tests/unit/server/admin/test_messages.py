"""Operators publish, get, and wait for a queue to be as they expect it."""

from __future__ import annotations

import errno
from typing import Any, cast

import pytest
from pamqp import commands

from tests import wire
from tests.unit.server.admin.listings import Reader
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


def looked(world: World, **arguments: object) -> list[dict[str, Any]]:
    """The rows of a `get`."""
    reader = begun(world, "get", **arguments)
    world.sync()
    assert reader.facts == {"ok": True, "count": len(reader.lines)}
    return reader.lines


class TestPublish:
    def test_a_message_arrives_with_its_properties(self, world: World, client: Client) -> None:
        declare(client, "q")
        properties = {
            "content_type": "text/plain",
            "headers": {"a": 1, "b": ["x", True, None], "c": {"d": 1.5}},
            "delivery_mode": 1,
            "priority": 3,
            "timestamp": 1_600_000_000,
            "type": "t",
            "user_id": "anybody",
        }
        sent = {"routing_key": "q", "properties": properties, "body": b"hello"}
        assert asked(world, "publish", **sent) == {"ok": True, "routed": True}
        [row] = looked(world, name="q")
        assert row == {
            "exchange": "",
            "routing_key": "q",
            "redelivered": False,
            "messages": 0,
            "properties": properties,
            "size": 5,
            "body": b"hello",
        }
        what = got(client, "q")
        assert (what.body, what.properties.content_type) == (b"hello", "text/plain")

    def test_one_that_leads_nowhere_is_not_routed(self, world: World) -> None:
        assert asked(world, "publish", routing_key="none") == {"ok": True, "routed": False}
        text = "NOT_FOUND - no exchange 'none' in vhost '/'"
        assert refused(world, "publish", exchange="none", routing_key="") == (404, text)

    def test_a_persistent_one_is_answered_when_it_is_on_disk(
        self, world: World, client: Client
    ) -> None:
        client.declare("q", durable=True)
        sent = {"routing_key": "q", "properties": {"delivery_mode": 2}, "body": b"x" * 300_000}
        reader = begun(world, "publish", **sent)
        world.run_turn()
        assert not reader.has_answer()
        world.sync()
        assert reader.facts == {"ok": True, "routed": True}
        world.disk.crash(0)
        reborn = World(disk=world.disk)
        [row] = looked(reborn, name="q", body_bytes=4)
        assert (row["size"], row["body"]) == (300_000, b"xxxx")

    def test_refusals(self, world: World, client: Client) -> None:
        declare(client, "full", max_length=0, overflow="reject-publish")
        refusal = (506, "RESOURCE_ERROR - a queue or the disk has refused the message")
        assert refused(world, "publish", routing_key="full") == refusal
        text = "write access to exchange 'amq.default' in vhost '/' refused for user 'poor'"
        assert refused(world, "publish", routing_key="q", user="poor") == (
            403,
            f"ACCESS_REFUSED - {text}",
        )
        claims = {"routing_key": "q", "properties": {"user_id": "guest"}, "user": "other"}
        assert asked(world, "publish", **claims)["ok"]
        assert refused(world, "publish", **{**claims, "user": "few"})[0] in {403, 406}
        client.declare("stored", durable=True)
        world.disk.fail_next("write", errno.ENOSPC)
        kept = {"routing_key": "stored", "properties": {"delivery_mode": 2}}
        assert refused(world, "publish", **kept) == refusal
        text = "RESOURCE_ERROR - publishers are blocked: low on disk"
        assert refused(world, "publish", **kept) == (506, text)

    @pytest.mark.parametrize(
        "properties",
        [
            {"colour": "red"},
            {"priority": 256},
            {"priority": True},
            {"headers": "none"},
            {"headers": {"n": 1 << 70}},
            {"timestamp": -1},
            {"content_type": "x" * 256},
            {"expiration": 5},
        ],
    )
    def test_what_is_no_property(self, world: World, properties: dict[str, object]) -> None:
        assert refused(world, "publish", routing_key="q", properties=properties)[0] == 400


class TestGet:
    def test_looking_sets_redelivered_and_counts_for_nothing(
        self, world: World, client: Client
    ) -> None:
        declare(client, "q", queue_type="classic", delivery_limit=1)
        publish(client, "q", b"1", b"2", b"3")
        for mode in ("ack_requeue_true", "reject_requeue_true", "ack_requeue_true"):
            rows = looked(world, name="q", count=2, ackmode=mode)
            assert [row["body"] for row in rows] == [b"1", b"2"]
        assert [row["redelivered"] for row in looked(world, name="q", count=5)] == [True] * 2 + [
            False
        ]
        first = got(client, "q", no_ack=False)
        assert first.method.redelivered
        assert "x-delivery-count" not in (first.properties.headers or {})
        client.send(wire.method(1, commands.Basic.Reject(delivery_tag=1, requeue=True)))
        assert bodies(client, "q") == [b"1", b"2", b"3"]

    def test_what_is_taken_is_gone_or_dead(self, world: World, client: Client) -> None:
        declare(client, "dead")
        declare(client, "q", dead_letter_exchange="", dead_letter_routing_key="dead")
        publish(client, "q", b"1", b"2", b"3")
        assert len(looked(world, name="q", ackmode="ack_requeue_false")) == 1
        assert len(looked(world, name="q", ackmode="reject_requeue_false")) == 1
        assert bodies(client, "q") == [b"3"]
        [row] = looked(world, name="dead")
        assert row["body"] == b"2"
        [death] = row["properties"]["headers"]["x-death"]
        assert (death["queue"], death["reason"]) == ("q", "rejected")
        assert looked(world, name="q") == []

    def test_many_in_slices_and_a_reader_that_goes(self, world: World, client: Client) -> None:
        declare(client, "q")
        publish(client, "q", *[b"%d" % n for n in range(300)])
        world.tick_s = 0.01
        reader = begun(world, "get", name="q", count=300, ackmode="ack_requeue_false")
        world.run_turn()
        queue = world.vhost.queues["q"]
        assert 0 < queue.unacked_count < 300
        reader.is_open = False
        for job in reader.gone:
            job()
        world.tick_s = 0
        world.sync()
        assert (queue.ready_count, queue.unacked_count) == (300, 0)
        world.tick_s = 0.001
        rows = looked(world, name="q", count=300, ackmode="ack_requeue_false")
        assert [row["body"] for row in rows] == [b"%d" % n for n in range(300)]
        assert queue.ready_count == 0

    def test_refusals(self, world: World, client: Client) -> None:
        declare(client, "q")
        text = "ACCESS_REFUSED - read access to queue 'q' in vhost '/' refused for user 'poor'"
        assert refused(world, "get", name="q", user="poor") == (403, text)
        assert refused(world, "get", name="none")[0] == 404
        assert refused(world, "get", name="")[0] == 404
        assert refused(world, "get", name="q", ackmode="perhaps")[0] == 400
        assert refused(world, "get", name="q", count=0)[0] == 400
        client.ask(
            1,
            commands.Queue.Declare(
                queue="s",
                durable=True,
                arguments={"x-queue-type": "stream"},
            ),
        )
        assert refused(world, "get", name="s")[0] == 540


def waited(world: World, *, limit_ms: int = 0, at_least: bool = False, **counts: int) -> Reader:
    """Who waits until the queue q is as it should be."""
    return begun(world, "wait queue", name="q", counts=counts, at_least=at_least, limit_ms=limit_ms)


def found(reader: Reader) -> tuple[int, int, int]:
    """What the queue had of ready and unacknowledged messages and consumers."""
    assert reader.facts is not None
    row = cast("dict[str, int]", reader.facts["queue"])
    return row["messages_ready"], row["messages_unacknowledged"], row["consumers"]


class TestWait:
    def test_it_is_answered_when_it_is_so(self, world: World, client: Client) -> None:
        reader = waited(world, messages_ready=2, consumers=0)
        world.run_turns()
        assert not reader.has_answer()
        declare(client, "q")
        publish(client, "q", b"1")
        assert not reader.has_answer()
        publish(client, "q", b"2", b"3")
        assert not reader.has_answer()
        assert got(client, "q") is not None
        assert found(reader) == (2, 0, 0)
        assert not world.turn.observers

    def test_consumers_and_what_they_hold(self, world: World, client: Client) -> None:
        declare(client, "q")
        held = waited(world, messages_unacknowledged=2, consumers=1)
        none = waited(world, messages_ready=1, published=2, at_least=True)
        client.consume("q", "c")
        publish(client, "q", b"1")
        assert not held.has_answer()
        publish(client, "q", b"2")
        assert found(held) == (0, 2, 1)
        assert not none.has_answer()
        client.hear()
        client.ask(1, commands.Channel.Close(0, "", 0, 0))
        assert found(none) == (2, 0, 0)

    def test_it_may_have_a_limit(self, world: World, client: Client) -> None:
        missing = waited(world, messages_ready=0, limit_ms=500)
        world.pass_time(0.6)
        assert missing.facts == {
            "ok": False,
            "error": "not within 0.5 s",
            "code": 408,
            "queue": None,
        }
        declare(client, "q")
        reader = waited(world, messages_ready=1, limit_ms=150_000)
        world.pass_time(149)
        assert reader.facts is None
        world.pass_time(1)
        assert found(reader) == (0, 0, 0)
        assert not world.turn.observers

    def test_who_goes_waits_no_more(self, world: World, client: Client) -> None:
        declare(client, "q")
        reader = waited(world, messages_ready=1, limit_ms=500)
        for job in reader.gone:
            job()
        assert not world.turn.observers
        world.pass_time(1)
        assert not reader.has_answer()

    def test_refusals(self, world: World) -> None:
        counts = {"messages_ready": 0}
        assert refused(world, "wait queue", name="q")[0] == 400
        code, text = refused(world, "wait queue", name="q", counts={"redy": 1})
        assert (code, "it has messages, messages_ready," in text) == (400, True)
        assert refused(world, "wait queue", name="q", counts=counts, user="poor")[0] == 403
        assert refused(world, "wait queue", name="q", counts=counts, vhost="none")[0] == 404
