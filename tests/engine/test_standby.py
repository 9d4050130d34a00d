"""Standbys over a real server: they copy, heal, cut off what was never committed, and take over."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from tests.engine.machines import LOG_ID, QUEUE, Machine
from tests.engine.servers import (
    MISSING,
    STREAM,
    NatsServer,
    loopback_cluster,
    program,
    running_server,
)
from tests.engine.talk import Questions, read_all
from vouchmq.server.replication import jetstream, standby
from vouchmq.server.replication.jetstream import API
from vouchmq.store.recovery.recover import Recovered
from vouchmq.store.replication import record

pytestmark = pytest.mark.skipif(program() is None, reason=MISSING)

BLOCK_BYTES = 3000


@pytest.fixture
def server(tmp_path: Path) -> Iterator[NatsServer]:
    """One server, running."""
    with running_server(tmp_path / "engine") as made:
        yield made


async def create_log(server: NatsServer, replicas: int = 1) -> None:
    """Make the stream, with its first record."""
    async with Questions([server.server]) as questions:
        await questions.create_stream(replicas)
        await questions.keep_asking(
            f"vq.{STREAM}.epochs",
            record.origin(LOG_ID),
            lambda message: jetstream.parse_ack(message, STREAM),
        )


@asynccontextmanager
async def machines(server: NatsServer, tmp_path: Path, *names: str) -> AsyncIterator[list[Machine]]:
    """Machines on a new log; none of them does anything yet."""
    await create_log(server)
    made = [Machine(name, tmp_path / name, [server.server]) for name in names]
    try:
        yield made
    finally:
        for each in made:
            await each.stop()


def raws(count: int, size: int = BLOCK_BYTES) -> list[bytes]:
    return [random.randbytes(size) for _ in range(count)]


async def fill(leader: Machine, count: int) -> list[bytes]:
    """Publish so many messages, each in a block."""
    messages = raws(count)
    for message in messages:
        await leader.publish([message])
    return messages


async def turn_over(leader: Machine, messages: list[bytes]) -> list[bytes]:
    """Have the first segments go, from its disk and from the log; return what is left."""
    first = min(leader.segments())
    while first in leader.segments():
        await leader.settle(messages)
        messages = await fill(leader, 40)
    return messages


def live(recovered: Recovered) -> list[bytes]:
    """What is in the queue."""
    assert recovered.report.damaged == []
    return [raw for _, raw, _ in recovered.queues[QUEUE].messages]


async def test_a_standby_has_what_the_leader_has(server: NatsServer, tmp_path: Path) -> None:
    async with machines(server, tmp_path, "first", "second", "late") as (first, second, late):
        first.start()
        await first.lead()
        following = second.start()
        await fill(first, 30)
        # In parts, as it is larger than a record.
        await first.publish(raws(1, 1_200_000))
        await fill(first, 30)
        late.start()
        for each in (second, late):
            await each.has_all()
            await each.stop()
            assert each.differences(first) == []
        assert len(first.segments()) > 3
        progress = following.progress
        assert progress.lag == 0
        assert progress.leader == "first"
        assert progress.heard_at is not None
        assert progress.caught_up_at is not None
        assert progress.synced_sequence <= progress.at.sequence == progress.end
        assert second.handovers == 0


async def test_a_take_over_has_all_that_was_confirmed(server: NatsServer, tmp_path: Path) -> None:
    async with machines(server, tmp_path, "first", "second") as (first, second):
        first.start()
        await first.lead()
        second.start()
        messages = await fill(first, 20)
        await first.settle(messages[:5])
        await first.stop()
        recovered = await second.lead()
        assert live(recovered) == messages[5:]
        # And back again.
        messages += await fill(second, 20)
        await first.restart()
        await second.stop()
        recovered = await first.lead()
        assert live(recovered) == messages[5:]


async def test_what_was_never_committed_is_cut_off(server: NatsServer, tmp_path: Path) -> None:
    async with machines(server, tmp_path, "first", "second") as (first, second):
        first.start()
        await first.lead()
        messages = await fill(first, 5)
        first.engine.stop()
        journal = first.journal
        assert journal is not None
        for message in raws(60):
            journal.append_run((QUEUE,), b"tail", [message])
            journal.write()
        second.start()
        recovered = await second.lead()
        assert live(recovered) == messages
        await fill(second, 5)
        assert first.segments().keys() > second.segments().keys()
        await first.restart()
        await first.has_all()
        assert first.differences(second) == []


@pytest.mark.parametrize("damage", ["flipped bit", "missing file", "everything"])
async def test_damaged_segments_are_read_again(
    server: NatsServer, tmp_path: Path, damage: str
) -> None:
    async with machines(server, tmp_path, "first", "second") as (first, second):
        first.start()
        await first.lead()
        second.start()
        messages = await fill(first, 60)
        await second.has_all()
        await second.stop()
        # It is behind as well when it starts again.
        messages += await fill(first, 60)
        names = sorted(second.segments())
        assert len(names) >= 3
        wounded = names if damage == "everything" else names[1:2]
        for name in wounded:
            if damage == "missing file":
                (second.directory / name).unlink()
            else:
                second.corrupt(int(name.split(".")[0]), 5000)
        following = await second.restart()
        assert following.progress.damaged
        await second.has_all()
        assert second.differences(first) == []
        # Of a missing one, the one before may have lost its end.
        assert following.progress.healed_count >= len(wounded)
        assert not list(second.directory.glob("*.healing"))
        await first.stop()
        recovered = await second.lead()
        assert live(recovered) == messages


async def test_damage_that_the_log_has_as_well(
    server: NatsServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is tried again; the node follows, but cannot take over until nobody needs the segment."""
    monkeypatch.setattr(standby, "HEAL_AGAIN_S", 0.1)
    async with machines(server, tmp_path, "first", "second") as (first, second):
        first.start()
        await first.lead()
        second.start()
        messages = await fill(first, 60)
        await second.has_all()
        await second.stop()
        second.corrupt(1, 5000)
        async with Questions([server.server]) as questions:
            await questions.up.wait()
            request = jetstream.purge_request(f"vq.{STREAM}.1")
            parse = jetstream.parse_done
            await questions.keep_asking(f"{API}STREAM.PURGE.{STREAM}", request, parse)
        following = await second.restart()
        await second.until(lambda: second.ends > 3)
        assert list(following.progress.damaged) == [1]
        assert not following.progress.is_complete
        messages = await turn_over(first, messages)
        await second.has_all()
        assert not following.progress.damaged
        await first.stop()
        assert live(await second.lead()) == messages


