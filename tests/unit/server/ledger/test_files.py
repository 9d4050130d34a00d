"""Files of the ledger: opened, torn, given up, packed, removed, and what is known of them later."""

from __future__ import annotations

import errno
import gzip
import os
import re
from pathlib import Path

import pytest

from vouchmq.server.errors import StartupError
from vouchmq.server.ledger.files import LedgerFiles, OpenFile
from vouchmq.server.ledger.ledger import Before
from vouchmq.store.sync.worker import SyncInline


def line(epoch: int, number: int, more: str = '"e":"x"') -> bytes:
    return b'{"b":"b","o":%d,"n":%d,%s}\n' % (epoch, number, more.encode())


def unsealed(data: bytes) -> bytes:
    """Lines as they were before they were sealed."""
    return re.sub(rb'(,"prev_seal":"[0-9a-f]*")?,"seal":"[0-9a-f]{64}"', b"", data)


def tear(files: LedgerFiles, data: bytes) -> None:
    """What a process leaves that is killed while it writes."""
    assert files._file is not None
    files._file.write(data)


def opened(directory: Path, **more: object) -> LedgerFiles:
    files = LedgerFiles(directory, "b", **more)  # type: ignore[arg-type]
    files.open(makes=True)
    return files


def names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir() if path.name != ".b.state")


def test_rotated_files_have_their_names_and_are_told(tmp_path: Path) -> None:
    files = opened(tmp_path / "ledger")
    assert files.before == Before()
    files.begin(1)
    assert names(tmp_path / "ledger") == [".b-00000001-00000001.jsonl.open"]
    told: list[str] = []
    files.rotate(0, told.append)
    assert told == [""], "nothing was in it"
    files.write(line(1, 0))
    assert files.octets > len(line(1, 0))
    files.rotate(7, told.append)
    files.write(line(1, 1))
    files.end(9, told.append, goes_dark=False)
    directory = tmp_path / "ledger"
    assert names(directory) == ["b-00000001-00000001.jsonl", "b-00000001-00000002.jsonl"]
    assert told[1:] == [str(directory / name) for name in names(directory)]
    assert unsealed((directory / names(directory)[1]).read_bytes()) == line(1, 1)
    files.close()


def test_an_empty_file_goes(tmp_path: Path) -> None:
    files = opened(tmp_path)
    files.begin(1)
    files.end(0, goes_dark=False)
    assert names(tmp_path) == []


def test_what_a_crash_has_torn_is_cut(tmp_path: Path) -> None:
    files = opened(tmp_path)
    files.begin(1)
    whole = line(1, 0, '"e":"pub","lsn":[5,77],"wm":3') + line(1, 1, '"e":"syn","wm":60')
    files.write(whole)
    tear(files, b'{"b":"b","o":1,"n":2,"e":"x"')
    files.close()
    again = opened(tmp_path)
    assert unsealed((tmp_path / "b-00000001-00000001.jsonl").read_bytes()) == whole
    assert again.before == Before(1, 1, 77, is_clean=False, is_dark=False)
    again.begin(2)
    tear(again, line(2, 0, '"e":"syn","wm":80') + b"\0\0\0\0" + line(2, 1))
    again.close()
    third = opened(tmp_path)
    assert (tmp_path / "b-00000002-00000001.jsonl").read_bytes() == line(2, 0, '"e":"syn","wm":80')
    assert third.before == Before(2, 0, 80, is_clean=False, is_dark=False)
    third.close()


def test_an_end_in_order_is_known(tmp_path: Path) -> None:
    files = opened(tmp_path)
    files.begin(4)
    files.write(line(4, 0) + line(4, 1, '"e":"end","w":"stop"'))
    files.end(12, goes_dark=False)
    files.close()
    again = opened(tmp_path)
    assert again.before == Before(4, 1, 12, is_clean=True, is_dark=False)
    again.close()


def test_files_may_be_carried_away(tmp_path: Path) -> None:
    files = opened(tmp_path)
    files.begin(4)
    files.write(line(4, 0))
    files.rotate(12)
    files.close()
    for path in tmp_path.glob("*b-*"):
        path.unlink()
    again = opened(tmp_path)
    assert (again.before.epoch, again.before.lsn) == (4, 12)
    again.close()


@pytest.mark.parametrize("how", ["off", "without", "failing"])
def test_a_life_in_the_dark_is_known(tmp_path: Path, how: str) -> None:
    files = opened(tmp_path)
    files.begin(1)
    files.write(line(1, 0))
    if how == "off":
        files.end(1, goes_dark=True)
    elif how == "failing":
        files.failing(True)
    files.close()
    if how == "without":
        other = LedgerFiles(tmp_path, "b")
        other.open(makes=False)
        assert other.before.is_dark
        assert other.before.epoch == 1
        other.close()
    again = opened(tmp_path)
    assert again.before.is_dark
    again.begin(2)
    again.close()
    assert not opened(tmp_path).before.is_dark


