"""Section FRAME: frames that are wrong, and contents that come out of step."""

from __future__ import annotations

import struct
from functools import partial
from typing import Final

from vouchmq.conformance import wire
from vouchmq.conformance.case import case
from vouchmq.conformance.client import Channel
from vouchmq.conformance.expect import Starting, Text, equal
from vouchmq.conformance.stage import Stage
from vouchmq.conformance.wire import BODY, HEADER, HEARTBEAT, METHOD, Raw

UNEXPECTED: Final = "UNEXPECTED_FRAME - expected "
NO_PROPERTIES: Final = Raw(b"\0\0")
CEILING: Final = 512 * 1024 * 1024
DEFAULT_MAX_MESSAGE_SIZE: Final = 128 * 1024 * 1024


def header(
    size: int, *, block: bytes = NO_PROPERTIES, class_id: int = 60, weight: int = 0
) -> bytes:
    """A content header frame on channel 1."""
    return wire.frame(HEADER, 1, wire.header_payload(size, block, class_id=class_id, weight=weight))


def body(octets: bytes) -> bytes:
    """A body frame on channel 1."""
    return wire.frame(BODY, 1, octets)


def publish(key: str = "nowhere") -> bytes:
    """A basic.publish to the default exchange on channel 1."""
    return wire.method(1, "basic.publish", routing_key=key)


def _breaks(octets: bytes, code: int, text: Text, at_fault: str | None, stage: Stage) -> None:
    """These octets, sent on a connection with channel 1 open, must end it like this."""
    connection = stage.connect(frame_max=4096)
    connection.channel()
    with connection.hard(code, text, at_fault):
        connection.send(octets)


def _broken(
    rule: str,
    octets: bytes,
    code: int,
    text: Text,
    at_fault: str | None,
    *,
    says: str,
    **options: str,
) -> None:
    """Register a case of `_breaks`."""
    register = case(rule, says=says, **options)  # type: ignore[arg-type]
    register(partial(_breaks, octets, code, text, at_fault))


# --- frames -------------------------------------------------------------------------------


@case("FRAME-10", says="eight octets more than frame_max allows are tolerated")
def frame_tolerance(stage: Stage) -> None:
    channel = stage.connect(frame_max=4096).channel()
    queue = stage.queue(channel)
    channel.connection.send(publish(queue) + header(4096) + body(b"x" * 4096))
    channel.holds(queue, 1)
    equal(len(channel.get(queue).body), 4096, "octets of the body")


_broken(
    "FRAME-10",
    struct.pack(">BHI", BODY, 1, 4097),
    501,
    "FRAME_ERROR - type 3, all octets = <<>>: {frame_too_large,4097,4088}",
    None,
    says="one octet more is hard 501, from the frame header alone",
)
_broken(
    "FRAME-10",
    struct.pack(">BHI", METHOD, 1, 2**32 - 1),
    501,
    "FRAME_ERROR - type 1, all octets = <<>>: {frame_too_large,4294967295,4088}",
    None,
    says="the largest size a frame can claim is hard 501",
)


@case("FRAME-11", says="clients that send junk disturb no other client")
def hostile_neighbours(stage: Stage) -> None:
    channel, reader = stage.confirming(), stage.channel()
    queue = stage.queue(channel, durable=True)
    reader.consume(queue)
    for number in range(60):
        junk = stage.connect()
        junk.channel()
        junk.send(
            (
                wire.frame(METHOD, 1, bytes(range(number + 4)), end=number),
                publish(queue) + header(100) + body(b"x" * 50) + publish(queue),
                struct.pack(">BHI", number, number, number << 20),
            )[number % 3]
        )
        channel.publish("", queue, str(number), delivery_mode=2)
        if number % 2:
            junk.drop()
    equal(channel.confirms(60), dict.fromkeys(range(1, 61), "ack"), "confirms")
    equal(reader.bodies(60), [str(number) for number in range(60)], "deliveries")


