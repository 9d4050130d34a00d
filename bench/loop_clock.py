"""The broker with a clock in its loop: a tick every millisecond that writes down when it is late.

    python -m bench.loop_clock FILE serve --port 0 --data-dir DIR

Each line of FILE is a pause of the loop of 5 ms and more: when it ended (CLOCK_MONOTONIC, seconds),
how long it was, how much of that the loop itself was running, and for how much of that Python's
garbage collector was, all three in milliseconds. On a machine that others use as well a pause may
be theirs; the processor time is the loop's own.
"""

from __future__ import annotations

import asyncio
import gc
import runpy
import sys
import time
from pathlib import Path
from typing import Final

import uvloop

TICK_S: Final = 0.001
LEAST_PAUSE_S: Final = 0.005


def watch(loop: asyncio.AbstractEventLoop, path: Path) -> None:
    """Have the loop watched from now on."""
    notes = path.open("w", buffering=1)
    last_s, last_cpu_s = time.monotonic(), time.thread_time()
    collecting_s = began_s = 0.0

    def on_collection(phase: str, _: object) -> None:
        nonlocal collecting_s, began_s
        if phase == "start":
            began_s = time.thread_time()
        else:
            collecting_s += time.thread_time() - began_s

    def tick() -> None:
        nonlocal last_s, last_cpu_s, collecting_s
        now_s, cpu_s = time.monotonic(), time.thread_time()
        pause_s = now_s - last_s - TICK_S
        if pause_s >= LEAST_PAUSE_S:
            used_s = min(cpu_s - last_cpu_s, pause_s)
            spent_ms = " ".join(f"{s * 1000:.3f}" for s in (pause_s, used_s, collecting_s))
            notes.write(f"{now_s:.6f} {spent_ms}\n")
        last_s, last_cpu_s, collecting_s = time.monotonic(), cpu_s, 0.0
        loop.call_later(TICK_S, tick)

    gc.callbacks.append(on_collection)
    loop.call_soon(tick)


def run(path: Path, arguments: list[str]) -> None:
    """Run the broker with these arguments, as `python -m vouchmq` does, its loop watched."""
    made = uvloop.new_event_loop

    def new_event_loop() -> uvloop.Loop:
        loop = made()
        watch(loop, path)
        return loop

    uvloop.new_event_loop = new_event_loop
    sys.argv = ["vouchmq", *arguments]
    runpy.run_module("vouchmq", run_name="__main__")


if __name__ == "__main__":
    run(Path(sys.argv[1]), sys.argv[2:])