def test_without_a_ledger_nothing_is_made(tmp_path: Path) -> None:
    files = LedgerFiles(tmp_path / "none", "b")
    files.open(makes=False)
    assert not (tmp_path / "none").exists()
    files.begin(1)
    files.write(line(1, 0))
    assert (tmp_path / "none").exists()
    files.close()


def test_a_name_is_of_one_broker(tmp_path: Path) -> None:
    files = opened(tmp_path)
    with pytest.raises(StartupError, match="another broker called b writes there"):
        opened(tmp_path)
    files.close()
    opened(tmp_path).close()


def test_packed_files(tmp_path: Path) -> None:
    files = opened(tmp_path, compresses=True)
    files.begin(1)
    files.write(line(1, 0, '"e":"pub","lsn":[1,9]') * 100)
    files.end(0, goes_dark=False)
    files.close()
    assert names(tmp_path) == ["b-00000001-00000001.jsonl.gz"]
    packed = (tmp_path / names(tmp_path)[0]).read_bytes()
    assert unsealed(gzip.decompress(packed)) == line(1, 0, '"e":"pub","lsn":[1,9]') * 100
    again = opened(tmp_path)
    assert again.before == Before(1, 0, 9, is_clean=False, is_dark=False)
    again.close()


def test_old_files_go_and_the_newest_stays(tmp_path: Path) -> None:
    now = 1_000_000.0
    files = opened(tmp_path, keep_s=100.0, now_s=lambda: now)
    files.begin(1)
    for number in range(3):
        files.write(line(1, number))
        files.rotate(0)
        os.utime(tmp_path / f"b-00000001-{number + 1:08}.jsonl", (now, now))
    assert len(names(tmp_path)) == 4
    now += 101
    files.write(line(1, 3))
    files.rotate(0)
    assert names(tmp_path) == [".b-00000001-00000005.jsonl.open", "b-00000001-00000004.jsonl"]
    files.close()


def test_too_many_octets_go_the_oldest_first(tmp_path: Path) -> None:
    size = len(line(1, 0)) + 153  # with both seals
    files = opened(tmp_path, keep_octets=2 * size + 1)
    files.begin(1)
    for number in range(4):
        files.write(line(1, number))
        files.rotate(0)
    assert names(tmp_path)[1:] == ["b-00000001-00000003.jsonl", "b-00000001-00000004.jsonl"]
    files.close()


def test_a_write_is_whole_or_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = OpenFile(tmp_path / "f")
    file.write(b"one\n")
    real = os.pwrite

    def full(descriptor: int, data: bytes, at: int) -> int:
        if at == len(b"one\n"):
            return real(descriptor, data[:3], at)
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "pwrite", full)
    with pytest.raises(OSError, match="No space"):
        file.write(b"second\n")
    assert (tmp_path / "f").read_bytes() == b"one\nsec"
    monkeypatch.setattr(os, "pwrite", real)
    file.write(b"3\n")
    file.close()
    assert (tmp_path / "f").read_bytes() == b"one\n3\n"


def test_a_file_that_cannot_be_followed_goes_on(tmp_path: Path) -> None:
    files = opened(tmp_path)
    files.begin(1)
    files.write(line(1, 0))
    blocked = tmp_path / ".b-00000001-00000002.jsonl.open"
    blocked.touch()
    told: list[str] = []
    files.rotate(0, told.append)
    assert told == [""]
    files.write(line(1, 1))
    blocked.unlink()
    files.rotate(0)
    found = (tmp_path / "b-00000001-00000001.jsonl").read_bytes()
    assert unsealed(found) == line(1, 0) + line(1, 1)
    files.close()


def test_what_a_sync_of_the_journal_takes_along(tmp_path: Path) -> None:
    files = opened(tmp_path, worker=SyncInline())
    assert files.targets() == []
    files.begin(1)
    files.write(line(1, 0))
    first = files.targets()
    assert len(first) == 2, "the file, and the directory that it is new in"
    files.synced(0)
    assert files.targets() == first[:1]
    files.write(line(1, 1))
    files.rotate(0)
    assert len(files.targets()) == 3, "the old file, the new one, the directory"
    assert files.targets()[0] is first[0]
    os.fstat(first[0].fileno())
    files.synced(0)
    assert first[0] not in files.targets()
    with pytest.raises(OSError, match="Bad file"):
        os.fstat(first[0].fileno())
    files.synced(errno.EIO)
    files.close()
    assert opened(tmp_path).before.is_dark, "what was not synced may be gone"
