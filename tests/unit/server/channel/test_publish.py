"""Publishing by its rules: runs and careful messages, checks in order, returns, immediate."""

from __future__ import annotations

from dataclasses import replace

import pytest
from pamqp import commands

from tests import wire
from tests.unit.server.in_memory import (
    SETTINGS,
    Client,
    World,
    closes_channel,
    closes_connection,
    confirms,
    content,
    delivery,
    name_of,
)
from vouchmq.protocol.fields import Field, Table, decode_table, encode_table, longstr
from vouchmq.server.channel.publish import ROUTES_KEPT


@pytest.fixture
def world() -> World:
    """A broker."""
    return World()


@pytest.fixture
def client(world: World) -> Client:
    """A client with channel 1 open and the queues q (transient) and d (durable)."""
    return prepared(world)


def prepared(world: World) -> Client:
    """A client with channel 1 open and the queues q (transient) and d (durable)."""
    client = world.connect()
    client.open()
    client.declare("q")
    client.declare("d", durable=True)
    return client


def with_headers(
    queue: str, table: Table, body: bytes = b"x", *, exchange: str = "", mandatory: bool = False
) -> bytes:
    """A publish with a typed headers table."""
    key = commands.Basic.Publish(exchange=exchange, routing_key=queue, mandatory=mandatory)
    head = b"\x00\x3c\x00\x00" + len(body).to_bytes(8, "big") + b"\x20\x00" + encode_table(table)
    return wire.method(1, key) + wire.frame(2, 1, head) + wire.frame(3, 1, body)


def array(*texts: str) -> Field:
    """An array of longstrs."""
    return Field("A", tuple(longstr(text) for text in texts))


def table_in(octets: bytes) -> Table:
    """The headers table of the only content header in what was heard."""
    (head,) = (payload for kind, _, payload in wire.raw_frames(octets) if kind == 2)
    assert head[12:14] == b"\x20\x00"
    return decode_table(head[18:])


class TestRouting:
    def test_run_to_several_queues_is_stored_once(self, client: Client) -> None:
        client.declare("e", durable=True)
        for queue in ("q", "d", "e"):
            client.ask(1, commands.Queue.Bind(queue=queue, exchange="amq.fanout"))
        octets = wire.publish(1, "", b"x", wire.persistent(), exchange="amq.fanout")
        client.send(octets * 3)
        assert [client.message_count(queue) for queue in ("q", "d", "e")] == [3, 3, 3]
        ((queue_ids, tail, raws),) = client.world.calls.runs
        assert len(queue_ids) == 2
        assert tail == b"\x0aamq.fanout\x00"
        assert len(raws) == 3

    def test_transient_messages_are_not_stored(self, client: Client) -> None:
        client.send(wire.publish(1, "d", b"x"))
        assert client.message_count("d") == 1
        assert client.world.calls.runs == []

    @pytest.mark.parametrize("mode", [None, 1, 2, 3, 255])
    def test_only_mode_two_is_persistent(self, client: Client, mode: int | None) -> None:
        """PUB-07."""
        block = b"\x00\x00" if mode is None else b"\x10\x00" + bytes((mode,))
        head = b"\x00\x3c\x00\x00" + bytes(8) + block
        key = wire.method(1, commands.Basic.Publish(exchange="", routing_key="d"))
        client.send(key + wire.frame(2, 1, head))
        client.consume("d", "t")
        assert len(client.world.calls.runs) == (mode == 2)

    def test_route_is_forgotten_when_the_topology_changes(self, client: Client) -> None:
        octets = wire.publish(1, "k", b"x", exchange="amq.direct")
        client.send(octets)
        client.ask(1, commands.Queue.Bind(queue="q", exchange="amq.direct", routing_key="k"))
        client.send(octets * 2)
        assert client.message_count("q") == 2
        client.ask(1, commands.Queue.Unbind(queue="q", exchange="amq.direct", routing_key="k"))
        client.send(octets)
        assert client.message_count("q") == 2
        client.ask(1, commands.Queue.Delete(queue="q"))
        client.send(wire.publish(1, "q", b"x", mandatory=True))
        assert client.names() == ["Basic.Return"]

    def test_routes_are_bounded(self, client: Client) -> None:
        client.send(*(wire.publish(1, f"k{number}") for number in range(ROUTES_KEPT + 50)))
        publisher = client.connection.channels[1]._publisher
        assert len(publisher._resolved) <= ROUTES_KEPT

    def test_properties_are_delivered_as_they_came(self, client: Client) -> None:
        """FRAME-40, FRAME-53."""
        table: Table = {
            "wide": Field("l", 1),
            "odd": Field("S", b"\xff\xfe"),
            "then": Field("T", 2**63),
        }
        client.send(with_headers("q", table))
        client.method(1, commands.Basic.Consume(queue="q", consumer_tag="t", no_ack=True))
        client.world.run_turns()
        assert table_in(bytes(client.octets)) == table

    def test_body_in_several_frames(self, client: Client) -> None:
        octets = bytes(number % 251 for number in range(9000))
        client.send(wire.publish(1, "q", octets, sizes=(1, 0, 4000, 4000)))
        client.open(2)
        ((_, what),) = client.consume("q", "t", channel=2)
        assert content(what).body == octets


