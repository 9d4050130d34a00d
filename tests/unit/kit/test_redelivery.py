"""A policy's delays, and what becomes of it: arguments of the broker or queues of the kit."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vouchmq.kit.redelivery import (
    LONGEST_DELAY_MS,
    RedeliveryPolicy,
    broker_arguments,
    can_hold_back,
    retry_queues,
    varied_ms,
)

POLICY = RedeliveryPolicy()


def delays(policy: RedeliveryPolicy, count: int = 6) -> list[int]:
    return [policy.delay_ms(number) for number in range(1, count + 1)]


def test_the_defaults_are_those_of_activemq() -> None:
    """REDELIVER-45, REDELIVER-50."""
    assert (POLICY.max_redeliveries, POLICY.multiplier, POLICY.max_delay) == (6, 5.0, -1)
    assert (POLICY.exponential, POLICY.collision_avoidance) == (False, 0.15)
    assert delays(POLICY) == [1000] * 6


@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        (RedeliveryPolicy(initial_delay=0, delay=2), [0, 2000, 2000, 2000]),
        (RedeliveryPolicy(initial_delay=5, delay=0.5), [5000, 500, 500, 500]),
        (RedeliveryPolicy(exponential=True), [1000, 5000, 25000, 125000]),
        (RedeliveryPolicy(exponential=True, multiplier=2, max_delay=3), [1000, 2000, 3000, 3000]),
        (
            RedeliveryPolicy(exponential=True, initial_delay=0, delay=1, multiplier=3),
            [0, 1000, 3000, 9000],
        ),
        (RedeliveryPolicy(exponential=True, multiplier=1), [1000, 1000, 1000, 1000]),
        (RedeliveryPolicy(initial_delay=10, delay=10, max_delay=2), [2000, 2000, 2000, 2000]),
    ],
)
def test_delays(policy: RedeliveryPolicy, expected: list[int]) -> None:
    """REDELIVER-46."""
    assert delays(policy, 4) == expected


def test_an_endless_exponential_delay_ends_at_what_a_queue_can_hold() -> None:
    policy = RedeliveryPolicy(max_redeliveries=-1, exponential=True)
    assert policy.delay_ms(100_000) == LONGEST_DELAY_MS
    assert policy.delays_ms()[-1] == LONGEST_DELAY_MS


def told_by_the_broker(arguments: dict[str, object], count: int) -> float:
    """The delay in milliseconds that REDELIVER-20 and REDELIVER-21 give these arguments."""
    least = arguments["x-delayed-retry-min"]
    assert isinstance(least, int)
    if arguments.get("x-delayed-retry-backoff") == "exponential":
        multiplier = arguments["x-delayed-retry-multiplier"]
        assert isinstance(multiplier, float)
        exact = least * Fraction(multiplier) ** (count - 1)
    else:
        exact = Fraction(least * max(1, count))
    most = arguments.get("x-delayed-retry-max")
    return float(exact if most is None else min(exact, Fraction(str(most))))


@pytest.mark.parametrize(
    "policy",
    [
        POLICY,
        RedeliveryPolicy(initial_delay=0.2, delay=3),
        RedeliveryPolicy(exponential=True),
        RedeliveryPolicy(exponential=True, multiplier=1.5, max_delay=4),
        RedeliveryPolicy(exponential=True, multiplier=1),
        RedeliveryPolicy(exponential=True, max_delay=0.5),
    ],
)
def test_the_broker_is_told_the_same_delays(policy: RedeliveryPolicy) -> None:
    """REDELIVER-20, REDELIVER-21."""
    arguments = broker_arguments(policy)
    assert arguments is not None
    assert arguments["x-delivery-limit"] == 6
    assert arguments["x-delayed-retry-type"] == "all"
    for count in range(1, 8):
        told = told_by_the_broker(dict(arguments), count)
        assert abs(told - policy.delay_ms(count)) <= 1


@pytest.mark.parametrize(
    "policy",
    [
        RedeliveryPolicy(initial_delay=2, delay=1),
        RedeliveryPolicy(initial_delay=0, delay=1),
        RedeliveryPolicy(initial_delay=0, delay=1, exponential=True),
    ],
)
def test_what_the_broker_cannot_say_is_left_to_the_kit(policy: RedeliveryPolicy) -> None:
    assert broker_arguments(policy) is None


def test_a_policy_without_limit_or_delay_needs_nothing() -> None:
    assert broker_arguments(RedeliveryPolicy(-1, initial_delay=0, delay=0)) == {}
    assert broker_arguments(RedeliveryPolicy(3, initial_delay=0, delay=0)) == {
        "x-delivery-limit": 3
    }


def test_each_delay_has_a_retry_queue_that_leads_back() -> None:
    """DELAY-01: the recipe of a time to live and a dead-letter exchange."""
    policy = RedeliveryPolicy(3, exponential=True, multiplier=2, collision_avoidance=0.1)
    queues = retry_queues(policy, "work")
    assert [queue.name for queue in queues.values()] == [
        "work.retry.1000",
        "work.retry.2000",
        "work.retry.4000",
    ]
    assert queues[2000].arguments == {
        "x-message-ttl": 2200,
        "x-dead-letter-exchange": "",
        "x-dead-letter-routing-key": "work",
    }


def test_retry_queues_are_no_more_than_the_redeliveries_need() -> None:
    assert list(retry_queues(RedeliveryPolicy(1, 1, 2), "q")) == [1000]
    assert list(retry_queues(RedeliveryPolicy(0), "q")) == []
    assert list(retry_queues(RedeliveryPolicy(6, 0, 0), "q")) == []


def test_too_many_different_delays_are_refused() -> None:
    policy = RedeliveryPolicy(100, exponential=True, multiplier=1.01)
    with pytest.raises(ValueError, match="more than 32 different delays"):
        retry_queues(policy, "q")


def test_a_name_too_long_for_its_retry_queue_is_refused() -> None:
    with pytest.raises(ValueError, match="too long for retry queues"):
        retry_queues(POLICY, "q" * 250)


@given(st.integers(1, 10**7), st.floats(0, 1), st.floats(0, 1))
def test_collisions_are_avoided_within_the_fraction(
    delay_ms: int, fraction: float, chance: float
) -> None:
    varied = varied_ms(delay_ms, fraction, lambda: chance)
    assert max(1, delay_ms * (1 - fraction) - 1) <= varied <= delay_ms * (1 + fraction) + 1


@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        ({"max_redeliveries": -2}, "max_redeliveries must be -1"),
        ({"initial_delay": -1}, "initial_delay must be at least 0 seconds"),
        ({"delay": float("nan")}, "delay must be at least 0 seconds"),
        ({"max_delay": -2}, "max_delay must be at least 0 seconds"),
        ({"multiplier": 0.5}, "multiplier must be 1 to 1000"),
        ({"collision_avoidance": 1.5}, "collision_avoidance must be 0 to 1"),
    ],
)
def test_values_out_of_range_are_told(wrong: dict[str, float], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        RedeliveryPolicy(**wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "wrong",
    [
        {"max_redeliveries": 1.5},
        {"max_redeliveries": True},
        {"delay": "1s"},
        {"exponential": 1},
        {"multiplier": "5"},
        {"collision_avoidance": True},
    ],
)
def test_values_of_the_wrong_type_are_told(wrong: dict[str, object]) -> None:
    with pytest.raises(TypeError, match=f"{next(iter(wrong))} must be"):
        RedeliveryPolicy(**wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("properties", "holds_back"),
    [
        ({"product": "VouchMQ"}, True),
        ({"product": b"VouchMQ"}, True),
        ({"product": "RabbitMQ", "capabilities": {"delayed_retry": True}}, True),
        ({"product": "RabbitMQ", "capabilities": {"basic.nack": True}}, False),
        ({"product": "LavinMQ"}, False),
        ({}, False),
    ],
)
def test_brokers_that_hold_messages_back_are_known(
    properties: dict[str, object], holds_back: bool
) -> None:
    assert can_hold_back(properties) is holds_back
