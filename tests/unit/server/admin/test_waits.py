"""What somebody waits for is found after a turn, at a later look, or never."""

from __future__ import annotations

from tests.unit.server.faults.loop_clock import LoopClock as Clock
from tests.unit.server.faults.loop_clock import Turns
from vouchmq.server.admin.objects.waiting import LOOK_S, Waits


def waits_in(clock: Clock, turns: Turns) -> Waits:
    return Waits(clock.call_later, lambda: clock.now, turns.observers, turns.wake)


def test_nothing_is_told_before_a_turn_has_written_it() -> None:
    clock, told, turns = Clock(), list[bool](), Turns(at_once=False)
    waits_in(clock, turns).begin(lambda: True, told.append, 5.0)
    assert (told, turns.is_wanted) == ([], True)
    turns.run()
    assert told == [True]


def test_what_is_so_already_is_told_at_once() -> None:
    clock, told = Clock(), list[bool]()
    waits_in(clock, Turns()).begin(lambda: True, told.append, 5.0)
    assert told == [True]
    assert clock.timers == []


def test_what_comes_true_in_a_turn_is_told_after_it() -> None:
    clock, told, state = Clock(), list[bool](), {"count": 0}
    waits = waits_in(clock, Turns())
    waits.begin(lambda: state["count"] == 2, told.append, 5.0)
    for count in (1, 2, 3):
        state["count"] = count
        waits.look()
    assert told == [True]


def test_what_comes_true_without_a_turn_is_found_at_the_next_look() -> None:
    clock, told, state = Clock(), list[bool](), {"count": 0}
    waits = waits_in(clock, Turns())
    waits.begin(lambda: state["count"] == 1, told.append, 5.0)
    clock.go_to(101.0)
    assert told == []
    state["count"] = 1
    clock.go_to(101.0 + LOOK_S)
    assert told == [True]
    clock.go_to(200.0)
    assert clock.timers == []


def test_turns_are_watched_only_while_somebody_waits() -> None:
    clock, turns = Clock(), Turns()
    observers = turns.observers
    waits = waits_in(clock, turns)
    first = waits.begin(lambda: False, print, 5.0)
    second = waits.begin(lambda: False, print, 5.0)
    assert list(observers) == [waits.look]
    waits.forget(first)
    waits.look()
    assert list(observers) == [waits.look]
    waits.forget(second)
    waits.look()
    assert not observers


def test_a_limit_ends_a_wait() -> None:
    clock, told = Clock(), list[bool]()
    waits = waits_in(clock, Turns())
    waits.begin(lambda: False, told.append, 5.0)
    clock.go_to(104.9)
    assert told == []
    clock.go_to(105.1)
    assert told == [False]


def test_a_wait_that_is_forgotten_is_never_told() -> None:
    clock, told = Clock(), list[bool]()
    waits = waits_in(clock, Turns())
    waits.forget(waits.begin(lambda: False, told.append, 5.0))
    clock.go_to(200.0)
    assert told == []
