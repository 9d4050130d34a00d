"""What a random client does next."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import TYPE_CHECKING

from pamqp import commands

from tests.simulation.clients import (
    EXCHANGES,
    KEYS,
    PATTERNS,
    QUEUES,
    SOURCES,
    Client,
    ClientChannel,
)

if TYPE_CHECKING:
    from tests.simulation.model import Model

# More than this in all queues, and publishers rest.
MANY_MESSAGES = 60
SIZES = (10, 10, 10, 40, 40, 300, 300, 600, 1500, 5000)
Action = Callable[[Client, ClientChannel, random.Random], None]


def act(client: Client, draw: random.Random) -> None:
    """One random deed of a client."""
    usable = [ch for ch in client.channels.values() if ch.is_usable]
    if not usable or (len(usable) < 3 and draw.random() < 0.03):
        if len([ch for ch in client.channels.values() if not ch.is_free]) < 6:
            client.open_channel(draw.choice(("", "confirm", "confirm", "tx")))
        return
    draw.choice(ACTIONS)(client, draw.choice(usable), draw)


def set_up(client: Client, draw: random.Random) -> None:
    """What a client does first: a few queues and bindings, all in one go."""
    ch = client.open_channel(draw.choice(("", "confirm", "tx")))
    for _ in range(draw.randint(0, 4)):
        declare(client, ch, draw)
    for _ in range(draw.randint(0, 2)):
        bind(client, ch, draw)


def fetch_all(client: Client, draw: random.Random) -> None:
    """Consume every queue there is to its end."""
    ch = client.open_channel("")
    for name in sorted(client.model.queues):
        client.consume(ch, name, draw.random() < 0.5)


def existing_queue(model: Model, draw: random.Random) -> str:
    names = sorted(model.queues)
    return draw.choice(names) if names and draw.random() < 0.97 else draw.choice(QUEUES)[0]


def declare(client: Client, ch: ClientChannel, draw: random.Random) -> None:
    name, durable, auto_delete = draw.choice(QUEUES)
    nowait = draw.random() < 0.2
    what = commands.Queue.Declare(
        queue=name, durable=durable, auto_delete=auto_delete, nowait=nowait
    )
    client.send(ch, what, "declare_queue", name, durable, auto_delete, nowait)


def delete(client: Client, ch: ClientChannel, draw: random.Random) -> None:
    if draw.random() < 0.3:
        name, nowait = draw.choice(QUEUES)[0], draw.random() < 0.2
        what = commands.Queue.Delete(queue=name, nowait=nowait)
        client.send(ch, what, "delete_queue", name, nowait)


def declare_exchange(client: Client, ch: ClientChannel, draw: random.Random) -> None:
    name, kind, durable = draw.choice(EXCHANGES)
    nowait = draw.random() < 0.2
    what = commands.Exchange.Declare(
        exchange=name, exchange_type=kind, durable=durable, nowait=nowait
    )
    client.send(ch, what, "declare_exchange", name, kind, durable, nowait)


def delete_exchange(client: Client, ch: ClientChannel, draw: random.Random) -> None:
    if draw.random() < 0.3:
        name, nowait = draw.choice(EXCHANGES)[0], draw.random() < 0.2
        what = commands.Exchange.Delete(exchange=name, nowait=nowait)
        client.send(ch, what, "delete_exchange", name, nowait)


def bind(client: Client, ch: ClientChannel, draw: random.Random) -> None:
    source, name, key = draw.choice(SOURCES), existing_queue(client.model, draw), ""
    if draw.random() < 0.9 and source not in client.model.exchanges:
        source = "amq.fanout"
    key, nowait = draw.choice(PATTERNS), draw.random() < 0.2
    what = commands.Queue.Bind(queue=name, exchange=source, routing_key=key, nowait=nowait)
    client.send(ch, what, "bind", source, name, key, nowait)


def unbind(client: Client, ch: ClientChannel, draw: random.Random) -> None:
    bindings = sorted(client.model.bindings)
    if bindings:
        source, name, key = draw.choice(bindings)
        what = commands.Queue.Unbind(queue=name, exchange=source, routing_key=key)
        client.send(ch, what, "unbind", source, name, key)


def purge(client: Client, ch: ClientChannel, draw: random.Random) -> None:
    if draw.random() < 0.3:
        name = existing_queue(client.model, draw)
        client.send(ch, commands.Queue.Purge(queue=name), "purge", name)


def publish(client: Client, ch: ClientChannel, draw: random.Random) -> None:
    """One message, or a run of the same kind."""
    model = client.model
    if sum(len(queue.ready) for queue in model.queues.values()) > MANY_MESSAGES:
        return
    exchange, key = "", existing_queue(model, draw)
    if draw.random() < 0.5:
        exchange, key = draw.choice(SOURCES), draw.choice(KEYS)
        if exchange not in model.exchanges and draw.random() < 0.9:
            exchange = "amq.topic"
    flags = (draw.random() < 0.8, draw.random() < 0.15)
    for _ in range(draw.choice((1, 1, 1, 2, 5))):
        client.publish(ch, exchange, key, draw.choice(SIZES), flags)


def consume(client: Client, ch: ClientChannel, draw: random.Random) -> None:
    if len(ch.tag_queue) < 6:
        client.consume(ch, existing_queue(client.model, draw), draw.random() < 0.2)


def cancel(client: Client, ch: ClientChannel, draw: random.Random) -> None:
    if ch.tag_queue and draw.random() < 0.5:
        tag = draw.choice(sorted(ch.tag_queue))
        client.send(ch, commands.Basic.Cancel(tag), "cancel", tag)


def get(client: Client, ch: ClientChannel, draw: random.Random) -> None:
    name, no_ack = existing_queue(client.model, draw), draw.random() < 0.3
    client.send(ch, commands.Basic.Get(queue=name, no_ack=no_ack), "get", name, no_ack)


def publish_and_get(client: Client, ch: ClientChannel, draw: random.Random) -> None:
    """A message that is handed out in the very turn that brings it."""
    publish(client, ch, draw)
    for _ in range(draw.randint(1, 3)):
        get(client, ch, draw)


def settle(client: Client, ch: ClientChannel, draw: random.Random) -> None:
    """A few acks, often in order; now and then one that is wrong."""
    if not ch.tags:
        if draw.random() < 0.01:
            client.settle(ch, "ack", draw.choice((0, 7)), multiple=draw.random() < 0.5)
        return
    how = draw.choice(("ack", "ack", "ack", "ack", "nack", "reject", "drop"))
    if draw.random() < 0.3:
        client.settle(ch, how, draw.choice((0, draw.choice(ch.tags))), multiple=True)
        return
    tags = sorted(ch.tags) if draw.random() < 0.6 else draw.sample(ch.tags, len(ch.tags))
    for tag in tags[: draw.choice((1, 2, 5))]:
        client.settle(ch, how, tag, multiple=False)


def qos(client: Client, ch: ClientChannel, draw: random.Random) -> None:
    count, is_shared = draw.choice((0, 1, 2, 5)), draw.random() < 0.3
    what = commands.Basic.Qos(prefetch_count=count, global_=is_shared)
    client.send(ch, what, "qos", count, is_shared)


def recover(client: Client, ch: ClientChannel, draw: random.Random) -> None:
    if draw.random() < 0.3:
        requeue = draw.random() < 0.7
        client.send(ch, commands.Basic.Recover(requeue), "recover", requeue)
        if requeue:
            ch.tags.clear()


def end_transaction(client: Client, ch: ClientChannel, draw: random.Random) -> None:
    if ch.mode == "tx":
        client.end_transaction(ch, is_commit=draw.random() < 0.75)


def close_channel(client: Client, ch: ClientChannel, draw: random.Random) -> None:
    if draw.random() < 0.15:
        client.close_channel(ch)


ACTIONS: list[Action] = [
    *[publish] * 12,
    *[settle] * 12,
    *[end_transaction] * 8,
    *[declare] * 3,
    *[consume] * 3,
    *[get] * 3,
    *[publish_and_get] * 3,
    *[bind] * 2,
    declare_exchange,
    delete_exchange,
    delete,
    unbind,
    purge,
    cancel,
    qos,
    recover,
    close_channel,
]
