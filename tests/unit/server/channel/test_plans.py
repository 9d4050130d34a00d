"""Plans: which one a publish gets, and that none ever changes."""

from __future__ import annotations

import pytest
from pamqp import commands

from tests import wire
from tests.unit.server.in_memory import Client, World
from vouchmq.server.channel.plans import (
    DedupPlan,
    FilterPlan,
    ImmediatePlan,
    Plan,
    ReplyPlan,
    ReturnPlan,
    StorePlan,
)
from vouchmq.server.channel.reply_to import PREFIX
from vouchmq.server.channel.tx import HeldPublish


@pytest.fixture
def client() -> Client:
    """A client with channels 1 and 2 and the queues q, r and full, q and r bound to amq.fanout."""
    client = World().connect()
    client.open()
    client.open(2)
    for name in "qr":
        client.declare(name)
        client.ask(1, commands.Queue.Bind(queue=name, exchange="amq.fanout"))
    arguments = {"x-max-length": 1, "x-overflow": "reject-publish"}
    client.ask(1, commands.Queue.Declare(queue="full", arguments=arguments))  # type: ignore[arg-type]
    return client


def resolved(client: Client, channel: int = 1) -> list[Plan]:
    """The plans that a channel has resolved frames to, oldest first."""
    publisher = client.connection.channels[channel]._publisher
    return [each.plan for each in publisher._resolved.values()]


def names_of(plan: Plan) -> list[str]:
    return [queue.spec.name for queue in plan.route.queues]


@pytest.mark.parametrize(
    ("key", "flag", "kind"),
    [
        ("q", "", StorePlan),
        ("nowhere", "", StorePlan),
        ("q", "mandatory", StorePlan),
        ("nowhere", "mandatory", ReturnPlan),
        ("full", "", FilterPlan),
        ("full", "mandatory", FilterPlan),
        ("q", "immediate", ImmediatePlan),
        ("full", "immediate", ImmediatePlan),
        (PREFIX + "nobody", "", ReplyPlan),
    ],
)
def test_the_kind_of_plan(client: Client, key: str, flag: str, kind: type) -> None:
    is_mandatory, is_immediate = flag == "mandatory", flag == "immediate"
    client.send(wire.publish(1, key, b"x", mandatory=is_mandatory, immediate=is_immediate))
    (plan,) = resolved(client)
    assert type(plan) is kind
    assert plan.takes_runs == (kind in {StorePlan, ReturnPlan})


def test_a_queue_deleted_before_the_commit_leaves_the_plan_as_it_was(client: Client) -> None:
    """TX-04: what the transaction stores is another plan, and what others have is untouched."""
    octets = wire.publish(1, "", b"x", exchange="amq.fanout")
    client.ask(1, commands.Tx.Select())
    client.send(octets)
    (held,) = resolved(client)
    client.ask(2, commands.Queue.Delete(queue="r"))
    client.method(1, commands.Tx.Commit())
    assert client.names() == ["Tx.CommitOk"]
    assert client.message_count("q") == 1
    assert names_of(held) == ["q", "r"]
    assert names_of(held.still_there()) == ["q"]


def test_a_plan_of_queues_that_are_all_there_is_kept(client: Client) -> None:
    client.send(wire.publish(1, "", b"x", exchange="amq.fanout"))
    (plan,) = resolved(client)
    assert plan.still_there() is plan


def test_a_mandatory_publish_whose_last_queue_goes_is_returned_at_commit(client: Client) -> None:
    """TX-04, PUB-20."""
    client.ask(1, commands.Tx.Select())
    client.send(wire.publish(1, "q", b"a", mandatory=True) * 2)
    client.ask(2, commands.Queue.Delete(queue="q"))
    (held,) = resolved(client)
    assert type(held.still_there()) is ReturnPlan
    client.method(1, commands.Tx.Commit())
    assert client.names() == ["Basic.Return", "Basic.Return", "Tx.CommitOk"]


def test_an_immediate_publish_leaves_the_plan_to_all_queues(client: Client) -> None:
    """PUB-31: only those with a waiting consumer get it, the next one goes by the same plan."""
    octets = wire.publish(1, "", b"x", exchange="amq.fanout", immediate=True)
    client.method(2, commands.Basic.Consume(queue="q", consumer_tag="t", no_ack=True))
    client.world.run_turns()
    client.hear()
    client.send(octets)
    (plan,) = resolved(client)
    assert names_of(plan) == ["q", "r"]
    client.hear()
    client.method(2, commands.Basic.Cancel(consumer_tag="t"))
    client.hear()
    client.send(octets)
    assert resolved(client) == [plan]
    assert client.names() == ["Basic.Return"]
    assert (client.message_count("q"), client.message_count("r")) == (0, 0)


@pytest.fixture
def held(client: Client) -> HeldPublish:
    """What a transaction on channel 1 holds of a publish to a de-duplicating exchange, q behind."""
    arguments = {"x-message-deduplication": True, "x-cache-size": 10}
    client.ask(
        1,
        commands.Exchange.Declare(exchange="once", exchange_type="fanout", arguments=arguments),  # type: ignore[arg-type]
    )
    client.ask(1, commands.Queue.Bind(queue="q", exchange="once"))
    client.ask(1, commands.Tx.Select())
    properties = commands.Basic.Properties(headers={"x-deduplication-header": "k"})
    client.send(wire.publish(1, "", b"x", properties, exchange="once"))
    assert client.hear() == []
    transaction = client.connection.channels[1].transaction
    assert transaction is not None
    (found,) = transaction.publishes
    return found


class TestDedup:
    """DUP-09: such a plan says where a message goes each time anew, and stays what it is."""

    def test_it_goes_where_the_bindings_lead_when_it_is_stored(
        self, client: Client, held: HeldPublish
    ) -> None:
        channel, raw = client.connection.channels[1], held.raws[0]
        assert [queue.spec.name for queue in held.plan.target_now(channel, raw).queues] == ["q"]
        client.ask(2, commands.Queue.Bind(queue="r", exchange="once"))
        names = [queue.spec.name for queue in held.plan.target_now(channel, raw).queues]
        assert names == ["q", "r"]
        client.ask(1, commands.Tx.Commit())
        assert (client.message_count("q"), client.message_count("r")) == (1, 1)
        assert names_of(held.plan) == ["q"]

    def test_a_key_seen_meanwhile_leads_nowhere(self, client: Client, held: HeldPublish) -> None:
        properties = commands.Basic.Properties(headers={"x-deduplication-header": "k"})
        client.send(wire.publish(2, "", b"first", properties, exchange="once"))
        channel, raw = client.connection.channels[1], held.raws[0]
        assert held.plan.target_now(channel, raw).queues == ()
        client.ask(1, commands.Tx.Commit())
        assert client.message_count("q") == 1

    def test_without_its_exchange_it_goes_where_it_was_routed(
        self, client: Client, held: HeldPublish
    ) -> None:
        """TX-04."""
        assert type(held.plan) is DedupPlan
        client.ask(2, commands.Exchange.Delete(exchange="once"))
        client.ask(1, commands.Tx.Commit())
        assert client.message_count("q") == 1
