"""What is written down of publishes, deliveries and their ends, event by event."""

from __future__ import annotations

from typing import Any

import pytest
from pamqp import commands

from tests import wire
from tests.unit.server.amqp_client import declare, got, publish
from tests.unit.server.in_memory import Client
from tests.unit.server.with_ledger import LedgerWorld
from vouchmq.server.ledger import inventory
from vouchmq.server.ledger.channel_recorder import id_text
from vouchmq.server.ledger.ledger import Before

HEADER = "x-deduplication-header"


@pytest.fixture
def world() -> LedgerWorld:
    """A broker with a ledger."""
    return LedgerWorld()


@pytest.fixture
def client(world: LedgerWorld) -> Client:
    """A client with channel 1 open, in confirm mode."""
    client = world.connect()
    client.open()
    client.ask(1, commands.Confirm.Select())
    return client


class TestPublishing:
    """pub, ret, cnf."""

    def test_a_run_is_a_line(self, world: LedgerWorld, client: Client) -> None:
        declare(client, "q")
        publish(client, "q", b"a", b"bb", b"ccc")
        qid = world.lines("que")[-1]["qid"]
        assert qid > 1 << 61
        (line,) = world.lines("pub")
        first, last = line.pop("lsn")
        assert last == first + 2
        assert (line["rt"], line["c"], line["h"], line["s"]) == (1, 1, 1, [1, 3])
        assert (line["p"], line["to"]) == (0, [qid])
        assert world.lines("rte") == [{"id": 1, "v": "/", "x": "", "k": "q", "m": 0}]
        assert [line["i"] for line in world.lines("cnf")] == [[[1, 3]]]
        world.audit()

    def test_a_channel_says_from_where_on_it_is_owed_answers(
        self, world: LedgerWorld, client: Client
    ) -> None:
        assert world.lines("sel") == [{"c": 1, "h": 1, "w": "confirm"}]
        client.ask(1, commands.Confirm.Select())
        other = world.connect()
        other.open()
        other.ask(1, commands.Tx.Select())
        assert world.lines("sel")[1:] == [{"c": 2, "h": 1, "w": "tx"}]
        assert world.ledger is not None
        world.ledger.switch_off()
        world.ledger.switch_on()
        again = [(line["h"], line["w"]) for line in world.lines("sel")[2:]]
        assert sorted(again) == [(1, "confirm"), (1, "tx")]

    def test_returned_ones(self, world: LedgerWorld, client: Client) -> None:
        client.send(wire.publish(1, "none", b"x", mandatory=True) * 3)
        client.send(wire.publish(1, "none", b"x", immediate=True) * 2)
        client.send(wire.publish(1, "none", b"x", immediate=True, mandatory=True))
        client.hear()
        told = world.lines("pub")
        assert [(line["s"], line["lsn"], line["to"]) for line in told] == [
            ([1, 3], None, []),
            ([4, 4], None, []),
            ([5, 5], None, []),
            ([6, 6], None, []),
        ]
        assert [(line["i"], line["w"]) for line in world.lines("ret")] == [
            ([[1, 3]], 312),
            ([[4, 4]], 313),
            ([[5, 5]], 313),
            ([[6, 6]], 312),
        ]
        world.audit()

    def test_immediate_ones_that_somebody_takes(self, world: LedgerWorld, client: Client) -> None:
        declare(client, "q")
        client.consume("q", "c", no_ack=True)
        client.send(wire.publish(1, "q", b"x", immediate=True))
        client.hear()
        assert world.lines("ret") == []
        assert world.audit().summary() == {"no_ack": 1}

    def test_direct_replies_owe_nothing(self, world: LedgerWorld, client: Client) -> None:
        client.consume("amq.rabbitmq.reply-to", "r", no_ack=True)
        channel = next(iter(world.connections)).channels[1]
        client.send(wire.publish(1, channel.reply_name(), b"answer", mandatory=True))
        client.hear()
        last = world.lines("pub")[-1]
        assert (last["lsn"], last["to"]) == (None, [])
        assert world.lines("rte")[-1]["m"] == 0
        assert world.lines("ret") == []

    @pytest.mark.parametrize("where", ["queue", "exchange"])
    def test_duplicates_owe_nothing(self, world: LedgerWorld, client: Client, where: str) -> None:
        arguments: dict[str, Any] = {"x-message-deduplication": True}
        exchange = ""
        if where == "queue":
            declare(client, "q", message_deduplication=True)
        else:
            exchange = "d"
            declare(client, "q")
            client.ask(
                1,
                commands.Exchange.Declare(
                    exchange="d",
                    exchange_type="fanout",
                    arguments={**arguments, "x-cache-size": 9},
                ),
            )
            client.ask(1, commands.Queue.Bind(queue="q", exchange="d", routing_key="q"))
        for _ in range(2):
            block = commands.Basic.Properties(headers={HEADER: "k"})
            client.send(wire.publish(1, "q", b"x", block, exchange=exchange, mandatory=True))
        client.hear()
        told = world.lines("pub")
        assert [bool(line["to"]) for line in told] == [True, False]
        routes = {line["id"]: line["m"] for line in world.lines("rte")}
        assert [routes[line["rt"]] for line in told] == [1, 0]
        assert [line["i"] for line in world.lines("cnf")] in ([[[1, 2]]], [[[1, 1]], [[2, 2]]])
        assert world.audit().summary() == {"held": 1}

    def test_refused_ones(self, world: LedgerWorld, client: Client) -> None:
        declare(client, "full", max_length=1, overflow="reject-publish")
        declare(client, "other")
        for name in ("full", "other"):
            client.ask(1, commands.Queue.Bind(queue=name, exchange="amq.fanout"))
        client.send(wire.publish(1, "full", b"x") * 2)
        client.send(wire.publish(1, "", b"x", exchange="amq.fanout"))
        client.hear()
        told = world.lines("pub")
        assert [line.get("rj", 0) for line in told] == [0, 1, 1]
        assert [len(line["to"]) for line in told] == [1, 0, 1]
        assert [(line["i"], line["ok"]) for line in world.lines("cnf")] == [
            ([[2, 3]], 0),
            ([[1, 1]], 1),
        ]
        world.audit()

    def test_numbers_go_on_when_a_channel_is_opened_again(
        self, world: LedgerWorld, client: Client
    ) -> None:
        declare(client, "q")
        publish(client, "q", b"a", b"b")
        client.hear()
        client.ask(1, commands.Channel.Close(200, "", 0, 0))
        client.open()
        publish(client, "q", b"c")
        client.ask(1, commands.Confirm.Select())
        publish(client, "q", b"d")
        assert [line["s"] for line in world.lines("pub")] == [[1, 2], [3, 3], [4, 4]]
        assert [line["i"] for line in world.lines("cnf")] == [[[1, 2]], [[4, 4]]]
        world.audit()

    def test_ids_if_they_are_wanted(self) -> None:
        world = LedgerWorld(tells_ids=True)
        client = world.connect()
        client.open()
        declare(client, "q")
        publish(client, "q", b"a", message_id='ü"')
        publish(client, "q", b"a")
        assert [line["m"] for line in world.lines("pub")] == [['ü"'], [None]]


