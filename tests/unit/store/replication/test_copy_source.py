"""A directory's journal in pieces; `tests/replication` copies it and breaks that off."""

from __future__ import annotations

from tests.simulation.sim_disk import SimDisk
from tests.unit.store.journals import corrupt, open_on, publish, segments_on
from vouchmq.store.recovery.recover import check_stopped, clean_up
from vouchmq.store.recovery.scan import Extent
from vouchmq.store.replication.copy_source import CopySource, damage_of, undeclared


def filled() -> SimDisk:
    """Some segments, the last of which has room that nobody has used."""
    disk = SimDisk()
    journal, _ = open_on(disk, size=4096)
    publish(journal, 1, *[b"%d" % number * 300 for number in range(30)])
    journal.close()
    return disk


def extent(generation: int, first: int, last: int, **more: object) -> Extent:
    values = {"oldest": 1, "gaps": [], "retired_early": [], **more}
    return Extent(generation, 7, 0, 100, first, last, 1, 2, 0, block_count=1, **values)  # type: ignore[arg-type]


def test_pieces_are_all_blocks_that_count_in_order() -> None:
    disk = filled()
    extents = check_stopped(disk).verdict.accepted
    source = CopySource(disk, extents)
    found: dict[int, bytes] = {}
    numbers = []
    while (piece := source.next_piece(2000)) is not None:
        before = found.get(piece.generation, b"")
        assert len(before) == piece.offset
        assert len(piece.body) <= 2000
        found[piece.generation] = before + piece.body
        numbers.append(piece.number)
    assert numbers == sorted(numbers)
    assert numbers[-1] == extents[-1].last_number
    assert len(found) == len(segments_on(disk)) > 2
    assert source.copied_bytes == source.size_bytes == sum(map(len, found.values()))
    for name, octets in zip(segments_on(disk), found.values(), strict=True):
        assert bytes(disk.visible[name].visible).startswith(octets)


def test_a_block_that_is_larger_than_a_piece_is_one() -> None:
    disk = filled()
    source = CopySource(disk, check_stopped(disk).verdict.accepted)
    count = 0
    while (piece := source.next_piece(90)) is not None:
        count += 1
        assert piece.number == count


def test_damage_is_named() -> None:
    disk = filled()
    assert damage_of(check_stopped(disk).verdict) == []
    name = segments_on(disk)[1]
    corrupt(disk, name, 90)
    (line,) = damage_of(check_stopped(disk).verdict)
    assert line.startswith(f"{name} is damaged at offset 0 (blocks ")


def test_a_torn_tail_is_no_damage_and_goes() -> None:
    disk = filled()
    extents = check_stopped(disk).verdict.accepted
    last = segments_on(disk)[-1]
    corrupt(disk, last, extents[-1].end - 5)
    checked = check_stopped(disk)
    assert damage_of(checked.verdict) == []
    assert clean_up(disk, checked).quarantined == [f"{last}.torn"]
    assert len(disk.visible[last].visible) == checked.verdict.accepted[-1].end
    assert checked.verdict.accepted[-1].last_number == extents[-1].last_number - 1


def test_blocks_may_be_missing_if_that_is_declared() -> None:
    whole = [extent(1, 1, 4), extent(2, 5, 9)]
    assert undeclared(whole) is None
    assert undeclared([extent(1, 1, 4), extent(3, 10, 12)]) == (5, 9)
    retired = {"retired_early": [(2, 5, 9)]}
    assert undeclared([extent(1, 1, 4), extent(3, 10, 12, **retired)]) is None
    assert undeclared([extent(1, 1, 4), extent(3, 10, 12, gaps=[(5, 9)])]) is None
    assert undeclared([extent(3, 10, 12)]) == (1, 9)
    assert undeclared([extent(3, 10, 12, oldest=3)]) is None
    assert undeclared([extent(3, 10, 12, oldest=2, **retired)]) is None
