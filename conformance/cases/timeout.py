"""Section CONS 11.6: consumers that do not acknowledge in time."""

from __future__ import annotations

from functools import partial
from typing import Final

from vouchmq.conformance.case import case
from vouchmq.conformance.client import CAPABILITIES, Channel
from vouchmq.conformance.expect import check, equal
from vouchmq.conformance.stage import Stage
from vouchmq.conformance.wire import Plain, Table

TIMEOUT_MS: Final = 1000
# Rule CONS-70: looked at every half of the value; then as long again for a busy machine.
CHECKED_S: Final = TIMEOUT_MS / 1000 / 2
IMPATIENT: Final[Table] = {"x-consumer-timeout": TIMEOUT_MS}


def _too_late(channel: int) -> str:
    return (
        f"PRECONDITION_FAILED - delivery acknowledgement on channel {channel} timed out. Timeout "
        f"value used: {TIMEOUT_MS} ms. This timeout value can be configured, see consumers doc "
        "guide to learn more"
    )


def _plain_client(stage: Stage) -> Channel:
    """A channel of a client that does not know `consumer_cancel_notify`."""
    capabilities = {**CAPABILITIES, "consumer_cancel_notify": False}
    return stage.connect(client_properties={"capabilities": capabilities}).channel()


def _is_patient(channel: Channel) -> None:
    channel.quiet("basic.cancel", "channel.close", seconds=2.5 * TIMEOUT_MS / 1000)


# --- the consumer is cancelled --------------------------------------------------------------


def _cancelled(queue_arguments: Table, consumer_arguments: Table, stage: Stage) -> None:
    channel, other = stage.channel(), stage.channel()
    queue = stage.queue(channel, arguments=queue_arguments)
    tag = channel.consume(queue, arguments=consumer_arguments)
    channel.publish("", queue, "x")
    delivery = channel.deliver()
    event = channel.wait("basic.cancel")
    equal((event.text("consumer_tag"), event.arguments["nowait"]), (tag, True), "cancel")
    due = delivery.at + TIMEOUT_MS / 1000
    # The broker's clock began before we had the delivery.
    stage.in_time(event.at, due - stage.slack_s, CHECKED_S + stage.slack_s, "the cancel")
    other.holds(queue, 1)
    got = other.get(queue)
    equal((got.body, got.redelivered), (b"x", True), "what was requeued")
    reply = other.call("queue.declare", queue=queue, passive=True)
    equal(reply.number("consumer_count"), 0, "consumers")


for _what, _queue_arguments, _consumer_arguments in (
    ("the queue's argument", IMPATIENT, {}),
    ("the consumer's argument", {}, IMPATIENT),
    ("the consumer's argument before the queue's", {"x-consumer-timeout": 3_600_000}, IMPATIENT),
):
    case(
        "CONS-71",
        says=f"by {_what}: cancelled with no-wait, its deliveries requeued",
        mark="≡4",
        slow=True,
    )(partial(_cancelled, _queue_arguments, _consumer_arguments))


@case(
    "CONS-71",
    says="all outstanding of that consumer are requeued in order, their tags unknown",
    mark="≡4",
    slow=True,
)
def all_are_requeued(stage: Stage) -> None:
    channel, other = stage.channel(), stage.channel()
    queue = stage.queue(channel, arguments=IMPATIENT)
    stage.load(channel, queue, "a", "b", "c", "d")
    channel.consume(queue)
    tags = [event.tag for event in channel.deliveries(4)]
    channel.ack(tags[1])
    channel.wait("basic.cancel")
    other.holds(queue, 3)
    equal(other.drain(queue), ["a", "c", "d"], "requeued")
    text = f"PRECONDITION_FAILED - unknown delivery tag {tags[0]}"
    with channel.soft(406, text, "basic.ack"):
        channel.ack(tags[0])


@case(
    "CONS-71",
    says="other consumers of the channel go on, with what they hold",
    mark="≡4",
    slow=True,
)
def others_go_on(stage: Stage) -> None:
    channel = stage.channel()
    late, fine = stage.queue(channel, arguments=IMPATIENT), stage.queue(channel)
    tag = channel.consume(late)
    channel.consume(fine, tag="fine")
    for queue in (fine, late):
        channel.publish("", queue, queue)
    held = {event.body.decode(): event.tag for event in channel.deliveries(2)}
    equal(channel.wait("basic.cancel").text("consumer_tag"), tag, "cancelled")
    channel.publish("", fine, "more")
    equal(channel.bodies(1), ["more"], "delivery to the other one")
    channel.ack(held[fine])
    channel.sync()


@case("CONS-71", says="requeued to another consumer that is ready", mark="≡4", slow=True)
def to_another(stage: Stage) -> None:
    channel, other = stage.channel(), stage.channel()
    queue = stage.queue(channel, arguments=IMPATIENT)
    channel.call("basic.qos", prefetch_count=1)
    channel.consume(queue)
    channel.publish("", queue, "x")
    channel.deliver()
    other.consume(queue, no_ack=True)
    event = other.deliver()
    equal((event.body, event.redelivered), (b"x", True), "redelivery")
    channel.wait("basic.cancel")


