"""The turn: once each, in order, and one failure stops nobody else."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

import pytest

from vouchmq.server.broker.queues.classic import ClassicQueue
from vouchmq.server.connection.outbox import Outbox
from vouchmq.server.runtime.flow import FlowControl
from vouchmq.server.runtime.turn import DISPATCH_S, Turn


class World:
    """Writes down what the turn does."""

    def __init__(self) -> None:
        self.told: list[str] = []
        self.scheduled: list[Callable[[], None]] = []
        self.reported: list[BaseException] = []
        self.now = 0.0
        flow = FlowControl(lambda: self.now, None, 0)
        self.turn = Turn(self.scheduled.append, self.reported.append, lambda: self.now, flow)
        self.turn.start(self)
        self.run()
        self.told.clear()

    wants_sync = False
    has_unwritten = False

    def write(self) -> None:
        """See `turn.Writer`."""
        self.has_unwritten = False
        self.told.append("journal")

    def sync(self, *, has_sent: bool = False) -> None:
        """See `turn.Writer`."""
        self.wants_sync = False
        self.told.append("sync, after something was sent" if has_sent else "sync")

    def write_through(self, lsn: int) -> bool:
        """See `turn.Writer`."""
        self.told.append(f"journal through {lsn}")
        return True

    def storage_failed(self, reason: str) -> None:
        """See `turn.Writer`."""
        self.told.append(reason)

    def run(self) -> None:
        """Run what has been scheduled."""
        scheduled, self.scheduled[:] = list(self.scheduled), []
        for job in scheduled:
            job()

    def job(self, name: str, *, fails: bool = False, takes_s: float = 0.0) -> Callable[[], None]:
        """A piece of work that leaves its name."""

        def work() -> None:
            self.told.append(name)
            self.now += takes_s
            if fails:
                raise ValueError(name)

        return work

    def queue(self, name: str, *, fails: bool = False, takes_s: float = 0.0) -> ClassicQueue:
        """A queue of which the turn needs `dispatch`, and `mark_ahead`, which leaves nothing."""
        return cast("ClassicQueue", Called(self.job(name, fails=fails, takes_s=takes_s)))

    def outbox(self, name: str, *, is_out: bool = True) -> Outbox:
        """An outbox with something to say: its socket leaves this name.

        `is_out`: the socket has it when the write returns.
        """
        work = self.job(name)

        def write(*_: object) -> bool:
            work()
            return is_out

        outbox = Outbox(Unasked(), write, 1 << 20, ignore)
        outbox.send(b".")
        return outbox


class Called:
    """Anything the turn may call."""

    def __init__(self, work: Callable[[], None], ahead: Callable[[], None] | None = None) -> None:
        self.dispatch = work
        self.mark_ahead = ahead or ignore


class Unasked:
    """No turn: the test itself asks for the flush."""

    def wants_flush(self, outbox: Outbox) -> None:
        """See `outbox.Flusher`."""


def ignore() -> None:
    """Nothing waits for the socket."""


class Confirming:
    """A channel with confirms to say."""

    def __init__(self, world: World) -> None:
        self.world = world

    def release(self, watermark: int) -> bool:
        self.world.told.append(f"confirms at {watermark}")
        return True


@pytest.fixture
def world() -> World:
    """A turn and what it is asked to do."""
    return World()


def test_what_one_queue_gives_another_is_written_before_that_one_delivers(world: World) -> None:
    def release() -> None:
        world.told.append("releases")
        world.has_unwritten = True

    world.turn.wants_dispatch(world.queue("first"))
    world.turn.wants_dispatch(cast("ClassicQueue", Called(release)))
    world.turn.wants_dispatch(world.queue("third"))
    world.run()
    assert world.told == ["journal", "first", "releases", "journal", "third", "journal"]


def test_a_queue_alone_logs_its_delivery_with_the_message(world: World) -> None:
    queue = Called(world.job("dispatch"), world.job("mark"))
    world.turn.wants_dispatch(cast("ClassicQueue", queue))
    world.run()
    assert world.told == ["mark", "journal", "dispatch", "journal"]


def test_of_several_queues_none_logs_a_delivery_that_another_may_prevent(world: World) -> None:
    for name in ("first", "second"):
        queue = Called(world.job(name), world.job("mark"))
        world.turn.wants_dispatch(cast("ClassicQueue", queue))
    world.run()
    assert world.told == ["journal", "first", "second", "journal"]


def test_order_within_a_turn(world: World) -> None:
    turn = world.turn
    confirming = Confirming(world)
    turn.watermark = 7
    turn.wants_flush(world.outbox("write"))
    turn.wants_release(confirming)
    turn.wants_dispatch(world.queue("dispatch"))
    turn.later(world.job("work"))
    turn.wants_release(confirming)
    assert len(world.scheduled) == 1
    world.run()
    assert world.told == ["work", "journal", "dispatch", "confirms at 7", "journal", "write"]


def test_a_sync_begins_when_everything_else_is_done(world: World) -> None:
    world.turn.wants_dispatch(world.queue("dispatch"))
    world.wants_sync = True
    world.run()
    assert world.told == ["journal", "dispatch", "journal", "sync"]


def test_a_sync_begins_when_the_sockets_have_what_was_said(world: World) -> None:
    world.turn.wants_flush(world.outbox("write"))
    world.wants_sync = True
    world.run()
    assert world.told == ["journal", "write", "sync, after something was sent"]


def test_what_the_loop_still_has_goes_before_the_sync(world: World) -> None:
    world.turn.wants_flush(world.outbox("first", is_out=False))
    world.turn.wants_flush(world.outbox("second"))
    world.wants_sync = True
    world.run()
    assert world.told == ["journal", "first", "second"]
    world.run()
    assert world.told == ["journal", "first", "second", "sync"]


def test_what_was_written_between_turns_is_synced_by_the_next(world: World) -> None:
    world.turn.write_first()
    world.wants_sync = True
    world.turn.flush()
    world.run()
    assert world.told == ["journal", "journal", "sync"]


def test_everything_is_done_once(world: World) -> None:
    world.turn.later(world.job("work"))
    world.run()
    world.turn.wake()
    world.run()
    assert world.told == ["work", "journal", "journal"]


def test_what_a_turn_causes_is_left_to_the_next(world: World) -> None:
    world.turn.later(lambda: world.turn.later(world.job("later")))
    world.run()
    assert world.told == ["journal"]
    world.run()
    assert world.told == ["journal", "later", "journal"]


def test_a_failing_queue_stops_no_other(world: World) -> None:
    world.turn.wants_dispatch(world.queue("bad", fails=True))
    world.turn.wants_dispatch(world.queue("good"))
    world.turn.later(world.job("bad work", fails=True))
    world.run()
    assert world.told == ["bad work", "journal", "bad", "good", "journal"]
    assert [str(error) for error in world.reported] == ["bad work", "bad"]


def test_nothing_is_delivered_when_nothing_can_be_written(world: World) -> None:
    world.turn.wants_dispatch(world.queue("queue"))
    world.turn.stop_delivering()
    world.turn.wants_flush(world.outbox("outbox"))
    world.run()
    assert world.told == ["journal", "journal", "outbox"]


def test_flush_between_turns_writes_at_once(world: World) -> None:
    world.turn.wants_flush(world.outbox("write"))
    world.turn.flush()
    assert world.told == ["write"]
    world.run()
    assert world.told == ["write", "journal"]


def test_what_is_said_of_a_sync_needs_no_turn(world: World) -> None:
    world.turn.synced(7)
    world.turn.wants_flush(world.outbox("confirm"))
    assert world.scheduled == []
    world.turn.flush()
    assert world.told == ["confirm"]
    world.turn.wants_flush(world.outbox("answer"))
    world.run()
    assert world.told == ["confirm", "journal", "answer"]


def test_what_is_said_between_turns_may_rest_on_the_journal(world: World) -> None:
    world.turn.write_first()
    world.turn.wants_flush(world.outbox("outbox"))
    world.turn.flush()
    assert world.told == ["journal", "outbox"]
    world.turn.flush()
    assert world.told == ["journal", "outbox"], "it is owed once"


def test_a_turn_writes_what_was_owed(world: World) -> None:
    world.turn.write_first()
    world.turn.wants_flush(world.outbox("outbox"))
    world.run()
    assert world.told == ["journal", "outbox"]


def test_dispatches_that_take_too_long_are_left_to_the_next_turn(world: World) -> None:
    """LIMIT-23: they come first there, and whoever wants to be served meanwhile is served."""
    for name in "abcd":
        world.turn.wants_dispatch(world.queue(name, takes_s=DISPATCH_S / 2))
    world.run()
    assert world.told == ["journal", "a", "b", "journal"]
    world.turn.wants_dispatch(world.queue("e"))
    world.told.clear()
    world.run()
    assert world.told == ["journal", "c", "d", "journal"]
    world.told.clear()
    world.run()
    assert world.told == ["journal", "e", "journal"]
    assert world.scheduled == []