class TestChecks:
    """PUB-01…11."""

    def test_missing_exchange(self, client: Client) -> None:
        text = "NOT_FOUND - no exchange 'none' in vhost '/'"
        with closes_channel(client, 404, text, (60, 40)):
            client.send(wire.publish(1, "q", b"x", exchange="none"))

    def test_missing_exchange_is_told_when_the_content_is_complete(self, client: Client) -> None:
        """PUB-03."""
        octets = wire.publish(1, "q", b"12345", exchange="none")
        client.send(octets[:-1])
        assert client.hear() == []
        client.send(octets[-1:])
        assert client.names() == ["Channel.Close"]

    def test_no_permission_comes_before_existence(self, client: Client) -> None:
        poor = client.world.connect("poor")
        poor.open()
        for exchange, name in (("none", "none"), ("", "amq.default")):
            text = (
                f"ACCESS_REFUSED - write access to exchange '{name}' in vhost '/' refused for "
                "user 'poor'"
            )
            with closes_channel(poor, 403, text, (60, 40)):
                poor.send(wire.publish(1, "q", b"x", exchange=exchange))
            poor.open()

    def test_internal_exchange(self, client: Client) -> None:
        client.ask(
            1, commands.Exchange.Declare(exchange="in", exchange_type="fanout", internal=True)
        )
        text = "ACCESS_REFUSED - cannot publish to internal exchange 'in' in vhost '/'"
        with closes_channel(client, 403, text, (60, 40)):
            client.send(wire.publish(1, "q", b"x", exchange="in"))

    def test_too_large_is_refused_at_the_header(self) -> None:
        """FRAME-38: and the body is skipped."""
        client = prepared(World(replace(SETTINGS, max_message_size_bytes=10_000)))
        text = "PRECONDITION_FAILED - message size 10001 is larger than configured max size 10000"
        key = wire.method(1, commands.Basic.Publish(exchange="", routing_key="q"))
        with closes_channel(client, 406, text, (60, 40)):
            client.send(key + wire.header(1, 10_001))
            assert client.connection.channels[1].is_closing
            client.send(wire.bodies(1, b"x" * 10_001, [4000, 4000]))
        client.open()
        assert client.message_count("q") == 0

    def test_largest_body_that_the_reader_lets_through(self) -> None:
        client = prepared(World(replace(SETTINGS, max_message_size_bytes=536870912 - 1)))
        key = wire.method(1, commands.Basic.Publish(exchange="", routing_key="q"))
        text = (
            "PRECONDITION_FAILED - message size 536870912 is larger than configured max size "
            "536870911"
        )
        with closes_channel(client, 406, text, (60, 40)):
            client.send(key + wire.header(1, 536870912))

    @pytest.mark.parametrize(
        ("expiration", "why"),
        [
            ("x", "no_integer"),
            ("", "no_integer"),
            (" 5", "no_integer"),
            ("-", "no_integer"),
            ("5s", '{leftover_string,"s"}'),
            ("5 ", '{leftover_string," "}'),
            ("-5", "{value_negative,-5}"),
            ("315360000001", "{value_too_large,315360000001}"),
        ],
    )
    def test_expiration(self, client: Client, expiration: str, why: str) -> None:
        """PUB-05."""
        text = f"PRECONDITION_FAILED - invalid expiration '{expiration}': {why}"
        with closes_channel(client, 406, text, (60, 40)):
            client.send(publish_with_text(0x0100, expiration))

    @pytest.mark.parametrize("expiration", ["0", "5", "+5", "0005", "315360000000"])
    def test_valid_expiration(self, client: Client, expiration: str) -> None:
        """PUB-05."""
        client.send(publish_with_text(0x0100, expiration))
        assert client.message_count("q") == (1 if int(expiration) else 0)

    def test_user_id(self, client: Client) -> None:
        """PUB-06."""
        client.send(publish_with_text(0x0010, "guest"))
        assert client.message_count("q") == 1
        text = (
            "PRECONDITION_FAILED - user_id property set to 'other' but authenticated user was "
            "'guest'"
        )
        with closes_channel(client, 406, text, (60, 40)):
            client.send(publish_with_text(0x0010, "other"))

    def test_impersonator(self, client: Client) -> None:
        other = client.world.connect("other")
        other.open()
        other.send(publish_with_text(0x0010, "guest"))
        assert client.message_count("q") == 1

    @pytest.mark.parametrize("name", ["CC", "BCC"])
    def test_copies_must_be_arrays(self, client: Client, name: str) -> None:
        """PUB-10."""
        text = (
            "PRECONDITION_FAILED - invalid message: "
            f'{{unacceptable_type_in_header,"{name}",longstr}}'
        )
        with closes_channel(client, 406, text, (60, 40)):
            client.send(with_headers("q", {name: longstr("d")}))

    def test_copies_are_routed_once_and_bcc_is_hidden(self, client: Client) -> None:
        table: Table = {
            "CC": Field("A", (longstr("d"), Field("l", 1), longstr("q"))),
            "k": longstr("v"),
            "BCC": array("e"),
        }
        client.declare("e")
        client.send(with_headers("q", table))
        assert [client.message_count(queue) for queue in ("q", "d", "e")] == [1, 1, 1]
        client.method(1, commands.Basic.Get(queue="e", no_ack=True))
        client.world.run_turns()
        octets = bytes(client.octets)
        assert table_in(octets) == {"CC": table["CC"], "k": table["k"]}
        ((_, what),) = client.hear()
        assert content(what).method.routing_key == "q"  # type: ignore[attr-defined]

    def test_unroutable_copies_are_returned_once_without_bcc(self, client: Client) -> None:
        """PUB-11."""
        table = {"CC": array("n1"), "BCC": array("n2")}
        client.send(with_headers("n0", table, mandatory=True))
        client.world.run_turns()
        assert table_in(bytes(client.octets)) == {"CC": table["CC"]}
        ((_, what),) = client.hear()
        returned = content(what).method
        assert isinstance(returned, commands.Basic.Return)
        assert (returned.reply_code, returned.reply_text) == (312, "NO_ROUTE")
        assert (returned.exchange, returned.routing_key) == ("", "n0")
        client.send(with_headers("n0", table | {"BCC": array("q")}, mandatory=True))
        assert client.hear() == []

    def test_expiration_is_judged_before_copies_and_user(self, client: Client) -> None:
        head = (
            b"\x00\x3c\x00\x00"
            + bytes(8)
            + b"\x21\x10"
            + encode_table({"CC": longstr("d")})
            + b"\x01x"
            + b"\x05other"
        )
        key = wire.method(1, commands.Basic.Publish(exchange="", routing_key="q"))
        text = "PRECONDITION_FAILED - invalid expiration 'x': no_integer"
        with closes_channel(client, 406, text, (60, 40)):
            client.send(key + wire.frame(2, 1, head))

    def test_failed_publish_takes_no_number_those_before_are_kept(self, client: Client) -> None:
        """PUB-02."""
        client.ask(1, commands.Confirm.Select())
        client.send(wire.publish(1, "q", b"1"), publish_with_text(0x0010, "other"))
        assert client.names() == ["Channel.Close"]
        client.method(1, commands.Channel.CloseOk())
        client.open()
        assert client.message_count("q") == 1

    def test_headers_exchange_looks_at_headers(self, client: Client) -> None:
        binding = encode_table({"x-match": longstr("all"), "k": longstr("v")})
        payload = b"\x00\x32\x00\x14\x00\x00\x01q\x0bamq.headers\x00\x00" + binding
        client.send(wire.frame(1, 1, payload))
        assert client.names() == ["Queue.BindOk"]
        client.send(with_headers("", {"k": longstr("v")}, exchange="amq.headers"))
        client.send(with_headers("", {"k": longstr("w")}, exchange="amq.headers"))
        client.send(wire.publish(1, "", b"x", exchange="amq.headers"))
        assert client.message_count("q") == 1


