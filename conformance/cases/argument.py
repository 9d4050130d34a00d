"""Section QUEUE 5.3: what a bad declare argument is told, argument by argument."""

from __future__ import annotations

from functools import partial
from typing import Final

from vouchmq.conformance.case import Mark, case
from vouchmq.conformance.stage import Stage
from vouchmq.conformance.wire import Plain, Table, Typed

TEN_YEARS: Final = 315_360_000_000
TOO_LONG: Final = TEN_YEARS + 1
NOT_INTEGER: Final = '"expected integer, got {}"'


def _invalid(argument: str, arguments: Table, why: str, stage: Stage) -> None:
    channel = stage.channel()
    queue = stage.name()
    text = f"PRECONDITION_FAILED - invalid arg '{argument}' for {stage.the_queue(queue)}: {why}"
    with channel.soft(406, text, "queue.declare"):
        channel.call("queue.declare", queue=queue, durable=True, arguments=arguments)


def _bad(
    rule: str,
    argument: str,
    value: Plain,
    why: str,
    *,
    mark: Mark = "≡",
    beside: Table | None = None,
    referee_reason: str = "",
) -> None:
    """Register: this value of this argument, beside others, is refused for this reason."""
    others = beside or {}
    shown = f"{value.kind}:{value.value!r}" if isinstance(value, Typed) else repr(value)
    with_what = "".join(f" with {name}={other!r}" for name, other in others.items())
    says = f"{argument}={shown}{with_what} is soft 406: {why}"
    case(rule, says=says, mark=mark, referee_reason=referee_reason)(
        partial(_invalid, argument, {argument: value, **others}, why)
    )


for _rule, _name in (
    ("QUEUE-41", "x-message-ttl"),
    ("QUEUE-42", "x-expires"),
    ("QUEUE-46", "x-max-length"),
    ("QUEUE-47", "x-max-length-bytes"),
    ("QUEUE-49", "x-max-priority"),
):
    _bad(_rule, _name, "5", NOT_INTEGER.format("longstr"))
    _bad(_rule, _name, True, NOT_INTEGER.format("bool"))
    _bad(_rule, _name, Typed("d", 1.0), NOT_INTEGER.format("double"))
    _bad(_rule, _name, None, NOT_INTEGER.format("void"))
    _bad(_rule, _name, -1, "{value_negative,-1}")
for _rule, _name in (("QUEUE-41", "x-message-ttl"), ("QUEUE-42", "x-expires")):
    _bad(_rule, _name, TOO_LONG, f"{{value_too_large,{TOO_LONG}}}")
_bad("QUEUE-42", "x-expires", 0, "{value_zero,0}")
_bad("QUEUE-49", "x-max-priority", 256, "{max_value_exceeded,256}")

_bad("QUEUE-44", "x-dead-letter-routing-key", "k", "routing_key_but_no_dlx_defined")
_bad(
    "QUEUE-44",
    "x-dead-letter-routing-key",
    5,
    "{unacceptable_type,signedint}",
    beside={"x-dead-letter-exchange": ""},
)
_bad("QUEUE-48", "x-overflow", "drop-tail", "invalid_overflow")
_bad("QUEUE-48", "x-overflow", 1, "{unacceptable_type,signedint}")
_bad("QUEUE-50", "x-single-active-consumer", "yes", "{unacceptable_type,longstr}")
_bad("QUEUE-57", "x-queue-mode", "eager", "\"unsupported queue mode 'eager'\"")
_bad("QUEUE-57", "x-queue-mode", 1, "{unacceptable_type,signedint}")
_bad("QUEUE-57", "x-queue-version", "2", NOT_INTEGER.format("longstr"))
_bad(
    "QUEUE-57",
    "x-queue-master-locator",
    1,
    "{unacceptable_type,signedint}",
    referee_reason="C-34: fails with 541",
)
_bad("QUEUE-45", "x-dead-letter-strategy", "maybe", "invalid_dlx_strategy", mark="+")
_bad("QUEUE-51", "x-delivery-limit", "3", NOT_INTEGER.format("longstr"), mark="+")
_bad("QUEUE-52", "x-consumer-timeout", "3", NOT_INTEGER.format("longstr"), mark="≡4")
_bad("QUEUE-52", "x-consumer-timeout", -1, "{value_negative,-1}", mark="≡4")
_bad("QUEUE-53", "x-delayed-retry-min", "3", NOT_INTEGER.format("longstr"), mark="+")


