"""Transactions by their rules: what waits for commit, what commit does, what rollback undoes."""

from __future__ import annotations

from dataclasses import replace

import pytest
from pamqp import base, commands

from tests import wire
from tests.unit.server.in_memory import (
    SETTINGS,
    Client,
    World,
    closes_channel,
    closes_connection,
    content,
    delivery,
    name_of,
)
from tests.unit.server.with_ledger import LedgerWorld
from vouchmq.server.broker.policy.policies import Policy


@pytest.fixture
def client() -> Client:
    """A client with a transactional channel 1 and the queues q (transient) and d (durable)."""
    return prepared(World())


def prepared(world: World) -> Client:
    """A client with a transactional channel 1 and the queues q (transient) and d (durable)."""
    client = world.connect()
    client.open()
    client.open(2)
    client.declare("q")
    client.declare("d", durable=True)
    client.ask(1, commands.Tx.Select())
    return client


def commit(client: Client) -> list[str]:
    """Commit; gives the names of what was said, commit-ok included."""
    client.method(1, commands.Tx.Commit())
    client.world.sync()
    return client.names()


class TestSelect:
    def test_select_is_repeatable_and_keeps_what_is_held(self, client: Client) -> None:
        """TX-01."""
        client.send(wire.publish(1, "q", b"x"))
        client.ask(1, commands.Tx.Select())
        assert commit(client) == ["Tx.CommitOk"]
        assert client.message_count("q") == 1

    @pytest.mark.parametrize(
        ("method", "ids"), [(commands.Tx.Commit(), (90, 20)), (commands.Tx.Rollback(), (90, 30))]
    )
    def test_without_select(self, client: Client, method: base.Frame, ids: tuple[int, int]) -> None:
        """TX-02."""
        text = "PRECONDITION_FAILED - channel is not transactional"
        with closes_channel(client, 406, text, ids, channel=2):
            client.method(2, method)


