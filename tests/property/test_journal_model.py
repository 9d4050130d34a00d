"""Random turns against plain lists: what is written is what a clean restart finds."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.simulation.sim_disk import SimDisk
from vouchmq.store.recovery.recover import open_journal

Message = tuple[int, bytes, bytes]

_run = st.tuples(
    st.sets(st.integers(1, 4), min_size=1),
    st.sampled_from((b"", b"a", b"\x04some\x03key")),
    st.lists(st.binary(max_size=200), min_size=1, max_size=6),
)
_turn = st.tuples(
    st.lists(_run, max_size=4),
    st.lists(st.integers(0, 99), max_size=12),  # which live copies are settled
    st.one_of(st.none(), st.integers(1, 4)),  # which queue's copies were delivered
    st.one_of(st.none(), st.integers(1, 4)),  # which queue is purged
    st.integers(0, 3),  # LSNs taken for messages that are not stored
)


@given(turns=st.lists(_turn, max_size=25), size=st.sampled_from((1024, 4096, 1 << 16)))
@settings(max_examples=150, deadline=None)
def test_a_clean_restart_finds_what_lists_would_hold(
    turns: list[
        tuple[list[tuple[set[int], bytes, list[bytes]]], list[int], int | None, int | None, int]
    ],
    size: int,
) -> None:
    disk = SimDisk()
    journal, _ = open_journal(disk, segment_size_bytes=size, wall_ms=lambda: 0)
    queues: dict[int, list[Message]] = {n: [] for n in range(1, 5)}
    marks = dict.fromkeys(queues, 0)
    for runs, picks, delivered, purged, taken in turns:
        for queue_ids, tail, raws in runs:
            first = journal.append_run(tuple(sorted(queue_ids)), tail, list(raws))
            for lsn, raw in enumerate(raws, start=first):
                for queue_id in queue_ids:
                    queues[queue_id].append((lsn, raw, tail))
        journal.take(taken)
        for queue_id, messages in queues.items():
            gone = {pick for pick in picks if pick < len(messages)}
            journal.settle(queue_id, [messages[pick][0] for pick in sorted(gone)])
            queues[queue_id] = [m for n, m in enumerate(messages) if n not in gone]
        if delivered and queues[delivered]:
            marks[delivered] = max(marks[delivered], queues[delivered][-1][0])
            journal.delivered(delivered, marks[delivered])
        if purged:
            journal.settle(purged, [lsn for lsn, _, _ in queues[purged]])
            queues[purged] = []
        journal.write()
        ticket = journal.begin_sync()
        for target in ticket.targets:
            target.sync()
        journal.end_sync(ticket)
    for _ in range(2):
        disk.crash(0)
        journal, recovered = open_journal(disk, segment_size_bytes=size, wall_ms=lambda: 0)
        assert recovered.report.damaged == []
        for queue_id, messages in queues.items():
            queue = recovered.queues.get(queue_id)
            assert (queue.messages if queue else []) == messages
            assert (queue.delivered_lsn if queue else 0) == marks[queue_id]
