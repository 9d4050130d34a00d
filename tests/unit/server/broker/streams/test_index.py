"""Where the messages of a stream are, held against lists; and what a start makes of notes."""

from __future__ import annotations

import random

import pytest

from vouchmq.server.broker.streams.index import (
    CHUNK_MESSAGES,
    CHUNK_OCTETS,
    Rows,
    StreamIndex,
    chunk_notes,
)

OFFSET_MS = 5_000_000


def journal_ms(loop_ms: int) -> int:
    return loop_ms + OFFSET_MS


def loop_ms(journal: int) -> int:
    return journal - OFFSET_MS


class Model:
    """A stream as a list of (offset, LSN), beside the index under test, and its notes."""

    def __init__(self, seed: int, segment_octets: int = 4000) -> None:
        self.draw = random.Random(seed)
        self.index = StreamIndex(segment_octets)
        self.lsns: dict[int, int] = {}
        self.notes: dict[bytes, bytes] = {}
        self.lsn = 1
        self.now = 1000

    def append(self) -> None:
        self.lsn += self.draw.choice((0, 0, 1, 7))
        self.now += self.draw.randrange(50)
        count = self.draw.randint(1, 9)
        first = self.index.next_offset
        chunk = self.index.append(self.lsn, count, count * self.draw.randint(50, 200), self.now)
        self.lsns |= {first + n: self.lsn + n for n in range(count)}
        self.lsn += count
        if chunk is not None:
            self.notes[chunk.key] = chunk.value(journal_ms)

    def drop_oldest(self) -> None:
        if self.index.segment_count > 1:
            segment = self.index.oldest_segment()
            self.index.drop(segment)
            for chunk in segment:
                self.notes.pop(chunk.key)
            first = self.index.first_offset
            self.lsns = {offset: lsn for offset, lsn in self.lsns.items() if offset >= first}

    def refuse(self) -> None:
        """The newest messages never were, nor notes of chunks that they began."""
        first = self.lsn - self.draw.randrange(20)
        self.index.forget_from(first)
        self.lsns = {offset: lsn for offset, lsn in self.lsns.items() if lsn < first}
        if not self.lsns:
            self.notes.clear()
        chunks = {chunk.key: chunk for chunk in self.index.chunks}
        self.notes = {key: value for key, value in self.notes.items() if key in chunks}
        if self.index.chunks and not self.index.chunks[-1].is_full:
            last = self.index.chunks[-1]
            self.notes[last.key] = last.value(journal_ms)

    def spans(self) -> list[range | list[int]]:
        """As recovery gives them: ranges and lists of LSNs in order."""
        lsns = sorted(self.lsns.values())
        spans: list[range | list[int]] = []
        at = 0
        while at < len(lsns):
            end = at + self.draw.randint(1, 12)
            some = lsns[at:end]
            whole = some[-1] - some[0] + 1 == len(some)
            spans.append(range(some[0], some[-1] + 1) if whole else some)
            at = end
        return spans

    def check(self, index: StreamIndex) -> None:
        assert index.next_offset == (max(self.lsns) + 1 if self.lsns else index.next_offset)
        assert index.first_offset == min(self.lsns, default=index.next_offset)
        assert index.octets == sum(chunk.octets for chunk in index.chunks)
        assert index.segment_count == sum(chunk.opens_segment for chunk in index.chunks)
        found: dict[int, int] = {}
        for chunk in index.chunks:
            lsns = chunk.rows.take(0, chunk.rows.count)
            found |= {chunk.first_offset + n: lsn for n, lsn in enumerate(lsns)}
        assert found == self.lsns
        for offset, lsn in self.draw.sample(sorted(self.lsns.items()), min(5, len(self.lsns))):
            assert index.offset_of(lsn) == offset
            at = index.chunk_from(offset)
            assert at is not None
            assert at.rows.take(offset - at.first_offset, 1) == [lsn]


@pytest.mark.parametrize("seed", range(30))
def test_index_agrees_with_lists(seed: int) -> None:
    """STREAM-02: also over refusals, retention and starts, whatever comes when."""
    model = Model(seed)
    for _ in range(120):
        deed = model.draw.random()
        if deed < 0.85:
            model.append()
        elif deed < 0.92:
            model.drop_oldest()
        else:
            model.refuse()
        model.check(model.index)
        if model.draw.random() < 0.1:
            started = StreamIndex(model.index.segment_octets)
            started.restore(model.spans(), chunk_notes(model.notes), loop_ms)
            model.check(started)
            for old, new in zip(model.index.chunks, started.chunks, strict=True):
                if new.is_measured:
                    assert (old.octets, old.first_ms, old.last_ms) == (
                        new.octets,
                        new.first_ms,
                        new.last_ms,
                    )
                assert old.opens_segment == new.opens_segment


