"""Clients of dead letters, delays, de-duplication and streams.

They run beside those of `clients` and hold the same rules: one thread and one connection each,
every act is noted first, whatever is no end of the connection is a complaint.
"""

from __future__ import annotations

import random
import time
from collections import deque
from dataclasses import dataclass
from typing import Any, Final

import pamqp.body
import pamqp.commands as amqp
import pamqp.frame
import pamqp.header
from pamqp.common import FieldTable

from tests.fault.clients import Scene, padded
from tests.fault.ledger import name_of
from tests.fault.special_ledger import DeadLetters, Delays, Keys, Offsets, Record
from tests.integration.raw_client import RawClient, method

# Queues whose messages die, by their names; the dead of each are in NAME.dead.
MORTAL: Final[dict[str, FieldTable]] = {
    "special.plain": {"x-delivery-limit": 2},
    "special.levels": {
        "x-delivery-limit": 2,
        "x-max-priority": 4,
        "x-dead-letter-strategy": "at-least-once",
    },
    "special.quorum": {"x-queue-type": "quorum", "x-delivery-limit": 2},
    "special.short": {"x-delivery-limit": 2, "x-message-ttl": 3000},
}
LATER: Final = "special.later"
LATER_QUEUE: Final = "special.later.queue"
KEYS: Final = "special.keys"
STREAM: Final = "special.stream"
# Publishes that only make sure what was said before them on the same channel.
FENCE: Final = "special.fence"
FENCE_NAME: Final = b"fence"
WINDOW_KEYS: Final = 100_000
PREFETCH: Final = 20
PACE_S: Final = 0.004
DELAYS_MS: Final = (1, 20, 100, 300, 1000, 2500)


@dataclass(frozen=True, slots=True)
class Delivery:
    """One delivery, its body without padding."""

    tag: int
    queue: str
    name: bytes
    redelivered: bool
    headers: dict[str, Any]


class Line:
    """Channel 1 of a connection in confirm mode: publishes with headers, takes what comes."""

    def __init__(self, client: RawClient, record: Record, chance: random.Random) -> None:
        self.client = client
        self.pending: dict[int, bytes] = {}
        self.arrived: deque[Delivery] = deque()
        self._record = record
        self._chance = chance
        self._seqno = 0
        self._last_tag = 0
        self._ready = 0
        client.open_channel()
        client.call(1, amqp.Confirm.Select(), amqp.Confirm.SelectOk)

    def publish(
        self,
        exchange: str,
        key: str,
        name: bytes,
        headers: FieldTable | None = None,
        *,
        priority: int | None = None,
    ) -> bytes:
        """The octets of a persistent publish, which the record knows of already."""
        self._seqno += 1
        self.pending[self._seqno] = name
        body = padded(name, self._chance)
        properties = amqp.Basic.Properties(headers=headers, delivery_mode=2, priority=priority)
        header = pamqp.header.ContentHeader(body_size=len(body), properties=properties)
        pieces = [
            method(1, amqp.Basic.Publish(exchange=exchange, routing_key=key)),
            pamqp.frame.marshal(header, 1),
        ]
        if body:
            pieces.append(pamqp.frame.marshal(pamqp.body.ContentBody(body), 1))
        return b"".join(pieces)

    def consume(
        self, queue: str, arguments: FieldTable | None = None, prefetch: int = PREFETCH
    ) -> None:
        """Consume, with the queue's name as the tag."""
        self.client.call(1, amqp.Basic.Qos(prefetch_count=prefetch), amqp.Basic.QosOk)
        self.client.send(
            method(1, amqp.Basic.Consume(queue=queue, consumer_tag=queue, arguments=arguments))
        )

    def take(self) -> None:
        """Read one method: a delivery is put into `arrived`, a confirm is noted."""
        _, value = self.client.read()
        assert not isinstance(value, amqp.Channel.Close | amqp.Connection.Close), (
            f"{value.reply_code} {value.reply_text}"
        )
        if isinstance(value, amqp.Basic.Deliver):
            self.arrived.append(self._delivery(value))
        elif isinstance(value, amqp.Queue.DeclareOk):
            self._ready = value.message_count or 0
        elif isinstance(value, amqp.Basic.Ack | amqp.Basic.Nack):
            tag = value.delivery_tag or 0
            tags = [n for n in self.pending if n <= tag] if value.multiple else [tag]
            names = [name for name in map(self.pending.pop, tags) if name != FENCE_NAME]
            is_ack = isinstance(value, amqp.Basic.Ack)
            (self._record.confirmed if is_ack else self._record.refused)(names)

    def settle(self) -> None:
        """Read until every publish is confirmed."""
        while self.pending:
            self.take()

    def take_deliveries(self, count: int) -> list[Delivery]:
        """Read until so many deliveries have come."""
        while len(self.arrived) < count:
            self.take()
        found = list(self.arrived)
        self.arrived.clear()
        return found

    def ready_count(self, queue: str) -> int:
        """How many are ready; deliveries that come before the answer are kept."""
        self._ready = -1
        self.client.send(method(1, amqp.Queue.Declare(queue=queue, passive=True)))
        while self._ready < 0:
            self.take()
        return self._ready

    def drain(self, tag: int | None = None) -> None:
        """Ack up to `tag`, or all that was taken, and make that sure by a publish behind it."""
        last = self._last_tag if tag is None else tag
        if last:
            self.ack(last, multiple=True)
        self.client.send(self.publish("", FENCE, FENCE_NAME))
        self.settle()

    def ack(self, tag: int, *, multiple: bool = False) -> None:
        """Ack."""
        self.client.send(method(1, amqp.Basic.Ack(delivery_tag=tag, multiple=multiple)))

    def _delivery(self, value: amqp.Basic.Deliver) -> Delivery:
        _, header = self.client.read()
        assert isinstance(header, pamqp.header.ContentHeader)
        body = b""
        while len(body) < header.body_size:
            body += self.client.read()[1].value
        self._last_tag = value.delivery_tag or 0
        return Delivery(
            self._last_tag,
            value.consumer_tag or "",
            name_of(body),
            bool(value.redelivered),
            dict(header.properties.headers or {}),
        )


