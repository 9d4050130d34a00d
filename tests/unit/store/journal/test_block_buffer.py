"""What a block is to hold: once it is written, the next one begins with nothing."""

from __future__ import annotations

from vouchmq.store.journal.block_buffer import BlockBuffer
from vouchmq.store.journal.segment import Segment


def full() -> BlockBuffer:
    """One with something of everything."""
    buffer = BlockBuffer()
    buffer.runs += (0, 1, 1)
    buffer.groups.append(((5,), 1, 1))
    buffer.raws.append(b"raw")
    buffer.written_ms = 1
    buffer.moves += (0, 1, 1)
    buffer.moved_raws.append(b"moved")
    buffer.arrivals.append(1)
    buffer.settle(5, [1])
    buffer.settle(5, range(10, 20))
    buffer.rewritten.append((5, [2]))
    buffer.retired_early.append(Segment(1, 2, 3, 4))
    buffer.defines.append(b"definition")
    buffer.drops.append(6)
    buffer.dropped_again.append(7)
    buffer.marks[5] = 1
    buffer.marks_before[5] = 0
    buffer.has_barrier = True
    buffer.place(5, 1, 1, 1)
    return buffer


def said(buffer: BlockBuffer) -> list[object]:
    """All that it holds."""
    return [
        *(buffer.runs, buffer.groups, buffer.raws, buffer.written_ms, buffer.moves),
        *(buffer.moved_raws, buffer.arrivals, buffer.settles, buffer.settled_ranges),
        *(buffer.rewritten, buffer.retired_early, buffer.defines, buffer.drops),
        *(buffer.dropped_again, buffer.marks, buffer.marks_before, buffer.has_barrier),
        buffer.positions,
    ]


def test_nothing_is_left_of_a_block_that_was_written() -> None:
    buffer = full()
    assert all(said(buffer))
    buffer.clear()
    assert said(buffer) == said(BlockBuffer())
    assert buffer.encode((), ()) == ([], 0)


def test_whoever_was_given_something_of_it_keeps_that() -> None:
    buffer = full()
    settles, marks, raws = buffer.settles, buffer.marks, buffer.raws
    buffer.clear()
    assert (settles, marks, raws) == ({5: [1]}, {5: 1}, [b"raw"])


def test_positions_of_a_run_alone_go_with_it() -> None:
    buffer = BlockBuffer()
    buffer.runs += (0, 1, 1)
    buffer.place(5, 1, 1, 1)
    buffer.clear()
    assert buffer.positions is None
