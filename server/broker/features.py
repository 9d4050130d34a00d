"""What a queue is to do beyond a plain one: its arguments and policies, worked out once.

Each value is what counts in the end; where argument, policy and operator policy meet, the
precedence of POLICY-05 has decided. Must not know how a feature works.

Spec: QUEUE-41 … QUEUE-54, POLICY-05, POLICY-06
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from protocol.fields import as_integer, as_text
from server.broker.arguments import QUORUM, levels_of, queue_type_of
from server.broker.stream_start import interval_ms

if TYPE_CHECKING:
    from protocol.fields import Field, Table

QUORUM_DELIVERY_LIMIT: Final = 20
AT_LEAST_ONCE: Final = "at-least-once"
RETRY_MULTIPLIER: Final = 5.0


@dataclass(slots=True, frozen=True)
class Features:
    """The features of one queue; None where it has not got one."""

    type: str = "classic"
    message_ttl_ms: int | None = None
    expires_ms: int | None = None
    dead_letter_exchange: str | None = None
    dead_letter_routing_key: str | None = None
    dead_letters_are_safe: bool = False

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
        return self == Features(type=self.type)


PLAIN: Final = Features()


def features_of(arguments: Table) -> Features:
    """The features that a queue's arguments ask for; they passed the check."""
    queue_type = queue_type_of(arguments)
    highest_level, default_level = levels_of(arguments)
    return Features(
        type=queue_type,
        single_active=is_true(arguments.get("x-single-active-consumer")),
        consumer_timeout_ms=as_integer(arguments.get("x-consumer-timeout")),
        delivery_limit=limit_of(arguments),
        retry_type=as_text(arguments.get("x-delayed-retry-type")),
        retry_min_ms=as_integer(arguments.get("x-delayed-retry-min")),
        retry_max_ms=as_integer(arguments.get("x-delayed-retry-max")),
        retry_is_exponential=as_text(arguments.get("x-delayed-retry-backoff")) == "exponential",
        retry_multiplier=multiplier_of(arguments.get("x-delayed-retry-multiplier")),
        highest_level=highest_level,
        default_level=default_level,
        expires_ms=as_integer(arguments.get("x-expires")),
        message_ttl_ms=as_integer(arguments.get("x-message-ttl")),
        dead_letter_exchange=as_text(arguments.get("x-dead-letter-exchange")),
        dead_letter_routing_key=as_text(arguments.get("x-dead-letter-routing-key")),
        dead_letters_are_safe=as_text(arguments.get("x-dead-letter-strategy")) == AT_LEAST_ONCE,
        max_length=as_integer(arguments.get("x-max-length")),
        max_length_octets=as_integer(arguments.get("x-max-length-bytes")),
        overflow=as_text(arguments.get("x-overflow")),
        max_age_ms=interval_ms(as_text(arguments.get("x-max-age")) or ""),
        segment_octets=as_integer(arguments.get("x-stream-max-segment-size-bytes")),
    )


def is_true(field: Field | None) -> bool:
    """Whether a boolean argument is there and set."""
    return field is not None and field.value is True


def limit_of(arguments: Table) -> int | None:
    """The delivery limit; quorum-type queues have one by default (REDELIVER-14)."""
    limit = as_integer(arguments.get("x-delivery-limit"))
    if limit is None and queue_type_of(arguments) == QUORUM:
        return QUORUM_DELIVERY_LIMIT
    return limit


def multiplier_of(field: Field | None) -> float:
    """How much longer each exponential delay is than the one before (REDELIVER-21)."""
    value = None if field is None else field.value
    return float(value) if isinstance(value, int | float) else RETRY_MULTIPLIER
