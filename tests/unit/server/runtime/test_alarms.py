"""Thresholds with hysteresis, and who is held back (LIMIT-01, LIMIT-10, LIMIT-13, LIMIT-23)."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from vouchmq.server.broker.events import EventBus
from vouchmq.server.runtime.alarms import RELEASED_PER_TURN, Alarms

PLENTY = 1 << 40


class Peer:
    """A connection, as far as alarms know one."""

    def __init__(self) -> None:
        self.is_blocking = False
        self.unblocked = self.waited = 0
        self.pressed: list[tuple[bool, bool]] = []

    def block_publishing(self, *, is_tight: bool, is_low: bool) -> None:
        self.pressed.append((is_tight, is_low))

    def block_waiting(self) -> None:
        self.waited += 1

    def unblock(self) -> None:
        self.unblocked += 1


@pytest.fixture
def later() -> list[Callable[[], None]]:
    """What was put off to a turn."""
    return []


@pytest.fixture
def alarms(later: list[Callable[[], None]]) -> Alarms:
    """Memory alarm above 1000, disk alarm below 100."""
    return Alarms(1000, 100, later.append, EventBus())


@pytest.mark.parametrize(
    ("readings", "is_raised"),
    [
        ([1000], False),
        ([1001], True),
        ([1001, 1000], True),
        ([1001, 950], True),
        ([1001, 949], False),
        ([1001, 949, 1000], False),
        ([1001, 949, 1001], True),
    ],
)
def test_memory_with_hysteresis(alarms: Alarms, readings: list[int], is_raised: bool) -> None:
    for used in readings:
        alarms.read(used, PLENTY)
    assert alarms.is_raised is alarms.is_memory_low is is_raised
    assert alarms.reason == ("low on memory" if is_raised else "")


@pytest.mark.parametrize(
    ("readings", "is_raised"),
    [
        ([100], False),
        ([99], True),
        ([99, 100], True),
        ([99, 110], True),
        ([99, 111], False),
        ([99, 111, 100], False),
        ([99, 111, 99], True),
    ],
)
def test_disk_with_hysteresis(alarms: Alarms, readings: list[int], is_raised: bool) -> None:
    for free in readings:
        alarms.read(0, free)
    assert alarms.is_raised is alarms.is_disk_low is is_raised
    assert alarms.reason == ("low on disk" if is_raised else "")


def test_a_limit_of_nothing(later: list[Callable[[], None]]) -> None:
    """No free space asked for is no alarm; no memory allowed is one for ever."""
    alarms = Alarms(0, 0, later.append, EventBus())
    alarms.read(1, 0)
    assert (alarms.is_memory_low, alarms.is_disk_low) == (True, False)
    alarms.read(0, 0)
    assert alarms.is_memory_low


def test_two_at_once_and_one_after_the_other(alarms: Alarms) -> None:
    alarms.read(2000, 0)
    assert alarms.reason == "low on memory & disk"
    alarms.read(0, 0)
    assert alarms.reason == "low on disk"
    alarms.storage_failed(1000)
    alarms.read(0, PLENTY)
    assert alarms.reason == "low on disk"
    alarms.storage_recovered()
    assert not alarms.is_raised


def test_connections_are_blocking_while_any_alarm_is_up(alarms: Alarms) -> None:
    early, late, gone = Peer(), Peer(), Peer()
    alarms.enter(early)
    alarms.enter(gone)
    alarms.leave(gone)
    alarms.read(2000, PLENTY)
    alarms.enter(late)
    assert (early.is_blocking, late.is_blocking, gone.is_blocking) == (True, True, False)
    alarms.read(2000, 0)
    alarms.read(0, 0)
    assert early.is_blocking
    alarms.read(0, PLENTY)
    assert (early.is_blocking, late.is_blocking) == (False, False)
    assert (early.unblocked, late.unblocked) == (0, 0)


def test_blocked_ones_are_let_go_a_few_per_turn(
    alarms: Alarms, later: list[Callable[[], None]]
) -> None:
    peers = [Peer() for _ in range(2 * RELEASED_PER_TURN + 1)]
    alarms.read(2000, PLENTY)
    for peer in peers:
        alarms.enter(peer)
        alarms.block(peer)
    alarms.leave(peers[0])
    alarms.read(0, PLENTY)
    assert sum(peer.unblocked for peer in peers) == RELEASED_PER_TURN
    later.pop()()
    assert not later
    assert [peer.unblocked for peer in peers] == [0] + [1] * (len(peers) - 1)
    assert alarms.blocked_count == 0


def test_an_alarm_in_between_keeps_the_rest(
    alarms: Alarms, later: list[Callable[[], None]]
) -> None:
    peers = [Peer() for _ in range(RELEASED_PER_TURN + 1)]
    alarms.read(2000, PLENTY)
    for peer in peers:
        alarms.enter(peer)
        alarms.block(peer)
    alarms.read(0, PLENTY)
    alarms.read(2000, PLENTY)
    later.pop()()
    assert peers[-1].unblocked == 0
    assert alarms.blocked_count == 1
    alarms.read(0, PLENTY)
    assert peers[-1].unblocked == 1


def test_only_a_stalled_log_is_told_to_who_waits_for_it(alarms: Alarms) -> None:
    peer = Peer()
    alarms.enter(peer)
    alarms.read(1001, PLENTY)
    alarms.storage_failed(0)
    assert peer.waited == 0
    alarms.log_stalled(is_stalled=True)
    alarms.log_stalled(is_stalled=True)
    alarms.log_stalled(is_stalled=False)
    assert peer.waited == 1
