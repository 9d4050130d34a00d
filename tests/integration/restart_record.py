"""Load that is cut off by a kill, the record its clients keep, and the judgement afterwards.

Spec: CONF-06, ACK-08, ACK-12, DURABLE-10, DURABLE-12, DURABLE-16
"""

from __future__ import annotations

import asyncio
import random
from collections import defaultdict
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pika.exceptions
from pika.channel import Channel

from tests.integration.broker_process import BrokerProcess
from tests.integration.pika_async import ConfirmLedger, call, connected, open_channel
from tests.waiting import until

QUEUES = ("restart.a", "restart.b", "restart.c")
FAN = "restart.fan"
WINDOW = 100
LEAST_CONFIRMED = 50
# A busy machine may take long over tens of thousands of deliveries; that is not judged here.


@dataclass
class Record:
    """What the clients know about one queue when the broker is killed."""

    attempted: set[bytes] = field(default_factory=set)
    confirmed: set[bytes] = field(default_factory=set)
    received: set[bytes] = field(default_factory=set)
    acked: set[bytes] = field(default_factory=set)
    # How many deliveries may have left the broker without reaching a client.
    on_the_way: int = 0


@dataclass(frozen=True)
class Plan:
    """What a round does; drawn from its seed."""

    seed: int
    padding: bytes
    pace_s: float
    spans_s: tuple[float, ...]

    @classmethod
    def of(cls, seed: int) -> Plan:
        """Odd seeds fill small segments; some are slow enough for consumers to keep up."""
        chance = random.Random(seed)
        return cls(
            seed=seed,
            padding=b"." * (4000 if seed % 2 else 0),
            pace_s=chance.choice([0.0, 0.002]),
            spans_s=tuple(chance.uniform(0.1, 0.7) for _ in range(1 + seed % 3)),
        )


class Publisher:
    """Publishes numbered messages to random queues, WINDOW unconfirmed at most."""

    def __init__(self, name: str, plan: Plan, records: dict[str, Record]) -> None:
        self.name = name
        self._plan = plan
        self._random = random.Random(f"{plan.seed}:{name}")
        self._records = records
        self._ledger: ConfirmLedger | None = None

    @property
    def confirmed_count(self) -> int:
        """How many of its messages are confirmed by now."""
        return 0 if self._ledger is None else len(self._ledger.acked)

    async def run(self, channel: Channel) -> None:
        """Publish until the channel is gone; note what was confirmed meanwhile."""
        ledger = self._ledger = ConfirmLedger(channel)
        await ledger.select()
        targets: list[tuple[bytes, tuple[str, ...]]] = []
        try:
            while channel.is_open:
                if len(ledger.pending) < WINDOW:
                    self._publish_one(ledger, targets)
                if self._plan.pace_s:
                    await asyncio.sleep(self._plan.pace_s)
                elif len(targets) % 20 == 0 or len(ledger.pending) >= WINDOW:
                    await asyncio.sleep(0.001)
        except pika.exceptions.AMQPError:
            pass
        assert not ledger.nacked
        for seqno in ledger.acked:
            body, queues = targets[seqno - 1]
            for queue in queues:
                self._records[queue].confirmed.add(body)

    def _publish_one(
        self, ledger: ConfirmLedger, targets: list[tuple[bytes, tuple[str, ...]]]
    ) -> None:
        body = b"%s:%d" % (self.name.encode(), len(targets) + 1)
        chosen = self._random.choice([*QUEUES, FAN])
        queues = QUEUES if chosen == FAN else (chosen,)
        for queue in queues:
            self._records[queue].attempted.add(body)
        targets.append((body, queues))
        exchange, key = (FAN, "") if chosen == FAN else ("", chosen)
        ledger.publish(exchange, key, body + self._plan.padding)