class Special:
    """What the four below have in common: batches of publishes, and deliveries in between."""

    kind = ""

    def __init__(self, scene: Scene, record: Record) -> None:
        self.name = f"{self.kind}-g{scene.generation}"
        self._scene = scene
        self._record = record
        self._number = 0

    def run(self) -> None:
        """Work until the connection ends."""
        chance = self._scene.chance(self.name)
        with RawClient(self._scene.url).handshake() as client:
            line = Line(client, self._record, chance)
            self.begin(line, chance)
            while not self._scene.stopping.wait(PACE_S):
                batch = [self.publish(line, chance) for _ in range(chance.choice((1, 2, 8)))]
                client.send(b"".join(batch))
                while line.pending:
                    line.take()
                    while line.arrived:
                        self.on_delivery(line, line.arrived.popleft(), chance)

    def fresh(self) -> bytes:
        """A name that nobody had."""
        self._number += 1
        return b"%s:%d" % (self.name.encode(), self._number)

    def begin(self, line: Line, chance: random.Random) -> None:
        """What comes before the load."""

    def publish(self, line: Line, chance: random.Random) -> bytes:
        """Note a publish; returns its octets."""
        raise NotImplementedError

    def on_delivery(self, line: Line, delivery: Delivery, chance: random.Random) -> None:
        """Note a delivery, and settle it, or not."""


class Rejector(Special):
    """Works off a queue badly: acks, rejects, requeues, holds."""

    kind = "rej"
    _record: DeadLetters

    def __init__(self, scene: Scene, record: DeadLetters, queue: str) -> None:
        super().__init__(scene, record)
        self._queue = queue

    def begin(self, line: Line, chance: random.Random) -> None:
        """Consume."""
        del chance
        line.consume(self._queue)

    def publish(self, line: Line, chance: random.Random) -> bytes:
        """To the work queue."""
        name = self.fresh()
        self._record.sending(name)
        return line.publish("", self._queue, name, priority=chance.choice((None, 0, 1, 4)))

    def on_delivery(self, line: Line, delivery: Delivery, chance: random.Random) -> None:
        """One in ten is held."""
        self._record.received(delivery.name)
        draw = chance.random()
        if draw < 0.3:
            self._record.settling(delivery.name, "ack")
            line.ack(delivery.tag)
        elif draw < 0.55:
            self._record.settling(delivery.name, "reject")
            line.client.send(method(1, amqp.Basic.Reject(delivery_tag=delivery.tag, requeue=False)))
        elif draw < 0.95:
            line.client.send(method(1, amqp.Basic.Nack(delivery_tag=delivery.tag, requeue=True)))


