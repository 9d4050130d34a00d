"""The helper process and the thread: they sync, report, tidy up, and end."""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import select
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.waiting import LIMIT_S, wait_until
from vouchmq.store.disk import FileDisk, Syncable
from vouchmq.store.sync.worker import (
    Completion,
    HelperProcess,
    SyncInline,
    SyncWorker,
    ThreadWorker,
    overwrites_in_place,
    start_worker,
)

WAIT_SECONDS = LIMIT_S


@pytest.fixture(params=[HelperProcess, ThreadWorker])
def worker(request: pytest.FixtureRequest) -> Iterator[SyncWorker]:
    interval = sys.getswitchinterval()
    worker: SyncWorker = request.param()
    yield worker
    worker.close()
    sys.setswitchinterval(interval)


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[FileDisk]:
    disk = FileDisk(tmp_path)
    yield disk
    disk.close()


def wait(worker: SyncWorker) -> Completion | None:
    ready, _, _ = select.select([worker.fileno], [], [], WAIT_SECONDS)
    assert ready, "the worker says nothing"
    return worker.reap()


def test_files_and_the_directory_are_synced(worker: SyncWorker, disk: FileDisk) -> None:
    first, second = disk.create("a", 4096), disk.create("b", 4096)
    assert worker.reap() is None
    requests: list[list[Syncable]] = [[first, disk.directory], [first, second], [second], []]
    for sequence, targets in enumerate(requests):
        worker.submit(sequence, targets)
        assert wait(worker) == Completion(sequence, 0)
        assert worker.reap() is None
    first.close()
    second.close()


def test_a_failed_sync_comes_back_with_its_errno(worker: SyncWorker, disk: FileDisk) -> None:
    class Pipe:
        """Something that has a descriptor and cannot be synced."""

        def fileno(self) -> int:
            return write_end

        def sync(self) -> None:
            os.fdatasync(write_end)

    read_end, write_end = os.pipe()
    file = disk.create("a", 4096)
    worker.submit(1, [file, Pipe()])
    assert wait(worker) == Completion(1, errno.EINVAL)
    os.close(read_end)
    os.close(write_end)
    file.close()


class Pipe:
    """Something that cannot be synced."""

    def __init__(self, *, may_fail: bool) -> None:
        self.may_fail = may_fail
        self.ends = os.pipe()

    def fileno(self) -> int:
        return self.ends[1]

    def sync(self) -> None:
        os.fdatasync(self.fileno())

    def close(self) -> None:
        for end in self.ends:
            os.close(end)


def test_a_sync_within_the_call_is_like_one_elsewhere(worker: SyncWorker, disk: FileDisk) -> None:
    pipe, strict, file = Pipe(may_fail=True), Pipe(may_fail=False), disk.create("a", 4096)
    assert worker.sync([file]) == (0, 0)
    assert worker.sync([pipe, file]) == (0, errno.EINVAL)
    assert worker.sync([strict, file]) == (errno.EINVAL, 0)
    assert worker.reap() is None
    worker.submit(1, (file,))
    assert wait(worker) == Completion(1, 0)
    for each in (pipe, strict, file):
        each.close()


def test_what_only_goes_along_may_fail(worker: SyncWorker, disk: FileDisk) -> None:
    pipe, file = Pipe(may_fail=True), disk.create("a", 4096)
    worker.submit(1, (pipe, file))
    assert wait(worker) == Completion(1, 0, errno.EINVAL)
    worker.submit(2, (file,))
    assert wait(worker) == Completion(2, 0)
    worker.forget(pipe)
    pipe.close()
    strict = Pipe(may_fail=False)
    worker.submit(3, (strict, file))
    assert wait(worker) == Completion(3, errno.EINVAL)
    worker.forget(strict)
    strict.close()
    file.close()


def test_spares_are_made_and_files_removed_on_the_side(
    worker: SyncWorker, disk: FileDisk, tmp_path: Path
) -> None:
    worker.prepare(disk, "spare", 1 << 20)
    wait_until((tmp_path / "spare").exists, "it never comes")
    assert (tmp_path / "spare").stat().st_size == 1 << 20
    worker.unlink(disk, "spare")
    wait_until(lambda: not (tmp_path / "spare").exists(), "it stays")
    worker.unlink(disk, "never was")
    worker.submit(1, [disk.directory])
    assert wait(worker) == Completion(1, 0)