class TestMandatory:
    """PUB-20…22."""

    def test_return_brings_everything_back(self, client: Client) -> None:
        octets = bytes(number % 251 for number in range(9000))
        properties = wire.persistent(message_id="7", headers={"a": 1})
        client.send(wire.publish(1, "none", octets, properties, mandatory=True, sizes=(4000, 4000)))
        ((channel, what),) = client.hear()
        returned = content(what).method
        assert isinstance(returned, commands.Basic.Return)
        assert channel == 1
        assert (returned.reply_code, returned.reply_text) == (312, "NO_ROUTE")
        assert (returned.exchange, returned.routing_key) == ("", "none")
        assert content(what).body == octets
        assert dict(content(what).properties) == dict(properties)

    def test_every_message_of_a_run_is_returned_before_its_confirm(self, client: Client) -> None:
        client.ask(1, commands.Confirm.Select())
        client.send(wire.publish(1, "none", b"x", mandatory=True) * 3)
        said = client.hear()
        assert [name_of(what) for _, what in said] == ["Basic.Return"] * 3 + ["Basic.Ack"]
        assert confirms(said[-1:]) == [("Basic.Ack", 3, True)]

    def test_unroutable_is_dropped_otherwise(self, client: Client) -> None:
        client.send(wire.publish(1, "none", b"x"))
        assert client.hear() == []


