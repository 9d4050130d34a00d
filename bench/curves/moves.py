"""The curve of messages that compaction has moved again and again: what it costs to read them.

A stream, which is always read from the journal, is filled beside a queue; then that queue is filled
and purged until compaction has written so many times what the stream has.
"""

from __future__ import annotations

import json
import struct
import subprocess
import sys
from typing import Final

from bench import frames
from bench.backlog.load import fill
from bench.client import Client
from bench.curves.curve import Curve
from bench.curves.stage import Stage
from bench.curves.storms import purge

STREAM, QUEUE = "bench-kept", "bench-gone"
COUNT: Final = 5_000
QUICK_COUNT: Final = 1_000
BODY_BYTES: Final = 1024
CHURN: Final = 4_000
PREFETCH: Final = 1_000
READ_BYTES: Final = 1024 * 1024
MOST_ROUNDS: Final = 2_000
ASK: Final = """
import json, pathlib, sys
from vouchmq.server.edge.control.client import ask_rows
row, _ = ask_rows(pathlib.Path(sys.argv[1]), "list store-details")
print(json.dumps(row))
"""


def moves(stage: Stage, size: int, quick: bool) -> None:
    """Read a stream from its first message on whose messages were moved so many times."""
    count = QUICK_COUNT if quick else COUNT
    with stage.client() as client:
        client.call(frames.queue_declare(STREAM, durable=True, is_stream=True))
        client.call(frames.queue_declare(QUEUE, durable=True))
        # Six in seven messages are of the queue, so that what lives is little of each segment.
        fill_both(stage, client, count)
        for _ in range(MOST_ROUNDS):
            if moved_bytes(stage) >= size * count * BODY_BYTES:
                break
            fill(stage.address, [QUEUE], CHURN)
            client.call(purge(QUEUE))
        else:
            raise RuntimeError("compaction has not moved enough")
    with stage.client() as client, stage.measured("read from the first on", count):
        read_all(client, count)


def fill_both(stage: Stage, client: Client, count: int) -> None:
    """Publish to both, and take away what is in the queue."""
    stored = 0
    while stored < count:
        block = min(100, count - stored)
        message = frames.publish("", STREAM, bytes(BODY_BYTES), persistent=True)
        client.socket.sendall(message * block)
        stored += block
        fill(stage.address, [QUEUE], 1_000)
        client.call(purge(QUEUE))


def moved_bytes(stage: Stage) -> int:
    """What compaction has written again so far."""
    command = [sys.executable, "-c", ASK, str(stage.clock.parent / "vouchmq")]
    found = subprocess.run(command, capture_output=True, check=True)
    return int(json.loads(found.stdout)["moved_bytes"])


def read_all(client: Client, count: int) -> None:
    """Consume so many messages of the stream, and acknowledge them by and by."""
    client.call(frames.qos(PREFETCH))
    table = frames.text_entry("x-stream-offset", "first")
    names = b"\0\0" + frames.shortstr(STREAM) + frames.shortstr("reader")
    client.socket.sendall(frames.method(1, (60, 20), names + b"\0" + frames.longstr(table)))
    rest, taken, acked = b"", 0, 0
    while taken < count:
        rest += client.socket.recv(READ_BYTES)
        found, rest = frames.split(rest)
        taken += sum(frame.ids == (60, 60) for frame in found)
        if taken - acked >= PREFETCH // 2:
            acked = taken
            client.socket.sendall(frames.method(1, (60, 80), struct.pack(">QB", acked, 1)))


MOVES: Final = (
    Curve(
        "moves",
        "Times that compaction has moved messages",
        "message",
        (0, 1, 5, 20),
        (0, 5),
        moves,
        flags=("--segment-size-bytes=1048576", "--recovery-read-bytes=0"),
    ),
)
