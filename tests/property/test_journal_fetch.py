"""Random turns, moves and restarts: whatever is live can be read back by its LSN, and is right."""

from __future__ import annotations

import errno
from collections.abc import Sequence
from itertools import chain

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from tests.simulation.sim_disk import SimDisk
from vouchmq.store.errors import WriteFailed
from vouchmq.store.recovery.recover import Recovered, open_journal
from vouchmq.store.sync.group_commit import GroupCommit
from vouchmq.store.sync.worker import SyncInline

QUEUES = (1, 2, 3)
_picks = st.lists(st.integers(0, 500), min_size=1, max_size=20)


class FetchMachine(RuleBasedStateMachine):
    """A dict of live copies beside a journal with small segments."""

    @initialize(size=st.sampled_from((1024, 4096, 1 << 16)), seed=st.integers(0, 1 << 16))
    def begin(self, size: int, seed: int) -> None:
        self.size = size
        self.disk = SimDisk(seed)
        self.now = 1000
        self.contents: dict[int, tuple[bytes, bytes]] = {}
        self.arrived: dict[int, int] = {}
        self.live: dict[int, set[int]] = {}  # queues of each LSN
        self.open()

    def open(self) -> Recovered:
        self.journal, recovered = open_journal(
            self.disk, segment_size_bytes=self.size, wall_ms=self.wall_ms
        )
        self.commit = GroupCommit(
            self.journal,
            SyncInline(),
            on_synced=lambda _: None,
            on_failed=lambda number: self.fail(number),
            clock=lambda: 0.0,
        )
        return recovered

    def wall_ms(self) -> int:
        self.now += 1
        return self.now

    def fail(self, number: int) -> None:
        raise AssertionError(number)

    @rule(
        queue_ids=st.sets(st.sampled_from(QUEUES), min_size=1),
        tail=st.sampled_from((b"", b"a", b"\x04some\x03key")),
        sizes=st.lists(st.sampled_from((0, 1, 40, 41, 900, 5000)), min_size=1, max_size=30),
        is_even=st.booleans(),
        is_lost=st.booleans(),
    )
    def publish(
        self, queue_ids: set[int], tail: bytes, sizes: list[int], is_even: bool, is_lost: bool
    ) -> None:
        first = self.journal.next_lsn
        if is_even:
            sizes = sizes[:1] * len(sizes)
        raws = [(b"%d|" % (first + n)).ljust(size, b".")[:size] for n, size in enumerate(sizes)]
        self.journal.append_run(tuple(sorted(queue_ids)), tail, raws)
        if is_lost and self.size < 1 << 16:
            self.disk.fail_next("write", errno.ENOSPC)
            try:
                self.journal.write()
            except WriteFailed as error:
                assert error.first_lsn <= first
                return
            finally:
                self.disk.fail.clear()
        self.journal.write()
        for lsn, raw in enumerate(raws, start=first):
            self.contents[lsn] = (raw, tail)
            self.arrived[lsn] = self.now
            self.live[lsn] = set(queue_ids)

    @rule(picks=_picks, queue_id=st.sampled_from(QUEUES))
    def settle(self, picks: list[int], queue_id: int) -> None:
        mine = [lsn for lsn, queue_ids in self.live.items() if queue_id in queue_ids]
        chosen = sorted({mine[pick % len(mine)] for pick in picks}) if mine else []
        self.gone(queue_id, chosen)

    @rule(queue_id=st.sampled_from(QUEUES), share=st.integers(1, 4))
    def consume(self, queue_id: int, share: int) -> None:
        """The oldest part of a queue goes, so that segments do."""
        mine = sorted(lsn for lsn, queue_ids in self.live.items() if queue_id in queue_ids)
        self.gone(queue_id, mine[: len(mine) * share // 4])

    def gone(self, queue_id: int, lsns: Sequence[int]) -> None:
        if lsns:
            self.journal.settle(queue_id, lsns)
            self.journal.write()
        for lsn in lsns:
            self.live[lsn].discard(queue_id)
            if not self.live[lsn]:
                del self.live[lsn]

    @rule(picks=_picks, is_one_block=st.booleans())
    def move(self, picks: list[int], is_one_block: bool) -> None:
        live = sorted(self.live)
        for lsn in sorted({live[pick % len(live)] for pick in picks} if live else ()):
            raw, tail = self.contents[lsn]
            queue_ids = tuple(sorted(self.live[lsn]))
            self.journal.move_run(queue_ids, tail, lsn, [raw], self.arrived[lsn])
            if not is_one_block:
                self.journal.write()
        self.journal.write()

    @rule()
    def sync(self) -> None:
        self.commit.request()
        while not self.commit.is_idle:
            self.commit.on_readable()

    @rule(count=st.integers(1, 3))
    def take(self, count: int) -> None:
        self.journal.take(count)

    @rule()
    def restart(self) -> None:
        self.sync()
        self.journal.close()
        self.disk.crash(0)
        recovered = self.open()
        assert recovered.report.damaged == []
        for queue_id in QUEUES:
            mine = sorted(lsn for lsn, queue_ids in self.live.items() if queue_id in queue_ids)
            queue = recovered.queues.get(queue_id)
            spans = queue.spans if queue is not None else []
            assert list(chain.from_iterable(spans)) == mine
            found = queue.messages if queue is not None else []
            assert found == [(lsn, *self.contents[lsn]) for lsn in mine]

    @invariant()
    def all_live_can_be_read(self) -> None:
        if not hasattr(self, "live"):
            return
        lsns = sorted(self.live)
        assert self.journal.fetch(lsns) == [self.contents[lsn] for lsn in lsns]
        arrived = [at for *_, raws, at in self.journal.fetch_runs(lsns, 1 << 62) for _ in raws]
        assert arrived == [self.arrived[lsn] for lsn in lsns]
        for queue_id in QUEUES:
            mine = [lsn for lsn in lsns if queue_id in self.live[lsn]][:7]
            assert self.journal.fetch(mine) == [self.contents[lsn] for lsn in mine]

    def teardown(self) -> None:
        if hasattr(self, "live"):
            self.restart()
            self.all_live_can_be_read()


FetchMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestFetch = FetchMachine.TestCase
