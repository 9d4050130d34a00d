"""A store on a bad disk and what a strict observer knows about it.

The observer keeps three things apart: what must be there (confirmed, or seen after a
recovery), what must not (durably settled, lost at an earlier recovery, never published),
and what is uncertain. `recover` checks all that `docs/internals/journal.md` promises:
- every confirmed copy is there unless it was settled, with its octets, once, in order
- nothing that was durably settled, lost before or never published is there
- what one `write` held is there as a whole, and only if all earlier writes are
- delivery marks and definitions never go back
- a note that was synced is there with its newest value, and one that was taken back is not
- messages keep the time at which they came, wherever they were moved
- recovering again gives the same
- a crash alone is never reported as damage
- what was sealed is found so, and anything that differs then is reported as damage
"""

from __future__ import annotations

import errno
import random
from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import dataclass, field

from tests.open_classes import open_journals
from tests.simulation.sim_disk import PowerCut, SimDisk
from tests.unit.store.journals import Owner
from vouchmq.store.compaction.compactor import Compactor
from vouchmq.store.errors import UnsupportedFormat, WriteFailed
from vouchmq.store.journal.journal import Journal
from vouchmq.store.journal.segments import SegmentChain
from vouchmq.store.journal.staging import StagedContent
from vouchmq.store.recovery.recover import Recovered, open_journal
from vouchmq.store.sync.group_commit import GroupCommit
from vouchmq.store.sync.worker import Completion, SyncInline, sync_all

Copy = tuple[int, int]  # queue id, LSN
Key = tuple[int, bytes]  # scope id, key
# Keys that are noted, so that the same come again and again.
KEYS = tuple(b"key%d" % n for n in range(6))


class LateWorker(SyncInline):
    """Syncs when the request comes or when it is asked to finish, as the test has it."""

    def __init__(self) -> None:
        super().__init__()
        self.is_late = False
        self._request: tuple[int, Sequence[object]] | None = None
        self._answer: Completion | None = None

    def submit(self, sequence: int, targets: Sequence[object]) -> None:
        if self.is_late:
            self._request = (sequence, targets)
        else:
            self._answer = Completion(sequence, self._sync(targets))

    def finish(self) -> None:
        if self._request is not None:
            sequence, targets = self._request
            self._request = None
            self._answer = Completion(sequence, self._sync(targets))

    def reap(self) -> Completion | None:
        answer, self._answer = self._answer, None
        return answer

    @staticmethod
    def _sync(targets: Sequence[object]) -> int:
        return sync_all(targets)  # type: ignore[arg-type]


@dataclass
class Block:
    """What one write held."""

    lsn: int = 0
    copies: set[Copy] = field(default_factory=set)
    settled: set[Copy] = field(default_factory=set)
    dropped: set[int] = field(default_factory=set)
    marks: dict[int, int] = field(default_factory=dict)
    definitions: list[bytes] = field(default_factory=list)
    notes: dict[Key, bytes | None] = field(default_factory=dict)
    unnoted: set[Key] = field(default_factory=set)