class TestPublishes:
    def test_nothing_is_stored_before_commit(self, client: Client) -> None:
        """TX-04."""
        client.send(wire.publish(1, "d", b"x", wire.persistent()) * 3)
        assert client.message_count("d", channel=2) == 0
        assert client.world.calls.runs == []
        client.method(1, commands.Tx.Commit())
        assert client.hear() == []
        client.world.sync()
        assert client.names() == ["Tx.CommitOk"]
        assert client.message_count("d", channel=2) == 3

    def test_commit_of_transient_things_waits_for_nothing(self, client: Client) -> None:
        client.send(wire.publish(1, "q", b"x", wire.persistent()), wire.publish(1, "d", b"x"))
        client.method(1, commands.Tx.Commit())
        assert client.names() == ["Tx.CommitOk"]

    def test_empty_commit(self, client: Client) -> None:
        client.method(1, commands.Tx.Commit())
        client.method(1, commands.Tx.Commit())
        assert client.names() == ["Tx.CommitOk", "Tx.CommitOk"]

    def test_routed_when_it_arrives(self, client: Client) -> None:
        """TX-04: later bindings add nothing, deleted queues are skipped silently."""
        client.ask(1, commands.Queue.Bind(queue="q", exchange="amq.fanout"))
        client.send(wire.publish(1, "", b"x", wire.persistent(), exchange="amq.fanout"))
        client.ask(2, commands.Queue.Bind(queue="d", exchange="amq.fanout"))
        client.declare("gone", channel=2)
        client.ask(2, commands.Queue.Bind(queue="gone", exchange="amq.fanout"))
        client.send(wire.publish(1, "", b"y", wire.persistent(), exchange="amq.fanout"))
        client.ask(2, commands.Queue.Delete(queue="gone"))
        assert commit(client) == ["Tx.CommitOk"]
        assert client.message_count("q", channel=2) == 2
        assert client.message_count("d", channel=2) == 1

    def test_new_queue_of_the_old_name_gets_nothing(self, client: Client) -> None:
        client.send(wire.publish(1, "q", b"x"))
        client.ask(2, commands.Queue.Delete(queue="q"))
        client.declare("q", channel=2)
        assert commit(client) == ["Tx.CommitOk"]
        assert client.message_count("q", channel=2) == 0

    def test_returns_come_at_commit_in_order_before_commit_ok(self, client: Client) -> None:
        """TX-05."""
        client.send(
            wire.publish(1, "none", b"1", mandatory=True),
            wire.publish(1, "q", b"2", immediate=True),
            wire.publish(1, "none", b"3", mandatory=True),
        )
        assert client.hear() == []
        client.method(1, commands.Tx.Commit())
        said = client.hear()
        assert name_of(said.pop()[1]) == "Tx.CommitOk"
        assert [content(what).body for _, what in said] == [b"1", b"2", b"3"]

    def test_returns_come_before_a_commit_ok_that_waits(self, client: Client) -> None:
        client.send(
            wire.publish(1, "none", b"1", mandatory=True),
            wire.publish(1, "d", b"2", wire.persistent()),
        )
        assert commit(client) == ["Basic.Return", "Tx.CommitOk"]

    def test_immediate_is_evaluated_at_commit(self, client: Client) -> None:
        client.send(wire.publish(1, "q", b"x", immediate=True))
        client.consume("q", "t", channel=2)
        client.method(1, commands.Tx.Commit())
        assert sorted(client.names()) == ["Basic.Deliver", "Tx.CommitOk"]

    def test_bad_publish_drops_the_transaction(self, client: Client) -> None:
        client.send(wire.publish(1, "q", b"x"))
        text = "NOT_FOUND - no exchange 'none' in vhost '/'"
        with closes_channel(client, 404, text, (60, 40)):
            client.send(wire.publish(1, "q", b"x", exchange="none"))
        assert client.message_count("q", channel=2) == 0

    def test_order_over_queues_and_kinds(self, client: Client) -> None:
        for number in range(6):
            properties = wire.persistent() if number % 2 else None
            client.send(wire.publish(1, "d", str(number).encode(), properties))
        commit(client)
        said = client.consume("d", "t", channel=2)
        assert b"".join(delivery(what)[2] for _, what in said) == b"012345"

    def test_publishes_to_queues_in_turn_are_one_run_for_each(self, client: Client) -> None:
        """LIMIT-23, TX-07: a commit is one step, and stays in order for each queue."""
        for number in range(10):
            client.declare(f"d{number}", durable=True)
        bodies = [str(number).encode() for number in range(300)]
        client.send(
            *(
                wire.publish(1, f"d{number % 10}", body, wire.persistent())
                for number, body in enumerate(bodies)
            )
        )
        assert commit(client) == ["Tx.CommitOk"]
        runs = client.world.calls.runs
        assert [len(raws) for _, _, raws in runs] == [30] * 10
        for number in range(10):
            got = [what.body for _, what in client.consume(f"d{number}", f"c{number}", 2)]  # type: ignore[union-attr]
            assert got == bodies[number::10]

    def test_publishes_for_one_queue_stay_in_order_whatever_their_keys(
        self, client: Client
    ) -> None:
        """TX-07."""
        client.ask(1, commands.Exchange.Declare(exchange="x", exchange_type="topic"))
        for queue, key in (("d", "*.both"), ("q", "*.both"), ("d", "d.#"), ("q", "q.#")):
            client.ask(1, commands.Queue.Bind(queue=queue, exchange="x", routing_key=key))
        keys = ["d.1", "q.1", "a.both", "d.1", "d.2", "q.1", "b.both", "q.1", "d.1", "a.both"] * 5
        numbered = list(enumerate(keys))
        client.send(
            *(
                wire.publish(1, key, str(at).encode(), wire.persistent(), exchange="x")
                for at, key in numbered
            )
        )
        assert commit(client) == ["Tx.CommitOk"]
        for queue in ("d", "q"):
            got = [what.body for _, what in client.consume(queue, queue, 2)]  # type: ignore[union-attr]
            due = [str(at).encode() for at, key in numbered if key[0] == queue or "both" in key]
            assert got == due

    def test_nothing_passes_what_is_looked_at_singly(self, client: Client) -> None:
        """TX-07, PUB-31: what is returned is returned in order."""
        keys = ["q", "none", "d", "nowhere", "q", "none", "d"]
        client.send(*(wire.publish(1, key, b"x", mandatory=True) for key in keys))
        client.method(1, commands.Tx.Commit())
        returned = [
            what.method.routing_key
            for _, what in client.hear()
            if isinstance(what, wire.Content) and isinstance(what.method, commands.Basic.Return)
        ]
        assert returned == ["none", "nowhere", "none"]

    def test_with_the_ledger_publishes_are_stored_as_they_came(self) -> None:
        """It numbers them in that order."""
        client = prepared(LedgerWorld())
        client.declare("d2", durable=True)
        client.send(
            *(wire.publish(1, ("d", "d2")[at % 2], b"x", wire.persistent()) for at in range(10))
        )
        assert commit(client) == ["Tx.CommitOk"]
        assert [len(raws) for _, _, raws in client.world.calls.runs] == [1] * 10

    def test_too_large(self) -> None:
        """TX-15."""
        client = prepared(World(replace(SETTINGS, tx_max_bytes=1000)))
        client.send(wire.publish(1, "q", b"x" * 500))
        assert commit(client) == ["Tx.CommitOk"]
        client.send(wire.publish(1, "q", b"x" * 500))
        text = "PRECONDITION_FAILED - transaction too large"
        with closes_channel(client, 406, text, (60, 40)):
            client.send(wire.publish(1, "q", b"x" * 500))
        assert client.message_count("q", channel=2) == 1


