"""Memory and disk, looked at while the broker runs: what the alarms are raised by."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from vouchmq.server.edge.memory import give_back_memory, trim_memory

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

    from vouchmq.server.edge.memory import MemoryGauge
    from vouchmq.server.runtime.runtime import BrokerRuntime

# How often memory and disk are looked at; more often when memory is low or the disk nearly full, or
# it refuses (LIMIT-01, LIMIT-15).
CHECK_S: Final = 1.0
CHECK_TIGHT_S: Final = 0.2
GIVE_BACK_S: Final = 5.0
TRIM_AFTER_S: Final = 0.05


class ResourceChecks:
    """Read the gauges of the process for the alarms: once a second, and after much traffic."""

    def __init__(
        self,
        runtime: BrokerRuntime,
        memory: MemoryGauge,
        loop: asyncio.AbstractEventLoop,
        is_stopping: Callable[[], bool],
    ) -> None:
        self._runtime = runtime
        self._memory = memory
        self._loop = loop
        self._is_stopping = is_stopping
        self._gave_back_at = 0.0

    def start(self) -> None:
        """Check now, and from now on until the broker stops."""
        if self._is_stopping():
            return
        self._trim_after(has_freed=self._runtime.periodic_check.check(self._memory.used_octets()))
        alarms = self._runtime.alarms
        if alarms.is_memory_low and self._loop.time() - self._gave_back_at >= GIVE_BACK_S:
            self._gave_back_at = self._loop.time()
            give_back_memory()
        is_tight = alarms.disk_free_octets < 2 * alarms.disk_limit_octets
        is_tight |= alarms.is_storage_failing or alarms.is_memory_low
        self._loop.call_later(CHECK_TIGHT_S if is_tight else CHECK_S, self.start)

    def look(self) -> None:
        """Check memory: much has come in or gone out since it was looked at."""
        if not self._is_stopping():
            has_freed = self._runtime.periodic_check.check_memory(
                self._memory.used_octets_quickly()
            )
            self._trim_after(has_freed=has_freed)

    def _trim_after(self, *, has_freed: bool) -> None:
        """Give back to the system what connections held that are closing now."""
        if has_freed:
            self._loop.call_later(TRIM_AFTER_S, trim_memory)
