"""Operators declare, delete, bind and purge as clients do, with a user's permissions or all."""

from __future__ import annotations

import errno
from typing import Any

import pytest
from pamqp import commands

from tests import wire
from tests.unit.server.admin.listings import listed
from tests.unit.server.admin.operating import asked, begun, refused
from tests.unit.server.amqp_client import declare, publish
from tests.unit.server.in_memory import Client, World, name_of


@pytest.fixture
def world() -> World:
    return World()


@pytest.fixture
def client(world: World) -> Client:
    client = world.connect()
    client.open()
    return client


def names(world: World, what: str) -> set[str]:
    return {row["name"] for row in listed(world, what)}


def ends(world: World) -> list[tuple[str, str, str, dict[str, object]]]:
    return [
        (row["source"], row["destination"], row["routing_key"], row["arguments"])
        for row in listed(world, "bindings")
    ]


def test_a_queue_is_put_once_and_is_deleted(world: World) -> None:
    wanted = {"name": "q", "arguments": {"x-max-length": 7, "x-overflow": "reject-publish"}}
    answer = {"ok": True, "name": "q", "messages": 0, "consumers": 0}
    assert asked(world, "put queue", **wanted) == {**answer, "created": True}
    assert asked(world, "put queue", **wanted) == {**answer, "created": False}
    [row] = listed(world, "queues")
    assert (row["durable"], row["arguments"]) == (True, wanted["arguments"])
    assert refused(world, "put queue", name="q", durable=False, arguments=wanted["arguments"]) == (
        406,
        "PRECONDITION_FAILED - inequivalent arg 'durable' for queue 'q' in vhost '/': received "
        "'false' but current is 'true'",
    )
    assert asked(world, "delete queue", name="q") == {"ok": True, "messages": 0}
    assert refused(world, "delete queue", name="q") == (
        404,
        "NOT_FOUND - no queue 'q' in vhost '/'",
    )


def test_an_answer_waits_for_the_disk(world: World) -> None:
    reader = begun(world, "put queue", name="q")
    assert "q" in world.vhost.queues
    world.run_turn()
    assert not reader.has_answer()
    world.sync()
    assert reader.has_answer()
    world.disk.crash(0)
    assert "q" in World(disk=world.disk).vhost.queues


def test_a_transient_queue_is_answered_at_once(world: World) -> None:
    reader = begun(world, "put queue", name="q", durable=False)
    world.run_turn()
    assert reader.facts is not None


def test_the_broker_names_a_queue(world: World) -> None:
    answer = asked(world, "put queue", name="")
    assert answer["name"].startswith("amq.gen-")
    assert answer["created"] is True
    assert refused(world, "delete queue", name="")[0] == 400
    assert refused(world, "purge queue", name="")[0] == 400


def test_a_queue_in_use_or_with_messages_may_be_left(world: World, client: Client) -> None:
    declare(client, "q")
    publish(client, "q", b"1", b"2")
    text = "PRECONDITION_FAILED - queue 'q' in vhost '/' not empty"
    assert refused(world, "delete queue", name="q", if_empty=True) == (406, text)
    client.consume("q", "c")
    text = "PRECONDITION_FAILED - queue 'q' in vhost '/' in use"
    assert refused(world, "delete queue", name="q", if_unused=True) == (406, text)
    assert asked(world, "delete queue", name="q", if_empty=True)["ok"]
    assert [name_of(what) for _, what in client.hear()] == ["Basic.Cancel"]


def test_a_purge_in_slices(world: World, client: Client) -> None:
    declare(client, "q")
    for _ in range(30):
        publish(client, "q", *[b"m"] * 1000)
    # Whoever looks at the clock finds that a slice has gone.
    world.tick_s = 0.01
    reader = begun(world, "purge queue", name="q")
    assert 0 < world.vhost.queues["q"].ready_count < 30000
    world.sync()
    assert reader.facts == {"ok": True, "messages": 30000}
    assert refused(world, "purge queue", name="none")[0] == 404


