"""Blocks become bodies of records, and are the same bytes behind each other again."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from vouchmq.store.replication.cutting import Cut, Cutter

LIMIT = 16


def cuts(blocks: list[tuple[int, list[bytes]]]) -> list[Cut]:
    """Cut blocks, each with its generation; LSNs are ten times their numbers."""
    cutter = Cutter(LIMIT, 100, 1000)
    ends: dict[int, int] = {}
    for number, (generation, body) in enumerate(blocks, 101):
        offset = ends.get(generation, 0)
        cutter.add(generation, offset, number, number * 10, body)
        ends[generation] = offset + sum(map(len, body))
    found = []
    while cutter.size_bytes:
        found.append(cutter.cut())
    return found


@given(
    st.lists(
        st.lists(st.lists(st.binary(min_size=1, max_size=30), min_size=1, max_size=4), max_size=8),
        max_size=3,
    )
)
def test_cut_and_joined_it_is_the_journal(segments: list[list[list[bytes]]]) -> None:
    blocks = [(generation, body) for generation, some in enumerate(segments) for body in some]
    found = cuts(blocks)
    streams = {generation: b"" for generation, _ in blocks}
    for cut in found:
        assert len(streams[cut.generation]) == cut.offset
        body = b"".join(cut.body)
        assert 0 < len(body) <= LIMIT
        streams[cut.generation] += body
    for generation, some in enumerate(segments):
        if some:
            assert streams[generation] == b"".join(part for body in some for part in body)


@given(st.lists(st.binary(min_size=1, max_size=60), min_size=1, max_size=12))
def test_a_record_speaks_for_the_blocks_that_are_whole_with_it(bodies: list[bytes]) -> None:
    found = cuts([(1, [body]) for body in bodies])
    ends = {}
    end = 0
    for number, body in enumerate(bodies, 101):
        end += len(body)
        ends[number] = end
    for cut in found:
        written = cut.offset + sum(map(len, cut.body))
        assert cut.block == max([100, *(n for n, end in ends.items() if end <= written)])
        assert cut.lsn == cut.block * 10


def test_blocks_share_a_record_while_they_fit() -> None:
    found = cuts([(1, [b"a" * 8]), (1, [b"b" * 8]), (1, [b"c"])])
    assert [b"".join(cut.body) for cut in found] == [b"a" * 8 + b"b" * 8, b"c"]
    assert [(cut.part, cut.parts) for cut in found] == [(1, 1), (1, 1)]


def test_segments_share_none() -> None:
    found = cuts([(1, [b"a"]), (2, [b"b"])])
    assert [cut.generation for cut in found] == [1, 2]


def test_a_large_block_comes_in_parts_and_shares_none_of_them() -> None:
    found = cuts([(1, [b"a"]), (1, [b"b" * 20, b"c" * 20]), (1, [b"d"])])
    assert [b"".join(cut.body) for cut in found] == [
        b"a",
        b"b" * 16,
        b"b" * 4 + b"c" * 12,
        b"c" * 8,
        b"d",
    ]
    assert [(cut.part, cut.parts, cut.block) for cut in found] == [
        (1, 1, 101),
        (1, 3, 101),
        (2, 3, 101),
        (3, 3, 102),
        (1, 1, 103),
    ]


def test_the_next_block_is_the_one_that_is_in_parts() -> None:
    cutter = Cutter(LIMIT, 0, 0)
    cutter.add(1, 0, 1, 1, [b"a" * 17])
    cutter.add(1, 17, 2, 2, [b"b"])
    cutter.cut()
    assert (cutter.next_number, cutter.size_bytes) == (1, 2)
    cutter.cut()
    assert (cutter.next_number, cutter.size_bytes) == (2, 1)
