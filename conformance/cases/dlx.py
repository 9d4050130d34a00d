"""Section DLX 13.1: what is dead-lettered, and what is not."""

from __future__ import annotations

from functools import partial

from vouchmq.conformance.case import case
from vouchmq.conformance.client import Channel
from vouchmq.conformance.dead_letters import SHORT_MS, fetch, history, kill, mortal
from vouchmq.conformance.expect import equal
from vouchmq.conformance.stage import Stage
from vouchmq.conformance.wire import Table


def _in_prison(stage: Stage, arguments: Table | None = None) -> tuple[Channel, str, str]:
    """A channel that holds a, b and c, unacked, as tags 1 to 3; source and target queue."""
    channel = stage.channel()
    source, target = mortal(stage, channel, arguments)
    stage.load(channel, source, "a", "b", "c")
    for _ in range(3):
        channel.get(source, no_ack=False)
    return channel, source, target


def _dies_of(channel: Channel, source: str, target: str, reason: str) -> None:
    equal(history(fetch(channel, target)), [(source, reason, 1)], "x-death")


# --- causes ---------------------------------------------------------------------------------


@case("DLX-01", says="expired, by queue or by message, is dead-lettered as expired")
def expired(stage: Stage) -> None:
    channel = stage.channel()
    source, target = mortal(stage, channel, {"x-message-ttl": SHORT_MS})
    channel.publish("", source, "x")
    _dies_of(channel, source, target, "expired")
    source, target = mortal(stage, channel)
    channel.publish("", source, "x", expiration=str(SHORT_MS))
    _dies_of(channel, source, target, "expired")


@case("DLX-02", says="reject without requeue is dead-lettered as rejected, with requeue it is not")
def rejected(stage: Stage) -> None:
    channel, source, target = _in_prison(stage)
    channel.reject(1)
    channel.ack(2)
    channel.reject(3, requeue=False)
    event = fetch(channel, target)
    equal((event.body, history(event)), (b"c", [(source, "rejected", 1)]), "dead letter")
    equal(channel.drain(source), ["a"], "requeued")


@case("DLX-02", says="nack without requeue is dead-lettered as rejected")
def nacked(stage: Stage) -> None:
    channel, source, target = _in_prison(stage)
    channel.nack(2, requeue=False)
    channel.nack(1)
    event = fetch(channel, target)
    equal((event.body, history(event)), (b"b", [(source, "rejected", 1)]), "dead letter")


@case("DLX-02", says="nack multiple without requeue dead-letters all up to the tag, in order")
def nacked_multiple(stage: Stage) -> None:
    channel, source, target = _in_prison(stage)
    channel.nack(2, multiple=True, requeue=False)
    channel.holds(target, 2)
    equal(channel.drain(target), ["a", "b"], "dead letters")
    channel.nack(0, multiple=True, requeue=False)
    channel.holds(target, 1)
    equal(channel.drain(target), ["c"], "dead letters")
    equal(channel.count(source), 0, "ready messages in the source")


@case("DLX-02", says="without a DLX what is rejected is gone")
def rejected_without_dlx(stage: Stage) -> None:
    channel = stage.channel()
    queue = stage.queue(channel)
    kill(stage, channel, queue)
    channel.sync()
    equal(channel.count(queue), 0, "ready messages")


@case("DLX-03", says="dropped by drop-head for its length: maxlen")
def dropped_for_length(stage: Stage) -> None:
    channel = stage.channel()
    source, target = mortal(stage, channel, {"x-max-length": 1})
    channel.publish("", source, "old")
    channel.publish("", source, "new")
    event = fetch(channel, target)
    equal((event.body, history(event)), (b"old", [(source, "maxlen", 1)]), "dead letter")
    equal(channel.drain(source), ["new"], "what is left")


