"""Section TX: transactions."""

from __future__ import annotations

from functools import partial

from vouchmq.conformance import wire
from vouchmq.conformance.case import case
from vouchmq.conformance.client import Channel
from vouchmq.conformance.expect import check, equal
from vouchmq.conformance.stage import Stage


@case("TX-01", says="tx.select is answered, also when repeated")
def select(stage: Stage) -> None:
    channel = stage.transactional()
    channel.call("tx.select")
    channel.call("tx.commit")


@case("TX-01", says="tx.select on a confirm channel is soft 406")
def select_after_confirm(stage: Stage) -> None:
    channel = stage.confirming()
    text = "PRECONDITION_FAILED - cannot switch from confirm to tx mode"
    with channel.soft(406, text, "tx.select"):
        channel.call("tx.select")


def _not_transactional(name: str, stage: Stage) -> None:
    channel = stage.channel()
    with channel.soft(406, "PRECONDITION_FAILED - channel is not transactional", name):
        channel.call(name)


for _name in ("tx.commit", "tx.rollback"):
    case("TX-02", says=f"{_name} without select is soft 406")(partial(_not_transactional, _name))


@case("TX-03", says="publishes are seen by nobody before commit, by all after commit-ok")
def publish_waits(stage: Stage) -> None:
    channel, watcher = stage.transactional(), stage.channel()
    queue = stage.queue(watcher, durable=True)
    for body in ("a", "b", "c"):
        channel.publish("", queue, body, delivery_mode=2)
    channel.sync()
    equal(watcher.count(queue), 0, "messages before commit")
    channel.call("tx.commit")
    equal(watcher.drain(queue), ["a", "b", "c"], "messages after commit-ok")


@case("TX-03", says="declare, bind, consume, get, qos and purge act at once")
def others_act_at_once(stage: Stage) -> None:
    channel, watcher = stage.transactional(), stage.channel()
    queue = stage.queue(channel)
    channel.call("queue.bind", queue=queue, exchange="amq.direct", routing_key=queue)
    watcher.publish("amq.direct", queue, "a")
    watcher.publish("amq.direct", queue, "b")
    watcher.holds(queue, 2)
    equal(channel.get(queue).body, b"a", "get")
    channel.call("basic.qos", prefetch_count=1)
    channel.consume(queue, no_ack=True)
    equal(channel.deliver().body, b"b", "delivery")
    equal(channel.call("queue.purge", queue=queue).number("message_count"), 0, "purged")


@case("TX-04", says="a publish is routed when it arrives: later bindings add nothing")
def routed_on_arrival(stage: Stage) -> None:
    channel = stage.transactional()
    exchange = stage.exchange(channel, "fanout")
    early = stage.bound(channel, exchange)
    channel.publish(exchange, "", "x")
    late = stage.bound(channel, exchange)
    channel.call("queue.unbind", queue=early, exchange=exchange)
    channel.call("tx.commit")
    channel.holds(early, 1)
    equal(channel.count(late), 0, "messages in the queue that was bound later")


@case("TX-04", says="queues deleted before commit are skipped silently")
def deleted_before_commit(stage: Stage) -> None:
    channel = stage.transactional()
    exchange = stage.exchange(channel, "fanout")
    gone, kept = stage.bound(channel, exchange), stage.bound(channel, exchange)
    channel.publish(exchange, "", "x", mandatory=True)
    channel.call("queue.delete", queue=gone)
    channel.call("tx.commit")
    channel.holds(kept, 1)


@case("TX-04", says="a failing publish closes the channel at once and drops the transaction")
def failing_publish(stage: Stage) -> None:
    channel, watcher = stage.transactional(), stage.channel()
    queue = stage.queue(watcher)
    channel.publish("", queue, "lost")
    with channel.soft(404, None, "basic.publish"):
        channel.publish(stage.name("x"), "", "x")
    channel.reopen()
    channel.sync()
    equal(watcher.count(queue), 0, "messages")


@case("TX-05", says="returns come at commit, in publish order, before commit-ok")
def returns_at_commit(stage: Stage) -> None:
    channel = stage.transactional()
    for key in ("nowhere 1", "nowhere 2"):
        channel.publish("", key, "x", mandatory=True)
    channel.sync()
    check(not channel.connection.inbox(1), "returned before commit")
    channel.call("tx.commit")
    keys = [event.text("routing_key") for event in channel.connection.inbox(1)]
    equal(keys, ["nowhere 1", "nowhere 2"], "keys of the returns before commit-ok")


@case("TX-05", says="immediate is judged at commit, its return comes before commit-ok", mark="+")
def immediate_at_commit(stage: Stage) -> None:
    channel, reader = stage.transactional(), stage.channel()
    served, idle = stage.queue(reader), stage.queue(reader)
    for queue in (served, idle):
        channel.publish("", queue, queue, immediate=True)
    channel.sync()
    reader.consume(served)
    channel.call("tx.commit")
    returned = [
        (event.number("reply_code"), event.text("routing_key"))
        for event in channel.connection.inbox(1)
    ]
    equal(returned, [(313, idle)], "returns before commit-ok")
    equal(reader.bodies(1), [served], "delivery")


def _two_deliveries(stage: Stage) -> tuple[Channel, Channel, str]:
    channel, watcher = stage.transactional(), stage.channel()
    queue = stage.queue(watcher)
    stage.load(watcher, queue, "a", "b")
    channel.consume(queue)
    channel.deliveries(2)
    return channel, watcher, queue


@case("TX-06", says="an unknown tag is refused when it arrives, not at commit")
def unknown_tag(stage: Stage) -> None:
    channel = stage.transactional()
    with channel.soft(406, "PRECONDITION_FAILED - unknown delivery tag 9", "basic.ack"):
        channel.ack(9)


