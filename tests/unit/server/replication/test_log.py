"""The log on JetStream: what it tells of appends and readings, whatever the engine does."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial

import pytest

from tests.unit.server.replication.answers import Answers, First
from tests.unit.server.replication.scripted_server import (
    FULL,
    INFO,
    NO_LEADER,
    PATIENCE_S,
    WRONG_LAST,
    ScriptedServer,
    ScriptedStream,
    until,
)
from vouchmq.server.replication import log
from vouchmq.server.replication.addresses import Server
from vouchmq.server.replication.connection import Options
from vouchmq.server.replication.log import FIRST_REFUSAL_DELAY_S, NatsLog


@asynccontextmanager
async def started(
    servers: Sequence[Server], answers: Answers, append_limit_s: float = PATIENCE_S
) -> AsyncIterator[NatsLog]:
    """A log that is connected."""
    loop = asyncio.get_running_loop()
    engine = NatsLog("LOG", servers, Options(), loop, First(1), append_limit_s=append_limit_s)
    engine.start(answers)
    try:
        await until(lambda: engine.client.is_up)
        yield engine
    finally:
        engine.stop()


async def test_an_append() -> None:
    stream, answers = ScriptedStream(), Answers()
    async with (
        ScriptedServer(stream.answer) as server,
        started([server.address], answers) as engine,
    ):
        engine.send(1, "vq.LOG.1", 0, [b"a", b"b"])
        assert answers.told == []
        await answers.wait_for("acked", 1, 1)
        engine.send(2, "vq.LOG.1", 1, [b"c"])
        await answers.wait_for("acked", 2, 2)
    assert stream.records == {1: b"ab", 2: b"c"}
    assert engine.trouble.endswith("this client stops")


async def test_a_refused_append() -> None:
    stream, answers = ScriptedStream(), Answers()
    stream.put(b"other")
    async with (
        ScriptedServer(stream.answer) as server,
        started([server.address], answers) as engine,
    ):
        engine.send(1, "vq.LOG.1", 0, [b"a"])
        await answers.wait_for("refused", 1)
        assert engine.trouble == ""
        engine.send(2, "vq.LOG.1", 0, [b"a"])
        await answers.wait_for("refused", 2)
    assert stream.records == {1: b"other"}


async def test_an_append_that_is_sent_again() -> None:
    """The writer has found it too old before the limit here: the later attempt counts."""
    stream, answers = ScriptedStream(append_answers=[None]), Answers()
    async with (
        ScriptedServer(stream.answer) as server,
        started([server.address], answers) as engine,
    ):
        engine.send(1, "vq.LOG.1", 0, [b"a"])
        engine.send(2, "vq.LOG.1", 0, [b"a"])
        await answers.wait_for("refused", 2)
        server.send_answer(server.replies[0], b"", b'{"stream":"LOG","seq":1}')
        engine.send(3, "vq.LOG.1", 1, [b"b"])
        await answers.wait_for("acked", 3, 2)
    assert answers.told == [("refused", 2), ("acked", 3, 2)]


async def test_a_full_stream_is_said() -> None:
    stream, answers = ScriptedStream(append_answers=[[FULL], [NO_LEADER]]), Answers()
    async with (
        ScriptedServer(stream.answer) as server,
        started([server.address], answers) as engine,
    ):
        engine.send(1, "vq.LOG.1", 0, [b"a"])
        await answers.wait_for("refused", 1)
        assert engine.trouble == "maximum bytes exceeded"
        engine.send(2, "vq.LOG.1", 0, [b"a"])
        await answers.wait_for("refused", 2)
        assert "no leader" in engine.trouble
        engine.send(3, "vq.LOG.1", 0, [b"a"])
        await answers.wait_for("acked", 3, 1)
        assert engine.trouble == ""


async def test_an_append_that_gets_too_old() -> None:
    """Its answer may come later, and is not told: reading decides."""
    stream, answers = ScriptedStream(append_answers=[None]), Answers()
    async with (
        ScriptedServer(stream.answer) as server,
        started([server.address], answers, append_limit_s=0.2) as engine,
    ):
        engine.send(1, "vq.LOG.1", 0, [b"a"])
        await answers.wait_for("lost")
        assert engine.trouble.endswith("no answer after 0.2 s")
        await until(lambda: engine.client.is_up)
        server.send_answer(server.replies[0], b"", b'{"stream":"LOG","seq":1}')
        engine.read_from(2, 1)
        await answers.wait_for("ended", 2, 1)
        engine.send(3, "vq.LOG.1", 1, [b"b"])
        await answers.wait_for("acked", 3, 2)
    assert answers.told == [
        ("lost",),
        ("found", 2, 1, b"a"),
        ("ended", 2, 1),
        ("acked", 3, 2),
    ]


async def test_a_leader_that_commits_nothing_is_left() -> None:
    """Cut off from the others it answers every question, and takes appends without an answer."""
    cut_off, stream, answers = (
        ScriptedStream(append_answers=[None] * 9),
        ScriptedStream(),
        Answers(),
    )
    async with (
        ScriptedServer(cut_off.answer) as first,
        ScriptedServer(stream.answer) as second,
        started([first.address, second.address], answers, append_limit_s=0.1) as engine,
    ):
        engine.send(1, "vq.LOG.1", 0, [b"a"])
        await answers.wait_for("lost")
        engine.read_from(2, 1)
        await answers.wait_for("ended", 2, 0)
        engine.send(3, "vq.LOG.1", 0, [b"a"])
        await answers.wait_for("acked", 3, 1)
        assert engine.client.server == str(second.address)
    assert answers.told.count(("lost",)) == 1


async def test_a_lost_connection_is_told_once() -> None:
    stream, answers = ScriptedStream(append_answers=[None]), Answers()
    async with (
        ScriptedServer(stream.answer) as server,
        started([server.address], answers) as engine,
    ):
        engine.send(1, "vq.LOG.1", 0, [b"a"])
        await until(lambda: server.asked)
        server.drop()
        await answers.wait_for("lost")
        # Before there is a connection: it is kept.
        engine.read_from(2, 1)
        await answers.wait_for("ended", 2, 1)
    assert answers.told == [("lost",), ("found", 2, 1, b"a"), ("ended", 2, 1)]


async def test_a_reading_does_not_outlive_its_connection() -> None:
    answers = Answers()
    async with ScriptedServer() as server, started([server.address], answers) as engine:
        engine.read_from(1, 1)
        await until(lambda: server.asked)
        stream = ScriptedStream()
        stream.put(b"a")
        server.answer = stream.answer
        server.drop()
        await answers.wait_for("lost")
        await until(lambda: engine.client.is_up)
        engine.read_from(2, 1)
        await answers.wait_for("ended", 2, 1)
    assert [what for what in answers.told if what[1:2] == (1,)] == []


async def test_an_empty_log() -> None:
    answers = Answers()
    async with (
        ScriptedServer(ScriptedStream().answer) as server,
        started([server.address], answers) as engine,
    ):
        engine.read_from(1, 1)
        await answers.wait_for("ended", 1, 0)
    assert answers.told == [("ended", 1, 0)]


@pytest.mark.parametrize(
    "stream",
    [
        ScriptedStream(),
        ScriptedStream(batch_messages=100),
        # Another replica has less, or nothing: the leader tells the rest.
        ScriptedStream(replica_last=5),
        ScriptedStream(replica_last=0),
        ScriptedStream(has_direct=False),
        # A server drops messages of clients that are slow.
        ScriptedStream(dropped={4}),
        ScriptedStream(dropped={2, 3}),
    ],
    ids=str,
)
async def test_everything_is_found_once_and_in_order(stream: ScriptedStream) -> None:
    answers = Answers()
    for number in range(1, 11):
        stream.put(b"%d" % number)
    # Purged ones are no gap.
    for gone in (1, 6, 7):
        del stream.records[gone]
    async with (
        ScriptedServer(stream.answer) as server,
        started([server.address], answers) as engine,
    ):
        engine.read_from(9, 1)
        await answers.wait_for("ended", 9, 10)
    there = [("found", 9, each, b"%d" % each) for each in (2, 3, 4, 5, 8, 9, 10)]
    assert answers.told == [*there, ("ended", 9, 10)]


async def test_a_paused_replica_is_asked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Any of them may get the request; the stream's leader has everything."""
    monkeypatch.setattr(log, "BATCH_LIMIT_S", 0.1)
    stream, answers = ScriptedStream(is_paused=True), Answers()
    stream.put(b"a", b"b", b"c")
    async with (
        ScriptedServer(stream.answer) as server,
        started([server.address], answers) as engine,
    ):
        engine.read_from(1, 1)
        await answers.wait_for("ended", 1, 3)
        engine.read_from(2, 2)
        await answers.wait_for("ended", 2, 3)
        assert sum(each.startswith("$JS.API.DIRECT.GET") for each in server.asked) == 1
    assert [what[:3] for what in answers.told] == [
        *(("found", 1, 1), ("found", 1, 2), ("found", 1, 3), ("ended", 1, 3)),
        *(("found", 2, 2), ("found", 2, 3), ("ended", 2, 3)),
    ]


