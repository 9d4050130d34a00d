"""Moving and copying messages: nothing is lost, doubled, or handed out by it."""

from __future__ import annotations

import errno
from dataclasses import replace
from typing import Any

import pytest
from pamqp import commands

from tests import wire
from tests.unit.server.admin.listings import listed
from tests.unit.server.admin.operating import asked, begun, refused
from tests.unit.server.amqp_client import bodies, declare, got, publish
from tests.unit.server.in_memory import SETTINGS, Client, World


@pytest.fixture
def world() -> World:
    return World()


@pytest.fixture
def client(world: World) -> Client:
    client = world.connect()
    client.open()
    return client


def numbered(count: int, first: int = 0) -> list[bytes]:
    return [b"%06d" % n for n in range(first, first + count)]


def peeked(world: World, name: str, **arguments: object) -> list[dict[str, Any]]:
    reader = begun(world, "peek", name=name, count=10_000, **arguments)
    world.run_turns()
    return reader.lines


def seen(world: World, name: str) -> list[bytes]:
    return [row["body"] for row in peeked(world, name)]


def moved(world: World, command: str = "move", **arguments: object) -> tuple[int, str]:
    answer = asked(world, command, **arguments)
    assert answer["ok"], answer
    return answer["moved"], answer["stopped"]


