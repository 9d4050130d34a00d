"""Section REDELIVER 17.2: returned messages that come back later."""

from __future__ import annotations

import time
from collections.abc import Iterator
from functools import partial
from typing import Final

from vouchmq.conformance.case import case
from vouchmq.conformance.cases.redeliver import Limited, delivery_count, fetch, limited, put
from vouchmq.conformance.expect import check, equal, within
from vouchmq.conformance.stage import Stage
from vouchmq.conformance.wire import Plain, Table

PATIENCE_S: Final = 10.0
# Messages are looked for every so often; the rest is the broker's.
LATE_S: Final = 0.2


def _queue(
    stage: Stage, retry: Table, kind: str = "all", limit: int = 10, more: Table | None = None
) -> Limited:
    """A classic queue with a limit and these `x-delayed-retry-…` arguments."""
    arguments: dict[str, Plain] = {"x-delayed-retry-type": kind, **(more or {})}
    arguments.update({f"x-delayed-retry-{key}": value for key, value in retry.items()})
    return limited(stage, "classic", limit, arguments)


def _delays(stage: Stage, queue: Limited, *waits: float) -> None:
    """Every return in turn must take at least that many seconds, and not much more."""
    put(stage, queue.name, "x")
    channel = stage.channel()
    event = fetch(channel, queue.name)
    for wait in waits:
        began = time.monotonic()
        channel.nack(event.tag)
        event = fetch(channel, queue.name)
        stage.in_time(time.monotonic(), began + wait, LATE_S, "the returned message")
    equal(delivery_count(event), len(waits), "x-delivery-count")
    channel.ack(event.tag)
    channel.sync()
    equal(channel.count(queue.name), 0, "messages left")


def _back_off(waits: tuple[float, ...], retry: Table, stage: Stage) -> None:
    _delays(stage, _queue(stage, retry), *waits)


_BACK_OFFS: Final[tuple[tuple[str, str, tuple[float, ...], Table], ...]] = (
    ("REDELIVER-20", "min times count", (0.3, 0.6, 0.9), {"min": 300}),
    ("REDELIVER-20", "max is the most it can be", (0.3, 0.5, 0.5), {"min": 300, "max": 500}),
    (
        "REDELIVER-21",
        "exponential back-off",
        (0.2, 0.4, 0.8),
        {"min": 200, "backoff": "exponential", "multiplier": 2},
    ),
    (
        "REDELIVER-21",
        "exponential with a fraction as multiplier",
        (0.2, 0.3, 0.45),
        {"min": 200, "backoff": "exponential", "multiplier": 1.5},
    ),
    (
        "REDELIVER-21",
        "exponential, the multiplier is 5 by default",
        (0.1, 0.5, 2.5),
        {"min": 100, "backoff": "exponential"},
    ),
    (
        "REDELIVER-21",
        "exponential, capped by max",
        (0.1, 0.6, 0.6),
        {"min": 100, "max": 600, "backoff": "exponential", "multiplier": 100},
    ),
)
for _rule, _says, _waits, _retry in _BACK_OFFS:
    case(_rule, says=f"{_says} is how long a return takes", mark="+", slow=True)(
        partial(_back_off, _waits, _retry)
    )


def _kind(kind: str, is_delayed: bool, stage: Stage) -> None:
    queue = _queue(stage, {"min": 2000}, kind)
    put(stage, queue.name, "x")
    channel = stage.channel()
    began = time.monotonic()
    channel.nack(fetch(channel, queue.name).tag)
    event = fetch(channel, queue.name, PATIENCE_S)
    took = time.monotonic() - began
    if is_delayed:
        check(took >= 1.99, f"back after {took:.3f} s")
    else:
        within(took, 1.9, "a return that is not delayed")
    channel.ack(event.tag)
    channel.sync()


# By default every return counts, so `failed` is all of them and `returned` none.
for _word, _is_delayed in (
    ("all", True),
    ("failed", True),
    ("returned", False),
    ("disabled", False),
):
    case(
        "REDELIVER-20",
        says=f"{_word}: a nacked message is {'' if _is_delayed else 'not '}delayed",
        mark="+",
        slow=True,
    )(partial(_kind, _word, _is_delayed))


@case("REDELIVER-20", says="channels that end return with the delay, too", mark="+", slow=True)
def channel_end(stage: Stage) -> None:
    queue = _queue(stage, {"min": 1000})
    put(stage, queue.name, "x")
    channel = stage.channel()
    fetch(channel, queue.name)
    began = time.monotonic()
    channel.connection.close()
    channel = stage.channel()
    event = fetch(channel, queue.name, PATIENCE_S)
    took = time.monotonic() - began
    check(took >= 0.99, f"back after {took:.3f} s")
    check(event.redelivered, "redelivered is 0")
    channel.ack(event.tag)
    channel.sync()


