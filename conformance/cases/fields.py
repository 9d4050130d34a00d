"""Section FRAME: properties and field tables must come back bit for bit."""

from __future__ import annotations

import struct
from functools import partial
from typing import Final

from vouchmq.conformance import wire
from vouchmq.conformance.case import case
from vouchmq.conformance.client import Channel
from vouchmq.conformance.expect import Starting, check, equal
from vouchmq.conformance.stage import Stage
from vouchmq.conformance.wire import Raw, Typed


def through(stage: Stage, channel: Channel, block: Raw) -> bytes:
    """Publish with this property block; the block as delivered."""
    queue = stage.queue(channel)
    channel.publish("", queue, "x", block=block)
    channel.holds(queue, 1)
    return channel.get(queue).block


def headers_block(table_body: bytes) -> Raw:
    """A property block with a headers table of these octets and nothing else."""
    return Raw(b"\x20\x00" + struct.pack(">I", len(table_body)) + table_body)


@case("FRAME-40", says="all 14 properties come back as published")
def all_properties(stage: Stage) -> None:
    block = wire.encode_properties(
        content_type="text/plain; charset=utf-8",
        content_encoding="gzip",
        headers={"a": 1, "b": ["x", 2.5, {"c": None}]},
        delivery_mode=1,
        priority=9,
        correlation_id="c-1 €",
        reply_to="somewhere",
        message_id="m/1",
        timestamp=2**63 + 5,
        type="order",
        user_id=stage.target.user,
        app_id="conformance",
        cluster_id="unused",
    )
    equal(through(stage, stage.channel(), block), block, "property block")


@case("FRAME-40", says="properties with empty values stay present")
def empty_properties(stage: Stage) -> None:
    block = wire.encode_properties(
        content_type="", correlation_id="", message_id="", headers={}, priority=0, timestamp=0
    )
    equal(through(stage, stage.channel(), block), block, "property block")


@case("FRAME-40", says="no property at all stays none")
def no_properties(stage: Stage) -> None:
    equal(through(stage, stage.channel(), Raw(b"\0\0")), b"\0\0", "property block")


@case("FRAME-40", says="strings that are not UTF-8 come back as published")
def odd_strings(stage: Stage) -> None:
    block = Raw(b"\x84\x00" + b"\x03\xff\xfe\x00" + b"\x02\xc3\x28")
    equal(through(stage, stage.channel(), block), block, "property block")


@case("FRAME-40", says="the reserved flag is ignored")
def reserved_flag(stage: Stage) -> None:
    channel = stage.channel()
    block = through(stage, channel, Raw(b"\x80\x02\x01t"))
    equal(
        wire.decode_properties(bytes([block[0], block[1] & 0xFC]) + block[2:]),
        {"content_type": "t"},
        "properties",
    )


VALUES: Final = (
    ("t", "bool", b"\x01"),
    ("b", "int8", b"\x80"),
    ("B", "uint8", b"\xff"),
    ("s", "int16", b"\x80\x00"),
    ("u", "uint16", b"\xff\xff"),
    ("I", "int32", b"\x80\x00\x00\x00"),
    ("i", "uint32", b"\xff\xff\xff\xff"),
    ("l", "int64", b"\x80" + bytes(7)),
    ("f", "float32", b"\x3f\xc0\x00\x00"),
    ("d", "float64", struct.pack(">d", 0.1)),
    ("D", "decimal", b"\x02\x00\x00\x30\x39"),
    ("S", "longstr", b"\x00\x00\x00\x04\xff\x00\xc3("),
    ("x", "byte array", b"\x00\x00\x00\x03\x00\x01\x02"),
    ("A", "array", b"\x00\x00\x00\x07I\x00\x00\x00\x07t\x01"),
    ("T", "timestamp", b"\xff" * 8),
    ("F", "table", b"\x00\x00\x00\x08\x01kS\x00\x00\x00\x01v"),
    ("V", "void", b""),
)


