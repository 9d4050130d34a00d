"""Who calls fdatasync: a helper process, a thread, or the caller.

The one interface is SyncWorker: hand over a sequence number and files, and when `fileno`
becomes readable ask `reap`. A sync that runs in a thread of ours must take the GIL back to
report, 50 to 340 ms late under load; the helper process never waits for us, so it is the
first choice. It is started before any thread, holds no descriptor but its own, and dies
with us (PR_SET_PDEATHSIG), as an eventfd has no end of file to tell it.

Descriptors travel over a socket pair when a file is first named; a request is a few
numbers in a shared page and a bump of an eventfd. `store/sync/helper.py` is the other end.
"""

import array
import contextlib
import ctypes
import errno
import fcntl
import mmap
import os
import queue
import select
import signal
import socket
import struct
import sys
import threading
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, NamedTuple, NoReturn, Protocol

from mypy_extensions import mypyc_attr

from vouchmq.store.disk import Disk, Syncable
from vouchmq.store.sync.sched_slice import ask_for_slice

PAGE_SIZE: Final = 4096
# sequence, count, slots... at REQUEST; sequence, errno, the extra targets' errno at REPLY.
# See helper.py.
REQUEST_AT: Final = 64
REPLY_AT: Final = 0
# What a sync adds to the eventfd of requests; a message, or the end of the socket, adds one.
_A_SYNC: Final = 1 << 32
MAX_TARGETS: Final = 480
_ANSWER: Final = struct.Struct("=QQQ")
_MESSAGE: Final = struct.Struct("=cQQ")
# A request with one file, as nearly all are.
_LONE_REQUEST: Final = struct.Struct("=QQQ")
_PR_SET_PDEATHSIG: Final = 1
# A sync is some microseconds of work and a long wait for the disk, and everybody waits for it.
_HELPER_SLICE_NS: Final = 100_000
_END_LIMIT_MS: Final = 1000
# File systems that write everything to a new place: btrfs, bcachefs, F2FS, NILFS and ZFS, by the
# first number of struct statfs.
_WRITES_ELSEWHERE: Final = frozenset({0x9123683E, 0xCA451A4E, 0xF2F52010, 0x3434, 0x2FC12FC1})
_STATFS_BYTES: Final = 256
_SWITCH_INTERVAL_SECONDS: Final = 50e-6
_sched_yield: Final[Callable[[], None]] = getattr(os, "sched_yield", lambda: None)


class Completion(NamedTuple):
    """How the sync with that sequence number ended; errno 0 is success.

    `extra_errno` is that of files whose failure does not count, see `may_fail`.
    """

    sequence: int
    errno: int
    extra_errno: int = 0


class SyncWorker(Protocol):
    """Syncs files elsewhere, one request at a time."""

    @property
    def fileno(self) -> int:
        """Descriptor that is readable when `reap` has something to tell."""

    def submit(self, sequence: int, targets: Sequence[Syncable]) -> None:
        """Start syncing `targets`; returns at once."""

    def reap(self) -> Completion | None:
        """Return how the last request ended, or None if it has not."""

    def sync(self, targets: Sequence[Syncable]) -> tuple[int, int] | None:
        """Sync within this call, with no request under way; None if only `submit` does it here.

        Returns:
            0 or the errno of the first failure, and the same of the extra targets
        """

    def yield_processor(self) -> None:
        """Let others run that wait for the caller's processor (`sched_yield`)."""

    def forget(self, target: Syncable) -> None:
        """Let go of a file that is about to be closed."""

    def prepare(self, disk: Disk, name: str, size: int) -> None:
        """Have a spare file made, some time; failures are ignored."""

    def unlink(self, disk: Disk, name: str) -> None:
        """Have a file removed, some time; failures are ignored."""

    def close(self) -> None:
        """Stop; nothing may be in flight that somebody waits for."""


def may_fail(target: Syncable) -> bool:
    """Whether it only goes along: that it cannot be synced is told, and changes nothing else."""
    return bool(getattr(target, "may_fail", False))


def sync_all(targets: Sequence[Syncable]) -> int:
    """Sync one after the other; return 0 or the errno of the first failure."""
    return sync_each(targets)[0]


def sync_each(targets: Sequence[Syncable]) -> tuple[int, int]:
    """The same, and the errno of the extra targets."""
    extra_errno = 0
    for target in targets:
        try:
            target.sync()
        except OSError as error:
            if not may_fail(target):
                return error.errno or errno.EIO, extra_errno
            extra_errno = error.errno or errno.EIO
    return 0, extra_errno


