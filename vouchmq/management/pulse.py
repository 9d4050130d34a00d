"""Whether the broker still answers, while somebody waits for it.

    a wait ─▶ nothing heard for a while: something small is asked ─▶ an answer: the wait goes on
                                          └▶ more silence: all waits end with TimeoutError

So what takes long (a large listing, an import of definitions, a disk that stalls) is waited for as
long as the broker goes on with its other work, and a broker that has stopped keeps nobody waiting.
While nobody waits nothing is asked. Must not know what is asked, nor of whom.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable


class Patience(NamedTuple):
    """For how long to wait for a broker of which nothing is heard.

    Args:
        look_s: between two looks
        probe_s: until something is asked that is answered at once
        hung_s: until it counts as hanging
        hung_already_s: for who asks when it does; it may have gone on by now
    """

    look_s: float = 0.25
    probe_s: float = 1.0
    hung_s: float = 4.0
    hung_already_s: float = 0.5


USUAL: Final = Patience()


class Pulse:
    """Of one broker.

    Args:
        probe: asks something that is answered at once, and calls `heard` when it is; never raises
        patience: for how long
        wall_ms: milliseconds since 1970
    """

    def __init__(
        self,
        probe: Callable[[], Awaitable[None]],
        patience: Patience = USUAL,
        wall_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
    ) -> None:
        self._probe = probe
        self._patience = patience
        self._wall_ms = wall_ms
        self._waits: dict[asyncio.Timeout, float] = {}  # and when they began
        self._silent_s = 0.0  # while somebody waited
        self._task: asyncio.Task[None] | None = None
        self.answered_at_ms: int | None = None
        """When the broker has been heard last, in milliseconds since 1970; None: never."""

    @asynccontextmanager
    async def waiting(self) -> AsyncIterator[None]:
        """Wait for the broker in here, and for nothing else.

        Raises:
            TimeoutError: it hangs
        """
        async with asyncio.timeout(None) as limit:
            self._begin(limit)
            try:
                yield
            finally:
                del self._waits[limit]

    def heard(self) -> None:
        """The broker has sent something."""
        self._silent_s = 0.0
        self.answered_at_ms = self._wall_ms()

    def close(self) -> None:
        """Ask nothing any more."""
        if self._task is not None:
            self._task.cancel()

    def _begin(self, limit: asyncio.Timeout) -> None:
        now = asyncio.get_running_loop().time()
        self._waits[limit] = now
        if self._task is None or self._task.done():
            self._silent_s = 0.0
            self._task = asyncio.create_task(self._look())

    async def _look(self) -> None:
        clock, patience = asyncio.get_running_loop().time, self._patience
        probe: asyncio.Future[None] | None = None
        try:
            # Also while an answer is due: who comes meanwhile shall know that it hangs.
            while self._waits or probe is not None:
                before = clock()
                await asyncio.sleep(patience.look_s)
                if probe is not None and probe.done():
                    probe = None
                now = clock()
                # Not the time in which this process has had no time to read.
                self._silent_s += min(now - before, 2 * patience.look_s)
                if probe is None and self._silent_s >= patience.probe_s:
                    probe = asyncio.ensure_future(self._probe())
                if self._silent_s >= patience.hung_s:
                    for limit, began in self._waits.items():
                        if now - began >= patience.hung_already_s:
                            limit.reschedule(now)
        finally:
            if probe is not None:
                probe.cancel()
