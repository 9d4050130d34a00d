"""Limits of the system that are met late: swap, throttling, connections in a row, files, inodes."""

from __future__ import annotations

import os
import resource
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

from vouchmq.server.cli.doctor.disk import nearest
from vouchmq.server.cli.doctor.findings import Finding, Level
from vouchmq.server.cli.units import amount

if TYPE_CHECKING:
    from collections.abc import Iterator

    from vouchmq.server.settings.settings import Settings

ROOT: Final = Path("/")
KIB: Final = 1024
# Connections that come at once, after a switch or a restart, wait in this row.
SHORT_BACKLOG: Final = 1024
FEW_INODES: Final = 1000
# Of the periods in which the group ran.
THROTTLED_SHARE: Final = 0.05


def check_swap(pid: int | None, root: Path = ROOT) -> Iterator[Finding]:
    """Whether parts of the broker that runs are on a swap device: each costs a pause."""
    swapped = _kib_of(root / f"proc/{pid}/status", "VmSwap:") if pid is not None else None
    if swapped:
        yield Finding(
            Level.WARNING,
            "swap",
            f"{amount(swapped * KIB)} of the broker are swapped out: it stops while they come back",
            "set vm.swappiness to 1 or MemorySwapMax=0 in the unit, or give it more memory",
        )
    elif swapped == 0:
        yield Finding(Level.OK, "swap", "nothing of the broker is swapped out")


def _kib_of(file: Path, name: str) -> int | None:
    with suppress(OSError, ValueError, IndexError):
        for line in file.read_text("ascii", "replace").splitlines():
            if line.startswith(name):
                return int(line.split()[1])
    return None


def check_throttling(pid: int | None, root: Path = ROOT) -> Iterator[Finding]:
    """Whether a quota of CPU time stops the broker that runs again and again."""
    found: dict[str, int] = {}
    with suppress(OSError, ValueError):
        group = (root / f"proc/{pid}/cgroup").read_text().partition("::")[2].splitlines()[0]
        text = (root / "sys/fs/cgroup" / group.strip("/") / "cpu.stat").read_text()
        found = {name: int(value) for name, value in map(str.split, text.splitlines())}
    periods, throttled = found.get("nr_periods", 0), found.get("nr_throttled", 0)
    if periods and throttled / periods > THROTTLED_SHARE:
        yield Finding(
            Level.WARNING,
            "CPU",
            f"its quota stopped the broker in {throttled / periods:.0%} of the periods so far",
            "raise CPUQuota= of the unit or the CPU limit of the container: latency is made of it",
        )
    elif periods:
        yield Finding(Level.OK, "CPU", "its quota hardly ever stops the broker")


def check_backlog(root: Path = ROOT) -> Iterator[Finding]:
    """How many connections may wait to be accepted."""
    with suppress(OSError, ValueError):
        limit = int((root / "proc/sys/net/core/somaxconn").read_text())
        if limit < SHORT_BACKLOG:
            yield Finding(
                Level.WARNING,
                "connections",
                f"only {limit} may wait to be accepted; clients that reconnect all at once fail",
                "sysctl -w net.core.somaxconn=4096, and start the broker again",
            )


def check_files(settings: Settings, pid: int | None, root: Path = ROOT) -> Iterator[Finding]:
    """Whether files may become as large as segments, and there may be more of them."""
    place = nearest(settings.data_dir.absolute())
    limit = _file_limit(pid, root)
    if limit is not None and limit < settings.segment_size_bytes:
        yield Finding(
            Level.ERROR,
            "files",
            f"they may have {amount(limit)} at most, and a segment of the journal has "
            f"{amount(settings.segment_size_bytes)}",
            "raise LimitFSIZE= of the unit, or ulimit -f of the shell",
        )
    found = os.statvfs(place)
    # Some file systems make inodes as they need them, and have none to count.
    if found.f_files and found.f_favail < FEW_INODES:
        yield Finding(
            Level.ERROR if not found.f_favail else Level.WARNING,
            "files",
            f"only {found.f_favail:,} more can be made on the file system of {place}",
            "remove small files there (df -i), or use a file system with more inodes",
        )


def _file_limit(pid: int | None, root: Path) -> int | None:
    """The longest that a file may be, in bytes; None: no limit."""
    if pid is None:
        _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        return None if hard == resource.RLIM_INFINITY else hard
    with suppress(OSError, ValueError, IndexError):
        for line in (root / f"proc/{pid}/limits").read_text().splitlines():
            if line.startswith("Max file size"):
                soft = line.split()[3]
                return None if soft == "unlimited" else int(soft)
    return None