@mypyc_attr(allow_interpreted_subclasses=True)
class SyncInline:
    """Syncs within `submit`; `reap` answers at once. For tests and offline tools."""

    fileno = -1

    def __init__(self) -> None:
        self._completion: Completion | None = None

    def submit(self, sequence: int, targets: Sequence[Syncable]) -> None:
        self._completion = Completion(sequence, *sync_each(targets))

    def reap(self) -> Completion | None:
        completion, self._completion = self._completion, None
        return completion

    def sync(self, targets: Sequence[Syncable]) -> tuple[int, int] | None:
        # Whoever wants a sync to end by itself has it end when it is asked to.
        del targets
        return None

    def yield_processor(self) -> None:
        pass

    def forget(self, target: Syncable) -> None:
        pass

    def prepare(self, disk: Disk, name: str, size: int) -> None:
        with contextlib.suppress(OSError):
            disk.prepare(name, size)

    def unlink(self, disk: Disk, name: str) -> None:
        with contextlib.suppress(OSError):
            disk.unlink(name)

    def close(self) -> None:
        pass


@mypyc_attr(allow_interpreted_subclasses=True)
class ThreadWorker:
    """Syncs in a thread; portable. Shortens the interpreter's switch interval to 50 us."""

    def __init__(self) -> None:
        sys.setswitchinterval(_SWITCH_INTERVAL_SECONDS)
        self._ours, self._theirs = socket.socketpair()
        self._ours.setblocking(False)
        self.fileno = self._ours.fileno()
        self._jobs: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._completion: Completion | None = None
        self._syncer = threading.Thread(target=self._run, name="journal-sync", daemon=True)
        self._syncer.start()

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            job()

    def submit(self, sequence: int, targets: Sequence[Syncable]) -> None:
        def job() -> None:
            self._completion = Completion(sequence, *sync_each(targets))
            self._theirs.send(b"\0")

        self._jobs.put(job)

    def reap(self) -> Completion | None:
        try:
            self._ours.recv(64)
        except BlockingIOError:
            return None
        completion, self._completion = self._completion, None
        return completion

    def sync(self, targets: Sequence[Syncable]) -> tuple[int, int] | None:
        return sync_each(targets)

    def yield_processor(self) -> None:
        _sched_yield()

    def forget(self, target: Syncable) -> None:
        pass

    def prepare(self, disk: Disk, name: str, size: int) -> None:
        self._jobs.put(lambda: _ignore_errors(lambda: disk.prepare(name, size)))

    def unlink(self, disk: Disk, name: str) -> None:
        self._jobs.put(lambda: _ignore_errors(lambda: disk.unlink(name)))

    def close(self) -> None:
        self._jobs.put(None)
        self._syncer.join()
        self._ours.close()
        self._theirs.close()


def _ignore_errors(file_task: Callable[[], None]) -> None:
    with contextlib.suppress(OSError):
        file_task()