def test_exchanges_and_bindings(world: World) -> None:
    put: dict[str, Any] = {"name": "x", "type": "headers", "arguments": {"alternate-exchange": "y"}}
    assert asked(world, "put exchange", **put) == {"ok": True, "created": True}
    assert asked(world, "put exchange", **put) == {"ok": True, "created": False}
    assert refused(world, "put exchange", name="x", type="direct")[0] == 406
    assert refused(world, "put exchange", name="amq.mine", type="direct")[0] == 403
    asked(world, "put queue", name="q")
    asked(world, "put exchange", name="y", type="fanout", auto_delete=True)
    to_queue = {"source": "x", "destination": "q", "routing_key": "k", "arguments": {"a": 1}}
    to_exchange = {"source": "x", "destination": "y", "destination_type": "exchange"}
    for binding in (to_queue, to_exchange):
        assert asked(world, "put binding", **binding) == {"ok": True, "created": True}
        assert asked(world, "put binding", **binding) == {"ok": True, "created": False}
    assert ends(world) == [("x", "q", "k", {"a": 1}), ("x", "y", "", {})]
    text = "PRECONDITION_FAILED - exchange 'x' in vhost '/' in use"
    assert refused(world, "delete exchange", name="x", if_unused=True) == (406, text)
    assert refused(world, "put binding", source="x", destination="none")[0] == 404
    for binding in (to_queue, to_exchange):
        assert asked(world, "delete binding", **binding) == {"ok": True}
        assert refused(world, "delete binding", **binding)[0] == 404
    assert ends(world) == []
    assert asked(world, "delete exchange", name="x", if_unused=True) == {"ok": True}
    assert refused(world, "delete exchange", name="x") == (
        404,
        "NOT_FOUND - no exchange 'x' in vhost '/'",
    )
    assert refused(world, "delete exchange", name="amq.direct")[0] == 403


def test_a_binding_is_found_whatever_the_width_of_its_numbers(world: World, client: Client) -> None:
    declare(client, "q")
    table = {"x-match": "any", "n": 5}  # pamqp gives it the smallest type that fits
    bind = commands.Queue.Bind(queue="q", exchange="amq.headers", arguments=table)  # type: ignore[arg-type]
    client.ask(1, bind)
    [(source, queue, _, shown)] = ends(world)
    assert asked(world, "delete binding", source=source, destination=queue, arguments=shown)["ok"]
    assert ends(world) == []


@pytest.mark.parametrize(
    ("command", "arguments", "text"),
    [
        ("put queue", {"name": "q"}, "configure access to queue 'q'"),
        ("delete queue", {"name": "none"}, "configure access to queue 'none'"),
        ("purge queue", {"name": "q"}, "read access to queue 'q'"),
        ("put exchange", {"name": "x", "type": "direct"}, "configure access to exchange 'x'"),
        ("delete exchange", {"name": "x"}, "configure access to exchange 'x'"),
        ("put binding", {"source": "open", "destination": "q"}, "write access to queue 'q'"),
        ("put binding", {"source": "x", "destination": "open"}, "read access to exchange 'x'"),
        ("delete binding", {"source": "open", "destination": "q"}, "write access to queue 'q'"),
    ],
)
def test_a_user_needs_the_permissions_of_a_client(
    world: World, command: str, arguments: dict[str, object], text: str
) -> None:
    assert refused(world, command, user="poor", **arguments) == (
        403,
        f"ACCESS_REFUSED - {text} in vhost '/' refused for user 'poor'",
    )


def test_a_user_with_permissions_may(world: World) -> None:
    assert asked(world, "put queue", name="open1", user="poor")["created"]
    assert asked(world, "put exchange", name="open1", type="topic", user="poor")["created"]
    binding = {"source": "open1", "destination": "open1", "routing_key": "a.#"}
    assert asked(world, "put binding", **binding, user="poor")["created"]
    assert asked(world, "delete binding", **binding, user="poor")["ok"]
    assert asked(world, "purge queue", name="open1", user="poor")["messages"] == 0
    assert asked(world, "delete queue", name="open1", user="poor")["ok"]
    assert asked(world, "delete exchange", name="open1", user="poor")["ok"]
    assert refused(world, "put queue", name="open", user="nobody") == (
        403,
        "ACCESS_REFUSED - there is no user 'nobody'",
    )
    assert refused(world, "put queue", name="q", vhost="none") == (
        404,
        "NOT_FOUND - no virtual host 'none'",
    )


