"""The client that does nothing unusual: a `basic.get` of an empty queue every ten milliseconds.

It runs in a process of its own, so that what the abusing client computes is not taken for the
broker's delay.
"""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from typing import Final

from bench import frames
from bench.client import Address, BrokerError, Client

QUEUE: Final = "bystander"
INTERVAL_S: Final = 0.01
PATIENCE_S: Final = 300.0


@dataclass(slots=True)
class Waits:
    """How long each get took, in milliseconds; `error` when the broker ended the connection."""

    waits_ms: list[float] = field(default_factory=list)
    error: str = ""

    @property
    def worst_ms(self) -> float:
        """The longest wait."""
        return max(self.waits_ms, default=0.0)

    def percentile_ms(self, share: float) -> float:
        """The wait that this share of all waits does not exceed."""
        ordered = sorted(self.waits_ms)
        return ordered[min(int(len(ordered) * share), len(ordered) - 1)] if ordered else 0.0


def _ask(address: Address, pipe: Connection) -> None:
    """Ask until told to stop, then send all waits and what went wrong."""
    waits_ms: list[float] = []
    error = ""
    try:
        with Client(address) as client:
            client.socket.settimeout(PATIENCE_S)
            client.call(frames.queue_declare(QUEUE))
            question = frames.get(QUEUE, no_ack=True)
            client.call(question)
            pipe.send(None)
            while not pipe.poll(INTERVAL_S):
                began = time.perf_counter()
                client.call(question)
                waits_ms.append((time.perf_counter() - began) * 1000)
            client.call(frames.queue_delete(QUEUE))
            client.close()
    except (BrokerError, OSError) as reason:
        error = str(reason)
    pipe.send((waits_ms, error))


@contextmanager
def bystander(address: Address) -> Iterator[Waits]:
    """Ask while the block runs; the waits are filled in when it ends."""
    found = Waits()
    # A fork would keep the abusing client's sockets open when that drops them.
    fresh = multiprocessing.get_context("spawn")
    ours, theirs = fresh.Pipe()
    process = fresh.Process(target=_ask, args=(address, theirs))
    process.start()
    try:
        assert ours.poll(PATIENCE_S), "the bystander does not start"
        first = ours.recv()
        assert first is None, f"the bystander could not connect: {first[1]}"
        yield found
        ours.send(None)
        assert ours.poll(PATIENCE_S), "the bystander gets no answer"
        found.waits_ms, found.error = ours.recv()
    finally:
        process.kill()
        process.join()
