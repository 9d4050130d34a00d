"""What a channel publishes, against each message routed by itself.

Runs through exchanges of all types that pass on, stand in for each other and know keys. The
topology changes in between, so that nothing a channel has kept of it is good the second time.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any

import pytest
from pamqp import commands

from tests import wire
from tests.property.routing_oracles import topic_oracle
from tests.unit.server.in_memory import World, delivery, name_of
from vouchmq.protocol.runs import SIZE
from vouchmq.server.broker.definitions import decode
from vouchmq.server.broker.features.dedup import Key
from vouchmq.server.cli.data_dir.store_names import Names

STEPS = 40
EXCHANGES = ("v", "w", "x", "y")
TYPES = ("fanout", "direct", "topic", "headers")
QUEUES = ("p", "q", "r")
KEYS = ("a", "b", "a.b")
PATTERNS = (*KEYS, "#", "a.*")
HEADER = "x-deduplication-header"
PLAIN, CONFIRMING, TRANSACTING = 1, 2, 3


@dataclass
class Plan:
    """An exchange, and what it has let pass: the body of each key's message."""

    type: str
    alternate: str | None
    has_keys: bool
    known: dict[str, bytes] = field(default_factory=dict)


@dataclass(frozen=True)
class Edge:
    """A binding; its header counts for exchanges that look at headers."""

    source: str
    destination: str
    key: str
    header: str


@dataclass(frozen=True)
class Sent:
    """A message."""

    body: bytes
    header: str | None
    key: str | None

    def properties(self, mode: int) -> commands.Basic.Properties:
        found: dict[str, Any] = {}
        if self.header is not None:
            found["h"] = self.header
        if self.key is not None:
            found[HEADER] = self.key
        return commands.Basic.Properties(delivery_mode=mode, headers=found or None)