@case("REDELIVER-20", says="meanwhile it is not ready, and others pass", mark="+", slow=True)
def others_pass(stage: Stage) -> None:
    queue = _queue(stage, {"min": 1500})
    put(stage, queue.name, "a", "b")
    channel = stage.channel()
    channel.call("basic.qos", prefetch_count=1)
    channel.consume(queue.name)
    first = channel.deliver()
    channel.nack(first.tag)
    second = channel.deliver()
    equal(second.body, b"b", "delivered meanwhile")
    equal(stage.channel().count(queue.name), 0, "ready messages")
    channel.ack(second.tag)
    third = channel.deliver()
    equal((third.body, third.redelivered), (b"a", True), "delivered afterwards")
    channel.ack(third.tag)
    channel.sync()


@case("REDELIVER-20", says="it comes back to its own place", mark="+", slow=True)
def own_place(stage: Stage) -> None:
    queue = _queue(stage, {"min": 1500})
    put(stage, queue.name, "a", "b", "c")
    channel = stage.channel()
    channel.nack(fetch(channel, queue.name).tag)
    channel.sync()
    channel.holds(queue.name, 2)
    channel.holds(queue.name, 3)
    equal(channel.drain(queue.name), ["a", "b", "c"], "order")


@case("REDELIVER-20", says="it counts toward length limits", mark="+", slow=True)
def counts_toward_limits(stage: Stage) -> None:
    more: Table = {"x-max-length": 1, "x-overflow": "reject-publish"}
    queue = _queue(stage, {"min": 1500}, more=more)
    channel = stage.confirming()
    channel.publish("", queue.name, "a", delivery_mode=2)
    equal(channel.confirms(1), {1: "ack"}, "confirm")
    other = stage.channel()
    other.nack(fetch(other, queue.name).tag)
    other.sync()
    channel.publish("", queue.name, "b", delivery_mode=2)
    channel.wait("basic.nack")
    event = fetch(other, queue.name, PATIENCE_S)
    equal(event.body, b"a", "message")
    other.ack(event.tag)
    other.sync()


@case("REDELIVER-20", says="it keeps its TTL deadline", mark="+", slow=True)
def keeps_deadline(stage: Stage) -> None:
    queue = _queue(stage, {"min": 1500}, more={"x-message-ttl": 700})
    put(stage, queue.name, "x")
    channel = stage.channel()
    channel.nack(fetch(channel, queue.name).tag)
    dead = fetch(channel, queue.graveyard, PATIENCE_S)
    headers = dead.headers if isinstance(dead.headers, dict) else {}
    deaths = headers.get("x-death") or [{}]
    equal(deaths[0].get("reason"), "expired", "reason in x-death")
    channel.ack(dead.tag)
    channel.sync()


@case("REDELIVER-20", says="the limit still ends it, without a further delay", mark="+", slow=True)
def limit_ends_it(stage: Stage) -> None:
    queue = _queue(stage, {"min": 400}, limit=1)
    put(stage, queue.name, "x")
    channel = stage.channel()
    for _ in range(2):
        channel.nack(fetch(channel, queue.name, PATIENCE_S).tag)
    dead = fetch(channel, queue.graveyard, PATIENCE_S)
    equal(dead.body, b"x", "dead-lettered message")
    channel.ack(dead.tag)
    channel.sync()


@case("REDELIVER-20", says="deleting the queue takes what is delayed", mark="+", slow=True)
def deleted(stage: Stage) -> None:
    queue = _queue(stage, {"min": 600})
    put(stage, queue.name, "x")
    channel = stage.channel()
    channel.nack(fetch(channel, queue.name).tag)
    channel.sync()
    channel.call("queue.delete", queue=queue.name)
    channel.connection.listen(1.0)
    equal(channel.count(queue.graveyard), 0, "dead messages")


@case("REDELIVER-20", says="quorum-type: delayed as well", mark="≡4", slow=True)
def quorum(stage: Stage) -> None:
    arguments: Table = {"x-delayed-retry-type": "all", "x-delayed-retry-min": 300}
    _delays(stage, limited(stage, "quorum", 10, arguments), 0.3, 0.6)


@case("REDELIVER-22", says="a delay goes on over a restart", mark="+", restart=True)
def over_a_restart(stage: Stage) -> Iterator[None]:
    queue = _queue(stage, {"min": 4000})
    put(stage, queue.name, "x")
    channel = stage.channel()
    event = fetch(channel, queue.name)
    began = time.monotonic()
    channel.nack(event.tag)
    channel.sync()
    # Whatever was written before this confirm is on disk with it.
    put(stage, queue.graveyard, "marker")
    yield
    channel = stage.channel()
    event = fetch(channel, queue.name, PATIENCE_S)
    took = time.monotonic() - began
    check(took >= 3.99, f"back after {took:.3f} s, wanted 4 s or more")
    equal((event.body, event.redelivered, delivery_count(event)), (b"x", True, 1), "message")
    channel.ack(event.tag)
    channel.sync()
