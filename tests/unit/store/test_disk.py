"""The real directory: lock, files, names."""

from __future__ import annotations

import errno
import multiprocessing
import os
from pathlib import Path

import pytest

from vouchmq.store.disk import FileDisk, ReadOnlyDisk
from vouchmq.store.errors import DataDirLocked, DataDirUnreadable


def test_a_missing_directory_is_made(tmp_path: Path) -> None:
    disk = FileDisk(tmp_path / "a" / "b")
    assert (tmp_path / "a" / "b").is_dir()
    disk.close()


def test_a_file_in_the_way_is_told(tmp_path: Path) -> None:
    (tmp_path / "data").write_text("x")
    with pytest.raises(DataDirUnreadable, match="data: it is a file, not a directory"):
        FileDisk(tmp_path / "data")


def test_the_second_broker_on_a_directory_is_told_of_the_first(tmp_path: Path) -> None:
    first = FileDisk(tmp_path)
    first.lock()
    first.lock()
    second = FileDisk(tmp_path)
    with pytest.raises(DataDirLocked, match=f"in use by another broker .process {os.getpid()}"):
        second.lock()
    first.close()
    second.lock()
    second.close()


def test_the_lock_goes_with_the_process(tmp_path: Path) -> None:
    child = multiprocessing.get_context("spawn").Process(target=_lock_and_die, args=(tmp_path,))
    child.start()
    child.join()
    assert child.exitcode == 3
    disk = FileDisk(tmp_path)
    disk.lock()
    disk.close()


def _lock_and_die(path: Path) -> None:
    FileDisk(path).lock()
    os._exit(3)


def test_files_hold_what_was_written_however_many_parts(tmp_path: Path) -> None:
    disk = FileDisk(tmp_path)
    file = disk.create("f", 8192)
    assert file.size() == 8192
    parts = [b"%d," % n for n in range(3000)]
    file.write(parts, 100)
    file.sync()
    disk.directory.sync()
    whole = b"".join(parts)
    assert file.read(100, len(whole)) == whole
    assert file.read(100 + len(whole), 10**6).strip(b"\0") == b""
    file.truncate(150)
    assert file.read(100, 500) == whole[:50]
    file.close()
    disk.close()


def test_short_writes_are_carried_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = FileDisk(tmp_path)
    file = disk.create("f", 0)
    pwrite = os.pwrite
    monkeypatch.setattr(os, "pwritev", lambda fd, parts, at: pwrite(fd, parts[0][:3], at))
    monkeypatch.setattr(os, "pwrite", lambda fd, data, at: pwrite(fd, data[:2], at))
    file.write([b"0123456789", b"abcdefg"], 5)
    assert file.read(5, 100) == b"0123456789abcdefg"
    file.write([b"one piece"], 5)
    assert file.read(5, 100) == b"one piece9abcdefg"
    monkeypatch.setattr(os, "pwrite", lambda fd, data, at: 0)
    with pytest.raises(OSError, match="accepted only a part"):
        file.write([b"0123456789"], 0)
    file.close()
    disk.close()


def test_names_change_and_go(tmp_path: Path) -> None:
    disk = FileDisk(tmp_path)
    disk.prepare("spare", 4096)
    assert disk.listdir() == ["spare"]
    disk.rename("spare", "used")
    assert (tmp_path / "used").stat().st_size == 4096
    disk.unlink("used")
    disk.unlink("used")
    assert disk.listdir() == []
    with pytest.raises(FileNotFoundError):
        disk.open("used")
    assert disk.free_bytes() > 0
    assert disk.entropy() != disk.entropy()
    disk.close()


def test_reserving_is_optional_but_a_full_disk_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = FileDisk(tmp_path)

    def fail(number: int) -> None:
        def fallocate(descriptor: int, offset: int, size: int) -> None:
            raise OSError(number, os.strerror(number))

        monkeypatch.setattr(os, "posix_fallocate", fallocate)

    fail(errno.EOPNOTSUPP)
    disk.create("grows", 4096).close()
    fail(errno.ENOSPC)
    with pytest.raises(OSError, match="No space"):
        disk.create("none", 4096)
    assert disk.listdir() == ["grows"]
    disk.close()


