"""What happens to a message that was not dealt with: how often, and how much later, it comes back.

A `RedeliveryPolicy` has ActiveMQ's words. It becomes arguments of the queue where the broker can
hold messages back itself, and otherwise retry queues: the kit puts a copy into a queue whose
messages expire, after the delay, back into the work queue. Pure: chance is an argument.

Spec: REDELIVER-20, REDELIVER-21, REDELIVER-44…46, REDELIVER-50
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from vouchmq.kit.modes import check_seconds

# Kept in the headers of a copy that waits in a retry queue.
COUNT_HEADER: Final = "x-kit-redelivery-count"
EXCHANGE_HEADER: Final = "x-kit-exchange"
ROUTING_KEY_HEADER: Final = "x-kit-routing-key"

MILLISECONDS: Final = 1000
# The longest time to live that RabbitMQ takes: 32 bits of milliseconds, about 49 days.
LONGEST_DELAY_MS: Final = 2**32 - 1
RETRY_QUEUES_MAX: Final = 32
_NAME_OCTETS: Final = 255
# Redeliveries after which an endless policy's delays do not change any more, near enough.
_FOR_EVER: Final = 10_000

Argument = str | int | float | bool
Arguments = dict[str, Argument]


@dataclass(slots=True, frozen=True)
class RedeliveryPolicy:
    """How often a message is redelivered, and after which delays.

    Args:
        max_redeliveries: after so many the message is dead-lettered; -1: never
        initial_delay: seconds before the first redelivery
        delay: seconds before every later one; with `exponential` only if `initial_delay` is 0
        exponential: each delay is `multiplier` times the one before
        multiplier: at least 1
        max_delay: no delay gets longer than so many seconds; -1: no bound
        collision_avoidance: a delay varies by at most this fraction of itself, 0…1. Only where
            the kit keeps the delay: a broker that does it itself is exact.

    Raises:
        TypeError: a value of the wrong type
        ValueError: a value out of its range

    Spec: REDELIVER-45, REDELIVER-46, REDELIVER-50
    """

    max_redeliveries: int = 6
    initial_delay: float = 1.0
    delay: float = 1.0
    exponential: bool = False
    multiplier: float = 5.0
    max_delay: float = -1
    collision_avoidance: float = 0.15

    def __post_init__(self) -> None:
        """Raise TypeError or ValueError for a value that is out of range."""
        if type(self.max_redeliveries) is not int:
            raise TypeError(f"max_redeliveries must be an integer, not {self.max_redeliveries!r}")
        if self.max_redeliveries < -1:
            raise ValueError(
                f"max_redeliveries must be -1 (unlimited) or more, not {self.max_redeliveries}"
            )
        check_seconds("initial_delay", self.initial_delay, least=0)
        check_seconds("delay", self.delay, least=0)
        if self.max_delay != -1:
            check_seconds("max_delay", self.max_delay, least=0)
        for name, least, most in (("multiplier", 1, 1000), ("collision_avoidance", 0, 1)):
            value = getattr(self, name)
            if not isinstance(value, int | float) or isinstance(value, bool):
                raise TypeError(f"{name} must be a number, not {value!r}")
            if not least <= value <= most:
                raise ValueError(f"{name} must be {least} to {most}, not {value!r}")
        if not isinstance(self.exponential, bool):
            raise TypeError(f"exponential must be a bool, not {self.exponential!r}")

    @property
    def is_limited(self) -> bool:
        """True when there is a last redelivery."""
        return self.max_redeliveries >= 0

    @property
    def is_delayed(self) -> bool:
        """True when a message may have to wait before it comes back."""
        return any(self.delay_ms(count) for count in (1, 2))

    def delay_ms(self, count: int) -> int:
        """Milliseconds before redelivery number `count`, which counts from 1.

        As in ActiveMQ: the first delay is the initial one; if that is 0, growth begins with
        `delay`.
        """
        steps = count - 1
        if steps == 0:
            seconds = self.initial_delay
        elif not self.exponential:
            seconds = self.delay
        elif self.initial_delay > 0:
            seconds = self.initial_delay * self._growth(steps)
        else:
            seconds = self.delay * self._growth(steps - 1)
        if self.max_delay >= 0:
            seconds = min(seconds, self.max_delay)
        return math.ceil(min(seconds * MILLISECONDS, LONGEST_DELAY_MS))

    def _growth(self, steps: int) -> float:
        """The multiplier to this power; far beyond every delay instead of an overflow."""
        try:
            return float(self.multiplier) ** steps
        except OverflowError:
            return float(LONGEST_DELAY_MS)

    def delays_ms(self) -> list[int]:
        """Every delay that occurs, without 0, in ascending order.

        Raises:
            ValueError: they are more than 32; each would need a queue of its own
        """
        found: set[int] = set()
        last = self.max_redeliveries if self.is_limited else _FOR_EVER
        if not self.exponential:
            last = min(last, 2)
        for count in range(1, last + 1):
            found.add(self.delay_ms(count))
            if len(found) > RETRY_QUEUES_MAX:
                raise ValueError(
                    f"the policy has more than {RETRY_QUEUES_MAX} different delays, and each needs"
                    " a retry queue on this broker: raise multiplier or set max_delay"
                )
        return sorted(found - {0})


def can_hold_back(server_properties: Mapping[str, object]) -> bool:
    """True when a queue of this broker can delay and limit redeliveries by itself.

    VouchMQ can, and says so by its product name or, when an operator has it pose as another
    product (CONN-13), by a capability.
    """
    capabilities = server_properties.get("capabilities")
    if isinstance(capabilities, Mapping) and capabilities.get("delayed_retry") is True:
        return True
    product = server_properties.get("product")
    if isinstance(product, bytes):
        product = product.decode("utf-8", "replace")
    return product == "VouchMQ"


def broker_arguments(policy: RedeliveryPolicy) -> Arguments | None:
    """The queue arguments with which the broker does what the policy says; None: it cannot.

    The broker's delay is min * count or min * multiplier**(count - 1), both capped by max. So a
    steady delay has min = max; one that is shorter at first is exponential growth by one step.

    Spec: REDELIVER-10, REDELIVER-20, REDELIVER-21
    """
    arguments: Arguments = {}
    if policy.is_limited:
        arguments["x-delivery-limit"] = policy.max_redeliveries
    if not policy.is_delayed:
        return arguments
    first, second = policy.delay_ms(1), policy.delay_ms(2)
    if first == 0 or first > second:
        return None
    arguments["x-delayed-retry-type"] = "all"
    arguments["x-delayed-retry-min"] = first
    if policy.exponential and policy.multiplier > 1:
        arguments["x-delayed-retry-backoff"] = "exponential"
        arguments["x-delayed-retry-multiplier"] = float(policy.multiplier)
        if policy.max_delay >= 0:
            arguments["x-delayed-retry-max"] = policy.delay_ms(_FOR_EVER)
    elif first == second:
        arguments["x-delayed-retry-max"] = first
    else:
        arguments["x-delayed-retry-backoff"] = "exponential"
        arguments["x-delayed-retry-multiplier"] = second / first
        arguments["x-delayed-retry-max"] = second
    return arguments


@dataclass(slots=True, frozen=True)
class RetryQueue:
    """A queue where copies wait for `delay_ms` and from which they expire into `target`."""

    name: str
    target: str
    delay_ms: int
    longest_ms: int

    @property
    def arguments(self) -> Arguments:
        """What it is declared with."""
        return {
            "x-message-ttl": self.longest_ms,
            "x-dead-letter-exchange": "",
            "x-dead-letter-routing-key": self.target,
        }


def retry_queues(policy: RedeliveryPolicy, queue: str) -> dict[int, RetryQueue]:
    """The queues that the policy needs for this one, by their delay in milliseconds.

    A queue for each delay: messages expire at the head only, so a short delay would wait behind
    a long one (TTL-03). Within a queue delays differ by the collision avoidance alone.

    Raises:
        ValueError: too many different delays, or names that would get too long
    """
    made: dict[int, RetryQueue] = {}
    for delay_ms in policy.delays_ms():
        name = f"{queue}.retry.{delay_ms}"
        if len(name.encode()) > _NAME_OCTETS:
            raise ValueError(f"the name of the queue is too long for retry queues: {queue!r}")
        longest_ms = math.ceil(delay_ms * (1 + policy.collision_avoidance))
        made[delay_ms] = RetryQueue(name, queue, delay_ms, min(longest_ms, LONGEST_DELAY_MS))
    return made


def varied_ms(delay_ms: int, fraction: float, chance: Callable[[], float]) -> int:
    """The delay, longer or shorter by up to this fraction of itself; `chance` gives 0…1."""
    return min(max(1, round(delay_ms * (1 + fraction * (2 * chance() - 1)))), LONGEST_DELAY_MS)
