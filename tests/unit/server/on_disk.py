"""A whole broker that is started again on what its disk has kept."""

from __future__ import annotations

from tests.simulation.sim_disk import SimDisk
from tests.unit.server.in_memory import SETTINGS, World
from vouchmq.server.settings.settings import Settings


class DiskWorld(World):
    """One broker whose power can be cut; timers ring only with `rings`."""

    def __init__(
        self,
        disk: SimDisk | None = None,
        *,
        now: float = 1000.0,
        rings: bool = False,
        settings: Settings = SETTINGS,
    ) -> None:
        super().__init__(settings, disk=disk, now=now, rings=rings)

    def after_power_cut(self, seed: int = 0) -> DiskWorld:
        """What is there when the power comes back: nothing that was not synced, or parts of it."""
        self.disk.crash(seed)
        return DiskWorld(self.disk, now=self.now, rings=self._rings, settings=self.settings)
