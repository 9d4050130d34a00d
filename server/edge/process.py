"""What the broker asks of the system for its process: memory, time, descriptors, a thread.

And what it tells the system's service manager of it.
"""

from __future__ import annotations

import ctypes
import gc
import os
import resource
import socket
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from typing import TYPE_CHECKING, Final, TypeVar

from vouchmq.server.collector import YOUNG_OBJECTS
from vouchmq.store.sync.sched_slice import ask_for_slice

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Mapping

T = TypeVar("T")

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
MOST_DESCRIPTORS: Final = 1_000_000
# Of systemd's `Type=notify`.
NOTIFY_VARIABLE: Final = "NOTIFY_SOCKET"
IS_READY: Final = "READY=1"
IS_STOPPING: Final = "STOPPING=1"


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


class HashPool:
    """The thread in which hashes of passwords are computed that take long.

    hashlib lets other threads run meanwhile, so the loop goes on, on a second core if there is
    one. The thread is made when the first such password is given, long after the sync helper was
    forked.
    """

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(1, "passwords")

    def compute(
        self, loop: asyncio.AbstractEventLoop, job: Callable[[], T], done: Callable[[T], None]
    ) -> None:
        """Call `job` in the thread, then `done` with its result in the loop; see `Elsewhere`."""

        def tell(future: Future[T]) -> None:
            # At the end of the process nobody waits any more.
            with suppress(RuntimeError):
                if not future.cancelled():
                    loop.call_soon_threadsafe(done, future.result())

        self._pool.submit(job).add_done_callback(tell)

    def close(self) -> None:
        """Compute nothing any more; what is being computed ends by itself."""
        self._pool.shutdown(wait=False, cancel_futures=True)


def notify(state: str, environment: Mapping[str, str] = os.environ) -> None:
    """Tell the service manager, if there is one that listens, how far the process is."""
    address = environment.get(NOTIFY_VARIABLE, "")
    # An @ stands for the zero of Linux' abstract names.
    if not address.startswith(("/", "@")):
        return
    with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as peer:
        peer.connect(f"\0{address[1:]}" if address[0] == "@" else address)
        peer.send(state.encode())