class StoreModel:
    """One store, one observer. LSNs come back after a crash, so contents are unique."""

    def __init__(
        self, seed: int, *, segment_size_bytes: int = 4096, is_strict: bool = True
    ) -> None:
        self.seed = seed
        self.disk = SimDisk(seed, is_strict=is_strict)
        # The worst that can happen to what is never synced is that it is there all the same.
        self.disk.sticky_suffix = ".summary" if seed & 4 else ""
        self.segment_size_bytes = segment_size_bytes
        self.contents: dict[Copy, tuple[bytes, bytes]] = {}
        self.arrived: dict[Copy, int] = {}
        self.wall_ms = 1000
        self.live: set[Copy] = set()  # not settled, as the broker sees it
        self.maybe: set[Copy] = set()  # of failed writes: there or not
        self.marks: dict[int, int] = {}
        self.durable_marks: dict[int, int] = {}
        self.definitions: list[bytes] = []
        self.durable_definitions: list[bytes] = []
        # What each key may say after a crash: what is durable, then what was written since.
        self.durable_notes: dict[Key, bytes | None] = {}
        self.notes: dict[Key, bytes] = {}  # as the broker sees it
        # Of failed writes: how many blocks there were, and what may be on the disk all the same.
        self.doubtful_notes: list[tuple[int, Key, bytes | None]] = []
        self.doubtful_scopes: set[int] = set()
        self.is_ready = self.is_owner = False
        # Every other store believes summaries as early as it can.
        self.whole_bytes = 0 if seed & 2 else 3 * segment_size_bytes
        self.believed = 0
        self.queues: set[int] = {1, 2, 3}
        self.next_queue = 4
        self.counter = 0
        self.base: set[Copy] = set()  # what the last recovery found
        self.blocks: list[Block] = []  # written since then
        self.block = Block()  # buffered
        self.synced_blocks = 0
        self.covered: list[int] = []  # blocks written when each sync was begun
        self.errno = 0
        self.is_sealed = False
        self.seals = 0
        self.recoveries = 0
        self.moved_messages = 0
        self.carried_notes = 0
        self._start()
        self._own()

    def _start(self) -> Recovered:
        # Half of the brokers remember their notes themselves, the others leave it to the journal.
        self.is_ready, self.is_owner = False, bool(self.seed & 1)
        self.worker = LateWorker()
        with open_journals():
            self.journal, recovered = open_journal(
                self.disk,
                segment_size_bytes=self.segment_size_bytes,
                wall_ms=self._now_ms,
                whole_bytes=self.whole_bytes,
            )
        self.staged: StagedContent | None = None
        chain = self.journal.chain
        chain.whole_bytes, chain.piece_bytes = 400 if self.seed & 8 else 2000, 150
        chain.staging.piece_bytes, chain.staging.ahead_bytes = 1000, 700
        # With little room around them more contents are staged ahead in the active segment.
        chain.staging.room_bytes = 200 if self.seed & 4 else 2000
        self._watch(self.journal)
        self.compactor = Compactor(self.journal, _refuse_corrupt)
        self.commit = GroupCommit(
            self.journal,
            self.worker,
            on_synced=self._synced,
            on_failed=self._failed,
            clock=lambda: 0.0,
        )
        return recovered

    def _own(self) -> None:
        self.is_ready = True
        if self.is_owner:
            self.journal.ask(Owner(lambda: self.definitions, self._recall))

    def _now_ms(self) -> int:
        self.wall_ms += 1
        return self.wall_ms

    def _recall(self, scope_id: int, key: bytes) -> bytes | None:
        assert self.is_ready, "the owner is asked before it knows anything"
        return self.notes.get((scope_id, key))

    def _watch(self, journal: Journal) -> None:
        begin = journal.begin_sync

        def begin_sync() -> object:
            ticket = begin()
            self.covered.append(len(self.blocks))
            return ticket

        journal.begin_sync = begin_sync  # type: ignore[method-assign,assignment]

    def _synced(self, watermark: int) -> None:
        # A sync may have been begun again already by the time the last one is told.
        index = self.covered.pop(0)
        for block in self.blocks[self.synced_blocks : index]:
            assert block.lsn <= watermark
            _note_down(self.durable_notes, block)
            self.durable_marks.update(block.marks)
            self.durable_definitions += block.definitions
        self.synced_blocks = index
        self.doubtful_notes = [doubt for doubt in self.doubtful_notes if doubt[0] >= index]

    def _failed(self, number: int) -> None:
        self.errno = number

    # What a broker does.

    def publish(self, queue_ids: Sequence[int], sizes: Sequence[int]) -> None:
        ids = tuple(sorted(set(queue_ids) & self.queues))
        if not ids:
            return
        self.counter += 1
        tail = b"tail%d" % (self.counter % 3)
        raws = []
        for size in sizes:
            self.counter += 1
            raws.append((b"%d|" % self.counter).ljust(size, b"x"))
        staged = self.staged
        if staged is not None and staged.go_on(lambda: True):
            raws.append(staged.raw)
            staged.is_due, self.staged = True, None
        first = self.journal.append_run(ids, tail, raws)
        for lsn, raw in enumerate(raws, start=first):
            for queue_id in ids:
                self.contents[queue_id, lsn] = (raw, tail)
                self.live.add((queue_id, lsn))
                self.block.copies.add((queue_id, lsn))

    def stage(self, size: int) -> None:
        """Begin to write a content that a later publish stores; or give that up."""
        if self.staged is not None:
            self.staged.is_due, self.staged = True, None
            return
        self.counter += 1
        self.staged = self.journal.stage((b"%d|" % self.counter).ljust(size, b"y"))

    def take(self, count: int) -> None:
        self.journal.take(count)

    def settle(self, picks: Sequence[int]) -> None:
        live = sorted(self.live - self.maybe)
        chosen = {live[pick % len(live)] for pick in picks} if live else set()
        for queue_id in sorted({queue_id for queue_id, _ in chosen}):
            lsns = sorted(lsn for q, lsn in chosen if q == queue_id)
            self.journal.settle(queue_id, lsns)
        self.live -= chosen
        self.block.settled |= chosen

    def settle_queue(self, queue_id: int) -> None:
        chosen = {copy for copy in self.live - self.maybe if copy[0] == queue_id}
        if chosen:
            self.journal.settle(queue_id, sorted(lsn for _, lsn in chosen))
        self.live -= chosen
        self.block.settled |= chosen

    def deliver(self, queue_id: int) -> None:
        lsns = [lsn for q, lsn in self.live if q == queue_id]
        if lsns and queue_id in self.queues:
            mark = max(lsns)
            self.journal.delivered(queue_id, mark)
            self.marks[queue_id] = max(mark, self.marks.get(queue_id, 0))
            self.block.marks[queue_id] = self.marks[queue_id]

    def note(self, scope_id: int, pick: int, size: int) -> None:
        if scope_id not in self.queues:
            return
        key = KEYS[pick % len(KEYS)]
        self.counter += 1
        value = (b"%d|" % self.counter).ljust(size, b"n")
        self.journal.note(scope_id, key, value)
        self.notes[scope_id, key] = self.block.notes[scope_id, key] = value

    def unnote(self, scope_id: int, pick: int) -> None:
        key = KEYS[pick % len(KEYS)]
        if scope_id in self.queues:
            self.journal.unnote(scope_id, key)
            self.notes.pop((scope_id, key), None)
            self.block.notes[scope_id, key] = None
            self.block.unnoted.add((scope_id, key))

    def define(self) -> None:
        self.counter += 1
        record = b"def%06d" % self.counter
        self.definitions.append(record)
        self.block.definitions.append(record)
        self.journal.define(record)

    def drop_queue(self, queue_id: int) -> None:
        if queue_id not in self.queues:
            return
        self.queues.discard(queue_id)
        self.live = {copy for copy in self.live if copy[0] != queue_id}
        self.queues.add(self.next_queue)
        self.next_queue += 1
        self.journal.drop_queue(queue_id)
        self.block.dropped.add(queue_id)
        self.marks.pop(queue_id, None)
        self.block.marks.pop(queue_id, None)
        self.notes = {key: value for key, value in self.notes.items() if key[0] != queue_id}

    def compact(self, octets: int) -> None:
        """Let the compactor take a step; what is true does not change by it."""
        self.compactor.step(octets)
        self.moved_messages = max(self.moved_messages, self.compactor.counters.moved_messages)

    def write(self) -> None:
        block, self.block = self.block, Block()
        try:
            block.lsn = self.journal.write()
        except WriteFailed as error:
            self._lose(block, error)
            return
        finally:
            self.arrived |= dict.fromkeys(block.copies, self.wall_ms)
        self.blocks.append(block)
        self.carried_notes = max(self.carried_notes, self.journal.notes.carried_count)

    def _lose(self, block: Block, error: WriteFailed) -> None:
        assert all(error.first_lsn <= lsn <= error.last_lsn for _, lsn in block.copies)
        self.maybe |= block.copies
        self.live -= block.copies
        # A queue whose drop was not written has no copies for the broker, maybe on disk.
        self.maybe |= {copy for copy in self.contents if copy[0] in block.dropped}
        # Settles and marks ride with the next block, but the failed one may be on the disk.
        self.maybe |= block.settled
        self.block.settled |= block.settled - block.copies
        self.block.marks.update(block.marks)
        self._lose_notes(block)

    def _lose_notes(self, block: Block) -> None:
        """They were never noted, but keys that lost their value have lost it all the same."""
        at = len(self.blocks)
        self.doubtful_notes += ((at, key, value) for key, value in block.notes.items())
        self.doubtful_notes += ((at, key, None) for key in block.unnoted)
        self.doubtful_scopes |= block.dropped
        self.block.notes = dict.fromkeys(block.unnoted, None)
        self.block.unnoted = set(block.unnoted)
        written = dict(self.durable_notes)
        for each in (*self.blocks[self.synced_blocks :], self.block):
            _note_down(written, each)
        gone = self.doubtful_scopes
        self.notes = {k: v for k, v in written.items() if v is not None and k[0] not in gone}

    def request_sync(self, *, is_late: bool) -> None:
        self.worker.is_late = is_late
        if self.journal.wants_sync:
            self.commit.request()

    def finish_sync(self) -> None:
        self.worker.finish()
        self.commit.on_readable()

    # Ends and beginnings.

    def stop(self, syncs: int) -> None:
        """Stop in order; the end comes after so many syncs at the latest."""
        self.write()
        self.worker.is_late = False
        for _ in range(syncs):
            if self.errno:
                return
            if self.journal.seal():
                self.is_sealed = True
                return
            self.commit.request()
            self.finish_sync()

    def check_seal(self, draw: random.Random) -> None:
        """Whatever happens to the last file of a sealed store is told."""
        self.seals += 1
        disk = deepcopy(self.disk)
        disk.kill()
        active = self.journal.chain.active
        at = draw.randrange(active.offset)
        what = draw.choice(("removed", "cut", "flipped"))
        if what == "removed":
            disk.visible.pop(active.name)
        elif what == "cut":
            del disk.visible[active.name].visible[at:]
        else:
            disk.visible[active.name].visible[at] ^= 1 << draw.randrange(8)
        try:
            _, recovered = open_journal(
                disk, segment_size_bytes=self.segment_size_bytes, wall_ms=lambda: 0
            )
        except UnsupportedFormat as error:
            # Not one block of that segment is left, and its first octets tell of another version.
            assert what == "flipped", error
            assert active.name in str(error)
            return
        told = {each.segment for each in recovered.report.damaged}
        assert active.name in told, f"{active.name}, sealed, was {what} at {at}: {told}"
        assert not recovered.report.is_sealed

    def crash(self, seed: int, cuts: Sequence[int] = (), *, keeps_cache: bool = False) -> None:
        """Cut the power (or kill the process), then recover; `cuts` interrupt recoveries."""
        if keeps_cache:
            self.disk.kill()
        else:
            self.disk.crash(seed)
        for n, cut in enumerate(cuts):
            self.disk.crash_after = cut
            try:
                self._start()
            except PowerCut:
                self.disk.crash(seed + n + 1)
            else:
                self.disk.crash_after = None
        recovered = self._start()
        if self.is_sealed and not cuts:
            assert recovered.report.is_sealed, "the seal is gone"
        self._check(recovered)
        self._adopt(recovered)
        again = self._start()
        self._own()
        assert _state(again) == _state(recovered), "recovering twice gives another state"
        assert again.report.damaged == []
        if not self.whole_bytes:
            self.believed += again.report.unread_segments
            self._check_summaries(again)

    def _check_summaries(self, recovered: Recovered) -> None:
        """Reading everything must give what summaries gave, down to the counts of live copies."""
        disk = deepcopy(self.disk)
        for name in disk.listdir():
            if name.endswith(".summary"):
                disk.unlink(name)
        journal, whole = open_journal(
            disk,
            segment_size_bytes=self.segment_size_bytes,
            wall_ms=lambda: 0,
        )
        assert whole.report.unread_segments == 0
        assert _state(whole) == _state(recovered), "summaries tell another story"
        assert whole.report.blocks == recovered.report.blocks + 1
        facts = [_facts(each.chain) for each in (self.journal, journal)]
        assert facts[0] == facts[1][:-1], "summaries count something else"

    def _check(self, recovered: Recovered) -> None:
        assert recovered.report.damaged == [], recovered.report
        assert recovered.report.unroutable_messages == 0
        found = self._found(recovered)
        last = self._last_block(found)
        there, gone = self._expected(last)
        missing = there - found - self.maybe
        assert not missing, f"lost: {sorted(missing)[:5]} ({last} of {len(self.blocks)} blocks)"
        back = (found & gone) - self.maybe
        assert not back, f"came back: {sorted(back)[:5]}"
        unknown = found - there - self.maybe
        assert not unknown, f"never published or lost before: {sorted(unknown)[:5]}"
        self._check_arrivals(found)
        self._check_notes(recovered, last)
        self._check_marks(recovered)
        self._check_definitions(recovered)

    def _found(self, recovered: Recovered) -> set[Copy]:
        found = set()
        for queue_id, queue in recovered.queues.items():
            lsns = [lsn for lsn, _, _ in queue.messages]
            assert lsns == sorted(set(lsns)), "a queue is out of order or has a copy twice"
            for lsn, raw, tail in queue.messages:
                assert self.contents.get((queue_id, lsn)) == (raw, tail), "octets changed"
                found.add((queue_id, lsn))
        return found

    def _last_block(self, found: set[Copy]) -> int:
        """Return how many blocks since the last recovery are provably there."""
        last = self.synced_blocks
        for index, block in enumerate(self.blocks):
            if block.copies & found - self.maybe:
                last = max(last, index + 1)
        return last

    def _expected(self, last: int) -> tuple[set[Copy], set[Copy]]:
        there = set(self.base)
        gone: set[Copy] = set()
        for block in self.blocks[:last]:
            there |= block.copies
            gone |= block.settled | {copy for copy in there if copy[0] in block.dropped}
        there -= gone
        # Later blocks without copies of their own may have survived, settles and all.
        for block in self.blocks[last:]:
            optional = block.settled | {copy for copy in there if copy[0] in block.dropped}
            self.maybe |= optional
        return there, gone

    def _check_arrivals(self, found: set[Copy]) -> None:
        lsns = sorted({lsn for _, lsn in found})
        arrived = {lsn: self.arrived[queue_id, lsn] for queue_id, lsn in found}
        at = 0
        while at < len(lsns):
            for first, _, raws, when in self.journal.fetch_runs(lsns[at:], 4000):
                for lsn in range(first, first + len(raws)):
                    assert arrived[lsn] == when, f"the time of message {lsn} has changed"
                at += len(raws)

    def _check_notes(self, recovered: Recovered, last: int) -> None:
        """They must be those of one moment, at which at least `last` blocks were written."""
        found = {(s, key): v for s, notes in recovered.notes.items() for key, v in notes.items()}
        doubts = {(key, value) for _, key, value in self.doubtful_notes}
        state = dict(self.durable_notes)
        faults = []
        for number in range(self.synced_blocks, len(self.blocks) + 1):
            if number > self.synced_blocks:
                _note_down(state, self.blocks[number - 1])
            if number < last:
                continue
            wrong = [
                key
                for key in state.keys() | found.keys()
                if found.get(key) != state.get(key)
                and (key, found.get(key)) not in doubts
                and key[0] not in self.doubtful_scopes
            ]
            if not wrong:
                return
            faults.append((number, wrong[0], found.get(wrong[0]), state.get(wrong[0])))
        raise AssertionError(f"notes of no moment: {faults[:3]}")

    def _check_marks(self, recovered: Recovered) -> None:
        for queue_id, lsn in self.durable_marks.items():
            if queue_id in self.queues and queue_id in recovered.queues:
                mark = recovered.queues[queue_id].delivered_lsn
                assert mark >= lsn, f"redelivered flags of queue {queue_id} went back"
            elif queue_id in self.queues:
                raise AssertionError(f"the delivery mark of queue {queue_id} is lost")

    def _check_definitions(self, recovered: Recovered) -> None:
        found = list(dict.fromkeys(recovered.definitions))
        assert found == sorted(found), "definitions out of order"
        assert set(found) <= set(self.definitions)
        missing = set(self.durable_definitions) - set(found)
        assert not missing, f"definitions lost: {sorted(missing)}"

    def _adopt(self, recovered: Recovered) -> None:
        """What was recovered is the truth from now on."""
        self.recoveries += 1
        self.live = self.base = self._found(recovered)
        self.contents = {copy: self.contents[copy] for copy in self.base}
        self.live = set(self.base)
        self.queues |= {queue_id for queue_id, _ in self.base}
        self.maybe = set()
        self.marks = {q: state.delivered_lsn for q, state in recovered.queues.items()}
        self.durable_marks = {q: lsn for q, lsn in self.marks.items() if lsn}
        self.definitions = list(dict.fromkeys(recovered.definitions))
        self.durable_definitions = list(self.definitions)
        self.arrived = {copy: self.arrived[copy] for copy in self.base}
        found = {(s, key): v for s, notes in recovered.notes.items() for key, v in notes.items()}
        self.queues |= {scope_id for scope_id, _ in found}
        self.notes, self.durable_notes = found, dict(found)
        self.doubtful_notes, self.doubtful_scopes = [], set()
        self.blocks = []
        self.block = Block()
        self.synced_blocks = 0
        self.covered = []
        self.errno = 0
        self.is_sealed = False


