"""Section POLICY: what clients see of policies.

No AMQP client can set one, so they are prepared (conformance/prepared): each matches the names
that end in its own word.
"""

from __future__ import annotations

from functools import partial
from typing import Final

from vouchmq.conformance.case import Mark, case
from vouchmq.conformance.cases.redeliver import KINDS, fetch, put
from vouchmq.conformance.client import Channel
from vouchmq.conformance.expect import equal, eventually
from vouchmq.conformance.preparation import need_policies
from vouchmq.conformance.stage import Stage
from vouchmq.conformance.wire import Plain, Table

SPARE: Final = "conformance.policy.spare"


def governed(stage: Stage, channel: Channel, word: str, **arguments: Plain) -> str:
    """A durable queue that the policy of this word governs; `max_length=5` is `x-max-length: 5`."""
    need_policies(stage)
    more = {f"x-{name.replace('_', '-')}": value for name, value in arguments.items()}
    return stage.queue(channel, label=f"policy-{word}", durable=True, arguments=more)


def _keeps(stage: Stage, queue: str, most: int) -> None:
    """Fail unless the queue keeps the youngest `most` of six messages."""
    put(stage, queue, *(str(number) for number in range(6)))
    channel = stage.channel()
    channel.holds(queue, most)
    equal(channel.drain(queue), [str(number) for number in range(6 - most, 6)], "messages kept")


def _length(word: str, most: int, arguments: Table, stage: Stage) -> None:
    _keeps(stage, governed(stage, stage.channel(), word, **arguments), most)


_LENGTHS: Final[tuple[tuple[str, str, Mark, str, int, dict[str, Plain]], ...]] = (
    ("POLICY-01", "a policy applies to the queues its pattern finds", "≡", "length", 2, {}),
    ("POLICY-01", "it does not apply to others", "≡", "lengthy", 6, {}),
    ("POLICY-01", "one for everything applies to queues", "≡", "everything", 1, {}),
    ("POLICY-01", "one for exchanges does not apply to queues", "≡", "exchanges", 6, {}),
    ("POLICY-02", "of two the one of higher priority applies, alone", "≡", "two", 3, {}),
    ("POLICY-02", "among equals the name that comes first applies", "≠", "equal", 1, {}),
    ("POLICY-03", "an operator policy applies by itself", "≡", "operator", 2, {}),
    ("POLICY-05", "max-length: a smaller argument counts", "≡", "length", 1, {"max_length": 1}),
    ("POLICY-05", "max-length: a larger argument does not", "≡", "length", 2, {"max_length": 5}),
    (
        "POLICY-05",
        "max-length: an argument larger than the operator's does not count",
        "≡",
        "operator",
        2,
        {"max_length": 4},
    ),
)
for _rule, _says, _mark, _word, _most, _arguments in _LENGTHS:
    case(_rule, says=_says, mark=_mark)(partial(_length, _word, _most, _arguments))


@case("POLICY-03", says="keys of the user's policy hold beside the operator's")
def merged_keys(stage: Stage) -> None:
    channel = stage.channel()
    target = stage.doomed("conformance.policy.merged")
    channel.call("queue.declare", queue=target, durable=True)
    queue = governed(stage, channel, "merged")
    put(stage, queue, "a", "b", "c")
    event = fetch(channel, target)
    equal((event.body, channel.count(queue)), (b"a", 2), "dropped message and what is left")
    channel.ack(event.tag)
    channel.sync()


@case("POLICY-04", says="clients that declare do not see policies (QUEUE-24)")
def unseen(stage: Stage) -> None:
    channel = stage.channel()
    queue = governed(stage, channel, "length")
    channel.call("queue.declare", queue=queue, durable=True)
    with channel.soft(406, None, "queue.declare"):
        channel.call("queue.declare", queue=queue, durable=True, arguments={"x-max-length": 2})


@case("QUEUE-24", says="a policy that differs from the arguments does not disturb equivalence")
def equivalence(stage: Stage) -> None:
    channel = stage.channel()
    queue = governed(stage, channel, "length", max_length=7)
    arguments: Table = {"x-max-length": 7}
    channel.call("queue.declare", queue=queue, durable=True, arguments=arguments)


@case("POLICY-05", says="max-length-bytes: the smaller of argument and policy")
def length_in_bytes(stage: Stage) -> None:
    channel = stage.channel()
    for argument, kept in ((4, ["dddd"]), (1000, ["cccc", "dddd"])):
        queue = governed(stage, channel, "bytes", max_length_bytes=argument)
        put(stage, queue, "aaaa", "bbbb", "cccc", "dddd")
        channel.holds(queue, len(kept))
        equal(channel.drain(queue), kept, f"messages kept with an argument of {argument}")


@case("POLICY-05", says="message-ttl: the smaller of argument and policy", slow=True)
def message_ttl(stage: Stage) -> None:
    channel = stage.channel()
    short = governed(stage, channel, "ttl", message_ttl=60_000)
    shorter = governed(stage, channel, "ttl", message_ttl=0)
    put(stage, shorter, "x")
    channel.holds(shorter, 0)
    put(stage, short, "x")
    channel.holds(short, 0)