class TestMove:
    def test_all_or_the_first_go_in_order_as_new(self, world: World, client: Client) -> None:
        declare(client, "a")
        declare(client, "b")
        publish(client, "a", *numbered(1000), content_type="text/plain")
        client.method(1, commands.Basic.Get(queue="a"))
        client.hear()
        client.send(wire.nack(1, 1, requeue=True))
        assert moved(world, name="a", to_queue="b", count=300) == (300, "")
        assert seen(world, "a") == numbered(700, 300)
        rows = peeked(world, "b")
        assert [row["body"] for row in rows] == numbered(300)
        assert {row["redelivered"] for row in rows} == {False}
        assert (rows[0]["routing_key"], rows[0]["properties"]) == (
            "b",
            {"content_type": "text/plain"},
        )
        assert moved(world, name="a", to_queue="b") == (700, "")
        assert moved(world, name="a", to_queue="b") == (0, "")
        assert bodies(client, "b") == numbered(1000)
        counts = {
            row["name"]: (row["messages"], row["delivered"]) for row in listed(world, "queues")
        }
        assert counts == {"a": (0, 1), "b": (0, 1000)}

    def test_chosen_ones_go_and_the_others_keep_their_places(
        self, world: World, client: Client
    ) -> None:
        declare(client, "a")
        declare(client, "b")
        publish(client, "a", *numbered(400))
        rows = peeked(world, "a")
        ids = [rows[at]["id"] for at in (390, 7, 200)]
        assert moved(world, name="a", to_queue="b", ids=ids) == (3, "")
        assert seen(world, "b") == [b"000007", b"000200", b"000390"]
        gone = set(seen(world, "b"))
        assert seen(world, "a") == [body for body in numbered(400) if body not in gone]
        assert {row["redelivered"] for row in peeked(world, "a")} == {False}
        code, text = refused(world, "move", name="a", to_queue="b", ids=[ids[0]])
        assert (code, "no message with id" in text) == (404, True)
        assert len(seen(world, "a")) == 397

    def test_to_an_exchange_by_their_own_keys_or_another(
        self, world: World, client: Client
    ) -> None:
        for name in ("a", "b", "c"):
            declare(client, name)
        for name, key in (("b", "a"), ("b", "all"), ("c", "all")):
            bind = commands.Queue.Bind(queue=name, exchange="amq.topic", routing_key=key)
            client.ask(1, bind)
        publish(client, "a", b"1", b"2", b"3")
        assert moved(world, name="a", to_exchange="amq.topic", count=1) == (1, "")
        way = {"to_exchange": "amq.topic", "routing_key": "all"}
        assert moved(world, name="a", count=1, **way) == (1, "")
        assert (seen(world, "b"), seen(world, "c")) == ([b"1", b"2"], [b"2"])
        nowhere = {"to_exchange": "amq.topic", "routing_key": "none"}
        expected = (0, "the next message leads nowhere, with routing key 'none'")
        assert moved(world, name="a", **nowhere) == expected
        assert bodies(client, "a") == [b"3"]

    def test_a_full_queue_takes_what_fits(self, world: World, client: Client) -> None:
        declare(client, "dead")
        declare(client, "a")
        more = {"dead_letter_exchange": "", "dead_letter_routing_key": "dead"}
        declare(client, "b", max_length=2, overflow="reject-publish-dlx", **more)
        publish(client, "a", *numbered(5))
        expected = (2, "a queue refuses the next message")
        assert moved(world, name="a", to_queue="b") == expected
        assert seen(world, "a") == numbered(3, 2)
        assert (seen(world, "b"), seen(world, "dead")) == (numbered(2), [])

    def test_what_consumers_hold_stays_theirs(self, world: World, client: Client) -> None:
        declare(client, "a", delivery_limit=3)
        declare(client, "b")
        publish(client, "a", b"held", b"ready")
        assert got(client, "a", no_ack=False).body == b"held"
        assert moved(world, name="a", to_queue="b") == (1, "")
        client.send(wire.method(1, commands.Basic.Reject(delivery_tag=1, requeue=True)))
        client.hear()
        assert (seen(world, "a"), seen(world, "b")) == ([b"held"], [b"ready"])

    @pytest.mark.parametrize("cut", range(6))
    def test_a_kill_leaves_each_in_one_place(self, cut: int) -> None:
        world = World()
        client = world.connect()
        client.open()
        client.declare("a", durable=True)
        client.declare("b", durable=True)
        publish(client, "a", *numbered(400), delivery_mode=2)
        world.sync()
        # Whoever looks at the clock finds that a slice has gone.
        world.tick_s = 0.01
        begun(world, "move", name="a", to_queue="b")
        for _ in range(cut):
            world.run_turn()
        world.disk.crash(cut)
        reborn = World(disk=world.disk)
        left, arrived = seen(reborn, "a"), seen(reborn, "b")
        assert arrived + left == numbered(400)
        assert {row["redelivered"] for row in peeked(reborn, "a") + peeked(reborn, "b")} == {False}

    def test_it_is_answered_when_it_is_on_disk(self, world: World, client: Client) -> None:
        client.declare("a", durable=True)
        client.declare("b", durable=True)
        publish(client, "a", *numbered(3), delivery_mode=2)
        world.sync()
        reader = begun(world, "move", name="a", to_queue="b")
        world.run_turn()
        assert not reader.has_answer()
        world.sync()
        assert reader.facts == {"ok": True, "moved": 3, "stopped": ""}
        world.disk.crash(0)
        assert seen(World(disk=world.disk), "b") == numbered(3)

    def test_a_full_disk_loses_nothing(self, world: World, client: Client) -> None:
        client.declare("a", durable=True)
        client.declare("b", durable=True)
        publish(client, "a", *numbered(3), delivery_mode=2)
        world.sync()
        reader = begun(world, "move", name="a", to_queue="b")
        world.disk.fail_next("write", errno.ENOSPC)
        world.sync()
        assert reader.facts is not None
        assert reader.facts["code"] == 506
        world.check()
        world.check()
        assert sorted(seen(world, "a") + seen(world, "b")) == numbered(3)
        world.disk.crash(0)
        reborn = World(disk=world.disk)
        assert sorted(seen(reborn, "a") + seen(reborn, "b")) == numbered(3)

    def test_from_disk_to_disk(self) -> None:
        world = World(replace(SETTINGS, queue_memory_bytes=1 << 16, queues_memory_bytes=1 << 17))
        client = world.connect()
        client.open()
        client.declare("a", durable=True)
        client.declare("b", durable=True)
        for at in range(0, 2000, 100):
            publish(
                client, "a", *(body + bytes(200) for body in numbered(100, at)), delivery_mode=2
            )
            world.sync()
        assert moved(world, name="a", to_queue="b") == (2000, "")
        assert [body[:6] for body in bodies(client, "b")] == numbered(2000)
        assert bodies(client, "a") == []

    def test_permissions_and_mistakes(self, world: World, client: Client) -> None:
        declare(client, "a")
        declare(client, "open")
        publish(client, "a", b"1")
        publish(client, "open", b"2")
        text = "read access to queue 'a' in vhost '/' refused for user 'poor'"
        poor = {"user": "poor", "to_queue": "open"}
        assert refused(world, "move", name="a", **poor) == (403, f"ACCESS_REFUSED - {text}")
        text = "write access to exchange 'amq.default' in vhost '/' refused for user 'poor'"
        to_a = {"user": "poor", "to_queue": "a"}
        assert refused(world, "move", name="open", **to_a) == (403, f"ACCESS_REFUSED - {text}")
        # Not by the first message: the queue may be empty.
        client.method(1, commands.Queue.Purge(queue="open"))
        client.hear()
        topic = {"user": "poor", "to_exchange": "amq.topic"}
        refusal = (403, f"ACCESS_REFUSED - {text}")
        assert refused(world, "move", name="open", **to_a) == refusal
        assert refused(world, "move", name="open", keep=True, **to_a) == refusal
        assert refused(world, "return dead letters", name="open", user="poor") == refusal
        text = text.replace("amq.default", "amq.topic")
        assert refused(world, "move", name="open", **topic) == (403, f"ACCESS_REFUSED - {text}")
        for keep in (True, False):
            for target in ("to_queue", "to_exchange"):
                way = {target: "none", "keep": keep}
                assert refused(world, "move", name="open", **way)[0] == 404
        publish(client, "open", b"2")
        assert refused(world, "move", name="a", to_queue="none")[0] == 404
        assert refused(world, "move", name="a", to_exchange="none")[0] == 404
        assert refused(world, "move", name="none", to_queue="a")[0] == 404
        for mistake in (
            {},
            {"to_queue": "b", "to_exchange": "x"},
            {"to_queue": "a"},
            {"to_queue": "b", "routing_key": "k"},
            {"to_queue": "b", "count": 0},
            {"to_queue": "b", "ids": []},
        ):
            assert refused(world, "move", name="a", **mistake)[0] == 400
        assert (seen(world, "a"), seen(world, "open")) == ([b"1"], [b"2"])


