"""The options in effect for a queue: its arguments and policies, worked out once.

Where argument, policy and operator policy meet, the table of `options.py` has decided.
Must not know how a feature works.

Spec: QUEUE-41 … QUEUE-54, POLICY-05, POLICY-06
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache, lru_cache
from typing import TYPE_CHECKING, Final, NamedTuple

from vouchmq.protocol.fields import as_integer, as_text
from vouchmq.server.broker.features.options import (
    QUORUM,
    X_CACHE_PERSISTENCE,
    X_CACHE_SIZE,
    X_CACHE_TTL,
    X_DEDUP_DEAD_LETTER,
    X_DEDUPLICATION,
    X_HEADER,
    levels_of,
    queue_type_of,
    resolve,
)
from vouchmq.server.broker.policy.policies import NO_POLICY
from vouchmq.server.broker.streams.start import interval_ms

if TYPE_CHECKING:
    from vouchmq.protocol.fields import Field, Table
    from vouchmq.server.broker.policy.policies import PolicyMatch

QUORUM_DELIVERY_LIMIT: Final = 20
AT_LEAST_ONCE: Final = "at-least-once"
RETRY_MULTIPLIER: Final = 5.0


class Keys(NamedTuple):
    """What a queue or exchange remembers of keys.

    With neither `size` nor `ttl_ms` a key is known while its message is in the queue (DUP-04).
    """

    header: str = X_HEADER
    size: int | None = None
    ttl_ms: int | None = None
    persists: bool = True
    dead_letters_duplicates: bool = False

    @property
    def follows_messages(self) -> bool:
        """True when a key goes with its message."""
        return self.size is None and self.ttl_ms is None


def keys_of(arguments: Table) -> Keys | None:
    """What arguments ask for, None when they ask for nothing."""
    asked = arguments.get(X_DEDUPLICATION)
    if asked is None or asked.value is not True:
        return None
    dead_letters_duplicates = arguments.get(X_DEDUP_DEAD_LETTER)
    return Keys(
        as_text(arguments.get(X_HEADER)) or X_HEADER,
        as_integer(arguments.get(X_CACHE_SIZE)),
        as_integer(arguments.get(X_CACHE_TTL)),
        as_text(arguments.get(X_CACHE_PERSISTENCE)) != "memory",
        dead_letters_duplicates is not None and dead_letters_duplicates.value is True,
    )


@dataclass(slots=True, frozen=True)
class Features:
    """The features of one queue; None where it has not got one."""

    type: str = "classic"
    message_ttl_ms: int | None = None
    expires_ms: int | None = None
    dead_letter_exchange: str | None = None
    dead_letter_routing_key: str | None = None
    dead_letters_are_safe: bool = False

    keys: Keys | None = None
    max_length: int | None = None
    max_length_octets: int | None = None
    overflow: str | None = None
    single_active: bool = False
    consumer_timeout_ms: int | None = None
    delivery_limit: int | None = None
    retry_type: str | None = None
    retry_min_ms: int | None = None
    retry_max_ms: int | None = None
    retry_is_exponential: bool = False
    retry_multiplier: float = RETRY_MULTIPLIER
    highest_level: int = 0
    default_level: int = 0
    max_age_ms: int | None = None
    segment_octets: int | None = None

    @property
    def counts_returns(self) -> bool:
        """True when it matters how often a message has come back."""
        has_limit = self.delivery_limit is not None and self.delivery_limit >= 0
        retries = self.retry_type not in {None, "disabled"} and bool(self.retry_min_ms)
        return has_limit or retries or self.type == QUORUM

    @property
    def is_limited(self) -> bool:
        """True when it has a length limit."""
        return self.max_length is not None or self.max_length_octets is not None

    @property
    def is_plain(self) -> bool:
        """True when the queue needs no care at all."""
        return self == plain_of(self.type)


@cache
def plain_of(queue_type: str) -> Features:
    """What a queue of a type has that asks for nothing."""
    return Features(type=queue_type)


PLAIN: Final = Features()


class OptionSources:
    """What argument, policy and operator policy together say, key by key.

    Keys are those of policies; the argument `x-message-ttl` is the key `message-ttl`.

    Spec: POLICY-05, POLICY-06
    """

    __slots__ = ("_arguments", "_operator", "_policy", "_type")

    def __init__(self, arguments: Table, policy_match: PolicyMatch) -> None:
        self._arguments = arguments
        self._policy, self._operator = (
            policy_match.policy_definition,
            policy_match.operator_definition,
        )
        self._type = queue_type_of(arguments)

    def value(self, key: str) -> object:
        """What counts in the end, None when nobody says anything."""
        argument = plain(self._arguments.get(f"x-{key}"))
        policy, operator = self._policy.get(key), self._operator.get(key)
        if policy is None and operator is None:
            return argument
        return resolve(key, argument, policy, operator, self._type)

    def number(self, key: str) -> int | None:
        """A value that is an integer."""
        value = self.value(key)
        return value if isinstance(value, int) else None

    def text(self, key: str) -> str | None:
        """A value that is a text."""
        value = self.value(key)
        return value if isinstance(value, str) else None


def features_of(arguments: Table, policy_match: PolicyMatch = NO_POLICY) -> Features:
    """The features that arguments and policies ask for; all of them passed their checks."""
    # What most queues ask for is worked out once for all of them.
    return (
        _without_arguments(policy_match) if not arguments else _worked_out(arguments, policy_match)
    )


@lru_cache(maxsize=64)
def _without_arguments(policy_match: PolicyMatch) -> Features:
    return _worked_out({}, policy_match)


def _worked_out(arguments: Table, policy_match: PolicyMatch) -> Features:
    queue_type = queue_type_of(arguments)
    highest_level, default_level = levels_of(arguments)
    given = OptionSources(arguments, policy_match)
    return Features(
        type=queue_type,
        single_active=is_true(arguments.get("x-single-active-consumer")),
        consumer_timeout_ms=given.number("consumer-timeout"),
        delivery_limit=limit_of(given, queue_type),
        retry_type=given.text("delayed-retry-type"),
        retry_min_ms=given.number("delayed-retry-min"),
        retry_max_ms=given.number("delayed-retry-max"),
        retry_is_exponential=given.text("delayed-retry-backoff") == "exponential",
        retry_multiplier=multiplier_of(given.value("delayed-retry-multiplier")),
        highest_level=highest_level,
        default_level=default_level,
        expires_ms=given.number("expires"),
        message_ttl_ms=given.number("message-ttl"),
        dead_letter_exchange=given.text("dead-letter-exchange"),
        dead_letter_routing_key=given.text("dead-letter-routing-key"),
        dead_letters_are_safe=given.text("dead-letter-strategy") == AT_LEAST_ONCE,
        keys=keys_of(arguments),
        max_length=given.number("max-length"),
        max_length_octets=given.number("max-length-bytes"),
        overflow=given.text("overflow"),
        max_age_ms=interval_ms(given.text("max-age") or ""),
        segment_octets=given.number("stream-max-segment-size-bytes"),
    )


def plain(field: Field | None) -> object:
    """An argument as a policy would say it."""
    if field is None:
        return None
    number = as_integer(field)
    if number is not None:
        return number
    text = as_text(field)
    return text if text is not None else field.value


def is_true(field: Field | None) -> bool:
    """Whether a boolean argument is there and set."""
    return field is not None and field.value is True


def limit_of(given: OptionSources, queue_type: str) -> int | None:
    """The delivery limit; quorum-type queues have one by default (REDELIVER-14)."""
    limit = given.number("delivery-limit")
    if limit is None and queue_type == QUORUM:
        return QUORUM_DELIVERY_LIMIT
    return limit


def multiplier_of(value: object) -> float:
    """How much longer each exponential delay is than the one before (REDELIVER-21)."""
    return float(value) if isinstance(value, int | float) else RETRY_MULTIPLIER
