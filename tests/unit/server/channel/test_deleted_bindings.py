"""A long way of a message, while bindings of a deleted queue leave the router it walks.

Spec: LIMIT-23, EXCH-12
"""

from __future__ import annotations

import pytest
from pamqp import commands

from tests import wire
from tests.unit.server.in_memory import World
from tests.unit.server.runtime.budgeted import TICK_S, opened
from vouchmq.server.broker.exchanges import routes


@pytest.mark.parametrize("per_turn", [1, 1000])
def test_a_message_takes_its_way_past_what_is_being_removed(
    monkeypatch: pytest.MonkeyPatch, per_turn: int
) -> None:
    monkeypatch.setattr(routes, "STEP_BINDINGS", 1)
    monkeypatch.setattr(routes, "NOW_BINDINGS", 0)
    monkeypatch.setattr(routes, "TURN_BINDINGS", per_turn)
    world = World()
    client, other = opened(world), opened(world)
    client.ask(1, commands.Exchange.Declare(exchange="e", exchange_type="fanout"))
    for queue in ("gone", "first", "last"):
        client.declare(queue)
    for number in range(60):
        for queue in ("first", "gone"):
            bind = commands.Queue.Bind(queue=queue, exchange="e", routing_key=str(number))
            client.ask(1, bind)
    client.ask(1, commands.Queue.Bind(queue="last", exchange="e", routing_key=""))
    world.run_turns()
    world.tick_s = TICK_S
    other.send(wire.method(1, commands.Queue.Delete(queue="gone", nowait=True)))
    before = world.vhost.routes.removals
    client.send(wire.publish(1, "k", b"x", exchange="e"))
    assert not world.vhost.queues["last"].ready_count
    world.run_turns()
    assert world.vhost.routes.removals > before
    counts = {name: queue.ready_count for name, queue in world.vhost.queues.items()}
    assert counts == {"first": 1, "last": 1}
    assert len(world.vhost.bindings) == 61