def _header_round_trip(kind: str, octets: bytes, stage: Stage) -> None:
    block = headers_block(b"\x03key" + kind.encode() + octets)
    equal(through(stage, stage.channel(), block), block, "property block")


for _kind, _name, _octets in VALUES:
    case("FRAME-50", says=f"a header of type {_kind} ({_name}) comes back bit for bit")(
        partial(_header_round_trip, _kind, _octets)
    )


# Nested in arrays and tables, too: what stands before a value, and behind it.
PLACES: Final = (
    ("a header", b"\x03key", b""),
    ("an item of an array", b"\x03keyA\x00\x00\x00%c", b""),
    ("a value of a table", b"\x03keyF\x00\x00\x00%c\x01k", b""),
    ("a header behind others", b"\x01aS\x00\x00\x00\x01L\x03key", b"\x01mt\x01"),
)


def _at(place: bytes, kind: bytes, octets: bytes, behind: bytes) -> Raw:
    """A block with one value at a place."""
    if b"%c" in place:
        size = len(place.partition(b"%c")[2]) + 1 + len(octets)
        place = place.replace(b"%c", bytes([size]))
    return headers_block(place + kind + octets + behind)


QUEUES: Final = ("classic", "quorum", "stream")


def _kept(stage: Stage, channel: Channel, block: Raw, kind: str) -> bytes:
    """The block as a consumer of a queue of this type gets it."""
    queue = stage.queue(channel, arguments={"x-queue-type": kind}, durable=True)
    channel.call("confirm.select")
    channel.publish("", queue, "x", block=block)
    channel.wait("basic.ack")
    channel.call("basic.qos", prefetch_count=1)
    arguments = {"x-stream-offset": "first"} if kind == "stream" else {}
    channel.consume(queue, arguments=arguments)
    return channel.deliver().block


def _normalized(
    place: bytes,
    behind: bytes,
    given: tuple[bytes, bytes],
    wanted: tuple[bytes, bytes],
    queue_type: str,
    stage: Stage,
) -> None:
    got = _kept(stage, stage.channel(), _at(place, *given, behind), queue_type)
    # A stream adds its header, and RabbitMQ sorts them.
    entries = _at(place, *wanted, b"")[6:] + behind
    check(entries in got, f"{entries!r} is not in {got!r}")


_LONG: Final = b"\xff" * 8
for _where, _place, _behind in PLACES:
    for _queue_type in QUEUES:
        case(
            "FRAME-59",
            says=f"{_queue_type}: {_where} of type L is delivered as l",
            mark="≡4",
        )(partial(_normalized, _place, _behind, (b"L", _LONG), (b"l", _LONG), _queue_type))
    case("FRAME-59", says=f"{_where}: a bool of 2 is delivered as 1", mark="≡4")(
        partial(_normalized, _place, _behind, (b"t", b"\x02"), (b"t", b"\x01"), "classic")
    )


def _endless(place: bytes, behind: bytes, kind: str, number: float, stage: Stage) -> None:
    connection = stage.connect()
    channel = connection.channel()
    queue = stage.queue(channel)
    octets = struct.pack(f">{kind}", number)
    with connection.hard(541, Starting("INTERNAL_ERROR")):
        channel.publish("", queue, "x", block=_at(place, kind.encode(), octets, behind))
    other = stage.channel()
    equal(other.count(queue), 0, "messages")


for _where, _place, _behind in PLACES:
    for _number in ("inf", "-inf", "nan"):
        for _kind in "fd":
            case(
                "FRAME-59",
                says=f"{_where}: a float of type {_kind} that is {_number} is hard 541",
            )(partial(_endless, _place, _behind, _kind, float(_number)))


@case("FRAME-59", says="a dead letter has the headers as they were delivered", mark="≡4")
def normalized_dead_letter(stage: Stage) -> None:
    channel = stage.channel()
    dead = stage.queue(channel)
    source = stage.queue(
        channel,
        arguments={
            "x-dead-letter-exchange": "",
            "x-dead-letter-routing-key": dead,
            "x-message-ttl": 0,
        },
    )
    channel.publish("", source, "x", block=headers_block(b"\x01kL" + _LONG + b"\x01bt\x07"))
    channel.holds(dead, 1)
    block = channel.get(dead).block
    check(b"\x01kl" + _LONG in block, "the int64 is none of type l")
    check(b"\x01bt\x01" in block, "the bool is not 1")


