"""The clients that do nothing unusual.

One asks for a message of an empty queue every ten milliseconds. One holds a connection with
heartbeats, and notes how long it hears nothing. Each runs in a process of its own, so that what
the abusing client computes is not taken for the broker's delay.
"""

from __future__ import annotations

import multiprocessing
import select
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from typing import Final

from bench import frames
from bench.client import Address, BrokerError, Client, handshake_steps

QUEUE: Final = "bystander"
INTERVAL_S: Final = 0.01
PATIENCE_S: Final = 300.0
HEARTBEAT_S: Final = 1


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


def _hold(address: Address, pipe: Connection) -> None:
    """Send and hear heartbeats until told to stop, then send each silence and what went wrong."""
    gaps_ms: list[float] = []
    error = ""
    try:
        with socket.create_connection((address.host, address.port), PATIENCE_S) as held:
            for _, octets in handshake_steps(address, HEARTBEAT_S):
                held.sendall(octets)
                held.recv(65536)
            pipe.send(None)
            heard = said = time.perf_counter()
            while not pipe.poll():
                readable, _, _ = select.select([held], [], [], INTERVAL_S)
                now = time.perf_counter()
                if readable:
                    if not held.recv(65536):
                        raise BrokerError("the broker ended the connection")
                    gaps_ms.append((now - heard) * 1000)
                    heard = now
                if now - said >= HEARTBEAT_S / 2:
                    held.sendall(frames.frame(frames.HEARTBEAT, 0, b""))
                    said = now
            gaps_ms.append((time.perf_counter() - heard) * 1000)
    except (BrokerError, OSError) as reason:
        error = str(reason)
    if max(gaps_ms, default=0.0) > 2000 * HEARTBEAT_S:
        error = error or "it has heard nothing for two intervals"
    pipe.send((gaps_ms, error))


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


def bystander(address: Address) -> AbstractContextManager[Waits]:
    """Ask while the block runs; the waits are filled in when it ends."""
    return _beside(_ask, address)


def holder(address: Address) -> AbstractContextManager[Waits]:
    """Hold a connection with heartbeats while the block runs; the waits are its silences."""
    return _beside(_hold, address)


@contextmanager
def _beside(what: Callable[[Address, Connection], None], address: Address) -> Iterator[Waits]:
    found = Waits()
    # A fork would keep the abusing client's sockets open when that drops them.
    fresh = multiprocessing.get_context("spawn")
    ours, theirs = fresh.Pipe()
    process = fresh.Process(target=what, args=(address, theirs))
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
