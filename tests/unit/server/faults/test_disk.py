"""A disk without room: writes fail, everything else goes on."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from vouchmq.server.faults.disk import FaultyDisk


def test_a_full_disk_refuses_writes_and_nothing_else(tmp_path: Path) -> None:
    disk = FaultyDisk(tmp_path / "data")
    file = disk.create("one", 4096)
    file.write([b"before"], 0)
    disk.is_full = True
    with pytest.raises(OSError, match="No space left on device") as refused:
        file.write([b"after"], 0)
    assert refused.value.errno == errno.ENOSPC
    for refuses in (disk.create, disk.prepare):
        with pytest.raises(OSError, match="No space left on device"):
            refuses("two", 4096)
    assert disk.open("one").read(0, 6) == b"before"
    file.sync()
    disk.unlink("one")
    assert disk.listdir() == []
    disk.is_full = False
    disk.prepare("two", 4096)
    assert disk.listdir() == ["two"]
    disk.close()


def test_it_says_what_it_is_told_to_say(tmp_path: Path) -> None:
    disk = FaultyDisk(tmp_path / "data")
    assert disk.free_bytes() > 0
    disk.claimed_free_bytes = 0
    assert disk.free_bytes() == 0
    disk.close()
