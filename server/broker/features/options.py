"""The options of queues and exchanges: one table for x-arguments and policies alike.

A row says of which type and range a value is, which queue types have the argument, which policies
may hold the key, and what counts where argument, policy and operator policy meet. The checks of a
declaration, its equivalence, the checks of policies, the values in effect (`effective.py`) and the
tests of the documentation all read it. To add an option, add a row; the feature that it is for
reads its value under the key of the row.

Must not know what an option does.

Spec: QUEUE-40 … QUEUE-59, EXCH-09, POLICY-05 … POLICY-08
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

from vouchmq.protocol.errors import PreconditionFailed
from vouchmq.protocol.fields import Field, Table, as_integer, as_text, type_name
from vouchmq.server.broker.equivalence import require_same_argument

X_QUEUE_TYPE: Final = "x-queue-type"
X_DEAD_LETTER_EXCHANGE: Final = "x-dead-letter-exchange"
CONSUMER_TIMEOUT: Final = "consumer-timeout"
X_DEDUPLICATION: Final = "x-message-deduplication"
X_CACHE_SIZE: Final = "x-cache-size"
X_CACHE_TTL: Final = "x-cache-ttl"
X_CACHE_PERSISTENCE: Final = "x-cache-persistence"
X_HEADER: Final = "x-deduplication-header"
X_DEDUP_DEAD_LETTER: Final = "x-deduplication-dead-letter"
MESSAGE_ID: Final = "message-id"
# What an ordinary exchange remembers that says nothing about it (DUP-03).
DEFAULT_SIZE: Final = 10_000
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

# What a policy's definition holds: values of JSON.
Value = object

ArgumentCheck = Callable[[Field, Table], str | None]
"""The `{why}` for which a value is refused, or None; gets all arguments beside the value."""

Rule = Callable[[Value | None, Value | None, Value | None], Value | None]
"""Which of argument, policy and operator policy counts; None: that one says nothing."""

_MAX_AGE: Final = re.compile(r"0*[1-9][0-9]*[YMDhms]", re.ASCII)


def check_arguments(queue: str, arguments: Table) -> None:
    """Check the arguments of a queue to be created; `queue` is the {Q} of the texts.

    First the queue type, then the values of the arguments that it has, then whether there are
    arguments of other types.

    Raises:
        PreconditionFailed: 406, naming the first argument at fault.

    Spec: QUEUE-40 … QUEUE-58
    """
    _check_values(queue, arguments, [_BY_ARGUMENT[X_QUEUE_TYPE]])
    queue_type = queue_type_of(arguments)
    _check_values(queue, arguments, [row for row in ARGUMENTS if queue_type in row.types])
    for name in arguments:
        row = _BY_ARGUMENT.get(name)
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
    for row in ARGUMENTS:
        if queue_type not in row.types:
            continue
        received, existing = declared.get(row.argument), current.get(row.argument)
        if row.argument == X_QUEUE_TYPE and _means_classic(received) and _means_classic(existing):
            continue
        require_same_argument(row.argument, queue, received, existing)


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


def _check_values(queue: str, arguments: Table, rows: list[Option]) -> None:
    for row in rows:
        field = arguments.get(row.argument)
        why = None if field is None else row.check.argument(field, arguments)
        if why is not None:
            raise PreconditionFailed(f"invalid arg '{row.argument}' for {queue}: {why}")


def _means_classic(field: Field | None) -> bool:
    return field is None or as_text(field) == CLASSIC


# What a policy may say.


class InvalidPolicy(ValueError):  # noqa: N818 - it is the policy that is invalid
    """A policy that cannot be; the text says why, in the words that operators know."""


def check_definition(definition: Mapping[str, Value]) -> None:
    """Check the definition of a policy.

    Raises:
        InvalidPolicy: it is empty, has an unknown key, or a value that cannot be

    Spec: POLICY-07
    """
    _check(definition, POLICY_KEYS)


def check_operator_definition(definition: Mapping[str, Value]) -> None:
    """Check the definition of an operator policy, which may say less.

    Raises:
        InvalidPolicy: it is empty, has a key that is not for operators, or a bad value

    Spec: POLICY-08
    """
    _check(definition, OPERATOR_POLICY_KEYS)


def _check(definition: Mapping[str, Value], keys: Mapping[str, Option]) -> None:
    if not definition:
        raise InvalidPolicy("no policy provided")
    unknown = {name: value for name, value in definition.items() if name not in keys}
    if unknown:
        raise InvalidPolicy(f"{term(unknown)} are not recognised policy settings")
    for name, value in definition.items():
        if not keys[name].check.policy(value):
            raise InvalidPolicy(f"{term(value)} is not a valid {keys[name].policy_term}")


def term(value: Value) -> str:
    """A value of JSON as RabbitMQ shows it in texts."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        quoted = value.replace("\\", "\\\\").replace('"', '\\"')
        return f'<<"{quoted}">>'
    if isinstance(value, dict):
        pairs = (f"{{{term(name)},{term(each)}}}" for name, each in value.items())
        return f"[{','.join(pairs)}]"
    if isinstance(value, list):
        return f"[{','.join(map(term, value))}]"
    return "null" if value is None else str(value)