# FS_IOC_FIEMAP, and the flag of an extent that is reserved and holds nothing yet.
FIEMAP, UNWRITTEN = 0xC020660B, 0x800


def unwritten_extents(path: Path) -> int:
    """How many extents of a file are reserved only."""
    room = 100
    asked = bytearray(struct.pack("=QQIIII", 0, 1 << 62, 0, 0, room, 0) + bytes(56 * room))
    with path.open("rb") as file:
        try:
            fcntl.ioctl(file, FIEMAP, asked)
        except OSError as error:
            pytest.skip(f"the file system does not show extents: {error}")
    (found,) = struct.unpack_from("=I", asked, 20)
    assert 0 < found < room
    flags = [struct.unpack_from("=I", asked, 32 + 56 * n + 40)[0] for n in range(found)]
    return sum(bool(flag & UNWRITTEN) for flag in flags)


@pytest.mark.parametrize("has_zeros", [True, False])
def test_a_spare_has_its_zeros_on_disk_before_it_has_its_name(
    disk: FileDisk, tmp_path: Path, has_zeros: bool
) -> None:
    worker = HelperProcess()
    worker.writes_zeros = has_zeros
    # Some octets more than whole pieces.
    size = (9 << 20) + 5
    worker.prepare(disk, "spare", size)
    wait_until((tmp_path / "spare").exists, "it never comes")
    assert (tmp_path / "spare").read_bytes() == bytes(size)
    assert bool(unwritten_extents(tmp_path / "spare")) is not has_zeros
    worker.close()


def test_a_block_in_a_filled_file_dirties_little_of_it(disk: FileDisk, tmp_path: Path) -> None:
    """What the kernel counts as written when one page is: a whole unit of its page cache."""

    def written_bytes() -> int:
        told = Path("/proc/self/io").read_text("ascii").splitlines()
        return int(dict(line.split(": ") for line in told)["write_bytes"])

    worker = HelperProcess()
    worker.prepare(disk, "spare", 4 << 20)
    wait_until((tmp_path / "spare").exists, "it never comes")
    worker.close()
    file = disk.open("spare")
    before = written_bytes()
    for megabyte in range(4):
        file.write([b"block"], megabyte << 20)
    assert written_bytes() - before <= 4 * 64 * 1024
    file.close()


def test_syncs_do_not_wait_for_a_file_that_is_filled(disk: FileDisk, tmp_path: Path) -> None:
    worker = HelperProcess()
    worker.prepare(disk, "spare", 64 << 20)
    for sequence in range(5):
        worker.submit(sequence, [disk.directory])
        assert wait(worker) == Completion(sequence, 0)
    # It ends without a file of half the zeros; what is to be removed is removed.
    disk.create("old", 4096).close()
    worker.unlink(disk, "old")
    worker.close()
    assert {path.name for path in tmp_path.iterdir()} <= {"spare"}


