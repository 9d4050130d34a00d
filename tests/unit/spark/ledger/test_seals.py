"""The audit's look at seals and clocks: the same as `tests/ledger_reader.py` says, at its place."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from tests.ledger_reader import seal_faults
from vouchmq.server.ledger.files import LedgerFiles
from vouchmq.spark.ledger import judging, seals
from vouchmq.spark.ledger.seals import CLOCK, TAMPERED, Look, Seals


def line(epoch: int, number: int, t: int = 0, kind: str = "x") -> bytes:
    t = t or 1000 + number
    made = f'{{"b":"b","o":{epoch},"n":{number},"t":{t},"e":"{kind}"}}\n'
    return made.encode()


def write(directory: Path, epoch: int, *, ends: bool = True, broker: str = "b") -> None:
    """An epoch of five flushes, two of them in each file, each of one line more than before."""
    files = LedgerFiles(directory, broker)
    files.open(makes=True)
    files.begin(epoch)
    number = 0
    for flush in range(5):
        if flush and flush % 2 == 0:
            files.rotate(0)
        count = flush + 1
        files.write(b"".join(line(epoch, number + each) for each in range(count)))
        number += count
    if ends:
        files.end(0, goes_dark=False)
    files.close()


def judged(directory: Path, ended: str | None = "stop") -> Seals:
    """What is found, also when it was kept as JSON in between."""
    paths = [path for path in directory.iterdir() if path.name.startswith("b-")]
    looks = [Look.from_json(each) for each in seals.to_json(map(seals.look, paths))]
    return judging.judge(looks, dict.fromkeys((("b", 1), ("b", 2), ("b", 3)), ended))


def ledger(directory: Path, epochs: int = 2) -> list[Path]:
    for epoch in range(1, epochs + 1):
        write(directory, epoch)
    return sorted(directory.glob("b-*"))


def test_an_honest_ledger_has_a_head_and_no_faults(tmp_path: Path) -> None:
    paths = ledger(tmp_path)
    found = judged(tmp_path)
    assert found.faults == ()
    assert (found.seals, found.sealed, found.unsealed) == (10, 30, 0)
    (head,) = found.heads
    assert (head.broker, head.epoch, head.n) == ("b", 2, 14)
    assert paths[-1].read_text().endswith(f'"seal":"{head.seal}"}}\n')


def test_every_change_is_found_at_its_place(tmp_path: Path) -> None:
    """Each line removed, edited, doubled and exchanged with its neighbour, one after the other."""
    paths = ledger(tmp_path)
    for path in paths:
        good = path.read_bytes()
        lines = good.splitlines(keepends=True)
        for at in range(len(lines)):
            last = path == paths[-1] and at == len(lines) - 1
            for changed in (
                [*lines[:at], *lines[at + 1 :]],
                [*lines[:at], lines[at].replace(b'"x"', b'"y"'), *lines[at + 1 :]],
                [*lines[:at], lines[at], *lines[at:]],
                [*lines[: at - 1], lines[at], lines[at - 1], *lines[at + 1 :]] if at else lines,
            ):
                path.write_bytes(b"".join(changed))
                faults = [each for each in judged(tmp_path).faults if each.kind == TAMPERED]
                if changed != lines and not (last and len(changed) < len(lines)):
                    assert faults, (path.name, at)
                    assert bool(seal_faults(tmp_path))
                    ends_so = at == len(lines) - 1
                    near = any(each.first - 1 <= at + 1 <= each.last + 5 for each in faults)
                    assert faults[0].file == path.name or ends_so
                    assert near or ends_so
            path.write_bytes(good)
    assert judged(tmp_path).faults == ()


def test_a_place_is_told_in_words(tmp_path: Path) -> None:
    path = ledger(tmp_path)[1]
    path.write_bytes(
        path.read_bytes().replace(b'"n":8,"t":1008,"e":"x"', b'"n":8,"t":1008,"e":"y"')
    )
    (fault,) = judged(tmp_path).faults
    assert (fault.epoch, fault.n, fault.t) == (1, 6, 1006)
    assert fault.detail == f"{path.name}:4-7: these lines are not the ones that were sealed"


def test_files_that_change_places_or_take_a_number(tmp_path: Path) -> None:
    paths = ledger(tmp_path)
    one, other = paths[1].read_bytes(), paths[2].read_bytes()
    paths[1].write_bytes(other)
    paths[2].write_bytes(one)
    assert paths[0].name in {each.file for each in judged(tmp_path).faults}
    paths[1].write_bytes(one)
    paths[2].write_bytes(other)
    assert judged(tmp_path).faults == ()
    paths[2].rename(paths[1])
    assert judged(tmp_path).faults


def test_a_file_that_is_not_there_is_no_tampering(tmp_path: Path) -> None:
    """Its lines are missing, which others tell."""
    paths = ledger(tmp_path)
    paths[1].unlink()
    assert judged(tmp_path).faults == ()
    paths[3].unlink()
    assert judged(tmp_path).faults == ()


def test_the_end_of_an_epoch_is_known_to_the_next(tmp_path: Path) -> None:
    path = ledger(tmp_path)[2]
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:-5]) or b"")
    faults = judged(tmp_path).faults
    assert not path.read_bytes() or faults


@pytest.mark.parametrize("share", [0.0, 0.1, 0.4, 0.7, 0.99])
def test_what_a_crash_tears_off_is_none(tmp_path: Path, share: float) -> None:
    write(tmp_path, 1)
    write(tmp_path, 2, ends=False)
    torn = tmp_path / ".b-00000002-00000003.jsonl.open"
    torn.write_bytes(torn.read_bytes()[: int(share * torn.stat().st_size)])
    write(tmp_path, 3)
    assert judged(tmp_path, "crash").faults == ()
    closed = tmp_path / "b-00000002-00000003.jsonl"
    if closed.exists():
        changed = closed.read_bytes().replace(b'"x"', b'"y"', 1)
        assert changed != closed.read_bytes()
        closed.write_bytes(changed)
        assert [each.kind for each in judged(tmp_path, "crash").faults] == [TAMPERED]


def test_power_that_took_the_end_of_a_file_and_not_the_next_is_none(tmp_path: Path) -> None:
    paths = ledger(tmp_path)
    lines = paths[0].read_bytes().splitlines(keepends=True)
    paths[0].write_bytes(b"".join(lines[:1]))
    assert judged(tmp_path, "crash").faults == ()
    assert judged(tmp_path, "stop").faults


def test_files_without_seals_and_compressed_ones(tmp_path: Path) -> None:
    old = tmp_path / "b-00000001-00000001.jsonl"
    old.write_bytes(line(1, 0) + line(1, 1))
    for epoch in (2, 3):
        write(tmp_path, epoch)
    for path in tmp_path.glob("b-00000003-*"):
        packed = path.with_name(path.name + ".gz")
        packed.write_bytes(gzip.compress(path.read_bytes()))
        path.unlink()
    found = judged(tmp_path)
    assert (found.faults, found.unsealed, found.seals) == ((), 2, 10)


def test_a_file_that_is_there_twice_counts_once(tmp_path: Path) -> None:
    for path in ledger(tmp_path):
        again = tmp_path / f"copy-{path.name}"
        again.write_bytes(path.read_bytes())
    paths = [*tmp_path.glob("b-*"), *tmp_path.glob("copy-*")]
    looks = [seals.look(path) for path in paths]
    for each in looks:
        each.broker = "b"
    assert judging.judge(looks, {}).sealed == 30


@pytest.mark.parametrize("has_overlap", [False, True])
def test_a_clock_that_goes_back(tmp_path: Path, has_overlap: bool) -> None:
    times = [(0, 10), (1, 20), (2, 15), (3, 30), (4, 29), (5, 40)]
    lines = [line(1, n, t) for n, t in times]
    (tmp_path / "b-00000001-00000001.jsonl").write_bytes(b"".join(lines[:4]))
    more = [lines[1]] if has_overlap else []
    (tmp_path / "b-00000001-00000002.jsonl").write_bytes(b"".join([*lines[4:], *more]))
    found = [each for each in judged(tmp_path).faults if each.kind == CLOCK]
    assert [(each.n, each.t) for each in found] == [(2, 15), (4, 29)]
    assert found[0].why == "line 2 is 5 µs older than line 1"
