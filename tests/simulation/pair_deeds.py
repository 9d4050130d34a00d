"""What clients do in a history of pairs: one operation each, about the queue in focus."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from pamqp import commands

from tests.covering import side_by_side
from tests.simulation.feature_client import (
    MANY_MESSAGES,
    FeatureClient,
    Message,
    declare_exchange,
    declare_queue,
)
from tests.simulation.feature_topology import EXCHANGES, QUEUES
from vouchmq.server.broker.policy.policies import Policy

if TYPE_CHECKING:
    from tests.simulation.clients import ClientChannel
    from tests.simulation.pair_world import PairWorld

Operation = Callable[["PairWorld", FeatureClient, "ClientChannel"], None]
ROUTING_KEY: Final = "k1"
POLICIES: Final[tuple[dict[str, Any], ...]] = (
    {"max-length": 2},
    {"max-length": 4, "overflow": "reject-publish"},
    {"message-ttl": 40},
    {"dead-letter-exchange": "", "dead-letter-routing-key": QUEUES[2]},
)


def publish(
    world: PairWorld,
    client: FeatureClient,
    ch: ClientChannel,
    *,
    exchange: str = "",
    count: int = 3,
    flags: int = 0,
    is_keyed: bool = False,
    **more: Any,
) -> None:
    """A run of one kind; keys are few, so that many come again, but differ within a run."""
    if len(world.books.copies) > MANY_MESSAGES:
        return
    first = world.draw.randrange(6)
    more.setdefault("persistent", True)
    for number in range(count):
        message = Message(
            world.next_message(), exchange, ROUTING_KEY if exchange else world.focus, **more
        )
        message.header = "1" if exchange else ""
        message.dedup_key = f"key{(first + number) % 6}" if is_keyed else ""
        size = world.draw.choice((10, 10, 40, 300, 600))
        client.publish_message(ch, message, size, flags)


def publish_transient(world: PairWorld, client: FeatureClient, ch: ClientChannel) -> None:
    publish(world, client, ch, persistent=False)


def publish_keyed(world: PairWorld, client: FeatureClient, ch: ClientChannel) -> None:
    publish(world, client, ch, is_keyed=True)


def publish_through(world: PairWorld, client: FeatureClient, ch: ClientChannel) -> None:
    """Through an exchange, with keys that it may know."""
    there = [name for name in EXCHANGES if name in world.vhost.exchanges]
    if there:
        exchange = world.draw.choice(there)
        delay_ms = 15 if "x-delayed-type" in world.topology.exchanges[exchange].arguments else 0
        for name in (exchange, exchange):
            publish(world, client, ch, exchange=name, is_keyed=True, delay_ms=delay_ms)


def publish_mortal(world: PairWorld, client: FeatureClient, ch: ClientChannel) -> None:
    publish(world, client, ch, expiration_ms=world.draw.choice((0, 15)), flags=1)


def publish_levels(world: PairWorld, client: FeatureClient, ch: ClientChannel) -> None:
    """Not a run: each message has a level of its own."""
    for priority in (0, 2, 3):
        publish(world, client, ch, count=1, priority=priority)


def consume(world: PairWorld, client: FeatureClient, ch: ClientChannel) -> None:
    if len(ch.tag_queue) < 6:
        client.consume_from(ch, world.focus, no_ack=False, priority=0)


def consume_no_ack(world: PairWorld, client: FeatureClient, ch: ClientChannel) -> None:
    if len(ch.tag_queue) < 6 and world.draw.random() < 0.3:
        client.consume_from(ch, world.focus, no_ack=True, priority=1)


def get(world: PairWorld, client: FeatureClient, ch: ClientChannel) -> None:
    for _ in range(2):
        client.get(ch, world.focus, no_ack=False)


def settle(how: str, *, multiple: bool) -> Operation:
    """An operation that settles what the client has of any queue."""

    def settles(world: PairWorld, client: FeatureClient, ch: ClientChannel) -> None:
        tags = sorted(ch.tags)
        if not tags:
            return
        if multiple:
            client.settle(ch, how, tags[len(tags) // 2], multiple=True)
            return
        for tag in tags[-2:] if world.draw.random() < 0.5 else tags[:2]:
            client.settle(ch, how, tag, multiple=False)

    return settles


def recover(world: PairWorld, client: FeatureClient, ch: ClientChannel) -> None:
    del world
    client.ask(ch, commands.Basic.Recover(True))
    ch.is_waiting = True
    client.talks[ch.number].recovers += 1
    ch.tags.clear()


def cancel(world: PairWorld, client: FeatureClient, ch: ClientChannel) -> None:
    if ch.tag_queue:
        client.ask(ch, commands.Basic.Cancel(world.draw.choice(sorted(ch.tag_queue))))


def purge(world: PairWorld, client: FeatureClient, ch: ClientChannel) -> None:
    client.ask(ch, commands.Queue.Purge(queue=world.focus))


def look(world: PairWorld, client: FeatureClient, ch: ClientChannel) -> None:
    """A passive declare, whose count is judged."""
    if world.focus in world.vhost.queues:
        client.ask(ch, commands.Queue.Declare(queue=world.focus, passive=True))


def declare(world: PairWorld, client: FeatureClient, ch: ClientChannel) -> None:
    declare_queue(client, ch, world.topology.queues[world.focus])


def delete(world: PairWorld, client: FeatureClient, ch: ClientChannel) -> None:
    if world.draw.random() < 0.3:
        client.ask(ch, commands.Queue.Delete(queue=world.focus))


def bind(world: PairWorld, client: FeatureClient, ch: ClientChannel) -> None:
    exchange = world.draw.choice(EXCHANGES)
    declare_exchange(client, ch, world.topology.exchanges[exchange])
    table: dict[str, Any] = {"x-match": "all", "h": "1"}
    for queue in (world.focus, world.existing()):
        what = commands.Queue.Bind(
            queue=queue, exchange=exchange, routing_key=ROUTING_KEY, arguments=table
        )
        client.ask(ch, what)


def unbind(world: PairWorld, client: FeatureClient, ch: ClientChannel) -> None:
    exchange = world.draw.choice(EXCHANGES)
    table: dict[str, Any] = {"x-match": "all", "h": "1"}
    if exchange in world.vhost.exchanges:
        what = commands.Queue.Unbind(
            queue=world.focus, exchange=exchange, routing_key=ROUTING_KEY, arguments=table
        )
        client.ask(ch, what)


def delete_exchange(world: PairWorld, client: FeatureClient, ch: ClientChannel) -> None:
    if world.draw.random() < 0.3:
        client.ask(ch, commands.Exchange.Delete(exchange=world.draw.choice(EXCHANGES)))


def limit_count(world: PairWorld, client: FeatureClient, ch: ClientChannel) -> None:
    count, is_shared = world.draw.choice((0, 1, 3)), world.draw.random() < 0.5
    client.ask(ch, commands.Basic.Qos(prefetch_count=count, global_=is_shared))


def limit_octets(world: PairWorld, client: FeatureClient, ch: ClientChannel) -> None:
    """For the whole channel: it counts what is outstanding already."""
    size, is_shared = world.draw.choice((0, 50, 500)), world.draw.random() < 0.7
    client.ask(ch, commands.Basic.Qos(prefetch_size=size, global_=is_shared))


def commit(world: PairWorld, client: FeatureClient, ch: ClientChannel) -> None:
    del world
    if ch.mode == "tx":
        client.end_transaction(ch, is_commit=True)


def roll_back(world: PairWorld, client: FeatureClient, ch: ClientChannel) -> None:
    del world
    if ch.mode == "tx":
        client.end_transaction(ch, is_commit=False)


def close_channel(world: PairWorld, client: FeatureClient, ch: ClientChannel) -> None:
    if world.draw.random() < 0.3:
        client.close_channel(ch)


def set_policy(world: PairWorld, client: FeatureClient, ch: ClientChannel) -> None:
    """As an operator does: no client says it."""
    del client, ch
    policy = Policy("p", f"^{world.focus}$", world.draw.choice(POLICIES))
    world.run_deed(lambda: world.vhost.policy_engine.set_policy(policy))


def clear_policy(world: PairWorld, client: FeatureClient, ch: ClientChannel) -> None:
    del client, ch
    world.run_deed(lambda: world.vhost.policy_engine.delete_policy("p"))


def wait(world: PairWorld, client: FeatureClient, ch: ClientChannel) -> None:
    """As long as something may run out."""
    del client, ch
    world.loop.advance(world.draw.choice((0.01, 0.03, 0.05)))


OPERATIONS: Final[dict[str, Operation]] = {
    "publish": publish,
    "publish transient": publish_transient,
    "publish with keys": publish_keyed,
    "publish through": publish_through,
    "publish mortal": publish_mortal,
    "publish levels": publish_levels,
    "consume": consume,
    "consume no-ack": consume_no_ack,
    "get": get,
    "ack": settle("ack", multiple=False),
    "ack multiple": settle("ack", multiple=True),
    "requeue": settle("nack", multiple=False),
    "requeue multiple": settle("nack", multiple=True),
    "drop": settle("drop", multiple=False),
    "drop multiple": settle("drop", multiple=True),
    "recover": recover,
    "cancel": cancel,
    "purge": purge,
    "look": look,
    "declare": declare,
    "delete": delete,
    "bind": bind,
    "unbind": unbind,
    "delete exchange": delete_exchange,
    "limit count": limit_count,
    "limit octets": limit_octets,
    "commit": commit,
    "roll back": roll_back,
    "close channel": close_channel,
    "set policy": set_policy,
    "clear policy": clear_policy,
    "wait": wait,
}
SEQUENCE: Final = side_by_side(tuple(OPERATIONS))
