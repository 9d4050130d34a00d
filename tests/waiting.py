"""How tests wait: for an event, with a limit so generous that only what hangs reaches it.

A limit is no claim about speed. It must hold on a machine with many more programs than cores, so
nothing here is shorter than `LIMIT_S`, and each test may take five times that (pyproject.toml):
what must not be waited for to its end gets ten times that.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
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