@case("FRAME-50", says="every field type is taken in the arguments of a declare")
def types_in_arguments(stage: Stage) -> None:
    channel = stage.channel()
    entries = b"".join(
        bytes([len(f"k{kind}")]) + f"k{kind}{kind}".encode() + octets for kind, _, octets in VALUES
    )
    queue = stage.name()
    raw = Raw(struct.pack(">I", len(entries)) + entries)
    channel.call("queue.declare", queue=queue, arguments=raw)
    channel.call("queue.bind", queue=queue, exchange="amq.direct", arguments=raw)


@case("FRAME-50", says="an unknown field type in headers is hard 501", mark="≠")
def unknown_type_in_headers(stage: Stage) -> None:
    channel = stage.channel()
    with channel.connection.hard(501, Starting("FRAME_ERROR - "), "basic.publish"):
        channel.publish("", "nowhere", "x", block=headers_block(b"\x03keyZ\x00"))


@case("FRAME-53", says="order, widths and types of headers are kept")
def headers_keep_their_shape(stage: Stage) -> None:
    entries = b"".join(
        bytes([len(key)]) + key + kind.encode() + octets
        for key, (kind, _, octets) in zip(
            [b"z%d" % (99 - at) for at in range(len(VALUES))], VALUES, strict=True
        )
    )
    block = headers_block(entries)
    equal(through(stage, stage.channel(), block), block, "property block")


@case("FRAME-53", says="a header that is not touched survives CC beside it")
def headers_survive_cc(stage: Stage) -> None:
    channel = stage.channel()
    queue = stage.queue(channel)
    odd = b"\x01\xffI\x00\x00\x00\x07" + b"\x01aT" + b"\xff" * 8
    cc = b"\x02CC" + wire.encode_field(["also"])
    block = headers_block(odd + cc)
    channel.publish("", queue, "x", block=block)
    channel.holds(queue, 1)
    equal(channel.get(queue).block, block, "property block")


@case("FRAME-54", says="keys that are not UTF-8 are relayed")
def odd_keys(stage: Stage) -> None:
    block = headers_block(b"\x02\xff\xfet\x01" + b"\x00t\x00")
    equal(through(stage, stage.channel(), block), block, "property block")


@case("FRAME-54", says="duplicate keys are relayed")
def duplicate_keys(stage: Stage) -> None:
    block = headers_block(b"\x01kb\x01" + b"\x01kb\x02")
    equal(through(stage, stage.channel(), block), block, "property block")


def _nested(depth: int) -> Raw:
    octets = b"\x01kt\x01"
    for _ in range(depth - 1):
        octets = b"\x01kF" + struct.pack(">I", len(octets)) + octets
    return headers_block(octets)


@case("FRAME-54", says="tables nested 64 deep are relayed")
def deep_tables(stage: Stage) -> None:
    block = _nested(64)
    equal(through(stage, stage.channel(), block), block, "property block")


@case("FRAME-54", says="tables nested deeper than 64 are hard 501", mark="≠")
def too_deep_tables(stage: Stage) -> None:
    channel = stage.channel()
    with channel.connection.hard(501, Starting("FRAME_ERROR - "), "basic.publish"):
        channel.publish("", "nowhere", "x", block=_nested(66))


# Names that some client codecs refuse; brokers take them all.
ODD_NAMES: Final = (
    ("with blanks", "two words "),
    ("with slashes and per cent", "a/b%20c"),
    ("beyond ASCII", "naïve €"),
    ("with quotes", 'it\'s "so"'),
)


