"""A start that is refused at the last moment leaves the data directory as it was.

The whole broker on a simulated disk. DURABLE-22, DURABLE-27.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests import wire
from tests.simulation.sim_disk import PowerCut, SimDisk
from tests.unit.server.in_memory import SETTINGS, WALL_MS, World
from tests.unit.store.journals import seal, segments_on
from vouchmq.server.broker.data_directory import KEPT_STARTS
from vouchmq.server.edge.starting.stop_signals import StopAskedError
from vouchmq.server.errors import StartupError
from vouchmq.server.runtime.runtime import BrokerRuntime, Host, start_broker
from vouchmq.store.recovery.recover import RecoveryReport
from vouchmq.store.sync.worker import SyncInline

FEW_STARTS = 3
MOST_STEPS = 100


class Starter:
    """Starts brokers on one disk, on which a broker with a message has been stopped."""

    def __init__(self) -> None:
        world = World()
        client = world.connect()
        client.open()
        client.declare("orders", durable=True)
        client.send(wire.publish(1, "orders", b"one", wire.persistent()))
        world.sync()
        self.disk: SimDisk = world.disk
        self.seen = world.broker.data_directory
        self.reports: list[RecoveryReport] = []
        seal(world.journal)

    def start(
        self,
        restored: Callable[[BrokerRuntime], None] | None = None,
        progress: Callable[[int, int], None] | None = None,
    ) -> BrokerRuntime:
        """One start, by `vouchmq serve` but for the sockets."""
        return start_broker(
            SETTINGS,
            self.disk,
            SyncInline(),
            Host(
                call_soon=lambda _: None,
                clock=lambda: 0.0,
                wall_ms=lambda: WALL_MS,
                random_token=lambda: f"start{len(self.reports):017}",
                fatal=pytest.fail,
            ),
            progress=progress,
            restored=restored,
        )

    def refuse(self, runtime: BrokerRuntime) -> None:
        """What the dry run of a definitions file does with a fault, and then some."""
        self.reports.append(runtime.report)
        vhost, _ = runtime.broker.create_vhost("half done")
        vhost.declare_queue(
            "more", durable=True, exclusive_owner=None, auto_delete=False, arguments={}
        )
        raise StartupError("refused")

    def fail(self) -> None:
        """One start that is refused."""
        with pytest.raises(StartupError, match="refused"):
            self.start(self.refuse)

    def files(self) -> dict[str, bytes]:
        """All that is there."""
        return {name: bytes(inode.visible) for name, inode in self.disk.visible.items()}

    def begin(self) -> BrokerRuntime:
        """A start that succeeds, with what it has found."""
        runtime = self.start()
        vhost = runtime.broker.vhosts["/"]
        assert list(runtime.broker.vhosts) == ["/"]
        assert [(name, queue.ready_count) for name, queue in vhost.queues.items()] == [
            ("orders", 1)
        ]
        return runtime


@pytest.fixture
def starter() -> Starter:
    return Starter()


def test_a_refused_start_leaves_every_file_as_it_was(starter: Starter) -> None:
    # Recovery cuts what the stopped broker had reserved, once.
    starter.fail()
    before = starter.files()
    for _ in range(FEW_STARTS):
        starter.fail()
        assert starter.files() == before
    assert all(report.is_sealed for report in starter.reports)
    assert starter.begin().report.is_sealed


def test_a_refused_start_does_not_count(starter: Starter) -> None:
    for _ in range(KEPT_STARTS):
        starter.fail()
    directory = starter.begin().broker.data_directory
    assert directory.identity == starter.seen.identity
    assert directory.mismatch(starter.seen.identity, starter.seen.start, 1, 1000) == ""


def test_a_start_counts_when_nothing_refuses_it(starter: Starter) -> None:
    recorded: list[str] = []
    runtime = starter.start(lambda each: recorded.append(each.broker.data_directory.start))
    assert recorded == [starter.seen.start]
    start = runtime.broker.data_directory.start
    assert start != starter.seen.start
    runtime.turn.run()
    seal(runtime.journal)
    again = starter.begin().broker.data_directory
    assert again.mismatch(again.identity, start, 1, 1000) == ""


def test_the_power_may_fail_at_any_point_of_a_refused_start() -> None:
    """A crash there is one of recovery: nothing is lost, and nothing is taken for damage."""
    for step in range(MOST_STEPS):
        starter = Starter()
        starter.disk.crash_after = step
        try:
            starter.fail()
        except PowerCut:
            starter.disk.crash(step)
            runtime = starter.begin()
            assert not runtime.report.damaged
            continue
        assert step > FEW_STARTS
        return
    pytest.fail("it does not end")


def test_a_disk_that_refuses_to_forget_is_survived(starter: Starter) -> None:
    """The segment stays, and is empty."""

    def refuse(runtime: BrokerRuntime) -> None:
        starter.disk.fail_next("unlink")
        starter.refuse(runtime)

    before = segments_on(starter.disk)
    with pytest.raises(StartupError, match="refused"):
        starter.start(refuse)
    assert len(segments_on(starter.disk)) == len(before) + 1
    starter.begin()


def test_a_start_may_be_stopped_at_every_step_of_recovery(starter: Starter) -> None:
    """CONN-57: SIGTERM while the journal is read; the next start finds everything."""

    def stopping_at(step: int) -> Callable[[int, int], None]:
        def progress(done: int, total: int) -> None:
            steps.append(total)
            if done == step:
                raise StopAskedError

        return progress

    steps: list[int] = []
    for step in range(1, MOST_STEPS):
        try:
            starter.start(progress=stopping_at(step))
        except StopAskedError:
            continue
        break
    # Each segment is looked at twice.
    assert step == steps[-1] + 1 >= FEW_STARTS
    assert starter.begin().broker.data_directory.identity == starter.seen.identity
