"""Rates: over the last five seconds, of what somebody has looked at (HTTP-07)."""

from __future__ import annotations

from vouchmq.management.api.rates import Rates, with_details


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def test_nobody_has_looked_before() -> None:
    assert Rates(Clock()).of("q", {"publish": 5}) == {"publish": 0.0}


def test_the_difference_to_what_was_seen() -> None:
    clock = Clock()
    rates = Rates(clock)
    rates.of("q", {"publish": 100})
    rates.of("other", {"publish": 0})
    clock.now += 2
    assert rates.of("q", {"publish": 120}) == {"publish": 10.0}
    clock.now += 4
    # Six seconds ago there were 100, and two seconds are too few.
    assert rates.of("q", {"publish": 160}) == {"publish": 10.0}
    clock.now += 5
    assert rates.of("q", {"publish": 160}) == {"publish": 0.0}


def test_an_object_that_is_new_under_an_old_name_has_no_rate_below_0() -> None:
    clock = Clock()
    rates = Rates(clock)
    rates.of("q", {"publish": 100})
    clock.now += 5
    assert rates.of("q", {"publish": 1}) == {"publish": 0.0}


def test_what_nobody_looks_at_is_forgotten() -> None:
    clock = Clock()
    rates = Rates(clock)
    rates.of("q", {"publish": 0})
    clock.now += 31
    assert rates.of("q", {"publish": 1000}) == {"publish": 0.0}
    assert rates.count == 1
    clock.now += 31
    rates.of("other", {"publish": 0})
    assert rates.count == 1


def test_counters_with_their_rates() -> None:
    assert with_details({"ack": 3}, {"ack": 1.5}) == {"ack": 3, "ack_details": {"rate": 1.5}}