async def test_nothing_beyond_the_end_is_told() -> None:
    stream, answers = ScriptedStream(ends=[2]), Answers()
    stream.put(b"a", b"b", b"c")
    async with (
        ScriptedServer(stream.answer) as server,
        started([server.address], answers) as engine,
    ):
        engine.read_from(1, 1)
        await answers.wait_for("ended", 1, 2)
    assert [what[2] for what in answers.told if what[0] == "found"] == [1, 2]


async def test_a_purged_end() -> None:
    stream, answers = ScriptedStream(), Answers()
    stream.put(b"a", b"b", b"c")
    del stream.records[3]
    async with (
        ScriptedServer(stream.answer) as server,
        started([server.address], answers) as engine,
    ):
        engine.read_from(1, 2)
        await answers.wait_for("ended", 1, 3)
    assert answers.told == [("found", 1, 2, b"b"), ("ended", 1, 3)]


async def test_an_older_end_is_not_believed_at_once() -> None:
    """A leader that has just been elected may not have applied everything yet."""
    stream, answers = ScriptedStream(), Answers()
    async with (
        ScriptedServer(stream.answer) as server,
        started([server.address], answers) as engine,
    ):
        engine.send(1, "vq.LOG.1", 0, [b"a"])
        await answers.wait_for("acked", 1, 1)
        stream.ends = [0, 0]
        engine.read_from(2, 1)
        await answers.wait_for("ended", 2, 1)
    assert answers.told[1:] == [("found", 2, 1, b"a"), ("ended", 2, 1)]


