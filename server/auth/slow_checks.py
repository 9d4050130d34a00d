"""Checks of passwords that take long, one after the other where they keep nobody waiting.

    login ─▶ ask ─▶ its address' turn ─▶ still to be computed? ─▶ elsewhere ─▶ decide

A check takes some 50 ms of a core, and whoever connects can ask for one. So one is computed at a
time; addresses have their turns whatever one of them asks for, and so have the users of an address,
names that nobody has together as one; and what has been decided meanwhile
(by an earlier check of the same password, a full bucket or a client that has gone) costs nothing.
Must not know what is computed, nor threads.

Spec: AUTH-02, AUTH-10
"""

from __future__ import annotations

from collections import deque
from functools import partial
from typing import TYPE_CHECKING, Final, Protocol, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")

# Beyond that logins are refused: those that wait would reach the time limit of the handshake.
MOST_WAITING: Final = 1000


class Check(Protocol):
    """A check that takes long."""

    def settle(self) -> bool:
        """Decide it without computing anything, if that can be done by now; whether it was."""

    def compute(self) -> bool:
        """Whether the password is right. Called elsewhere, while others are served."""

    def decide(self, matches: bool, /) -> None:
        """Go on with what was computed."""


class Elsewhere(Protocol):
    """Where things are computed that take long."""

    def __call__(self, job: Callable[[], T], done: Callable[[T], None], /) -> None:
        """Call `job` where it keeps nobody waiting, then `done` with its result, in the loop."""


class SlowChecks:
    """The checks of one broker that wait or are being computed.

    Args:
        elsewhere: computes
    """

    def __init__(self, elsewhere: Elsewhere) -> None:
        self._elsewhere = elsewhere
        # By the network they come from, and by user; whose turn is next stands first.
        self._waiting: dict[str, dict[str | None, deque[Check]]] = {}
        self._count = 0
        self._is_computing = False

    @property
    def is_full(self) -> bool:
        """Whether no more can be asked for now."""
        return self._count >= MOST_WAITING

    def ask(self, network: str, user: str | None, check: Check) -> None:
        """Have a check decided when it is the turn of its network and user."""
        self._waiting.setdefault(network, {}).setdefault(user, deque()).append(check)
        self._count += 1
        self._go_on()

    def compute(self, job: Callable[[], T], done: Callable[[T], None]) -> None:
        """Compute something that nobody logs in with, before the checks that wait."""
        self._elsewhere(job, done)

    def _go_on(self) -> None:
        while self._waiting and not self._is_computing:
            check = self._next()
            if not check.settle():
                self._is_computing = True
                self._elsewhere(check.compute, partial(self._done, check))

    def _next(self) -> Check:
        network = next(iter(self._waiting))
        users = self._waiting.pop(network)
        user = next(iter(users))
        checks = users.pop(user)
        check = checks.popleft()
        self._count -= 1
        # What is left goes behind all others.
        if checks:
            users[user] = checks
        if users:
            self._waiting[network] = users
        return check

    def _done(self, check: Check, matches: bool) -> None:
        self._is_computing = False
        try:
            check.decide(matches)
        finally:
            self._go_on()