@case("DLX-03", says="dropped by drop-head for its bytes: maxlen")
def dropped_for_bytes(stage: Stage) -> None:
    channel = stage.channel()
    source, target = mortal(stage, channel, {"x-max-length-bytes": 10})
    for body in ("aaaa", "bbbb", "cccc"):
        channel.publish("", source, body)
    event = fetch(channel, target)
    equal((event.body, history(event)), (b"aaaa", [(source, "maxlen", 1)]), "dead letter")
    equal(channel.drain(source), ["bbbb", "cccc"], "what is left")


def _refused(limit: str, value: int, stage: Stage) -> None:
    channel = stage.confirming()
    arguments: Table = {limit: value, "x-overflow": "reject-publish-dlx"}
    source, target = mortal(stage, channel, arguments)
    for body in ("aaaa", "bbbb"):
        channel.publish("", source, body)
    equal(channel.confirms(2), {1: "ack", 2: "nack"}, "confirms")
    event = fetch(channel, target)
    equal((event.body, history(event)), (b"bbbb", [(source, "maxlen", 1)]), "dead letter")
    equal(channel.drain(source), ["aaaa"], "what is left")


for _limit, _value in (("x-max-length", 1), ("x-max-length-bytes", 7)):
    case("DLX-03", says=f"refused under reject-publish-dlx by {_limit}: maxlen")(
        partial(_refused, _limit, _value)
    )


def _returned_too_often(arguments: Table, stage: Stage) -> None:
    channel = stage.channel()
    source, target = mortal(stage, channel, {"x-delivery-limit": 1, **arguments}, durable=True)
    stage.load(channel, source, "x")
    for _ in range(2):
        channel.holds(source, 1)
        channel.nack(channel.get(source, no_ack=False).tag)
    _dies_of(channel, source, target, "delivery_limit")


case("DLX-04", says="returned too often to a quorum-type queue: delivery_limit", slow=True)(
    partial(_returned_too_often, {"x-queue-type": "quorum"})
)
case("DLX-04", says="returned too often to a classic queue: delivery_limit", mark="+")(
    partial(_returned_too_often, {})
)


# --- what is none ---------------------------------------------------------------------------


def _no_dead_letter(how: str, stage: Stage) -> None:
    channel, owner = stage.channel(), stage.channel()
    target = stage.queue(channel, label="dead")
    source = stage.queue(
        owner,
        arguments={"x-dead-letter-exchange": "", "x-dead-letter-routing-key": target},
        exclusive=how == "the end of an exclusive queue",
        auto_delete=how == "the end of an auto-delete queue",
    )
    stage.load(owner, source, "a", "b")
    if how == "purge":
        channel.call("queue.purge", queue=source)
    elif how == "queue deletion":
        channel.call("queue.delete", queue=source)
    elif how == "the end of an exclusive queue":
        owner.connection.close()
    elif how == "the end of an auto-delete queue":
        owner.call("basic.qos", prefetch_count=1)
        owner.consume(source)
        owner.deliver()
        owner.close()
    elif how == "no-ack delivery to a client that is gone":
        owner.consume(source, no_ack=True)
        owner.connection.drop()
    channel.consume(target, no_ack=True)
    channel.quiet("basic.deliver")


for _how in (
    "purge",
    "queue deletion",
    "the end of an exclusive queue",
    "the end of an auto-delete queue",
    "no-ack delivery to a client that is gone",
):
    case("DLX-05", says=f"{_how} dead-letters nothing")(partial(_no_dead_letter, _how))


@case("DLX-05", says="plain reject-publish dead-letters nothing")
def plain_refusal(stage: Stage) -> None:
    channel = stage.confirming()
    source, target = mortal(stage, channel, {"x-max-length": 1, "x-overflow": "reject-publish"})
    for body in ("a", "b"):
        channel.publish("", source, body)
    equal(channel.confirms(2), {1: "ack", 2: "nack"}, "confirms")
    channel.consume(target, no_ack=True)
    channel.quiet("basic.deliver")