def resolve(
    key: str,
    argument: Value | None,
    policy: Value | None,
    operator: Value | None,
    queue_type: str = CLASSIC,
) -> Value | None:
    """The value of a key that counts; None stands for a value that is not given, and for none.

    Spec: POLICY-05, POLICY-06, TTL-01, TTL-23, LEN-25, REDELIVER-10
    """
    row = _BY_NAME.get(key)
    rule = argument_first if row is None else row.rule_of(queue_type)
    return rule(argument, policy, operator)


def merged(
    policy: Mapping[str, Value], operator: Mapping[str, Value], queue_type: str = CLASSIC
) -> dict[str, Value]:
    """A policy and an operator policy together, key by key.

    Spec: POLICY-03, POLICY-09
    """
    result: dict[str, Value] = {}
    for key in dict.fromkeys([*policy, *operator]):
        if key in policy and key in operator:
            result[key] = resolve(key, None, policy[key], operator[key], queue_type)
        else:
            result[key] = policy.get(key, operator.get(key))
    return result


# Which of argument, policy and operator policy counts.


def argument_first(
    argument: Value | None, policy: Value | None, operator: Value | None
) -> Value | None:
    """The argument, else the policy; no operator policy holds such a key."""
    del operator
    return _first(argument, policy)


def operator_first(
    argument: Value | None, policy: Value | None, operator: Value | None
) -> Value | None:
    """The operator policy, else the argument, else the policy."""
    return _first(operator, argument, policy)


def argument_last(
    argument: Value | None, policy: Value | None, operator: Value | None
) -> Value | None:
    """The operator policy, else the policy, else the argument."""
    return _first(operator, policy, argument)


def smallest(argument: Value | None, policy: Value | None, operator: Value | None) -> Value | None:
    """The smallest of the numbers given."""
    numbers = (each for each in (argument, policy, operator) if isinstance(each, int))
    return min(numbers, default=None)


def smallest_limit(
    argument: Value | None, policy: Value | None, operator: Value | None
) -> Value | None:
    """The smallest number that is not negative: a negative one is no limit."""
    given = [each for each in (argument, policy, operator) if isinstance(each, int)]
    return min((each for each in given if each >= 0), default=_first(*given))


def smallest_time(
    argument: Value | None, policy: Value | None, operator: Value | None
) -> Value | None:
    """The smallest number above 0: 0 is no limit, and counts if there is no other."""
    given = [each for each in (argument, policy, operator) if isinstance(each, int)]
    return min((each for each in given if each > 0), default=_first(*given))


def smallest_but_for_policies(
    argument: Value | None, policy: Value | None, operator: Value | None
) -> Value | None:
    """The argument if it is smaller than the larger one of the policies."""
    numbers = [each for each in (policy, operator) if isinstance(each, int)]
    return smallest(argument, max(numbers, default=None), None)


def _first(*values: Value | None) -> Value | None:
    return next((value for value in values if value is not None), None)


# What a value may be.


class Check(NamedTuple):
    """What a value may be: of an argument, typed on the wire, and of JSON in a policy."""

    argument: ArgumentCheck
    policy: Callable[[Value], bool]


def _unacceptable(field: Field) -> str:
    return f"{{unacceptable_type,{type_name(field)}}}"


def _no_integer(field: Field) -> str:
    return f'"expected integer, got {type_name(field)}"'


