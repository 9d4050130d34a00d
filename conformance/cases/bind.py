"""Section EXCH: bindings, exchange-to-exchange, alternate exchanges."""

from __future__ import annotations

from vouchmq.conformance.case import case
from vouchmq.conformance.cases.exch import bind_exchange
from vouchmq.conformance.client import Channel
from vouchmq.conformance.expect import Starting, check, equal
from vouchmq.conformance.stage import Stage


def arrives(channel: Channel, exchange: str, key: str, queue: str, body: str) -> None:
    """Fail unless a message published like this is the only one that gets into the queue."""
    channel.publish(exchange, key, body)
    channel.holds(queue, 1)
    equal(channel.drain(queue), [body], f"messages in {queue}")


@case("EXCH-20", says="binding twice is a no-op: one unbind is enough")
def bind_twice(stage: Stage) -> None:
    channel = stage.channel()
    queue = stage.queue(channel)
    exchange = stage.exchange(channel, "direct")
    for _ in range(2):
        channel.call("queue.bind", queue=queue, exchange=exchange, routing_key="k")
    arrives(channel, exchange, "k", queue, "once")
    channel.call("queue.unbind", queue=queue, exchange=exchange, routing_key="k")
    channel.publish(exchange, "k", "lost")
    equal(channel.drain(queue), [], "messages after one unbinding")


@case("EXCH-20", says="bindings that differ only in their arguments are two")
def arguments_tell_bindings_apart(stage: Stage) -> None:
    channel = stage.channel()
    exchange = stage.exchange(channel, "direct")
    queue = stage.bound(channel, exchange, "k", {"x": 1})
    channel.call("queue.bind", queue=queue, exchange=exchange, routing_key="k", arguments={"x": 2})
    channel.call("queue.unbind", queue=queue, exchange=exchange, routing_key="k")
    channel.call(
        "queue.unbind", queue=queue, exchange=exchange, routing_key="k", arguments={"x": 1}
    )
    arrives(channel, exchange, "k", queue, "second binding")
    channel.call(
        "queue.unbind", queue=queue, exchange=exchange, routing_key="k", arguments={"x": 2}
    )
    channel.publish(exchange, "k", "lost")
    equal(channel.drain(queue), [], "messages after both unbindings")


@case("EXCH-20", says="unbinding what does not exist is unbind-ok")
def unbind_nothing(stage: Stage) -> None:
    channel = stage.channel()
    queue, exchange = stage.queue(channel), stage.exchange(channel, "direct")
    missing = stage.name()
    for one, other in (
        (queue, exchange),
        (missing, exchange),
        (queue, missing),
        (missing, missing),
    ):
        channel.call("queue.unbind", queue=one, exchange=other, routing_key="k")
        channel.call("exchange.unbind", destination=one, source=other, routing_key="k")


@case(
    "EXCH-21",
    says="queue.bind: a missing queue or exchange is soft 404, the queue or exchange is named",
)
def bind_missing(stage: Stage) -> None:
    channel = stage.channel()
    queue, missing, absent = stage.queue(channel), stage.name(), stage.name("x")
    no_queue = f"NOT_FOUND - no {stage.the_queue(missing)}"
    channel.soft_again(404, no_queue, "queue.bind", queue=missing, exchange="amq.direct")
    no_exchange = f"NOT_FOUND - no {stage.the_exchange(absent)}"
    channel.soft_again(404, no_exchange, "queue.bind", queue=queue, exchange=absent)


@case("EXCH-21", says="queue.bind with both missing is soft 404")
def bind_both_missing(stage: Stage) -> None:
    channel = stage.channel()
    with channel.soft(404, Starting("NOT_FOUND - no "), "queue.bind"):
        channel.call("queue.bind", queue=stage.name(), exchange=stage.name("x"))


@case("EXCH-21", says="e2e bind: whichever exchange is missing is soft 404")
def bind_missing_exchange(stage: Stage) -> None:
    channel = stage.channel()
    absent = stage.name("x")
    text = f"NOT_FOUND - no {stage.the_exchange(absent)}"
    channel.soft_again(404, text, "exchange.bind", destination=absent, source="amq.direct")
    channel.soft_again(404, text, "exchange.bind", destination="amq.direct", source=absent)


@case("EXCH-22", says="an empty queue name means the last declared queue")
def bind_last_queue(stage: Stage) -> None:
    channel = stage.channel()
    exchange = stage.exchange(channel, "direct")
    queue = stage.queue(channel)
    channel.call("queue.bind", queue="", exchange=exchange, routing_key="k")
    arrives(channel, exchange, "k", queue, "by key")


@case("EXCH-22", says="an empty key beside an empty queue name becomes that queue's name")
def bind_last_queue_by_name(stage: Stage) -> None:
    channel = stage.channel()
    exchange = stage.exchange(channel, "direct")
    queue = stage.queue(channel)
    channel.call("queue.bind", queue="", exchange=exchange, routing_key="")
    arrives(channel, exchange, queue, queue, "by name")
    channel.publish(exchange, "", "lost")
    equal(channel.drain(queue), [], "messages for the empty key")


@case("EXCH-22", says="an empty key beside a queue name stays empty")
def bind_empty_key(stage: Stage) -> None:
    channel = stage.channel()
    exchange = stage.exchange(channel, "direct")
    queue = stage.bound(channel, exchange, "")
    arrives(channel, exchange, "", queue, "empty key")