async def test_the_end_that_a_reader_knows_is_not_denied() -> None:
    """Whoever reads from a sequence on knows what stands before it."""
    stream, answers = ScriptedStream(ends=[1]), Answers()
    stream.put(b"a", b"b", b"c")
    async with (
        ScriptedServer(stream.answer) as server,
        started([server.address], answers) as engine,
    ):
        engine.read_from(1, 3)
        await answers.wait_for("ended", 1, 3)
    assert answers.told == [("found", 1, 3, b"c"), ("ended", 1, 3)]


async def test_the_end_of_a_leader_that_is_cut_off_does_not_count() -> None:
    """It goes on answering, from before; another server knows better."""
    cut_off, stream, answers = ScriptedStream(heard_s=(3.5, 60.0)), ScriptedStream(), Answers()
    stream.put(b"a")
    async with (
        ScriptedServer(cut_off.answer) as first,
        ScriptedServer(stream.answer) as second,
        started([first.address, second.address], answers) as engine,
    ):
        engine.read_from(1, 1)
        await until(lambda: "cut off" in engine.trouble)
        engine.client.leave_server("a test")
        await answers.wait_for("lost")
        engine.read_from(2, 1)
        await answers.wait_for("ended", 2, 1)
    assert answers.told == [("lost",), ("found", 2, 1, b"a"), ("ended", 2, 1)]


async def test_one_of_two_followers_is_enough() -> None:
    stream, answers = ScriptedStream(heard_s=(60.0, 0.9)), Answers()
    async with (
        ScriptedServer(stream.answer) as server,
        started([server.address], answers) as engine,
    ):
        engine.read_from(1, 1)
        await answers.wait_for("ended", 1, 0)


