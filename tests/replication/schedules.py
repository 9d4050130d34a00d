"""Runs schedules, and says which seed failed and why."""

from __future__ import annotations

from tests.replication.nodes import Node
from tests.replication.world import World
from vouchmq.store.errors import LogBroken


class ScheduleError(AssertionError):
    """A schedule failed; the text has its seed."""


def run(seed: int, node_class: type[Node] = Node) -> World:
    """Run one schedule.

    Raises:
        ScheduleError: something that must be true was not
    """
    world = World(seed, node_class)
    try:
        world.run()
    except Exception as error:
        raise ScheduleError(f"python -m tests.replication --seed {seed}: {error!r}") from error
    return world


def first_failure(seeds: range, node_class: type[Node]) -> ScheduleError | None:
    """Return the failure of the first schedule that fails, None if none does.

    A node that does not run proves nothing, so that is raised.
    """
    for seed in seeds:
        try:
            run(seed, node_class)
        except ScheduleError as failure:
            if not isinstance(failure.__cause__, AssertionError | LogBroken):
                raise
            return failure
    return None