class TestSettlements:
    def fill(self, client: Client, *bodies: bytes, queue: str = "q") -> None:
        """Publish outside the transaction."""
        for body in bodies:
            client.send(wire.publish(2, queue, body, wire.persistent()))
        client.world.sync()

    def test_room_is_freed_at_commit(self, client: Client) -> None:
        """TX-06."""
        self.fill(client, b"1", b"2", b"3")
        client.qos(2)
        client.consume("q", "t")
        client.send(wire.ack(1, 1))
        assert client.hear() == []
        client.method(1, commands.Tx.Commit())
        assert sorted(client.names()) == ["Basic.Deliver", "Tx.CommitOk"]

    @pytest.mark.parametrize(
        "again", [wire.ack(1, 1), wire.ack(1, 1, multiple=True), wire.nack(1, 1)]
    )
    def test_used_tag_is_unknown_at_once(self, client: Client, again: bytes) -> None:
        self.fill(client, b"1")
        client.consume("q", "t")
        client.send(wire.ack(1, 1), again)
        (_, close), *_ = client.hear()
        assert isinstance(close, commands.Channel.Close)
        assert close.reply_text == "PRECONDITION_FAILED - unknown delivery tag 1"
        assert client.message_count("q", channel=2) == 1

    def test_rollback_gives_tags_back_and_redelivers_nothing(self, client: Client) -> None:
        """TX-10."""
        self.fill(client, *[str(number).encode() for number in range(1, 7)])
        client.qos(5)
        client.consume("q", "t")
        client.send(wire.ack(1, 2), wire.nack(1, 4), wire.nack(1, 1, multiple=True, requeue=False))
        _, said = client.ask(1, commands.Tx.Rollback())
        assert isinstance(said, commands.Tx.RollbackOk)
        assert client.message_count("q", channel=2) == 1
        client.send(wire.ack(1, 5, multiple=True))
        client.method(1, commands.Tx.Commit())
        assert sorted(client.names()) == ["Basic.Deliver", "Tx.CommitOk"]

    def test_durable_settlement_is_on_disk_before_commit_ok(self, client: Client) -> None:
        """TX-08."""
        self.fill(client, b"1", queue="d")
        client.consume("d", "t")
        client.send(wire.ack(1, 1))
        assert client.world.calls.settled == []
        client.method(1, commands.Tx.Commit())
        assert len(client.world.calls.settled) == 1
        assert client.hear() == []
        client.world.sync()
        assert client.names() == ["Tx.CommitOk"]

    def test_requeue_at_commit(self, client: Client) -> None:
        self.fill(client, b"1", b"2")
        client.consume("q", "t")
        client.send(wire.nack(1, 2), wire.method(1, commands.Basic.Reject(1, True)))
        assert client.hear() == []
        client.method(1, commands.Tx.Commit())
        said = client.hear()
        deliveries = [delivery(what)[1:] for _, what in said if isinstance(what, wire.Content)]
        assert deliveries == [(3, b"1", True), (4, b"2", True)]

    def test_recover_leaves_settled_tags_alone(self, client: Client) -> None:
        """TX-13."""
        self.fill(client, b"1", b"2", b"3")
        client.consume("q", "t")
        client.send(wire.ack(1, 2))
        client.method(1, commands.Basic.Recover(True))
        (_, first), *rest = client.hear()
        assert name_of(first) == "Basic.RecoverOk"
        assert [delivery(what)[2] for _, what in rest] == [b"1", b"3"]
        assert commit(client) == ["Tx.CommitOk"]
        client.ask(1, commands.Channel.Close(200, "", 0, 0))
        assert client.message_count("q", channel=2) == 2

    @pytest.mark.parametrize("end", ["channel", "connection", "socket"])
    def test_end_is_rollback_and_requeue(self, client: Client, end: str) -> None:
        """TX-12."""
        self.fill(client, b"1", b"2", b"3")
        client.consume("q", "t")
        client.send(wire.ack(1, 2), wire.publish(1, "q", b"never"))
        other = client.world.connect()
        other.open()
        if end == "channel":
            client.ask(1, commands.Channel.Close(200, "", 0, 0))
        elif end == "connection":
            client.method(0, commands.Connection.Close(200, "", 0, 0))
        else:
            client.connection.lost("reset")
        said = other.consume("q", "u")
        assert [delivery(what)[2:] for _, what in said] == [
            (b"1", True),
            (b"2", True),
            (b"3", True),
        ]


