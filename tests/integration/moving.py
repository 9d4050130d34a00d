"""Messages moved from queue to queue in transactions, which a kill must not tear.

Spec: TX-08
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import pika
import pika.exceptions
from pika.adapters.blocking_connection import BlockingChannel

from tests.integration.broker_process import BrokerProcess
from tests.integration.pika_async import PERSISTENT

GROUP = 3
ITEMS = 600
BODIES = [b"%d" % number for number in range(ITEMS)]


@contextmanager
def blocking(broker: BrokerProcess, vhost: str = "/") -> Iterator[pika.BlockingConnection]:
    """A connection that is cleaned up also when the broker it led to is gone."""
    parameters = pika.URLParameters(broker.url)
    parameters.virtual_host = vhost
    connection = pika.BlockingConnection(parameters)
    try:
        yield connection
    finally:
        with suppress(pika.exceptions.AMQPError):
            connection.close()


def drain(channel: BlockingChannel, queue: str) -> list[tuple[bytes, bool]]:
    """Take everything: body and redelivered flag, in order."""
    taken: list[tuple[bytes, bool]] = []
    while True:
        method, _, body = channel.basic_get(queue, auto_ack=True)
        if method is None:
            return taken
        taken.append((body, method.redelivered))


def fill(broker: BrokerProcess) -> None:
    """Put the items into `from`, in one transaction."""
    with blocking(broker) as connection:
        channel = connection.channel()
        channel.tx_select()
        for queue in ("from", "to.1", "to.2"):
            channel.queue_declare(queue, durable=True)
        for body in BODIES:
            channel.basic_publish("", "from", body, PERSISTENT)
        channel.tx_commit()


@contextmanager
def moving(broker: BrokerProcess) -> Iterator[list[list[bytes]]]:
    """Move GROUP items at a time until the broker is gone; gives the groups committed so far."""
    committed: list[list[bytes]] = []
    thread = threading.Thread(target=_move, args=(broker, committed))
    thread.start()
    yield committed
    thread.join(60)
    assert not thread.is_alive(), "the client was not told that the broker is gone"


def _move(broker: BrokerProcess, committed: list[list[bytes]]) -> None:
    with suppress(pika.exceptions.AMQPError), blocking(broker) as connection:
        channel = connection.channel()
        channel.tx_select()
        while True:
            group = []
            for _ in range(GROUP):
                method, _, body = channel.basic_get("from")
                if method is None:
                    return
                group.append(body)
                channel.basic_publish("", "to.1", body, PERSISTENT)
                channel.basic_publish("", "to.2", body, PERSISTENT)
            channel.basic_ack(method.delivery_tag, multiple=True)
            channel.tx_commit()
            committed.append(group)


def judge(broker: BrokerProcess, committed_count: int) -> None:
    """Every item is either in `from` or in both others, in order, and groups are whole."""
    with blocking(broker) as connection:
        channel = connection.channel()
        left = drain(channel, "from")
        moved = [[body for body, _ in drain(channel, queue)] for queue in ("to.1", "to.2")]
    assert moved[0] == moved[1], "a group is in one queue only"
    count = len(moved[0])
    assert moved[0] == BODIES[:count]
    assert [body for body, _ in left] == BODIES[count:], "published and not acked, or the reverse"
    assert count % GROUP == 0, "a group is torn"
    # At most the one commit in flight may have gone through unanswered.
    assert 0 <= count // GROUP - committed_count <= 1