async def test_purged_segments_are_passed_over(server: NatsServer, tmp_path: Path) -> None:
    async with machines(server, tmp_path, "first", "second", "third") as (first, second, third):
        first.start()
        await first.lead()
        second.start()
        messages = await fill(first, 30)
        await second.has_all()
        await second.stop()
        messages = await turn_over(first, messages)
        assert min(first.segments()) > min(second.segments())
        await first.stop()
        await second.restart()
        third.start()
        assert live(await second.lead()) == messages
        await second.stop()
        assert live(await third.lead()) == messages


async def test_a_take_over_reads_no_full_segment(server: NatsServer, tmp_path: Path) -> None:
    """Their summaries have been made meanwhile."""
    async with machines(server, tmp_path, "first", "second") as (first, second):
        first.start()
        await first.lead()
        second.start()
        messages = await fill(first, 100)
        await second.has_all()
        full = len(second.segments()) - 1
        assert full >= 3
        await second.until(lambda: len(list(second.directory.glob("*.summary"))) >= full)
        await first.stop()
        recovered = await second.lead()
        assert recovered.report.unread_segments >= full
        assert live(recovered) == messages


async def test_a_server_that_is_killed(server: NatsServer, tmp_path: Path) -> None:
    async with machines(server, tmp_path, "first", "second") as (first, second):
        first.start()
        await first.lead()
        following = second.start()
        for _ in range(3):
            await fill(first, 10)
            await second.has_all()
            server.kill()
            server.start()
            await fill(first, 10)
        await second.has_all()
        assert second.differences(first) == []
        assert following.progress.lag == 0


async def test_more_than_the_worker_can_take(
    server: NatsServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Readings are held, and go on."""
    monkeypatch.setattr(standby, "HOLD_BYTES", 20_000)
    monkeypatch.setattr(standby, "SLICE_BYTES", 5_000)
    monkeypatch.setattr(standby, "SYNC_BYTES", 10_000)
    async with machines(server, tmp_path, "first", "second") as (first, second):
        first.start()
        await first.lead()
        await fill(first, 300)
        held = 0
        hold = second.engine.hold_reading

        def count() -> None:
            nonlocal held
            held += 1
            hold()

        monkeypatch.setattr(second.engine, "hold_reading", count)
        second.start()
        await second.has_all()
        assert second.differences(first) == []
        assert held >= 2


async def test_a_log_that_has_lost_its_end(server: NatsServer, tmp_path: Path) -> None:
    async with machines(server, tmp_path, "first", "second") as (first, second):
        first.start()
        await first.lead()
        second.start()
        await fill(first, 20)
        await second.has_all()
        await second.stop()
        before = second.segments()
        log = await read_all([server.server])
        async with Questions([server.server]) as questions:
            await questions.up.wait()
            await questions.ask(f"{API}STREAM.DELETE.{STREAM}")
            await questions.create_stream(1)
            for _, raw in log[:-3]:
                await questions.keep_asking(
                    f"vq.{STREAM}.1", raw, lambda message: jetstream.parse_ack(message, STREAM)
                )
        await second.restart()
        await second.until(lambda: bool(second.reasons))
        assert "log" in second.reasons[0]
        assert second.segments() == before


@pytest.mark.slow
async def test_leaders_of_the_engine_that_die(tmp_path: Path) -> None:
    """Half a minute: each election of the engine takes seconds."""
    cluster = loopback_cluster(tmp_path / "engine")
    made: list[Machine] = []
    try:
        cluster.start()
        await create_log(cluster.servers[0], 3)
        addresses = cluster.addresses
        made = [Machine(name, tmp_path / name, addresses) for name in ("first", "second")]
        first, second = made
        first.start()
        await first.lead()
        second.start()
        for _ in range(3):
            await fill(first, 20)
            async with Questions(addresses) as questions:
                info = await questions.wait_until_current()
            server = cluster.named(info.cluster.leader)
            server.kill()
            await fill(first, 20)
            await second.has_all()
            assert second.differences(first) == []
            server.start()
    finally:
        for each in made:
            await each.stop()
        cluster.stop()
