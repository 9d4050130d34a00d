"""Kills, pauses and partitions of three servers under load, with an audit of what they promised.

A *chapter* is a fresh cluster, writers that race, a reader that follows, some rounds of faults, a
SIGKILL of all servers at once, and the audit of everything. A *round* is one fault of one server or
of two, and its end.
"""

from __future__ import annotations

import asyncio
import random
import shutil
import signal
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.engine.networks import Network, Partition
from tests.engine.servers import (
    PATIENCE_S,
    STREAM,
    Cluster,
    NatsServer,
    loopback_cluster,
)
from tests.engine.talk import Questions, read_all, read_replica
from tests.engine.writers import Seen, Tail, Writer, audit, subject_of
from vouchmq.server.replication import jetstream
from vouchmq.server.replication.jetstream import API, JetStreamError
from vouchmq.server.replication.log import HEARD_S

WRITERS = 3
# Positions that share a subject, and subjects that are kept while older ones are purged.
SEGMENT_RECORDS = 40
KEPT_SEGMENTS = 3
# Each in turn, and each pair.
VICTIMS = ((0,), (1,), (2,), (0, 1), (1, 2), (2, 0))


@dataclass
class Report:
    """What was done, and what came of it."""

    rounds: Counter[str] = field(default_factory=Counter)
    of_leader: Counter[str] = field(default_factory=Counter)
    acked: int = 0
    attempts: int = 0
    refused: int = 0
    lost: int = 0
    records: int = 0
    chapters: int = 0
    replicas_read: int = 0
    purged: int = 0
    ends_asked: int = 0
    ends_behind: int = 0
    of_them_heard: int = 0
    longest_pause_s: float = 0.0
    take_overs: dict[str, Any] = field(default_factory=dict)
    wrong: list[str] = field(default_factory=list)

    def as_json(self) -> dict[str, Any]:
        """For a file."""
        return vars(self).copy()


class Chapter:
    """One cluster with its load."""

    def __init__(
        self, cluster: Cluster, report: Report, chance: random.Random, *, purges: bool = False
    ) -> None:
        self._purges = purges
        self._purged_segments = 0
        self._purging: asyncio.Task[None] | None = None
        self.cluster = cluster
        self.report = report
        self.chance = chance
        self.seen = Seen()
        self.writers: list[Writer] = []
        self.questions = Questions(cluster.addresses)
        self._tail = Tail(cluster.addresses, self.seen)
        self._probe: asyncio.Task[None] | None = None

    async def begin(self) -> None:
        """Start servers, make the stream, start the load."""
        await asyncio.to_thread(self.cluster.start)
        self.questions.client.start()
        await self.questions.create_stream(3)
        await self.questions.wait_until_current()
        for number in range(WRITERS):
            # Each begins with another server, the last one may use them all.
            addresses = self.cluster.addresses
            own = addresses[number:] + addresses[:number]
            writer = Writer(
                f"w{number}",
                own,
                self.seen,
                size_bytes=200,
                delay_s=0.004,
                segment_records=SEGMENT_RECORDS,
            )
            self.writers.append(writer)
            writer.start()
        self._tail.start()
        self._probe = asyncio.get_running_loop().create_task(self._probe_ends())
        if self._purges:
            self._purging = asyncio.get_running_loop().create_task(self._purge_old())
        await self.wait_for_acks(20)

    async def _purge_old(self) -> None:
        """Purge the oldest segments, again and again; what gets lost is asked at the end."""
        while True:
            newest = max(each.known_last for each in self.writers) // SEGMENT_RECORDS
            if newest - self._purged_segments >= KEPT_SEGMENTS:
                self.writers[0].engine.purge(subject_of(self._purged_segments))
                self._purged_segments += 1
            await asyncio.sleep(0.02)

    async def _purge_all(self) -> range:
        """Ask for all purges again; gives the sequences that must be gone."""
        for segment in range(self._purged_segments):
            request = jetstream.purge_request(subject_of(segment))
            await self.questions.keep_asking(
                f"{API}STREAM.PURGE.{STREAM}", request, jetstream.parse_done
            )
        return range(1, self._purged_segments * SEGMENT_RECORDS)

    @property
    def acked_count(self) -> int:
        """Acknowledgements of all writers."""
        return sum(each.acked_count for each in self.writers)

    async def wait_for_acks(self, count: int) -> None:
        """Wait until the log goes on."""
        goal = self.acked_count + count
        try:
            async with asyncio.timeout(PATIENCE_S):
                while self.acked_count < goal:  # noqa: ASYNC110 - writers tell nobody
                    await asyncio.sleep(0.02)
        except TimeoutError:
            states = [
                (each.name, each.engine.client.server, each.engine.trouble) for each in self.writers
            ]
            raise TimeoutError(f"no more acks than {self.acked_count}: {states}") from None

    async def _probe_ends(self) -> None:
        """Whether a leader ever tells an end that is behind what was acknowledged before."""
        while True:
            known = max(each.known_last for each in self.writers)
            try:
                answer = await self.questions.ask(f"{API}STREAM.INFO.{STREAM}", limit_s=1.0)
                info = jetstream.parse_info(answer)
            except JetStreamError:
                await asyncio.sleep(0.05)
                continue
            self.report.ends_asked += 1
            if info.state.last_seq < known:
                self.report.ends_behind += 1
                self.report.of_them_heard += info.hears_majority(HEARD_S)
            await asyncio.sleep(0.02)

    async def leader(self) -> NatsServer:
        """The server that leads the stream, as soon as there is one."""
        return self.cluster.named((await self.questions.info()).cluster.leader)

    async def fault(self, kind: str, victims: Sequence[NatsServer], wait_for_current: bool) -> None:
        """One round."""
        leader = await self.leader()
        self.report.rounds[f"{kind} {len(victims)}"] += 1
        self.report.of_leader[kind] += leader in victims
        for each in victims:
            each.signal(signal.SIGKILL if kind == "kill" else signal.SIGSTOP)
        has_quorum = len(victims) == 1
        if has_quorum and self.chance.random() < 0.6:
            # With an election, if it was the leader.
            await self.wait_for_acks(20)
            await asyncio.sleep(self.chance.random())
        else:
            await asyncio.sleep(self.chance.choice((0.1, 0.5, 2.0)))
        for each in victims:
            if kind == "kill":
                each.kill()
                each.start()
            else:
                each.signal(signal.SIGCONT)
        await self.wait_for_acks(20)
        if wait_for_current:
            await self.questions.wait_until_current()

    async def end(self) -> None:
        """Stop the load, kill all servers at once, and look at what is left."""
        for writer in self.writers:
            writer.is_ending = True
        await asyncio.sleep(0.2)
        for server in self.cluster.servers:
            server.kill()
        self._stop_tasks()
        for server in self.cluster.servers:
            server.start()
        await asyncio.to_thread(self.cluster.wait_until_ready)
        await self.questions.wait_until_current()
        # What was under way may still be answered.
        await asyncio.sleep(0.5)
        self._stop_load()
        await self._judge()

    async def _judge(self) -> None:
        purged = await self._purge_all()
        await self.questions.wait_until_current()
        log = await read_all(self.cluster.addresses)
        report = self.report
        report.purged += len(purged)
        report.wrong += audit(self.writers, self.seen, log, purged)
        for server in self.cluster.servers:
            held = await read_replica(server.server)
            report.replicas_read += 1
            if held != log:
                report.wrong.append(f"{server.name} holds {len(held)} records, not {len(log)}")
        report.chapters += 1
        report.records += len(log)
        for writer in self.writers:
            report.acked += writer.acked_count
            report.attempts += len(writer.attempts)
            report.refused += writer.refused_count
            report.lost += writer.lost_count
        report.longest_pause_s = max(report.longest_pause_s, self._longest_pause_s())

    def _longest_pause_s(self) -> float:
        """The longest time without an acknowledgement to anybody."""
        return max((each.longest_pause_s for each in self.writers), default=0.0)

    def _stop_tasks(self) -> None:
        for task in (self._probe, self._purging):
            if task is not None:
                task.cancel()

    def _stop_load(self) -> None:
        for writer in self.writers:
            writer.stop()
        self._tail.stop()

    def abandon(self) -> None:
        """Whatever has happened: no process stays."""
        self._stop_tasks()
        self._stop_load()
        self.questions.client.stop()
        self.cluster.stop()