def _odd_names(label: str, stage: Stage) -> None:
    channel = stage.channel()
    queue, exchange = stage.name(label), stage.name(label + "x")
    reply = channel.call("queue.declare", queue=queue)
    equal(reply.text("queue"), queue, "name in declare-ok")
    channel.call("exchange.declare", exchange=exchange, type="direct")
    channel.call("queue.bind", queue=queue, exchange=exchange, routing_key=label)
    channel.publish(exchange, label, "one")
    channel.holds(queue, 1)
    got = channel.get(queue)
    equal((got.text("exchange"), got.text("routing_key")), (exchange, label), "get-ok")
    channel.consume(queue, tag=label, no_ack=True)
    channel.publish(exchange, label, "two")
    event = channel.deliver()
    equal((event.text("exchange"), event.text("routing_key")), (exchange, label), "deliver")
    equal(event.text("consumer_tag"), label, "consumer tag")
    channel.publish(exchange, label + "?", "three", mandatory=True)
    event = channel.wait("basic.return")
    equal((event.text("exchange"), event.text("routing_key")), (exchange, label + "?"), "return")


for _what, _label in ODD_NAMES:
    case("FRAME-56", says=f"names {_what} work in every method")(partial(_odd_names, _label))


@case("FRAME-56", says="exchange and queue names of 255 octets work")
def longest_names(stage: Stage) -> None:
    channel = stage.channel()
    queue = stage.doomed(stage.name("q").ljust(255, "q"))
    exchange = stage.doomed(stage.name("x").ljust(255, "x"))
    channel.call("queue.declare", queue=queue)
    channel.call("exchange.declare", exchange=exchange, type="fanout")
    channel.call("queue.bind", queue=queue, exchange=exchange, routing_key="k" * 255)
    channel.publish(exchange, "k" * 255, "one")
    channel.holds(queue, 1)
    equal(channel.get(queue).text("exchange"), exchange, "exchange in get-ok")


@case("FRAME-56", says="any timestamp is relayed")
def odd_timestamps(stage: Stage) -> None:
    channel = stage.channel()
    for timestamp in (2**64 - 1, 253402300800, 0):
        block = wire.encode_properties(timestamp=timestamp)
        equal(through(stage, channel, block), block, "property block")


@case("FRAME-55", says="headers the broker does not touch are not added")
def no_headers_added(stage: Stage) -> None:
    channel = stage.channel()
    queue = stage.queue(channel)
    channel.publish("", queue, "x", message_id="1")
    channel.holds(queue, 1)
    got = channel.get(queue, no_ack=False)
    channel.nack(got.tag)
    channel.holds(queue, 1)
    check("headers" not in channel.get(queue).properties, "a headers table was added")


TYPE_NAMES: Final = (
    (Typed("t", True), "bool"),
    (Typed("b", 1), "byte"),
    (Typed("B", 1), "unsignedbyte"),
    (Typed("s", 1), "short"),
    (Typed("u", 1), "unsignedshort"),
    (Typed("I", 1), "signedint"),
    (Typed("i", 1), "unsignedint"),
    (Typed("l", 1), "long"),
    (Typed("f", 1.5), "float"),
    (Typed("d", 1.5), "double"),
    (Typed("D", (0, 1)), "decimal"),
    (Typed("x", b"1"), "binary"),
    (Typed("A", []), "array"),
    (Typed("T", 1), "timestamp"),
    (Typed("F", {}), "table"),
    (Typed("V", None), "void"),
)


def _type_name(value: Typed, name: str, stage: Stage) -> None:
    channel = stage.channel()
    exchange = stage.name("x")
    text = (
        f"PRECONDITION_FAILED - invalid type '{name}' for arg 'alternate-exchange' in "
        f"{stage.the_exchange(exchange)}"
    )
    with channel.soft(406, text, "exchange.declare"):
        channel.call(
            "exchange.declare",
            exchange=exchange,
            type="direct",
            arguments={"alternate-exchange": value},
        )


for _value, _name in TYPE_NAMES:
    case("FRAME-51", says=f"error texts call type {_value.kind} {_name}")(
        partial(_type_name, _value, _name)
    )
