"""The acknowledgement modes, and which options go with which. Knows no channel.

Spec: REDELIVER-30…37, REDELIVER-39
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Final

# The field of basic.qos has sixteen bits (QOS-12).
PREFETCH_MAX: Final = 65535
OPTIMIZE_ACK_TIMEOUT_S: Final = 0.3
# ActiveMQ's fractions of the prefetch, in percent.
OPTIMIZED_PERCENT: Final = 65
LAZY_PERCENT: Final = 50


class Mode(Enum):
    """Who acknowledges, and when; each value is the name that `receiver()` takes."""

    AUTO = "auto"
    CLIENT = "client"
    DUPS_OK = "dups_ok"
    TRANSACTED = "transacted"
    INDIVIDUAL = "individual"

    @property
    def acknowledges_itself(self) -> bool:
        """True when the kit acks, and the application never does."""
        return self in (Mode.AUTO, Mode.DUPS_OK)

    @property
    def extends_prefetch(self) -> bool:
        """True when messages pile up until one call settles them all (REDELIVER-39)."""
        return self in (Mode.CLIENT, Mode.TRANSACTED)


@dataclass(slots=True, frozen=True)
class Options:
    """How one receiver works; wrong combinations do not come into being.

    Args:
        mode: who acknowledges
        prefetch: messages in hand at most; 0 means that they are pulled one by one
        optimize_ack: send one ack for many messages
        optimize_ack_timeout_s: seconds after which acks are sent even if they are few
        prefetch_extension: limit the channel, and extend the limit, in modes that settle many
            messages by one call; otherwise limit each consumer

    Raises:
        TypeError: an option of the wrong type
        ValueError: an option out of its range, or one that does not go with another

    Spec: REDELIVER-32, REDELIVER-35, REDELIVER-36
    """

    mode: Mode
    prefetch: int
    optimize_ack: bool = False
    optimize_ack_timeout_s: float = OPTIMIZE_ACK_TIMEOUT_S
    prefetch_extension: bool = True

    def __post_init__(self) -> None:
        """Check the options against each other."""
        check_prefetch(self.prefetch)
        if not isinstance(self.optimize_ack, bool):
            raise TypeError(f"optimize_ack must be a bool, not {self.optimize_ack!r}")
        if not isinstance(self.prefetch_extension, bool):
            raise TypeError(f"prefetch_extension must be a bool, not {self.prefetch_extension!r}")
        check_seconds("optimize_ack_timeout", self.optimize_ack_timeout_s, least=0.001)
        if not self.optimize_ack or self.mode is Mode.TRANSACTED:
            return
        if not self.mode.acknowledges_itself:
            raise ValueError(
                f"optimize_ack goes with the modes auto and dups_ok, not with {self.mode.value}"
            )
        if self.prefetch == 0:
            raise ValueError("optimize_ack needs prefetch > 0: pulled messages are acked singly")

    def batch_size(self, *, is_topic_like: bool) -> int:
        """How many messages share an ack; 1 means that each has its own.

        The fractions of ActiveMQ are lower bounds: the batch is sent by the first message that
        reaches them.

        Spec: REDELIVER-32, REDELIVER-35
        """
        if self.mode is Mode.DUPS_OK and is_topic_like:
            return _percent(self.prefetch, LAZY_PERCENT)
        if self.optimize_ack and self.mode.acknowledges_itself:
            return _percent(self.prefetch, OPTIMIZED_PERCENT)
        return 1

    @property
    def limits_channel(self) -> bool:
        """True when the prefetch is the channel's, false when it is each consumer's (QOS-02)."""
        return self.mode.extends_prefetch and self.prefetch_extension

    @property
    def extension_threshold(self) -> int:
        """Handled but unacknowledged messages that make the kit ask for more; 0: it never does.

        Spec: REDELIVER-39
        """
        if not self.limits_channel or self.extended_prefetch <= self.prefetch:
            return 0
        return _percent(self.prefetch, LAZY_PERCENT)

    @property
    def extended_prefetch(self) -> int:
        """The channel's limit once the threshold is reached: one and a half times as much."""
        return min(self.prefetch * 3 // 2, PREFETCH_MAX)


def mode_named(name: str | Mode) -> Mode:
    """The mode of this name.

    Raises:
        ValueError: there is none; the text lists them
    """
    try:
        return Mode(name)
    except ValueError:
        known = ", ".join(mode.value for mode in Mode)
        raise ValueError(f"no mode {name!r}; there are {known}") from None


def check_prefetch(prefetch: int) -> int:
    """The prefetch itself when it is one.

    Raises:
        TypeError: not an integer
        ValueError: outside 0…65535
    """
    if type(prefetch) is not int:
        raise TypeError(f"prefetch must be an integer, not {prefetch!r}")
    if not 0 <= prefetch <= PREFETCH_MAX:
        raise ValueError(f"prefetch must be 0 to {PREFETCH_MAX}, not {prefetch}")
    return prefetch


def check_seconds(name: str, value: float, *, least: float) -> None:
    """Refuse what is no number of seconds.

    Raises:
        TypeError: not a number
        ValueError: below `least`, infinite, or not a number at all
    """
    if type(value) not in (int, float):
        raise TypeError(f"{name} must be a number of seconds, not {value!r}")
    if not least <= value < float("inf"):
        raise ValueError(f"{name} must be at least {least:g} seconds, not {value!r}")


def _percent(count: int, percent: int) -> int:
    """The first whole number that is not below so many percent, and at least one."""
    return max(1, -(-count * percent // 100))
