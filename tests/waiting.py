"""How tests wait: for an event, with a limit so generous that only what hangs reaches it.

A limit is no claim about speed. It must hold on a machine with many more programs than cores, so
nothing here is shorter than `LIMIT_S`, and each test may take five times that (pyproject.toml):
what must not be waited for to its end gets ten times that. Where a test does claim that something
is done in time, `Lateness` says what the machine added.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Final

LIMIT_S: Final = 60.0
LOOK_S: Final = 0.01


def _pause() -> None:
    time.sleep(LOOK_S)


def wait_until(
    claim: Callable[[], object],
    evidence: Callable[[], object] | str = "waited in vain",
    *,
    limit_s: float = LIMIT_S,
    between: Callable[[], object] = _pause,
) -> None:
    """Look until the claim holds.

    Args:
        claim: what is waited for
        evidence: says what is wrong when it does not come
        limit_s: how long to look
        between: done between two looks: a client's own loop, say
    """
    deadline = time.monotonic() + limit_s
    while not claim():
        assert time.monotonic() < deadline, evidence() if callable(evidence) else evidence
        between()


async def until(claim: Callable[[], object], *, limit_s: float = LIMIT_S) -> None:
    """The same in a coroutine, for what callbacks collect."""
    async with asyncio.timeout(limit_s):
        while not claim():  # noqa: ASYNC110 - callbacks have no event to wait for
            await asyncio.sleep(LOOK_S)


class Lateness(threading.Thread):
    """How late this machine wakes whoever sleeps, while it is used with `with`.

    An exchange of a few messages between processes is held up that often. So an upper limit of
    time plus `allowance_s` is as strict as the limit where nothing else runs, and holds where much
    does.
    """

    _NAP_S: Final = 0.005
    _WAKINGS: Final = 10

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self._worst_s = 0.0
        self._is_over = threading.Event()

    @property
    def allowance_s(self) -> float:
        """What to add to a limit."""
        return self._WAKINGS * self._worst_s

    def __enter__(self) -> Lateness:
        """Begin to look."""
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Enough."""
        self._is_over.set()
        self.join()

    def run(self) -> None:
        """Sleep, and see how long that was."""
        while not self._is_over.is_set():
            began = time.monotonic()
            time.sleep(self._NAP_S)
            self._worst_s = max(self._worst_s, time.monotonic() - began - self._NAP_S)
