"""Leaders over real servers: killed, deaf, asked to hand over, while servers are lost as well."""

from __future__ import annotations

import asyncio
import random
import signal
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.engine.nodes import LOG_ID, History, Node, audit
from tests.engine.servers import PATIENCE_S, STREAM, Cluster, loopback_cluster
from tests.engine.talk import Questions, read_all
from vouchmq.server.replication import jetstream
from vouchmq.store.replication import record

# Shorter than outside of tests.
TAKEOVER_AFTER_S = 2.0


class Group:
    """Three nodes, three servers."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.history = History()
        self.nodes: list[Node] = []

    async def start(self) -> None:
        """Start servers, make the log, start nodes."""
        await asyncio.to_thread(self.cluster.start)
        async with Questions(self.cluster.addresses) as questions:
            await questions.create_stream(3)
            await questions.wait_until_current()
            await questions.keep_asking(
                f"vq.{STREAM}.epochs",
                record.origin(LOG_ID),
                lambda message: jetstream.parse_ack(message, STREAM),
            )
        for rank in range(3):
            addresses = self.cluster.addresses[rank:] + self.cluster.addresses[:rank]
            node = Node(f"node{rank}", rank, addresses, self.history, TAKEOVER_AFTER_S)
            self.nodes.append(node)
            node.start()

    async def leader(self) -> Node:
        """The node that leads, and has commits."""
        await self._wait_for(lambda: any(each.is_leading for each in self.nodes), "a leader")
        await self.go_on()
        return next(each for each in self.nodes if each.is_leading)

    async def go_on(self, count: int = 30) -> None:
        """Wait until something is committed."""
        goal = len(self.history.promised) + count
        await self._wait_for(lambda: len(self.history.promised) >= goal, "commits")

    async def _wait_for(self, holds: Callable[[], bool], what: str) -> None:
        try:
            async with asyncio.timeout(PATIENCE_S):
                while not holds():  # noqa: ASYNC110 - nodes tell nobody
                    await asyncio.sleep(0.02)
        except TimeoutError:
            states = [
                (each.name, each.roles.role.value, each.engine.trouble) for each in self.nodes
            ]
            raise TimeoutError(f"waited in vain for {what}: {states}") from None

    async def take_over(self, what: str) -> None:
        """One way to lose a leader, and wait for the next."""
        node = await self.leader()
        before = len(self.history.leads)
        match what:
            case "kill":
                node.stop()
            case "hand over":
                assert node.roles.hand_over()
            case "deaf":
                # It has something under way and hears no answer: either it reads what has become of
                # that over another connection, or somebody else leads by then.
                connection = node.engine.client._connection
                assert connection is not None
                assert connection._transport is not None
                connection._transport.pause_reading()
                await self.go_on()
                return
        await self._wait_for(lambda: len(self.history.leads) > before, "another leader")
        await self.go_on()
        if what == "kill":
            node.restart()

    def stop(self) -> None:
        """No node and no process stays."""
        for node in self.nodes:
            node.stop()
        self.cluster.stop()


@dataclass
class TakeOvers:
    """What was done, and what came of it."""

    ways: Counter[str] = field(default_factory=Counter)
    leads: list[str] = field(default_factory=list)
    ends: Counter[str] = field(default_factory=Counter)
    passed_over: int = 0
    promised: int = 0
    records: int = 0
    wrong: list[str] = field(default_factory=list)


WAYS = ("kill", "hand over", "deaf")


async def run_take_overs(
    directory: Path, ways: Sequence[str], chance: random.Random, tell: Callable[[str], None]
) -> TakeOvers:
    """Lose the leader in these ways, and a server behind each."""
    group = Group(loopback_cluster(directory))
    done = TakeOvers()
    try:
        await group.start()
        for number, way in enumerate(ways):
            await group.take_over(way)
            done.ways[way] += 1
            server = group.cluster.servers[number % 3]
            if chance.random() < 0.5:
                server.kill()
                await group.go_on()
                server.start()
            else:
                server.signal(signal.SIGSTOP)
                await group.go_on()
                server.signal(signal.SIGCONT)
            tell(f"{way}, {server.name}: {group.history.leads[-1]}")
        for node in group.nodes:
            node.stop()
        await asyncio.to_thread(group.cluster.wait_until_ready)
        log = await read_all(group.cluster.addresses)
    finally:
        group.stop()
    history = group.history
    done.leads, done.passed_over = history.leads, history.passed_over
    done.ends.update(each.partition(": ")[2] for each in history.ends)
    done.promised, done.records = len(history.promised), len(log)
    done.wrong = audit(history, log)
    return done
