"""Timers of one delay that share one of the loop's."""

from __future__ import annotations

import pytest

from tests.unit.server.edge.sockets import Loop
from vouchmq.server.connection.shared_timers import MOST_DELAYS, SharedTimers


class World:
    """A loop that rings when its time has come, and who was called when."""

    def __init__(self) -> None:
        self.loop = Loop()
        self.timers = SharedTimers(self.loop)
        self.called: list[tuple[str, float]] = []

    def note(self, name: str) -> None:
        self.called.append((name, self.loop.now))

    def pass_time(self, until: float) -> None:
        while due := sorted(
            (timer.due_at, at)
            for at, timer in enumerate(self.loop.timers)
            if timer.callback is not None and timer.due_at <= until
        ):
            due_at, at = due[0]
            self.loop.now = max(self.loop.now, due_at)
            callback, self.loop.timers[at].callback = self.loop.timers[at].callback, None
            assert callback is not None
            callback()
        self.loop.now = until


@pytest.fixture
def world() -> World:
    """Nobody waits for anything."""
    return World()


def test_each_is_called_when_its_time_has_come(world: World) -> None:
    world.timers.call_later(10.0, lambda: world.note("a"))
    world.pass_time(4.0)
    world.timers.call_later(10.0, lambda: world.note("b"))
    world.timers.call_later(1.5, lambda: world.note("c"))
    assert len(world.loop.pending()) == 2
    world.pass_time(30.0)
    assert world.called == [("c", 5.5), ("a", 10.0), ("b", 14.0)]
    world.timers.call_later(10.0, lambda: world.note("d"))
    world.pass_time(60.0)
    assert world.called[-1] == ("d", 40.0)
    assert not world.loop.pending()


def test_one_that_is_cancelled_is_not_called(world: World) -> None:
    first = world.timers.call_later(1.0, lambda: world.note("first"))
    world.pass_time(0.5)
    second = world.timers.call_later(1.0, lambda: world.note("second"))
    world.timers.call_later(1.0, lambda: second.cancel())
    third = world.timers.call_later(1.0, lambda: world.note("third"))
    first.cancel()
    third.cancel()
    third.cancel()
    world.pass_time(5.0)
    assert world.called == [("second", 1.5)]


def test_one_may_cancel_another_that_is_due_as_well(world: World) -> None:
    world.timers.call_later(1.0, lambda: last.cancel())
    last = world.timers.call_later(1.0, lambda: world.note("last"))
    world.pass_time(5.0)
    assert world.called == []


def test_one_that_is_set_by_another_waits_its_time(world: World) -> None:
    def set_another() -> None:
        world.timers.call_later(1.0, lambda: world.note("again"))

    world.timers.call_later(1.0, set_another)
    world.pass_time(5.0)
    assert world.called == [("again", 2.0)]


def test_a_bug_in_one_keeps_no_other_from_its_time(world: World) -> None:
    def fail() -> None:
        raise KeyError

    world.timers.call_later(1.0, fail)
    world.timers.call_later(1.0, lambda: world.note("other"))
    with pytest.raises(KeyError):
        world.pass_time(1.0)
    world.pass_time(2.0)
    assert [name for name, _ in world.called] == ["other"]


def test_odd_delays_and_too_many_are_the_loops_own(world: World) -> None:
    for _ in range(2):
        world.timers.call_later(0.3, lambda: world.note("odd"))
    assert len(world.loop.pending()) == 2
    for seconds in range(1, MOST_DELAYS + 3):
        for _ in range(2):
            world.timers.call_later(float(seconds), lambda: None)
    assert len(world.loop.pending()) == 2 + MOST_DELAYS + 2 * 2
