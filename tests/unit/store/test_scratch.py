"""Pages that no restart reads."""

from __future__ import annotations

import errno

import pytest

from tests.simulation.sim_disk import SimDisk
from vouchmq.store.scratch import SCRATCH_PREFIX, Page, Scratch

PAGE: Page = [(b"raw" * 10, b"tail", 2 * n, 0) for n in range(5)]


def files(disk: SimDisk) -> list[str]:
    return sorted(name for name in disk.listdir() if name.startswith(SCRATCH_PREFIX))


def test_a_page_comes_back_once() -> None:
    scratch = Scratch(SimDisk(), file_size_bytes=1000, remove=print)
    number = scratch.page_out(PAGE)
    assert scratch.page_in(number) == PAGE
    with pytest.raises(KeyError):
        scratch.page_in(number)


def test_a_file_goes_with_its_last_page() -> None:
    disk = SimDisk()
    scratch = Scratch(disk, file_size_bytes=100, remove=disk.unlink)
    first, second, third = (scratch.page_out(PAGE) for _ in range(3))
    assert len(files(disk)) == 3
    scratch.drop_page(second)
    assert len(files(disk)) == 2
    assert scratch.page_in(third) == PAGE
    assert scratch.page_in(first) == PAGE
    scratch.page_out(PAGE)
    assert len(files(disk)) == 1


def test_files_of_an_earlier_life_are_removed() -> None:
    disk = SimDisk()
    Scratch(disk, file_size_bytes=100, remove=disk.unlink).page_out(PAGE)
    disk.create("0000000000000001.journal", 0)
    scratch = Scratch(disk, file_size_bytes=100, remove=disk.unlink)
    scratch.sweep()
    assert files(disk) == []
    assert "0000000000000001.journal" in disk.listdir()
    number = scratch.page_out(PAGE)
    assert len(files(disk)) == 1
    assert scratch.page_in(number) == PAGE
    scratch.close()
    assert files(disk) == []


def test_a_refused_write_changes_nothing() -> None:
    disk = SimDisk()
    scratch = Scratch(disk, file_size_bytes=10_000, remove=disk.unlink)
    kept = scratch.page_out(PAGE)
    disk.fail["write", 2] = errno.ENOSPC
    with pytest.raises(OSError):
        scratch.page_out(PAGE)
    assert scratch.page_in(kept) == PAGE


def test_files_are_removed_by_somebody_else() -> None:
    """LIMIT-23: what is in memory of a file is freed with its name."""
    disk = SimDisk()
    removed: list[str] = []
    scratch = Scratch(disk, file_size_bytes=100, remove=removed.append)
    first, _ = scratch.page_out(PAGE), scratch.page_out(PAGE)
    there = files(disk)
    scratch.drop_page(first)
    assert removed == there[:1]
    assert files(disk) == there
    scratch.close()
    assert files(disk) == there[:1]