class Consumer:
    """Acks most of what it gets, requeues some, holds some until its window is full."""

    def __init__(self, queue: str, plan: Plan, record: Record) -> None:
        self.queue = queue
        self._random = random.Random(f"{plan.seed}:{queue}")
        self._record = record
        self._held: list[tuple[int, bytes]] = []
        self._prefetch = self._random.choice([1, 2, 7, 30])
        record.on_the_way += self._prefetch

    async def start(self, channel: Channel) -> None:
        """Subscribe."""
        await call(channel.basic_qos, prefetch_count=self._prefetch)
        await call(channel.basic_consume, self.queue, self._take)

    def _take(self, channel: Channel, method: Any, _: object, padded: bytes) -> None:
        body = padded.rstrip(b".")
        if not method.redelivered:
            assert body not in self._record.received, f"{body!r} came twice, not redelivered"
        self._record.received.add(body)
        self._held.append((method.delivery_tag, body))
        if self._random.random() < 0.3 and len(self._held) < self._prefetch:
            return
        tag, chosen = self._held.pop(self._random.randrange(len(self._held)))
        if self._random.random() < 0.15:
            channel.basic_nack(tag, requeue=True)
        else:
            self._record.acked.add(chosen)
            channel.basic_ack(tag)


async def load(
    broker: BrokerProcess, plan: Plan, generation: int, records: dict[str, Record]
) -> None:
    """Publish and consume, and kill the broker in the middle."""
    async with connected(broker.url) as setup_side:
        setup = await open_channel(setup_side)
        await call(setup.exchange_declare, FAN, "fanout", durable=True)
        for queue in QUEUES:
            await call(setup.queue_declare, queue, durable=True)
            await call(setup.queue_bind, queue, FAN)
    async with connected(broker.url) as one, connected(broker.url) as two:
        publishers = [Publisher(f"{initial}{generation}", plan, records) for initial in "pqr"]
        work = [
            asyncio.create_task(publisher.run(await open_channel(side)))
            for publisher, side in zip(publishers, (one, one, two), strict=True)
        ]
        for queue in QUEUES:
            await Consumer(queue, plan, records[queue]).start(await open_channel(two))

        def is_loaded() -> bool:
            count = sum(publisher.confirmed_count for publisher in publishers)
            return count >= LEAST_CONFIRMED and any(each.received for each in records.values())

        await until(is_loaded)
        await asyncio.sleep(plan.spans_s[generation])
        await asyncio.to_thread(broker.kill9)
        await until(lambda: one.is_closed and two.is_closed)
        await asyncio.gather(*work)


def holds_all(taken: list[tuple[bytes, bool]], count: int) -> bool:
    """True when everything has come."""
    return len(taken) >= count


async def take_all(broker: BrokerProcess) -> dict[str, list[tuple[bytes, bool]]]:
    """Everything in the queues after the restart, in order."""
    found: dict[str, list[tuple[bytes, bool]]] = {}
    async with connected(broker.url) as connection:
        channel = await open_channel(connection)
        for queue in QUEUES:
            taken: list[tuple[bytes, bool]] = []
            reply = await call(channel.queue_declare, queue, passive=True)

            def take(_: Channel, method: Any, __: object, body: bytes, taken: Any = taken) -> None:
                taken.append((body.rstrip(b"."), method.redelivered))

            await call(channel.basic_consume, queue, take, auto_ack=True)
            count = reply.method.message_count
            await until(partial(holds_all, taken, count))
            assert len(taken) == count
            found[queue] = taken
        await asyncio.sleep(0.1)
    return found


def check(queue: str, record: Record, found: list[tuple[bytes, bool]]) -> None:
    """Compare what is in the queue with what the clients know."""
    bodies = [body for body, _ in found]
    assert len(bodies) == len(set(bodies)), f"{queue}: a message is there twice"
    assert set(bodies) <= record.attempted, f"{queue}: something nobody published"
    missing = record.confirmed - record.acked - set(bodies)
    assert not missing, f"{queue}: {len(missing)} confirmed messages are gone: {missing}"
    by_publisher: dict[bytes, list[int]] = defaultdict(list)
    for body in bodies:
        publisher, number = body.split(b":")
        by_publisher[publisher].append(int(number))
    for publisher, numbers in by_publisher.items():
        assert numbers == sorted(numbers), f"{queue}: the order of {publisher!r} is broken"
    silent = [body for body, again in found if body in record.received and not again]
    assert not silent, f"{queue}: delivered before, but not told: {silent}"
    # A full window of messages may have been sent and never reached its client; what lies
    # behind them cannot have been delivered.
    untouched = [again for body, again in found if body not in record.received]
    told = untouched.count(True)
    assert told <= record.on_the_way, f"{queue}: {told} told as redelivered, never delivered"
    first_clean = untouched.index(False) if False in untouched else len(untouched)
    assert told == first_clean, f"{queue}: told as redelivered behind one that is not"