class History:
    """One broker and what should be there."""

    def __init__(self, seed: int) -> None:
        self.draw = random.Random(seed)
        self.world = World()
        self.plans: dict[str, Plan] = {}
        self.edges: list[Edge] = []
        self.count = 0
        self.confirmed_count = 0
        # Stories in which nothing looks at messages, or few do, take other ways.
        self.types = self.draw.choice((TYPES, TYPES, ("fanout", "direct")))
        self.keyed = self.draw.choice((0.0, 0.3, 0.6))
        self.client = self.world.connect()
        for channel in (PLAIN, CONFIRMING, TRANSACTING):
            self.client.open(channel)
        self.client.ask(CONFIRMING, commands.Confirm.Select())
        self.client.ask(TRANSACTING, commands.Tx.Select())
        self.taker = self.world.connect()
        self.taker.open()
        for name in QUEUES:
            self.client.declare(name, durable=True)
            self.taker.consume(name, name, no_ack=True)
        for name in EXCHANGES:
            self.declare(name)
        for _ in range(6):
            self.bind()
        # In some stories there is time for a message or two in a turn (LIMIT-23).
        self.world.tick_s = self.draw.choice((0.0, 0.0, 0.0005, 0.002))

    # The topology

    def declare(self, name: str) -> None:
        """An exchange in place of the one that is there."""
        if name in self.plans:
            self.client.ask(1, commands.Exchange.Delete(exchange=name))
            self.edges = [
                edge for edge in self.edges if name not in (edge.source, edge.destination)
            ]
        alternate = self.draw.choice((None, None, "nowhere", *EXCHANGES))
        plan = Plan(self.draw.choice(self.types), alternate, self.draw.random() < self.keyed)
        arguments: dict[str, Any] = {}
        if alternate is not None:
            arguments["alternate-exchange"] = alternate
        if plan.has_keys:
            arguments |= {"x-message-deduplication": True, "x-cache-size": 1000}
        declared = commands.Exchange.Declare(
            exchange=name, exchange_type=plan.type, durable=True, arguments=arguments
        )
        self.client.ask(1, declared)
        self.plans[name] = plan

    def replace(self, name: str) -> None:
        """A queue by one of the same name that nothing leads to."""
        self.client.ask(1, commands.Queue.Delete(queue=name))
        self.edges = [edge for edge in self.edges if edge.destination != name]
        assert self.taker.names() == ["Basic.Cancel"]
        self.client.declare(name, durable=True)
        self.taker.consume(name, name, no_ack=True)

    def bind(self) -> None:
        to = self.draw.choice((*QUEUES, *QUEUES, *EXCHANGES))
        key, header = self.draw.choice(PATTERNS), self.draw.choice("12")
        edge = Edge(self.draw.choice(EXCHANGES), to, key, header)
        self.change(edge, commands.Queue.Bind, commands.Exchange.Bind)
        if edge not in self.edges:
            self.edges.append(edge)

    def unbind(self) -> None:
        if self.edges:
            edge = self.edges.pop(self.draw.randrange(len(self.edges)))
            self.change(edge, commands.Queue.Unbind, commands.Exchange.Unbind)

    def change(self, edge: Edge, of_queue: Any, of_exchange: Any) -> None:
        table = {"x-match": "all", "h": edge.header}
        verb = of_queue if edge.destination in QUEUES else of_exchange
        ends = (0, edge.destination, edge.source, edge.key)
        _, said = self.client.ask(1, verb(*ends, arguments=table))
        assert name_of(said) == verb.name + "Ok"

    # What should become of a message

    def targets(self, source: str, key: str, sent: Sent, seen: dict[str, bool]) -> set[str]:
        """EXCH-30, EXCH-60 and DUP-11; `seen` is told of each exchange whether it stopped it."""
        if source in seen or source not in self.plans:
            return set()
        plan = self.plans[source]
        seen[source] = plan.has_keys and sent.key in plan.known
        if seen[source]:
            return set()
        onward = [
            edge.destination
            for edge in self.edges
            if edge.source == source and self.matches(plan.type, edge, key, sent)
        ]
        if not onward and plan.alternate is not None:
            onward = [plan.alternate]
        found: set[str] = set()
        for target in onward:
            found |= {target} if target in QUEUES else self.targets(target, key, sent, seen)
        return found

    def matches(self, kind: str, edge: Edge, key: str, sent: Sent) -> bool:
        if kind == "topic":
            return topic_oracle(edge.key.split("."), key.split("."))
        if kind == "headers":
            return sent.header == edge.header
        return kind == "fanout" or edge.key == key

    # Deeds

    def publish(self) -> None:
        """A run of several kinds, or messages that share nothing; keys come again at times."""
        exchange, key = self.draw.choice(EXCHANGES), self.draw.choice(KEYS)
        mode, channel = self.draw.choice((1, 2, 2)), self.draw.choice((1, 2, 2, 3))
        is_varied, is_mandatory = self.draw.random() < 0.6, self.draw.random() < 0.5
        is_unlike = self.draw.random() < 0.5
        is_kept = channel != TRANSACTING or self.draw.random() < 0.7
        run: list[Sent] = []
        ways: list[tuple[str, str, int]] = []
        header = self.draw.choice((None, "1", "2"))
        for _ in range(self.draw.randint(1, 12 if is_unlike else 5)):
            self.count += 1
            if is_unlike:
                exchange, key = self.draw.choice(EXCHANGES), self.draw.choice(KEYS)
                mode = self.draw.choice((mode, mode, 1, 2))
            ways.append((exchange, key, mode))
            if is_varied:
                header = self.draw.choice((None, "1", "2"))
            again = self.draw.random() < 0.2
            dedup_key = f"k{self.draw.randint(1, self.count) if again else self.count}"
            if not self.keyed or self.draw.random() < 0.1:
                dedup_key = ""
            run.append(Sent(b"%d" % self.count, header, dedup_key or None))
        self.client.send(
            *(
                wire.publish(
                    channel,
                    key,
                    sent.body,
                    sent.properties(mode),
                    exchange=exchange,
                    mandatory=is_mandatory,
                )
                for sent, (exchange, key, mode) in zip(run, ways, strict=True)
            )
        )
        if channel == TRANSACTING:
            end = commands.Tx.Commit() if is_kept else commands.Tx.Rollback()
            self.client.method(channel, end)
        self.world.sync()
        stored: list[bytes] = []
        wanted = {name: list[bytes]() for name in QUEUES}
        nowhere: list[bytes] = []
        for sent, (exchange, key, mode) in zip(run, ways, strict=True) if is_kept else ():
            seen: dict[str, bool] = {}
            names = self.targets(exchange, key, sent, seen)
            for name in names:
                wanted[name].append(sent.body)
            if names and mode == 2:
                stored.append(sent.body)
            if not names and not any(seen.values()):
                nowhere.append(sent.body)
            for name, was_stopped in seen.items():
                if names and sent.key is not None and self.plans[name].has_keys and not was_stopped:
                    self.plans[name].known[sent.key] = sent.body if mode == 2 else b""
        self.check_stored(stored)
        self.check(wanted, nowhere if is_mandatory else [], len(run), channel)

    def check_stored(self, wanted: list[bytes]) -> None:
        """Persistent messages are in the journal, once each, and no others (CONF-06)."""
        runs = self.world.calls.runs
        raws = [raw for _, _, raws in runs for raw in raws]
        runs.clear()
        assert sorted(raw[15 + SIZE.unpack_from(raw, 3)[0] : -1] for raw in raws) == sorted(wanted)

    def check(
        self, wanted: dict[str, list[bytes]], returned: list[bytes], count: int, channel: int
    ) -> None:
        got = {name: list[bytes]() for name in QUEUES}
        for tag, _, body, _ in map(delivery, (what for _, what in self.taker.hear())):
            got[tag].append(body)
        assert got == wanted
        said = [what for _, what in self.client.hear()]
        assert [what.body for what in said if isinstance(what, wire.Content)] == returned
        acks = [what for what in said if isinstance(what, commands.Basic.Ack)]
        if channel == CONFIRMING:
            self.confirmed_count += count
            assert max(ack.delivery_tag or 0 for ack in acks) == self.confirmed_count
        self.check_keys()

    def check_keys(self) -> None:
        """DUP-08: a duplicate is confirmed when the message that has its key is on disk."""
        for name, plan in self.plans.items():
            window = self.world.vhost.exchanges[name].window
            assert (window is not None) is plan.has_keys
            for key, body in plan.known.items():
                assert window is not None
                lsn = window.find(Key(b"s" + key.encode(), None))
                assert lsn is not None
                if body:
                    ((raw, _),) = self.world.journal.fetch([lsn])
                    assert raw.endswith(b"%s\xce" % body), (key, lsn)
                else:
                    assert lsn == 0

    def check_definitions(self) -> None:
        """What the journal was told adds up to what there is (DURABLE-01)."""
        names = Names()
        for record in self.world.calls.records:
            names.add(decode(record))
        kept = {name: kind for (_, name), kind in names.exchanges.items()}
        assert kept == {name: plan.type for name, plan in self.plans.items()}
        bound = {(each[1], each[3], each[4]) for each in names.bindings}
        assert bound == {(edge.source, edge.destination, edge.key) for edge in self.edges}
        assert len(names.bindings) == len(self.edges)
        assert {name for _, name in names.queues.values()} >= set(QUEUES)

    def step(self) -> None:
        deed = self.draw.random()
        if deed < 0.7:
            self.publish()
        elif deed < 0.82:
            self.bind()
        elif deed < 0.92:
            self.unbind()
        elif deed < 0.97:
            self.declare(self.draw.choice(EXCHANGES))
        else:
            self.replace(self.draw.choice(QUEUES))


@pytest.mark.parametrize("seed", range(60))
def test_a_run_goes_where_each_of_its_messages_would(seed: int) -> None:
    """EXCH-30, EXCH-60, PUB-10, PUB-20, DUP-07, DUP-08, DUP-11, TX-09."""
    history = History(seed)
    for _ in range(STEPS):
        history.step()
    history.check_definitions()
