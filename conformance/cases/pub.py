"""Section PUB: checks on publish, CC and BCC, mandatory, immediate."""

from __future__ import annotations

from functools import partial

from vouchmq.conformance import wire
from vouchmq.conformance.case import case
from vouchmq.conformance.client import Channel
from vouchmq.conformance.expect import check, equal
from vouchmq.conformance.stage import Stage
from vouchmq.conformance.wire import Plain, Typed


def _expiration(text: str, why: str, stage: Stage) -> None:
    channel = stage.channel()
    queue = stage.queue(channel)
    with channel.soft(
        406, f"PRECONDITION_FAILED - invalid expiration '{text}': {why}", "basic.publish"
    ):
        channel.publish("", queue, "x", expiration=text)


for _text, _why in (
    ("", "no_integer"),
    ("soon", "no_integer"),
    (" 5", "no_integer"),
    ("5s", '{leftover_string,"s"}'),
    ("5.5", '{leftover_string,".5"}'),
    ("5 ", '{leftover_string," "}'),
    ("-1", "{value_negative,-1}"),
    ("315360000001", "{value_too_large,315360000001}"),
):
    case("PUB-05", says=f"expiration '{_text}' is soft 406: {_why}")(
        partial(_expiration, _text, _why)
    )


@case("PUB-01", says="a missing exchange is soft 404, ids of publish")
def missing_exchange(stage: Stage) -> None:
    channel = stage.channel()
    name = stage.name("x")
    with channel.soft(404, f"NOT_FOUND - no {stage.the_exchange(name)}", "basic.publish"):
        channel.publish(name, "k", "x")


@case("PUB-01", says="the exchange is looked up before expiration, CC and user-id are checked")
def exchange_is_first(stage: Stage) -> None:
    channel = stage.channel()
    name = stage.name("x")
    with channel.soft(404, None, "basic.publish"):
        channel.publish(name, "k", "x", expiration="soon", user_id="nobody", headers={"CC": "text"})


@case("PUB-03", says="a missing exchange is noticed when the content is complete")
def noticed_when_complete(stage: Stage) -> None:
    channel = stage.channel()
    name = stage.name("x")
    channel.send("basic.publish", exchange=name)
    channel.connection.send(
        wire.frame(wire.HEADER, 1, wire.header_payload(2, wire.encode_properties()))
    )
    channel.connection.send(wire.frame(wire.BODY, 1, b"a"))
    channel.quiet("channel.close", seconds=0.2)
    with channel.soft(404, None, "basic.publish"):
        channel.connection.send(wire.frame(wire.BODY, 1, b"b"))


@case("PUB-02", says="publishes before a failing one are stored, the failing one gets no confirm")
def failing_publish(stage: Stage) -> None:
    channel = stage.confirming()
    watcher = stage.channel()
    queue = stage.queue(watcher)
    channel.publish("", queue, "before")
    channel.publish(stage.name("x"), "", "failing")
    channel.publish("", queue, "after")
    channel.wait("channel.close")
    channel.connection.listen(0.2)
    for event in channel.connection.inbox(1):
        if event.name in ("basic.ack", "basic.nack"):
            equal((event.name, event.tag), ("basic.ack", 1), "confirm")
    watcher.holds(queue, 1)
    equal(watcher.drain(queue), ["before"], "bodies")


@case("PUB-06", says="user-id of the authenticated user passes")
def own_user_id(stage: Stage) -> None:
    channel = stage.channel()
    queue = stage.queue(channel)
    channel.publish("", queue, "x", user_id=stage.target.user)
    channel.holds(queue, 1)
    equal(channel.get(queue).properties["user_id"], stage.target.user, "user-id")


def _user_id(claimed: str, stage: Stage) -> None:
    channel = stage.channel()
    text = (
        f"PRECONDITION_FAILED - user_id property set to '{claimed}' but authenticated user was "
        f"'{stage.target.user}'"
    )
    with channel.soft(406, text, "basic.publish"):
        channel.publish("", "nowhere", "x", user_id=claimed)


for _claimed in ("somebody-else", ""):
    case("PUB-06", says=f"user-id '{_claimed}' is soft 406")(partial(_user_id, _claimed))


@case("PUB-07", says="delivery-mode 1, 2 and none are relayed unchanged")
def delivery_modes(stage: Stage) -> None:
    channel = stage.channel()
    queue = stage.queue(channel)
    for mode in (1, 2):
        channel.publish("", queue, "x", delivery_mode=mode)
        channel.holds(queue, 1)
        equal(channel.get(queue).properties, {"delivery_mode": mode}, "properties")
    channel.publish("", queue, "x")
    channel.holds(queue, 1)
    equal(channel.get(queue).properties, {}, "properties")