class TestImmediate:
    """PUB-30…35."""

    def test_nobody_now(self, client: Client) -> None:
        client.ask(1, commands.Confirm.Select())
        client.send(wire.publish(1, "q", b"x", immediate=True))
        (_, what), ack = client.hear()
        returned = content(what).method
        assert isinstance(returned, commands.Basic.Return)
        assert (returned.reply_code, returned.reply_text) == (313, "NO_CONSUMERS")
        assert confirms([ack]) == [("Basic.Ack", 1, False)]
        assert client.message_count("q") == 0

    def test_consumer_with_room_gets_it_at_once(self, client: Client) -> None:
        client.consume("q", "t")
        client.send(wire.publish(1, "q", b"x", immediate=True))
        assert client.deliveries() == [("t", 1, b"x", False)]
        client.send(wire.nack(1, 1))
        assert client.deliveries() == [("t", 2, b"x", True)]

    def test_consumer_without_room(self, client: Client) -> None:
        client.qos(1)
        client.consume("q", "t")
        client.send(wire.publish(1, "q", b"x", immediate=True) * 2)
        assert sorted(client.names()) == ["Basic.Deliver", "Basic.Return"]

    def test_ready_message_stands_before_it(self, client: Client) -> None:
        client.send(wire.publish(1, "q", b"first"))
        client.send(wire.publish(1, "q", b"x", immediate=True))
        assert client.names() == ["Basic.Return"]

    def test_only_the_queues_that_can_take_it(self, client: Client) -> None:
        """PUB-31."""
        for queue in ("q", "d"):
            client.ask(1, commands.Queue.Bind(queue=queue, exchange="amq.fanout"))
        client.consume("q", "t")
        client.send(wire.publish(1, "", b"x", exchange="amq.fanout", immediate=True))
        assert [delivery(what)[0] for _, what in client.hear()] == ["t"]
        assert client.message_count("d") == 0

    def test_persistent_one_is_stored_for_its_takers_and_confirmed(self, client: Client) -> None:
        client.consume("d", "t")
        client.ask(1, commands.Confirm.Select())
        client.send(wire.publish(1, "d", b"x", wire.persistent(), immediate=True))
        assert client.names() == ["Basic.Deliver"]
        assert len(client.world.calls.runs) == 1
        client.world.sync()
        assert confirms(client.hear()) == [("Basic.Ack", 1, False)]

    @pytest.mark.parametrize(("mandatory", "code"), [(True, 312), (False, 313)])
    def test_no_route_at_all(self, client: Client, mandatory: bool, code: int) -> None:
        """PUB-33."""
        client.send(wire.publish(1, "none", b"x", immediate=True, mandatory=mandatory))
        ((_, what),) = client.hear()
        assert content(what).method.reply_code == code  # type: ignore[attr-defined]

    def test_mandatory_and_nobody_now(self, client: Client) -> None:
        client.send(wire.publish(1, "q", b"x", immediate=True, mandatory=True))
        ((_, what),) = client.hear()
        assert content(what).method.reply_code == 313  # type: ignore[attr-defined]

    def test_can_be_refused(self) -> None:
        client = prepared(World(replace(SETTINGS, compat_reject_immediate=True)))
        text = "NOT_IMPLEMENTED - immediate=true"
        with closes_connection(client, 540, text, (60, 40)):
            client.send(wire.publish(1, "q", b"x", immediate=True))