class TestCopy:
    def test_copies_arrive_and_the_originals_stay(self, world: World, client: Client) -> None:
        declare(client, "a")
        declare(client, "b")
        publish(client, "a", *numbered(500))
        assert moved(world, name="a", to_queue="b", keep=True) == (500, "")
        assert moved(world, name="a", to_queue="b", keep=True, count=2) == (2, "")
        assert seen(world, "b") == numbered(500) + numbered(2)
        chosen = [peeked(world, "a")[at]["id"] for at in (9, 3)]
        assert moved(world, name="a", to_queue="b", keep=True, ids=chosen) == (2, "")
        assert seen(world, "b")[502:] == [b"000003", b"000009"]
        assert {row["redelivered"] for row in peeked(world, "a")} == {False}
        assert bodies(client, "a") == numbered(500)

    def test_of_a_stream_only_copies(self, world: World, client: Client) -> None:
        table = {"x-queue-type": "stream"}
        client.ask(1, commands.Queue.Declare(queue="s", durable=True, arguments=table))  # type: ignore[arg-type]
        declare(client, "b")
        publish(client, "s", b"1", b"2")
        world.sync()
        assert refused(world, "move", name="s", to_queue="b")[0] == 406
        assert moved(world, name="s", to_queue="b", keep=True) == (2, "")
        assert (seen(world, "s"), seen(world, "b")) == ([b"1", b"2"], [b"1", b"2"])

    def test_what_leads_nowhere_is_told(self, world: World, client: Client) -> None:
        declare(client, "a")
        publish(client, "a", b"1", b"2")
        answer = asked(world, "move", name="a", to_exchange="amq.topic", keep=True)
        assert answer == {"ok": True, "moved": 0, "stopped": "2 led nowhere"}