@case("CONS-71", says="the next single active consumer takes over", mark="≡4", slow=True)
def next_active(stage: Stage) -> None:
    channel, other = stage.channel(), stage.channel()
    arguments: Table = {"x-single-active-consumer": True, **IMPATIENT}
    queue = stage.queue(channel, arguments=arguments)
    channel.consume(queue)
    other.consume(queue, no_ack=True)
    channel.publish("", queue, "x")
    channel.deliver()
    channel.wait("basic.cancel")
    equal(other.bodies(1), ["x"], "delivery to the next one")


# --- it is not ------------------------------------------------------------------------------


def _off(queue_arguments: Table, consumer_arguments: Table, stage: Stage) -> None:
    channel = stage.channel()
    queue = stage.queue(channel, arguments=queue_arguments)
    channel.consume(queue, arguments=consumer_arguments)
    channel.publish("", queue, "x")
    event = channel.deliver()
    _is_patient(channel)
    channel.ack(event.tag)
    channel.sync()


for _what, _queue_arguments, _consumer_arguments in (
    ("0 at the queue", {"x-consumer-timeout": 0}, {}),
    ("0 at the consumer, before the queue's value", IMPATIENT, {"x-consumer-timeout": 0}),
):
    case("CONS-70", says=f"{_what} is off", mark="≡4", slow=True)(
        partial(_off, _queue_arguments, _consumer_arguments)
    )
case("CONS-70", says="off by default, as far as a case can wait", slow=True)(partial(_off, {}, {}))


@case("CONS-70", says="whoever acknowledges in time is left alone", mark="≡4", slow=True)
def in_time(stage: Stage) -> None:
    channel = stage.channel()
    # All together take longer than one may until it is noticed, and each far less.
    queue = stage.queue(channel, arguments={"x-consumer-timeout": 4000})
    channel.call("basic.qos", prefetch_count=1)
    channel.consume(queue)
    for _ in range(24):
        channel.publish("", queue, "x")
        event = channel.deliver()
        channel.quiet("basic.cancel", "channel.close", seconds=0.3)
        channel.ack(event.tag)
    channel.sync()


@case("CONS-70", says="no-ack deliveries have no clock", mark="≡4", slow=True)
def no_ack(stage: Stage) -> None:
    channel = stage.channel()
    queue = stage.queue(channel, arguments=IMPATIENT)
    channel.consume(queue, no_ack=True)
    channel.publish("", queue, "x")
    channel.deliver()
    _is_patient(channel)


@case("CONS-70", says="what waits in the queue has no clock", mark="≡4", slow=True)
def ready_has_no_clock(stage: Stage) -> None:
    channel = stage.channel()
    queue = stage.queue(channel, arguments=IMPATIENT)
    stage.load(channel, queue, "x")
    _is_patient(channel)
    channel.consume(queue)
    channel.ack(channel.deliver().tag)
    channel.sync()


# --- the channel is closed ------------------------------------------------------------------


@case(
    "CONS-72",
    says="without consumer_cancel_notify: soft 406 with ids 0,0, once, all requeued",
    mark="≡4",
    slow=True,
)
def without_capability(stage: Stage) -> None:
    channel, other = _plain_client(stage), stage.channel()
    queue = stage.queue(other, arguments=IMPATIENT)
    stage.load(other, queue, "a", "b")
    channel.consume(queue)
    channel.deliveries(2)
    close = channel.wait("channel.close")
    got = (close.number("reply_code"), close.number("class_id"), close.number("method_id"))
    equal(got, (406, 0, 0), "code and ids")
    equal(close.text("reply_text"), _too_late(1), "text")
    # Close-ok is late on purpose: a second close would come meanwhile.
    channel.quiet("channel.close", "basic.cancel", seconds=2 * TIMEOUT_MS / 1000)
    channel.send("channel.close_ok")
    other.holds(queue, 2)
    channel.reopen()
    got_back = [other.get(queue) for _ in range(2)]
    equal([event.body for event in got_back], [b"a", b"b"], "requeued")
    check(all(event.redelivered for event in got_back), "not marked as redelivered")


@case("CONS-72", says="an unacknowledged get: soft 406 with ids 0,0", mark="≡4", slow=True)
def get(stage: Stage) -> None:
    channel, other = stage.connect().channel(7), stage.channel()
    queue = stage.queue(other, arguments=IMPATIENT)
    stage.load(other, queue, "x")
    channel.get(queue, no_ack=False)
    with channel.soft(406, _too_late(7), None):
        pass
    other.holds(queue, 1)
    check(other.get(queue).redelivered, "not marked as redelivered")


# --- the arguments --------------------------------------------------------------------------


def _bad(value: Plain, why: str, stage: Stage) -> None:
    channel = stage.channel()
    queue = stage.queue(channel)
    text = (
        "PRECONDITION_FAILED - invalid arg 'x-consumer-timeout' for "
        f"{stage.the_queue(queue)}: {why}"
    )
    with channel.soft(406, text, "basic.consume"):
        channel.consume(queue, arguments={"x-consumer-timeout": value})


for _value, _why in (
    ("soon", '"expected integer, got longstr"'),
    (True, '"expected integer, got bool"'),
    (-1, "{value_negative,-1}"),
):
    case("CONS-06", says=f"x-consumer-timeout={_value!r} is soft 406: {_why}", mark="≡4")(
        partial(_bad, _value, _why)
    )
