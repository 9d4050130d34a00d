"""The codec's loops in microseconds per message, held against a calibration loop.

No broker, no socket: octets as a client sends them, in chunks of the size the broker reads.
The calibration loop does by hand what a codec in Python cannot avoid (unpack a head, slice,
append) and nothing else; a codec figure divided by it says how much the codec adds, on any
machine. `--gate` fails when one of these quotients has grown beyond its bound.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from struct import Struct
from typing import Final

from rich.console import Console
from rich.table import Table

from bench import frames
from vouchmq.protocol.reader import Reader
from vouchmq.protocol.runs import encode_deliveries

CHUNK_SIZE: Final = 65536
BODY_CEILING: Final = 128 * 1024 * 1024
BATCH_COUNT: Final = 256
REPEAT_COUNT: Final = 9
MESSAGE_COUNT: Final = 20_000


@dataclass(frozen=True, slots=True)
class Loop:
    """A loop to time: `bound` is how many calibration steps a message may cost."""

    name: str
    bound: float
    once: Callable[[], None]
    count: int


def publish_loop(name: str, bound: float, keys: Sequence[str], body_size: int) -> Loop:
    """Read publishes, the routing keys in turn."""
    cycle = [frames.publish("", key, bytes(body_size), persistent=True) for key in keys]
    return _reading(name, bound, b"".join(cycle), len(cycle))


def ack_loop(name: str, bound: float) -> Loop:
    """Read acks one by one, in order."""
    tag = Struct(">QB")
    acks = [frames.method(1, (60, 80), tag.pack(number, 0)) for number in range(1, 20_001)]
    return _reading(name, bound, b"".join(acks), len(acks))


def deliver_loop(name: str, bound: float, body_size: int) -> Loop:
    """Encode deliveries and join them, in batches as the broker deals them out."""
    whole = frames.publish("", "queue", bytes(body_size), persistent=True)
    (method, *_), _ = frames.split(whole)
    raw = whole[len(method.payload) + frames.FRAME_OVERHEAD :]
    tail = frames.shortstr("") + frames.shortstr("queue")
    batch = [(raw, tail, number, 0) for number in range(1, BATCH_COUNT + 1)]
    limits = (frames.FRAME_MAX, 0)
    channel, consumer = b"\x00\x01", frames.shortstr("bench")

    def once() -> None:
        for first in range(1, MESSAGE_COUNT, BATCH_COUNT):
            b"".join(encode_deliveries(batch, first, channel, consumer, limits))

    return Loop(name, bound, once, len(range(1, MESSAGE_COUNT, BATCH_COUNT)) * BATCH_COUNT)


def calibration() -> Loop:
    """Time the least a codec in Python does: unpack a head, slice it out, keep it."""
    head = Struct(">BHI")
    data = frames.frame(frames.BODY, 1, bytes(48)) * 1_000

    def once() -> None:
        for _ in range(MESSAGE_COUNT // 1_000):
            kept: list[bytes] = []
            position = 0
            while position < len(data):
                _, _, size = head.unpack_from(data, position)
                end = position + size + 8
                kept.append(data[position:end])
                position = end

    return Loop("calibration", 1.0, once, MESSAGE_COUNT)


LOOPS: Final = (
    ("read publish, 16 B", 2.6, lambda name, bound: publish_loop(name, bound, ["queue"], 16)),
    ("read publish, 1 KiB", 5.0, lambda name, bound: publish_loop(name, bound, ["queue"], 1024)),
    (
        "read publish, 1 KiB, ten keys in turn",
        24.0,
        lambda name, bound: publish_loop(name, bound, [f"q{n}" for n in range(10)], 1024),
    ),
    ("read ack", 1.6, ack_loop),
    ("encode delivery, 16 B", 3.0, lambda name, bound: deliver_loop(name, bound, 16)),
    ("encode delivery, 1 KiB", 3.2, lambda name, bound: deliver_loop(name, bound, 1024)),
)


def _reading(name: str, bound: float, cycle: bytes, cycle_count: int) -> Loop:
    repeats = max(MESSAGE_COUNT // cycle_count, 1)
    data = cycle * repeats
    chunks = [data[at : at + CHUNK_SIZE] for at in range(0, len(data), CHUNK_SIZE)]

    def once() -> None:
        reader = Reader(frames.FRAME_MAX, BODY_CEILING)
        for chunk in chunks:
            for _ in reader.receive_data(chunk):
                pass

    return Loop(name, bound, once, cycle_count * repeats)


def time_us(loop: Loop) -> float:
    """Time a loop, microseconds per message: the minimum of the repeats."""
    best = float("inf")
    for _ in range(REPEAT_COUNT):
        started = time.process_time()
        loop.once()
        best = min(best, time.process_time() - started)
    return best * 1e6 / loop.count


def main(arguments: Sequence[str] | None = None) -> int:
    """Time all loops and print them; exit 1 with --gate when one is beyond its bound."""
    parser = argparse.ArgumentParser(prog="python -m bench.micro.codec", description=__doc__)
    parser.add_argument("--gate", action="store_true", help="fail beyond the bounds")
    parser.add_argument("--out", type=Path, metavar="FILE", help="write the figures there, as JSON")
    options = parser.parse_args(arguments)
    unit_us = time_us(calibration())
    table = Table(title=f"calibration step {unit_us:.3f} us")
    for title in ("loop", "us/message", "steps", "bound"):
        table.add_column(title)
    figures: dict[str, float] = {"calibration": unit_us}
    is_slow = False
    for name, bound, made in LOOPS:
        loop = made(name, bound)
        figures[name] = time_us(loop)
        steps = figures[name] / unit_us
        is_slow = is_slow or steps > bound
        table.add_row(name, f"{figures[name]:.3f}", f"{steps:.2f}", f"{bound:g}")
    Console().print(table)
    if options.out:
        options.out.write_text(json.dumps(figures, indent=1) + "\n")
    return 1 if options.gate and is_slow else 0


if __name__ == "__main__":
    sys.exit(main())