@case(
    "PUB-07",
    says="any other delivery-mode is transient and relayed unchanged",
    referee_reason="C-49: 406 invalid message: {delivery_mode_unknown,0}",
)
def odd_delivery_modes(stage: Stage) -> None:
    channel = stage.channel()
    queue = stage.queue(channel)
    for mode in (0, 3, 255):
        channel.publish("", queue, "x", delivery_mode=mode)
        channel.holds(queue, 1)
        equal(channel.get(queue).properties, {"delivery_mode": mode}, "properties")


@case("PUB-08", says="the broker adds no timestamp and touches no other property")
def nothing_is_added(stage: Stage) -> None:
    channel = stage.channel()
    queue = stage.queue(channel)
    block = wire.encode_properties(content_type="x", message_id="m", app_id="a")
    channel.publish("", queue, "x", block=block)
    channel.holds(queue, 1)
    equal(channel.get(queue).block, block, "property block")


# --- CC and BCC -----------------------------------------------------------------------------


def _bad_copies(key: str, value: Plain, kind: str, stage: Stage) -> None:
    channel = stage.channel()
    text = f'PRECONDITION_FAILED - invalid message: {{unacceptable_type_in_header,"{key}",{kind}}}'
    with channel.soft(406, text, "basic.publish"):
        channel.publish("", "nowhere", "x", headers={key: value})


for _key, _value, _kind in (
    ("CC", "text", "longstr"),
    ("BCC", "text", "longstr"),
    ("CC", Typed("I", 1), "signedint"),
    ("BCC", None, "void"),
):
    case("PUB-10", says=f"{_key} of type {_kind} is soft 406")(
        partial(_bad_copies, _key, _value, _kind)
    )


@case("PUB-10", says="elements of CC that are not longstrs are ignored")
def odd_elements(stage: Stage) -> None:
    channel = stage.channel()
    first, second = stage.queue(channel), stage.queue(channel)
    channel.publish("", first, "x", headers={"CC": [1, None, second, True]})
    channel.holds(first, 1)
    channel.holds(second, 1)


@case("PUB-10", says="BCC is removed, CC and all other headers stay; the key is the primary one")
def copies_in_delivery(stage: Stage) -> None:
    channel = stage.channel()
    first, second = stage.queue(channel), stage.queue(channel)
    headers: wire.Table = {"a": 1, "CC": [second], "BCC": [second], "z": "last"}
    channel.publish("", first, "x", headers=headers)
    for queue in (first, second):
        channel.holds(queue, 1)
        got = channel.get(queue)
        equal(got.headers, {"a": 1, "CC": [second], "z": "last"}, "headers")
        equal(got.text("routing_key"), first, "routing key")


@case("PUB-11", says="mandatory: no return if one of all keys routes")
def mandatory_with_copies(stage: Stage) -> None:
    channel = stage.channel()
    queue = stage.queue(channel)
    channel.publish("", "nowhere", "x", mandatory=True, headers={"BCC": [queue]})
    channel.holds(queue, 1)
    check(not channel.connection.inbox(1), "the message was returned")


@case("PUB-11", says="mandatory: one return with the primary key, its headers without BCC")
def return_with_copies(stage: Stage) -> None:
    channel = stage.channel()
    headers: wire.Table = {"CC": ["nowhere 2"], "BCC": ["nowhere 3"]}
    channel.publish("", "nowhere", "x", mandatory=True, headers=headers)
    channel.sync()
    event = channel.wait("basic.return")
    equal(event.text("routing_key"), "nowhere", "routing key")
    equal(event.headers, {"CC": ["nowhere 2"]}, "headers")
    check(not channel.connection.inbox(1), "more than one return")


# --- mandatory --------------------------------------------------------------------------------


@case("PUB-20", says="mandatory without a route: return 312 NO_ROUTE with the whole message")
def unroutable(stage: Stage) -> None:
    channel = stage.channel()
    exchange = stage.exchange(channel, "direct")
    block = wire.encode_properties(message_id="m", headers={"a": [1]}, delivery_mode=2)
    channel.publish(exchange, "no key", b"b" * 300, mandatory=True, block=block)
    event = channel.wait("basic.return")
    equal((event.number("reply_code"), event.text("reply_text")), (312, "NO_ROUTE"), "code, text")
    equal((event.text("exchange"), event.text("routing_key")), (exchange, "no key"), "address")
    equal((event.block, event.body), (block, b"b" * 300), "content")


@case("PUB-20", says="the return comes on the publishing channel, others see nothing")
def return_on_its_channel(stage: Stage) -> None:
    connection = stage.connect()
    first, second = connection.channel(1), connection.channel(2)
    second.publish("", "nowhere", "x", mandatory=True)
    second.wait("basic.return")
    first.sync()
    check(not connection.inbox(1), "channel 1 was told")


