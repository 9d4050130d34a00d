"""Seals of the ledger: they survive whatever files do, and no line can change without one telling.

The lines are read by `tests/ledger_reader.py`, which shares no code with the broker.
"""

from __future__ import annotations

import gzip
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.ledger_reader import seal_faults
from vouchmq.server.ledger.files import LedgerFiles


def line(epoch: int, number: int, more: str = '"e":"x"') -> bytes:
    return b'{"b":"b","o":%d,"n":%d,%s}\n' % (epoch, number, more.encode())


def opened(directory: Path, broker: str = "b", *, compresses: bool = False) -> LedgerFiles:
    files = LedgerFiles(directory, broker, compresses=compresses)
    files.open(makes=True)
    return files


def live(files: LedgerFiles, epoch: int, *, flushes: int = 5, ends: bool = True) -> None:
    """An epoch of several flushes, two of them in each file, each of one line more."""
    files.begin(epoch)
    number = 0
    for flush in range(flushes):
        if flush and flush % 2 == 0:
            files.rotate(0)
        files.write(b"".join(line(epoch, number + each) for each in range(flush + 1)))
        number += flush + 1
    if ends:
        files.end(0, goes_dark=False)
    files.close()


def two_epochs(directory: Path) -> list[Path]:
    """A ledger whose first epoch was stopped, and the second too."""
    for epoch in (1, 2):
        live(opened(directory), epoch)
    assert seal_faults(directory) == []
    return sorted(directory.glob("b-*"))


def rewritten(path: Path, change: Callable[[list[bytes]], object]) -> None:
    lines = path.read_bytes().splitlines(keepends=True)
    change(lines)
    path.write_bytes(b"".join(lines))


@pytest.mark.parametrize("compresses", [False, True])
def test_a_chain_goes_over_files_epochs_and_brokers(tmp_path: Path, compresses: bool) -> None:
    for epoch in (1, 2, 3):
        for broker in ("b", "c"):
            live(opened(tmp_path, broker, compresses=compresses), epoch)
    assert seal_faults(tmp_path) == []
    for path in tmp_path.glob("*b-00000002-00000002*"):
        read = gzip.open if compresses else open
        with read(path, "rb") as file:
            assert file.read().count(b'"seal"') == 2


def test_a_ledger_that_is_switched_on_again_goes_on(tmp_path: Path) -> None:
    files = opened(tmp_path)
    for epoch in (1, 2):
        files.begin(epoch)
        files.write(line(epoch, 0))
        files.end(0, goes_dark=True)
    files.close()
    assert seal_faults(tmp_path) == []
    assert files.seal.encode() in (tmp_path / "b-00000002-00000001.jsonl").read_bytes()


def test_wherever_a_crash_tears_the_last_flush_the_chain_goes_on(tmp_path: Path) -> None:
    """What was written without its seal counts from the next start on like what has one."""
    whole = tmp_path / "whole"
    live(opened(whole), 1, ends=False)
    name = ".b-00000001-00000003.jsonl.open"
    data = (whole / name).read_bytes()
    for size in range(0, len(data) + 1, 7):
        directory = tmp_path / str(size)
        directory.mkdir()
        for path in whole.iterdir():
            (directory / path.name).write_bytes(path.read_bytes())
        (directory / name).write_bytes(data[:size])
        live(opened(directory), 2, flushes=2)
        live(opened(directory), 3, flushes=1, ends=False)
        assert seal_faults(directory) == [], size
        torn = directory / name.removeprefix(".").removesuffix(".open")
        if torn.exists():
            rewritten(torn, lambda lines: lines.pop())
            assert seal_faults(directory), size


