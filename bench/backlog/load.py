"""Filling queues with confirmed messages and draining them; every message is accounted for."""

from __future__ import annotations

import socket
import struct
import time
from typing import Final

from bench import frames
from bench.client import Address, Client

BODY: Final = bytes(1024)
CHUNK: Final = 500
WINDOW: Final = 5000
PREFETCH: Final = 1000
ACK_SIZE: Final = 21
READ_BYTES: Final = 1024 * 1024
TIMEOUT_S: Final = 600.0


def declare(address: Address, names: list[str]) -> None:
    with Client(address) as client:
        for name in names:
            client.call(frames.queue_declare(name, durable=True))
        client.close()


def count_in(address: Address, names: list[str]) -> int:
    with Client(address) as client:
        replies = [client.call(frames.queue_declare(name, passive=True)) for name in names]
        client.close()
    return sum(frames.queue_name_and_count(reply)[1] for reply in replies)


def fill(address: Address, names: list[str], count: int, *, persistent: bool = True) -> float:
    """Publish to the queues in turn, each message confirmed; seconds."""
    chunk_count = max(CHUNK, len(names))
    keys = [names[at % len(names)] for at in range(chunk_count)]
    chunk = b"".join(frames.publish("", key, BODY, persistent=persistent) for key in keys)
    with Client(address) as client:
        client.call(frames.confirm_select())
        client.socket.settimeout(TIMEOUT_S)
        began = time.perf_counter()
        sent = confirmed = 0
        rest = b""
        while confirmed < count:
            if sent < count and sent - confirmed < WINDOW:
                client.socket.sendall(chunk)
                sent += chunk_count
            must_wait = sent >= count or sent - confirmed >= WINDOW
            try:
                rest += client.socket.recv(READ_BYTES, 0 if must_wait else socket.MSG_DONTWAIT)
            except BlockingIOError:
                continue
            whole = len(rest) // ACK_SIZE * ACK_SIZE
            if whole:
                kind, _, _, ids, tag = struct.unpack_from(">BHIIQ", rest, whole - ACK_SIZE)
                assert (kind, ids) == (frames.METHOD, 60 << 16 | 80), rest
                confirmed = max(confirmed, tag)
                rest = rest[whole:]
        took = time.perf_counter() - began
        client.close()
    found = count_in(address, names)
    assert found == count, f"{count} were confirmed, {found} are there"
    return took


def drain(address: Address, names: list[str], count: int) -> float:
    """Consume and acknowledge everything; seconds."""
    with Client(address) as client:
        client.call(frames.qos(PREFETCH if len(names) == 1 else 20))
        client.socket.settimeout(TIMEOUT_S)
        began = time.perf_counter()
        # Same lengths of names and tags make all deliveries the same size.
        client.socket.sendall(b"".join(frames.consume(name, name, no_ack=False) for name in names))
        skipped = len(frames.method(1, (60, 21), frames.shortstr(names[0]))) * len(names)
        size = delivery_size(names[0])
        octets = acked = received = 0
        while received < count:
            part = client.socket.recv(READ_BYTES)
            assert part, "the broker ended the connection"
            octets += len(part)
            received = max(0, octets - skipped) // size
            if received > acked:
                acked = received
                client.socket.sendall(frames.method(1, (60, 80), struct.pack(">QB", acked, 1)))
        took = time.perf_counter() - began
        assert (octets - skipped) % size == 0
        client.call(frames.qos(0))
        client.close()
    assert count_in(address, names) == 0
    return took


def delivery_size(name: str) -> int:
    """Octets of one delivery of BODY with this queue, consumer tag and routing key."""
    publish = frames.publish("", name, BODY, persistent=True)
    # Class, method, tag, delivery tag, redelivered, exchange, key against reserved, names, bits.
    return len(publish) + len(frames.shortstr(name)) + 8 + 1 - 3
