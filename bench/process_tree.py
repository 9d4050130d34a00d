"""What a server costs: CPU time and memory of all its processes, read from /proc.

A broker may be many processes (a helper that syncs, a runtime that forks), so everything is
summed over the tree below the process that listens. CPU time comes from the scheduler's own
account in nanoseconds where the kernel keeps it, else in clock ticks of 10 ms.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

PROC = Path("/proc")
TICKS_PER_S = os.sysconf("SC_CLK_TCK")
LISTEN = "0A"


@dataclass(frozen=True, slots=True)
class Memory:
    """Resident memory of a tree: summed, and with shared pages counted once."""

    rss_bytes: int
    pss_bytes: int


def listener(port: int) -> int | None:
    """Find the process that listens on a TCP port; the eldest if the socket was inherited.

    None when there is none or it belongs to somebody whose descriptors we may not read.
    """
    inodes = set(_listening_inodes(port))
    owners = [pid for pid in _pids() if inodes & set(_socket_inodes(pid))]
    return min(owners, default=None)


def members(root: int) -> list[int]:
    """List a process and all its descendants that are alive."""
    children: dict[int, list[int]] = {}
    for pid in _pids():
        if fields := _stat(pid):
            children.setdefault(int(fields[1]), []).append(pid)
    found = [root]
    for pid in found:
        found += children.get(pid, [])
    return found


def is_alive(pid: int) -> bool:
    """Say whether a process runs: it exists and is not a zombie."""
    fields = _stat(pid)
    return bool(fields) and fields[0] != "Z"


def cpu_s(root: int) -> float:
    """Sum the CPU time used so far by a process tree, in seconds."""
    return sum(process_cpu_s(pid) for pid in members(root))


def memory(root: int) -> Memory:
    """Sum the resident memory of a process tree."""
    rss = pss = 0
    for pid in members(root):
        for line in _lines(PROC / str(pid) / "smaps_rollup"):
            name, _, value = line.partition(":")
            if name == "Rss":
                rss += int(value.split()[0]) * 1024
            elif name == "Pss":
                pss += int(value.split()[0]) * 1024
    return Memory(rss, pss)


def machine_busy_s() -> float:
    """CPU time all processors together have spent on anything so far, in seconds."""
    fields = [int(field) for field in _lines(PROC / "stat")[0].split()[1:]]
    user, nice, system, _idle, _iowait, irq, softirq, steal = fields[:8]
    return (user + nice + system + irq + softirq + steal) / TICKS_PER_S


def process_cpu_s(pid: int) -> float:
    """CPU time that one process has used so far, in seconds."""
    fields = _stat(pid)
    if not fields:
        return 0.0
    ticks_s = (int(fields[11]) + int(fields[12])) / TICKS_PER_S
    precise_ns = 0
    for task in _entries(PROC / str(pid) / "task"):
        if line := _lines(task / "schedstat"):
            precise_ns += int(line[0].split()[0])
    # Threads that ended are in the ticks but no longer in the tasks: whichever knows more.
    return precise_ns / 1e9 if precise_ns / 1e9 >= ticks_s - 2 / TICKS_PER_S else ticks_s


def _stat(pid: int) -> list[str]:
    """Split /proc/PID/stat after the command name: state, parent, ...; [] when it is gone."""
    lines = _lines(PROC / str(pid) / "stat")
    return lines[0].rpartition(")")[2].split() if lines else []


def _pids() -> Iterator[int]:
    for entry in PROC.iterdir():
        if entry.name.isdigit():
            yield int(entry.name)


def _listening_inodes(port: int) -> Iterator[str]:
    for table in ("tcp", "tcp6"):
        for line in _lines(PROC / "net" / table)[1:]:
            fields = line.split()
            if fields[3] == LISTEN and int(fields[1].rpartition(":")[2], 16) == port:
                yield fields[9]


def _socket_inodes(pid: int) -> Iterator[str]:
    for entry in _entries(PROC / str(pid) / "fd"):
        try:
            target = str(entry.readlink())
        except OSError:
            continue
        if target.startswith("socket:["):
            yield target[8:-1]


def _entries(directory: Path) -> list[Path]:
    try:
        return list(directory.iterdir())
    except OSError:
        return []


def _lines(path: Path) -> list[str]:
    """Read a file of /proc; [] when its process has ended or is not ours to read."""
    try:
        return path.read_text().splitlines()
    except OSError:
        return []