def _note_down(state: dict[Key, bytes | None], block: Block) -> None:
    """Apply what a block says about notes."""
    state.update(block.notes)
    for key in [key for key in state if key[0] in block.dropped]:
        del state[key]


def _refuse_corrupt(name: str, reason: str) -> None:
    raise AssertionError(f"compaction found {name} spoiled: {reason}")


def run_random(seed: int, *, is_strict: bool = True) -> StoreModel:
    """Drive a store at random through some crashes; the same seed does the same.

    Every third history is a long, quiet one in which segments are recycled.
    """
    draw = random.Random(seed)
    model = StoreModel(seed, is_strict=is_strict)
    is_quiet = seed % 3 == 0
    for _ in range(240 if is_quiet else 100):
        if model.errno:
            crash_random(model, draw)
        else:
            draw.choice(_QUIET_STEPS if is_quiet else _STEPS)(model, draw)
    crash_random(model, draw)
    return model


def crash_random(model: StoreModel, draw: random.Random) -> None:
    cuts = [draw.randrange(12) for _ in range(draw.choice((0, 0, 1, 2)))]
    seed = draw.getrandbits(32)
    if not seed % 4:
        # Or a clean stop, or one that comes so far.
        outcome = random.Random(seed)
        model.stop(outcome.choice((0, 1, 2, 3, 12, 12, 12)))
        if model.is_sealed:
            model.check_seal(outcome)
    model.crash(seed, cuts, keeps_cache=draw.random() < 0.2)


