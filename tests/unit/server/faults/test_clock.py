"""A clock that is set forward: what is due runs, in order, and the rest comes sooner."""

from __future__ import annotations

from tests.unit.server.faults.loop_clock import LoopClock
from vouchmq.server.faults.clock import ShiftedClock


def test_it_goes_with_the_clock_of_the_loop() -> None:
    loop, ran = LoopClock(), list[str]()
    clock = ShiftedClock(loop.call_later, lambda: loop.now)
    assert clock.now_ms() == 100_000
    clock.call_later(5, lambda: ran.append("later"))
    loop.go_to(104.9)
    assert ran == []
    loop.go_to(105.0)
    assert ran == ["later"]
    assert clock.now_ms() == 105_000


def test_what_is_due_runs_at_once_and_in_order() -> None:
    loop, ran = LoopClock(), list[str]()
    clock = ShiftedClock(loop.call_later, lambda: loop.now)
    clock.call_later(50, lambda: ran.append("second"))
    clock.call_later(10, lambda: ran.append("first"))
    clock.call_later(90, lambda: ran.append("third"))
    clock.advance(60_000)
    assert ran == ["first", "second"]
    assert clock.now_ms() == 160_000
    loop.go_to(129.9)
    assert ran == ["first", "second"]
    loop.go_to(130.0)
    assert ran == ["first", "second", "third"]
    assert loop.timers == []


def test_what_runs_may_ask_for_more_or_take_something_back() -> None:
    loop, ran = LoopClock(), list[str]()
    clock = ShiftedClock(loop.call_later, lambda: loop.now)
    unwanted = clock.call_later(20, lambda: ran.append("unwanted"))
    early = clock.call_later(5, lambda: ran.append("early"))

    def job() -> None:
        unwanted.cancel()
        clock.call_later(1, lambda: ran.append("more"))

    clock.call_later(10, job)
    early.cancel()
    clock.advance(60_000)
    assert ran == []
    loop.go_to(101.0)
    assert ran == ["more"]
    assert loop.timers == []
