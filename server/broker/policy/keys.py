"""The keys of policies: what each may say, and which of several values counts.

One table, one row per key. Must not know which object it applies to, nor how a feature works.

Spec: POLICY-05 … POLICY-08
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final, NamedTuple

from vouchmq.server.broker.features.arguments import CLASSIC, QUORUM, STREAM, TEN_YEARS_MS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

# What a definition holds: values of JSON.
Value = object


class InvalidPolicy(ValueError):  # noqa: N818 - it is the policy that is invalid
    """A policy that cannot be; the text says why, in the words that operators know.

    HTTP answers 400 with `reason` (POLICY-07).
    """

    @property
    def reason(self) -> str:
        """The text under its heading."""
        return f"Validation failed\n\n{self}\n"


# What a value may be.


def _integer_within(low: int, high: int | None = None) -> Callable[[Value], bool]:
    def check(value: Value) -> bool:
        if not isinstance(value, int) or isinstance(value, bool):
            return False
        return low <= value and (high is None or value <= high)

    return check


def _any_integer(value: Value) -> bool:
    return type(value) is int


def _multiplier(value: Value) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and value >= 1


def _text(value: Value) -> bool:
    return isinstance(value, str)


def _texts(value: Value) -> bool:
    return isinstance(value, str | int | list)


def _boolean(value: Value) -> bool:
    return isinstance(value, bool)


def _one_of(*values: Value) -> Callable[[Value], bool]:
    return lambda value: any(value == each and type(value) is type(each) for each in values)


_MAX_AGE: Final = re.compile(r"0*[1-9][0-9]*[YMDhms]", re.ASCII)


def _max_age(value: Value) -> bool:
    return isinstance(value, str) and _MAX_AGE.fullmatch(value) is not None


_COUNT: Final = _integer_within(0)


class Key(NamedTuple):
    """One row: the key, what its value may be, and what an invalid one is not."""

    name: str
    check: Callable[[Value], bool]
    meaning: str
    for_operators: bool = False


_ROWS: Final[tuple[Key, ...]] = (
    Key("message-ttl", _integer_within(0, TEN_YEARS_MS), "message TTL", True),
    Key("expires", _integer_within(1, TEN_YEARS_MS), "queue expiry", True),
    Key("max-length", _COUNT, "maximum length", True),
    Key("max-length-bytes", _COUNT, "maximum length in bytes", True),
    Key("delivery-limit", _any_integer, "delivery limit", True),
    Key(
        "overflow",
        _one_of("drop-head", "drop-lowest", "reject-publish", "reject-publish-dlx"),
        "overflow value",
        True,
    ),
    Key("dead-letter-exchange", _text, "dead letter exchange name"),
    Key("dead-letter-routing-key", _text, "dead letter routing key"),
    Key("dead-letter-strategy", _one_of("at-most-once", "at-least-once"), "dead letter strategy"),
    Key("alternate-exchange", _text, "alternate exchange name"),
    Key("consumer-timeout", _COUNT, "consumer timeout"),
    Key(
        "delayed-retry-type",
        _one_of("disabled", "all", "failed", "returned"),
        "delayed retry type",
    ),
    Key("delayed-retry-min", _COUNT, "delayed retry minimum"),
    Key("delayed-retry-max", _COUNT, "delayed retry maximum"),
    Key("delayed-retry-backoff", _one_of("linear", "exponential"), "delayed retry backoff"),
    Key("delayed-retry-multiplier", _multiplier, "delayed retry multiplier"),
    Key("delayed-message", _boolean, "delayed-message value"),
    Key("max-age", _max_age, "max age"),
    Key("stream-max-segment-size-bytes", _COUNT, "segment size"),
    Key("stream-filter-size-bytes", _COUNT, "filter size"),
    # These have no effect here and are shown only.
    Key("queue-mode", _one_of("default", "lazy"), "queue-mode value"),
    Key("queue-version", _one_of(1, 2), "queue version", True),
    Key("queue-leader-locator", _text, "queue leader locator value"),
    Key("queue-master-locator", _text, "queue master locator"),
    Key("initial-cluster-size", _COUNT, "cluster size"),
    Key("target-group-size", _COUNT, "target group size", True),
    Key("max-in-memory-length", _COUNT, "maximum memory in messages", True),
    Key("max-in-memory-bytes", _COUNT, "maximum memory in bytes", True),
    Key("consumer-disconnected-timeout", _COUNT, "consumer disconnected timeout"),
    Key("ha-mode", _one_of("all", "exactly", "nodes"), "ha-mode"),
    Key("ha-params", _texts, "ha-params"),
    Key("ha-sync-mode", _one_of("manual", "automatic"), "ha-sync-mode"),
    Key("ha-sync-batch-size", _integer_within(1), "ha-sync-batch-size"),
    Key("ha-promote-on-shutdown", _one_of("always", "when-synced"), "ha-promote-on-shutdown"),
    Key("ha-promote-on-failure", _one_of("always", "when-synced"), "ha-promote-on-failure"),
    Key("federation-upstream", _text, "federation upstream"),
    Key("federation-upstream-set", _text, "federation upstream set"),
    Key("federation-upstream-pattern", _text, "federation upstream pattern"),
)
KEYS: Final = {row.name: row for row in _ROWS}
OPERATOR_KEYS: Final = {row.name: row for row in _ROWS if row.for_operators}

# Which of argument, policy and operator policy counts.
SMALLEST: Final = frozenset({"message-ttl", "expires", "max-length", "max-length-bytes"})
LIMIT: Final = "delivery-limit"
OVERFLOW: Final = "overflow"
# In streams the operator's word is the last one, and arguments count least.
STREAM_KEYS: Final = frozenset(
    {
        "max-age",
        "max-length-bytes",
        "stream-max-segment-size-bytes",
        "stream-filter-size-bytes",
    }
)


def check_definition(definition: Mapping[str, Value]) -> None:
    """Check the definition of a policy.

    Raises:
        InvalidPolicy: it is empty, has an unknown key, or a value that cannot be

    Spec: POLICY-07
    """
    _check(definition, KEYS)


def check_operator_definition(definition: Mapping[str, Value]) -> None:
    """Check the definition of an operator policy, which may say less.

    Raises:
        InvalidPolicy: it is empty, has a key that is not for operators, or a bad value

    Spec: POLICY-08
    """
    _check(definition, OPERATOR_KEYS)


def _check(definition: Mapping[str, Value], keys: Mapping[str, Key]) -> None:
    if not definition:
        raise InvalidPolicy("no policy provided")
    unknown = {name: value for name, value in definition.items() if name not in keys}
    if unknown:
        raise InvalidPolicy(f"{term(unknown)} are not recognised policy settings")
    for name, value in definition.items():
        if not keys[name].check(value):
            raise InvalidPolicy(f"{term(value)} is not a valid {keys[name].meaning}")


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
    if queue_type == STREAM and key in STREAM_KEYS:
        return _first(operator, policy, argument)
    if key in SMALLEST:
        return _smallest(argument, policy, operator)
    if key == LIMIT:
        given = [each for each in (argument, policy, operator) if isinstance(each, int)]
        # A negative one is no limit.
        return min((each for each in given if each >= 0), default=_first(*given))
    if key == OVERFLOW:
        if queue_type == QUORUM:
            return _first(operator, policy, argument)
        return _first(operator, argument, policy)
    return _first(argument, policy)


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


def _first(*values: Value | None) -> Value | None:
    return next((value for value in values if value is not None), None)


def _smallest(*values: Value | None) -> int | None:
    numbers: Iterable[int] = (each for each in values if isinstance(each, int))
    return min(numbers, default=None)