@case("PUB-21", says="the return comes before the confirm")
def return_before_confirm(stage: Stage) -> None:
    channel = stage.confirming()
    for number in (1, 2, 3):
        channel.publish("", "nowhere", "x", mandatory=True)
        first = channel.wait("basic.return", "basic.ack")
        equal(first.name, "basic.return", "first event")
        equal(channel.wait("basic.ack").tag, number, "confirm")


@case("PUB-22", says="not mandatory and no route: dropped, confirmed with ack")
def dropped(stage: Stage) -> None:
    channel = stage.confirming()
    channel.publish("amq.direct", stage.name("no key"), "x")
    equal(channel.confirms(1), {1: "ack"}, "confirm")
    check(not channel.connection.inbox(1), "something else came")


# --- immediate --------------------------------------------------------------------------------


def _immediate(channel: Channel, queue: str, body: str, *, mandatory: bool = False) -> None:
    channel.publish("", queue, body, immediate=True, mandatory=mandatory)


def _returned(channel: Channel, code: int, name: str) -> None:
    event = channel.wait("basic.return")
    equal((event.number("reply_code"), event.text("reply_text")), (code, name), "return")


@case("PUB-30", says="immediate: a queue with an idle consumer takes it", mark="+")
def immediate_is_delivered(stage: Stage) -> None:
    channel = stage.channel()
    queue = stage.queue(channel)
    channel.consume(queue)
    _immediate(channel, queue, "now")
    equal(channel.bodies(1), ["now"], "delivery")


def _refused_immediately(why: str, stage: Stage) -> None:
    channel, other = stage.channel(), stage.channel()
    queue = stage.queue(channel)
    ready = 0
    if why == "the consumer is at its prefetch limit":
        other.call("basic.qos", prefetch_count=1)
        other.consume(queue)
        channel.publish("", queue, "fills the window")
        other.deliver()
    elif why == "the queue has ready messages":
        stage.load(channel, queue, "waiting")
        ready = 1
    elif why == "channel.flow is off":
        other.consume(queue)
        other.call("channel.flow", active=False)
    _immediate(channel, queue, "now")
    _returned(channel, 313, "NO_CONSUMERS")
    equal(channel.count(queue), ready, "ready messages")


for _why in (
    "there is no consumer",
    "the consumer is at its prefetch limit",
    "the queue has ready messages",
    "channel.flow is off",
):
    case("PUB-32", says=f"immediate: return 313 NO_CONSUMERS when {_why}", mark="+")(
        partial(_refused_immediately, _why)
    )


@case("PUB-31", says="immediate: of several queues only those that can take it get it", mark="+")
def immediate_to_some(stage: Stage) -> None:
    channel = stage.channel()
    exchange = stage.exchange(channel, "fanout")
    served, idle = stage.bound(channel, exchange), stage.bound(channel, exchange)
    channel.consume(served)
    channel.publish(exchange, "", "now", immediate=True)
    equal(channel.bodies(1), ["now"], "delivery")
    equal(channel.count(idle), 0, "messages in the queue without consumer")
    check(not channel.connection.inbox(1), "the message was returned, too")


@case("PUB-33", says="mandatory and immediate: no route is 312, nobody now is 313", mark="+")
def mandatory_and_immediate(stage: Stage) -> None:
    channel = stage.channel()
    queue = stage.queue(channel)
    _immediate(channel, "nowhere", "x", mandatory=True)
    _returned(channel, 312, "NO_ROUTE")
    _immediate(channel, queue, "x", mandatory=True)
    _returned(channel, 313, "NO_CONSUMERS")
    _immediate(channel, "nowhere", "x")
    _returned(channel, 313, "NO_CONSUMERS")


@case("PUB-34", says="a delivered immediate message can be requeued", mark="+")
def immediate_is_ordinary(stage: Stage) -> None:
    channel = stage.channel()
    queue = stage.queue(channel)
    tag = channel.consume(queue)
    _immediate(channel, queue, "now")
    event = channel.deliver()
    channel.call("basic.cancel", consumer_tag=tag)
    channel.nack(event.tag)
    channel.holds(queue, 1)
    check(channel.get(queue).redelivered, "not marked as redelivered")


@case("PUB-35", says="immediate messages are confirmed, returned ones after the return", mark="+")
def immediate_is_confirmed(stage: Stage) -> None:
    channel = stage.confirming()
    queue = stage.queue(channel, durable=True)
    channel.publish("", queue, "x", immediate=True, delivery_mode=2)
    first = channel.wait("basic.return", "basic.ack")
    equal(first.name, "basic.return", "first event")
    equal(channel.wait("basic.ack").tag, 1, "confirm")
    channel.consume(queue)
    channel.publish("", queue, "x", immediate=True, delivery_mode=2)
    equal(channel.wait("basic.ack").tag, 2, "confirm of the delivered one")
