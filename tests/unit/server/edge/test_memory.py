"""What a process may use and uses, read from made-up trees of /proc and control groups."""

from __future__ import annotations

import mmap
import os
from pathlib import Path

import pytest

from vouchmq.server.edge.memory import MemoryGauge, give_back_memory

PAGE = os.sysconf("SC_PAGE_SIZE")
MIB = 1024 * 1024
V1_LINE = "30 25 0:26 {mounted} /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"
V2_LINE = "30 25 0:26 {mounted} /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n"


def write(root: Path, name: str, text: str) -> None:
    """A file of the made-up tree."""
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A machine with 1000 MiB, of which this process holds 100, in no group."""
    write(tmp_path, "proc/meminfo", f"MemFree: 1 kB\nMemTotal:  {1000 * 1024} kB\n")
    write(tmp_path, "proc/self/statm", f"999 {100 * MIB // PAGE} 1 1 0 1 0\n")
    write(tmp_path, "proc/self/cgroup", "")
    write(tmp_path, "proc/self/mountinfo", "")
    return tmp_path


def test_a_machine_without_groups(root: Path) -> None:
    gauge = MemoryGauge(root)
    assert (gauge.total_octets, gauge.used_octets()) == (1000 * MIB, 100 * MIB)


def test_nothing_to_read_is_no_alarm(tmp_path: Path) -> None:
    gauge = MemoryGauge(tmp_path)
    assert gauge.total_octets > 1 << 50
    assert gauge.used_octets() == 0


def test_v2_group_counts_without_its_cache(root: Path) -> None:
    write(root, "proc/self/cgroup", "0::/app\n")
    write(root, "proc/self/mountinfo", V2_LINE.format(mounted="/"))
    write(root, "sys/fs/cgroup/app/memory.max", f"{400 * MIB}\n")
    write(root, "sys/fs/cgroup/app/memory.current", f"{350 * MIB}\n")
    stat = f"anon 1\ninactive_file {40 * MIB}\nactive_file {60 * MIB}\nworkingset 3\n"
    write(root, "sys/fs/cgroup/app/memory.stat", stat)
    gauge = MemoryGauge(root)
    assert (gauge.total_octets, gauge.used_octets()) == (400 * MIB, 250 * MIB)


def test_the_group_of_another_process(root: Path) -> None:
    write(root, "proc/self/cgroup", "0::/mine\n")
    write(root, "proc/7/cgroup", "0::/app\n")
    for process in ("self", "7"):
        write(root, f"proc/{process}/mountinfo", V2_LINE.format(mounted="/"))
    write(root, "sys/fs/cgroup/app/memory.max", f"{400 * MIB}\n")
    write(root, "sys/fs/cgroup/mine/memory.max", f"{100 * MIB}\n")
    assert MemoryGauge(root, "7").total_octets == 400 * MIB
    assert MemoryGauge(root).total_octets == 100 * MIB


def test_v2_tightest_group_above_us_counts(root: Path) -> None:
    write(root, "proc/self/cgroup", "0::/outer/inner\n")
    write(root, "proc/self/mountinfo", V2_LINE.format(mounted="/"))
    write(root, "sys/fs/cgroup/outer/memory.max", f"{300 * MIB}\n")
    write(root, "sys/fs/cgroup/outer/memory.current", f"{290 * MIB}\n")
    write(root, "sys/fs/cgroup/outer/inner/memory.max", "max\n")
    gauge = MemoryGauge(root)
    assert (gauge.total_octets, gauge.used_octets()) == (300 * MIB, 290 * MIB)


def test_v1_group(root: Path) -> None:
    write(root, "proc/self/cgroup", "9:cpu:/other\n4:memory:/app\n0::/\n")
    write(root, "proc/self/mountinfo", V1_LINE.format(mounted="/"))
    group = "sys/fs/cgroup/memory/app"
    write(root, f"{group}/memory.limit_in_bytes", f"{200 * MIB}\n")
    write(root, f"{group}/memory.usage_in_bytes", f"{190 * MIB}\n")
    stat = f"active_file 1\ntotal_active_file {20 * MIB}\ntotal_inactive_file {10 * MIB}\n"
    write(root, f"{group}/memory.stat", stat)
    gauge = MemoryGauge(root)
    assert (gauge.total_octets, gauge.used_octets()) == (200 * MIB, 160 * MIB)


def test_container_that_sees_only_its_own_group(root: Path) -> None:
    write(root, "proc/self/cgroup", "4:memory:/docker/1234\n")
    write(root, "proc/self/mountinfo", V1_LINE.format(mounted="/docker/1234"))
    write(root, "sys/fs/cgroup/memory/memory.limit_in_bytes", f"{150 * MIB}\n")
    write(root, "sys/fs/cgroup/memory/memory.usage_in_bytes", f"{120 * MIB}\n")
    gauge = MemoryGauge(root)
    assert (gauge.total_octets, gauge.used_octets()) == (150 * MIB, 120 * MIB)


def test_a_limit_beyond_the_machine_is_none(root: Path) -> None:
    write(root, "proc/self/cgroup", "4:memory:/\n")
    write(root, "proc/self/mountinfo", V1_LINE.format(mounted="/"))
    write(root, "sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n")
    write(root, "sys/fs/cgroup/memory/memory.usage_in_bytes", f"{990 * MIB}\n")
    gauge = MemoryGauge(root)
    assert (gauge.total_octets, gauge.used_octets()) == (1000 * MIB, 100 * MIB)


def test_this_process() -> None:
    gauge = MemoryGauge()
    before = gauge.used_octets()
    assert 0 < before < gauge.total_octets
    # Mapped by itself: the heap may have free room for as much, and need no more of the system.
    with mmap.mmap(-1, 64 * MIB) as ballast:
        ballast.write(b"x" * (64 * MIB))
        held = gauge.used_octets()
        assert held > before + 50 * MIB
    give_back_memory()
    assert gauge.used_octets() < held - 50 * MIB
