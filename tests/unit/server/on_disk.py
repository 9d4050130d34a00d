"""A whole broker on a simulated disk: octets in, octets out, and every failure on demand."""

from __future__ import annotations

from itertools import count

from tests.simulation.sim_disk import SimDisk
from tests.unit.server.in_memory import ACCOUNTS, World
from vouchmq.server.auth.connection_limits import ConnectionLimits
from vouchmq.server.auth.users import Authenticator
from vouchmq.server.connection.handshake import Offer
from vouchmq.server.edge.settings import Settings
from vouchmq.server.runtime.runtime import BrokerRuntime
from vouchmq.store.sync.worker import SyncInline

SETTINGS = Settings(segment_size_bytes=65536, disk_free_limit="0")


class DiskWorld(World):
    """One broker with the real journal; `disk.fail` makes what it writes fail.

    Timers ring only with `rings`: without them compaction takes a step in every turn.
    """

    def __init__(
        self,
        disk: SimDisk | None = None,
        *,
        now: float = 1000.0,
        rings: bool = False,
        settings: Settings = SETTINGS,
    ) -> None:
        self.disk = disk if disk is not None else SimDisk()
        self.now = now
        self.alarms = []
        self._rings = rings
        self._settings = settings
        self.scheduled = []
        self.bugs = []
        self.fatal: list[str] = []
        self._numbers = count(1)
        self.runtime = BrokerRuntime(
            settings,
            self.disk,
            SyncInline(),
            call_soon=self.scheduled.append,
            clock=lambda: self.now,
            wall_ms=lambda: int(1000 * self.now),
            random_token=lambda: f"token{next(self._numbers):017d}",
            fatal=self.fatal.append,
            call_later=self.call_later if rings else None,
        )
        self.turn = self.runtime.turn
        self.broker = self.runtime.broker
        self.context = self.runtime.context
        self.connections = self.runtime.connections
        self.vhost, _ = self.broker.create_vhost("/")
        self.offer = Offer("n@h", "VouchMQ", "1", "test", channel_max=10, heartbeat_s=0)
        self.auth = Authenticator(ACCOUNTS, (), bytes)
        self.connection_limits = ConnectionLimits()
        self.sync()

    def sync(self) -> None:
        """Everything written so far is synced, as far as the disk lets it be."""
        self.run_turns()
        while not self.runtime.commit.is_idle and not self.runtime.commit.has_failed:
            self.runtime.commit.on_readable()
            self.run_turns()

    def check(self) -> None:
        """The gauges are read, which also probes a disk that has refused."""
        self.runtime.check(0)
        self.sync()

    def after_power_cut(self, seed: int = 0) -> DiskWorld:
        """What is there when the power comes back: nothing that was not synced, or parts of it."""
        self.disk.crash(seed)
        return DiskWorld(self.disk, now=self.now, rings=self._rings, settings=self._settings)