def filled(*counts: int) -> tuple[StreamIndex, dict[bytes, bytes]]:
    """An index of full chunks with so many messages of 100 octets, from LSN 10 on, gaps between."""
    index, notes, lsn = StreamIndex(), {}, 10
    for count in counts:
        index.segment_octets = count * 100
        chunk = index.append(lsn, count, count * 100, 7)
        assert chunk is not None
        notes[chunk.key] = chunk.value(journal_ms)
        lsn += count + 5
    return index, notes


def test_chunk_that_has_lost_its_first_messages_keeps_the_offsets_of_the_others() -> None:
    """A start in the midst of retention."""
    _, notes = filled(10, 10)
    started = StreamIndex()
    started.restore([range(16, 20), range(25, 35)], chunk_notes(notes), loop_ms)
    assert (started.first_offset, started.next_offset) == (6, 20)
    assert started.offset_of(16) == 6
    assert started.octets == 400 + 1000


def test_what_is_lost_in_the_midst_leaves_gaps() -> None:
    """Blocks say the offsets of what they bring: two holes in one chunk, and one that is full."""
    _, notes = filled(10, 10)
    said = {10: 0, 14: 4, 19: 9, 26: 11}

    def split(first: int, count: int) -> list[tuple[int, int, int | None]]:
        return [(first, count, said[first])]

    started = StreamIndex()
    rows = [range(10, 12), range(14, 16), range(19, 20), range(26, 35)]
    started.restore(rows, chunk_notes(notes), loop_ms, split)
    assert [started.offset_of(lsn) for lsn in (11, 14, 15, 19, 26, 34)] == [1, 4, 5, 9, 11, 19]
    assert started.next_offset == 20
    # Only of the last one it is known how large it is: what a start had not to count.
    assert [chunk.is_measured for chunk in started.chunks] == [False, False, False, True]


def test_what_older_blocks_do_not_tell_goes_before_what_newer_ones_do() -> None:
    started = StreamIndex()
    split = lambda first, count: [(first, count, 7 if first == 30 else None)]  # noqa: E731
    started.restore([range(10, 12), range(30, 32)], [], loop_ms, split)
    assert [started.offset_of(lsn) for lsn in (10, 11, 30, 31)] == [5, 6, 7, 8]


def test_lost_chunk_leaves_a_gap() -> None:
    """Damage: the offsets behind it do not move."""
    _, notes = filled(10, 10, 10)
    started = StreamIndex()
    started.restore([range(10, 20), range(40, 50)], chunk_notes(notes), loop_ms)
    assert started.count == 20
    assert started.offset_of(40) == 20
    chunk = started.chunk_from(15)
    assert chunk is not None
    assert chunk.first_offset == 20
    # What is there is counted, whatever happens to it.
    started.append(60, 3, 300, 8)
    assert started.count == 23
    started.forget_from(61)
    assert started.count == 21
    started.drop(started.oldest_segment())
    assert started.count == 11


def test_lost_end_is_not_given_again() -> None:
    """Offsets that clients have seen stand for nothing else later."""
    _, notes = filled(10, 10)
    started = StreamIndex()
    started.restore([range(10, 20)], chunk_notes(notes), loop_ms)
    assert started.next_offset == 20
    started.append(90, 1, 100, 8)
    assert started.offset_of(90) == 20


def test_lost_notes_cost_sizes_only() -> None:
    index = StreamIndex()
    index.restore([range(5, 9), [11, 13]], [], loop_ms)
    assert (index.first_offset, index.next_offset) == (0, 6)
    assert [chunk.is_measured for chunk in index.chunks] == [False]


def test_chunks_are_bounded() -> None:
    """By octets, by messages, and by rows where each message has one."""
    index = StreamIndex(1 << 40)
    for _ in range(3):
        index.append(index.next_offset, 1, CHUNK_OCTETS, 0)
    assert len(index.chunks) == 3
    for at in range(0, 3 * CHUNK_MESSAGES, 1024):
        index.append(1 << 20 | at, 1024, 1024, 0)
    assert len(index.chunks) == 6
    for _ in range(20_000):
        index.append(1 << 30 | 2 * index.next_offset, 1, 1, 0)
    assert len(index.chunks) == 9


def test_ten_million_messages_take_little_memory() -> None:
    """They are published in runs, as publishers do; the same is true in one's and two's."""
    index = StreamIndex()
    lsn = 1
    for _ in range(100_000):
        index.append(lsn, 100, 100 * 300, 0)
        lsn += 101
    assert index.count == 10_000_000
    rows = sum(len(chunk.rows) for chunk in index.chunks)
    assert rows == 100_000
    # Sixteen octets a row, and some hundred a chunk.
    assert len(index.chunks) < 3200


def test_rows_find_what_is_below() -> None:
    rows = Rows()
    for first, count in ((5, 3), (8, 2), (20, 1)):
        rows.add(first, count)
    assert len(rows) == 2
    assert [rows.below(lsn) for lsn in (1, 5, 6, 10, 15, 20, 21)] == [0, 0, 1, 5, 5, 5, 6]
    assert rows.take(3, 10) == [8, 9, 20]
    rows.cut(2)
    assert (rows.first, rows.last, rows.take(0, 9)) == (5, 6, [5, 6])
