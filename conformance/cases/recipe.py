"""Section DELAY 16.1: the classic recipe, a queue nobody reads with a TTL and a DLX."""

from __future__ import annotations

import time
from typing import Final

from vouchmq.conformance.case import case
from vouchmq.conformance.client import Channel
from vouchmq.conformance.dead_letters import deaths, history
from vouchmq.conformance.expect import equal
from vouchmq.conformance.stage import Stage
from vouchmq.conformance.wire import Table

DELAY_MS: Final = 700
# Rule DELAY-01 allows this much on either side.
LATE_S: Final = 0.1


def _recipe(stage: Stage, channel: Channel, arguments: Table) -> tuple[str, str]:
    """The waiting queue and the work queue, over a DLX of its own; the work queue is consumed."""
    dlx = stage.exchange(channel, "direct", durable=True)
    work = stage.queue(channel, label="work", durable=True)
    channel.call("queue.bind", queue=work, exchange=dlx, routing_key="work")
    waiting = stage.queue(
        channel,
        label="waiting",
        durable=True,
        arguments={
            "x-dead-letter-exchange": dlx,
            "x-dead-letter-routing-key": "work",
            **arguments,
        },
    )
    channel.consume(work)
    return waiting, work


@case("DELAY-01", says="TTL of the queue: each message once, in order, after its delay")
def by_queue(stage: Stage) -> None:
    channel, worker = stage.confirming(), stage.channel()
    waiting, _ = _recipe(stage, worker, {"x-message-ttl": DELAY_MS})
    begins: list[float] = []
    for number in range(20):
        begins.append(time.monotonic())
        channel.publish("", waiting, str(number), delivery_mode=2)
        time.sleep(0.01)
    equal(set(channel.confirms(20).values()), {"ack"}, "confirms")
    for number, begin in enumerate(begins):
        event = worker.deliver()
        equal(event.body.decode(), str(number), "order")
        stage.in_time(event.at, begin + DELAY_MS / 1000, LATE_S, f"delivery {number}")
        equal(history(event), [(waiting, "expired", 1)], "x-death")
        worker.ack(event.tag)
    worker.quiet("basic.deliver", seconds=0.1)


@case("DELAY-01", says="TTL of each message: once, after its delay, original-expiration tells it")
def by_message(stage: Stage) -> None:
    channel = stage.channel()
    waiting, _ = _recipe(stage, channel, {})
    begin = time.monotonic()
    for ttl in (200, 500, 900):
        channel.publish("", waiting, str(ttl), expiration=str(ttl), delivery_mode=2)
    for ttl in (200, 500, 900):
        event = channel.deliver()
        equal(event.body.decode(), str(ttl), "order")
        stage.in_time(event.at, begin + ttl / 1000, LATE_S, f"delivery after {ttl} ms")
        death = deaths(event)[0]
        equal((death["reason"], death["original-expiration"]), ("expired", str(ttl)), "x-death")
        channel.ack(event.tag)
    channel.quiet("basic.deliver", seconds=0.1)


@case("DELAY-01", says="TTL of each message: a longer one in front holds back the shorter ones")
def head_of_line(stage: Stage) -> None:
    channel = stage.channel()
    waiting, _ = _recipe(stage, channel, {})
    begin = time.monotonic()
    for body, ttl in (("long", 1200), ("short", 100), ("shorter", 50)):
        channel.publish("", waiting, body, expiration=str(ttl))
    events = channel.deliveries(3)
    equal([event.body for event in events], [b"long", b"short", b"shorter"], "order")
    for event in events:
        stage.in_time(event.at, begin + 1.2, LATE_S, f"delivery of {event.body!r}")


@case("DELAY-01", says="a queue per delay: the shorter one is not held back")
def queue_per_delay(stage: Stage) -> None:
    channel = stage.channel()
    work = stage.queue(channel, label="work")
    lead: Table = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": work}
    long, short = (
        stage.queue(channel, arguments={"x-message-ttl": ttl, **lead}) for ttl in (2500, 100)
    )
    channel.publish("", long, "long")
    channel.publish("", short, "short")
    channel.consume(work, no_ack=True)
    equal(channel.bodies(2), ["short", "long"], "order")


@case("DELAY-01", says="rejected work that waits and comes back counts its rounds")
def retries(stage: Stage) -> None:
    channel = stage.channel()
    retry = stage.name("retry")
    work = stage.queue(
        channel,
        label="work",
        arguments={"x-dead-letter-exchange": "", "x-dead-letter-routing-key": retry},
    )
    arguments: Table = {
        "x-message-ttl": 100,
        "x-dead-letter-exchange": "",
        "x-dead-letter-routing-key": work,
    }
    channel.call("queue.declare", queue=retry, arguments=arguments)
    channel.consume(work)
    channel.publish("", work, "x", message_id="same")
    for count in range(4):
        event = channel.deliver()
        equal(event.properties.get("message_id"), "same", "message-id")
        if count:
            wanted = [(retry, "expired", count), (work, "rejected", count)]
            equal(history(event), wanted, "x-death")
        channel.nack(event.tag, requeue=False)