_broken(
    "FRAME-11",
    wire.frame(METHOD, 1, b"junk", end=0),
    501,
    Starting("FRAME_ERROR - type 1, all octets = "),
    None,
    says="a short frame without CE at its end is hard 501",
)
_broken(
    "FRAME-11",
    wire.frame(BODY, 1, bytes(40), end=0x41),
    501,
    Starting("FRAME_ERROR - type 3, first 16 octets = "),
    None,
    says="a longer frame without CE at its end shows its first 16 octets",
)
for _kind in (0, 4, 5, 7, 9, 255):
    _broken(
        "FRAME-13",
        wire.frame(_kind, 1, b""),
        501,
        f"FRAME_ERROR - type {_kind}, all octets = <<>>: unknown_frame",
        None,
        says=f"frame type {_kind} is hard 501",
    )
for _what, _octets, _kind in (
    ("a method of three octets", wire.frame(METHOD, 1, b"\0\x32\0"), METHOD),
    ("an empty method frame", wire.frame(METHOD, 1, b""), METHOD),
    ("a content header of eleven octets", wire.frame(HEADER, 1, bytes(11)), HEADER),
    ("a heartbeat with a payload", wire.frame(HEARTBEAT, 0, b"x"), HEARTBEAT),
):
    _broken(
        "FRAME-14",
        _octets,
        501,
        Starting(f"FRAME_ERROR - type {_kind}, all octets = "),
        None,
        says=f"{_what} is hard 501",
    )

_broken(
    "FRAME-14",
    publish() + header(0, block=b"\0"),
    501,
    Starting("FRAME_ERROR - type 2, all octets = "),
    None,
    says="a content header that ends within its flags is hard 501",
    mark="≠",
)

_DECLARE: Final = wire.method_payload("queue.declare", queue="x")
for _what, _payload, _method in (
    ("arguments cut short", _DECLARE[:-3], "queue.declare"),
    ("no arguments at all", _DECLARE[:4], "queue.declare"),
    ("a string longer than its frame", _DECLARE[:6] + b"\xffx", "queue.declare"),
    ("a table longer than its frame", _DECLARE[:-4] + b"\0\0\0\x09", "queue.declare"),
    ("octets after the last argument", _DECLARE + b"\0", "queue.declare"),
    (
        "an unknown field type in a table",
        wire.method_payload("queue.declare", arguments=Raw(b"\0\0\0\x03\x01kZ")),
        "queue.declare",
    ),
):
    _broken(
        "FRAME-15",
        wire.frame(METHOD, 1, _payload),
        501,
        Starting("FRAME_ERROR - cannot decode "),
        _method,
        says=f"{_what}: hard 501 with the ids of the method",
        referee_reason="C-13: the reader crashes" if "unknown" in _what else "",
    )


def _unknown_method(class_id: int, method_id: int, stage: Stage) -> None:
    connection = stage.connect()
    connection.channel()
    connection.send(wire.frame(METHOD, 1, struct.pack(">HH", class_id, method_id)))
    text = f"NOT_IMPLEMENTED - unknown method {class_id}.{method_id}"
    event = connection.wait(0, "connection.close")
    got = (event.number("reply_code"), event.text("reply_text"))
    equal(got, (540, text), "code and text")
    equal((event.number("class_id"), event.number("method_id")), (class_id, method_id), "ids")


for _class, _method_id in ((60, 99), (61, 10), (0, 0), (65535, 65535)):
    case("FRAME-16", says=f"method {_class}.{_method_id} is hard 540 with these ids", mark="≠")(
        partial(_unknown_method, _class, _method_id)
    )

for _name in (
    "channel.open_ok",
    "channel.flow_ok",
    "exchange.declare_ok",
    "queue.declare_ok",
    "basic.qos_ok",
    "basic.consume_ok",
    "basic.return",
    "basic.deliver",
    "basic.get_ok",
    "basic.get_empty",
    "basic.recover_ok",
    "confirm.select_ok",
    "tx.commit_ok",
):
    # Those that carry content are judged when the content is there, at the latest.
    _tail = header(0) if _name in ("basic.return", "basic.deliver", "basic.get_ok") else b""
    _broken(
        "FRAME-17",
        wire.method(1, _name) + _tail,
        503,
        "COMMAND_INVALID - unimplemented method",
        _name,
        says=f"{_name} from a client is hard 503",
    )


# --- content ------------------------------------------------------------------------------

