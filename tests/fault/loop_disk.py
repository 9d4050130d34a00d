"""Small file systems of our own, made in an image file, whose power can be cut.

Needs root and loop devices; `why_not` tells what is missing. Everything mounted is unmounted at
the end, also after a failure.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import struct
import subprocess
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, Literal

import psutil

from tests.waiting import wait_until

FileSystem = Literal["ext4", "xfs"]
# EXT4_IOC_SHUTDOWN and XFS_IOC_GOINGDOWN are the same number, _IOR('X', 125, __u32).
SHUTDOWN: Final = 0x8004587D
# The journal of the file system is flushed first, or not even that.
LOG_FLUSHED, NOTHING_FLUSHED = 1, 2
LIMIT_S: Final = 60.0
LOOK_S: Final = 0.002


def why_not(kind: FileSystem) -> str:
    """What is missing here for such a file system; empty when nothing is."""
    if os.geteuid() != 0:
        return "needs root"
    for program in (f"mkfs.{kind}", "mount", "umount", "losetup"):
        if shutil.which(program) is None:
            return f"{program} is not installed"
    if subprocess.run(["losetup", "-f"], capture_output=True, check=False).returncode:
        return "no loop device is free"
    return ""


class LoopDisk:
    """A mounted image."""

    def __init__(
        self, directory: Path, kind: FileSystem, size_bytes: int, options: str = ""
    ) -> None:
        """Make the image `directory`/disk.img; `mount` makes it usable at `directory`/disk."""
        self.kind = kind
        self._options = f"loop,{options}" if options else "loop"
        self.mount_point = directory / "disk"
        self._image = directory / "disk.img"
        self.mount_point.mkdir()
        with self._image.open("wb") as image:
            image.truncate(size_bytes)
        run(f"mkfs.{kind}", "-q", str(self._image))

    def mount(self) -> None:
        """Mount it; the kernel replays the file system's own journal."""
        run("mount", "-o", self._options, str(self._image), str(self.mount_point))

    def unmount(self) -> None:
        """Unmount it, waiting for the last process to let go."""
        deadline = time.monotonic() + LIMIT_S
        while True:
            done = subprocess.run(
                ["umount", str(self.mount_point)], capture_output=True, text=True, check=False
            )
            if done.returncode == 0 or "not mounted" in done.stderr:
                return
            if time.monotonic() > deadline:
                run("umount", "--lazy", str(self.mount_point))
                return
            time.sleep(LOOK_S)

    def cut_power(self, flag: int) -> None:
        """From now on nothing reaches the image any more, and what waited for it is lost."""
        descriptor = os.open(self.mount_point, os.O_RDONLY | os.O_DIRECTORY)
        try:
            fcntl.ioctl(descriptor, SHUTDOWN, struct.pack("=I", flag))
        finally:
            os.close(descriptor)

    def break_it(self) -> None:
        """Have ext4 find an error; what it does then, the options of the mount say."""
        device = self.mount_point.stat().st_dev
        name = Path(f"/sys/dev/block/{os.major(device)}:{os.minor(device)}").resolve().name
        Path(f"/sys/fs/ext4/{name}/trigger_fs_error").write_text("1", "ascii")

    @contextmanager
    def frozen(self) -> Iterator[None]:
        """Whoever writes there waits, and cannot even be killed, until this is over."""
        run("fsfreeze", "--freeze", str(self.mount_point))
        try:
            yield
        finally:
            run("fsfreeze", "--unfreeze", str(self.mount_point))

    def free_bytes(self) -> int:
        """What an unprivileged process may still write there."""
        status = os.statvfs(self.mount_point)
        return status.f_bavail * status.f_frsize


@contextmanager
def loop_disk(
    directory: Path, kind: FileSystem, size_bytes: int, options: str = ""
) -> Iterator[LoopDisk]:
    """A fresh mounted file system, gone at the end."""
    disk = LoopDisk(directory, kind, size_bytes, options)
    disk.mount()
    try:
        yield disk
    finally:
        disk.unmount()
        (directory / "disk.img").unlink()


def run(*command: str) -> None:
    """Run a program that must succeed."""
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{' '.join(command)}: {done.stderr}"


def stop_whole(process: psutil.Process) -> list[psutil.Process]:
    """Stop a process and its children and wait until every thread of them stands still.

    A process that still ran while the power is cut would see errors that no power cut shows,
    and what it then says to its clients would be a false alarm.
    """
    family = [process, *process.children(recursive=True)]
    for member in family:
        member.send_signal(signal.SIGSTOP)
    wait_until(
        lambda: all(states(member.pid) == {"T"} for member in family),
        f"not all of {family} stand still",
        between=lambda: time.sleep(LOOK_S),
    )
    return family


def states(pid: int) -> set[str]:
    """The states of all threads of a process, as the kernel abbreviates them."""
    return {
        stat.read_text().rpartition(")")[2].split()[0]
        for stat in Path(f"/proc/{pid}/task").glob("*/stat")
    }


def kill_all(family: Iterable[psutil.Process]) -> None:
    """Kill processes that stand still, and wait until they are gone."""
    members = list(family)
    for member in members:
        member.kill()
    psutil.wait_procs(members, timeout=LIMIT_S)
