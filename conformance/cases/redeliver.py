"""Section REDELIVER 17.1: delivery limits and the counters that consumers see.

Quorum queues of RabbitMQ have them too; for classic queues they are an addition.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Final

from vouchmq.conformance.case import Mark, case
from vouchmq.conformance.client import Channel
from vouchmq.conformance.events import Event, SilenceError
from vouchmq.conformance.expect import MismatchError, check, equal
from vouchmq.conformance.stage import Stage
from vouchmq.conformance.wire import Plain, Table, Typed

KINDS: Final[tuple[tuple[str, Mark], ...]] = (("quorum", "≡"), ("classic", "+"))


@dataclass(frozen=True, slots=True)
class Limited:
    """A queue with a delivery limit, and the queue where its dead go."""

    name: str
    graveyard: str


def limited(stage: Stage, kind: str, limit: int | None, more: Table | None = None) -> Limited:
    """A durable queue of this type and limit, dead-lettering to a queue of its own."""
    channel = stage.channel()
    graveyard = stage.queue(channel, label="dead", durable=True)
    arguments: dict[str, Plain] = {
        "x-queue-type": kind,
        "x-dead-letter-exchange": "",
        "x-dead-letter-routing-key": graveyard,
        **(more or {}),
    }
    if limit is not None:
        arguments["x-delivery-limit"] = limit
    name = stage.queue(channel, label=kind, durable=True, arguments=arguments)
    return Limited(name, graveyard)


def put(stage: Stage, name: str, *bodies: str, **headers: Plain) -> None:
    """Publish persistent messages and wait for the confirms."""
    channel = stage.confirming()
    for body in bodies:
        channel.publish("", name, body, delivery_mode=2, headers=headers)
    channel.confirms(len(bodies))


def fetch(channel: Channel, queue: str, patience_s: float = 10.0) -> Event:
    """basic.get, asked again until there is a message; it is to be settled."""
    rounds = int(patience_s / 0.05)
    for _ in range(rounds):
        event = channel.get(queue, no_ack=False)
        if event.name == "basic.get_ok":
            return event
        channel.connection.listen(0.05)
    raise SilenceError(f"no message in {queue} in {patience_s} s")


def delivery_count(event: Event) -> int | None:
    """The x-delivery-count header; None without one."""
    table = event.properties.get("headers")
    value = table.get("x-delivery-count") if isinstance(table, dict) else None
    if value is None:
        return None
    if not isinstance(value, Typed) or not isinstance(value.value, int):
        raise MismatchError(f"x-delivery-count: got {value!r}, wanted a number")
    return value.value


def is_dead(stage: Stage, queue: Limited, body: str) -> None:
    """Fail unless this message died of the delivery limit and is nowhere but among the dead."""
    channel = stage.channel()
    event = fetch(channel, queue.graveyard)
    equal(event.body.decode(), body, "dead-lettered message")
    headers = event.headers
    deaths = headers.get("x-death") if isinstance(headers, dict) else None
    check(isinstance(deaths, list) and len(deaths) == 1, f"x-death: got {deaths!r}")
    if isinstance(deaths, list):
        death = deaths[0]
        equal(
            (death["queue"], death["reason"], death["count"]),
            (queue.name, "delivery_limit", 1),
            "queue, reason and count in x-death",
        )
    channel.ack(event.tag)
    equal(channel.count(queue.name), 0, "messages left in the queue")
    equal(channel.count(queue.graveyard), 0, "further dead messages")


# --- the limit --------------------------------------------------------------------------------


def _limit(kind: str, limit: int, stage: Stage) -> None:
    queue = limited(stage, kind, limit)
    put(stage, queue.name, "x")
    channel = stage.channel()
    channel.call("basic.qos", prefetch_count=1)
    channel.consume(queue.name)
    for number in range(limit + 1):
        event = channel.deliver()
        equal(event.redelivered, number > 0, f"redelivered of delivery {number + 1}")
        channel.nack(event.tag)
    is_dead(stage, queue, "x")
    channel.quiet("basic.deliver")


for _kind, _mark in KINDS:
    for _limit_is in (0, 1, 2):
        case(
            "REDELIVER-10",
            says=f"{_kind}: limit {_limit_is} gives {_limit_is + 1} deliveries, then it is dead",
            mark=_mark,
        )(partial(_limit, _kind, _limit_is))


def _drops(kind: str, stage: Stage) -> None:
    channel = stage.channel()
    arguments: Table = {"x-queue-type": kind, "x-delivery-limit": 1}
    name = stage.queue(channel, durable=True, arguments=arguments)
    put(stage, name, "poison", "good")
    for _ in range(2):
        event = fetch(channel, name)
        equal(event.body, b"poison", "message")
        channel.reject(event.tag)
    event = fetch(channel, name)
    equal(event.body, b"good", "message after the limit")
    channel.ack(event.tag)
    channel.sync()
    equal(channel.count(name), 0, "messages left")


def _per_message(kind: str, stage: Stage) -> None:
    queue = limited(stage, kind, 1)
    put(stage, queue.name, "a", "b")
    channel = stage.channel()
    first, second = fetch(channel, queue.name), fetch(channel, queue.name)
    channel.nack(first.tag)
    again = fetch(channel, queue.name)
    equal((again.body, delivery_count(again)), (b"a", 1), "returned message")
    channel.nack(again.tag)
    is_dead(stage, queue, "a")
    channel.nack(second.tag)
    again = fetch(channel, queue.name)
    equal((again.body, delivery_count(again)), (b"b", 1), "the other one")
    channel.ack(again.tag)
    channel.sync()


def _negative(kind: str, stage: Stage) -> None:
    queue = limited(stage, kind, -1)
    put(stage, queue.name, "x")
    channel = stage.channel()
    for _ in range(25):
        channel.reject(fetch(channel, queue.name).tag)
    event = fetch(channel, queue.name)
    equal(event.body, b"x", "message after 25 returns")
    channel.ack(event.tag)
    channel.sync()


for _kind, _mark in KINDS:
    case("REDELIVER-10", says=f"{_kind}: without DLX it is dropped, the next goes on", mark=_mark)(
        partial(_drops, _kind)
    )
    case("REDELIVER-10", says=f"{_kind}: every message has a count of its own", mark=_mark)(
        partial(_per_message, _kind)
    )
for _kind, _mark in KINDS:
    case(
        "REDELIVER-10",
        says=f"{_kind}: a negative limit is none",
        mark="≡4" if _kind == "quorum" else _mark,
    )(partial(_negative, _kind))


# --- what counts ------------------------------------------------------------------------------


def _nack(channel: Channel, event: Event) -> None:
    channel.nack(event.tag)


def _nack_multiple(channel: Channel, event: Event) -> None:
    channel.nack(event.tag, multiple=True)


def _reject(channel: Channel, event: Event) -> None:
    channel.reject(event.tag)


def _recover(channel: Channel, event: Event) -> None:
    del event
    channel.call("basic.recover", requeue=True)


def _close_channel(channel: Channel, event: Event) -> None:
    del event
    channel.close()


def _close_connection(channel: Channel, event: Event) -> None:
    del event
    channel.connection.close()


def _drop_connection(channel: Channel, event: Event) -> None:
    del event
    channel.connection.drop()


EVENTS: Final[tuple[tuple[str, Callable[[Channel, Event], None]], ...]] = (
    ("nack", _nack),
    ("nack with multiple", _nack_multiple),
    ("reject", _reject),
    ("recover", _recover),
    ("the end of the channel", _close_channel),
    ("the end of the connection", _close_connection),
    ("a connection that breaks", _drop_connection),
)


def _counts(kind: str, give_back: Callable[[Channel, Event], None], stage: Stage) -> None:
    """Taken by a consumer and returned, twice over a limit of 1: the second one is too many."""
    queue = limited(stage, kind, 1)
    put(stage, queue.name, "x")
    for number in range(2):
        channel = stage.channel()
        channel.call("basic.qos", prefetch_count=1)
        tag = channel.consume(queue.name)
        event = channel.deliver()
        equal(delivery_count(event) or 0, number, "x-delivery-count")
        channel.call("basic.cancel", consumer_tag=tag)
        give_back(channel, event)
    is_dead(stage, queue, "x")


for _kind, _mark in KINDS:
    for _says, _event in EVENTS:
        case("REDELIVER-11", says=f"{_kind}: {_says} counts as a return", mark=_mark)(
            partial(_counts, _kind, _event)
        )


def _cancel_is_none(kind: str, stage: Stage) -> None:
    queue = limited(stage, kind, 0)
    put(stage, queue.name, "x")
    channel = stage.channel()
    tag = channel.consume(queue.name)
    event = channel.deliver()
    channel.call("basic.cancel", consumer_tag=tag)
    channel.quiet()
    channel.ack(event.tag)
    channel.sync()
    equal(channel.count(queue.graveyard), 0, "dead messages")


for _kind, _mark in KINDS:
    case("REDELIVER-11", says=f"{_kind}: basic.cancel returns nothing", mark=_mark)(
        partial(_cancel_is_none, _kind)
    )


def _timeout_is_none(kind: str, stage: Stage) -> None:
    queue = limited(stage, kind, 0, {"x-consumer-timeout": 1000})
    put(stage, queue.name, "x")
    channel = stage.channel()
    for number in range(2):
        channel.consume(queue.name)
        event = channel.deliver()
        headers = event.headers if isinstance(event.headers, dict) else {}
        equal("x-delivery-count" in headers, False, "has x-delivery-count")
        equal(headers.get("x-acquired-count"), number or None, "x-acquired-count")
        channel.wait("basic.cancel", timeout_s=20)
    equal(channel.count(queue.graveyard), 0, "dead messages")


for _kind, _mark in (("classic", "+"), ("quorum", "≡4")):
    case(
        "REDELIVER-11",
        says=f"{_kind}: a consumer timeout counts in x-acquired-count alone",
        mark=_mark,
        slow=True,
    )(partial(_timeout_is_none, _kind))


def _restart_counts(kind: str, stage: Stage) -> Iterator[None]:
    queue = limited(stage, kind, 1)
    put(stage, queue.name, "x")
    channel = stage.channel()
    channel.consume(queue.name)
    channel.deliver()
    # Whatever was written before this confirm is on disk with it.
    put(stage, queue.graveyard, "marker")
    yield
    channel = stage.channel()
    event = fetch(channel, queue.name)
    equal(delivery_count(event), 1, "x-delivery-count after the restart")
    channel.nack(event.tag)
    channel.ack(fetch(channel, queue.graveyard).tag)
    is_dead(stage, queue, "x")


def _keeps_counting(kind: str, stage: Stage) -> Iterator[None]:
    queue = limited(stage, kind, 2)
    put(stage, queue.name, "x")
    channel = stage.channel()
    for _ in range(2):
        channel.nack(fetch(channel, queue.name).tag)
    channel.sync()
    put(stage, queue.graveyard, "marker")
    yield
    channel = stage.channel()
    event = fetch(channel, queue.name)
    equal(delivery_count(event), 2, "x-delivery-count after the restart")
    channel.nack(event.tag)
    channel.ack(fetch(channel, queue.graveyard).tag)
    is_dead(stage, queue, "x")


for _kind, _mark in KINDS:
    case(
        "REDELIVER-11",
        says=f"{_kind}: a restart with it outstanding counts as a return",
        mark=_mark,
        restart=True,
    )(partial(_restart_counts, _kind))
    case(
        "REDELIVER-13",
        says=f"{_kind}: a restart does not give a poison message new lives",
        mark=_mark,
        restart=True,
    )(partial(_keeps_counting, _kind))


def _requeue_counts(kind: str, stage: Stage) -> None:
    queue = limited(stage, kind, 2)
    put(stage, queue.name, "x")
    channel = stage.channel()
    channel.nack(fetch(channel, queue.name).tag)
    channel.reject(fetch(channel, queue.name).tag)
    channel.nack(fetch(channel, queue.name).tag, multiple=True)
    is_dead(stage, queue, "x")


for _kind, _mark in KINDS:
    case("ACK-14", says=f"{_kind}: every requeue counts toward the limit", mark=_mark)(
        partial(_requeue_counts, _kind)
    )


# --- what consumers see -----------------------------------------------------------------------


def _count_header(kind: str, stage: Stage) -> None:
    queue = limited(stage, kind, 5)
    put(stage, queue.name, "x", mine="yes")
    channel = stage.channel()
    channel.call("basic.qos", prefetch_count=1)
    channel.consume(queue.name)
    for number in range(4):
        event = channel.deliver()
        table = event.properties["headers"]
        check(isinstance(table, dict), "no headers")
        if isinstance(table, dict):
            wanted = Typed("l", number) if number else None
            equal(table.get("x-delivery-count"), wanted, "x-delivery-count")
            equal(table.get("mine"), Typed("S", b"yes"), "the publisher's header")
        channel.nack(event.tag)
    channel.ack(channel.deliver().tag)
    channel.sync()


def _get_shows_it(kind: str, stage: Stage) -> None:
    queue = limited(stage, kind, 5)
    put(stage, queue.name, "x")
    channel = stage.channel()
    for wanted in (None, 1, 2):
        event = fetch(channel, queue.name)
        equal(delivery_count(event), wanted, "x-delivery-count")
        channel.nack(event.tag)
    channel.sync()


def _overwritten(kind: str, stage: Stage) -> None:
    queue = limited(stage, kind, 5)
    put(stage, queue.name, "x", **{"x-delivery-count": 17})
    channel = stage.channel()
    channel.consume(queue.name)
    channel.nack(channel.deliver().tag)
    event = channel.deliver()
    equal(delivery_count(event), 1, "x-delivery-count")
    channel.ack(event.tag)
    channel.sync()


for _kind, _mark in KINDS:
    case("REDELIVER-12", says=f"{_kind}: x-delivery-count is an int64, from 1 on", mark=_mark)(
        partial(_count_header, _kind)
    )
    case(
        "REDELIVER-12",
        says=f"{_kind}: basic.get shows x-delivery-count too, from 1 on",
        mark=_mark,
        referee_reason="C-76: basic.get shows 0 on a first delivery",
    )(partial(_get_shows_it, _kind))
    case("REDELIVER-12", says=f"{_kind}: a published x-delivery-count is overwritten", mark=_mark)(
        partial(_overwritten, _kind)
    )


@case("REDELIVER-12", says="quorum: x-delivery-count is shown without a limit too")
def quorum_without_limit(stage: Stage) -> None:
    queue = limited(stage, "quorum", None)
    put(stage, queue.name, "x")
    channel = stage.channel()
    channel.consume(queue.name)
    channel.nack(channel.deliver().tag)
    event = channel.deliver()
    equal(delivery_count(event), 1, "x-delivery-count")
    channel.ack(event.tag)
    channel.sync()


@case("REDELIVER-12", says="classic: without a limit there is no such header")
def classic_without_limit(stage: Stage) -> None:
    queue = limited(stage, "classic", None)
    put(stage, queue.name, "x")
    channel = stage.channel()
    channel.nack(fetch(channel, queue.name).tag)
    event = fetch(channel, queue.name)
    check(event.redelivered, "redelivered is 0")
    equal(event.headers, {}, "headers")
    channel.ack(event.tag)
    channel.sync()


@case("REDELIVER-12", says="x-acquired-count is the number of earlier deliveries", mark="≡4")
def acquired_count(stage: Stage) -> None:
    queue = limited(stage, "quorum", 5)
    put(stage, queue.name, "x")
    channel = stage.channel()
    channel.call("basic.qos", prefetch_count=1)
    channel.consume(queue.name)
    for number in range(3):
        event = channel.deliver()
        headers = event.headers if isinstance(event.headers, dict) else {}
        equal(headers.get("x-acquired-count"), number or None, "x-acquired-count")
        channel.nack(event.tag)
    channel.ack(channel.deliver().tag)
    channel.sync()


def _default(kind: str, deliveries: int, is_dead_then: bool, stage: Stage) -> None:
    queue = limited(stage, kind, None)
    put(stage, queue.name, "x")
    channel = stage.channel()
    channel.call("basic.qos", prefetch_count=1)
    channel.consume(queue.name)
    for _ in range(deliveries):
        channel.nack(channel.deliver().tag)
    if is_dead_then:
        is_dead(stage, queue, "x")
    else:
        channel.ack(channel.deliver().tag)
        channel.sync()


case("REDELIVER-14", says="classic queues have no limit by themselves")(
    partial(_default, "classic", 40, False)
)
case("REDELIVER-14", says="quorum-type queues have a limit of 20", mark="≡4")(
    partial(_default, "quorum", 21, True)
)