async def run_faults(
    directory: Path,
    kinds: Sequence[str],
    report: Report,
    chance: random.Random,
    tell: Callable[[str], None],
    *,
    purges: bool = False,
) -> None:
    """One chapter with these rounds; its directory is removed if nothing was wrong."""
    chapter = Chapter(loopback_cluster(directory), report, chance, purges=purges)
    before = len(report.wrong)
    try:
        await chapter.begin()
        for kind in kinds:
            victims = VICTIMS[sum(report.rounds.values()) % len(VICTIMS)]
            servers = [chapter.cluster.servers[index] for index in victims]
            await chapter.fault(kind, servers, chance.random() < 0.7)
            names = "+".join(each.name for each in servers)
            tell(f"{kind} {names}: {chapter.acked_count} acks in this chapter")
        await chapter.end()
    finally:
        chapter.abandon()
    if len(report.wrong) == before:
        shutil.rmtree(directory)


async def run_partition(
    directory: Path,
    partition: Partition,
    report: Report,
    chance: random.Random,
    tell: Callable[[str], None],
) -> None:
    """One chapter with one partition, in network namespaces."""
    with Network() as network:
        chapter = Chapter(network.cluster(directory), report, chance)
        before = len(report.wrong)
        try:
            await chapter.begin()
            leader = await chapter.leader()
            others = [each for each in chapter.cluster.servers if each is not leader]
            report.rounds[f"partition {partition.name}"] += 1
            acked_before = chapter.acked_count
            network.cut(partition.cuts(leader.name, others[0].name, others[1].name))
            if partition.goes_on:
                await chapter.wait_for_acks(50)
                await asyncio.sleep(3 * chance.random())
            else:
                await asyncio.sleep(8 + 4 * chance.random())
            acked = chapter.acked_count - acked_before
            network.heal()
            await chapter.wait_for_acks(50)
            tell(f"partition {partition.name}: {acked} acks while it lasted")
            await chapter.questions.wait_until_current()
            await chapter.end()
        finally:
            chapter.abandon()
    if len(report.wrong) == before:
        shutil.rmtree(directory)
