"""A directory goes into the model of a log, which is broken off and loses what it may lose."""

from __future__ import annotations

import time
from random import Random

import pytest

from tests.replication.model_log import SUBJECTS, Edge, ModelLog
from tests.simulation.sim_disk import SimDisk
from tests.unit.store.journals import corrupt, open_on, publish, raws_of, segments_on, sync
from vouchmq.store.compaction.compactor import Compactor
from vouchmq.store.errors import LogBroken
from vouchmq.store.journal.journal import Journal
from vouchmq.store.recovery.recover import check_stopped, clean_up
from vouchmq.store.replication import record
from vouchmq.store.replication.copy_source import CopySource, Piece, damage_of, undeclared
from vouchmq.store.replication.log_copy import LogCopy
from vouchmq.store.replication.log_view import START, LogView, Position
from vouchmq.store.replication.mirror import Mirror
from vouchmq.store.replication.position_file import PositionFile

LOG_ID = b"a log of a copy."
SIZE = 3000
RECORD_BYTES = 600
COUNT = 40
MOST_SCHEDULES = 600
QUEUES = (1, 2, 3)


def directory(random: Random) -> SimDisk:
    """What a broker leaves when it is killed: segments are gone from the beginning and between."""
    disk = SimDisk(random.getrandbits(32))
    journal, _ = open_on(disk, size=SIZE)
    living: dict[int, list[int]] = {queue: [] for queue in QUEUES}
    for number in range(int(20 + random.random() * 60)):
        queue = QUEUES[int(random.random() * 3)]
        size = 1500 if random.random() < 0.1 else int(random.random() * 300)
        living[queue] += publish(journal, queue, b"%d " % number + bytes(size))
        # Those of the first queue stay.
        gone = [lsn for lsn in living[queue] if random.random() < 0.6] if queue > 1 else []
        if gone and random.random() < 0.7:
            living[queue] = [lsn for lsn in living[queue] if lsn not in gone]
            journal.settle(queue, gone)
        sync(journal)
        if random.random() < 0.05:
            compact(journal)
    # Of what follows nobody was told anything.
    journal.append_run((1,), b"tail", [b"never synced"])
    journal.write()
    journal.close()
    disk.crash(random.getrandbits(32))
    return disk


def compact(journal: Journal) -> None:
    """Empty segments of which little lives."""
    compactor = Compactor(journal, lambda _name, _why: None)
    while compactor.step(4096):
        sync(journal)
    sync(journal)


class Attempt:
    """A process that copies; what it has sent stays under way when it is killed."""

    def __init__(self, log: ModelLog, disk: SimDisk, random: Random) -> None:
        checked = check_stopped(disk)
        verdict = checked.verdict
        assert damage_of(verdict) == []
        assert undeclared(verdict.accepted) is None
        clean_up(disk, checked)
        self.at: Position | None = None
        self.reason = ""
        self._log = log
        self._edge = Edge(log)
        self._random = random
        source = CopySource(disk, verdict.accepted)
        self.job = LogCopy(self._edge, SUBJECTS, source, LOG_ID, self, record_bytes=RECORD_BYTES)
        self._edge.answers = self.job
        self.job.start("copy", random.randbytes(record.NONCE_SIZE))

    def run(self, steps: int) -> None:
        """Let so many things happen, unless it ends before; then it is killed."""
        for _ in range(steps):
            if self.at is not None or self.reason:
                break
            chance = self._random.random()
            if self._log.bag and chance > 0.1:
                self._log.step()
            elif chance < 0.02 and not self._log.is_kind:
                self._edge.lose()
            else:
                self.job.tick()
        self._edge.answers = None

    def copied(self, at: Position) -> None:
        self.at = at

    def failed(self, reason: str) -> None:
        self.reason = reason


def contents(disk: SimDisk) -> list[list[bytes]]:
    """What a broker finds in a directory."""
    _, recovered = open_on(disk, size=SIZE)
    assert recovered.report.damaged == []
    return [raws_of(recovered, queue) for queue in QUEUES]


def follow(disk: SimDisk, log: ModelLog) -> Mirror:
    """Have a directory read the log to its end."""
    mirror = Mirror(disk, LOG_ID)
    for sequence in range(mirror.next_sequence, len(log.messages) + 1):
        mirror.found(sequence, log.messages[sequence - 1])
    mirror.ended(len(log.messages))
    mirror.sync()
    mirror.close()
    return mirror


class Copying:
    """One schedule: a directory, a log, attempts that are killed, and one that is not."""

    def __init__(self, seed: int) -> None:
        self.random = random = Random(seed)
        self.disk = directory(random)
        self.log = ModelLog(random, record.origin(LOG_ID, record.COPIED))
        self.attempts = 0

    def run(self) -> None:
        at = None
        while at is None:
            self.attempts += 1
            self.log.is_kind = self.attempts > 3
            attempt = Attempt(self.log, self.disk, self.random)
            is_last = self.attempts > 5
            attempt.run(100_000 if is_last else int(self.random.random() * 300))
            at = attempt.at
            if at is None:
                self._unfinished(attempt)
                assert not is_last, attempt.reason
        self._judge(at)

    def _unfinished(self, attempt: Attempt) -> None:
        assert attempt.reason in ("", "somebody else writes to the log")
        # Of the last record its sender may not know.
        is_done = _is_finished(self.log)
        assert follow(SimDisk(), self.log).is_complete == is_done

    def _judge(self, at: Position) -> None:
        own, fresh = self.disk, SimDisk()
        file = PositionFile(own)
        file.put(LOG_ID, at)
        file.close()
        assert follow(fresh, self.log).is_complete
        assert follow(own, self.log).is_complete
        assert segments_on(fresh) == segments_on(own)
        for name in segments_on(fresh):
            there = bytes(fresh.visible[name].visible)
            assert bytes(own.visible[name].visible).startswith(there), name
        assert contents(fresh) == contents(own)