class TestMemory:
    def test_order_and_contents_survive_paging(self) -> None:
        """LIMIT-21: what does not fit is read back in order."""
        client = prepared(
            World(replace(SETTINGS, queue_memory_bytes=300_000, queues_memory_bytes=300_000))
        )
        bodies = [f"{number}".encode() + b"x" * 1000 for number in range(2000)]
        for at in range(0, 2000, 100):
            for body in bodies[at : at + 100]:
                properties = wire.persistent() if len(body) % 2 else None
                client.send(wire.publish(1, "d", body, properties))
            client.world.run_turns()
        assert client.world.pager.total < 1_000_000
        assert client.message_count("d") == 2000
        assert [delivery(what)[2] for _, what in client.consume("d", "t", no_ack=True)] == bodies


def publish_with_text(flag: int, text: str) -> bytes:
    """A publish to q with one shortstr property."""
    key = wire.method(1, commands.Basic.Publish(exchange="", routing_key="q"))
    octets = text.encode()
    head = b"\x00\x3c\x00\x00" + bytes(8) + flag.to_bytes(2, "big") + bytes((len(octets),)) + octets
    return key + wire.frame(2, 1, head)


def test_a_forbidden_topic_is_refused_behind_faults_of_properties_and_before_the_user_id(
    world: World,
) -> None:
    """PUB-01, PERM-10."""
    client = prepared(world)
    user = world.auth.find("guest")
    assert user is not None
    user.permit_topics("/", "amq.topic", "^open", ".*")
    text = (
        "ACCESS_REFUSED - write access to topic 'closed' in exchange 'amq.topic' in vhost '/' "
        "refused for user 'guest'"
    )
    bad = commands.Basic.Properties(expiration="never")
    fault = "PRECONDITION_FAILED - invalid expiration 'never': no_integer"
    with closes_channel(client, 406, fault, (60, 40)):
        client.send(wire.publish(1, "closed", b"a", bad, exchange="amq.topic"))
    client.open(2)
    foreign = commands.Basic.Properties(user_id="somebody")
    with closes_channel(client, 403, text, (60, 40), 2):
        client.send(wire.publish(2, "closed", b"b", foreign, exchange="amq.topic"))
    client.open(3)
    client.send(wire.publish(3, "open", b"c", exchange="amq.topic"))
    with closes_channel(client, 403, text, (60, 40), 3):
        client.send(wire.publish(3, "closed", b"d", exchange="amq.topic") * 2)
    client.open(4)
    client.method(4, commands.Tx.Select())
    client.hear()
    with closes_channel(client, 403, text, (60, 40), 4):
        client.send(wire.publish(4, "closed", b"e", exchange="amq.topic"))
