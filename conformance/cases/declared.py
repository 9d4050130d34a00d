"""Section QUEUE 5.2 and 5.3: arguments that are good, kept, and compared on re-declare."""

from __future__ import annotations

from functools import partial
from typing import Final

from vouchmq.conformance.case import Mark, case
from vouchmq.conformance.cases.argument import TEN_YEARS
from vouchmq.conformance.cases.queue import inequivalent
from vouchmq.conformance.stage import Stage
from vouchmq.conformance.wire import Plain, Table, Typed

DLX: Final[Table] = {"x-dead-letter-exchange": "amq.direct"}


def _accepted(arguments: Table, stage: Stage) -> None:
    channel = stage.channel()
    queue = stage.queue(channel, arguments=arguments)
    channel.call("queue.declare", queue=queue, arguments=arguments)


def _good(
    rule: str,
    name: str,
    *values: Plain,
    mark: Mark = "≡",
    beside: Table | None = None,
) -> None:
    """Register: each of these values is taken, and the same again is equivalent."""
    for value in values:
        shown = f"{value.kind}:{value.value!r}" if isinstance(value, Typed) else repr(value)
        case(rule, says=f"{name}={shown} is accepted, and again", mark=mark)(
            partial(_accepted, {**(beside or {}), name: value})
        )


_good("QUEUE-41", "x-message-ttl", 0, 1, TEN_YEARS, Typed("b", 5), Typed("s", 5), Typed("l", 5))
_good("QUEUE-42", "x-expires", 10_000, TEN_YEARS, Typed("s", 30_000))
_good("QUEUE-43", "x-dead-letter-exchange", "", "no such exchange", "amq.direct")
_good("QUEUE-44", "x-dead-letter-routing-key", "", "k", beside=DLX)
_good("QUEUE-45", "x-dead-letter-strategy", "at-most-once", "at-least-once", mark="+", beside=DLX)
_good("QUEUE-46", "x-max-length", 0, 1, 2**40)
_good("QUEUE-47", "x-max-length-bytes", 0, 1, 2**40)
_good("QUEUE-48", "x-overflow", "drop-head", "reject-publish", "reject-publish-dlx")
_good("QUEUE-48", "x-overflow", "drop-lowest", mark="+")
_good("QUEUE-49", "x-max-priority", 0, 1, 10, 255, Typed("B", 200), Typed("l", 3))
_good("QUEUE-50", "x-single-active-consumer", False, True)
_good("QUEUE-51", "x-delivery-limit", -1, 0, 5, mark="+")
_good("QUEUE-52", "x-consumer-timeout", 0, 60_000, mark="≡4")


def _differs(argument: str, old: Plain, new: Plain, tail: str, beside: Table, stage: Stage) -> None:
    channel = stage.channel()
    before, after = (
        beside if value is None else {**beside, argument: value} for value in (old, new)
    )
    queue = stage.queue(channel, arguments=before)
    text = inequivalent(stage, queue, argument, tail)
    channel.soft_again(406, text, "queue.declare", queue=queue, arguments=after)
    channel.call("queue.declare", queue=queue, arguments=before)


def _compared(
    rule: str,
    argument: str,
    kind: str,
    one: Plain,
    two: Plain,
    *,
    mark: Mark = "≡",
    beside: Table | None = None,
    referee_reason: str = "",
) -> None:
    """Register: another value, one that is missing, and one too many are soft 406."""
    shown = [str(value.value if isinstance(value, Typed) else value) for value in (one, two)]
    if isinstance(one, bool):
        shown = [text.lower() for text in shown]
    told = [f"the value '{text}' of type '{kind}'" for text in shown]
    for what, old, new, tail in (
        ("another value", one, two, f"'{shown[1]}' but current is '{shown[0]}'"),
        ("none", one, None, f"none but current is {told[0]}"),
        ("one where there was none", None, one, f"{told[0]} but current is none"),
    ):
        says = f"re-declared with {what} of {argument}: soft 406"
        case(rule, says=says, mark=mark, referee_reason=referee_reason)(
            partial(_differs, argument, old, new, tail, beside or {})
        )


