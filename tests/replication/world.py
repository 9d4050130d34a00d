"""One schedule: nodes and a log, random steps, and what must be true in the end.

- what a leader told is in the log, in its epoch, byte for byte, wherever anybody reads it (so it
  was below the next claim, as what stands above is void);
- nothing of an epoch stands above the claim of the next one;
- each new leader had applied exactly what stands below its claim;
- nobody says that the log is broken;
- when all is well again, one node gets the lead and commits, and every other learns of it.
"""

from __future__ import annotations

from random import Random

from tests.replication.model_log import ModelLog
from tests.replication.nodes import Block, Node, Reader
from vouchmq.store.replication import record
from vouchmq.store.replication.log_view import LogView, Position
from vouchmq.store.replication.log_writer import LogWriter

LOG_ID = b"log of the model"
# Steps of the hardest schedule, and ticks after which a healthy log must have committed.
MOST_STEPS = 90
MOST_TICKS = 8


class World:
    """Everything that one seed brings."""

    def __init__(self, seed: int, node_class: type[Node] = Node) -> None:
        self.random = random = Random(seed)
        self.log = ModelLog(random, record.origin(LOG_ID))
        self.nodes = [node_class(self, f"n{i}") for i in range(2 + int(random.random() * 3))]
        self.promised: list[tuple[int, Block]] = []
        self.take_overs: list[tuple[str, int, int]] = []
        self.stray_count = 0
        self.block_count = 0
        self.reading_count = 0

    def took_over(self, node: Node, at: Position) -> None:
        """A node's claim stands there."""
        self.take_overs.append((node.name, at.sequence, node.reader.digest))

    def run(self) -> None:
        """Take the steps, make all well, and judge."""
        random = self.random
        # Some schedules are mostly about one leader, some mostly about claims.
        ambition = 0.02 + 0.1 * random.random()
        for _ in range(20 + int(random.random() * (MOST_STEPS - 20))):
            self._step(ambition)
        self._heal()
        self.judge()

    def _step(self, ambition: float) -> None:
        random = self.random
        if self.log.bag and random.random() < 0.5:
            self.log.step()
            return
        if random.random() < 0.02:
            self._stray()
        node = self.nodes[int(random.random() * len(self.nodes))]
        if node.writer is not None:
            self._use(node, node.writer, ambition)
        elif random.random() < 0.2 + ambition:
            node.claim()
        else:
            node.read(random.random())

    def _use(self, node: Node, writer: LogWriter, ambition: float) -> None:
        """Do something with a node that leads, or that wants to."""
        random = self.random
        chance = random.random()
        if chance < 0.48:
            node.append(int(random.random() * random.random() * 100))
            if random.random() < 0.8:
                writer.request()
        elif chance < 0.64:
            node.sync()
        elif chance < 0.77:
            writer.tick()
        elif chance < 0.80:
            writer.look()
        elif chance < 0.86:
            writer.beat()
        elif chance < 0.91:
            node.edge.lose()
        elif chance < 0.93:
            writer.hand_over()
        elif chance < 0.93 + ambition / 2:
            node.crash()

    def _stray(self) -> None:
        """Somebody appends a copy of a record of an earlier epoch."""
        messages = self.log.messages
        raw = messages[int(self.random.random() * len(messages))]
        one = record.open_record(raw)
        assert one is not None
        if one.header.kind == record.ORIGIN or one.header.epoch >= self._epoch():
            return
        messages.append(raw)
        self.stray_count += 1

    def _epoch(self) -> int:
        """The highest epoch that has a claim."""
        view = LogView()
        for sequence, raw in enumerate(self.log.messages, 1):
            view.found(sequence, raw)
        return view.at.epoch

    def _heal(self) -> None:
        """From now on everything arrives, in order; one node claims, and is to commit."""
        log = self.log
        log.is_kind = True
        self._settle()
        leader = self.nodes[0]
        before = self.block_count
        assert any(self._commits(leader, before) for _ in range(MOST_TICKS)), (
            "nobody commits in a healthy log"
        )
        for other in self.nodes[1:]:
            assert any(self._is_deposed(other) for _ in range(MOST_TICKS)), (
                f"{other.name} was not deposed"
            )
            other.read(1)

    def _commits(self, leader: Node, before: int) -> bool:
        """Let some time pass, and say whether a block was promised that is newer than those."""
        if leader.writer is None:
            leader.claim()
        writer = leader.writer
        assert writer is not None
        # More keeps coming, whatever is under way.
        leader.append(3)
        writer.request()
        writer.tick()
        self._settle()
        leader.sync()
        return bool(self.promised) and self.promised[-1][1].number > before

    def _is_deposed(self, node: Node) -> bool:
        """Let some time pass, and say whether a node knows that it does not lead."""
        if node.writer is not None:
            node.writer.beat()
            node.writer.tick()
            self._settle()
        return node.writer is None

    def _settle(self) -> None:
        log = self.log
        for _ in range(2000):
            if not log.bag:
                return
            log.step()
        raise AssertionError("nodes and log talk without end")

    def judge(self) -> None:
        """Compare what was told with what anybody reads."""
        reader = Reader(LogView(log_id=LOG_ID))
        digests = []
        for sequence, raw in enumerate(self.log.messages, 1):
            digests.append(reader.digest)
            reader.found(sequence, raw)
        assert reader.view.void_count == self.stray_count, "a record stands above a later claim"
        for name, sequence, digest in self.take_overs:
            assert digests[sequence - 1] == digest, f"{name} led without having applied everything"
        streams: dict[int, bytes] = {}
        for (generation, offset), body in reader.journal.items():
            streams[generation] = streams.get(generation, b"")[:offset] + body
        for epoch, block in self.promised:
            found = streams.get(block.generation, b"")
            assert found.startswith(block.raw, block.offset), f"a promise of epoch {epoch} is lost"
