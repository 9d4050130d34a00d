"""How much memory this process may use and uses: /proc and the control groups, v1 and v2.

Where a group limits memory below what the machine has, its limit is the total, and what counts
as used is the larger of our resident set and the group's usage without page cache: the kernel
drops cache before it kills. Everywhere else the resident set counts. Free disk space is the
store's to tell. Must not know what the numbers are for.

Spec: LIMIT-01
"""

from __future__ import annotations

import ctypes
import os
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple

from vouchmq.server.collector import collect_all

KIB: Final = 1024
# Page cache, which the kernel takes back before anything else.
CACHE_KEYS: Final = frozenset(
    {"inactive_file", "active_file", "total_inactive_file", "total_active_file"}
)


class Group(NamedTuple):
    """A control group that limits memory."""

    path: Path
    limit_octets: int
    usage_file: str


class MemoryGauge:
    """Reads memory use; what bounds it is looked up once.

    Args:
        root: where /proc and /sys are, for tests
        process: whose group bounds it, as it is named in /proc
    """

    def __init__(self, root: Path = Path("/"), process: str = "self") -> None:
        self._statm = root / "proc/self/statm"
        self._beside_octets = 0
        self._page_octets = os.sysconf("SC_PAGE_SIZE")
        machine = _machine_octets(root)
        group = _tightest_group(root, process)
        self._group = group if group is not None and group.limit_octets < machine else None
        self.total_octets = self._group.limit_octets if self._group is not None else machine

    def used_octets(self) -> int:
        """What is in use now; 0 where nothing can be read."""
        resident = self._resident_octets()
        used = max(resident, self._group_octets())
        self._beside_octets = used - resident
        return used

    def used_octets_quickly(self) -> int:
        """The same, where what the group uses beside us is taken to be what it was."""
        return self._resident_octets() + self._beside_octets

    def _resident_octets(self) -> int:
        try:
            return int(self._statm.read_text().split()[1]) * self._page_octets
        except (OSError, ValueError, IndexError):
            return 0

    def _group_octets(self) -> int:
        if self._group is None:
            return 0
        usage = _number(self._group.path / self._group.usage_file) or 0
        return max(0, usage - _cache_octets(self._group.path / "memory.stat"))


def give_back_memory() -> None:
    """Return freed memory to the system, so that a drained broker is seen to be drained."""
    collect_all()
    trim_memory()


def trim_memory() -> None:
    """Return what the allocator keeps for later."""
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)


def _machine_octets(root: Path) -> int:
    with suppress(OSError, ValueError, IndexError):
        for line in (root / "proc/meminfo").read_text().splitlines():
            if line.startswith("MemTotal:"):
                return int(line.split()[1]) * KIB
    return 1 << 62


def _tightest_group(root: Path, process: str) -> Group | None:
    """The group with the smallest limit among that of a process and those above it."""
    groups: list[Group] = []
    for top, mine, is_v2 in _memory_groups(root, process):
        limit_file = "memory.max" if is_v2 else "memory.limit_in_bytes"
        usage_file = "memory.current" if is_v2 else "memory.usage_in_bytes"
        path = mine
        while True:
            limit = _number(path / limit_file)
            if limit is not None:
                groups.append(Group(path, limit, usage_file))
            if path == top:
                break
            path = path.parent
    return min(groups, key=lambda group: group.limit_octets, default=None)


def _memory_groups(root: Path, process: str) -> list[tuple[Path, Path, bool]]:
    """(mount point, its group below it, is v2) of each hierarchy that counts memory."""
    try:
        memberships = (root / f"proc/{process}/cgroup").read_text().splitlines()
        mounts = (root / f"proc/{process}/mountinfo").read_text().splitlines()
    except OSError:
        return []
    found = []
    for line in mounts:
        before, _, after = line.partition(" - ")
        fields, kind = before.split(), after.split()
        if len(fields) < 5 or len(kind) < 3 or kind[0] not in {"cgroup", "cgroup2"}:
            continue
        is_v2 = kind[0] == "cgroup2"
        if not is_v2 and "memory" not in kind[2].split(","):
            continue
        mine = _membership(memberships, is_v2)
        if mine is not None:
            top = root / fields[4].lstrip("/")
            found.append((top, _below(top, fields[3], mine), is_v2))
    return found


def _membership(lines: list[str], is_v2: bool) -> str | None:
    for line in lines:
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if (number == "0" and not controllers) if is_v2 else "memory" in controllers.split(","):
            return path
    return None


def _below(top: Path, mounted: str, mine: str) -> Path:
    """Our group under its mount point; a container may see only its own part of the tree."""
    try:
        path = top / Path(mine).relative_to(mounted)
    except ValueError:
        return top
    return path if path.is_dir() else top


def _number(path: Path) -> int | None:
    """The number in a file; None for `max`, or when there is none."""
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return None


def _cache_octets(path: Path) -> int:
    """Page cache of a group; v1 tells our own and, prefixed, that of the groups below as well."""
    try:
        pairs = [line.split() for line in path.read_text().splitlines()]
    except OSError:
        return 0
    values = {pair[0]: int(pair[1]) for pair in pairs if len(pair) == 2 and pair[0] in CACHE_KEYS}
    prefix = "total_" if "total_active_file" in values else ""
    return values.get(f"{prefix}active_file", 0) + values.get(f"{prefix}inactive_file", 0)
