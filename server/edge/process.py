"""What the broker asks of the system for its process: memory, time slices, descriptors."""

from __future__ import annotations

import ctypes
import gc
import resource
from contextlib import suppress
from typing import Final

from vouchmq.store.sync.sched_slice import ask_for_slice

# mallopt's names for: give nothing back below this, ask for more at once, no mmap below this.
M_TRIM_THRESHOLD: Final = -1
M_TOP_PAD: Final = -2
M_MMAP_THRESHOLD: Final = -3
KEEP_OCTETS: Final = 64 * 1024 * 1024
# Above this a buffer that grows moves without being copied.
MMAP_OCTETS: Final = 8 * 1024 * 1024
TOP_PAD_OCTETS: Final = 1024 * 1024
# About what a turn of the loop takes.
SLICE_NS: Final = 300_000
# The collector looks when there are so many more objects than at its last look: about 2 ms.
YOUNG_OBJECTS: Final = 20_000
MOST_DESCRIPTORS: Final = 1_000_000


def raise_descriptor_limit() -> int:
    """Take as many file descriptors as this process may have; returns how many."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        soft = hard
    return MOST_DESCRIPTORS if soft == resource.RLIM_INFINITY else min(soft, MOST_DESCRIPTORS)


def tune_process() -> None:
    """Set the allocator and the garbage collector up for long runs of short-lived octets.

    And the scheduler for short ones of our own.
    """
    ask_for_slice(SLICE_NS)
    with suppress(OSError, AttributeError):
        libc = ctypes.CDLL(None)
        libc.mallopt(M_MMAP_THRESHOLD, MMAP_OCTETS)
        libc.mallopt(M_TRIM_THRESHOLD, KEEP_OCTETS)
        libc.mallopt(M_TOP_PAD, TOP_PAD_OCTETS)
    gc.set_threshold(YOUNG_OBJECTS, 20, 100)


def settle_collector() -> None:
    """From now on the garbage collector looks at each object once (LIMIT-23).

    What survives its first collection is frozen (`gc.freeze`). Otherwise objects that live on, such
    as those of ten thousand queues, are gone through together some day, which takes a hundred
    milliseconds. Cycles that live longer stay until `collect_all`; connections, channels and queues
    break theirs.
    """
    gc.collect()
    gc.freeze()
    gc.callbacks.append(_freeze_survivors)


def collect_all() -> None:
    """Look at all objects, the frozen ones included; of many that takes long."""
    gc.unfreeze()
    gc.collect()
    gc.freeze()


def _freeze_survivors(phase: str, _: object) -> None:
    if phase == "stop":
        gc.freeze()
