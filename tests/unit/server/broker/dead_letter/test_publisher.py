"""Dead letters as clients see them, and what the journal hears of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from pamqp import commands

from tests import wire
from tests.unit.server.amqp_client import deaths, declare, got, headers_of, publish, reject
from tests.unit.server.in_memory import World
from vouchmq.protocol.fields import as_text

if TYPE_CHECKING:
    from tests.unit.server.in_memory import Client


@pytest.fixture
def world() -> World:
    """A broker."""
    return World()


@pytest.fixture
def client(world: World) -> Client:
    """A client with channel 1 open, a queue `work` with dead letters to `dead`."""
    client = world.connect()
    client.open()
    declare(client, "dead")
    declare(client, "work", dead_letter_exchange="", dead_letter_routing_key="dead")
    return client


class TestCauses:
    """What makes a dead letter."""

    def test_rejected(self, client: Client) -> None:
        """DLX-02, DLX-13, DLX-17, DLX-19."""
        publish(client, "work", b"a")
        reject(client, "work")
        table = headers_of(client, "dead")
        assert deaths(table) == [
            {
                "count": 1,
                "reason": "rejected",
                "queue": "work",
                "time": 1_600_001_000,
                "exchange": "",
                "routing-keys": ["work"],
            }
        ]
        for which in ("first", "last"):
            assert as_text(table[f"x-{which}-death-queue"]) == "work"
            assert as_text(table[f"x-{which}-death-reason"]) == "rejected"
            assert as_text(table[f"x-{which}-death-exchange"]) == ""

    def test_expired(self, client: Client) -> None:
        """DLX-01, DLX-15, TTL-07."""
        publish(client, "work", b"a", expiration="50", content_type="text/plain")
        client.world.pass_time(0.06)
        what = got(client, "dead")
        assert what is not None
        assert what.properties.expiration is None
        assert what.properties.content_type == "text/plain"
        assert what.body == b"a"
        death = what.properties.headers["x-death"][0]
        assert next(iter(death)) == "original-expiration"
        assert death["original-expiration"] == "50"
        assert death["reason"] == "expired"

    def test_acked_is_none(self, client: Client) -> None:
        publish(client, "work", b"a")
        assert got(client, "work") is not None
        assert client.message_count("dead") == 0

    def test_purge_and_deletion_make_none(self, client: Client) -> None:
        """DLX-05."""
        publish(client, "work", b"a")
        client.ask(1, commands.Queue.Purge(queue="work"))
        publish(client, "work", b"b")
        client.ask(1, commands.Queue.Delete(queue="work"))
        assert client.message_count("dead") == 0

    def test_missing_exchange_drops(self, client: Client) -> None:
        """DLX-09: at most once."""
        declare(client, "other", dead_letter_exchange="nowhere")
        publish(client, "other", b"a")
        reject(client, "other")
        assert client.world.dead_letter_publisher.dropped_count == 1
        assert client.message_count("other") == 0


class TestKeys:
    """Where a dead letter goes."""

    def test_keeps_its_keys_without_a_dead_letter_key(self, client: Client) -> None:
        """DLX-06: primary, CC and BCC."""
        client.ask(1, commands.Exchange.Declare(exchange="dlx", exchange_type="direct"))
        declare(client, "source", dead_letter_exchange="dlx")
        for name in ("source", "c", "b"):
            if name != "source":
                declare(client, name)
            client.ask(1, commands.Queue.Bind(queue=f"{name}", exchange="dlx", routing_key=name))
        client.ask(1, commands.Queue.Unbind(queue="source", exchange="dlx", routing_key="source"))
        publish(client, "source", b"x", headers={"CC": ["c"], "BCC": ["b"]})
        for name in ("c", "b"):
            assert got(client, name) is not None
        reject(client, "source")
        for name in ("c", "b"):
            what = got(client, name)
            assert what is not None
            assert what.method.routing_key == "source"
            assert what.method.exchange == "dlx"
            assert what.properties.headers["CC"] == ["c"]
            assert what.properties.headers["x-death"][0]["routing-keys"] == ["source", "c"]

    def test_dead_letter_key_takes_cc_away(self, client: Client) -> None:
        """DLX-14."""
        publish(client, "work", b"x", headers={"CC": ["nobody"], "n": 1})
        reject(client, "work")
        what = got(client, "dead")
        assert what is not None
        assert "CC" not in (what.properties.headers or {})
        assert (what.properties.headers or {})["n"] == 1
        assert what.method.routing_key == "dead"


class TestCycles:
    """DLX-18, DLX-20, DLX-21, DLX-22."""

    def test_expiry_into_the_same_queue_ends(self, client: Client) -> None:
        declare(
            client, "loop", dead_letter_exchange="", message_ttl=10, dead_letter_routing_key="loop"
        )
        publish(client, "loop", b"x")
        client.world.pass_time(0.02)
        assert client.world.vhost.queues["loop"].ready_count == 0
        assert client.world.dead_letter_publisher.dropped_count == 1

    def test_loop_with_a_rejection_counts_on(self, client: Client) -> None:
        declare(
            client, "retry", dead_letter_exchange="", message_ttl=10, dead_letter_routing_key="job"
        )
        declare(client, "job", dead_letter_exchange="", dead_letter_routing_key="retry")
        publish(client, "job", b"x")
        for count in (1, 2, 3):
            reject(client, "job")
            client.world.pass_time(0.02)
            what = got(client, "job", no_ack=False)
            assert what is not None
            events = what.properties.headers["x-death"]
            assert [(e["queue"], e["reason"], e["count"]) for e in events] == [
                ("retry", "expired", count),
                ("job", "rejected", count),
            ]
            client.send(wire.nack(1, what.method.delivery_tag))
            client.world.run_turns()

    def test_a_clients_counts_go_on_but_make_no_cycle(self, client: Client) -> None:
        table = {
            "x-death": [
                {"queue": "work", "reason": "rejected", "count": 4},
                {"queue": "dead", "reason": "expired", "count": 1},
            ]
        }
        publish(client, "work", b"x", headers=table)
        reject(client, "work")
        found = deaths(headers_of(client, "dead"))
        assert [(e["queue"], e["count"]) for e in found] == [("work", 5), ("dead", 1)]

    def test_old_entries_without_counts_are_counted(self, client: Client) -> None:
        mine = {"queue": "work", "reason": "rejected", "note": "first"}
        other = {"queue": "o", "reason": "expired"}
        events = [mine, other, {**mine, "note": "second"}, {**other, "count": 7}]
        publish(client, "work", b"x", headers={"x-death": events})
        reject(client, "work")
        found = deaths(headers_of(client, "dead"))
        assert [(e["queue"], e["count"], e.get("note")) for e in found] == [
            ("work", 3, "first"),
            ("o", 2, None),
        ]

    def test_malformed_history_is_replaced(self, client: Client) -> None:
        publish(client, "work", b"x", headers={"x-death": "nonsense"})
        reject(client, "work")
        assert [e["count"] for e in deaths(headers_of(client, "dead"))] == [1]


class TestStored:
    """DLX-08: source and target change in one block."""

    def test_source_lets_go_when_the_target_takes_over(self, client: Client) -> None:
        for name, table in (
            ("safe", {}),
            ("from", {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "safe"}),
        ):
            client.ask(1, commands.Queue.Declare(queue=name, durable=True, arguments=table))  # type: ignore[arg-type]
        client.send(wire.publish(1, "from", b"x", wire.persistent()))
        client.world.sync()
        journal = client.world.calls
        before = len(journal.runs), len(journal.settled)
        what = got(client, "from", no_ack=False)
        assert what is not None
        client.send(wire.nack(1, what.method.delivery_tag, requeue=False))
        # Before any turn: both are in the journal's hands together.
        assert (len(journal.runs), len(journal.settled)) == (before[0] + 1, before[1] + 1)
        client.world.run_turns()
        assert got(client, "safe") is not None


class TestSafely:
    """DLX-09, DLX-10: at-least-once."""

    def source(self, client: Client, exchange: str, **more: object) -> None:
        """A queue that keeps its dead letters until they are taken."""
        declare(
            client,
            "safe",
            dead_letter_exchange=exchange,
            dead_letter_strategy="at-least-once",
            **more,
        )

    def test_kept_unseen_until_there_is_a_way(self, client: Client) -> None:
        self.source(client, "later")
        publish(client, "safe", b"x")
        reject(client, "safe")
        assert client.message_count("safe") == 0
        assert got(client, "safe") is None
        assert client.world.vhost.queues["safe"].held_count == 1
        client.ask(1, commands.Exchange.Declare(exchange="later", exchange_type="fanout"))
        client.ask(1, commands.Queue.Bind(queue="dead", exchange="later"))
        client.world.pass_time(0.5)
        dead_letter = got(client, "dead")
        assert dead_letter.body == b"x"
        assert dead_letter.properties.headers["x-death"][0]["count"] == 1
        assert client.world.vhost.queues["safe"].held_count == 0

    def test_who_has_it_does_not_get_it_again(self, client: Client) -> None:
        client.ask(1, commands.Exchange.Declare(exchange="both", exchange_type="fanout"))
        declare(client, "full", max_length=1, overflow="reject-publish")
        publish(client, "full", b"in the way")
        for name in ("dead", "full"):
            client.ask(1, commands.Queue.Bind(queue=name, exchange="both"))
        self.source(client, "both")
        publish(client, "safe", b"x")
        reject(client, "safe")
        assert client.message_count("dead") == 1
        client.world.pass_time(11)
        assert client.message_count("dead") == 1
        assert got(client, "full").body == b"in the way"
        client.world.pass_time(11)
        assert got(client, "full").body == b"x"
        assert client.message_count("dead") == 1
        assert client.world.vhost.queues["safe"].held_count == 0

    def test_one_holds_back_no_other(self, client: Client) -> None:
        client.ask(1, commands.Exchange.Declare(exchange="some", exchange_type="direct"))
        client.ask(1, commands.Queue.Bind(queue="dead", exchange="some", routing_key="good"))
        self.source(client, "some")
        client.ask(1, commands.Queue.Bind(queue="safe", exchange="amq.fanout"))
        for key in ("bad", "good"):
            client.send(wire.publish(1, key, key.encode(), exchange="amq.fanout"))
            reject(client, "safe")
        assert got(client, "dead").body == b"good"
        assert client.world.vhost.queues["safe"].held_count == 1

    def test_kept_ones_count_toward_the_limit(self, client: Client) -> None:
        self.source(client, "nowhere", max_length=1, overflow="reject-publish")
        publish(client, "safe", b"x")
        reject(client, "safe")
        publish(client, "safe", b"y")
        assert got(client, "safe") is None

    def test_who_refuses_it_sends_no_copy_on(self, client: Client) -> None:
        """DLX-10: not one for every try."""
        declare(
            client,
            "full",
            max_length=0,
            overflow="reject-publish-dlx",
            dead_letter_exchange="",
            dead_letter_routing_key="dead",
        )
        self.source(client, "", dead_letter_routing_key="full")
        publish(client, "safe", b"x")
        reject(client, "safe")
        client.world.pass_time(35)
        assert client.message_count("dead") == 0
        assert client.world.vhost.queues["safe"].held_count == 1


def test_what_is_refused_is_kept_by_nobody(client: Client) -> None:
    """LEN-24: it was in no queue, and its publisher knows that it was refused."""
    declare(
        client,
        "full",
        dead_letter_exchange="nowhere",
        dead_letter_strategy="at-least-once",
        max_length=0,
        overflow="reject-publish-dlx",
    )
    publish(client, "full", b"a", b"b")
    assert client.world.vhost.queues["full"].held_count == 0
