"""What is counted is exact: each message once, where it happens, also by those that are gone."""

from __future__ import annotations

import errno
from typing import Any

import pytest
from pamqp import commands

from tests import wire
from tests.unit.server.admin.listings import listed
from tests.unit.server.amqp_client import declare, got, publish
from tests.unit.server.in_memory import Client, World

TOTALS = (
    *("published", "confirmed", "nacked", "returned", "unroutable"),
    *("delivered", "redelivered", "acked", "rejected"),
    *("dead_lettered", "expired", "dropped"),
)


@pytest.fixture
def world() -> World:
    return World()


@pytest.fixture
def client(world: World) -> Client:
    client = world.connect()
    client.open()
    return client


def counted(world: World, what: str, **wanted: object) -> dict[str, Any]:
    """The numbers of one row that are not 0, of the row that is like this."""
    rows = [row for row in listed(world, what) if wanted.items() <= row.items()]
    assert len(rows) == 1, rows
    return {name: rows[0][name] for name in TOTALS if rows[0].get(name)}


def test_confirms_returns_and_what_goes_nowhere(world: World, client: Client) -> None:
    client.ask(1, commands.Confirm.Select())
    declare(client, "q")
    publish(client, "q", b"1", b"2", b"3")
    for body in (b"lost", b"lost too"):
        client.send(wire.publish(1, "nowhere", body))
    client.send(wire.publish(1, "nowhere", b"back", mandatory=True) * 3)
    client.hear()
    expected = {"published": 8, "confirmed": 8, "returned": 3, "unroutable": 2}
    assert counted(world, "channels") == counted(world, "overview") == expected
    assert counted(world, "queues", name="q") == {"published": 3}


def test_publishes_without_confirms_and_in_a_transaction(world: World, client: Client) -> None:
    declare(client, "q")
    publish(client, "q", b"1", b"2")
    assert counted(world, "channels") == {"published": 2}
    client.ask(1, commands.Tx.Select())
    client.send(wire.publish(1, "q", b"3") * 4)
    client.hear()
    assert counted(world, "channels") == {"published": 2}
    client.ask(1, commands.Tx.Commit())
    client.send(wire.publish(1, "q", b"never") * 4)
    client.ask(1, commands.Tx.Rollback())
    assert counted(world, "channels") == {"published": 6}
    assert counted(world, "queues") == {"published": 6}


def test_deliveries_and_what_clients_make_of_them(world: World, client: Client) -> None:
    declare(client, "q")
    publish(client, "q", *(b"%d" % n for n in range(10)))
    client.consume("q", "c")
    client.send(wire.ack(1, 4, multiple=True))
    client.send(
        wire.method(1, commands.Basic.Reject(delivery_tag=5, requeue=False))
        + wire.nack(1, 7, multiple=True, requeue=True)
    )
    client.hear()
    # Two came back and were handed out again.
    row = {"delivered": 12, "redelivered": 2, "acked": 4, "rejected": 3}
    assert counted(world, "queues") == {"published": 10, **row}
    assert counted(world, "channels") == counted(world, "overview") == {"published": 10, **row}


def test_get_no_ack_and_recover(world: World, client: Client) -> None:
    declare(client, "q")
    publish(client, "q", b"1", b"2", b"3", b"4")
    assert got(client, "q", no_ack=True) is not None
    assert got(client, "q", no_ack=False) is not None
    client.ask(1, commands.Basic.Recover(requeue=True))
    assert got(client, "q", no_ack=False) is not None
    expected = {"published": 4, "delivered": 3, "redelivered": 1}
    assert counted(world, "queues") == counted(world, "channels") == expected
    client.consume("q", "c")
    client.send(wire.ack(1, 3, multiple=True))
    assert client.hear() == []
    client.method(1, commands.Basic.Recover(requeue=False))
    assert client.names() == ["Basic.RecoverOk", *["Basic.Deliver"] * 2]
    # The two that are left were delivered, and again.
    expected |= {"delivered": 7, "redelivered": 3, "acked": 1}
    assert counted(world, "queues") == counted(world, "channels") == expected