@case("EXCH-24", says="e2e bindings route on by key, chains and cycles included")
def cycles(stage: Stage) -> None:
    channel = stage.channel()
    names = [stage.exchange(channel, "topic") for _ in range(3)]
    for source, target in zip(names, names[1:] + names[:1], strict=True):
        bind_exchange(channel, source, target, "a.#")
    queues = [stage.bound(channel, name, "#") for name in names]
    channel.publish(names[0], "a.b", "round")
    for queue in queues:
        channel.holds(queue, 1)
    channel.publish(names[0], "b", "stays")
    channel.holds(queues[0], 2)
    equal(
        [channel.drain(queue) for queue in queues], [["round", "stays"], ["round"], ["round"]], ""
    )


@case("EXCH-24", says="an exchange bound to itself routes once")
def self_binding(stage: Stage) -> None:
    channel = stage.channel()
    exchange = stage.exchange(channel, "fanout")
    bind_exchange(channel, exchange, exchange)
    arrives(channel, exchange, "", stage.bound(channel, exchange), "once")


@case("EXCH-25", says="binding a generated reply name is soft 403", mark="≡4")
def bind_reply_name(stage: Stage) -> None:
    channel = stage.channel()
    queue = stage.queue(channel)
    channel.consume("amq.rabbitmq.reply-to", no_ack=True)
    channel.publish("", queue, "request", reply_to="amq.rabbitmq.reply-to")
    channel.holds(queue, 1)
    reply_name = str(channel.get(queue).properties["reply_to"])
    text = "ACCESS_REFUSED - cannot bind or unbind to a volatile (direct reply-to) queue"
    with channel.soft(403, text, "queue.bind"):
        channel.call("queue.bind", queue=reply_name, exchange="amq.direct", routing_key="k")


@case("EXCH-30", says="a queue gets one copy however many bindings and paths lead to it")
def one_copy(stage: Stage) -> None:
    channel = stage.channel()
    topic, fanout = stage.exchange(channel, "topic"), stage.exchange(channel, "fanout")
    queue = stage.bound(channel, topic, "a.#")
    channel.call("queue.bind", queue=queue, exchange=topic, routing_key="#")
    channel.call("queue.bind", queue=queue, exchange=fanout)
    bind_exchange(channel, topic, fanout, "*.b")
    channel.publish(topic, "a.b", "once", headers={"CC": ["a.c", queue], "BCC": ["a.b"]})
    channel.holds(queue, 1)
    equal(channel.drain(queue), ["once"], "messages")


# --- alternate exchange ---------------------------------------------------------------------


@case("EXCH-60", says="a message no binding matches goes through the alternate exchange unchanged")
def alternate(stage: Stage) -> None:
    channel = stage.channel()
    backup = stage.exchange(channel, "topic")
    queue = stage.bound(channel, backup, "lost.#")
    main = stage.exchange(channel, "direct", arguments={"alternate-exchange": backup})
    channel.publish(main, "lost.one", "x", headers={"h": 1})
    channel.holds(queue, 1)
    got = channel.get(queue)
    equal((got.text("exchange"), got.text("routing_key")), (main, "lost.one"), "exchange and key")
    equal(got.headers, {"h": 1}, "headers")


@case("EXCH-60", says="alternate exchanges chain; a cycle ends silently")
def alternate_chain(stage: Stage) -> None:
    channel = stage.channel()
    first, second, third = stage.name("x"), stage.name("x"), stage.name("x")
    for name, after in ((first, second), (second, third), (third, first)):
        channel.call(
            "exchange.declare",
            exchange=name,
            type="direct",
            arguments={"alternate-exchange": after},
        )
    queue = stage.bound(channel, third, "k")
    arrives(channel, first, "k", queue, "third time")
    channel.call("confirm.select")
    channel.publish(first, "nowhere", "x")
    equal(channel.confirms(1), {1: "ack"}, "confirm of the cycling message")


@case("EXCH-61", says="if any binding matched, the alternate exchange is not used")
def alternate_not_used(stage: Stage) -> None:
    channel = stage.channel()
    backup, empty = stage.exchange(channel, "fanout"), stage.exchange(channel, "fanout")
    saved = stage.bound(channel, backup)
    main = stage.exchange(channel, "direct", arguments={"alternate-exchange": backup})
    queue = stage.bound(channel, main, "k")
    bind_exchange(channel, main, empty, "void")
    channel.publish(main, "k", "direct")
    channel.publish(main, "void", "into an exchange that goes nowhere")
    channel.publish(main, "other", "by CC", headers={"CC": ["k"]})
    channel.holds(queue, 2)
    equal(channel.drain(saved), [], "messages in the alternate exchange's queue")


@case("EXCH-62", says="mandatory is satisfied when the alternate exchange routes")
def alternate_and_mandatory(stage: Stage) -> None:
    channel = stage.channel()
    backup = stage.exchange(channel, "fanout")
    queue = stage.bound(channel, backup)
    main = stage.exchange(channel, "direct", arguments={"alternate-exchange": backup})
    channel.publish(main, "k", "x", mandatory=True)
    channel.holds(queue, 1)
    check(not channel.connection.inbox(1), "a routed message was returned")


@case("EXCH-62", says="mandatory returns 312 when the alternate exchange is missing or empty")
def alternate_in_vain(stage: Stage) -> None:
    channel = stage.channel()
    for backup in (stage.name("x"), stage.exchange(channel, "fanout")):
        main = stage.exchange(channel, "direct", arguments={"alternate-exchange": backup})
        channel.publish(main, "k", "x", mandatory=True)
        event = channel.wait("basic.return")
        equal((event.number("reply_code"), event.text("exchange")), (312, main), "return")