class TestCommitting:
    """TX-14."""

    @pytest.mark.parametrize(
        ("octets", "ids"),
        [
            (wire.publish(1, "q", b"x"), (60, 40)),
            (wire.ack(1, 1), (60, 80)),
            (wire.method(1, commands.Tx.Commit()), (90, 20)),
            (wire.method(1, commands.Queue.Declare(queue="q")), (50, 10)),
        ],
    )
    def test_nothing_may_be_sent(self, client: Client, octets: bytes, ids: tuple[int, int]) -> None:
        client.send(wire.publish(1, "d", b"x", wire.persistent()))
        text = "CHANNEL_ERROR - unexpected command while processing 'tx.commit'"
        with closes_connection(client, 504, text, ids):
            client.send(wire.method(1, commands.Tx.Commit()), octets)

    def test_channel_close_may(self, client: Client) -> None:
        client.send(wire.publish(1, "d", b"x", wire.persistent()))
        client.method(1, commands.Tx.Commit())
        client.method(1, commands.Channel.Close(200, "", 0, 0))
        client.world.sync()
        assert client.names() == ["Channel.CloseOk"]

    def test_other_channels_go_on(self, client: Client) -> None:
        client.send(wire.publish(1, "d", b"x", wire.persistent()))
        client.method(1, commands.Tx.Commit())
        client.method(2, commands.Basic.Qos(0, 1, False))
        assert client.names() == ["Basic.QosOk"]

    def test_next_transaction_begins(self, client: Client) -> None:
        """TX-11."""
        for number in range(3):
            client.send(wire.publish(1, "d", str(number).encode(), wire.persistent()))
            assert commit(client) == ["Tx.CommitOk"]
            client.send(wire.publish(1, "d", b"never", wire.persistent()))
            client.ask(1, commands.Tx.Rollback())
        assert client.message_count("d", channel=2) == 3

    def test_failed_storage_is_no_commit_ok(self, client: Client) -> None:
        """TX-09: a commit that cannot be stored is refused, not forgotten."""
        client.send(wire.publish(1, "d", b"x", wire.persistent()))
        client.method(1, commands.Tx.Commit())
        text = "PRECONDITION_FAILED - partial tx completion"
        with closes_channel(client, 406, text, (90, 20)):
            client.world.context.storage_failed()

    def test_a_limit_that_a_policy_has_set_since_refuses_the_commit(self, client: Client) -> None:
        """TX-09: nothing of it is applied."""
        for number in range(3):
            client.send(wire.publish(1, "d", str(number).encode(), wire.persistent()))
        limit: dict[str, str | int] = {"max-length": 2, "overflow": "reject-publish"}
        client.world.vhost.policy_engine.set_policy(Policy("p", "^d$", dict(limit)))
        client.world.sync()
        with closes_channel(client, 406, "PRECONDITION_FAILED - partial tx completion", (90, 20)):
            client.method(1, commands.Tx.Commit())
        assert client.message_count("d", channel=2) == 0