async def test_a_later_reading_takes_the_place_of_an_earlier_one() -> None:
    stream, answers = ScriptedStream(), Answers()
    stream.put(b"a", b"b")
    async with (
        ScriptedServer(stream.answer) as server,
        started([server.address], answers) as engine,
    ):
        engine.read_from(1, 1)
        engine.read_from(2, 2)
        await answers.wait_for("ended", 2, 2)
    assert answers.told == [("found", 2, 2, b"b"), ("ended", 2, 2)]


async def test_a_stream_without_leader_is_asked_again() -> None:
    stream, answers = ScriptedStream(), Answers()
    stream.put(b"a")
    async with (
        ScriptedServer(lambda *_: [NO_LEADER]) as server,
        started([server.address], answers) as engine,
    ):
        engine.read_from(1, 1)
        await until(lambda: len(server.asked) >= 2)
        assert "no leader" in engine.trouble
        server.answer = stream.answer
        await answers.wait_for("ended", 1, 1)
        assert engine.trouble == ""


async def test_a_purge() -> None:
    stream, answers = ScriptedStream(), Answers()
    stream.put(b"a")
    async with (
        ScriptedServer(stream.answer) as server,
        started([server.address], answers) as engine,
    ):
        engine.purge("vq.LOG.1")
        await until(lambda: not stream.records)
        engine.read_from(1, 1)
        await answers.wait_for("ended", 1, 1)


async def test_refusals_that_say_nothing_new_are_kept_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise racing writers would ask a leader without quorum as fast as they can."""
    stream = ScriptedStream(append_answers=[[(b"", WRONG_LAST)]] * 4)
    answers = Answers()
    loop = asyncio.get_running_loop()
    call_later = loop.call_later
    kept: list[Callable[[], object]] = []

    def keep(delay_s: float, job: Callable[..., object], *parts: object) -> asyncio.TimerHandle:
        if delay_s != FIRST_REFUSAL_DELAY_S:
            return call_later(delay_s, job, *parts)
        kept.append(partial(job, *parts))
        return call_later(PATIENCE_S, ignore)

    async with (
        ScriptedServer(stream.answer) as server,
        started([server.address], answers) as engine,
    ):
        monkeypatch.setattr(loop, "call_later", keep)
        engine.send(1, "vq.LOG.1", 0, [b"a"])
        await answers.wait_for("refused", 1)
        engine.send(2, "vq.LOG.1", 0, [b"a"])
        await until(lambda: kept)
        assert ("refused", 2) not in answers.told
        kept.pop()()
        assert answers.told[-1] == ("refused", 2)


def ignore() -> None:
    """Nothing is to be done any more."""


async def test_the_size_of_the_log() -> None:
    stream, answers = ScriptedStream(), Answers()
    told: list[dict[str, int]] = []
    async with (
        ScriptedServer(stream.answer) as server,
        started([server.address], answers) as engine,
    ):
        engine.ask_size(told.append)
        await until(lambda: told)
        stream.answer = lambda *_: [NO_LEADER]  # type: ignore[method-assign]
        server.answer = stream.answer
        engine.ask_size(told.append)
        await until(lambda: len(server.asked) == 2)
    [size] = told
    assert set(size) == {"bytes", "max_bytes", "records", "replicas", "current_replicas"}
    assert size["max_bytes"] == -1
    assert answers.told == []


async def test_who_knows_the_size_appends_at_the_leader_of_the_stream() -> None:
    stream, answers = ScriptedStream(), Answers()
    told: list[dict[str, int]] = []
    async with (
        ScriptedServer(stream.answer, {**INFO, "server_name": "other"}) as other,
        ScriptedServer(stream.answer, {**INFO, "server_name": "n1"}) as leader,
        started([other.address, leader.address], answers) as engine,
    ):
        await until(lambda: engine.client.is_up)
        # One that the others have not heard may be none any more.
        stream.heard_s = (60.0, 60.0)
        engine.ask_size(told.append)
        await until(lambda: told)
        assert leader.connections == 0
        stream.heard_s = (0.2, 1.0)
        engine.ask_size(told.append)
        await until(lambda: engine.client.server == str(leader.address))
        engine.send(1, "vq.LOG.1", 0, [b"a"])
        await answers.wait_for("acked", 1, 1)
        assert "vq.LOG.1" in leader.asked
        assert ("lost",) not in answers.told