def test_where_blocks_are_written_elsewhere_nothing_is_filled(
    disk: FileDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Library:
        """A libc on a file system of a kind."""

        def __init__(self, magic: int, answer: int = 0) -> None:
            self.magic, self.answer = magic, answer

        def fstatfs(self, descriptor: int, status: ctypes.Array[ctypes.c_char]) -> int:
            ctypes.c_long.from_buffer(status).value = self.magic
            return self.answer

    def says(library: object) -> bool:
        monkeypatch.setattr(ctypes, "CDLL", lambda _: library)
        return overwrites_in_place(disk.directory.fileno())

    ext4, btrfs = 0xEF53, 0x9123683E
    assert says(Library(ext4))
    assert not says(Library(btrfs))
    assert not says(Library(ext4, answer=-1))
    assert not says(object())


def test_chores_do_not_wait_for_a_helper_that_is_busy(disk: FileDisk, tmp_path: Path) -> None:
    worker = HelperProcess()
    wait_until_running(worker)
    os.kill(worker.pid, signal.SIGSTOP)
    names = [f"f{n}" for n in range(2000)]
    for name in names:
        disk.create(name, 0).close()
        worker.unlink(disk, name)
    os.kill(worker.pid, signal.SIGCONT)
    deadline = time.monotonic() + WAIT_SECONDS
    while os.listdir(tmp_path):  # noqa: PTH208 - only whether there is any
        assert time.monotonic() < deadline, "chores are left undone"
        worker.submit(1, [disk.directory])
        assert wait(worker) == Completion(1, 0)
    worker.close()


def test_a_forgotten_file_can_be_closed_and_its_number_used_again(
    worker: SyncWorker, disk: FileDisk
) -> None:
    for sequence in range(20):
        file = disk.create(f"f{sequence}", 4096)
        worker.submit(sequence, [file])
        assert wait(worker) == Completion(sequence, 0)
        worker.forget(file)
        file.close()
    worker.submit(99, [disk.directory])
    assert wait(worker) == Completion(99, 0)
    if isinstance(worker, HelperProcess):
        names = [str(fd.readlink()) for fd in Path(f"/proc/{worker.pid}/fd").iterdir()]
        assert not [name for name in names if "/f" in name]


def test_the_helper_holds_nothing_but_its_own_descriptors() -> None:
    leaked = os.open("/dev/zero", os.O_RDONLY)
    os.set_inheritable(leaked, True)
    worker = HelperProcess()
    wait_until_running(worker)
    names = {str(fd.readlink()) for fd in Path(f"/proc/{worker.pid}/fd").iterdir()}
    assert "/dev/zero" not in names
    assert "/dev/null" in names
    worker.close()
    os.close(leaked)


def wait_until_running(worker: HelperProcess) -> None:
    worker.submit(0, [])
    assert wait(worker) == Completion(0, 0)


@pytest.mark.parametrize("highest", range(52, 68))
def test_the_helper_starts_however_many_files_are_open(disk: FileDisk, highest: int) -> None:
    """A number that it moves its descriptors to may be that of another of them."""
    opened: list[int] = []
    while not opened or opened[-1] < highest:
        opened.append(os.open(os.devnull, os.O_RDONLY))
    try:
        worker = HelperProcess()
        worker.submit(1, [disk.directory])
        assert wait(worker) == Completion(1, 0)
        worker.close()
    finally:
        for descriptor in opened:
            os.close(descriptor)


def test_the_helper_is_small() -> None:
    worker = HelperProcess()
    wait_until_running(worker)
    status = Path(f"/proc/{worker.pid}/status").read_text()
    resident = next(line for line in status.splitlines() if line.startswith("VmRSS"))
    assert int(resident.split()[1]) < 16 * 1024
    worker.close()


def test_the_helper_ends_with_its_socket_and_leaves_no_zombie() -> None:
    worker = HelperProcess()
    worker.close()
    worker.close()
    with pytest.raises(ProcessLookupError):
        os.kill(worker.pid, 0)


def test_the_helper_outlasts_the_signals_of_a_terminal(disk: FileDisk) -> None:
    worker = HelperProcess()
    wait_until_running(worker)
    os.kill(worker.pid, signal.SIGINT)
    os.kill(worker.pid, signal.SIGTERM)
    worker.submit(1, [disk.directory])
    assert wait(worker) == Completion(1, 0)
    worker.close()


def test_the_death_of_the_helper_is_a_failed_sync(disk: FileDisk) -> None:
    worker = HelperProcess()
    os.kill(worker.pid, signal.SIGKILL)
    ready, _, _ = select.select([worker.fileno], [], [], WAIT_SECONDS)
    assert ready
    worker.submit(7, [disk.directory])
    assert wait(worker) == Completion(7, errno.ESRCH)
    worker.close()


def test_the_helper_dies_with_a_killed_broker() -> None:
    program = (
        "import os, signal\n"
        "from vouchmq.store.sync.worker import HelperProcess\n"
        "print(HelperProcess().pid, flush=True)\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    output = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, check=False, timeout=WAIT_SECONDS
    )
    helper = int(output.stdout)
    deadline = time.monotonic() + WAIT_SECONDS
    while Path(f"/proc/{helper}").exists() and _state(helper) != "Z":
        assert time.monotonic() < deadline, "the helper outlives its broker"
        time.sleep(0.005)


def _state(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        # It may go between the opening and the reading, too.
        return "Z"


def test_without_a_helper_a_thread_does_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_name: str) -> int:
        raise OSError(errno.EPERM, "no helper today")

    monkeypatch.setattr(os, "memfd_create", refuse)
    interval = sys.getswitchinterval()
    worker = start_worker()
    assert isinstance(worker, ThreadWorker)
    worker.close()
    sys.setswitchinterval(interval)


def test_the_inline_worker_answers_at_once(disk: FileDisk) -> None:
    worker = SyncInline()
    worker.submit(3, [disk.directory])
    assert worker.reap() == Completion(3, 0)
    assert worker.reap() is None
