"""Section QUORUM: what a queue of type quorum is on a single node; QOS-13 belongs to it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Final

from vouchmq.conformance.case import case
from vouchmq.conformance.cases.redeliver import delivery_count, fetch, put
from vouchmq.conformance.expect import check, equal
from vouchmq.conformance.preparation import log_in, need_users
from vouchmq.conformance.stage import Stage
from vouchmq.conformance.wire import Plain, Table

TYPE: Final = {"x-queue-type": "quorum"}


def quorum(stage: Stage, arguments: Table | None = None) -> str:
    """A new queue of type quorum."""
    return stage.queue(
        stage.channel(), label="quorum", durable=True, arguments={**TYPE, **(arguments or {})}
    )


@case("QUORUM-01", says="it is declared, filled, consumed and settled like any queue")
def like_any_queue(stage: Stage) -> None:
    name = quorum(stage)
    put(stage, name, "a", "b", "c")
    channel = stage.channel()
    channel.holds(name, 3)
    channel.call("basic.qos", prefetch_count=2)
    channel.consume(name)
    first, second = channel.deliveries(2)
    equal((first.body, second.body), (b"a", b"b"), "deliveries")
    channel.quiet("basic.deliver")
    channel.ack(second.tag, multiple=True)
    third = channel.deliver()
    equal(third.body, b"c", "delivery after the acks")
    channel.ack(third.tag)
    channel.sync()
    channel.holds(name, 0)


DEFAULT: Final = "conformance-quorum"


@case("QUORUM-07", says="a vhost's default type is that of durable queues declared without one")
def default_type(stage: Stage) -> None:
    need_users(stage)
    channel = log_in(stage, stage.target.user, stage.target.password, DEFAULT).channel()
    name = stage.name("default")
    channel.call("queue.declare", queue=name, durable=True)
    channel.call("queue.declare", queue=name, durable=True)
    channel.call("queue.declare", queue=name, durable=True, arguments=dict(TYPE))
    where = f"for queue '{name}' in vhost '{DEFAULT}'"
    with channel.soft(
        406,
        f"PRECONDITION_FAILED - inequivalent arg 'x-queue-type' {where}: "
        "received 'classic' but current is 'quorum'",
        "queue.declare",
    ):
        arguments = {"x-queue-type": "classic"}
        channel.call("queue.declare", queue=name, durable=True, arguments=arguments)
    channel.reopen()
    channel.call("queue.delete", queue=name)


@case("QUORUM-07", says="queues that cannot be of the default type are classic")
def default_type_does_not_fit(stage: Stage) -> None:
    need_users(stage)
    channel = log_in(stage, stage.target.user, stage.target.password, DEFAULT).channel()
    for flags in ({}, {"durable": True, "exclusive": True}, {"durable": True, "auto_delete": True}):
        name = stage.name("classic")
        channel.call("queue.declare", queue=name, **flags)
        channel.call("queue.declare", queue=name, **flags, arguments={"x-queue-type": "classic"})
        channel.call("queue.delete", queue=name)


@case(
    "QUORUM-07", says="the default type is compared with queues that say another, and refused names"
)
def default_type_is_compared(stage: Stage) -> None:
    need_users(stage)
    channel = log_in(stage, stage.target.user, stage.target.password, DEFAULT).channel()
    name = stage.name("classic")
    channel.call("queue.declare", queue=name, durable=True, arguments={"x-queue-type": "classic"})
    text = (
        f"PRECONDITION_FAILED - inequivalent arg 'x-queue-type' for queue '{name}' "
        f"in vhost '{DEFAULT}': received 'quorum' but current is 'classic'"
    )
    channel.soft_again(406, text, "queue.declare", queue=name, durable=True)
    channel.call("queue.delete", queue=name)
    text = "PRECONDITION_FAILED - Cannot declare a server-named queue for type rabbit_quorum_queue"
    channel.soft_again(406, text, "queue.declare", queue="", durable=True)


@case("QUORUM-01", says="get, purge and delete answer as for any queue")
def get_purge_delete(stage: Stage) -> None:
    name = quorum(stage)
    put(stage, name, "a", "b", "c")
    channel = stage.channel()
    channel.holds(name, 3)
    event = fetch(channel, name)
    equal((event.body, event.number("message_count")), (b"a", 2), "get")
    channel.ack(event.tag)
    equal(channel.call("queue.purge", queue=name).number("message_count"), 2, "purged")
    put(stage, name, "d")
    channel.holds(name, 1)
    equal(channel.call("queue.delete", queue=name).number("message_count"), 1, "deleted")
    with channel.soft(404, None, "queue.declare"):
        channel.call("queue.declare", queue=name, passive=True)


@case("QUORUM-01", says="a returned message has redelivered 1 and stands before the others")
def returned(stage: Stage) -> None:
    # Without a limit RabbitMQ puts it at the end.
    name = quorum(stage, {"x-delivery-limit": 5})
    put(stage, name, "a", "b")
    channel = stage.channel()
    channel.nack(fetch(channel, name).tag)
    channel.holds(name, 2)
    first = fetch(channel, name)
    equal((first.body, first.redelivered), (b"a", True), "first message")
    second = fetch(channel, name)
    equal((second.body, second.redelivered), (b"b", False), "second message")
    channel.ack(second.tag, multiple=True)
    channel.sync()


@case("QUORUM-01", says="a transaction publishes and settles at commit")
def transaction(stage: Stage) -> None:
    name = quorum(stage)
    channel = stage.transactional()
    channel.publish("", name, "a")
    channel.call("tx.commit")
    event = fetch(channel, name)
    channel.publish("", name, "b")
    channel.ack(event.tag)
    channel.call("tx.commit")
    event = fetch(channel, name)
    equal((event.body, event.number("message_count")), (b"b", 0), "what is left")
    channel.ack(event.tag)
    channel.call("tx.commit")


def _invalid_property(word: str, flags: Mapping[str, bool], stage: Stage) -> None:
    channel = stage.channel()
    name = stage.name("quorum")
    text = f"PRECONDITION_FAILED - invalid property '{word}' for {stage.the_queue(name)}"
    channel.soft_again(406, text, "queue.declare", queue=name, arguments=TYPE, **flags)
    with channel.soft(404, None, "queue.declare"):
        channel.call("queue.declare", queue=name, passive=True)


for _word, _flags in (
    ("non-durable", {}),
    ("exclusive-owner", {"durable": True, "exclusive": True}),
    ("auto-delete", {"durable": True, "auto_delete": True}),
):
    case("QUORUM-02", says=f"a quorum queue that is {_word} is soft 406 and not created")(
        partial(_invalid_property, _word, _flags)
    )


@case("QUORUM-02", says="a server-named quorum queue is soft 406")
def server_named(stage: Stage) -> None:
    text = "PRECONDITION_FAILED - Cannot declare a server-named queue for type rabbit_quorum_queue"
    channel = stage.channel()
    with channel.soft(406, text, "queue.declare"):
        channel.call("queue.declare", queue="", durable=True, arguments=TYPE)


def _refused_argument(argument: str, value: Plain, stage: Stage) -> None:
    channel = stage.channel()
    name = stage.name("quorum")
    text = (
        f"PRECONDITION_FAILED - invalid arg '{argument}' for {stage.the_queue(name)} "
        "of queue type rabbit_quorum_queue"
    )
    with channel.soft(406, text, "queue.declare"):
        channel.call("queue.declare", queue=name, durable=True, arguments={**TYPE, argument: value})


for _rule, _argument, _value in (
    ("QUEUE-49", "x-max-priority", 5),
    ("QUEUE-55", "x-max-age", "1D"),
    ("QUEUE-56", "x-stream-max-segment-size-bytes", 1000),
):
    case(_rule, says=f"{_argument} on a quorum queue is soft 406")(
        partial(_refused_argument, _argument, _value)
    )


@case(
    "QUORUM-03", says="transient messages survive a restart, delivery-mode as it was", restart=True
)
def transient_survives(stage: Stage) -> Iterator[None]:
    name = quorum(stage)
    channel = stage.confirming()
    channel.publish("", name, "transient", delivery_mode=1)
    channel.publish("", name, "unsaid")
    channel.publish("", name, "persistent", delivery_mode=2)
    equal(set(channel.confirms(3).values()), {"ack"}, "confirms")
    yield
    channel = stage.channel()
    events = [fetch(channel, name) for _ in range(3)]
    equal(
        [(event.body, event.properties.get("delivery_mode")) for event in events],
        [(b"transient", 1), (b"unsaid", None), (b"persistent", 2)],
        "messages and their delivery-mode",
    )
    channel.ack(events[-1].tag, multiple=True)
    channel.sync()


@case("QUORUM-04", says="x-delivery-count is shown from the first return on")
def counts(stage: Stage) -> None:
    name = quorum(stage)
    put(stage, name, "x")
    channel = stage.channel()
    channel.nack(fetch(channel, name).tag)
    event = fetch(channel, name)
    equal(delivery_count(event), 1, "x-delivery-count")
    channel.ack(event.tag)
    channel.sync()


@case("QUORUM-04", says="at-least-once dead-lettering brings a rejected message to its target")
def at_least_once(stage: Stage) -> None:
    channel = stage.channel()
    graveyard = stage.queue(channel, label="dead", durable=True)
    name = quorum(
        stage,
        {
            "x-dead-letter-exchange": "",
            "x-dead-letter-routing-key": graveyard,
            "x-dead-letter-strategy": "at-least-once",
            "x-overflow": "reject-publish",
        },
    )
    put(stage, name, "x")
    event = fetch(channel, name)
    channel.reject(event.tag, requeue=False)
    dead = fetch(channel, graveyard)
    equal(dead.body, b"x", "dead-lettered message")
    channel.ack(dead.tag)
    channel.sync()


@case("QUORUM-05", says="the exclusive flag of a consumer is ignored (CONS-05)")
def exclusive_consumer(stage: Stage) -> None:
    name = quorum(stage)
    first, second = stage.channel(), stage.channel()
    first.consume(name, exclusive=True)
    second.consume(name, exclusive=True)
    put(stage, name, "a", "b")
    got = {channel.deliver().body for channel in (first, second)}
    equal(got, {b"a", b"b"}, "deliveries of both consumers")


def _accepted(argument: str, value: Plain, stage: Stage) -> None:
    name = quorum(stage, {argument: value})
    put(stage, name, "x")
    channel = stage.channel()
    event = fetch(channel, name)
    equal(event.body, b"x", "message")
    channel.ack(event.tag)
    channel.sync()


for _argument, _value in (
    ("x-quorum-initial-group-size", 1),
    ("x-max-in-memory-length", 10),
    ("x-max-in-memory-bytes", 1000),
    ("x-queue-leader-locator", "client-local"),
):
    case("QUORUM-06", says=f"{_argument} is accepted and changes nothing")(
        partial(_accepted, _argument, _value)
    )


# --- prefetch ---------------------------------------------------------------------------------


@case("QOS-13", says="a channel limit holds for consumers of quorum-type queues", mark="≠")
def channel_limit(stage: Stage) -> None:
    first, second = quorum(stage), quorum(stage)
    for name in (first, second):
        put(stage, name, *(f"{number}" for number in range(10)))
    channel = stage.channel()
    channel.call("basic.qos", prefetch_count=3)
    channel.call("basic.qos", prefetch_count=5, global_=True)
    channel.consume(first, tag="one")
    channel.consume(second, tag="two")
    events = channel.deliveries(5)
    tags = [event.text("consumer_tag") for event in events]
    check(tags.count("one") <= 3 and tags.count("two") <= 3, f"deliveries went to {tags}")
    channel.quiet("basic.deliver")
    channel.ack(events[0].tag)
    channel.deliver()
    channel.quiet("basic.deliver")


@case("QOS-13", says="a channel limit alone on a quorum-type queue", mark="≠")
def channel_limit_alone(stage: Stage) -> None:
    name = quorum(stage)
    put(stage, name, "a", "b", "c")
    channel = stage.channel()
    channel.call("basic.qos", prefetch_count=2, global_=True)
    channel.consume(name)
    events = channel.deliveries(2)
    channel.quiet("basic.deliver")
    channel.ack(events[-1].tag, multiple=True)
    equal(channel.deliver().body, b"c", "delivery after the acks")