_NOT_A_METHOD: Final = UNEXPECTED + "method frame, got non method frame instead"
_NOT_A_HEADER: Final = (
    UNEXPECTED + "content header for class 60, got non content header frame instead"
)
_NOT_A_BODY: Final = UNEXPECTED + "content body, got non content body frame instead"
_QOS: Final = wire.method(1, "basic.qos")
for _rule, _what, _octets, _text, _fault in (
    ("FRAME-30", "a header without a publish", header(0), _NOT_A_METHOD, None),
    ("FRAME-30", "a body without a publish", body(b"x"), _NOT_A_METHOD, None),
    ("FRAME-31", "a method after publish", publish() + _QOS, _NOT_A_HEADER, "basic.publish"),
    (
        "FRAME-31",
        "a second publish after publish",
        publish() + publish(),
        _NOT_A_HEADER,
        "basic.publish",
    ),
    ("FRAME-31", "a body after publish", publish() + body(b"x"), _NOT_A_HEADER, "basic.publish"),
    (
        "FRAME-31",
        "a header with weight 1",
        publish() + header(0, weight=1),
        _NOT_A_HEADER,
        "basic.publish",
    ),
    (
        "FRAME-32",
        "a header of class 50",
        publish() + header(0, class_id=50),
        UNEXPECTED + "content header for class 60, got one for class 50 instead",
        "basic.publish",
    ),
    (
        "FRAME-33",
        "a method while octets are missing",
        publish() + header(2) + body(b"x") + _QOS,
        _NOT_A_BODY,
        "basic.publish",
    ),
    (
        "FRAME-33",
        "a header while octets are missing",
        publish() + header(2) + header(2),
        _NOT_A_BODY,
        "basic.publish",
    ),
    (
        "FRAME-37",
        "an empty body frame after a message of size 0",
        publish() + header(0) + body(b""),
        _NOT_A_METHOD,
        None,
    ),
):
    _broken(_rule, _octets, 505, _text, _fault, says=f"{_what} is hard 505")

_broken(
    "FRAME-34",
    publish() + header(3) + body(b"four"),
    501,
    "FRAME_ERROR - content body frame exceeds remaining content size",
    "basic.publish",
    says="a body frame longer than what is missing is hard 501",
    mark="≡4",
)
for _size in (CEILING + 1, 2**64 - 1):
    _broken(
        "FRAME-35",
        publish() + header(_size),
        501,
        f"FRAME_ERROR - content body size {_size} exceeds maximum allowed size {CEILING}",
        "basic.publish",
        says=f"a body size of {_size} is hard 501 at the header",
        mark="≡4",
    )
for _what, _block in (
    ("a shortstr that is not there", b"\x80\0"),
    ("a shortstr longer than its frame", b"\x80\0\x09text"),
    ("a timestamp of four octets", b"\0\x40\0\0\0\0"),
    ("a table longer than its frame", b"\x20\0\0\0\0\x09"),
    ("octets after the last property", b"\0\0\0"),
    ("the continuation flag", b"\0\x01\0\0"),
):
    _broken(
        "FRAME-36",
        publish() + header(0, block=_block),
        501,
        Starting("FRAME_ERROR - "),
        "basic.publish",
        says=f"property block with {_what}: hard 501",
        mark="≠",
    )


@case("FRAME-30", says="other channels and heartbeats may interleave with a content")
def contents_interleave(stage: Stage) -> None:
    connection = stage.connect()
    first, second = connection.channel(1), connection.channel(2)
    queue = stage.queue(first)
    connection.send(publish(queue) + header(4) + body(b"ab"))
    connection.send(wire.frame(HEARTBEAT, 0, b""))
    second.publish("", queue, "between")
    equal(second.call("queue.declare", queue=queue, passive=True).text("queue"), queue, "queue")
    second.holds(queue, 1)
    connection.send(body(b"cd"))
    first.holds(queue, 2)
    equal(first.drain(queue), ["between", "abcd"], "bodies")


@case("FRAME-33", says="frames may come octet by octet")
def octet_by_octet(stage: Stage) -> None:
    channel = stage.channel()
    queue = stage.queue(channel)
    octets = publish(queue) + header(5) + body(b"abc") + body(b"de")
    for at in range(len(octets)):
        channel.connection.send(octets[at : at + 1])
    channel.holds(queue, 1)
    equal(channel.drain(queue), ["abcde"], "bodies")