def _bad_dlx(value: Plain, kind: str, stage: Stage) -> None:
    channel = stage.channel()
    queue = stage.name()
    text = (
        f"PRECONDITION_FAILED - invalid type '{kind}' for arg 'x-dead-letter-exchange' in "
        f"{stage.the_queue(queue)}"
    )
    with channel.soft(406, text, "queue.declare"):
        channel.call("queue.declare", queue=queue, arguments={"x-dead-letter-exchange": value})


for _value, _kind in ((5, "signedint"), (True, "bool"), (None, "void"), ({}, "table")):
    case("QUEUE-59", says=f"x-dead-letter-exchange of type {_kind} has a text of its own")(
        partial(_bad_dlx, _value, _kind)
    )
case("QUEUE-43", says="x-dead-letter-exchange must be a longstr")(
    partial(_bad_dlx, Typed("x", b"x"), "binary")
)

_bad("QUEUE-40", "x-queue-type", "express", "\"unsupported queue type 'express'\"")
_bad("QUEUE-40", "x-queue-type", 1, "{unacceptable_type,signedint}")


# Arguments that only other queue types know.
def _wrong_type(argument: str, value: Plain, stage: Stage) -> None:
    channel = stage.channel()
    queue = stage.name()
    text = (
        f"PRECONDITION_FAILED - invalid arg '{argument}' for {stage.the_queue(queue)} "
        "of queue type rabbit_classic_queue"
    )
    with channel.soft(406, text, "queue.declare"):
        channel.call("queue.declare", queue=queue, durable=True, arguments={argument: value})


for _rule, _name, _given in (
    ("QUEUE-55", "x-max-age", "1D"),
    ("QUEUE-56", "x-stream-max-segment-size-bytes", 1000),
):
    case(_rule, says=f"{_name} on a classic queue is soft 406")(partial(_wrong_type, _name, _given))


@case("QUEUE-58", says="several bad arguments: the queue is not created")
def nothing_is_created(stage: Stage) -> None:
    channel = stage.channel()
    queue = stage.name()
    channel.soft_again(
        406,
        None,
        "queue.declare",
        queue=queue,
        arguments={"x-max-length": -1, "x-overflow": "nonsense"},
    )
    with channel.soft(404, None, "queue.declare"):
        channel.call("queue.declare", queue=queue, passive=True)


@case("QUEUE-10", says="the reserved prefix is checked before the arguments")
def prefix_before_arguments(stage: Stage) -> None:
    text = "ACCESS_REFUSED - queue name 'amq.conformance' contains reserved prefix 'amq.*'"
    stage.channel().soft_again(
        403, text, "queue.declare", queue="amq.conformance", arguments={"x-max-length": -1}
    )


@case("QUEUE-10", says="equivalence is checked before the arguments are")
def equivalence_before_arguments(stage: Stage) -> None:
    channel = stage.channel()
    queue = stage.queue(channel)
    text = (
        f"PRECONDITION_FAILED - inequivalent arg 'durable' for {stage.the_queue(queue)}: "
        "received 'true' but current is 'false'"
    )
    channel.soft_again(
        406,
        text,
        "queue.declare",
        queue=queue,
        durable=True,
        arguments={"x-dead-letter-routing-key": "k"},
    )


@case("QUEUE-22", says="a number that differs is shown without types on either side")
def numbers_differ(stage: Stage) -> None:
    channel = stage.channel()
    queue = stage.queue(channel, arguments={"x-queue-version": Typed("s", 1)})
    text = (
        f"PRECONDITION_FAILED - inequivalent arg 'x-queue-version' for {stage.the_queue(queue)}: "
        "received '2' but current is '1'"
    )
    channel.soft_again(
        406, text, "queue.declare", queue=queue, arguments={"x-queue-version": Typed("l", 2)}
    )
