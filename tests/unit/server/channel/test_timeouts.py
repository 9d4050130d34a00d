"""Consumer timeouts as clients see them."""

from __future__ import annotations

from dataclasses import replace

import pytest
from pamqp import commands
from pamqp.common import FieldTable

from tests import wire
from tests.unit.server.amqp_client import bodies, declare, publish
from tests.unit.server.in_memory import SETTINGS, Client, World, closes_channel, delivery
from vouchmq.server.broker.policy.policies import Policy

TEXT = (
    "PRECONDITION_FAILED - delivery acknowledgement on channel 1 timed out. Timeout value used: "
    "100 ms. This timeout value can be configured, see consumers doc guide to learn more"
)


def opened(world: World, capabilities: tuple[str, ...] = ("consumer_cancel_notify",)) -> Client:
    """A client with channel 1 open."""
    client = world.connect(capabilities=capabilities)
    client.open()
    return client


def test_consumer_is_cancelled_and_its_deliveries_go_back() -> None:
    """CONS-71."""
    client = opened(World())
    declare(client, "q", consumer_timeout=100)
    publish(client, "q", b"a", b"b")
    assert len(client.consume("q", "t")) == 2
    client.world.pass_time(0.06)
    assert client.hear() == []
    client.world.pass_time(0.06)
    ((_, cancel),) = client.hear()
    assert isinstance(cancel, commands.Basic.Cancel)
    assert (cancel.consumer_tag, cancel.nowait) == ("t", True)
    assert bodies(client, "q") == [b"a", b"b"]


def test_who_settles_in_time_is_left_alone() -> None:
    client = opened(World())
    declare(client, "q", consumer_timeout=100)
    client.consume("q", "t")
    for tag in range(1, 5):
        publish(client, "q", b"x")
        assert [delivery(what)[1] for _, what in client.hear()] == [tag]
        client.world.pass_time(0.08)
        client.send(wire.ack(1, tag))
    client.world.pass_time(1.0)
    assert client.hear() == []


def test_a_shorter_time_is_kept_while_a_longer_one_is_watched() -> None:
    """CONS-70: every half of the shortest time in force."""
    client = opened(World())
    declare(client, "slow", consumer_timeout=600_000)
    declare(client, "quick", consumer_timeout=100)
    publish(client, "slow", b"a")
    assert len(client.consume("slow", "s")) == 1
    publish(client, "quick", b"b")
    assert len(client.consume("quick", "q")) == 1
    client.world.pass_time(0.06)
    assert client.hear() == []
    client.world.pass_time(0.06)
    ((_, cancel),) = client.hear()
    assert isinstance(cancel, commands.Basic.Cancel)
    assert cancel.consumer_tag == "q"
    # The look that was armed first is none of its own.
    timers = len(client.world.alarms)
    client.world.pass_time(60.0)
    assert len(client.world.alarms) <= timers


@pytest.mark.parametrize("own_ms", [0, 600_000])
def test_an_operator_policy_bounds_the_time_of_queue_and_consumer(own_ms: int) -> None:
    """CONS-70, POLICY-05: what argument or consumer say is no way round it."""
    client = opened(World())
    declare(client, "q", consumer_timeout=600_000)
    client.world.vhost.policy_engine.set_policy(
        Policy("o", "", {"consumer-timeout": 100}, is_operator=True)
    )
    publish(client, "q", b"a")
    arguments: FieldTable = {"x-consumer-timeout": own_ms}
    client.method(1, commands.Basic.Consume(queue="q", consumer_tag="t", arguments=arguments))
    client.hear()
    client.world.pass_time(0.06)
    assert client.hear() == []
    client.world.pass_time(0.06)
    ((_, cancel),) = client.hear()
    assert isinstance(cancel, commands.Basic.Cancel)


def test_consumers_own_time_comes_first() -> None:
    """CONS-70: 0 at the consumer is off."""
    client = opened(World(replace(SETTINGS, consumer_timeout_ms=50)))
    declare(client, "q", consumer_timeout=100)
    publish(client, "q", b"a")
    client.method(
        1, commands.Basic.Consume(queue="q", consumer_tag="t", arguments={"x-consumer-timeout": 0})
    )
    client.hear()
    client.world.pass_time(5.0)
    assert client.hear() == []


@pytest.mark.parametrize("is_got", [True, False])
def test_otherwise_the_channel_ends(is_got: bool) -> None:
    """CONS-72: for gets, and for clients that cannot hear of a cancel."""
    client = opened(World(replace(SETTINGS, consumer_timeout_ms=100)), () if not is_got else ("x",))
    declare(client, "q")
    publish(client, "q", b"a")
    if is_got:
        client.method(1, commands.Basic.Get(queue="q"))
        client.hear()
    else:
        client.consume("q", "t")
    with closes_channel(client, 406, TEXT, (0, 0)):
        client.world.pass_time(0.16)
    client.open()
    assert client.message_count("q") == 1


def test_what_is_acked_in_time_does_not_age_with_what_came_later() -> None:
    """The clock is that of each delivery, though both stand side by side."""
    client = opened(World())
    declare(client, "q", consumer_timeout=100)
    client.consume("q", "t")
    publish(client, "q", b"a")
    client.world.pass_time(0.08)
    publish(client, "q", b"b")
    assert [delivery(what)[1] for _, what in client.hear()] == [1, 2]
    client.send(wire.ack(1, 1))
    client.world.pass_time(0.07)
    assert client.hear() == []
    client.world.pass_time(0.05)
    assert client.names() == ["Basic.Cancel"]


@pytest.mark.parametrize("multiple", [True, False])
def test_a_rollback_does_not_stop_the_clock(multiple: bool) -> None:
    """CONS-70: the delivery is as old as it was, also when nothing was outstanding meanwhile."""
    client = opened(World())
    declare(client, "q", consumer_timeout=100)
    publish(client, "q", b"a", b"b")
    client.consume("q", "t")
    client.method(1, commands.Tx.Select())
    if multiple:
        client.method(1, commands.Basic.Ack(2, True))
    else:
        client.send(wire.ack(1, 1), wire.ack(1, 2))
    client.hear()
    client.world.pass_time(0.06)
    client.method(1, commands.Tx.Rollback())
    assert client.names() == ["Tx.RollbackOk"]
    client.world.pass_time(0.06)
    assert client.names() == ["Basic.Cancel"]


def test_a_recover_without_requeue_begins_anew() -> None:
    """CONS-70, ACK-22: the delivery is written again, and its clock starts then."""
    client = opened(World())
    declare(client, "q", consumer_timeout=100)
    publish(client, "q", b"a")
    client.consume("q", "t")
    client.world.pass_time(0.08)
    client.method(1, commands.Basic.Recover(False))
    client.world.pass_time(0.07)
    assert "Basic.Cancel" not in client.names()
    client.world.pass_time(0.06)
    client.world.pass_time(0.06)
    assert client.names() == ["Basic.Cancel"]