def _publish(model: StoreModel, draw: random.Random) -> None:
    queue_ids = draw.sample(sorted(model.queues), draw.choice((1, 1, 2)))
    model.publish(queue_ids, [draw.choice((20, 60, 300)) for _ in range(draw.randint(1, 4))])
    if draw.random() < 0.02:
        model.publish(queue_ids, [6000])
    if draw.random() < 0.1:
        model.stage(draw.choice((1500, 2500, 9000)))


def _settle(model: StoreModel, draw: random.Random) -> None:
    model.settle([draw.randrange(1000) for _ in range(draw.randint(1, 6))])


def _note(model: StoreModel, draw: random.Random) -> None:
    for _ in range(draw.choice((1, 1, 5))):
        scope_id = draw.choice(sorted(model.queues))
        model.note(scope_id, draw.randrange(6), draw.choice((8, 40, 200)))


def _write_and_sync(model: StoreModel, draw: random.Random) -> None:
    model.write()
    model.request_sync(is_late=draw.random() < 0.5)


def _fault(model: StoreModel, draw: random.Random) -> None:
    if draw.random() < 0.2:
        verb = draw.choice(("write", "sync", "create", "rename", "unlink"))
        model.disk.fail_next(verb, draw.choice((errno.EIO, errno.ENOSPC)))