def test_an_id_that_cannot_be_read_is_none() -> None:
    raw = wire.header(1, 0, commands.Basic.Properties(message_id="id"))
    assert id_text(raw) == '"id"'
    torn = raw[:-4] + b"\xff" + raw[-3:]
    assert id_text(torn) == "null"


class TestDeliveries:
    """con, dlv, ack, req."""

    def test_what_is_dealt_is_one_step(self, world: LedgerWorld, client: Client) -> None:
        declare(client, "q")
        client.qos(100)
        for tag in ("a", "b", "c"):
            client.consume("q", tag)
        client.send(wire.publish(1, "q", b"x") * 9)
        client.hear()
        told = world.lines("dlv")
        assert len(told) == 3
        assert "deal" not in told[0]
        assert told[1]["deal"] == told[2]["deal"]
        assert [line["cid"] for line in told] == [1, 2, 3]
        assert world.audit().disorder() == []

    def test_redelivered_ones_have_a_line_of_their_own(
        self, world: LedgerWorld, client: Client
    ) -> None:
        declare(client, "q")
        client.qos(10)
        client.consume("q", "c")
        publish(client, "q", b"a", b"b", b"c")
        client.method(1, commands.Basic.Cancel("c"))
        client.send(wire.nack(1, 3, multiple=True))
        publish(client, "q", b"d", b"e")
        client.hear()
        client.consume("q", "c2")
        assert [(line["r"], line["tag"]) for line in world.lines("dlv")] == [
            (0, 1),
            (1, 4),
            (0, 7),
        ]
        world.audit()

    def test_who_gives_back_and_why(self, world: LedgerWorld, client: Client) -> None:
        declare(client, "q")
        publish(client, "q", b"a")
        client.hear()
        for end in ("nack", "reject", "recover", "channel", "connection"):
            what = got(client, "q", no_ack=False)
            tag = what.method.delivery_tag
            if end == "nack":
                client.send(wire.nack(1, tag))
            elif end == "reject":
                client.method(1, commands.Basic.Reject(tag, True))
            elif end == "recover":
                client.method(1, commands.Basic.Recover(requeue=True))
            elif end == "channel":
                client.method(1, commands.Channel.Close(200, "", 0, 0))
                client.hear()
                client.open()
            else:
                client.connection.lost("gone")
            client.world.run_turns()
            if end != "connection":
                client.hear()
        assert [line["w"] for line in world.lines("req")] == [
            *("nack", "reject", "recover", "channel", "connection")
        ]
        assert {line["cid"] for line in world.lines("req", "dlv")} == {0}
        world.audit()

    def test_sent_again_under_the_old_tag(self, world: LedgerWorld, client: Client) -> None:
        declare(client, "q")
        client.qos(10)
        client.consume("q", "c")
        publish(client, "q", b"a", b"b")
        client.method(1, commands.Basic.Recover(requeue=False))
        client.hear()
        assert [(line["tag"], line["r"]) for line in world.lines("dlv")] == [(1, 0), (1, 1)]
        world.audit()

    def test_consumers_come_and_go(self, world: LedgerWorld, client: Client) -> None:
        declare(client, "q")
        client.qos(7)
        client.consume("q", "c")
        client.method(1, commands.Basic.Cancel("c"))
        client.hear()
        client.consume("q", "d", no_ack=True)
        told = world.lines("con")
        assert [(line["g"], line["pf"], line["na"], line["w"]) for line in told] == [
            ("c", 7, 0, "start"),
            ("c", 7, 0, "stop"),
            ("d", 0, 1, "start"),
        ]

    def test_what_a_deleted_queue_had(self, world: LedgerWorld, client: Client) -> None:
        declare(client, "q")
        publish(client, "q", *(b"x" for _ in range(5)))
        client.hear()
        first = got(client, "q", no_ack=False).method.delivery_tag
        client.ask(1, commands.Queue.Delete(queue="q"))
        client.send(wire.ack(1, first))
        assert world.lines("ack") == []
        assert world.audit().summary() == {"dropped deleted": 5}

    def test_an_auto_delete_queue_goes_with_all_that_its_connection_had(
        self, world: LedgerWorld, client: Client
    ) -> None:
        """Another channel of the same connection has a message of it when it goes."""
        client.ask(1, commands.Queue.Declare(queue="q", auto_delete=True))
        client.open(2)
        publish(client, "q", b"a", b"b")
        client.hear()
        client.method(2, commands.Basic.Get(queue="q"))
        client.hear()
        client.consume("q", "c")
        client.connection.lost("gone")
        world.run_turns()
        assert "q" not in world.vhost.queues
        assert world.audit().summary() == {"dropped deleted": 2}