@case("TX-06", says="a tag settled in the transaction is refused a second time")
def settled_twice(stage: Stage) -> None:
    channel, watcher, queue = _two_deliveries(stage)
    channel.ack(1)
    with channel.soft(406, "PRECONDITION_FAILED - unknown delivery tag 1", "basic.reject"):
        channel.reject(1)
    watcher.holds(queue, 2)


@case("TX-06", says="an ack keeps occupying prefetch until commit")
def ack_keeps_prefetch(stage: Stage) -> None:
    channel, watcher = stage.transactional(), stage.channel()
    queue = stage.queue(watcher)
    stage.load(watcher, queue, "a", "b")
    channel.call("basic.qos", prefetch_count=1)
    channel.consume(queue)
    channel.ack(channel.deliver().tag)
    channel.quiet("basic.deliver")
    channel.call("tx.commit")
    equal(channel.deliver().body, b"b", "delivery after commit")


@case("TX-06", says="acks take effect at commit: before it a lost channel requeues all")
def acks_wait(stage: Stage) -> None:
    channel, watcher, queue = _two_deliveries(stage)
    channel.ack(2, multiple=True)
    channel.close()
    watcher.holds(queue, 2)


@case("TX-07", says="acks and requeues take effect at commit")
def settle_at_commit(stage: Stage) -> None:
    channel, watcher, queue = _two_deliveries(stage)
    channel.ack(1)
    channel.nack(2, requeue=True)
    channel.quiet("basic.deliver")
    channel.call("tx.commit")
    event = channel.deliver()
    equal((event.body, event.redelivered), (b"b", True), "redelivery after commit")
    channel.close()
    watcher.holds(queue, 1)


@case("TX-07", says="publishes of one commit keep their order over several queues")
def order(stage: Stage) -> None:
    channel, watcher = stage.transactional(), stage.channel()
    queues = [stage.queue(watcher) for _ in range(3)]
    for number in range(30):
        channel.publish("", queues[number % 3], str(number))
    channel.call("tx.commit")
    for at, queue in enumerate(queues):
        equal(watcher.drain(queue), [str(number) for number in range(at, 30, 3)], "messages")


@case("TX-10", says="rollback discards the publishes")
def rollback_publishes(stage: Stage) -> None:
    channel = stage.transactional()
    queue = stage.queue(channel)
    channel.publish("", queue, "lost")
    channel.call("tx.rollback")
    channel.publish("", queue, "kept")
    channel.call("tx.commit")
    channel.holds(queue, 1)
    equal(channel.drain(queue), ["kept"], "messages")


@case("TX-10", says="rollback makes settled tags outstanding again, nothing is redelivered")
def rollback_acks(stage: Stage) -> None:
    channel, watcher, queue = _two_deliveries(stage)
    channel.ack(1)
    channel.nack(2, requeue=True)
    channel.call("tx.rollback")
    channel.quiet("basic.deliver")
    channel.ack(2)
    channel.ack(1)
    channel.call("tx.commit")
    channel.close()
    watcher.sync()
    equal(watcher.count(queue), 0, "messages after all")


@case("TX-11", says="the channel stays transactional after commit and rollback")
def stays_transactional(stage: Stage) -> None:
    channel, watcher = stage.transactional(), stage.channel()
    queue = stage.queue(watcher)
    for verb in ("tx.commit", "tx.rollback", "tx.commit"):
        channel.call(verb)
        channel.publish("", queue, verb)
        channel.sync()
        equal(watcher.count(queue), 0, f"messages published after {verb}")
        channel.call("tx.rollback")


@case("TX-12", says="the end of the channel or the connection is a rollback")
def end_is_rollback(stage: Stage) -> None:
    watcher = stage.channel()
    queue = stage.queue(watcher)
    for end in ("channel", "connection", "socket"):
        channel = stage.transactional()
        channel.publish("", queue, end)
        channel.sync()
        if end == "channel":
            channel.close()
        elif end == "connection":
            channel.connection.close()
        else:
            channel.connection.drop()
    equal(watcher.count(queue), 0, "messages")


@case("TX-13", says="recover does not touch tags settled in the transaction")
def recover_in_transaction(stage: Stage) -> None:
    channel, watcher, queue = _two_deliveries(stage)
    channel.ack(1)
    channel.call("basic.recover", requeue=True)
    event = channel.deliver()
    equal((event.body, event.redelivered), (b"b", True), "redelivery")
    channel.call("tx.commit")
    channel.close()
    watcher.holds(queue, 1)
    equal(watcher.drain(queue), ["b"], "messages")


@case("TX-14", says="a method sent right behind tx.commit is hard 504")
def behind_commit(stage: Stage) -> None:
    channel = stage.transactional()
    queue = stage.queue(channel, durable=True)
    for _ in range(200):
        channel.publish("", queue, b"x" * 1000, delivery_mode=2)
    connection = channel.connection
    text = "CHANNEL_ERROR - unexpected command while processing 'tx.commit'"
    with connection.hard(504, text, "basic.qos"):
        connection.send(wire.method(1, "tx.commit") + wire.method(1, "basic.qos"))


@case("TX-15", says="a transaction of more than 64 MiB is soft 406", mark="+", serial=True)
def too_large(stage: Stage) -> None:
    channel = stage.transactional()
    queue = stage.queue(channel)
    octets = bytes(8 * 1024 * 1024)
    with channel.soft(406, "PRECONDITION_FAILED - transaction too large", "basic.publish"):
        for _ in range(9):
            channel.publish("", queue, octets)