def _crash(model: StoreModel, draw: random.Random) -> None:
    if draw.random() < 0.4:
        crash_random(model, draw)


def _compact(model: StoreModel, draw: random.Random) -> None:
    """Some steps in a row, each with a write, as an idle broker has them; or a single one."""
    for _ in range(draw.choice((1, 1, 1, 8))):
        model.compact(draw.choice((1, 300, 5000)))
        if draw.random() < 0.5:
            model.write()


_STEPS: list[Callable[[StoreModel, random.Random], None]] = [
    _publish,
    _publish,
    _publish,
    _settle,
    _settle,
    lambda model, draw: model.settle_queue(draw.choice(sorted(model.queues))),
    lambda model, draw: model.deliver(draw.choice(sorted(model.queues))),
    lambda model, draw: model.define() if draw.random() < 0.3 else model.take(1),
    lambda model, draw: (
        model.drop_queue(draw.choice(sorted(model.queues))) if draw.random() < 0.1 else None
    ),
    _compact,
    _compact,
    _note,
    _note,
    lambda model, draw: model.unnote(draw.choice(sorted(model.queues)), draw.randrange(6)),
    lambda model, draw: model.write(),
    _write_and_sync,
    _write_and_sync,
    _write_and_sync,
    lambda model, draw: model.finish_sync(),
    lambda model, draw: model.finish_sync(),
    lambda model, draw: model.finish_sync(),
    _fault,
    _crash,
]