def test_dead_letters_into_levels_keep_their_sources(world: LedgerWorld, client: Client) -> None:
    """A queue with priorities takes a run level by level, in another order."""
    declare(client, "ranked", max_priority=5)
    declare(client, "q", dead_letter_exchange="", dead_letter_routing_key="ranked")
    bodies = [b"%d" % number for number in range(12)]
    for number, body in enumerate(bodies):
        publish(client, "q", body, priority=number % 3)
    client.hear()
    lsns = [message[2] >> 1 for message in world.vhost.queues["q"].ready.ready]
    sources = {lsn: wire.bodies(1, body, ()) for lsn, body in zip(lsns, bodies, strict=True)}
    client.qos(50)
    client.consume("q", "c")
    client.send(wire.nack(1, 12, multiple=True, requeue=False))
    client.hear()
    there = {
        message[2] >> 1: message[0]
        for line in world.vhost.queues["ranked"].lines
        for message in line.ready
    }
    assert len(there) == 12
    moved = 0
    for line in world.lines("mov"):
        olds = [lsn for first, last in line["si"] for lsn in range(first, last + 1)]
        news = range(line["lsn"][0], line["lsn"][1] + 1)
        for old, new in zip(olds, news, strict=True):
            moved += 1
            assert sources[old] in there[new], (old, new)
    assert moved == 12
    world.audit()


