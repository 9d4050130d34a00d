"""What a queue is to do beyond a plain one: its arguments and policies, worked out once.

Each value is what counts in the end; where argument, policy and operator policy meet, the
precedence of POLICY-05 has decided. Must not know how a feature works.

Spec: QUEUE-41 … QUEUE-54, POLICY-05, POLICY-06
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from protocol.fields import as_integer, as_text
from server.broker.arguments import levels_of, queue_type_of
from server.broker.stream_start import interval_ms

if TYPE_CHECKING:
    from protocol.fields import Field, Table


@dataclass(slots=True, frozen=True)
class Features:
    """The features of one queue; None where it has not got one."""

    type: str = "classic"
    message_ttl_ms: int | None = None
    expires_ms: int | None = None
    dead_letter_exchange: str | None = None
    dead_letter_routing_key: str | None = None

    max_length: int | None = None
    max_length_octets: int | None = None
    overflow: str | None = None
    single_active: bool = False
    highest_level: int = 0
    default_level: int = 0
    max_age_ms: int | None = None
    segment_octets: int | None = None

    @property
    def is_limited(self) -> bool:
        """True when it has a length limit."""
        return self.max_length is not None or self.max_length_octets is not None

    @property
    def is_plain(self) -> bool:
        """True when the queue needs no care at all."""
        return self == Features(type=self.type)


def features_of(arguments: Table) -> Features:
    """The features that a queue's arguments ask for; they passed the check."""
    queue_type = queue_type_of(arguments)
    highest_level, default_level = levels_of(arguments)
    return Features(
        type=queue_type,
        single_active=is_true(arguments.get("x-single-active-consumer")),
        highest_level=highest_level,
        default_level=default_level,
        expires_ms=as_integer(arguments.get("x-expires")),
        message_ttl_ms=as_integer(arguments.get("x-message-ttl")),
        dead_letter_exchange=as_text(arguments.get("x-dead-letter-exchange")),
        dead_letter_routing_key=as_text(arguments.get("x-dead-letter-routing-key")),
        max_length=as_integer(arguments.get("x-max-length")),
        max_length_octets=as_integer(arguments.get("x-max-length-bytes")),
        overflow=as_text(arguments.get("x-overflow")),
        max_age_ms=interval_ms(as_text(arguments.get("x-max-age")) or ""),
        segment_octets=as_integer(arguments.get("x-stream-max-segment-size-bytes")),
    )


def is_true(field: Field | None) -> bool:
    """Whether a boolean argument is there and set."""
    return field is not None and field.value is True
