"""One node over a model of the engine: it follows, claims, leads, and ends."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, cast

import msgspec
import pytest

from tests.simulation.sim_disk import SimDisk
from tests.unit.server.replication.scripted_server import until
from vouchmq.server.replication import node, standby
from vouchmq.server.replication.log import NatsLog
from vouchmq.server.replication.node import Node
from vouchmq.server.replication.reports import Report, Topics, encode, parse_report
from vouchmq.server.replication.roles import Patience
from vouchmq.store.replication import record
from vouchmq.store.replication.leader_position import LeaderPosition
from vouchmq.store.replication.log_edge import LogAnswers
from vouchmq.store.replication.log_view import LogView, Position
from vouchmq.store.replication.mirror import Mirror
from vouchmq.store.replication.record import Record, RecordHeader, Subjects

LOG_ID = b"0123456789abcdef"
SUBJECTS = Subjects("t")
TOPICS = Topics("t")


class ModelEngine:
    """A log in memory that answers in the next turn of the loop."""

    trouble = ""

    def __init__(self) -> None:
        self.messages = [record.origin(LOG_ID)]
        self.told: list[tuple[str, bytes]] = []
        self.heard: dict[str, Callable[[bytes], None]] = {}
        self.answers: LogAnswers
        self._loop = asyncio.get_running_loop()

    def start(self, answers: LogAnswers) -> None:
        self.answers = answers

    def stop(self) -> None:
        pass

    def send(self, token: int, subject: str, expected: int, parts: Sequence[bytes]) -> None:
        assert subject.startswith("vq.t.")
        if expected == len(self.messages):
            self.messages.append(b"".join(parts))
            self._loop.call_soon(self.answers.acked, token, len(self.messages))
        else:
            self._loop.call_soon(self.answers.refused, token)

    def read_from(self, token: int, sequence: int) -> None:
        for at in range(sequence, len(self.messages) + 1):
            self._loop.call_soon(self.answers.found, token, at, self.messages[at - 1])
        self._loop.call_soon(self.answers.ended, token, len(self.messages))

    def hold_reading(self) -> None:
        pass

    def resume_reading(self) -> None:
        pass

    def listen(self, subject: str, heard: Callable[[bytes], None]) -> None:
        self.heard[subject] = heard

    def ask_size(self, told: Callable[[dict[str, int]], None]) -> None:
        self._loop.call_soon(told, {"bytes": 7})

    def tell(self, subject: str, payload: bytes) -> None:
        self.told.append((subject, payload))

    def purge(self, subject: str) -> None:
        raise AssertionError(f"nothing is gone: {subject}")

    def records(self) -> list[Record]:
        """All that count."""
        view = LogView()
        found = (view.found(at, raw) for at, raw in enumerate(self.messages, 1))
        return [each for each in found if each is not None]

    def add_claim(self, name: str) -> None:
        """Another node claims."""
        last = self.records()[-1]
        header = last.header
        claim = RecordHeader(
            record.CLAIM,
            last.checksum,
            header.epoch + 1,
            header.number + 1,
            header.number,
            header.generation,
            header.offset + (len(last.body) if header.kind == record.BLOCKS else 0),
            header.block,
            header.lsn,
        )
        body = record.claim_body(name, bytes(record.NONCE_SIZE))
        self.messages.append(b"".join((record.seal(claim, [body])[0], body)))


class Process:
    """What starts and ends the broker, and the broker: `NodeOwner` and `Leading`."""

    is_syncing = False
    sync_count = 0
    safe_block = 0
    segment_bytes = 1000

    def __init__(self, takeover_after_s: float = 0.0, *, needs_standby: bool = False) -> None:
        self.disk = SimDisk(1)
        self.engine = ModelEngine()
        self.said: list[str] = []
        self.commits: list[tuple[int, int]] = []
        self.standby_lsns: list[int] = []
        self.stalls: list[bool] = []
        self.pool = ThreadPoolExecutor(2)
        self.node = Node(
            "n1",
            "n1.example:5672",
            cast("NatsLog", self.engine),
            Mirror(self.disk),
            SUBJECTS,
            TOPICS,
            self,
            asyncio.get_running_loop(),
            self.pool,
            patience=Patience(takeover_after_s),
            chance=lambda: 0.0,
            random_bytes=bytes,
            needs_standby=needs_standby,
        )

    def append(self, number: int, generation: int = 1) -> None:
        """Have the journal write a block, for which somebody waits."""
        self.node.tap.appended(generation, 10 * (number - 1), number, number, [b"0123456789"])
        self.node.tap.request()

    def recover(self) -> None:
        self.said.append("recover")
        self.node.tap.appended(1, 0, 1, 1, [b"0123456789"])
        self.node.lead(self, 1, LeaderPosition(self.disk))

    def serve(self) -> None:
        self.said.append("serve")

    def end(self, reason: str) -> None:
        self.said.append(f"end: {reason}")

    def fail(self, reason: str) -> None:
        self.said.append(f"fail: {reason}")

    def committed(self, block: int, lsn: int) -> None:
        self.commits.append((block, lsn))

    def bytes_behind(self, generation: int, offset: int) -> int:
        return 5000 - 1000 * generation - offset

    def synced_on_standby(self, lsn: int) -> None:
        self.standby_lsns.append(lsn)

    def stalled(self, *, is_stalled: bool) -> None:
        assert self.node.needs_standby, "the log answers"
        self.stalls.append(is_stalled)


def run(
    test: Callable[[Process], Coroutine[Any, Any, None]],
    takeover_after_s: float = 0.0,
    *,
    needs_standby: bool = False,
) -> Process:
    """Run a test with a process that follows the log."""

    async def follow() -> Process:
        process = Process(takeover_after_s, needs_standby=needs_standby)
        process.node.start()
        try:
            await test(process)
        finally:
            process.node.stop()
            process.pool.shutdown()
        return process

    return asyncio.run(follow())


async def serves(process: Process) -> None:
    await until(lambda: "serve" in process.said)


def test_clients_are_let_in_when_the_recovery_is_committed() -> None:
    process = run(serves)
    assert process.said == ["recover", "serve"]
    assert process.commits == [(1, 1)]
    kinds = [each.header.kind for each in process.engine.records()]
    assert kinds == [record.ORIGIN, record.CLAIM, record.BLOCKS]


def test_a_leader_is_told_of_what_the_log_has() -> None:
    async def publish(process: Process) -> None:
        await serves(process)
        process.append(2)
        process.append(3)
        await until(lambda: process.commits[-1] == (3, 3))

    process = run(publish)
    assert process.node.is_all_safe()
    assert process.node.at.block == 3


def test_what_waits_for_answers_that_do_not_come_goes_by_the_loops_timer() -> None:
    async def publish(process: Process) -> None:
        await serves(process)
        # Two records of one message each, and answers to neither.
        process.append(2)
        process.append(3)
        await until(lambda: process.commits[-1] == (3, 3))
        process.append(4)
        process.append(5)
        process.append(6)
        await until(lambda: process.commits[-1] == (6, 6))

    process = run(publish)
    blocks = [each for each in process.engine.records() if each.header.kind == record.BLOCKS]
    assert [each.header.block for each in blocks] == [1, 2, 3, 4, 6]


def test_a_leader_that_another_has_replaced_hears_of_no_commit() -> None:
    async def replace(process: Process) -> None:
        await serves(process)
        process.engine.add_claim("n2")
        process.append(2)
        await until(lambda: len(process.said) > 2)
        process.append(3)
        assert process.node.is_all_safe()

    process = run(replace)
    assert process.said[2:] == ["end: another node leads, by its claim of epoch 2"]
    assert process.commits == [(1, 1)]


def test_a_candidate_that_was_too_late_follows_on() -> None:
    async def be_late(process: Process) -> None:
        sent = process.engine.send

        def late(token: int, subject: str, expected: int, parts: Sequence[bytes]) -> None:
            process.engine.send = sent  # type: ignore[method-assign]
            process.engine.add_claim("n2")
            sent(token, subject, expected, parts)

        process.engine.send = late  # type: ignore[method-assign]
        await until(lambda: process.node.standby.progress.leader == "n2")
        await serves(process)

    process = run(be_late)
    claims = [each for each in process.engine.records() if each.header.kind == record.CLAIM]
    assert [record.claimant(each.body) for each in claims] == ["n2", "n1"]


def test_a_handover_stands_behind_everything() -> None:
    async def hand_over(process: Process) -> None:
        await serves(process)
        process.append(2)
        assert process.node.roles.hand_over()
        await until(lambda: len(process.said) > 2)

    process = run(hand_over)
    assert process.said[2:] == ["end: the lead was handed over"]
    assert process.commits == [(1, 1), (2, 2)]
    assert process.engine.records()[-1].header.kind == record.HANDOVER


def test_a_log_that_has_lost_something_ends_the_process() -> None:
    async def lose(process: Process) -> None:
        process.engine.messages.append(b"this is no record")
        await until(lambda: bool(process.said))

    process = run(lose)
    assert process.said[-1].startswith("fail: message ")
    assert "serve" not in process.said


def test_a_standby_reports_where_it_is() -> None:
    async def report(process: Process) -> None:
        process.engine.add_claim("n2")
        await until(lambda: len(process.engine.told) > 1)
        assert process.node.can_take_over

    process = run(report, takeover_after_s=3600.0)
    reports = [(subject, parse_report(raw, LOG_ID.hex())) for subject, raw in process.engine.told]
    subject, last = reports[-1]
    assert subject == "vqnodes.t.reports"
    assert (last.node, last.epoch, last.sequence, last.lag) == ("n1", 1, 2, 0)
    assert last.address == "n1.example:5672"
    assert last.can_take_over
    assert (last.synced_number, last.synced_checksum) == (
        last.synced_sequence - 1,
        process.engine.records()[last.synced_number].checksum,
    )


def a_report(**changes: object) -> Report:
    """What another node might say."""
    facts: dict[str, object] = {
        "log": LOG_ID.hex(),
        "node": "n2",
        "epoch": 1,
        "sequence": 3,
        "generation": 4,
        "offset": 10,
        "synced_sequence": 2,
        "synced_number": 1,
        "synced_checksum": 7,
        "synced_lsn": 1,
        "is_whole": True,
        "can_take_over": True,
        "lag": 1,
        "lag_s": 0.5,
    }
    return msgspec.convert({**facts, **changes}, Report)


def test_a_leader_knows_the_standbys_that_it_hears() -> None:
    async def hear(process: Process) -> None:
        await serves(process)
        assert not process.node.can_take_over
        heard = process.engine.heard[TOPICS.reports]
        # It has not heard yet how far the log is, so it says that it lacks one record.
        heard(encode(a_report(sequence=1)))
        heard(b"no report")
        heard(encode(a_report(node="n3", log="00" * 16)))
        [found] = process.node.standbys
        assert 0 <= cast("float", found.pop("heard_s")) < 60
        assert found == {
            "node": "n2",
            "address": "",
            "epoch": 1,
            "sequence": 1,
            "synced_sequence": 2,
            "synced_lsn": 1,
            "lag": 2,
            "lag_bytes": 990,
            "lag_s": 0.5,
            "can_take_over": True,
        }

    process = run(hear)
    assert process.engine.told == []


def test_what_is_reported_after_the_end_of_a_lead_is_nobody_s() -> None:
    async def end(process: Process) -> None:
        await serves(process)
        assert process.node.roles.hand_over()
        await until(lambda: len(process.said) > 2)
        process.engine.heard[TOPICS.reports](encode(a_report()))
        assert process.node.standbys == []

    run(end)


def a_sync_of(at: Position, node: str = "n2") -> bytes:
    """A standby says that it has everything up to there on its disk."""
    return encode(
        a_report(
            node=node,
            sequence=at.sequence,
            synced_sequence=at.sequence,
            synced_number=at.number,
            synced_checksum=at.checksum,
        )
    )


def test_a_leader_waits_for_a_standby_if_that_is_asked_for() -> None:
    async def publish(process: Process) -> None:
        await serves(process)
        process.append(2)
        await until(lambda: process.commits[-1] == (2, 2))
        tap = process.node.tap
        heard = process.engine.heard[TOPICS.reports]
        assert process.standby_lsns == []
        assert tap.unsafe_bytes == process.node.standby_waiting_bytes == 20
        # Standbys are told of each record, so that they do not wait before they read.
        assert process.engine.told.count((TOPICS.commits, b"")) == 2
        heard(a_sync_of(tap.at._replace(checksum=tap.at.checksum ^ 1)))
        heard(a_sync_of(tap.at, node="n1"))
        assert process.standby_lsns == []
        heard(a_sync_of(tap.at))
        assert process.standby_lsns == [2]
        assert tap.unsafe_bytes == process.node.standby_waiting_bytes == 0

    run(publish, needs_standby=True)


def test_a_copy_that_is_damaged_does_not_count() -> None:
    async def publish(process: Process) -> None:
        await serves(process)
        heard = process.engine.heard[TOPICS.reports]
        damaged = msgspec.structs.replace(
            parse_report(a_sync_of(process.node.at), LOG_ID.hex()),
            is_whole=False,
            can_take_over=False,
        )
        heard(encode(damaged))
        assert process.standby_lsns == []
        # Nor does what that standby has said of a record whose answer is still on its way.
        process.append(2)
        ahead = LogView(process.node.at)
        ahead.found(len(process.engine.messages), process.engine.messages[-1])
        heard(a_sync_of(ahead.at))
        heard(encode(damaged))
        await until(lambda: process.commits[-1] == (2, 2))
        assert process.standby_lsns == []
        heard(a_sync_of(ahead.at))
        assert process.standby_lsns == [2]

    run(publish, needs_standby=True)


def test_a_standby_is_not_late_for_a_part_of_a_block(monkeypatch: pytest.MonkeyPatch) -> None:
    """It can name no record before the last part, however long the log takes for all of them."""
    monkeypatch.setattr(node, "STALLED_S", 0.0)

    async def publish(process: Process) -> None:
        await serves(process)
        heard, tap = process.engine.heard[TOPICS.reports], process.node.tap
        heard(a_sync_of(tap.at))
        hints = process.engine.told.count((TOPICS.commits, b""))
        sent, held = process.engine.send, []

        def hold(token: int, subject: str, expected: int, parts: Sequence[bytes]) -> None:
            if expected == 4:
                held.append((token, subject, expected, parts))
            else:
                sent(token, subject, expected, parts)

        process.engine.send = hold  # type: ignore[method-assign]
        tap.appended(1, 10, 2, 2, [bytes(600_000)])
        tap.request()
        await until(lambda: bool(held))
        assert process.node.standby_waiting_bytes > 0
        assert process.engine.told.count((TOPICS.commits, b"")) == hints
        process.node._look_at_standby_syncs(0.0, tap)
        assert not process.node._is_standby_late(3600.0)
        sent(*held[0])
        await until(lambda: process.commits[-1] == (2, 2))
        assert process.engine.told.count((TOPICS.commits, b"")) == hints + 1
        assert process.node._is_standby_late(3600.0)

    run(publish, needs_standby=True)


def test_a_leader_that_ends_waits_for_the_standby() -> None:
    async def publish(process: Process) -> None:
        await serves(process)
        assert not process.node.is_all_safe()
        process.engine.heard[TOPICS.reports](a_sync_of(process.node.at))
        assert process.node.is_all_safe()

    run(publish, needs_standby=True)


def test_publishers_are_blocked_while_no_standby_syncs() -> None:
    async def publish(process: Process) -> None:
        await serves(process)
        await until(lambda: process.stalls == [True])
        assert process.node.is_stalled
        # The log itself answers.
        assert process.node.trouble == ""
        # A beat is committed meanwhile, and the standby names that.
        await until(lambda: process.node.at.number > process.engine.records()[2].header.number)
        at = process.node.at
        process.engine.heard[TOPICS.reports](a_sync_of(at))
        await until(lambda: process.stalls == [True, False])
        assert process.standby_lsns == [1]

    run(publish, needs_standby=True)


def test_a_standby_that_is_awaited_syncs_and_reports_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # By itself it would do neither.
    monkeypatch.setattr(standby, "SYNC_S", 3600.0)
    monkeypatch.setattr(node, "REPORT_TICKS", 1 << 30)
    is_over = threading.Event()

    async def report(process: Process) -> None:
        process.engine.add_claim("n2")
        await until(lambda: process.node.standby.progress.is_complete)
        # A summary is being made meanwhile, which takes long.
        lacking = [7]
        monkeypatch.setattr(Mirror, "next_summary", lambda _: lacking.pop() if lacking else 0)
        monkeypatch.setattr(Mirror, "summarize", lambda *_: is_over.wait())
        await until(lambda: not lacking)
        process.engine.add_claim("n3")
        process.engine.heard[TOPICS.commits](b"")
        await until(lambda: bool(process.engine.told))
        (subject, raw), *_ = process.engine.told
        assert subject == TOPICS.reports
        assert parse_report(raw, LOG_ID.hex()).synced_sequence == 3
        # A hint behind which there is nothing new is answered as well.
        process.engine.told.clear()
        process.engine.heard[TOPICS.commits](b"")
        await until(lambda: bool(process.engine.told))
        # Whoever recovers from the directory next waits for the summary.
        stopped: list[bool] = []
        process.node.standby.stop(lambda: stopped.append(is_over.is_set()))
        await asyncio.sleep(0.01)
        assert not stopped
        is_over.set()
        await until(lambda: stopped == [True])

    run(report, takeover_after_s=3600.0)
