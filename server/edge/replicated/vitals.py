"""The process beside a broker of a shared log that gives signs while the broker's loop is busy.

    Vitals (the broker) ── a shared page ─▶ the process ── `SignGiver` ─▶ the log's servers
                        ── a socket that ends with the broker ─▶

A thread would not do: what keeps the loop busy may keep the interpreter's lock too. It is forked
first of all, before threads and the loop exist, and shares what the broker has imported. How far
the broker is it reads, and how much the broker's first thread has worked it is told by the kernel.
So whatever the broker hangs in, the process says nothing better than the truth. It ends with the
broker; if it ends before, the broker goes on as if it were never busy, and says so once.
"""

from __future__ import annotations

import asyncio
import gc
import mmap
import os
import random
import signal
import socket
import struct
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final, NoReturn

import uvloop

from vouchmq.server.edge.logging import configure_logs
from vouchmq.server.edge.replicated.engine import engine_of
from vouchmq.server.edge.replicated.signs import LOOK_S, SignGiver, Vital
from vouchmq.server.replication.client import Client
from vouchmq.store.sync.worker import await_child, die_with

if TYPE_CHECKING:
    from collections.abc import Callable

    from vouchmq.server.edge.replicated.engine import Engine
    from vouchmq.server.settings.settings import Settings

# Epoch, lived milliseconds and steps, then the log's id.
NUMBER: Final = struct.Struct("=Q")
EPOCH_AT: Final = 0
LIVED_AT: Final = 8
STEPS_AT: Final = 16
ID_AT: Final = 24
ID_SIZE: Final = 16
# Those that are for the broker, which ends this process in its time.
BROKERS_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
TICK_NS: Final = 1_000_000_000 // os.sysconf("SC_CLK_TCK")
# Of /proc/<pid>/task/<thread>/stat behind the name in brackets: times in user and kernel mode.
USER_TIME: Final = 11


class Page:
    """What the broker leaves for the process; nothing of it is a pointer or waits for anybody."""

    def __init__(self) -> None:
        self._bytes = mmap.mmap(-1, mmap.PAGESIZE)

    def put(self, at: int, number: int) -> None:
        """Leave a number."""
        NUMBER.pack_into(self._bytes, at, number)

    def put_id(self, log_id: bytes) -> None:
        """Leave the id of a log."""
        self._bytes[ID_AT : ID_AT + ID_SIZE] = log_id

    def read(self) -> Vital:
        """All of it."""
        epoch, lived_ms, steps = struct.unpack_from("=QQQ", self._bytes)
        return Vital(epoch, lived_ms, steps, self._bytes[ID_AT : ID_AT + ID_SIZE])

    def close(self) -> None:
        """Give it back."""
        self._bytes.close()


class Vitals:
    """The broker's side: says that it leads, that its loop is alive, and what it has done.

    Args:
        engine: the log
        node: name of the broker
    """

    def __init__(self, engine: Engine, node: str) -> None:
        self._page = Page()
        self._steps = 0
        self._socket, theirs = socket.socketpair()
        parent = os.getpid()
        self.pid = os.fork()
        if not self.pid:
            self._socket.close()
            _become(parent, theirs, self._page, engine, node)
        theirs.close()
        self._process = os.pidfd_open(self.pid)
        self._is_closed = False

    @property
    def fileno(self) -> int:
        """Readable when the process has ended."""
        return self._process

    def lead(self, log_id: bytes, epoch: int) -> None:
        """This broker's claim stands in the log: from now on standbys are to know that it works."""
        self._page.put_id(log_id)
        self._page.put(EPOCH_AT, epoch)

    def rest(self) -> None:
        """It leads no more, or not yet."""
        self._page.put(EPOCH_AT, 0)

    def lived(self, lived_s: float) -> None:
        """See `node.Vitals`."""
        self._page.put(LIVED_AT, int(lived_s * 1000))

    def step(self) -> None:
        """Something of a recovery is done."""
        self._steps += 1
        self._page.put(STEPS_AT, self._steps)

    def close(self) -> None:
        """End the process, and wait for that a moment; it is killed if it does not."""
        if self._is_closed:
            return
        self._is_closed = True
        self.rest()
        self._socket.close()
        await_child(self.pid, self._process)
        os.close(self._process)
        self._page.close()


def start(settings: Settings) -> Vitals:
    """The process of a broker with these settings, which name a log; before there is any thread.

    Raises:
        SettingsError: they cannot be used
    """
    return Vitals(engine_of(settings), settings.node)


def work_ns(process: int) -> int:
    """Processor time of a process's first thread; 0 where that is not known."""
    task = Path(f"/proc/{process}/task/{process}")
    try:
        spent_ns = int((task / "schedstat").read_bytes().split()[0])
    except (OSError, ValueError, IndexError):
        spent_ns = 0
    if spent_ns:
        return spent_ns
    # Coarser; kernels without statistics of the scheduler have this.
    try:
        fields = (task / "stat").read_bytes().rpartition(b")")[2].split()
        return (int(fields[USER_TIME]) + int(fields[USER_TIME + 1])) * TICK_NS
    except (OSError, ValueError, IndexError):
        return 0


def _become(parent: int, alive: socket.socket, page: Page, engine: Engine, node: str) -> NoReturn:
    """In the child: give signs until the parent ends."""
    try:
        die_with(parent)
        for each in BROKERS_SIGNALS:
            signal.signal(each, signal.SIG_IGN)
        null = os.open(os.devnull, os.O_RDWR)
        for descriptor in range(3):
            os.dup2(null, descriptor)
        os.close(null)
        # What is shared with the parent stays so: nothing of it is looked at for garbage.
        gc.freeze()
        configure_logs("critical", "json")
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(_give_signs(parent, alive, page, engine, node))
    finally:
        os._exit(0)


async def _give_signs(
    parent: int, alive: socket.socket, page: Page, engine: Engine, node: str
) -> None:
    loop = asyncio.get_running_loop()
    options = replace(engine.options, name=f"{engine.options.name} signs")

    def begin() -> tuple[Callable[[bytes], object], Callable[[], object]]:
        client = Client(
            engine.servers,
            options,
            loop,
            random.SystemRandom(),
            went_up=lambda: None,
            went_down=lambda _: None,
        )
        client.start()
        return lambda payload: client.tell(engine.topics.signs, payload), client.stop

    giver = SignGiver(node, page.read, lambda: work_ns(parent), begin)
    ended = asyncio.Event()
    loop.add_reader(alive.fileno(), ended.set)

    def look() -> None:
        loop.call_later(LOOK_S, look)
        giver.look(loop.time())

    look()
    await ended.wait()
