"""Whose slow check is computed next."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import pytest

from vouchmq.server.auth.slow_checks import SlowChecks

T = TypeVar("T")


class World:
    """A thread that computes when it is told to, and what was decided."""

    def __init__(self) -> None:
        self.jobs: list[Callable[[], None]] = []
        self.decided: list[str] = []
        self.checks = SlowChecks(self)

    def __call__(self, job: Callable[[], T], done: Callable[[T], None], /) -> None:
        self.jobs.append(lambda: done(job()))

    def ask(
        self, network: str, name: str, user: str | None = "u", *, is_settled: bool = False
    ) -> Check:
        check = Check(self, name, is_settled)
        self.checks.ask(network, user, check)
        return check

    def compute(self) -> None:
        (job,) = self.jobs
        self.jobs.clear()
        job()


class Check:
    """A check with a name."""

    def __init__(self, world: World, name: str, is_settled: bool) -> None:
        self.world = world
        self.name = name
        self.is_settled = is_settled

    def settle(self) -> bool:
        if self.is_settled:
            self.world.decided.append(f"{self.name} settled")
        return self.is_settled

    def compute(self) -> bool:
        return self.name.startswith("r")

    def decide(self, matches: bool, /) -> None:
        self.world.decided.append(f"{self.name} {matches}")


def test_one_is_computed_at_a_time() -> None:
    world = World()
    world.ask("a", "right")
    world.ask("a", "wrong")
    assert world.decided == []
    world.compute()
    assert world.decided == ["right True"]
    world.compute()
    assert world.decided == ["right True", "wrong False"]
    assert world.jobs == []


def test_each_network_has_its_turn() -> None:
    """However many one of them has asked for."""
    world = World()
    for number in range(100):
        world.ask("flood", f"f{number}")
    world.ask("b", "right")
    world.ask("c", "really")
    for _ in range(4):
        world.compute()
    assert world.decided == ["f0 False", "f1 False", "right True", "really True"]


def test_users_of_a_network_have_their_turns_when_it_has_its_own() -> None:
    """However many users one address guesses at, another waits for one check only."""
    world = World()
    for number in range(20):
        world.ask("flood", f"a{number}", "a")
        world.ask("flood", f"b{number}", "b")
        world.ask("flood", f"n{number}", None)
    world.ask("home", "right")
    for _ in range(7):
        world.compute()
    assert [each.split()[0] for each in world.decided] == [
        *("a0", "b0", "right", "n0", "a1", "b1", "n1")
    ]


def test_what_is_settled_costs_nothing() -> None:
    world = World()
    first = world.ask("a", "right")
    later = [world.ask("a", f"s{number}") for number in range(3)]
    for each in later:
        each.is_settled = True
    world.compute()
    assert world.decided == ["right True", "s0 settled", "s1 settled", "s2 settled"]
    assert world.jobs == []
    assert first.name == "right"


def test_a_bug_in_one_keeps_no_other_from_its_turn() -> None:
    world = World()
    first = world.ask("a", "right")
    world.ask("a", "wrong")

    def fail(matches: bool, /) -> None:
        raise RuntimeError("planted")

    first.decide = fail  # type: ignore[method-assign]
    with pytest.raises(RuntimeError, match="planted"):
        world.compute()
    world.compute()
    assert world.decided == ["wrong False"]
