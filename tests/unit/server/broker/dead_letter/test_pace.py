"""Dead letters take their share of a turn and no more; none goes on a full disk (DLX-23, 24)."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from typing import Any

import pytest
from pamqp import commands
from structlog.testing import capture_logs

from tests import wire
from tests.unit.server.amqp_client import declare, publish
from tests.unit.server.in_memory import Client, World
from vouchmq.server.broker.dead_letter.pace import (
    LEAST_DEAD_LETTERS,
    LONG_S,
    TELL_EVERY_S,
    TURN_S,
    DeadLetterPace,
)

PLENTY = 1 << 40


@pytest.fixture
def world() -> World:
    """A broker whose clock goes on only where letters are sent."""
    world = World()
    world.context.alarms.disk_limit_octets = 100
    return world


def ticking(world: World, step_s: float) -> None:
    """Have the clock of the letters go on each time it is looked at."""
    looks = count()
    world.dead_letter_publisher.pace._clock = lambda: next(looks) * step_s


def circle(world: World, queues: int) -> Client:
    """So many queues that dead-letter to each other by a fanout, and one message in each."""
    client = world.connect()
    client.open()
    client.ask(1, commands.Exchange.Declare(exchange="all", exchange_type="fanout"))
    for number in range(queues):
        declare(client, f"q{number}", message_ttl=10, dead_letter_exchange="all")
        client.ask(1, commands.Queue.Bind(queue=f"q{number}", exchange="all"))
    client.send(wire.publish(1, "", b"x", exchange="all"))
    world.run_turns()
    return client


def turn(world: World) -> int:
    """Run one turn, in which all that is there has expired; gives how many letters that sent."""
    before = world.dead_letter_publisher.pace.sent_count
    world.now += 0.02
    due = [timer for timer in world.alarms if timer.due <= world.now]
    world.alarms = [timer for timer in world.alarms if timer not in due]
    for timer in due:
        timer.callback()
    scheduled, world.scheduled[:] = list(world.scheduled), []
    for job in scheduled:
        job()
    assert not world.bugs, world.bugs
    return world.dead_letter_publisher.pace.sent_count - before


def until_quiet(world: World, each: Callable[[], None] = lambda: None) -> list[int]:
    """Run turns until no letters are sent any more; gives how many each turn sent."""
    sent: list[int] = []
    while not sent or any(sent[-5:]):
        sent.append(turn(world))
        each()
    return sent


def test_what_multiplies_sends_a_bounded_part_each_turn_and_all_in_the_end() -> None:
    unhurried, hurried = World(), World()
    circle(unhurried, 5)
    everything = sum(until_quiet(unhurried))
    # Each message dies once in every order of the queues, or of some of them: 5 + 5·4 + …
    assert everything == 5 + 20 + 60 + 120 + 120
    circle(hurried, 5)
    ticking(hurried, TURN_S / 2)
    sent = until_quiet(hurried)
    assert sum(sent) == everything
    assert max(sent) <= 3 * LEAST_DEAD_LETTERS
    assert hurried.dead_letter_publisher.pace.put_off_count > 0
    assert (
        unhurried.dead_letter_publisher.dropped_count == hurried.dead_letter_publisher.dropped_count
    )


def test_others_are_served_in_every_turn_meanwhile(world: World) -> None:
    circle(world, 6)
    ticking(world, TURN_S / 2)
    other = world.connect()
    other.open()
    other.method(1, commands.Queue.Declare(queue="other"))
    turn(world)
    other.octets.clear()
    answered: list[bool] = []

    def ask() -> None:
        other.method(1, commands.Basic.Get(queue="other"))
        turn(world)
        answered.append(bool(other.octets))
        other.octets.clear()

    sent = until_quiet(world, ask)
    assert len(sent) > 20
    assert all(answered)


def test_queues_take_turns(world: World) -> None:
    client = world.connect()
    client.open()
    declare(client, "dead")
    for name in ("a", "b", "c"):
        options = {"dead_letter_exchange": "", "dead_letter_routing_key": "dead"}
        declare(client, name, message_ttl=10, **options)
        publish(client, name, *(b"%d" % number for number in range(200)))
    ticking(world, TURN_S)
    ready = {name: world.vhost.queues[name] for name in ("a", "b", "c")}
    for _ in range(31):
        turn(world)
    left = sorted(queue.ready_count for queue in ready.values())
    assert left[0] < left[2] < 200
    assert left[2] - left[0] <= 2 * LEAST_DEAD_LETTERS
    until_quiet(world)
    assert client.message_count("dead") == 600


class TestFullDisk:
    """DLX-23."""

    def test_dead_letters_wait_and_others_are_served(self, world: World) -> None:
        client = world.connect()
        client.open()
        declare(client, "dead")
        options = {"dead_letter_exchange": "", "dead_letter_routing_key": "dead"}
        declare(client, "work", message_ttl=100, **options)
        publish(client, "work", *(b"old" for _ in range(50)))
        world.context.alarms.read(0, 1)
        with capture_logs() as logs:
            world.pass_time(0.11)
            world.pass_time(1)
            assert client.message_count("dead") == 0
            world.context.alarms.is_raised = False
            client.connection._publisher_block.is_blocking = False
            publish(client, "work", b"new")
            client.method(1, commands.Basic.Consume(queue="work", consumer_tag="c"))
            heard = [what for _, what in client.hear() if isinstance(what, wire.Content)]
            assert [what.body for what in heard] == [b"new"]
            # Nothing turns for ever meanwhile.
            assert not world.scheduled
            world.context.alarms.read(0, PLENTY)
            world.dead_letter_publisher.pace.look()
            world.run_turns()
        assert client.message_count("dead") == 50
        told = [entry["event"] for entry in logs if entry["event"].startswith("dead_letter.")]
        assert told == ["dead_letter.paused", "dead_letter.resumed"]

    def test_length_limits_wait_too(self, world: World) -> None:
        client = world.connect()
        client.open()
        declare(client, "dead")
        options = {"dead_letter_exchange": "", "dead_letter_routing_key": "dead"}
        declare(client, "work", max_length=10, **options)
        publish(client, "work", *(b"x" for _ in range(10)))
        world.context.alarms.is_disk_low = True
        publish(client, "work", *(b"x" for _ in range(10)))
        assert client.message_count("dead") == 0
        world.context.alarms.is_disk_low = False
        world.dead_letter_publisher.pace.look()
        world.run_turns()
        assert (client.message_count("dead"), client.message_count("work")) == (10, 10)


def test_a_chain_of_refusals_is_cut_into_turns(world: World) -> None:
    client = world.connect()
    client.open()
    client.ask(1, commands.Exchange.Declare(exchange="all", exchange_type="fanout"))
    full = {"max_length": 0, "overflow": "reject-publish-dlx", "dead_letter_exchange": "all"}
    for number in range(5):
        declare(client, f"q{number}", **full)
        client.ask(1, commands.Queue.Bind(queue=f"q{number}", exchange="all"))
    ticking(world, TURN_S)
    client.send(wire.publish(1, "", b"x", exchange="all"))
    sent = until_quiet(world)
    assert max(sent[1:]) <= 2
    assert world.dead_letter_publisher.pace.sent_count == 5 + 20 + 60 + 120 + 120


def test_what_goes_on_for_long_is_told_with_its_queue_now_and_then(world: World) -> None:
    circle(world, 6)
    ticking(world, TURN_S / 2)
    with capture_logs() as logs:
        sent = until_quiet(world)
    told = [entry for entry in logs if entry["event"] == "dead_letter.throttled"]
    seconds = len(sent) * 2 * TURN_S
    assert 1 <= len(told) <= 1 + (seconds - LONG_S) / TELL_EVERY_S + 1
    assert told[0]["log_level"] == "warning"
    assert told[0]["queue"].startswith("q")
    assert told[0]["exchange"] == "all"
    assert told[0]["count"] > 0


@pytest.mark.parametrize(("most", "copies"), [(0, 5 + 20 + 60 + 120 + 120), (2, 5 + 20 + 60)])
def test_hops_can_be_bounded(world: World, most: int, copies: int) -> None:
    world.dead_letter_publisher._most_hops = most
    circle(world, 5)
    assert sum(until_quiet(world)) == copies


def test_a_loop_of_rejections_counts_its_hops(world: World) -> None:
    world.dead_letter_publisher._most_hops = 3
    client = world.connect()
    client.open()
    declare(client, "work", dead_letter_exchange="", dead_letter_routing_key="work")
    publish(client, "work", b"x")
    for tag in range(1, 5):
        assert client.message_count("work") == 1
        client.method(1, commands.Basic.Get(queue="work"))
        client.hear()
        client.send(wire.nack(1, tag, requeue=False))
        client.hear()
    assert client.message_count("work") == 0


@pytest.mark.parametrize("is_reversed", [False, True])
def test_of_those_put_off_the_first_one_goes_first(is_reversed: bool) -> None:
    """DLX-23: not one by its address in memory, which no seed brings back."""
    now, turns = [1.0], [1]
    pace = DeadLetterPace(lambda: now[0], lambda: turns[0], lambda: False, lambda _: None)
    queues: list[Any] = [object() for _ in range(100)]
    if is_reversed:
        queues.reverse()
    assert pace.may_send(queues[-1])
    now[0] += 2 * TURN_S
    assert not any(pace.may_send(queue) for queue in queues)
    turns[0] += 1
    assert next(queue for queue in reversed(queues) if pace.may_send(queue)) is queues[0]
