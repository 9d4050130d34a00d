"""The x-arguments of queues: one table, one row per argument.

A row says of which type and range an argument is, and for which queue types.
Must not know what an argument does; whoever does it reads it from the queue's spec.

Spec: QUEUE-40 … QUEUE-59, EXCH-09
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final, NamedTuple

from vouchmq.protocol.errors import PreconditionFailed
from vouchmq.protocol.fields import Field, Table, as_integer, as_text, type_name
from vouchmq.server.broker.equivalence import require_same_argument

X_QUEUE_TYPE: Final = "x-queue-type"
X_DEAD_LETTER_EXCHANGE: Final = "x-dead-letter-exchange"
TEN_YEARS_MS: Final = 315_360_000_000
MAX_PRIORITY: Final = 255
# Highest level and that of messages without a priority, in a quorum-type queue (PRIO-07).
QUORUM_LEVELS: Final = (31, 4)

CLASSIC: Final = "classic"
QUORUM: Final = "quorum"
STREAM: Final = "stream"
# What error texts call the types: RabbitMQ's module names (5.3).
TYPE_NAMES: Final = {
    CLASSIC: "rabbit_classic_queue",
    QUORUM: "rabbit_quorum_queue",
    STREAM: "rabbit_stream_queue",
}

Check = Callable[[Field, Table], str | None]
"""The `{why}` for which a value is refused, or None; gets all arguments beside the value."""

_MAX_AGE: Final = re.compile(r"0*[1-9][0-9]*[YMDhms]", re.ASCII)


def check_arguments(queue: str, arguments: Table) -> None:
    """Check the arguments of a queue to be created; `queue` is the {Q} of the texts.

    First the queue type, then the values of the arguments that it has, then whether there are
    arguments of other types.

    Raises:
        PreconditionFailed: 406, naming the first argument at fault.

    Spec: QUEUE-40 … QUEUE-58
    """
    _check_values(queue, arguments, [_BY_NAME[X_QUEUE_TYPE]])
    queue_type = queue_type_of(arguments)
    _check_values(queue, arguments, [row for row in QUEUE_ARGUMENTS if queue_type in row.types])
    for name in arguments:
        row = _BY_NAME.get(name)
        if row is not None and queue_type not in row.types:
            raise PreconditionFailed(
                f"invalid arg '{name}' for {queue} of queue type {TYPE_NAMES[queue_type]}"
            )


def require_equivalent_arguments(queue: str, declared: Table, current: Table) -> None:
    """Compare the arguments known to the existing queue's type; others do not count.

    Raises:
        PreconditionFailed: 406, naming the first difference.

    Spec: QUEUE-21, QUEUE-23
    """
    queue_type = queue_type_of(current)
    for row in QUEUE_ARGUMENTS:
        if queue_type not in row.types:
            continue
        received, existing = declared.get(row.name), current.get(row.name)
        if row.name == X_QUEUE_TYPE and _means_classic(received) and _means_classic(existing):
            continue
        require_same_argument(row.name, queue, received, existing)


def dead_letter_exchange(queue: str, arguments: Table) -> str | None:
    """The exchange named for dead letters, None when there is none.

    Raises:
        PreconditionFailed: 406, the argument is no longstr.

    Spec: QUEUE-59
    """
    field = arguments.get(X_DEAD_LETTER_EXCHANGE)
    name = as_text(field)
    if field is not None and name is None:
        raise PreconditionFailed(
            f"invalid type '{type_name(field)}' for arg '{X_DEAD_LETTER_EXCHANGE}' in {queue}"
        )
    return name


def queue_type_of(arguments: Table) -> str:
    """`classic`, `quorum` or `stream`, given arguments that passed the check."""
    return as_text(arguments.get(X_QUEUE_TYPE)) or CLASSIC


def levels_of(arguments: Table) -> tuple[int, int]:
    """The highest priority level of a queue, 0: there are none, and that of messages without one.

    Spec: PRIO-01, PRIO-07
    """
    if queue_type_of(arguments) == QUORUM:
        return QUORUM_LEVELS
    return as_integer(arguments.get("x-max-priority")) or 0, 0


def _check_values(queue: str, arguments: Table, rows: list[Argument]) -> None:
    for row in rows:
        field = arguments.get(row.name)
        why = None if field is None else row.check(field, arguments)
        if why is not None:
            raise PreconditionFailed(f"invalid arg '{row.name}' for {queue}: {why}")


def _means_classic(field: Field | None) -> bool:
    return field is None or as_text(field) == CLASSIC


# What a value may be.


def _unacceptable(field: Field) -> str:
    return f"{{unacceptable_type,{type_name(field)}}}"


def _integer(field: Field, arguments: Table) -> str | None:
    if as_integer(field) is None:
        return f'"expected integer, got {type_name(field)}"'
    return None


def _integer_within(
    minimum: int, maximum: int | None = None, too_large: str = "value_too_large"
) -> Check:
    def check(field: Field, arguments: Table) -> str | None:
        value = as_integer(field)
        if value is None:
            return _integer(field, arguments)
        if value < 0:
            return f"{{value_negative,{value}}}"
        if value < minimum:
            return f"{{value_zero,{value}}}"
        if maximum is not None and value > maximum:
            return f"{{{too_large},{value}}}"
        return None

    return check


def _one_of(*values: str, otherwise: str) -> Check:
    """One of some strings; `otherwise` is the why for another one, with {} for its value."""

    def check(field: Field, arguments: Table) -> str | None:
        value = as_text(field)
        if value is None:
            return _unacceptable(field)
        return None if value in values else otherwise.replace("{}", value)

    return check


def _text(field: Field, arguments: Table) -> str | None:
    return None if field.kind == "S" else _unacceptable(field)


def _boolean(field: Field, arguments: Table) -> str | None:
    return None if field.kind == "t" else _unacceptable(field)


def _anything(field: Field, arguments: Table) -> str | None:
    return None


def _dead_letter_routing_key(field: Field, arguments: Table) -> str | None:
    if field.kind != "S":
        return _unacceptable(field)
    if X_DEAD_LETTER_EXCHANGE not in arguments:
        return "routing_key_but_no_dlx_defined"
    return None


def _multiplier(field: Field, arguments: Table) -> str | None:
    value = field.value
    if field.kind in "fd" and isinstance(value, float):
        return None if value >= 1 else f"{{value_too_small,{value}}}"
    number = as_integer(field)
    if number is None:
        return f'"expected number, got {type_name(field)}"'
    return None if number >= 1 else f"{{value_too_small,{number}}}"


def _queue_version(field: Field, arguments: Table) -> str | None:
    value = as_integer(field)
    if value is None or value < 0:
        return not_negative(field, arguments)
    return None if value in {1, 2} else f"\"unsupported queue version '{value}'\""


def _max_age(field: Field, arguments: Table) -> str | None:
    value = as_text(field)
    if value is None:
        return _unacceptable(field)
    return None if _MAX_AGE.fullmatch(value) else "invalid_max_age"


not_negative: Final = _integer_within(0)
_POSITIVE: Final = _integer_within(1)


class Argument(NamedTuple):
    """One row: name, what its value may be, the queue types that have it."""

    name: str
    check: Check
    types: tuple[str, ...]


_ALL: Final = (CLASSIC, QUORUM, STREAM)
_NO_STREAM: Final = (CLASSIC, QUORUM)

# In the order of RabbitMQ's own list as far as it has them, so that of several faults in one
# declaration the same one is reported.
QUEUE_ARGUMENTS: Final[tuple[Argument, ...]] = (
    Argument("x-expires", _integer_within(1, TEN_YEARS_MS), _NO_STREAM),
    Argument("x-message-ttl", _integer_within(0, TEN_YEARS_MS), _NO_STREAM),
    Argument(X_DEAD_LETTER_EXCHANGE, _text, _NO_STREAM),
    Argument("x-dead-letter-routing-key", _dead_letter_routing_key, _NO_STREAM),
    Argument(
        "x-dead-letter-strategy",
        _one_of("at-most-once", "at-least-once", otherwise="invalid_dlx_strategy"),
        _NO_STREAM,
    ),
    Argument("x-max-length", not_negative, _ALL),
    Argument("x-max-length-bytes", not_negative, _ALL),
    Argument("x-max-in-memory-length", not_negative, _ALL),
    Argument("x-max-in-memory-bytes", not_negative, _ALL),
    Argument(
        "x-max-priority",
        _integer_within(0, MAX_PRIORITY, "max_value_exceeded"),
        (CLASSIC,),
    ),
    Argument(
        "x-overflow",
        _one_of(
            "drop-head",
            "drop-lowest",
            "reject-publish",
            "reject-publish-dlx",
            otherwise="invalid_overflow",
        ),
        _NO_STREAM,
    ),
    Argument(
        "x-queue-mode",
        _one_of("default", "lazy", otherwise="\"unsupported queue mode '{}'\""),
        _ALL,
    ),
    Argument("x-queue-version", _queue_version, _ALL),
    Argument("x-single-active-consumer", _boolean, _NO_STREAM),
    Argument(
        X_QUEUE_TYPE,
        _one_of(CLASSIC, QUORUM, STREAM, otherwise="\"unsupported queue type '{}'\""),
        _ALL,
    ),
    Argument("x-queue-master-locator", _text, _ALL),
    Argument("x-delivery-limit", _integer, _NO_STREAM),
    Argument("x-consumer-timeout", not_negative, _NO_STREAM),
    Argument(
        "x-delayed-retry-type",
        _one_of("disabled", "all", "failed", "returned", otherwise="invalid_delayed_retry_type"),
        _NO_STREAM,
    ),
    Argument("x-delayed-retry-min", not_negative, _NO_STREAM),
    Argument("x-delayed-retry-max", not_negative, _NO_STREAM),
    Argument(
        "x-delayed-retry-backoff",
        _one_of("linear", "exponential", otherwise="invalid_delayed_retry_backoff"),
        _NO_STREAM,
    ),
    Argument("x-delayed-retry-multiplier", _multiplier, _NO_STREAM),
    Argument("x-message-deduplication", _boolean, _NO_STREAM),
    Argument("x-cache-size", _POSITIVE, _NO_STREAM),
    Argument("x-cache-ttl", _POSITIVE, _NO_STREAM),
    Argument(
        "x-cache-persistence",
        _one_of("memory", "disk", otherwise="invalid_cache_persistence"),
        _NO_STREAM,
    ),
    Argument("x-deduplication-header", _text, _NO_STREAM),
    Argument("x-deduplication-dead-letter", _boolean, _NO_STREAM),
    Argument("x-max-age", _max_age, (STREAM,)),
    Argument("x-stream-max-segment-size-bytes", not_negative, (STREAM,)),
    Argument("x-stream-filter-size-bytes", not_negative, (STREAM,)),
    Argument("x-quorum-initial-group-size", not_negative, _ALL),
    Argument("x-initial-cluster-size", not_negative, _ALL),
    Argument("x-queue-leader-locator", _text, _ALL),
    Argument("x-consumer-disconnected-timeout", not_negative, _ALL),
    Argument("x-member-placement-tag", _text, _ALL),
)
_BY_NAME: Final = {row.name: row for row in QUEUE_ARGUMENTS}