@case("POLICY-05", says="expires: the policy removes an unused queue", slow=True)
def expires(stage: Stage) -> None:
    channel = stage.channel()
    queue = governed(stage, channel, "expires", expires=600_000)

    def exists() -> bool:
        # Every declare of the queue itself renews its lease, so look at a binding instead.
        other = stage.channel()
        other.publish("", queue, "x", mandatory=True)
        other.sync()
        gone = any(event.name == "basic.return" for event in other.connection.inbox(1))
        other.connection.close()
        return not gone

    equal(exists(), True, "queue there at first")
    eventually(exists, False, "queue after its lease")


@case("LEN-25", says="overflow: the policy's holds, an argument beats it (POLICY-05)")
def overflow(stage: Stage) -> None:
    need_policies(stage)
    channel = stage.confirming()
    by_policy = governed(stage, channel, "full")
    by_argument = governed(stage, channel, "full", overflow="drop-head")
    for queue in (by_policy, by_argument):
        channel.publish("", queue, "a")
        channel.publish("", queue, "b")
    equal(channel.confirms(4), {1: "ack", 2: "nack", 3: "ack", 4: "ack"}, "confirms")
    equal(channel.drain(by_policy), ["a"], "messages under reject-publish")
    equal(channel.drain(by_argument), ["b"], "messages under drop-head")


def _dies(stage: Stage, queue: str, graveyard: str) -> None:
    """Fail unless a rejected message of the queue arrives there."""
    put(stage, queue, "x")
    channel = stage.channel()
    channel.reject(fetch(channel, queue).tag, requeue=False)
    event = fetch(channel, graveyard)
    equal(event.body, b"x", "dead-lettered message")
    channel.ack(event.tag)
    channel.sync()


@case("POLICY-05", says="dead-letter-exchange: the policy's, unless there is an argument")
def dead_letters(stage: Stage) -> None:
    channel = stage.channel()
    by_policy = stage.doomed("conformance.policy.dead")
    channel.call("queue.declare", queue=by_policy, durable=True)
    _dies(stage, governed(stage, channel, "dead"), by_policy)
    other = stage.exchange(channel, "fanout")
    by_argument = stage.bound(channel, other)
    _dies(stage, governed(stage, channel, "dead", dead_letter_exchange=other), by_argument)


@case("POLICY-06", says="an argument's dead-letter exchange goes with a policy's key")
def keys_one_by_one(stage: Stage) -> None:
    channel = stage.channel()
    target = stage.doomed("conformance.policy.key")
    channel.call("queue.declare", queue=target, durable=True)
    _dies(stage, governed(stage, channel, "key", dead_letter_exchange=""), target)


def _delivery_limit(kind: str, limit: int | None, returns: int, stage: Stage) -> None:
    channel = stage.channel()
    arguments: dict[str, Plain] = {"queue_type": kind}
    if limit is not None:
        arguments["delivery_limit"] = limit
    queue = governed(stage, channel, "limit", **arguments)
    put(stage, queue, "poison", "good")
    for _ in range(returns):
        event = fetch(channel, queue)
        equal(event.body, b"poison", "message")
        channel.reject(event.tag)
        channel.sync()
    event = fetch(channel, queue)
    equal(event.body, b"good", f"message after {returns} returns")
    channel.ack(event.tag)
    channel.sync()


for _kind, _kind_mark in KINDS:
    for _limit, _returns, _says in (
        (None, 2, "the policy's holds"),
        (9, 2, "a larger argument does not count"),
        (0, 1, "a smaller argument counts"),
    ):
        case(
            "POLICY-05",
            says=f"delivery-limit, {_kind}: {_says}",
            mark=_kind_mark,
        )(partial(_delivery_limit, _kind, _limit, _returns))


def _spare(stage: Stage, **arguments: str) -> tuple[Channel, str, str]:
    """An exchange under the policy that names a spare one; the queue behind that."""
    need_policies(stage)
    channel = stage.channel()
    spare = stage.doomed(SPARE)
    channel.call("exchange.declare", exchange=spare, type="fanout")
    exchange = stage.name("policy-spare")
    channel.call(
        "exchange.declare",
        exchange=exchange,
        type="direct",
        arguments={name.replace("_", "-"): value for name, value in arguments.items()},
    )
    return channel, exchange, stage.bound(channel, spare)


@case("EXCH-63", says="alternate-exchange by policy, unless there is an argument", serial=True)
def alternate_exchange(stage: Stage) -> None:
    channel, exchange, queue = _spare(stage)
    channel.publish(exchange, "nobody", "by policy")
    channel.holds(queue, 1)
    equal(channel.drain(queue), ["by policy"], "messages")
    own = stage.exchange(channel, "fanout")
    behind = stage.bound(channel, own)
    channel, exchange, queue = _spare(stage, alternate_exchange=own)
    channel.publish(exchange, "nobody", "by argument")
    channel.holds(behind, 1)
    equal((channel.count(queue), channel.drain(behind)), (0, ["by argument"]), "messages")


@case("DELAY-11", says="delayed-message by policy makes an exchange delay", mark="+")
def delayed(stage: Stage) -> None:
    need_policies(stage)
    channel = stage.confirming()
    exchange = stage.name("policy-delayed")
    channel.call("exchange.declare", exchange=exchange, type="fanout")
    queue = stage.bound(channel, exchange)
    channel.publish(exchange, "", "x", headers={"x-delay": 1500})
    channel.confirms(1)
    channel.connection.listen(0.3)
    equal(channel.count(queue), 0, "messages while it is held")
    channel.holds(queue, 1)
    equal(channel.get(queue).headers, {"x-delay": -1500}, "headers")
