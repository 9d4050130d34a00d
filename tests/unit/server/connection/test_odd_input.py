"""What clients may send and nobody should: it is refused with the right code, or means nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from pamqp import commands

from tests import wire
from tests.unit.server.amqp_client import bodies, deaths, declare, headers_of, publish, reject
from tests.unit.server.in_memory import World

if TYPE_CHECKING:
    from tests.unit.server.in_memory import Client

KEY = "x-deduplication-header"


@pytest.fixture
def client() -> Client:
    """A client with channel 1 open."""
    client = World().connect()
    client.open()
    return client


@pytest.fixture
def large_frames(monkeypatch: pytest.MonkeyPatch) -> None:
    """Clients that are connected from now on send frames of 128 KiB."""
    monkeypatch.setattr(wire, "FRAME_MAX", 131072)


def exchange(client: Client, name: str, kind: str, **arguments: Any) -> None:
    """Declare an exchange."""
    table = {"x-" + key.replace("_", "-"): value for key, value in arguments.items()}
    what = commands.Exchange.Declare(exchange=name, exchange_type=kind, arguments=table)
    client.method(1, what)


def code_of(client: Client) -> int | None:
    """With which reply code a channel is closed, by the only thing that is said."""
    ((_, what),) = client.hear()
    assert isinstance(what, commands.Channel.Close), what
    return what.reply_code


class TestNumbers:
    """Numbers that are larger than anything."""

    @pytest.mark.usefixtures("large_frames")
    @pytest.mark.parametrize("digits", [400, 5000])
    def test_delay_of_many_digits(self, digits: int) -> None:
        """DELAY-12."""
        client = World().connect()
        client.open()
        exchange(client, "later", "x-delayed-message", delayed_type="direct")
        assert client.names() == ["Exchange.DeclareOk"]
        publish_to(client, "later", {"x-delay": "-" + "9" * digits})
        assert client.names() == []
        publish_to(client, "later", {"x-delay": "9" * digits})
        assert code_of(client) == 406

    @pytest.mark.usefixtures("large_frames")
    @pytest.mark.parametrize("name", ["cache_size", "cache_ttl"])
    @pytest.mark.parametrize("digits", [20, 5000])
    def test_window_of_many_digits(self, name: str, digits: int) -> None:
        """DUP-02."""
        client = World().connect()
        client.open()
        arguments = {"cache_size": 5, name: "9" * digits}
        exchange(client, "once", "x-message-deduplication", **arguments)
        assert code_of(client) == 406

    @pytest.mark.parametrize("weight", ["+-5", "--5", "1001", "9" * 250])
    def test_weight(self, client: Client, weight: str) -> None:
        exchange(client, "hash", "x-consistent-hash")
        client.hear()
        declare(client, "q")
        client.method(1, commands.Queue.Bind(queue="q", exchange="hash", routing_key=weight))
        assert code_of(client) == 406

    def test_count_of_deaths_grows_no_further(self, client: Client) -> None:
        """DLX-22."""
        declare(client, "dead")
        declare(client, "work", dead_letter_exchange="", dead_letter_routing_key="dead")
        most = (1 << 63) - 1
        death = {"queue": "work", "reason": "rejected", "count": most}
        publish(client, "work", b"x", headers={"x-death": [death]})
        reject(client, "work")
        assert deaths(headers_of(client, "dead"))[0]["count"] == most


@pytest.mark.usefixtures("large_frames")
def test_blind_copy_too_long_to_be_noted() -> None:
    """PUB-10."""
    client = World().connect()
    client.open()
    declare(client, "q")
    publish(client, "q", b"x", headers={"BCC": ["k" * 70_000]})
    assert bodies(client, "q") == [b"x"]


@pytest.mark.parametrize("what", [commands.Basic.Get, commands.Basic.Consume])
def test_queue_of_an_exchange_is_no_queue_for_clients(client: Client, what: Any) -> None:
    exchange(client, "later", "x-delayed-message", delayed_type="direct")
    client.hear()
    name = b"\ndelayed\nlater"
    octets = wire.method(1, what(queue="z" * len(name)))
    client.send(octets.replace(b"z" * len(name), name))
    assert code_of(client) == 404


class TestCommits:
    """What a transaction holds for de-duplicating exchanges."""

    @pytest.fixture
    def client(self, client: Client) -> Client:
        """In a transaction; the queue `q` takes one message."""
        exchange(client, "once", "x-message-deduplication", cache_size=5)
        client.hear()
        declare(client, "q", max_length=1, overflow="reject-publish")
        client.ask(1, commands.Queue.Bind(queue="q", exchange="once"))
        client.ask(1, commands.Tx.Select())
        return client

    def test_exchange_is_gone(self, client: Client) -> None:
        """TX-04."""
        publish_to(client, "once", {KEY: "a"})
        other = client.world.connect()
        other.open()
        other.ask(1, commands.Exchange.Delete(exchange="once"))
        _, what = client.ask(1, commands.Tx.Commit())
        assert isinstance(what, commands.Tx.CommitOk)
        assert bodies(client, "q") == [b"x"]

    def test_refused_as_a_whole(self, client: Client) -> None:
        """TX-09."""
        publish_to(client, "once", {KEY: "a"})
        publish_to(client, "once", {KEY: "b"})
        client.method(1, commands.Tx.Commit())
        assert code_of(client) == 406
        assert client.world.vhost.queues["q"].ready_count == 0


def publish_to(client: Client, exchange: str, headers: dict[str, Any]) -> None:
    """Publish with headers to an exchange."""
    properties = commands.Basic.Properties(headers=headers)
    client.send(wire.publish(1, "q", b"x", properties, exchange=exchange))
    client.world.run_turns()