@case("FRAME-33", says="empty body frames while octets are missing add nothing")
def empty_bodies(stage: Stage) -> None:
    channel = stage.channel()
    queue = stage.queue(channel)
    channel.connection.send(
        publish(queue) + header(2) + body(b"") + body(b"a") + body(b"") + body(b"b")
    )
    channel.holds(queue, 1)
    equal(channel.drain(queue), ["ab"], "bodies")


@case("FRAME-37", says="a message of size 0 is complete with its header")
def empty_message(stage: Stage) -> None:
    channel = stage.channel()
    queue = stage.queue(channel)
    channel.connection.send(publish(queue) + header(0))
    channel.holds(queue, 1)
    got = channel.get(queue)
    equal((got.body, got.body_sizes), (b"", []), "body and body frames delivered")


def _too_large(stage: Stage) -> tuple[Channel, str, str]:
    channel = stage.channel()
    size = DEFAULT_MAX_MESSAGE_SIZE + 1
    text = (
        f"PRECONDITION_FAILED - message size {size} is larger than configured max size "
        f"{DEFAULT_MAX_MESSAGE_SIZE}"
    )
    return channel, stage.queue(channel), text


@case("FRAME-38", says="a message above 128 MiB is soft 406, decided at the header", mark="≠")
def too_large_at_header(stage: Stage) -> None:
    channel, queue, text = _too_large(stage)
    with channel.soft(406, text, "basic.publish"):
        channel.connection.send(publish(queue) + header(DEFAULT_MAX_MESSAGE_SIZE + 1))


@case("FRAME-38", says="the body of a refused message is skipped, then all goes on", mark="≠")
def too_large_body_is_skipped(stage: Stage) -> None:
    channel, queue, text = _too_large(stage)
    with channel.soft(406, text, "basic.publish"):
        channel.publish("", queue, bytes(DEFAULT_MAX_MESSAGE_SIZE + 1))
    channel.reopen()
    channel.publish("", queue, "small")
    channel.holds(queue, 1)
    equal(channel.drain(queue), ["small"], "bodies")


@case("FRAME-38", says="a message of one MiB comes back whole")
def large_message(stage: Stage) -> None:
    channel = stage.channel()
    queue = stage.queue(channel)
    octets = bytes(range(256)) * 4096
    channel.publish("", queue, octets)
    channel.holds(queue, 1)
    equal(channel.get(queue).body == octets, True, "the body is the same")


@case("FRAME-39", says="a delivery is one header, then bodies of frame_max - 8, the last shorter")
def bodies_are_cut(stage: Stage) -> None:
    channel = stage.connect(frame_max=4096).channel()
    queue = stage.queue(channel)
    channel.consume(queue, no_ack=True)
    for size, wanted in ((10000, [4088, 4088, 1824]), (8176, [4088, 4088]), (1, [1]), (0, [])):
        channel.publish("", queue, bytes(size))
        equal(channel.deliver().body_sizes, wanted, f"body frames for {size} octets")


@case("FRAME-39", says="how the publisher cut a body does not show")
def publishers_cut_is_forgotten(stage: Stage) -> None:
    channel = stage.connect(frame_max=4096).channel()
    queue = stage.queue(channel)
    channel.consume(queue, no_ack=True)
    for size, step in ((10, 5), (5000, 700)):
        channel.connection.send(
            wire.method(channel.number, "basic.publish", exchange="", routing_key=queue)
            + wire.content(channel.number, bytes(size), wire.encode_properties(), step + 8)
        )
        wanted = [size] if size < 4088 else [4088, size - 4088]
        equal(channel.deliver().body_sizes, wanted, f"body frames for {size} octets")


@case("FRAME-19", says="frame_max of the reader, not of the publisher, cuts the bodies")
def bodies_are_cut_for_the_reader(stage: Stage) -> None:
    writer = stage.connect(frame_max=131072).channel()
    reader = stage.connect(frame_max=4096).channel()
    queue = stage.queue(writer)
    writer.publish("", queue, bytes(50000))
    reader.holds(queue, 1)
    equal(reader.get(queue).body_sizes, [4088] * 12 + [944], "body frames")