_compared("QUEUE-41", "x-message-ttl", "signedint", 60_000, 60_001)
_compared("QUEUE-42", "x-expires", "signedint", 60_000, 60_001)
_compared("QUEUE-43", "x-dead-letter-exchange", "longstr", "a", "b")
_compared("QUEUE-44", "x-dead-letter-routing-key", "longstr", "a", "b", beside=DLX)
_compared("QUEUE-46", "x-max-length", "signedint", 5, 6)
_compared("QUEUE-47", "x-max-length-bytes", "long", Typed("l", 5), Typed("l", 6))
_compared("QUEUE-48", "x-overflow", "longstr", "drop-head", "reject-publish")
_compared("QUEUE-49", "x-max-priority", "byte", Typed("b", 5), Typed("b", 6))
_compared("QUEUE-50", "x-single-active-consumer", "bool", True, False)
_compared(
    "QUEUE-45",
    "x-dead-letter-strategy",
    "longstr",
    "at-most-once",
    "at-least-once",
    mark="+",
    beside=DLX,
)
_compared("QUEUE-51", "x-delivery-limit", "signedint", 3, 4, mark="+")
_compared("QUEUE-52", "x-consumer-timeout", "signedint", 60_000, 70_000, mark="≡4")


@case("QUEUE-23", says="x-message-ttl 5000 as int16 equals 5000 as int64")
def widths(stage: Stage) -> None:
    channel = stage.channel()
    queue = stage.queue(channel, arguments={"x-message-ttl": Typed("s", 5000)})
    for kind in "uIil":
        channel.call("queue.declare", queue=queue, arguments={"x-message-ttl": Typed(kind, 5000)})


@case("QUEUE-21", says="several arguments differ: one is named, the queue keeps all its own")
def several_differ(stage: Stage) -> None:
    channel = stage.channel()
    arguments: Table = {"x-max-length": 5, "x-message-ttl": 60_000, "x-max-priority": 3}
    queue = stage.queue(channel, arguments=arguments)
    changed: Table = {"x-max-length": 6, "x-message-ttl": 60_001, "x-max-priority": 4}
    channel.soft_again(406, None, "queue.declare", queue=queue, arguments=changed)
    channel.call("queue.declare", queue=queue, arguments=arguments)


# --- arguments of other types of queue ------------------------------------------------------

_NOT_FOR_STREAMS: Final[tuple[tuple[str, str, Plain], ...]] = (
    ("QUEUE-41", "x-message-ttl", 1000),
    ("QUEUE-42", "x-expires", 60_000),
    ("QUEUE-43", "x-dead-letter-exchange", "amq.direct"),
    ("QUEUE-48", "x-overflow", "drop-head"),
    ("QUEUE-49", "x-max-priority", 5),
    ("QUEUE-50", "x-single-active-consumer", True),
)


def _not_for(kind: str, argument: str, value: Plain, stage: Stage) -> None:
    channel = stage.channel()
    queue = stage.name()
    text = (
        f"PRECONDITION_FAILED - invalid arg '{argument}' for {stage.the_queue(queue)} "
        f"of queue type rabbit_{kind}_queue"
    )
    arguments: Table = {"x-queue-type": kind, argument: value}
    channel.soft_again(406, text, "queue.declare", queue=queue, durable=True, arguments=arguments)


for _rule, _name, _value in _NOT_FOR_STREAMS:
    case(_rule, says=f"{_name} on a stream is soft 406")(partial(_not_for, "stream", _name, _value))
case("QUEUE-49", says="x-max-priority on a quorum-type queue is soft 406")(
    partial(_not_for, "quorum", "x-max-priority", 5)
)
