"""Messages that come in one piece are judged together; nobody can tell that from what happens."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from pamqp import commands

from tests import wire
from tests.unit.server.amqp_client import bodies, deaths, declare, got, headers_of
from tests.unit.server.in_memory import World, confirms
from vouchmq.protocol.contents import property_block
from vouchmq.server.broker.features.dedup import KeyReader, key_in

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tests.unit.server.in_memory import Client

KEY = "x-deduplication-header"


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


def publish_at_once(
    client: Client, properties: Iterable[dict[str, Any]], *, exchange: str = "", key: str = "q"
) -> None:
    """Publish #0, #1, … in one piece."""
    client.send(
        *(
            wire.publish(1, key, b"#%d" % at, wire.persistent(**each), exchange=exchange)
            for at, each in enumerate(properties)
        )
    )
    client.world.run_turns()


def test_each_kind_of_expiration_keeps_its_time(client: Client) -> None:
    """TTL-01: in one piece with others."""
    declare(client, "q")
    publish_at_once(client, [{"expiration": text} for text in ("10", "10", "5000", "10")] + [{}])
    client.world.pass_time(0.02)
    assert bodies(client, "q") == [b"#2", b"#4"]


def test_what_stands_before_a_fault_is_kept(client: Client) -> None:
    """PUB-05: messages before the faulty one are kept, those behind it are not taken."""
    declare(client, "q")
    texts = ("1000", "1000", "soon", "1000")
    publish_at_once(client, [{"expiration": text} for text in texts])
    assert client.names()[-1] == "Channel.Close"
    client.send(wire.method(1, commands.Channel.CloseOk()))
    client.open(2)
    assert client.message_count("q", channel=2) == 2


def test_the_limit_is_found_within_a_piece(client: Client) -> None:
    """LEN-20: what still fits is taken, the rest refused, one by one."""
    declare(client, "q", max_length=3, overflow="reject-publish")
    client.ask(1, commands.Confirm.Select())
    publish_at_once(client, [{}, {}])
    publish_at_once(client, [{}, {}, {}])
    client.world.sync()
    said = confirms(client.hear())
    assert {kind for kind, _, _ in said} == {"Basic.Ack", "Basic.Nack"}
    assert bodies(client, "q") == [b"#0", b"#1", b"#0"]


def test_a_key_twice_within_a_piece(client: Client) -> None:
    """DUP-07: in a queue and in front of an exchange."""
    declare(client, "q", message_deduplication=True)
    publish_at_once(client, [{"headers": {KEY: key}} for key in ("a", "b", "a", "c")])
    assert bodies(client, "q") == [b"#0", b"#1", b"#3"]
    arguments: Any = {"x-message-deduplication": True}
    client.ask(
        1, commands.Exchange.Declare(exchange="e", exchange_type="fanout", arguments=arguments)
    )
    declare(client, "other")
    client.ask(1, commands.Queue.Bind(queue="other", exchange="e"))
    for keys in ("ab", "bca", "cc"):
        publish_at_once(client, [{"headers": {KEY: key}} for key in keys], exchange="e")
    assert bodies(client, "other") == [b"#0", b"#1", b"#1"]


def test_levels_within_a_piece(client: Client) -> None:
    """PRIO-02, PRIO-03: beyond the highest level they stay in their order."""
    declare(client, "q", max_priority=5)
    publish_at_once(client, [{"priority": number} for number in (1, 9, 5, 1, 7)] + [{}])
    assert bodies(client, "q") == [b"#1", b"#2", b"#4", b"#0", b"#3", b"#5"]


def test_rejected_in_one_piece(client: Client) -> None:
    """ACK-06, DLX-02: each becomes its own dead letter; one with requeue among them comes back."""
    declare(client, "dead")
    declare(client, "q", dead_letter_exchange="", dead_letter_routing_key="dead")
    publish_at_once(client, [{"headers": {"n": 1}}] * 3 + [{"headers": {"n": 2}}] * 2)
    client.consume("q", "t")
    rejects = [commands.Basic.Reject(delivery_tag=tag, requeue=tag == 2) for tag in range(1, 6)]
    client.send(*(wire.method(1, each) for each in rejects))
    client.world.run_turns()
    assert [(body, again) for _, _, body, again in client.deliveries()] == [(b"#1", True)]
    assert client.message_count("dead") == 4
    assert deaths(headers_of(client, "dead"))[0]["count"] == 1
    assert [got(client, "dead").body for _ in range(3)] == [b"#2", b"#3", b"#4"]


def test_a_tag_that_is_not_there_among_rejects(client: Client) -> None:
    """ACK-20: those before it have been rejected."""
    declare(client, "q")
    publish_at_once(client, [{}] * 2)
    client.consume("q", "t")
    client.send(*(wire.method(1, commands.Basic.Reject(tag, requeue=False)) for tag in (1, 2, 3)))
    assert "Channel.Close" in client.names()
    client.open(2)
    assert client.message_count("q", channel=2) == 0


def content(headers: dict[str, Any], **more: Any) -> bytes:
    """A raw content with these headers."""
    octets = wire.publish(1, "q", b"body", wire.persistent(headers=headers, **more))
    return octets[octets.index(b"\xce\x02") + 1 :]


@pytest.mark.parametrize(
    "more",
    [
        [{"a": 1, KEY: "k1"}, {"a": 1, KEY: "k2"}, {"a": 2, KEY: "k2"}, {"a": 1, KEY: "k34"}],
        [{KEY: "k1", "x-cache-ttl": 5}, {KEY: "k2", "x-cache-ttl": 5}, {KEY: "k3"}],
        [{"z": "k1", KEY: "k1"}, {"z": "k1", KEY: "k2"}, {"z": "k2", KEY: "k1"}, {"z": "k2"}],
        [{KEY: 1}, {KEY: 2}, {KEY: "k"}, {KEY: ""}, {}],
    ],
)
def test_keys_are_read_alike_by_both_ways(more: list[dict[str, Any]]) -> None:
    """DUP-01: where the last key stood, and from the front."""
    read = KeyReader(KEY).key_of
    for headers in more * 3:
        raw = content(headers)
        assert read(raw) == key_in(property_block(raw), KEY)


def test_message_ids_are_keys_too() -> None:
    """DUP-01."""
    read = KeyReader("message-id").key_of
    for headers, name in [({"a": 1}, "m1"), ({"a": 1}, "m2"), ({"a": 2}, "m2"), ({}, "m345")] * 2:
        raw = content(headers, message_id=name)
        assert read(raw) == key_in(property_block(raw), "message-id")
