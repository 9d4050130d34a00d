"""REDELIVER-52: exchanges of type x-consistent-hash, as RabbitMQ's plugin has them.

RabbitMQ 3.10.8 without the plugin answers 503; then these cases are skipped.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Final

from vouchmq.conformance.case import case
from vouchmq.conformance.client import Channel
from vouchmq.conformance.events import RefusedError
from vouchmq.conformance.expect import SkipError, check, equal
from vouchmq.conformance.stage import Stage
from vouchmq.conformance.wire import Argument, Raw, Table, encode_properties

KIND: Final = "x-consistent-hash"


def hashing(stage: Stage, channel: Channel, **arguments: str) -> str:
    """A new hashing exchange; `hash_header="g"` is the argument `hash-header`."""
    try:
        return stage.exchange(
            channel,
            KIND,
            arguments={name.replace("_", "-"): value for name, value in arguments.items()},
        )
    except RefusedError as refused:
        if refused.code == 503:
            raise SkipError("needs the plugin rabbitmq_consistent_hash_exchange") from None
        raise


def _spread(stage: Stage, exchange: str, queues: Sequence[str], count: int) -> list[list[str]]:
    """Publish `count` messages with as many keys; the keys that came to each queue."""
    channel = stage.confirming()
    for number in range(count):
        channel.publish(exchange, f"key {number}", f"key {number}")
    channel.confirms(count)
    return [channel.drain(queue) for queue in queues]


@case("REDELIVER-52", says="every message goes to exactly one queue, all queues get some")
def one_queue_each(stage: Stage) -> None:
    channel = stage.confirming()
    exchange = hashing(stage, channel)
    queues = [stage.bound(channel, exchange, "10") for _ in range(4)]
    got = _spread(stage, exchange, queues, 400)
    equal(
        sorted(key for keys in got for key in keys), sorted(f"key {n}" for n in range(400)), "keys"
    )
    check(all(len(keys) >= 20 for keys in got), f"shares {[len(keys) for keys in got]}")


@case("REDELIVER-52", says="the same routing key goes to the same queue, in order")
def same_key(stage: Stage) -> None:
    channel = stage.confirming()
    exchange = hashing(stage, channel)
    queues = [stage.bound(channel, exchange, "5") for _ in range(3)]
    for number in range(60):
        channel.publish(exchange, f"group {number % 6}", f"{number % 6} {number}")
    channel.confirms(60)
    seen: dict[str, int] = {}
    for at, queue in enumerate(queues):
        bodies = channel.drain(queue)
        numbers = [int(body.split()[1]) for body in bodies]
        equal(numbers, sorted(numbers), "order")
        for body in bodies:
            group = body.split()[0]
            equal(seen.setdefault(group, at), at, f"queue of group {group}")
    equal(len(seen), 6, "groups seen")


@case("REDELIVER-52", says="the binding key is the queue's weight")
def weights(stage: Stage) -> None:
    channel = stage.confirming()
    exchange = hashing(stage, channel)
    queues = [stage.bound(channel, exchange, weight) for weight in ("10", "30")]
    light, heavy = (len(keys) for keys in _spread(stage, exchange, queues, 800))
    check(1.5 <= heavy / max(1, light) <= 6, f"{light} and {heavy} for weights 10 and 30")


@case(
    "REDELIVER-52", says="a queue that is added takes keys, no other key moves; it gives them back"
)
def little_moves(stage: Stage) -> None:
    channel = stage.channel()
    exchange = hashing(stage, channel)
    queues = [stage.bound(channel, exchange, "10") for _ in range(3)]
    before = _spread(stage, exchange, queues, 300)
    queues.append(stage.bound(channel, exchange, "10"))
    *kept, taken = _spread(stage, exchange, queues, 300)
    check(len(taken) >= 20, f"the new queue got {len(taken)} of 300")
    for at, keys in enumerate(kept):
        came = set(keys) - set(before[at])
        check(not came, f"{len(came)} keys moved to an old queue")
    channel.call("queue.delete", queue=queues.pop())
    equal(_spread(stage, exchange, queues, 300), before, "keys of each queue, as at first")


@case("REDELIVER-52", says="without a queue a mandatory message is returned")
def no_bindings(stage: Stage) -> None:
    channel = stage.confirming()
    exchange = hashing(stage, channel)
    channel.publish(exchange, "k", "x", mandatory=True)
    equal(channel.wait("basic.return").number("reply_code"), 312, "reply code of the return")
    channel.wait("basic.ack")


def _by(arguments: dict[str, str], block: Raw, stage: Stage) -> None:
    """Messages that are equal in what is hashed go together, whatever their routing keys."""
    channel = stage.confirming()
    exchange = hashing(stage, channel, **arguments)
    queues = [stage.bound(channel, exchange, "10") for _ in range(3)]
    for number in range(40):
        channel.publish(exchange, f"key {number}", str(number), block=block)
    channel.confirms(40)
    counts = sorted(len(channel.drain(queue)) for queue in queues)
    equal(counts, [0, 0, 40], "messages in the queues")


_PROPERTIES: Final[tuple[tuple[str, dict[str, str], dict[str, Argument]], ...]] = (
    ("hash-header", {"hash_header": "group"}, {"headers": {"group": "g"}}),
    ("hash-property message_id", {"hash_property": "message_id"}, {"message_id": "m"}),
    ("hash-property correlation_id", {"hash_property": "correlation_id"}, {"correlation_id": "c"}),
    ("hash-property timestamp", {"hash_property": "timestamp"}, {"timestamp": 1_700_000_000}),
)
for _says, _arguments, _properties in _PROPERTIES:
    case("REDELIVER-52", says=f"{_says} is hashed instead of the routing key")(
        partial(_by, _arguments, encode_properties(**_properties))
    )


@case("REDELIVER-52", says="hash-header spreads different values")
def header_spreads(stage: Stage) -> None:
    channel = stage.confirming()
    exchange = hashing(stage, channel, hash_header="group")
    queues = [stage.bound(channel, exchange, "10") for _ in range(3)]
    for number in range(300):
        channel.publish(exchange, "same", str(number), headers={"group": f"g{number}"})
    channel.confirms(300)
    counts = [len(channel.drain(queue)) for queue in queues]
    check(sum(counts) == 300 and min(counts) >= 20, f"shares {counts}")


@case("REDELIVER-52", says="without the header all go to one queue")
def header_missing(stage: Stage) -> None:
    channel = stage.confirming()
    exchange = hashing(stage, channel, hash_header="group")
    queues = [stage.bound(channel, exchange, "10") for _ in range(3)]
    for number in range(30):
        channel.publish(exchange, f"key {number}", str(number))
    channel.confirms(30)
    counts = sorted(len(channel.drain(queue)) for queue in queues)
    equal(counts, [0, 0, 30], "messages in the queues")


def _bad_arguments(arguments: Table, text: str, stage: Stage) -> None:
    channel = stage.channel()
    hashing(stage, channel)
    with channel.soft(406, f"PRECONDITION_FAILED - {text}", "exchange.declare"):
        channel.call("exchange.declare", exchange=stage.name("x"), type=KIND, arguments=arguments)


for _says, _bad, _text in (
    (
        "hash-header and hash-property together",
        {"hash-header": "a", "hash-property": "message_id"},
        "hash-header and hash-property are mutually exclusive",
    ),
    ("an unknown hash-property", {"hash-property": "colour"}, "Unsupported property: colour"),
):
    case("REDELIVER-52", says=f"{_says}: soft 406")(partial(_bad_arguments, _bad, _text))


def _bad_weight(weight: str, text: str, stage: Stage) -> None:
    channel = stage.channel()
    exchange = hashing(stage, channel)
    queue = stage.queue(channel)
    with channel.soft(406, f"PRECONDITION_FAILED - The binding key must be {text}", "queue.bind"):
        channel.call("queue.bind", queue=queue, exchange=exchange, routing_key=weight)


for _weight, _text in (
    ("", "an integer: <<>>"),
    ("heavy", 'an integer: <<"heavy">>'),
    ("1.5", 'an integer: <<"1.5">>'),
    (" 1", 'an integer: <<" 1">>'),
    ("0", "greater than 0"),
    ("-1", "greater than 0"),
):
    case("REDELIVER-52", says=f"a binding key '{_weight}' is soft 406")(
        partial(_bad_weight, _weight, _text)
    )


@case("LIMIT-26", says="weights beyond 2500 together are refused", mark="≠")
def weights_together(stage: Stage) -> None:
    channel = stage.confirming()
    exchange = hashing(stage, channel)
    for weight in ("1000", "1000", "500"):
        stage.bound(channel, exchange, weight)
    channel.publish(exchange, "k", "x", mandatory=True)
    channel.wait("basic.ack")
    try:
        stage.bound(channel, exchange, "1")
    except RefusedError as refused:
        equal(refused.code, 406, "reply code")
    else:
        check(False, "a weight of 2501 was taken")