@case("FRAME-19", says="a content header that does not fit is delivered whole")
def large_header_is_whole(stage: Stage) -> None:
    writer = stage.connect(frame_max=131072).channel()
    reader = stage.connect(frame_max=4096).channel()
    queue = stage.queue(writer)
    writer.publish("", queue, "x", headers={"pad": "p" * 20000})
    reader.holds(queue, 1)
    got = reader.get(queue)
    equal(got.headers, {"pad": "p" * 20000}, "headers")
    equal(got.body, b"x", "body")


# --- texts that are no UTF-8 --------------------------------------------------------------

_NOT_UTF8: Final = b"a\xff\xfe".decode("utf-8", "surrogateescape")


def _malformed(method: str, arguments: dict[str, str], stage: Stage) -> None:
    connection = stage.connect()
    connection.channel()
    text = "FRAME_ERROR - Malformed UTF-8 in shortstr"
    with connection.hard(501, text):
        connection.send(wire.method(1, method, **arguments))


for _method, _arguments in (
    ("exchange.declare", ("exchange", "type")),
    ("exchange.delete", ("exchange",)),
    ("exchange.bind", ("destination", "source", "routing_key")),
    ("exchange.unbind", ("destination", "source", "routing_key")),
    ("queue.declare", ("queue",)),
    ("queue.bind", ("queue", "exchange", "routing_key")),
    ("queue.unbind", ("queue", "exchange", "routing_key")),
    ("queue.purge", ("queue",)),
    ("queue.delete", ("queue",)),
    ("basic.consume", ("queue", "consumer_tag")),
    ("basic.cancel", ("consumer_tag",)),
    ("basic.get", ("queue",)),
    ("channel.close", ("reply_text",)),
):
    for _argument in _arguments:
        case("FRAME-57", says=f"{_method}: a {_argument} that is no UTF-8 is hard 501", mark="≡4")(
            partial(_malformed, _method, {_argument: _NOT_UTF8})
        )


@case("FRAME-57", says="on channel 0 the ids of the method are told", mark="≡4")
def malformed_close(stage: Stage) -> None:
    connection = stage.connect()
    text = "FRAME_ERROR - Malformed UTF-8 in shortstr"
    with connection.hard(501, text, "connection.close"):
        connection.send(wire.method(0, "connection.close", reply_text=_NOT_UTF8))


@case("FRAME-57", says="a routing key that is no UTF-8 is published and comes back as it was")
def odd_routing_key(stage: Stage) -> None:
    channel = stage.channel()
    queue = stage.queue(channel)
    channel.call("queue.bind", queue=queue, exchange="amq.fanout")
    channel.publish("amq.fanout", _NOT_UTF8, "x")
    channel.holds(queue, 1)
    equal(channel.get(queue).text("routing_key"), _NOT_UTF8, "routing key")


@case("FRAME-57", says="values and keys of arguments may be any octets")
def odd_arguments(stage: Stage) -> None:
    channel = stage.channel()
    queue = stage.name("odd")
    arguments = Raw(b"\0\0\0\x0a\x03a\xff\xfeS\0\0\0\x01\xff")
    channel.call("queue.declare", queue=queue, arguments=arguments)
    channel.holds(queue, 0)


@case("FRAME-58", says="a reply text shows octets that are no UTF-8 as \\xNN", mark="≠")
def shown_in_reply_text(stage: Stage) -> None:
    channel = stage.channel()
    queue = stage.queue(channel)
    entry = b"\x16x-dead-letter-exchangeS\0\0\0\x03a\xff\xfe"
    text = (
        f"PRECONDITION_FAILED - inequivalent arg 'x-dead-letter-exchange' for "
        f"{stage.the_queue(queue)}: received the value 'a\\xff\\xfe' of type 'longstr' but "
        "current is none"
    )
    with channel.soft(406, text, "queue.declare"):
        arguments = Raw(struct.pack(">I", len(entry)) + entry)
        channel.send("queue.declare", queue=queue, arguments=arguments)
