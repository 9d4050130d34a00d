"""Section CONS 11.5: direct reply-to."""

from __future__ import annotations

from typing import Final

from vouchmq.conformance.case import case
from vouchmq.conformance.client import Channel
from vouchmq.conformance.expect import check, equal, eventually
from vouchmq.conformance.stage import Stage

REPLY_TO: Final = "amq.rabbitmq.reply-to"


def request(stage: Stage, client: Channel) -> tuple[Channel, str]:
    """A request from a client that has its reply consumer: the server's channel and reply name."""
    server = stage.channel()
    queue = stage.queue(server)
    client.publish("", queue, "request", reply_to=REPLY_TO)
    server.holds(queue, 1)
    return server, str(server.get(queue).properties["reply_to"])


def caller(stage: Stage) -> Channel:
    """A channel with a reply consumer."""
    client = stage.channel()
    client.consume(REPLY_TO, no_ack=True, tag="replies")
    return client


@case("CONS-60", says="a reply consumer with acks is soft 406")
def reply_needs_no_ack(stage: Stage) -> None:
    channel = stage.channel()
    text = "PRECONDITION_FAILED - reply consumer cannot acknowledge"
    with channel.soft(406, text, "basic.consume"):
        channel.consume(REPLY_TO)


@case("CONS-60", says="a second reply consumer on a channel is soft 406")
def second_reply_consumer(stage: Stage) -> None:
    channel = caller(stage)
    text = "PRECONDITION_FAILED - reply consumer already set"
    with channel.soft(406, text, "basic.consume"):
        channel.consume(REPLY_TO, no_ack=True)


@case("CONS-61", says="declaring the pseudo queue, passive or not: 0 messages, 1 consumer")
def declare_pseudo_queue(stage: Stage) -> None:
    channel = stage.channel()
    for passive in (True, False):
        reply = channel.call("queue.declare", queue=REPLY_TO, passive=passive)
        counts = (reply.number("message_count"), reply.number("consumer_count"))
        equal((reply.text("queue"), counts), (REPLY_TO, (0, 1)), "declare-ok")


@case("CONS-62", says="the request shows a generated name in reply-to")
def generated_name(stage: Stage) -> None:
    client = caller(stage)
    _, name = request(stage, client)
    check(name.startswith(REPLY_TO + "."), f"reply-to is {name!r}")
    check(len(name) > len(REPLY_TO) + 16, f"reply-to is {name!r}")


@case("CONS-62", says="a request without a reply consumer is soft 406")
def request_without_consumer(stage: Stage) -> None:
    channel = stage.channel()
    text = "PRECONDITION_FAILED - fast reply consumer does not exist"
    with channel.soft(406, text, "basic.publish"):
        channel.publish("", "nowhere", "x", reply_to=REPLY_TO)


@case("CONS-62", says="the name is bound to the channel: a request on another channel fails")
def reply_consumer_is_per_channel(stage: Stage) -> None:
    client = caller(stage)
    other = client.connection.channel(2)
    with other.soft(406, None, "basic.publish"):
        other.publish("", "nowhere", "x", reply_to=REPLY_TO)


@case("CONS-63", says="a reply to the generated name comes straight to the caller")
def reply(stage: Stage) -> None:
    client = caller(stage)
    server, name = request(stage, client)
    for body in ("one", "two"):
        server.publish("", name, body, correlation_id="7")
        event = client.deliver()
        equal((event.body.decode(), event.text("consumer_tag")), (body, "replies"), "reply")
        equal((event.text("exchange"), event.text("routing_key")), ("", name), "address")
        equal(event.properties, {"correlation_id": "7"}, "properties")


@case("CONS-63", says="the name dies with the consumer's cancel")
def name_dies(stage: Stage) -> None:
    client = caller(stage)
    server, name = request(stage, client)
    client.call("basic.cancel", consumer_tag="replies")
    server.publish("", name, "late")
    server.sync()
    client.quiet("basic.deliver")


@case("CONS-64", says="declare of a live generated name: 0 messages, 1 consumer; of a dead one 404")
def declare_generated_name(stage: Stage) -> None:
    client = caller(stage)
    server, name = request(stage, client)
    for passive in (True, False):
        ok = server.call("queue.declare", queue=name, passive=passive)
        equal((ok.number("message_count"), ok.number("consumer_count")), (0, 1), "counts")
    client.close()

    def code() -> int:
        server.send("queue.declare", queue=name, passive=True)
        event = server.wait("queue.declare_ok", "channel.close")
        if event.name == "queue.declare_ok":
            return 0
        server.send("channel.close_ok")
        server.reopen()
        return event.number("reply_code")

    eventually(code, 404, "code of a declare of the dead name")


@case("CONS-64", says="get and consume on a generated name are soft 404, delete is delete-ok(0)")
def other_methods_on_generated_name(stage: Stage) -> None:
    client = caller(stage)
    server, name = request(stage, client)
    text = f"NOT_FOUND - no {stage.the_queue(name)}"
    server.soft_again(404, text, "basic.get", queue=name)
    server.soft_again(404, text, "basic.consume", queue=name, no_ack=True)
    equal(server.call("queue.delete", queue=name).number("message_count"), 0, "deleted messages")
    server.publish("", name, "still there")
    equal(client.deliver().body, b"still there", "reply")


@case("CONS-65", says="mandatory to a live reply name: delivered, no return", mark="≠")
def mandatory_reply(stage: Stage) -> None:
    client = caller(stage)
    server, name = request(stage, client)
    server.publish("", name, "x", mandatory=True)
    equal(client.deliver().body, b"x", "reply")
    server.sync()
    server.quiet("basic.return", seconds=0.1)


@case("PUB-25", says="mandatory to a dead reply name is returned")
def mandatory_dead_reply(stage: Stage) -> None:
    client = caller(stage)
    server, name = request(stage, client)
    client.call("basic.cancel", consumer_tag="replies")
    server.publish("", name, "x", mandatory=True)
    equal(server.wait("basic.return").number("reply_code"), 312, "return")
