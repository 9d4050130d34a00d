"""What becomes of a delivery, and why a message dies: two small vocabularies."""

from __future__ import annotations

from enum import Enum


class Outcome(Enum):
    """How a delivery ended. All but the first two put the message back (REDELIVER-11)."""

    ACKED = "acked"
    DISCARDED = "discarded"  # nack or reject without requeue
    NACKED = "nacked"
    REJECTED = "rejected"
    RECOVERED = "recovered"
    LOST = "lost"  # its channel or connection has ended
    TIMED_OUT = "timed out"
    LOOKED_AT = "looked at"  # got by an operator who lets it be (HTTP-20)

    @property
    def is_requeue(self) -> bool:
        """True when the message returns to its queue."""
        return self not in {Outcome.ACKED, Outcome.DISCARDED}


class DeadLetterReason(Enum):
    """Why a message is dead (DLX-01 … DLX-04); the value is what `x-death` says."""

    EXPIRED = "expired"
    REJECTED = "rejected"
    MAXLEN = "maxlen"
    DELIVERY_LIMIT = "delivery_limit"