class HelperProcess:
    """Syncs in a small process of our own. Linux only; raises OSError where it cannot be.

    Create it first of all: before threads, before the loop, before the heap grows.
    """

    def __init__(self) -> None:
        # Whether files are filled where that is of use, or reserved only (decision 0006).
        self.writes_zeros = True
        self._page_descriptor = os.memfd_create("journal-sync")
        os.ftruncate(self._page_descriptor, PAGE_SIZE)
        self._page = mmap.mmap(self._page_descriptor, PAGE_SIZE)
        self._request = os.eventfd(0, os.EFD_CLOEXEC)
        self._reply = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        parent = os.getpid()
        self.pid = os.fork()
        if self.pid == 0:
            _become_helper(
                parent,
                (self._request, self._reply, self._page_descriptor, theirs.fileno()),
            )
        theirs.close()
        self._process = os.pidfd_open(self.pid)
        # One descriptor to watch: readable when a sync ended and when the helper did.
        self._watch = select.epoll()
        self._watch.register(self._reply, select.EPOLLIN)
        self._watch.register(self._process, select.EPOLLIN)
        self.fileno = self._watch.fileno()
        self._slots: dict[int, int] = {}
        self._next_slot = 0
        self._sequence = 0
        self._file_tasks: deque[bytes] = deque()
        self._is_closed = False

    def submit(self, sequence: int, targets: Sequence[Syncable]) -> None:
        if len(targets) > MAX_TARGETS:
            raise ValueError(f"{len(targets)} files in one sync, at most {MAX_TARGETS} fit")
        self._sequence = sequence
        if len(targets) == 1:
            slot = self._slot(targets[0])
            _LONE_REQUEST.pack_into(self._page, REQUEST_AT, sequence, 1, slot)
        else:
            slots = [self._slot(target) for target in targets]
            count = len(slots)
            struct.pack_into(f"=QQ{count}Q", self._page, REQUEST_AT, sequence, count, *slots)
        os.eventfd_write(self._request, _A_SYNC)

    def _slot(self, target: Syncable) -> int:
        descriptor = target.fileno()
        slot = self._slots.get(descriptor)
        if slot is None:
            slot = self._slots[descriptor] = self._next_slot
            self._next_slot += 1
            self._tell(b"L" if may_fail(target) else b"F", slot, 0, b"", descriptor)
        return slot

    def _tell(self, verb: bytes, slot: int, size: int, name: bytes, *descriptors: int) -> None:
        """Send a message that a later request may depend on."""
        rights = array.array("i", descriptors)
        ancillary = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)] if rights else []
        # A dead helper is noticed where its answers are awaited.
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            self._socket.sendmsg([_MESSAGE.pack(verb, slot, size) + name], ancillary)
            os.eventfd_write(self._request, 1)

    def _ask(self, verb: bytes, disk: Disk, size: int, name: str) -> None:
        """Send a chore; while the helper is busy and the socket full it waits with us."""
        slot = self._slot(disk.directory)
        self._file_tasks.append(_MESSAGE.pack(verb, slot, size) + os.fsencode(name))
        self._send_file_tasks()

    def _send_file_tasks(self) -> None:
        while self._file_tasks:
            try:
                self._socket.sendmsg([self._file_tasks[0]], [], socket.MSG_DONTWAIT)
            except (BlockingIOError, BrokenPipeError, ConnectionResetError):
                return
            os.eventfd_write(self._request, 1)
            self._file_tasks.popleft()

    def reap(self) -> Completion | None:
        try:
            os.eventfd_read(self._reply)
        except BlockingIOError:
            if self._watch.poll(0):
                # Only the other descriptor is left: the helper is gone, and with it the
                # knowledge whether its last sync succeeded.
                return Completion(self._sequence, errno.ESRCH)
            return None
        if self._file_tasks:
            self._send_file_tasks()
        return Completion(*_ANSWER.unpack_from(self._page, REPLY_AT))

    def sync(self, targets: Sequence[Syncable]) -> tuple[int, int] | None:
        return sync_each(targets)

    def yield_processor(self) -> None:
        _sched_yield()

    def forget(self, target: Syncable) -> None:
        slot = self._slots.pop(target.fileno(), None)
        if slot is not None:
            self._tell(b"C", slot, 0, b"")

    def prepare(self, disk: Disk, name: str, size: int) -> None:
        has_zeros = self.writes_zeros and overwrites_in_place(disk.directory.fileno())
        self._ask(b"Z" if has_zeros else b"P", disk, size, name)

    def unlink(self, disk: Disk, name: str) -> None:
        self._ask(b"U", disk, 0, name)

    def close(self) -> None:
        if self._is_closed:
            return
        self._is_closed = True
        self._socket.close()  # the helper ends when it sees this
        os.eventfd_write(self._request, 1)
        await_child(self.pid, self._process)
        self._watch.close()
        for descriptor in (self._process, self._request, self._reply, self._page_descriptor):
            os.close(descriptor)
        self._page.close()


def _become_helper(parent: int, descriptors: tuple[int, int, int, int]) -> NoReturn:
    """In the child: keep four descriptors, ignore the terminal, die with the parent, exec.

    A fresh interpreter without site is smaller than the pages a forked one would unshare.
    """
    try:
        die_with(parent)
        ask_for_slice(_HELPER_SLICE_NS)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        # First out of the way of the numbers they will get, to ones that are free, then onto these.
        high = [fcntl.fcntl(descriptor, fcntl.F_DUPFD, 64) for descriptor in descriptors]
        null = os.open(os.devnull, os.O_RDWR)
        for number in range(3):
            os.dup2(null, number)
        for number, descriptor in enumerate(high, start=3):
            os.dup2(descriptor, number)
        os.closerange(3 + len(high), os.sysconf("SC_OPEN_MAX"))
        program = Path(__file__).with_name("helper.py")
        arguments = [sys.executable, "-I", "-S", str(program)]
        os.execv(sys.executable, arguments)  # noqa: S606 - our own interpreter, no input
    except OSError:
        os._exit(1)


def await_child(pid: int, process: int) -> None:
    """Wait for a child that was told to end, but not for ever: it may hang in a call.

    `process` is its descriptor of `pidfd_open`.
    """
    poll = select.poll()
    poll.register(process, select.POLLIN)
    if not poll.poll(_END_LIMIT_MS):
        os.kill(pid, signal.SIGKILL)
        poll.poll(_END_LIMIT_MS)
    with contextlib.suppress(ChildProcessError):
        os.waitpid(pid, os.WNOHANG)


def die_with(parent: int) -> None:
    """In a child: be killed when the parent ends, and end now if it has ended already."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def overwrites_in_place(descriptor: int) -> bool:
    """Return whether a file here keeps its blocks when it is written again; False if not known."""
    status = ctypes.create_string_buffer(_STATFS_BYTES)
    try:
        if ctypes.CDLL(None).fstatfs(descriptor, status):
            return False
    except (OSError, AttributeError):
        return False
    return ctypes.c_long.from_buffer(status).value & 0xFFFFFFFF not in _WRITES_ELSEWHERE


def start_worker() -> SyncWorker:
    """Return a helper process where that is possible, else a thread."""
    try:
        return HelperProcess()
    except (OSError, AttributeError):
        return ThreadWorker()
