"""Signs of a busy leader: when they are given, what counts as life, and the process beside it."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable

import pytest

from tests.waiting import wait_until
from vouchmq.server.edge.replicated.engine import Engine
from vouchmq.server.edge.replicated.signs import LOOK_S, SIGN_S, Held, SignGiver, Vital
from vouchmq.server.edge.replicated.vitals import Vitals, work_ns
from vouchmq.server.replication.addresses import Server
from vouchmq.server.replication.connection import Options
from vouchmq.server.replication.lived_clock import LivedClock
from vouchmq.server.replication.reports import ReportError, parse_sign

LOG_ID = bytes(range(16))


def test_time_that_a_loop_has_missed_does_not_count() -> None:
    now = 100.0
    clock = LivedClock(lambda: now, 0.5)
    now += 0.25
    assert (clock.now(), clock.look(), clock.missed_s) == (0.25, 0.25, 0.0)
    now += 8.0
    assert clock.now() == 0.75
    assert (clock.look(), clock.missed_s) == (0.75, 7.5)
    now += 0.25
    assert clock.look() == 1.0
    assert clock.missed_s == 0.0


def test_a_loop_is_busy_when_it_misses_half_a_second_of_three() -> None:
    held = Held()
    assert not any(held.look(at / 4, at / 4) for at in range(40))
    # It stands still.
    assert [held.look(10.0 + at / 4, 10.0) for at in range(4)] == [False, False, True, True]
    # It runs again, and what it has missed is forgotten after a while.
    seen = [held.look(11.0 + at / 4, 10.25 + at / 4) for at in range(20)]
    assert seen[0]
    assert not seen[-1]


class Leader:
    """What a leader leaves, and the signs that are given of it."""

    def __init__(self) -> None:
        self.vital = Vital(0, 0, 0, LOG_ID)
        self.said: list[bytes] = []
        self.begun = self.ended = 0
        self.now = 0.0
        self.work_ns = 77
        self.giver = SignGiver("n1", lambda: self.vital, lambda: self.work_ns, self._begin)

    def _begin(self) -> tuple[Callable[[bytes], object], Callable[[], object]]:
        self.begun += 1
        return self.said.append, self._end

    def _end(self) -> None:
        self.ended += 1

    @property
    def ages_s(self) -> tuple[float, float]:
        """Of the last step and of the last work, as the last sign tells."""
        sign = parse_sign(self.said[-1], LOG_ID.hex())
        return sign.step_age_s, sign.work_age_s

    def go_on(
        self, seconds: float, *, epoch: int, is_alive: bool, steps: int = 0, work_ns: int = 0
    ) -> None:
        """Let time pass, with so many steps and so much work at each look."""
        for _ in range(int(seconds / LOOK_S)):
            self.now += LOOK_S
            lived_ms = self.vital.lived_ms + int(1000 * LOOK_S * is_alive)
            self.vital = Vital(epoch, lived_ms, self.vital.steps + steps, LOG_ID)
            self.work_ns += work_ns
            self.giver.look(self.now)


def test_signs_are_given_of_a_leader_that_is_busy_and_of_nobody_else() -> None:
    leader = Leader()
    leader.go_on(10.0, epoch=0, is_alive=False)
    assert (leader.begun, leader.said) == (0, [])
    leader.go_on(10.0, epoch=7, is_alive=True)
    assert (leader.begun, leader.said) == (1, [])
    leader.go_on(5.0, epoch=7, is_alive=False)
    assert 4.0 / SIGN_S <= len(leader.said) <= 5.0 / SIGN_S
    sign = parse_sign(leader.said[-1], LOG_ID.hex())
    assert (sign.node, sign.epoch) == ("n1", 7)
    with pytest.raises(ReportError):
        parse_sign(leader.said[-1], "00")
    count = len(leader.said)
    leader.go_on(5.0, epoch=0, is_alive=False)
    assert (len(leader.said), leader.ended) == (count, 1)


def test_signs_tell_how_long_ago_a_leader_got_on() -> None:
    leader = Leader()
    # Whatever was done before its claim is not news.
    leader.go_on(4.0, epoch=0, is_alive=True, steps=3)
    leader.go_on(4.0, epoch=7, is_alive=True)
    # It hangs: what is told goes back to the last time its loop ran, give or take a look.
    leader.go_on(5.0, epoch=7, is_alive=False)
    step_age_s, work_age_s = leader.ages_s
    assert 8.0 <= step_age_s <= 9.0
    assert 4.0 <= work_age_s <= 5.0
    leader.go_on(5.0, epoch=7, is_alive=False, work_ns=1)
    step_age_s, work_age_s = leader.ages_s
    assert 13.0 <= step_age_s <= 14.0
    assert work_age_s == 0.0
    leader.go_on(5.0, epoch=7, is_alive=False, steps=1)
    step_age_s, work_age_s = leader.ages_s
    assert step_age_s == 0.0
    assert 4.5 <= work_age_s <= 5.5
    # The next claim begins anew.
    leader.go_on(1.0, epoch=0, is_alive=False)
    leader.go_on(3.0, epoch=8, is_alive=False)
    step_age_s, work_age_s = leader.ages_s
    assert 2.0 <= step_age_s <= 3.0
    assert 2.0 <= work_age_s <= 3.0


def test_work_is_the_processor_time_of_a_first_thread() -> None:
    before = work_ns(os.getpid())
    ends_at = time.process_time() + 0.05
    while time.process_time() < ends_at:
        pass
    assert work_ns(os.getpid()) > before > 0
    assert work_ns(1 << 30) == 0


# In a process of its own: one with threads is not to be forked.
PROGRAM = """
import os, signal, sys
from tests.unit.server.edge.replicated.test_signs import new_vitals
vitals = new_vitals()
vitals.lead(bytes(16), 3)
print(vitals.pid, flush=True)
sys.stdin.readline()
vitals.close()
print("closed", flush=True)
sys.stdin.readline()
"""


def new_vitals() -> Vitals:
    """A process whose log nobody serves."""
    return Vitals(Engine((Server("127.0.0.1", 9, needs_tls=False),), Options(), "t", ()), "n1")


@pytest.mark.parametrize("is_killed", [False, True])
def test_the_process_ends_with_the_broker(*, is_killed: bool) -> None:
    broker = subprocess.Popen(
        [sys.executable, "-c", PROGRAM], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert broker.stdin is not None
    assert broker.stdout is not None
    with broker:
        pid = int(broker.stdout.readline())
        assert os.path.exists(f"/proc/{pid}")  # noqa: PTH110 - no file is read
        if is_killed:
            broker.kill()
            wait_until(lambda: not _is_alive(pid))
        else:
            broker.stdin.write(b"\n")
            broker.stdin.flush()
            assert broker.stdout.readline() == b"closed\n"
            assert not _is_alive(pid)
            broker.stdin.write(b"\n")


def _is_alive(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:  # noqa: PTH123
            return file.read().rpartition(b")")[2].split()[0] not in (b"Z", b"X")
    except OSError:
        return False