def _integer_within(
    minimum: int, maximum: int | None = None, too_large: str = "value_too_large"
) -> Check:
    def argument(field: Field, arguments: Table) -> str | None:
        value = as_integer(field)
        if value is None:
            return _no_integer(field)
        if value < 0:
            return f"{{value_negative,{value}}}"
        if value < minimum:
            return f"{{value_zero,{value}}}"
        if maximum is not None and value > maximum:
            return f"{{{too_large},{value}}}"
        return None

    def policy(value: Value) -> bool:
        if not isinstance(value, int) or isinstance(value, bool):
            return False
        return minimum <= value and (maximum is None or value <= maximum)

    return Check(argument, policy)


def _one_of(*values: str, otherwise: str = "") -> Check:
    """One of some strings; `otherwise` is the why for another one, with {} for its value."""

    def argument(field: Field, arguments: Table) -> str | None:
        value = as_text(field)
        if value is None:
            return _unacceptable(field)
        return None if value in values else otherwise.replace("{}", value)

    return Check(argument, lambda value: isinstance(value, str) and value in values)


def _text_argument(field: Field, arguments: Table) -> str | None:
    return None if field.kind == "S" else _unacceptable(field)


def _is_text(value: Value) -> bool:
    return isinstance(value, str)


def _routing_key_argument(field: Field, arguments: Table) -> str | None:
    if field.kind != "S":
        return _unacceptable(field)
    if X_DEAD_LETTER_EXCHANGE not in arguments:
        return "routing_key_but_no_dlx_defined"
    return None


def _multiplier_argument(field: Field, arguments: Table) -> str | None:
    value = field.value
    if field.kind in "fd" and isinstance(value, float):
        return None if value >= 1 else f"{{value_too_small,{value}}}"
    number = as_integer(field)
    if number is None:
        return f'"expected number, got {type_name(field)}"'
    return None if number >= 1 else f"{{value_too_small,{number}}}"


def _is_multiplier(value: Value) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and value >= 1


def _version_argument(field: Field, arguments: Table) -> str | None:
    value = as_integer(field)
    if value is None or value < 0:
        return not_negative(field, arguments)
    return None if value in {1, 2} else f"\"unsupported queue version '{value}'\""


def _max_age_argument(field: Field, arguments: Table) -> str | None:
    value = as_text(field)
    if value is None:
        return _unacceptable(field)
    return None if _MAX_AGE.fullmatch(value) else "invalid_max_age"


_COUNT: Final = _integer_within(0)
_POSITIVE: Final = _integer_within(1)
_INTEGER: Final = Check(
    lambda field, _: None if as_integer(field) is not None else _no_integer(field),
    lambda value: type(value) is int,
)
_TEXT: Final = Check(_text_argument, _is_text)
_TEXTS: Final = Check(_text_argument, lambda value: isinstance(value, str | int | list))
_BOOLEAN: Final = Check(
    lambda field, _: None if field.kind == "t" else _unacceptable(field),
    lambda value: isinstance(value, bool),
)
_ROUTING_KEY: Final = Check(_routing_key_argument, _is_text)
_MULTIPLIER: Final = Check(_multiplier_argument, _is_multiplier)
_VERSION: Final = Check(_version_argument, lambda value: type(value) is int and value in {1, 2})
_MAX_AGE_TEXT: Final = Check(
    _max_age_argument,
    lambda value: isinstance(value, str) and _MAX_AGE.fullmatch(value) is not None,
)
# Consumers have an argument of this kind, too.
not_negative: Final = _COUNT.argument


# The table.

_ALL: Final = (CLASSIC, QUORUM, STREAM)
_NO_STREAM: Final = (CLASSIC, QUORUM)
_STREAM_ONLY: Final = (STREAM,)
# In streams the operator policy counts first, and arguments count least.
_LAST_IN_STREAMS: Final[Mapping[str, Rule]] = {STREAM: argument_last}


class Option(NamedTuple):
    """One row.

    Attributes:
        name: the key in a policy; the argument is called the same, with `x-` before it
        check: what a value may be
        types: the queue types that have the argument, empty: no queue has
        policy_term: what a text of an invalid policy calls the value, empty: no policy holds it
        is_for_operators: whether an operator policy may hold the key as well
        rule: what counts where argument, policy and operator policy meet
        rules_by_type: the queue types for which another rule holds
        default: the value with which a queue is as without the option; None: there is none
        page: of the guide that tells what the option does, empty: it is accepted, without effect
    """

    name: str
    check: Check
    types: tuple[str, ...] = ()
    policy_term: str = ""
    is_for_operators: bool = False
    rule: Rule = argument_first
    rules_by_type: Mapping[str, Rule] = {}
    default: Value | None = None
    page: str = ""

    @property
    def argument(self) -> str:
        """The name of the argument."""
        return f"x-{self.name}"

    def rule_of(self, queue_type: str) -> Rule:
        """What counts for a queue of this type."""
        return self.rules_by_type.get(queue_type, self.rule)


