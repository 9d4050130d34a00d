"""Looks after clients and signals while the loop hangs in a call to the disk.

    loop ──▶ enter ─▶ write(2), for seconds ─▶ exit ──▶ waits for the thread, if that is at work
    thread ─▶ look, look: still the same call ─▶ heartbeats, a line for the log, an end if asked for

The journal is written by the loop itself, as handing each block to somebody else costs more than
it brings (docs/internals/decisions/0005). So a disk that takes no write (a frozen file system, one
that throttles) stops the loop. What must not wait for that is done by a thread meanwhile, and only
what is safe: the loop stands in a system call, and whatever it does next waits until that is
finished.

Spec: CONN-60, CONN-57
"""

from __future__ import annotations

import signal
import threading
import time
from typing import TYPE_CHECKING, Final, Protocol

import structlog

from vouchmq.server.edge.starting.stop_signals import SAME_SIGNAL_S, SIGNALS
from vouchmq.store.disk import Calls

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

log = structlog.get_logger(__name__)

LOOK_S: Final = 0.1
# A call that takes longer hangs.
HANGS_S: Final = 0.5


class Client(Protocol):
    """A connection, as seen by another thread than the loop's while that stands still."""

    def beat_from_thread(self, now: float) -> None:
        """Send a heartbeat if one is due and can be sent."""

    def cut(self) -> None:
        """Have the peer see the end, whatever becomes of this process."""


class DiskWatch(Calls):
    """Knows how long the loop has been in one call to the disk.

    Args:
        clock: monotonic seconds
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._count = 0  # odd: the loop is in a call
        self._is_at_work = False
        self._lock = threading.Lock()
        self._seen = 0
        self._since = 0.0
        self._is_told = False

    # The loop's side, around each call; not one within another

    def __enter__(self) -> None:
        """A call to the disk begins that may hang."""
        self._count += 1

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        """The call has ended; nothing goes on before the thread has finished what it is at."""
        self._count += 1
        if self._is_at_work:
            with self._lock:
                pass

    # The thread's side

    def hanging_s(self) -> float:
        """How long the loop has been in one call, as far as is known; 0 if it is in none."""
        count, now = self._count, self._clock()
        if count != self._seen:
            self._seen, self._since = count, now
        return now - self._since if count % 2 else 0.0

    def look(self, clients: Callable[[], Collection[Client]]) -> None:
        """Tell of a call that hangs, and send the heartbeats that are due."""
        if self.hanging_s() < HANGS_S:
            if self._is_told:
                self._is_told = False
                log.warning("disk.resumed", meaning="the broker continues")
            return
        if not self._is_told:
            self._is_told = True
            log.error("disk.stalled", meaning="only heartbeats are sent until the call returns")
        self.during_hang(lambda: self._beat(clients()))

    def _beat(self, clients: Collection[Client]) -> None:
        for client in clients:
            client.beat_from_thread(self._clock())

    def during_hang(self, job: Callable[[], object]) -> bool:
        """Do something while the loop is in the call that was seen last; False if it is not.

        The loop either sees that somebody is at work, or has counted on before: then nothing is
        done.
        """
        with self._lock:
            self._is_at_work = True
            try:
                if self._count != self._seen or not self._count % 2:
                    return False
                job()
                return True
            finally:
                self._is_at_work = False


class DiskWatchThread:
    """The thread: looks ten times a second, and takes the signals that end the broker.

    Args:
        watch: what it looks at
        clients: all connections
        stop: told the name of a signal, in the loop's thread
        soon: has something called in the loop's thread
        leave: ends the process at once
        patience_s: so long a broker that is to end may wait for the disk
        clock: monotonic seconds
    """

    def __init__(
        self,
        watch: DiskWatch,
        *,
        clients: Callable[[], Collection[Client]],
        stop: Callable[[str], None],
        soon: Callable[..., object],
        leave: Callable[[], None],
        patience_s: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._watch = watch
        self._clients = clients
        self._stop = stop
        self._soon = soon
        self._leave = leave
        self._patience_s = patience_s
        self._stopped_at = 0.0
        self._clock = clock
        self._is_over = threading.Event()
        self._looker = threading.Thread(target=self._run, name="disk-watch", daemon=True)

    def start(self) -> None:
        """Begin. Signals come to this thread from now on, and by `soon` to the loop."""
        signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
        self._looker.start()

    def end(self) -> None:
        """The process ends by itself."""
        self._is_over.set()

    def _run(self) -> None:
        while not self._is_over.is_set():
            come = signal.sigtimedwait(SIGNALS, LOOK_S)
            # After a pause of the process CPython 3.11 tells of a signal where none has come, and
            # its number is anything.
            if come is not None and come.si_signo in SIGNALS:
                self.heed(signal.Signals(come.si_signo).name)
            self.go_round()

    def heed(self, name: str) -> None:
        """A signal has come: the loop is told, and a second one waits for no disk."""
        is_second = self._stopped_at and self._clock() - self._stopped_at >= SAME_SIGNAL_S
        if is_second and self._watch.hanging_s() >= HANGS_S:
            self._give_up("a second signal has come")
        self._stopped_at = self._stopped_at or self._clock()
        self._soon(self._stop, name)

    def go_round(self) -> None:
        """Look at the disk, and at whether a broker that is to end waits for it in vain."""
        watch = self._watch
        watch.look(self._clients)
        is_late = self._stopped_at and self._clock() - self._stopped_at >= self._patience_s
        if is_late and watch.hanging_s() >= HANGS_S:
            self._give_up("the time to shut down is over")

    def _give_up(self, why: str) -> None:
        """End although the disk hangs. What it holds of the last block is as after a kill."""
        if self._watch.during_hang(self._cut_all):
            log.critical("broker.aborted", reason=f"the disk hangs, and {why}")
            self._leave()

    def _cut_all(self) -> None:
        for client in self._clients():
            client.cut()