def test_dead_letters_expiry_and_length(world: World, client: Client) -> None:
    declare(client, "dead")
    declare(client, "ttl", message_ttl=100, dead_letter_exchange="", dead_letter_routing_key="dead")
    declare(client, "short", max_length=2)
    publish(client, "ttl", b"1", b"2", b"3")
    publish(client, "short", b"1", b"2", b"3", b"4", b"5")
    assert got(client, "ttl") is not None
    world.pass_time(1)
    expired = {"published": 3, "delivered": 1, "expired": 2, "dead_lettered": 2}
    assert counted(world, "queues", name="ttl") == expired
    assert counted(world, "queues", name="short") == {"published": 5, "dropped": 3}
    assert counted(world, "queues", name="dead") == {"published": 2}
    declare(client, "lost", message_ttl=0, dead_letter_exchange="nowhere")
    publish(client, "lost", b"1", b"2")
    client.hear()
    [lost] = [row for row in listed(world, "queues") if row["name"] == "lost"]
    assert (lost["dead_lettered"], lost["dead_letters_dropped"]) == (2, 2)
    client.ask(1, commands.Queue.Delete(queue="lost"))
    client.ask(1, commands.Queue.Delete(queue="ttl"))
    client.ask(1, commands.Queue.Delete(queue="short"))
    overview = counted(world, "overview")
    assert (overview["expired"], overview["dead_lettered"], overview["dropped"]) == (4, 4, 3)


def test_an_exchange_counts_what_clients_publish_to_it(world: World, client: Client) -> None:
    client.ask(1, commands.Exchange.Declare(exchange="x", exchange_type="fanout"))
    for queue in ("a", "b"):
        declare(client, queue)
        client.ask(1, commands.Queue.Bind(queue=queue, exchange="x"))
    client.send(wire.publish(1, "", b"m", exchange="x") * 5)
    client.hear()
    [row] = [row for row in listed(world, "exchanges") if row["name"] == "x"]
    assert (row["published_in"], row["published_out"]) == (5, 10)


def test_refused_publishes_are_nacked(world: World, client: Client) -> None:
    client.ask(1, commands.Confirm.Select())
    declare(client, "full", max_length=1, overflow="reject-publish")
    publish(client, "full", b"1")
    client.send(wire.publish(1, "full", b"2") * 3)
    client.hear()
    expected = {"published": 4, "confirmed": 1, "nacked": 3}
    assert counted(world, "channels") == expected


def test_a_full_disk_takes_a_commit_back(world: World, client: Client) -> None:
    client.declare("q", durable=True)
    client.send(wire.publish(1, "q", b"1", wire.persistent()))
    world.sync()
    client.ask(1, commands.Tx.Select())
    assert client.ask(1, commands.Basic.Get(queue="q"))
    client.send(wire.ack(1, 1))
    client.method(1, commands.Tx.Commit())
    world.disk.fail_next("write", errno.ENOSPC)
    world.run_turns()
    assert counted(world, "overview") == {"published": 1, "delivered": 1}


def test_bytes_and_who_is_gone(world: World, client: Client) -> None:
    other = world.connect()
    other.open()
    declare(other, "q")
    publish(other, "q", b"1", b"2")
    before = listed(world, "overview")[0]
    rows = listed(world, "connections")
    for name in ("received_bytes", "sent_bytes"):
        assert before[name] == sum(row[name] for row in rows)
    sent = len(other.octets)
    other.connection.lost("gone")
    world.run_turns()
    [after] = listed(world, "overview")
    changed = {name for name in before if before[name] != after[name]}
    assert changed == {"connections", "channels"}
    assert sent == 0
    assert (after["connections"], after["connections_opened"]) == (1, 2)
    assert (after["channels"], after["channels_opened"]) == (1, 2)


def test_what_a_restart_brings_back_is_not_counted(world: World, client: Client) -> None:
    client.declare("q", durable=True)
    client.send(wire.publish(1, "q", b"1", wire.persistent()) * 3)
    world.sync()
    world.disk.crash(0)
    reborn = World(disk=world.disk)
    assert counted(reborn, "queues") == {}
    assert listed(reborn, "queues")[0]["messages_ready"] == 3
    assert counted(reborn, "overview") == {}