@pytest.mark.parametrize("what", ["segment", "replaced", "lock", "other lock", "away", "another"])
def test_what_is_not_where_it_was_is_missed(tmp_path: Path, what: str) -> None:
    data = tmp_path / "data"
    disk = FileDisk(data)
    disk.lock()
    disk.create("1", 10).close()
    newest = disk.create("2", 10)
    assert disk.missing(["1", "2"], newest) == ""
    if what == "segment":
        (data / "1").unlink()
    elif what == "replaced":
        (data / "new").write_bytes(b"x" * 10)
        (data / "new").rename(data / "2")
    elif what in {"lock", "other lock"}:
        (data / "lock").unlink()
        if what == "other lock":
            (data / "lock").write_text("7")
    else:
        data.rename(tmp_path / "elsewhere")
        if what == "another":
            data.mkdir()
    told = {
        "segment": f"1 was removed from data directory {data}",
        "replaced": f"2 was removed from data directory {data}",
        "lock": f"lock was removed from data directory {data}",
        "other lock": f"lock was removed from data directory {data}",
        "away": f"data directory {data} no longer exists (No such file or directory)",
        "another": f"data directory {data} was replaced",
    }
    assert disk.missing(["1", "2"], newest) == told[what]
    newest.close()
    disk.close()


@pytest.mark.parametrize("link", ["symbolic", "hard"])
def test_a_lock_that_leads_elsewhere_is_refused_and_nothing_written(
    tmp_path: Path, link: str
) -> None:
    data, target = tmp_path / "data", tmp_path / "precious"
    target.write_text("other people's")
    disk = FileDisk(data)
    if link == "symbolic":
        (data / "lock").symlink_to(target)
    else:
        (data / "lock").hardlink_to(target)
    with pytest.raises(DataDirUnreadable, match=r"lock is .* link.*: remove it"):
        disk.lock()
    assert target.read_text() == "other people's"
    disk.close()


def test_what_is_larger_than_a_lock_file_is_not_written_to(tmp_path: Path) -> None:
    (tmp_path / "lock").write_text("a text that somebody has called so")
    disk = FileDisk(tmp_path)
    disk.lock()
    assert (tmp_path / "lock").read_text() == "a text that somebody has called so"
    disk.close()


def test_a_shorter_process_id_replaces_a_longer_one(tmp_path: Path) -> None:
    (tmp_path / "lock").write_text("99999999999999\n")
    disk = FileDisk(tmp_path)
    disk.lock()
    assert int((tmp_path / "lock").read_text()) == os.getpid()
    assert ReadOnlyDisk(tmp_path).holder() == os.getpid()
    disk.close()


def test_a_new_file_is_not_made_behind_a_link(tmp_path: Path) -> None:
    data, target = tmp_path / "data", tmp_path / "precious"
    target.write_text("other people's")
    disk = FileDisk(data)
    (data / "f").symlink_to(target)
    with pytest.raises(OSError, match="symbolic links"):
        disk.create("f", 10)
    assert target.read_text() == "other people's"
    disk.close()


@pytest.mark.parametrize(
    ("mode", "lax"), [(0o700, 0), (0o750, 0), (0o755, 0o755), (0o770, 0o770), (0o701, 0o701)]
)
def test_who_else_may_look_is_told(tmp_path: Path, mode: int, lax: int) -> None:
    data = tmp_path / "data"
    data.mkdir()
    if os.geteuid() == 0:
        os.chown(data, -1, 1)
    data.chmod(mode)
    disk = FileDisk(data)
    assert disk.lax_mode == lax
    disk.close()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may give a directory to root's group")
@pytest.mark.parametrize(("mode", "lax"), [(0o770, 0), (0o775, 0o775)])
def test_the_group_of_root_may_write(tmp_path: Path, mode: int, lax: int) -> None:
    """Containers run in it that are given any user."""
    data = tmp_path / "data"
    data.mkdir()
    os.chown(data, -1, 0)
    data.chmod(mode)
    disk = FileDisk(data)
    assert disk.lax_mode == lax
    disk.close()


@pytest.mark.parametrize("mode", [0o777, 0o702, 0o1777])
def test_a_directory_that_anybody_may_write_to_is_refused(tmp_path: Path, mode: int) -> None:
    data = tmp_path / "data"
    data.mkdir()
    data.chmod(mode)
    with pytest.raises(DataDirUnreadable, match=rf"has mode {mode:04o}, .*: chmod o-w"):
        FileDisk(data)


def test_a_new_directory_is_its_owners_alone(tmp_path: Path) -> None:
    FileDisk(tmp_path / "data").close()
    assert (tmp_path / "data").stat().st_mode & 0o777 == 0o700
