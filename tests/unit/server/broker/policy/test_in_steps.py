"""Policies for more queues than one turn has time for (LIMIT-23)."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING

import pytest
from pamqp import commands

from tests import wire
from tests.unit.server.amqp_client import bodies, declare
from tests.unit.server.in_memory import World
from tests.unit.server.on_disk import DiskWorld
from vouchmq.server.broker.policy.policies import Policy

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.unit.server.in_memory import Client

QUEUES = ("q0", "q1", "q2", "q3")
# Every virtual host has these, and one step is taken for each.
PREDECLARED = 7


class Stage:
    """A broker that takes the steps of policies when it is told to."""

    def __init__(self) -> None:
        self.world = World()
        self.client: Client = self.world.connect()
        self.client.open()
        for name in QUEUES:
            declare(self.client, name)
        self.sweeps: list[Iterator[None]] = []
        self.engine = self.world.vhost.policy_engine
        self.engine._in_slices = self.sweeps.append

    def limits(self) -> list[int | None]:
        """Of the queues, in order."""
        queues = self.world.vhost.queues
        return [queues[name].features.number("max-length") for name in sorted(queues)]

    def take(self, count: int) -> None:
        """Take so many steps."""
        assert len(list(islice(self.sweeps[-1], count))) == count

    def settle(self) -> None:
        """Take those that are left."""
        assert list(self.engine.settling())
        assert not list(self.engine.settling())


@pytest.fixture
def stage() -> Stage:
    """Four queues and a client."""
    return Stage()


def test_one_queue_is_reached_with_each_step(stage: Stage) -> None:
    stage.engine.set_policy(Policy("p", "^q", {"max-length": 1}))
    stage.take(PREDECLARED + 2)
    assert stage.limits() == [1, 1, None, None]
    stage.settle()
    assert stage.limits() == [1, 1, 1, 1]


def test_what_is_made_meanwhile_has_the_policy_at_once(stage: Stage) -> None:
    stage.engine.set_policy(Policy("p", "^q", {"max-length": 1}))
    stage.take(1)
    declare(stage.client, "q9")
    assert stage.limits() == [None, None, None, None, 1]


def test_a_change_meanwhile_reaches_those_behind_and_those_passed(stage: Stage) -> None:
    stage.engine.set_policy(Policy("p", "^q", {"max-length": 1}))
    stage.take(PREDECLARED + 2)
    stage.engine.set_policy(Policy("p", "^q", {"max-length": 2}))
    assert len(stage.sweeps) == 1
    stage.take(1)
    assert stage.limits() == [1, 1, 2, None]
    stage.settle()
    assert stage.limits() == [2, 2, 2, 2]
    assert stage.engine.delete_policy("p") is not None
    stage.settle()
    assert stage.limits() == [None] * 4


def test_who_is_deleted_meanwhile_is_passed_over(stage: Stage) -> None:
    stage.engine.set_policy(Policy("p", "^q", {"max-length": 1}))
    stage.take(PREDECLARED + 1)
    for name in ("q1", "q2"):
        stage.client.ask(1, commands.Queue.Delete(queue=name))
    declare(stage.client, "q2")
    stage.settle()
    assert stage.limits() == [1, 1, 1]


def test_routes_follow_each_change(stage: Stage) -> None:
    """An exchange gets its alternate one in a step, after messages have gone through it."""
    stage.client.ask(1, commands.Exchange.Declare(exchange="e", exchange_type="direct"))
    stage.client.ask(1, commands.Exchange.Declare(exchange="other", exchange_type="fanout"))
    stage.client.ask(1, commands.Queue.Bind(queue="q3", exchange="other", routing_key=""))
    stage.client.send(wire.publish(1, "k", b"lost", exchange="e"))
    stage.engine.set_policy(Policy("p", "^e$", {"alternate-exchange": "other"}))
    stage.client.send(wire.publish(1, "k", b"too early", exchange="e"))
    stage.take(PREDECLARED + 1)
    stage.client.send(wire.publish(1, "k", b"kept", exchange="e"))
    stage.world.run_turns()
    assert bodies(stage.client, "q3") == [b"kept"]


def test_after_a_crash_in_between_an_exchange_has_where_to_delay() -> None:
    """DELAY-17: the policy is on disk, and the exchange was not reached."""
    world = DiskWorld()
    client = world.connect()
    client.open()
    declare(client, "q", durable=True)
    exchange = commands.Exchange.Declare(exchange="e", exchange_type="fanout", durable=True)
    client.ask(1, exchange)
    client.ask(1, commands.Queue.Bind(queue="q", exchange="e", routing_key=""))
    sweeps: list[Iterator[None]] = []
    world.vhost.policy_engine._in_slices = sweeps.append
    world.vhost.policy_engine.set_policy(Policy("p", "^e$", {"delayed-message": True}))
    world.sync()
    assert not world.vhost.delay_queues
    world = world.after_power_cut()
    client = world.connect()
    client.open()
    delayed = commands.Basic.Properties(headers={"x-delay": 1000})
    client.send(wire.publish(1, "k", b"x", delayed, exchange="e"))
    world.run_turns()
    assert world.vhost.delay_queues["e"].ready_count == 1


def test_a_step_that_fails_leaves_the_next_change_free(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise ValueError("a bug")

    with monkeypatch.context() as broken:
        broken.setattr(stage.engine, "_regulate", fail)
        stage.engine.set_policy(Policy("p", "^q", {"max-length": 1}))
        with pytest.raises(ValueError, match="a bug"):
            list(stage.engine.settling())
    stage.engine.set_policy(Policy("p", "^q", {"max-length": 2}))
    stage.settle()
    assert stage.limits() == [2, 2, 2, 2]
