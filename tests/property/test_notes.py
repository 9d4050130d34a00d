"""Random notes, moves of segments and restarts against a plain dict."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from tests.simulation.sim_disk import SimDisk
from tests.unit.store.journals import Owner
from vouchmq.store.compaction.compactor import Compactor
from vouchmq.store.recovery.recover import open_journal
from vouchmq.store.sync.group_commit import GroupCommit
from vouchmq.store.sync.worker import SyncInline

_scope = st.integers(1, 4)
_key = st.sampled_from([b"", b"a", b"b", b"\x00" * 9, b"long" * 20])
_value = st.sampled_from([b"", b"1", b"value" * 30, b"v" * 1500])


class NotesMachine(RuleBasedStateMachine):
    """A dict beside a journal with small segments; the dict is the owner, or the journal is."""

    @initialize(is_owner=st.booleans(), is_lazy=st.booleans(), seed=st.integers(0, 1 << 16))
    def begin(self, is_owner: bool, is_lazy: bool, seed: int) -> None:
        self.is_owner = is_owner
        self.whole_bytes = 0 if is_lazy else 1 << 30
        self.disk = SimDisk(seed)
        self.notes: dict[tuple[int, bytes], bytes] = {}
        self.scopes = {n: n for n in range(1, 5)}  # ids of those that live now
        self.next_scope = 5
        self.waiting: list[int] = []
        # Fills before the last sync and since: a file goes when two syncs have said that it may.
        self.fills = [0, 0]
        self.open()

    def open(self) -> dict[int, dict[bytes, bytes]]:
        self.journal, recovered = open_journal(
            self.disk,
            segment_size_bytes=4096,
            wall_ms=lambda: 0,
            whole_bytes=self.whole_bytes,
        )
        if self.is_owner:
            self.journal.ask(Owner(list, lambda scope, key: self.notes.get((scope, key))))
        self.compactor = Compactor(self.journal, self.corrupted)
        self.commit = GroupCommit(
            self.journal,
            SyncInline(),
            on_synced=lambda _: None,
            on_failed=lambda number: self.corrupted("sync", str(number)),
            clock=lambda: 0.0,
        )
        return recovered.notes

    def corrupted(self, name: str, why: str) -> None:
        raise AssertionError(f"{name}: {why}")

    @rule(scope=_scope, key=_key, value=_value)
    def note(self, scope: int, key: bytes, value: bytes) -> None:
        self.journal.note(self.scopes[scope], key, value)
        self.notes[self.scopes[scope], key] = value

    @rule(scope=_scope, key=_key)
    def unnote(self, scope: int, key: bytes) -> None:
        self.journal.unnote(self.scopes[scope], key)
        self.notes.pop((self.scopes[scope], key), None)

    @rule(scope=_scope)
    def drop(self, scope: int) -> None:
        self.journal.drop_queue(self.scopes[scope])
        gone, self.scopes[scope] = self.scopes[scope], self.next_scope
        self.next_scope += 1
        self.notes = {key: value for key, value in self.notes.items() if key[0] != gone}

    @rule(count=st.integers(1, 6), keeps_one=st.booleans())
    def fill(self, count: int, keeps_one: bool) -> None:
        self.fills[1] += 1
        first = self.journal.append_run((1000,), b"tail", [b"x" * 900] * count)
        lsns = list(range(first, first + count))
        self.journal.write()
        self.journal.settle(1000, lsns[1:] if keeps_one else lsns)
        if keeps_one:
            self.waiting.append(first)
        if len(self.waiting) > 3:
            self.journal.settle(1000, [self.waiting.pop(0)])

    @rule(octets=st.sampled_from((300, 5000)), steps=st.integers(1, 6))
    def compact(self, octets: int, steps: int) -> None:
        for _ in range(steps):
            self.compactor.step(octets)
            self.journal.write()

    @rule()
    def sync(self) -> None:
        self.fills = [self.fills[1], 0]
        self.journal.write()
        self.commit.request()
        while not self.commit.is_idle:
            self.commit.on_readable()

    @rule()
    def restart(self) -> None:
        self.sync()
        self.journal.close()
        self.disk.crash(0)
        found = self.open()
        flat = {(scope, key): v for scope, notes in found.items() for key, v in notes.items()}
        assert flat == self.notes
        assert all(found.values())

    @invariant()
    def files_are_few(self) -> None:
        if hasattr(self, "disk"):
            assert len(self.journal.chain.generations) - sum(self.fills) < 40

    def teardown(self) -> None:
        if hasattr(self, "disk"):
            self.restart()


TestNotes = NotesMachine.TestCase
TestNotes.settings = settings(max_examples=80, stateful_step_count=50, deadline=None)
