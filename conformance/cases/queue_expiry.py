"""Section TTL 12.1: queues that expire when nobody uses them."""

from __future__ import annotations

import time
from collections.abc import Iterator
from functools import partial
from typing import Final

from vouchmq.conformance.case import case
from vouchmq.conformance.cases import queue as queues
from vouchmq.conformance.client import Channel
from vouchmq.conformance.dead_letters import mortal
from vouchmq.conformance.expect import equal, eventually
from vouchmq.conformance.stage import Stage
from vouchmq.conformance.wire import Table

# Rule TTL-21: a queue is gone at the latest this much after its lease.
LATE_S: Final = 0.2


def _is_there(channel: Channel, queue: str) -> bool:
    """True if the queue exists; publishing to it is no use of it."""
    channel.publish("", queue, "probe", mandatory=True)
    channel.sync()
    returned = [one for one in channel.connection.inbox(1) if one.name == "basic.return"]
    channel.connection.inbox(1).clear()
    return not returned


def _expiring(stage: Stage, channel: Channel, expires_ms: int, more: Table | None = None) -> str:
    return stage.queue(channel, arguments={"x-expires": expires_ms, **(more or {})})


@case("TTL-20", says="an unused queue is deleted, publishing to it is no use of it")
def unused_queue(stage: Stage) -> None:
    channel = stage.channel()
    begin = time.monotonic()
    queue = _expiring(stage, channel, 600)
    eventually(partial(_is_there, channel, queue), False, "the queue exists")
    stage.in_time(time.monotonic(), begin + 0.6, LATE_S, "the end of the queue")
    equal(queues.exists(channel, queue), False, "a passive declare finds it")


def _renewed(how: str, stage: Stage) -> None:
    channel = stage.channel()
    arguments: Table = {"x-expires": 2000}
    queue = stage.queue(channel, arguments=arguments)
    for _ in range(6):
        time.sleep(0.5)
        if how == "get":
            channel.get(queue)
        else:
            channel.call(
                "queue.declare", queue=queue, arguments=arguments, passive=how == "passive declare"
            )
    equal(_is_there(channel, queue), True, f"the queue exists after 3 s of {how}")
    eventually(partial(_is_there, channel, queue), False, "the queue exists")


for _how in ("declare", "passive declare", "get"):
    case("TTL-20", says=f"{_how} renews the lease", slow=True)(partial(_renewed, _how))


@case("TTL-20", says="a queue with a consumer stays, its lease begins with the last one's end")
def consumer_holds(stage: Stage) -> None:
    channel = stage.channel()
    queue = _expiring(stage, channel, 500)
    tag = channel.consume(queue)
    time.sleep(1.2)
    equal(_is_there(channel, queue), True, "the queue exists while it has a consumer")
    begin = time.monotonic()
    channel.call("basic.cancel", consumer_tag=tag)
    eventually(partial(_is_there, channel, queue), False, "the queue exists after its consumer")
    stage.in_time(time.monotonic(), begin + 0.5, LATE_S, "the end of the queue")


@case("TTL-20", says="an exclusive queue expires, too")
def exclusive_expires(stage: Stage) -> None:
    channel = stage.channel()
    queue = stage.queue(channel, exclusive=True, arguments={"x-expires": 200})
    eventually(partial(_is_there, channel, queue), False, "the queue exists")


@case("TTL-21", says="messages of an expired queue are not dead-lettered; its bindings go")
def expired_queue_is_deleted(stage: Stage) -> None:
    channel = stage.channel()
    exchange = stage.exchange(channel, "direct")
    source, target = mortal(stage, channel, {"x-expires": 300})
    channel.call("queue.bind", queue=source, exchange=exchange, routing_key="k")
    channel.publish(exchange, "k", "x")
    eventually(partial(_is_there, channel, source), False, "the queue exists")
    channel.publish(exchange, "k", "y", mandatory=True)
    equal(channel.wait("basic.return").number("reply_code"), 312, "return")
    channel.consume(target, no_ack=True)
    channel.quiet("basic.deliver")
    channel.call("queue.declare", queue=source)
    equal(channel.count(source), 0, "messages of a new queue of that name")


@case("TTL-22", says="after a restart the lease starts anew", restart=True)
def queue_expiry_anew(stage: Stage) -> Iterator[None]:
    channel = stage.channel()
    begin = time.monotonic()
    # Long enough for other cases before the restart, and again for others behind it.
    queue = stage.queue(channel, arguments={"x-expires": 14_000}, durable=True)
    yield
    channel = stage.channel()
    time.sleep(max(begin + 14.5 - time.monotonic(), 0))
    equal(_is_there(channel, queue), True, "the queue exists 14.5 s after it was declared")
    eventually(partial(_is_there, channel, queue), False, "the queue exists", patience_s=20.0)


@case("TTL-23", says="declaring a quorum-type queue again renews its lease", mark="≠", slow=True)
def quorum_queue_expiry(stage: Stage) -> None:
    channel = stage.channel()
    arguments: Table = {"x-queue-type": "quorum", "x-expires": 2000}
    queue = stage.queue(channel, durable=True, arguments=arguments)
    for _ in range(6):
        time.sleep(0.5)
        channel.call("queue.declare", queue=queue, durable=True, arguments=arguments)
    equal(_is_there(channel, queue), True, "the queue exists")
