"""Compaction takes short steps while anybody is served, and keeps up with publishers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from pamqp import commands

from tests import wire
from tests.unit.server.in_memory import SETTINGS, World
from tests.unit.server.runtime.budgeted import opened
from vouchmq.server.broker.events import EventBus
from vouchmq.server.runtime.alarms import Alarms
from vouchmq.server.runtime.compaction_scheduler import (
    BUSY_PAUSE_S,
    BUSY_STEP_S,
    CALM_S,
    IDLE_PAUSE_S,
    IDLE_STEP_S,
    LONGEST_PAUSE_S,
    LONGEST_STEP_S,
    ROOM_SHARE,
    CompactionScheduler,
)

SEGMENT_OCTETS = 64 * 1024 * 1024


class Stage:
    """Everything around the upkeep, with a clock that only the test moves."""

    def __init__(self) -> None:
        self.now = 10.0
        self.count = 0
        self.appended_bytes = 0
        self.tail_room_bytes = SEGMENT_OCTETS
        self.spare_bytes = 0
        self.passed_bytes = self.moved_bytes = 0
        self.has_work = True
        self.is_refused = False
        self.passes = 0
        self.limits: list[float] = []
        self.pauses: list[float] = []
        self._next: Callable[[], None] | None = None
        self.alarms = Alarms(0, 0, lambda job: job(), EventBus())
        self.alarms.read(0, 10 * SEGMENT_OCTETS)
        self.compaction_scheduler = CompactionScheduler(
            self,
            self,
            self.alarms,
            self,
            clock=lambda: self.now,
            later=self._later,
            is_refused=lambda: self.is_refused,
            segment_octets=SEGMENT_OCTETS,
        )

    def _later(self, pause_s: float, job: Callable[[], None]) -> None:
        assert self._next is None
        self.pauses.append(pause_s)
        self._next = job

    def wake(self) -> None:
        self.count += 1

    def look(self) -> bool:
        return self.has_work

    def step(self, octets: int, limit_s: float) -> bool:
        assert octets > 0
        self.limits.append(limit_s)
        self.passed_bytes += self.passes
        return self.has_work

    @property
    def is_waiting(self) -> bool:
        return self._next is not None

    def run(
        self, steps: int, *, turns: int = 0, brought: int = 0, moved: int = 0, late_s: float = 0.0
    ) -> None:
        """Let so many steps happen; in each pause others have turns and bring something."""
        for _ in range(steps):
            assert self._next is not None
            self.now += self.pauses[-1] + late_s
            self.count += turns
            self.appended_bytes += brought + moved
            self.moved_bytes += moved
            job, self._next = self._next, None
            job()


@pytest.fixture
def stage() -> Stage:
    return Stage()


def test_steps_are_short_while_somebody_is_served(stage: Stage) -> None:
    stage.compaction_scheduler.look()
    stage.run(200, turns=1)
    assert set(stage.limits) == {BUSY_STEP_S}
    assert set(stage.pauses) == {BUSY_PAUSE_S}


def test_steps_are_longer_when_nobody_has_been_served_for_a_while(stage: Stage) -> None:
    stage.now += CALM_S
    stage.compaction_scheduler.look()
    stage.run(3)
    assert stage.limits[-1] == IDLE_STEP_S
    assert stage.pauses[-1] == IDLE_PAUSE_S
    stage.run(1, turns=1)
    assert stage.limits[-1] == BUSY_STEP_S
    stage.run(5)
    assert stage.limits[-1] == BUSY_STEP_S, "one quiet moment is no idleness"


def test_what_compaction_moves_itself_is_not_owed(stage: Stage) -> None:
    stage.compaction_scheduler.look()
    stage.run(500, turns=1, moved=200_000)
    assert stage.limits[-1] == BUSY_STEP_S


def test_steps_grow_when_publishers_bring_more_than_is_passed(stage: Stage) -> None:
    stage.compaction_scheduler.look()
    stage.run(500, turns=1, brought=1_000_000)
    assert stage.limits[-1] == LONGEST_STEP_S
    stage.passes = 10_000_000
    stage.run(500, turns=1)
    assert stage.limits[-1] == BUSY_STEP_S


def test_a_step_that_keeps_up_stays_short(stage: Stage) -> None:
    stage.passes = 300_000
    stage.compaction_scheduler.look()
    stage.run(500, turns=1, brought=100_000)
    assert stage.limits[-1] <= 1.2 * BUSY_STEP_S


def test_what_was_owed_is_forgotten_when_there_is_nothing_left_to_do(stage: Stage) -> None:
    stage.compaction_scheduler.look()
    stage.run(499, turns=1, brought=1_000_000)
    stage.has_work = False
    stage.run(1, turns=1)
    assert not stage.is_waiting
    stage.has_work = True
    stage.appended_bytes += SEGMENT_OCTETS
    stage.compaction_scheduler.look()
    stage.run(1, turns=1)
    assert stage.limits[-1] == BUSY_STEP_S


def test_steps_are_rarer_on_a_machine_that_cannot_be_in_time(stage: Stage) -> None:
    stage.compaction_scheduler.look()
    stage.run(5, turns=1, late_s=0.001)
    assert stage.pauses[-1] == pytest.approx(0.008)
    stage.run(5, turns=1, late_s=1.0)
    assert stage.pauses[-1] == LONGEST_PAUSE_S
    stage.run(300, turns=1, late_s=1.0, brought=1_000_000)
    assert stage.pauses[-1] == BUSY_PAUSE_S, "the disk comes first"
    assert stage.limits[-1] == LONGEST_STEP_S


def test_there_are_no_steps_while_the_disk_refuses(stage: Stage) -> None:
    stage.compaction_scheduler.look()
    stage.is_refused = True
    stage.run(1)
    assert stage.limits == []
    assert not stage.is_waiting
    stage.is_refused = False
    stage.compaction_scheduler.look()
    stage.run(1)
    assert len(stage.limits) == 1


def test_a_full_disk_is_emptied_into_room_that_is_there(stage: Stage) -> None:
    stage.alarms.read(0, 0)
    stage.alarms.storage_failed(0)
    stage.compaction_scheduler.look()
    stage.run(1)
    assert len(stage.limits) == 1
    stage.tail_room_bytes = int(ROOM_SHARE * SEGMENT_OCTETS) - 1
    stage.run(1)
    assert len(stage.limits) == 1, "what is left is for acks"
    assert not stage.is_waiting
    # Until a segment is found to be dead: its file is the next one.
    for spare_bytes in (0, SEGMENT_OCTETS):
        stage.spare_bytes = spare_bytes
        stage.compaction_scheduler.look()
        assert stage.compaction_scheduler.is_at_work == bool(spare_bytes)
    stage.run(1)
    assert len(stage.limits) == 2


@pytest.mark.parametrize(("free_octets", "goes_on"), [(50_000_000, True), (1_000_000, False)])
def test_a_disk_with_less_than_a_segment_free_is_emptied_too(
    stage: Stage, free_octets: int, goes_on: bool
) -> None:
    stage.tail_room_bytes = 1000
    stage.alarms.read(0, free_octets)
    stage.compaction_scheduler.look()
    assert stage.is_waiting == goes_on


def test_a_new_segment_is_a_reason_to_look(monkeypatch: pytest.MonkeyPatch) -> None:
    looks: list[int] = []
    monkeypatch.setattr(CompactionScheduler, "look", lambda _: looks.append(1))
    world = World(replace(SETTINGS, segment_size_bytes=8192))
    client = opened(world)
    client.declare("q", durable=True)
    generation = world.journal.chain.tail_generation
    persistent = commands.Basic.Properties(delivery_mode=2)
    client.send(wire.publish(1, "q", bytes(1000), persistent))
    world.sync()
    assert (world.journal.chain.tail_generation, looks) == (generation, [])
    for _ in range(8):
        client.send(wire.publish(1, "q", bytes(1000), persistent))
    world.sync()
    assert world.journal.chain.tail_generation == generation + len(looks)
    assert looks