# Arguments in the order of RabbitMQ's own list as far as it has them, so that of several faults in
# one declaration the same one is reported.
OPTIONS: Final[tuple[Option, ...]] = (
    Option(
        "expires",
        _integer_within(1, TEN_YEARS_MS),
        _NO_STREAM,
        "queue expiry",
        is_for_operators=True,
        rule=smallest,
        page="expiry.md",
    ),
    Option(
        "message-ttl",
        _integer_within(0, TEN_YEARS_MS),
        _NO_STREAM,
        "message TTL",
        is_for_operators=True,
        rule=smallest,
        page="expiry.md",
    ),
    Option(
        "dead-letter-exchange",
        _TEXT,
        _NO_STREAM,
        "dead letter exchange name",
        page="dead-letters.md",
    ),
    Option(
        "dead-letter-routing-key",
        _ROUTING_KEY,
        _NO_STREAM,
        "dead letter routing key",
        page="dead-letters.md",
    ),
    Option(
        "dead-letter-strategy",
        _one_of("at-most-once", "at-least-once", otherwise="invalid_dlx_strategy"),
        _NO_STREAM,
        "dead letter strategy",
        default="at-most-once",
        page="dead-letters.md",
    ),
    Option(
        "max-length",
        _COUNT,
        _ALL,
        "maximum length",
        is_for_operators=True,
        rule=smallest,
        page="limits.md",
    ),
    Option(
        "max-length-bytes",
        _COUNT,
        _ALL,
        "maximum length in bytes",
        is_for_operators=True,
        rule=smallest,
        rules_by_type=_LAST_IN_STREAMS,
        page="limits.md",
    ),
    Option(
        "max-in-memory-length", _COUNT, _ALL, "maximum memory in messages", is_for_operators=True
    ),
    Option("max-in-memory-bytes", _COUNT, _ALL, "maximum memory in bytes", is_for_operators=True),
    Option(
        "max-priority",
        _integer_within(0, MAX_PRIORITY, "max_value_exceeded"),
        (CLASSIC,),
        default=0,
        page="priorities.md",
    ),
    Option(
        "overflow",
        _one_of(
            "drop-head",
            "drop-lowest",
            "reject-publish",
            "reject-publish-dlx",
            otherwise="invalid_overflow",
        ),
        _NO_STREAM,
        "overflow value",
        is_for_operators=True,
        rule=operator_first,
        rules_by_type={QUORUM: argument_last},
        page="limits.md",
    ),
    Option(
        "queue-mode",
        _one_of("default", "lazy", otherwise="\"unsupported queue mode '{}'\""),
        _ALL,
        "queue-mode value",
    ),
    Option("queue-version", _VERSION, _ALL, "queue version", is_for_operators=True),
    Option("single-active-consumer", _BOOLEAN, _NO_STREAM, default=False, page="consumers.md"),
    Option(
        "queue-type",
        _one_of(CLASSIC, QUORUM, STREAM, otherwise="\"unsupported queue type '{}'\""),
        _ALL,
        page="quorum.md",
    ),
    Option("queue-master-locator", _TEXT, _ALL, "queue master locator", is_for_operators=True),
    Option(
        "delivery-limit",
        _INTEGER,
        _NO_STREAM,
        "delivery limit",
        is_for_operators=True,
        rule=smallest_limit,
        page="redelivery.md",
    ),
    Option(
        CONSUMER_TIMEOUT,
        _COUNT,
        _NO_STREAM,
        "consumer timeout",
        is_for_operators=True,
        rule=smallest_time,
        page="consumers.md",
    ),
    Option(
        "delayed-retry-type",
        _one_of("disabled", "all", "failed", "returned", otherwise="invalid_delayed_retry_type"),
        _NO_STREAM,
        "delayed retry type",
        is_for_operators=True,
        rule=argument_last,
        default="disabled",
        page="redelivery.md",
    ),
    Option(
        "delayed-retry-min",
        _COUNT,
        _NO_STREAM,
        "delayed retry minimum",
        is_for_operators=True,
        rule=smallest_but_for_policies,
        page="redelivery.md",
    ),
    Option(
        "delayed-retry-max",
        _COUNT,
        _NO_STREAM,
        "delayed retry maximum",
        is_for_operators=True,
        rule=smallest,
        page="redelivery.md",
    ),
    Option(
        "delayed-retry-backoff",
        _one_of("linear", "exponential", otherwise="invalid_delayed_retry_backoff"),
        _NO_STREAM,
        "delayed retry backoff",
        default="linear",
        page="redelivery.md",
    ),
    Option(
        "delayed-retry-multiplier",
        _MULTIPLIER,
        _NO_STREAM,
        "delayed retry multiplier",
        page="redelivery.md",
    ),
    Option("message-deduplication", _BOOLEAN, _NO_STREAM, default=False, page="deduplication.md"),
    Option("cache-size", _POSITIVE, _NO_STREAM, page="deduplication.md"),
    Option("cache-ttl", _POSITIVE, _NO_STREAM, page="deduplication.md"),
    Option(
        "cache-persistence",
        _one_of("memory", "disk", otherwise="invalid_cache_persistence"),
        _NO_STREAM,
        default="disk",
        page="deduplication.md",
    ),
    Option("deduplication-header", _TEXT, _NO_STREAM, page="deduplication.md"),
    Option(
        "deduplication-dead-letter", _BOOLEAN, _NO_STREAM, default=False, page="deduplication.md"
    ),
    Option(
        "max-age",
        _MAX_AGE_TEXT,
        _STREAM_ONLY,
        "max age",
        rules_by_type=_LAST_IN_STREAMS,
        page="streams.md",
    ),
    Option(
        "stream-max-segment-size-bytes",
        _COUNT,
        _STREAM_ONLY,
        "segment size",
        rules_by_type=_LAST_IN_STREAMS,
        page="streams.md",
    ),
    Option(
        "stream-filter-size-bytes",
        _COUNT,
        _STREAM_ONLY,
        "filter size",
        rules_by_type=_LAST_IN_STREAMS,
    ),
    Option("quorum-initial-group-size", _COUNT, _ALL),
    Option("initial-cluster-size", _COUNT, _ALL, "cluster size"),
    Option("queue-leader-locator", _TEXT, _ALL, "queue leader locator value"),
    Option("consumer-disconnected-timeout", _COUNT, _ALL, "consumer disconnected timeout"),
    Option("member-placement-tag", _TEXT, _ALL),
    # Keys of policies only.
    Option("alternate-exchange", _TEXT, (), "alternate exchange name", page="routing.md"),
    Option("delayed-message", _BOOLEAN, (), "delayed-message value", page="delays.md"),
    Option("target-group-size", _COUNT, (), "target group size", is_for_operators=True),
    Option("ha-mode", _one_of("all", "exactly", "nodes"), (), "ha-mode"),
    Option("ha-params", _TEXTS, (), "ha-params"),
    Option("ha-sync-mode", _one_of("manual", "automatic"), (), "ha-sync-mode"),
    Option("ha-sync-batch-size", _POSITIVE, (), "ha-sync-batch-size"),
    Option(
        "ha-promote-on-shutdown", _one_of("always", "when-synced"), (), "ha-promote-on-shutdown"
    ),
    Option("ha-promote-on-failure", _one_of("always", "when-synced"), (), "ha-promote-on-failure"),
    Option("federation-upstream", _TEXT, (), "federation upstream"),
    Option("federation-upstream-set", _TEXT, (), "federation upstream set"),
    Option("federation-upstream-pattern", _TEXT, (), "federation upstream pattern"),
)
ARGUMENTS: Final = tuple(row for row in OPTIONS if row.types)
POLICY_KEYS: Final = {row.name: row for row in OPTIONS if row.policy_term}
OPERATOR_POLICY_KEYS: Final = {
    name: row for name, row in POLICY_KEYS.items() if row.is_for_operators
}
# What makes a queue another; a queue's type is not merged with policies.
EFFECTIVE: Final = {row.name: row for row in ARGUMENTS if row.page and row.argument != X_QUEUE_TYPE}
ARGUMENT_KEYS: Final = {row.argument: row.name for row in ARGUMENTS}
_BY_NAME: Final = {row.name: row for row in OPTIONS}
_BY_ARGUMENT: Final = {row.argument: row for row in ARGUMENTS}