def _is_finished(log: ModelLog) -> bool:
    view = LogView()
    for sequence, raw in enumerate(log.messages, 1):
        view.found(sequence, raw)
    return not view.is_unfinished


def run(seed: int) -> Copying:
    made = Copying(seed)
    try:
        made.run()
    except Exception as error:
        raise AssertionError(f"Copying({seed}): {error!r}") from error
    return made


def test_a_copy_has_all_however_often_it_was_broken_off() -> None:
    first = time.time_ns() >> 10
    made = [run(seed) for seed in range(first, first + COUNT)]
    assert sum(each.attempts for each in made) > COUNT
    generations = [[int(name[:16]) for name in segments_on(each.disk)] for each in made]
    # They have been about something: the first segment is gone, and others in between.
    assert any(each[0] > 1 for each in generations)
    assert any(each[-1] - each[0] >= len(each) for each in generations)


def caught() -> AssertionError:
    """The failure of the first schedule, of fresh seeds, that finds something."""
    first = time.time_ns() >> 10
    for seed in range(first, first + MOST_SCHEDULES):
        try:
            run(seed)
        except AssertionError as failure:
            assert not isinstance(failure.__cause__, TypeError | AttributeError | NameError)
            return failure
    raise AssertionError(f"{MOST_SCHEDULES} schedules from {first} on have not found the bug")


def test_finds_that_the_parts_of_a_block_are_not_sent_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(CopySource, "rewind", lambda _self: None)
    caught()


def test_finds_that_what_is_in_the_log_is_sent_again(monkeypatch: pytest.MonkeyPatch) -> None:
    def holds(self: CopySource, found: record.Record) -> bool:
        del self, found
        return True

    monkeypatch.setattr(CopySource, "holds", holds)
    caught()


def test_finds_that_the_end_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    def next_piece(self: CopySource, limit_bytes: int) -> Piece | None:
        piece = original(self, limit_bytes)
        return piece if piece is not None and self.copied_bytes < self.size_bytes else None

    original = CopySource.next_piece
    monkeypatch.setattr(CopySource, "next_piece", next_piece)
    caught()


def test_finds_that_an_unfinished_log_may_be_led(monkeypatch: pytest.MonkeyPatch) -> None:
    original = LogView._begin

    def begin(self: LogView, sequence: int, found: record.Record) -> None:
        original(self, sequence, found)
        self.is_unfinished = False

    monkeypatch.setattr(LogView, "_begin", begin)
    caught()


def copied(disk: SimDisk, log: ModelLog) -> Attempt:
    attempt = Attempt(log, disk, Random(1))
    attempt.run(100_000)
    return attempt


def kind_log() -> ModelLog:
    log = ModelLog(Random(1), record.origin(LOG_ID, record.COPIED))
    log.is_kind = True
    return log


def test_another_directory_does_not_go_on_with_a_copy() -> None:
    log = kind_log()
    Attempt(log, directory(Random(1)), Random(1)).run(20)
    before = [*log.messages]
    assert len(before) > 4
    assert "not in this directory" in copied(directory(Random(2)), log).reason
    assert log.messages == before


def test_another_log_is_left_alone() -> None:
    log = ModelLog(Random(1), record.origin(bytes(16), record.COPIED))
    log.is_kind = True
    assert "this node follows" in copied(directory(Random(1)), log).reason
    assert len(log.messages) == 1


def test_a_block_that_rots_between_its_check_and_the_copy_is_not_copied() -> None:
    disk = directory(Random(1))
    log = kind_log()
    attempt = Attempt(log, disk, Random(1))
    name = segments_on(disk)[-1]
    corrupt(disk, name, 30)
    attempt.run(100_000)
    assert f"{name} is damaged at offset 0" in attempt.reason
    assert not follow(SimDisk(), log).is_complete


def test_a_crash_before_the_position_is_written_costs_a_comparison_only() -> None:
    disk = directory(Random(1))
    log = kind_log()
    PositionFile(disk).put(LOG_ID, START)
    assert copied(disk, log).at is not None
    before = contents_of_segments(disk)
    mirror = follow(disk, log)
    assert mirror.is_complete
    assert contents_of_segments(disk).keys() == before.keys()
    assert mirror.at.sequence == len(log.messages)


def test_blocks_of_a_broker_that_went_on_alone_are_not_cut_off() -> None:
    disk = directory(Random(1))
    log = kind_log()
    at = copied(disk, log).at
    assert at is not None
    PositionFile(disk).put(LOG_ID, at)
    journal, _ = open_on(disk, size=SIZE)
    publish(journal, 1, b"stored", b"alone")
    journal.close()
    before = contents_of_segments(disk)
    with pytest.raises(LogBroken, match="which is here and was safe"):
        follow(disk, log)
    assert contents_of_segments(disk) == before


def contents_of_segments(disk: SimDisk) -> dict[str, bytes]:
    return {name: bytes(disk.visible[name].visible) for name in segments_on(disk)}