class TestInventories:
    """inv, and what is said again with it."""

    def test_large_ones_are_written_over_several_turns(
        self, world: LedgerWorld, client: Client, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(inventory, "FEW", 100)
        monkeypatch.setattr(inventory, "PIECE_RANGES", 50)
        monkeypatch.setattr(inventory, "LINE_RANGES", 40)
        monkeypatch.setattr(inventory, "TURN_S", -1.0)  # one step a turn …
        assert world.ledger is not None
        declare(client, "q")
        declare(client, "r")
        for _ in range(200):
            client.send(wire.publish(1, "q", b"x") + wire.publish(1, "r", b"x"))
        client.hear()
        told: list[str] = []
        world.ledger.take_inventory(told.append)
        stock = world.ledger._inventory_job
        job, _ = stock._jobs[0]
        steps = 0
        for _ in range(3):
            next(job)
            steps += 1
        # What happens meanwhile is not in it.
        client.method(1, commands.Queue.Purge(queue="q"))
        client.send(wire.publish(1, "q", b"new"))
        while next(job, job) is not job:
            steps += 1
        stock._jobs.clear()
        assert steps > 10
        taken = [line for line in world.lines("inv") if line["w"] == "request"]
        parts = [line for line in taken if line["qid"] == taken[0]["qid"]]
        assert [line["part"] for line in parts] == [1, 2, 3, 4, 5]
        assert {line["parts"] for line in parts} == {5}
        assert sum(len(line["i"]) for line in parts) == 200
        assert len({line["at"] for line in taken}) == 1
        monkeypatch.undo()
        world.audit()

    def test_a_queue_that_goes_meanwhile(self, world: LedgerWorld, client: Client) -> None:
        assert world.ledger is not None
        declare(client, "q")
        publish(client, "q", b"a")
        client.hear()
        world.ledger.take_inventory(lambda _: None)
        client.ask(1, commands.Queue.Delete(queue="q"))
        assert world.audit().summary() == {"dropped deleted": 1}

    def test_an_answer_comes_when_it_is_in_the_file(
        self, world: LedgerWorld, client: Client
    ) -> None:
        assert world.ledger is not None
        declare(client, "q")
        told: list[str] = []
        world.ledger.take_inventory(told.append)
        assert told == []
        world.run_turns()
        assert told == ["file 0"]
        assert b'"w":"request"' in world.files.data

    def test_by_and_by(self, world: LedgerWorld, client: Client) -> None:
        assert world.ledger is not None
        declare(client, "q")
        client.qos(3)
        client.consume("q", "c")
        publish(client, "q", b"a")
        world.now += 61
        world.ledger.look()
        world.ledger.look()
        assert world.files.rotations == 1
        world.now += 3600
        world.ledger.look()
        world.run_turns()
        publish(client, "q", b"b")
        assert [line["w"] for line in world.lines("inv")][-1] == "periodic"
        assert [line["w"] for line in world.lines("con")] == ["start", "known"]
        assert [line["w"] for line in world.lines("que")] == ["declared", "known"]
        assert [line["id"] for line in world.lines("rte")] == [1, 2]
        assert [line["rt"] for line in world.lines("pub")] == [1, 2]
        world.audit()


def test_switched_off_nobody_has_a_recorder(world: LedgerWorld, client: Client) -> None:
    assert world.ledger is not None
    declare(client, "q")
    client.consume("q", "c")
    world.ledger.switch_off()
    channel = next(iter(world.connections)).channels[1]
    assert channel.confirms is not None
    recorders = (channel.recorder, channel.confirms.recorder, channel.consumers["c"].recorder)
    assert (
        *recorders,
        world.vhost.queues["q"].recorder,
        world.context.ledger,
        world.turn.ledger,
    ) == (None,) * 6
    before = world.files.data
    publish(client, "q", b"a")
    client.send(wire.ack(1, 1))
    client.hear()
    declare(client, "q2")
    assert world.files.data == before
    assert not world.ledger.status()["on"]


def test_a_broker_of_a_shared_log_that_was_replaced(world: LedgerWorld, client: Client) -> None:
    """Its last lines are no inventory: the log may not have what they tell of."""
    declare(client, "q")
    publish(client, "q", b"a")
    assert world.ledger is not None
    world.ledger.break_off()
    world.ledger.close()
    assert world.lines("end") == []
    assert "stop" not in [line["w"] for line in world.lines("inv")]


@pytest.mark.parametrize("others_have_led", [False, True])
def test_others_have_led_since(world: LedgerWorld, others_have_led: bool) -> None:
    """What has become of messages meanwhile is in their ledgers."""
    ledger = world.ledger
    assert ledger is not None
    ledger.switch_off("stop")
    ledger._before = Before(1, 5, 100)
    ledger.switch_on(at_start=True, others_have_led=others_have_led)
    assert world.lines("boot")[-1]["dark"] == others_have_led