def test_a_queue_of_one_connection_stays_its_own(world: World, client: Client) -> None:
    client.declare("mine", exclusive=True)
    for command in ("delete queue", "purge queue", "put queue"):
        assert refused(world, command, name="mine")[0] == 405
    assert "mine" in names(world, "queues")


@pytest.mark.parametrize(
    ("command", "arguments"),
    [
        ("put queue", {"name": "ü" * 128}),
        ("put exchange", {"name": "x" * 256, "type": "direct"}),
        ("put binding", {"source": "x", "destination": "q", "routing_key": "k" * 256}),
        ("put queue", {"name": "q", "arguments": {"n": 1 << 63}}),
        ("put queue", {"name": "q", "arguments": {"a": [{"n": 1 << 64}]}}),
        ("put queue", {"arguments": {}}),
        ("put binding", {"source": "x", "destination": "q", "destination_type": "both"}),
    ],
)
def test_what_no_method_can_say_is_refused(
    world: World, command: str, arguments: dict[str, object]
) -> None:
    assert refused(world, command, **arguments)[0] == 400


def test_a_full_disk_is_answered(world: World) -> None:
    world.disk.fail_next("write", errno.ENOSPC)
    assert refused(world, "put queue", name="q") == (506, "RESOURCE_ERROR - the disk is full")


def test_a_disk_that_has_failed_is_answered(world: World) -> None:
    reader = begun(world, "put queue", name="q")
    world.disk.fail_next("write", errno.EIO)
    world.run_turns()
    assert reader.facts is not None
    assert (reader.facts["ok"], reader.facts["code"]) == (False, 320)


def test_a_connection_is_closed_with_a_reason(world: World, client: Client) -> None:
    name = client.connection.label
    text = f"ACCESS_REFUSED - connection '{name}' is not of user 'other', who is no administrator"
    assert refused(world, "close connection", name=name, user="other") == (403, text)
    assert refused(world, "close connection", name="none") == (
        404,
        "NOT_FOUND - no connection 'none'",
    )
    assert asked(world, "close connection", name=name, reason="time to go", user="guest")["ok"]
    [(_, close)] = client.hear()
    assert isinstance(close, commands.Connection.Close)
    assert (close.reply_code, close.reply_text) == (320, "CONNECTION_FORCED - time to go")


def test_a_channel_is_closed_and_the_others_stay(world: World, client: Client) -> None:
    client.open(2)
    declare(client, "q")
    publish(client, "q", b"m")
    client.consume("q", "c", 2)
    name = client.connection.label
    assert refused(world, "close channel", name=name, number=3)[0] == 404
    assert asked(world, "close channel", name=name, number=2)["ok"]
    [(number, close)] = client.hear()
    assert number == 2
    assert isinstance(close, commands.Channel.Close)
    text = "PRECONDITION_FAILED - closed by an operator"
    assert (close.reply_code, close.reply_text) == (406, text)
    assert client.message_count("q") == 1


def test_a_consumer_may_take_more_or_fewer(world: World, client: Client) -> None:
    declare(client, "q")
    client.qos(1)
    client.consume("q", "c")
    client.consume("q", "free", no_ack=False)
    client.method(1, commands.Basic.Cancel(consumer_tag="free"))
    client.hear()
    publish(client, "q", *[b"m"] * 10)
    assert len(client.deliveries()) == 1
    wanted = {"name": client.connection.label, "number": 1, "tag": "c"}
    assert asked(world, "set prefetch", prefetch=4, **wanted) == {"ok": True, "before": 1}
    assert len(client.deliveries()) == 3
    assert asked(world, "set prefetch", prefetch=2, **wanted)["before"] == 4
    client.send(wire.ack(1, 2, multiple=True))
    assert client.hear() == []
    client.send(wire.ack(1, 3))
    assert len(client.deliveries()) == 1
    assert listed(world, "consumers")[0]["prefetch"] == 2
    assert refused(world, "set prefetch", prefetch=1, **{**wanted, "tag": "none"})[0] == 404
    assert refused(world, "set prefetch", prefetch=1, **{**wanted, "number": 2})[0] == 404
    assert refused(world, "set prefetch", prefetch=1, user="other", **wanted)[0] == 403
    assert refused(world, "set prefetch", prefetch=65536, **wanted)[0] == 400