class Delayer(Special):
    """Publishes with delays and consumes what becomes of it."""

    kind = "del"
    _record: Delays

    def begin(self, line: Line, chance: random.Random) -> None:
        """Consume."""
        del chance
        line.consume(LATER_QUEUE)

    def publish(self, line: Line, chance: random.Random) -> bytes:
        """To the delaying exchange; the clock is read before the broker can."""
        name, delay = self.fresh(), chance.choice(DELAYS_MS)
        self._record.delaying(name, time.time() + delay / 1000)
        return line.publish(LATER, "", name, {"x-delay": delay})

    def on_delivery(self, line: Line, delivery: Delivery, chance: random.Random) -> None:
        """Ack most."""
        self._record.received(delivery.name, time.time(), redelivered=delivery.redelivered)
        if chance.random() < 0.9:
            self._record.acking(delivery.name)
            line.ack(delivery.tag)


class Repeater(Special):
    """Publishes again what it has no confirm of, and sometimes what it has."""

    kind = "rep"
    _record: Keys

    def begin(self, line: Line, chance: random.Random) -> None:
        """As after any reconnect."""
        del chance
        repeat(line, self._record.unsettled(), self._record)

    def publish(self, line: Line, chance: random.Random) -> bytes:
        """To the queue that knows keys; one in four is a repetition."""
        names = list(self._record.sent)[-500:]
        name = chance.choice(names) if names and chance.random() < 0.25 else self.fresh()
        self._record.sending(name)
        return line.publish("", KEYS, name, {"x-deduplication-header": name.decode()})


class Streamer(Special):
    """Appends to the stream, and reads it on from its end."""

    kind = "str"
    _record: Offsets

    def begin(self, line: Line, chance: random.Random) -> None:
        """Consume from here on, or some of what there is as well."""
        start = chance.choice(("next", max(0, len(self._record.names) - 20)))
        line.consume(STREAM, {"x-stream-offset": start})

    def publish(self, line: Line, chance: random.Random) -> bytes:
        """Append."""
        del chance
        name = self.fresh()
        self._record.sending(name)
        return line.publish("", STREAM, name)

    def on_delivery(self, line: Line, delivery: Delivery, chance: random.Random) -> None:
        """Give the credit back."""
        del chance
        self._record.received(int(delivery.headers["x-stream-offset"]), delivery.name)
        line.ack(delivery.tag)


def repeat(line: Line, names: list[bytes], record: Record) -> None:
    """Publish these again, each with its key, until they are confirmed."""
    for name in names:
        record.sending(name)
        headers: FieldTable = {"x-deduplication-header": name.decode()}
        line.client.send(line.publish("", KEYS, name, headers))
    line.settle()


def dead_of(queue: str) -> str:
    """Where the dead letters of a queue are."""
    return f"{queue}.dead"


def declare_specials(url: str) -> None:
    """Make what these clients use."""
    queues: dict[str, FieldTable] = {}
    for queue, limits in MORTAL.items():
        dead: FieldTable = {
            "x-dead-letter-exchange": "",
            "x-dead-letter-routing-key": dead_of(queue),
        }
        queues[queue] = {**limits, **dead, "x-overflow": "reject-publish"}
        queues[dead_of(queue)] = {}
    queues |= {
        LATER_QUEUE: {},
        KEYS: {"x-message-deduplication": True, "x-cache-size": WINDOW_KEYS},
        STREAM: {"x-queue-type": "stream"},
        FENCE: {"x-max-length": 1},
    }
    with RawClient(url).handshake() as client:
        client.open_channel()
        for queue, arguments in queues.items():
            declare = amqp.Queue.Declare(queue=queue, durable=True, arguments=arguments)
            client.call(1, declare, amqp.Queue.DeclareOk)
        later = amqp.Exchange.Declare(
            exchange=LATER,
            exchange_type="x-delayed-message",
            durable=True,
            arguments={"x-delayed-type": "fanout"},
        )
        client.call(1, later, amqp.Exchange.DeclareOk)
        client.call(1, amqp.Queue.Bind(queue=LATER_QUEUE, exchange=LATER), amqp.Queue.BindOk)
