"""The end of a broker: tell clients, sync what they have published, seal the journal."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Final

from vouchmq.server.connection.wire import STOPPING

if TYPE_CHECKING:
    from collections.abc import Callable

    from vouchmq.server.edge.listener import Listener
    from vouchmq.server.runtime.runtime import BrokerRuntime

LOOK_S: Final = 0.005
MOST_LOOKS: Final = 1_000_000
LAST_WORDS_S: Final = 0.2
# Syncs that the end of the journal may take: of what is left, of what that sets free, of the seal.
SEAL_SYNCS: Final = 10


async def drain_clients(
    runtime: BrokerRuntime,
    listener: Listener,
    timeout_s: float,
    *,
    is_committed: Callable[[], bool] = lambda: True,
) -> None:
    """Finish pending syncs, tell every client, wait for them a while (CONN-57).

    With a shared log, also what it has not committed.
    """
    deadline = time.monotonic() + timeout_s
    # Nothing new is read, so that what has been published can be synced and confirmed.
    for edge in list(listener.edges):
        edge.pause(STOPPING)
    runtime.turn.run()
    is_quiet = lambda: (  # noqa: E731
        runtime.context.has_failed or (runtime.commit.is_idle and is_committed())
    )
    await _until(is_quiet, time.monotonic() + timeout_s / 2)
    for edge in list(listener.edges):
        connection = edge.connection
        if connection is not None:
            connection.shut_down("broker forced connection closure with reason 'shutdown'")
        else:
            edge.abort()
        edge.resume(STOPPING)
    runtime.turn.run()
    is_left = lambda: not listener.edges and runtime.context.budget.is_idle  # noqa: E731
    await _until(is_left, deadline)
    for edge in list(listener.edges):
        edge.abort()
    await _until(lambda: not listener.edges, time.monotonic() + LAST_WORDS_S)
    runtime.turn.run()


async def seal_journal(runtime: BrokerRuntime, timeout_s: float) -> None:
    """Have the journal say where it ends; what differs at the next start is damage.

    A disk that takes longer than clients may is not waited for. Spec: DURABLE-22
    """
    deadline = time.monotonic() + max(LAST_WORDS_S, timeout_s)
    for _ in range(SEAL_SYNCS):
        if runtime.journal_writer.seal() or time.monotonic() >= deadline:
            return
        await _until(lambda: runtime.context.has_failed or runtime.commit.is_idle, deadline)


async def _until(is_so: Callable[[], bool], deadline: float) -> None:
    """Look every few milliseconds whether something has become true, at most until `deadline`."""
    for _ in range(MOST_LOOKS):
        if is_so() or time.monotonic() >= deadline:
            return
        await asyncio.sleep(LOOK_S)