class TestReturn:
    def test_dead_letters_go_back_to_where_they_died(self, world: World, client: Client) -> None:
        declare(client, "dead")
        more = {"dead_letter_exchange": "", "dead_letter_routing_key": "dead"}
        for name in ("a", "b"):
            declare(client, name, message_ttl=100, **more)
        client.ask(1, commands.Queue.Bind(queue="a", exchange="amq.direct", routing_key="k"))
        client.send(wire.publish(1, "k", b"1", exchange="amq.direct"))
        publish(client, "b", b"2")
        client.hear()
        world.pass_time(1)
        assert sorted(seen(world, "dead")) == [b"1", b"2"]
        assert moved(world, "return dead letters", name="dead") == (2, "")
        [one] = peeked(world, "a")
        assert (one["body"], one["exchange"], one["routing_key"]) == (b"1", "amq.direct", "k")
        assert seen(world, "b") == [b"2"]
        # They die again like others.
        world.pass_time(1)
        rows = peeked(world, "dead")
        assert sorted(row["body"] for row in rows) == [b"1", b"2"]
        assert {row["properties"]["headers"]["x-death"][0]["count"] for row in rows} == {2}

    def test_others_stay(self, world: World, client: Client) -> None:
        declare(client, "dead")
        publish(client, "dead", b"1")
        text = "the next message is no dead letter: it has no x-death"
        assert moved(world, "return dead letters", name="dead") == (0, text)
        declare(client, "a", dead_letter_exchange="", dead_letter_routing_key="dead")
        publish(client, "a", b"2")
        assert got(client, "a", no_ack=False) is not None
        client.send(wire.method(1, commands.Basic.Reject(delivery_tag=1, requeue=False)))
        client.hear()
        client.ask(1, commands.Queue.Delete(queue="a"))
        assert got(client, "dead") is not None
        text = "the next message died in queue 'a' in vhost '/', which is gone"
        assert moved(world, "return dead letters", name="dead") == (0, text)
        assert bodies(client, "dead") == [b"2"]


@pytest.mark.parametrize("ids", [False, True], ids=["head", "chosen"])
def test_what_stays_is_as_before_whatever_its_priority(
    world: World, client: Client, ids: bool
) -> None:
    """HTTP-37, PRIO-07: what nobody was handed is not redelivered, what came back stays first."""
    arguments = {"x-queue-type": "quorum"}
    client.ask(1, commands.Queue.Declare(queue="q", durable=True, arguments=arguments))  # type: ignore[arg-type]
    for priority in (1, 9):
        publish(client, "q", b"first%d" % priority, b"second%d" % priority, priority=priority)
    for _ in range(3):
        client.method(1, commands.Basic.Get(queue="q"))
    client.hear()
    client.send(wire.nack(1, 3, requeue=True, multiple=True))
    client.hear()
    before = [(row["body"], row["redelivered"]) for row in peeked(world, "q")]
    assert [body for body, is_again in before if is_again] == [b"first9", b"second9", b"first1"]
    asked_for: dict[str, Any] = (
        {"ids": [row["id"] for row in peeked(world, "q")[1:4]]} if ids else {}
    )
    assert moved(world, name="q", to_exchange="amq.direct", **asked_for)[0] == 0
    assert [(row["body"], row["redelivered"]) for row in peeked(world, "q")] == before
