"""Kept dead letters go on as soon as a full target has room (DLX-09), without a clock."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from pamqp import commands
from pamqp.common import FieldTable

from tests import wire
from tests.unit.server.amqp_client import bodies, declare, got, publish, reject
from tests.unit.server.in_memory import SETTINGS, World
from vouchmq.server.broker.policy.policies import Policy

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.unit.server.in_memory import Client

COUNT = 3


class Stage:
    """A full queue, and one that keeps dead letters for it."""

    def __init__(self) -> None:
        self.world = World()
        self.client: Client = self.world.connect()
        self.client.open()
        declare(self.client, "full", max_length=COUNT, overflow="reject-publish")
        publish(self.client, "full", *[b"in the way"] * COUNT)
        self.source("safe")
        self.kill("safe", *(str(number).encode() for number in range(2 * COUNT)))
        assert self.kept() == 2 * COUNT

    def source(self, name: str, target: str = "full", **more: Any) -> None:
        """Declare a queue whose dead letters go to the full one."""
        declare(
            self.client,
            name,
            dead_letter_exchange="",
            dead_letter_routing_key=target,
            dead_letter_strategy="at-least-once",
            **more,
        )

    def kill(self, queue: str, *messages: bytes) -> None:
        """Make dead letters of these."""
        for body in messages:
            publish(self.client, queue, body)
            reject(self.client, queue)

    def kept(self, queue: str = "safe") -> int:
        """How many have not been taken."""
        return self.world.vhost.queues[queue].held_count

    def settle(self) -> None:
        """Everything that needs no clock."""
        for _ in range(10):
            self.world.run_turns()


@pytest.fixture
def stage() -> Stage:
    """The full queue."""
    return Stage()


def one_got(stage: Stage) -> int:
    assert got(stage.client, "full").body == b"in the way"
    return 1


def purged(stage: Stage) -> int:
    stage.client.ask(1, commands.Queue.Purge(queue="full"))
    return COUNT


def consumed(stage: Stage) -> int:
    """Only ready messages count."""
    stage.client.qos(2)
    stage.client.consume("full", "c")
    return 2


@pytest.mark.parametrize(
    ("definition", "taken"),
    [
        ({"max-length": 2, "overflow": "reject-publish"}, 2),
        ({"max-length": 2, "overflow": "drop-head"}, 2 * COUNT),
        ({"expires": 1_000_000}, 2 * COUNT),
    ],
)
def test_another_limit_or_none(stage: Stage, definition: dict[str, Any], taken: int) -> None:
    engine = stage.world.vhost.policy_engine
    engine.set_policy(Policy("p", "^limited$", {"max-length": 0, "overflow": "reject-publish"}))
    declare(stage.client, "limited")
    stage.source("another", "limited")
    stage.kill("another", *[b"x"] * 2 * COUNT)
    stage.settle()
    assert stage.kept("another") == 2 * COUNT
    engine.set_policy(Policy("p", "^limited$", definition))
    stage.settle()
    assert stage.kept("another") == 2 * COUNT - taken


@pytest.mark.parametrize("make_room", [one_got, purged, consumed])
def test_as_many_as_there_is_room_for(stage: Stage, make_room: Callable[[Stage], int]) -> None:
    room = make_room(stage)
    stage.settle()
    assert stage.kept() == 2 * COUNT - room


def test_in_their_order(stage: Stage) -> None:
    for left in range(2 * COUNT, 0, -1):
        assert stage.kept() == left
        assert got(stage.client, "full") is not None
        stage.settle()
    assert bodies(stage.client, "full") == [b"3", b"4", b"5"]


def test_of_many_sources_each_has_its_turn(stage: Stage) -> None:
    stage.source("second")
    stage.kill("second", b"a", b"b")
    for _ in range(2):
        one_got(stage)
        stage.settle()
    assert (stage.kept(), stage.kept("second")) == (2 * COUNT - 1, 1)
    for _ in range(3):
        purged(stage)
        stage.settle()
    assert (stage.kept(), stage.kept("second")) == (0, 0)


def test_what_waits_is_not_tried_for_others_that_come(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One try for each room, however many wait: a full queue must cost nothing."""
    tries = 0
    sender = stage.world.runtime.dead_letter_publisher
    once = sender.try_again

    def counted(*arguments: Any) -> None:
        nonlocal tries
        tries += 1
        once(*arguments)

    monkeypatch.setattr(sender, "try_again", counted)
    stage.kill("safe", *[b"x"] * 50)
    assert tries == 50
    for _ in range(5):
        assert got(stage.client, "full") is not None
        stage.settle()
    assert tries == 55


def test_a_source_that_is_gone_is_passed_over(stage: Stage) -> None:
    stage.source("second")
    stage.kill("second", b"a")
    stage.client.ask(1, commands.Queue.Delete(queue="safe"))
    one_got(stage)
    stage.settle()
    assert stage.kept("second") == 0


def test_a_full_queue_that_is_deleted_keeps_nobody_waiting(stage: Stage) -> None:
    """The letters have nowhere to go, until there is a queue of that name again."""
    stage.client.ask(1, commands.Queue.Delete(queue="full"))
    stage.settle()
    assert stage.kept() == 2 * COUNT
    declare(stage.client, "full")
    stage.world.pass_time(0.3)
    assert stage.kept() == 0


def test_each_of_two_full_targets_takes_its_own(stage: Stage) -> None:
    client = stage.client
    client.ask(1, commands.Exchange.Declare(exchange="both", exchange_type="fanout"))
    for name in ("one", "two"):
        declare(client, name, max_length=1, overflow="reject-publish")
        client.ask(1, commands.Queue.Bind(queue=name, exchange="both"))
    client.send(wire.publish(1, "", b"in the way", exchange="both"))
    declare(client, "source", dead_letter_exchange="both", dead_letter_strategy="at-least-once")
    stage.kill("source", b"x")
    assert got(client, "two").body == b"in the way"
    stage.settle()
    assert client.message_count("two") == 1
    assert stage.kept("source") == 1
    assert got(client, "one").body == b"in the way"
    stage.settle()
    assert (client.message_count("one"), client.message_count("two")) == (1, 1)
    assert stage.kept("source") == 0


def test_room_behind_an_exchange_that_delays() -> None:
    """DELAY-21: it takes so many messages and no more."""
    world = World(replace(SETTINGS, delayed_max_messages=1))
    client = world.connect()
    client.open()
    declare(client, "end")
    arguments: FieldTable = {"x-delayed-type": "fanout"}
    late = commands.Exchange.Declare(
        exchange="late", exchange_type="x-delayed-message", arguments=arguments
    )
    client.ask(1, late)
    client.ask(1, commands.Queue.Bind(queue="end", exchange="late"))
    declare(client, "source", dead_letter_exchange="late", dead_letter_strategy="at-least-once")
    for delay_ms in (5000, 6000):
        publish(client, "source", b"x", headers={"x-delay": delay_ms})
        reject(client, "source")
    assert world.vhost.queues["source"].held_count == 1
    world.pass_time(5.1)
    for _ in range(5):
        world.run_turns()
    assert world.vhost.queues["source"].held_count == 0
