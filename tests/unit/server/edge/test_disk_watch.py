"""Who looks after clients while the loop stands in a call to the disk, on a clock of the test's."""

from __future__ import annotations

import signal
import threading
from dataclasses import dataclass, field

import pytest

from tests.waiting import LIMIT_S
from vouchmq.server.edge.disk_watch import HANGS_S, DiskWatch, DiskWatchThread
from vouchmq.server.edge.starting.stop_signals import SAME_SIGNAL_S


@dataclass
class Peer:
    """A connection."""

    beats: list[float] = field(default_factory=list)
    cuts: int = 0

    def beat_from_thread(self, now: float) -> None:
        self.beats.append(now)

    def cut(self) -> None:
        self.cuts += 1


class Stage:
    """A watch, a watchman that is no thread, and one client."""

    def __init__(self, patience_s: float = 10.0) -> None:
        self.now = 100.0
        self.peer = Peer()
        self.stops: list[str] = []
        self.ends = 0
        self.watch = DiskWatch(lambda: self.now)
        self.man = DiskWatchThread(
            self.watch,
            clients=lambda: [self.peer],
            stop=lambda name: self.stops.append(name),
            soon=lambda job, *given: job(*given),
            leave=self.leave,
            patience_s=patience_s,
            clock=lambda: self.now,
        )

    def leave(self) -> None:
        self.ends += 1

    def pass_time(self, seconds: float) -> None:
        """It looks before and after."""
        self.man.go_round()
        self.now += seconds
        self.man.go_round()


def test_a_call_that_hangs_is_noticed_and_others_are_not() -> None:
    stage = Stage()
    stage.pass_time(100)
    for _ in range(50):
        with stage.watch:
            stage.pass_time(HANGS_S / 2)
    assert stage.peer.beats == []
    with stage.watch:
        stage.pass_time(HANGS_S)
        stage.pass_time(1)
        beats = len(stage.peer.beats)
        assert beats >= 2
    stage.pass_time(100)
    assert len(stage.peer.beats) == beats


def test_a_second_call_is_not_taken_for_the_first() -> None:
    stage = Stage()
    with stage.watch:
        stage.man.go_round()
    stage.now += 10
    with stage.watch:
        stage.man.go_round()
    assert stage.peer.beats == []


def test_nothing_is_done_for_a_call_that_has_ended_meanwhile() -> None:
    stage = Stage()
    with stage.watch:
        stage.watch.hanging_s()
    done: list[int] = []
    assert not stage.watch.during_hang(lambda: done.append(1))
    with stage.watch:
        assert not stage.watch.during_hang(lambda: done.append(2)), "it is another one"
        stage.watch.hanging_s()
        assert stage.watch.during_hang(lambda: done.append(3))
    assert done == [3]


def test_the_loop_goes_on_when_the_thread_has_finished() -> None:
    watch = DiskWatch(lambda: 0.0)
    is_at_work, may_finish, order = threading.Event(), threading.Event(), []

    def job() -> None:
        is_at_work.set()
        assert may_finish.wait(LIMIT_S)
        order.append("thread")

    def loop() -> None:
        with watch:
            watch.hanging_s()
            thread.start()
            assert is_at_work.wait(LIMIT_S)
            threading.Timer(0.05, may_finish.set).start()
        order.append("loop")

    thread = threading.Thread(target=watch.during_hang, args=(job,))
    loop()
    thread.join()
    assert order == ["thread", "loop"]


def test_a_signal_is_told_to_the_loop() -> None:
    stage = Stage()
    stage.man.heed("SIGTERM")
    stage.man.heed("SIGTERM")
    stage.pass_time(1000)
    assert (stage.stops, stage.ends, stage.peer.cuts) == (["SIGTERM", "SIGTERM"], 0, 0)


def test_a_broker_that_is_to_end_waits_for_its_disk_as_long_as_for_its_clients() -> None:
    stage = Stage(patience_s=5)
    with stage.watch:
        stage.pass_time(100)
        stage.man.heed("SIGTERM")
        stage.pass_time(4)
        assert (stage.ends, stage.peer.cuts) == (0, 0)
        stage.pass_time(1)
        assert (stage.ends, stage.peer.cuts) == (1, 1)


def test_a_second_signal_waits_for_no_disk() -> None:
    stage = Stage(patience_s=1000)
    with stage.watch:
        stage.pass_time(HANGS_S)
        stage.man.heed("SIGTERM")
        stage.man.heed("SIGTERM")
        assert stage.ends == 0, "that is one signal, which has come twice"
        stage.now += SAME_SIGNAL_S
        stage.man.heed("SIGINT")
        assert stage.ends == 1


def test_a_signal_that_did_not_come(monkeypatch: pytest.MonkeyPatch) -> None:
    """After a pause of the process CPython tells of one with any number: the thread goes on."""
    stage = Stage()
    come = [signal.struct_siginfo([number, *[0] * 6]) for number in (584186240, signal.SIGTERM)]
    told = [*come, None]

    def wait(*_: object) -> object:
        answer = told.pop(0)
        if not told:
            stage.man.end()
        return answer

    monkeypatch.setattr(signal, "sigtimedwait", wait)
    stage.man._run()
    assert stage.stops == ["SIGTERM"]