def _turn_over(model: StoreModel, draw: random.Random) -> None:
    """Fill the journal and empty it, so that old segments come free."""
    _publish(model, draw)
    model.publish([1], [1200])
    for queue_id in sorted(model.queues):
        if draw.random() < 0.7:
            model.settle_queue(queue_id)
    _write_and_sync(model, draw)
    model.finish_sync()


_QUIET_STEPS = [
    *_STEPS[:-2],
    *[_turn_over] * 12,
    lambda model, draw: _fault(model, draw) if draw.random() < 0.2 else None,
    lambda model, draw: _crash(model, draw) if draw.random() < 0.2 else None,
]


def _facts(chain: SegmentChain) -> list[object]:
    """What is known of each segment, the active one left out."""
    return [
        (
            *(each.generation, each.first_lsn, each.end_lsn, each.offset, each.live_count),
            *(each.first_number, each.last_number, each.synced, each.oldest),
            each.gone_queues,
            {queue_id: live for queue_id, live in each.live_by_queue.items() if live},
            {scope_id: set(keys) for scope_id, keys in each.noted.items()},
            each.noted_bytes,
        )
        for each in chain.resting
    ]


def _state(recovered: Recovered) -> object:
    queues = {q: (s.messages, s.delivered_lsn) for q, s in recovered.queues.items()}
    return (list(dict.fromkeys(recovered.definitions)), queues, recovered.notes)