def test_a_refused_flush_is_sealed_when_it_is_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = opened(tmp_path)
    files.begin(1)
    files.write(line(1, 0))
    file = files._file
    assert file is not None
    with monkeypatch.context() as patched, pytest.raises(OSError, match="28"):
        patched.setattr(
            type(file), "write", lambda self, data: (_ for _ in ()).throw(OSError(28, ""))
        )
        files.write(line(1, 1))
    files.write(line(1, 1) + line(1, 2))
    files.close()
    opened(tmp_path).close()
    assert seal_faults(tmp_path) == []


@pytest.mark.parametrize("keeps_state", [True, False])
def test_files_that_were_carried_away_leave_their_seal(tmp_path: Path, keeps_state: bool) -> None:
    live(opened(tmp_path / "ledger"), 1)
    away = tmp_path / "away"
    away.mkdir()
    for path in (tmp_path / "ledger").glob("b-*"):
        path.rename(away / path.name)
    if not keeps_state:
        # Nothing tells of an epoch before: it is another broker's ledger by the same name.
        (tmp_path / "ledger" / ".b.state").unlink()
    live(opened(tmp_path / "ledger"), 2)
    assert seal_faults(tmp_path / "ledger") == []
    for path in (tmp_path / "ledger").glob("b-*"):
        path.rename(away / path.name)
    assert bool(seal_faults(away)) is not keeps_state


def test_a_ledger_of_a_build_that_did_not_seal_is_gone_on_with(tmp_path: Path) -> None:
    (tmp_path / "b-00000001-00000001.jsonl").write_bytes(line(1, 0) + line(1, 1))
    (tmp_path / "b-00000001-00000002.jsonl").write_bytes(line(1, 2))
    live(opened(tmp_path), 2)
    assert seal_faults(tmp_path) == []


def test_no_line_can_be_removed_or_changed(tmp_path: Path) -> None:
    paths = two_epochs(tmp_path)
    tried = 0
    for path in paths:
        good = path.read_bytes()
        for at in range(len(good.splitlines())):
            for change in (
                lambda lines, at=at: lines.pop(at),
                lambda lines, at=at: lines.insert(at, lines[at]),
                lambda lines, at=at: lines.__setitem__(at, lines[at].replace(b'"x"', b'"y"')),
                lambda lines, at=at: lines.insert(at, lines.pop(at - 1)),
            ):
                rewritten(path, change)
                is_last = path == paths[-1] and at == len(good.splitlines()) - 1
                if path.read_bytes() != good and not (is_last and b'"y"' not in path.read_bytes()):
                    tried += 1
                    faults = seal_faults(tmp_path)
                    # A file that begins otherwise is found there, one that ends so in the next.
                    assert faults, (path.name, at)
                    assert faults[0].startswith((path.name, paths[-1].name)) or at, faults
                path.write_bytes(good)
    assert tried > 60
    assert seal_faults(tmp_path) == []


def test_a_change_is_found_at_its_place(tmp_path: Path) -> None:
    path = two_epochs(tmp_path)[1]
    rewritten(path, lambda lines: lines.__setitem__(4, lines[4].replace(b'"x"', b'"y"')))
    assert seal_faults(tmp_path) == [f"{path.name}:4-7 not what was sealed"]


def test_files_cannot_change_places(tmp_path: Path) -> None:
    paths = two_epochs(tmp_path)
    one, other = paths[0].read_bytes(), paths[1].read_bytes()
    paths[0].write_bytes(other)
    paths[1].write_bytes(one)
    faults = seal_faults(tmp_path)
    assert {fault.partition(":")[0] for fault in faults} >= {paths[0].name, paths[1].name}


def test_a_file_cannot_go_and_the_next_take_its_number(tmp_path: Path) -> None:
    paths = two_epochs(tmp_path)
    paths[2].rename(paths[1])
    assert seal_faults(tmp_path)[0].startswith(paths[1].name)


def test_seals_cannot_be_taken_off(tmp_path: Path) -> None:
    path = two_epochs(tmp_path)[1]
    rewritten(path, lambda lines: lines.__setitem__(2, lines[2][:-77] + b"}\n"))
    assert seal_faults(tmp_path)
