"""Clients of dead letters, delays, de-duplication and streams, and the judge who reads after them.

They run beside those of `clients` and hold the same rules: one thread and one connection each,
every act is noted first, whatever is no end of the connection is a complaint.
"""

from __future__ import annotations

import random
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pamqp.body
import pamqp.commands as amqp
import pamqp.frame
import pamqp.header
from pamqp.common import FieldTable

from tests.fault.clients import Client, Scene, padded
from tests.fault.ledger import name_of
from tests.fault.special_ledger import Delays, Keys, Letters, Offsets, Record
from tests.integration.raw_client import RawClient, method

WORK: Final = "special.work"
DEAD: Final = "special.dead"
LATER: Final = "special.later"
LATER_QUEUE: Final = "special.later.queue"
KEYS: Final = "special.keys"
STREAM: Final = "special.stream"
# Publishes that only make sure what was said before them on the same channel.
FENCE: Final = "special.fence"
FENCE_NAME: Final = b"fence"
DELIVERY_LIMIT: Final = 2
WINDOW_KEYS: Final = 100_000
PREFETCH: Final = 20
PACE_S: Final = 0.004
DELAYS_MS: Final = (1, 20, 100, 300, 1000, 2500)
LATE_S: Final = 5.0
READ_LIMIT_S: Final = 20.0
# So much of a stream is read again that was judged before.
OVERLAP: Final = 300
DRAINED_BEYOND: Final = 3_000


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
        self, exchange: str, key: str, name: bytes, headers: FieldTable | None = None
    ) -> bytes:
        """The octets of a persistent publish, which the record knows of already."""
        self._seqno += 1
        self.pending[self._seqno] = name
        body = padded(name, self._chance)
        header = pamqp.header.ContentHeader(
            body_size=len(body), properties=amqp.Basic.Properties(headers=headers, delivery_mode=2)
        )
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
    _record: Letters

    def begin(self, line: Line, chance: random.Random) -> None:
        """Consume."""
        del chance
        line.consume(WORK)

    def publish(self, line: Line, chance: random.Random) -> bytes:
        """To the work queue."""
        del chance
        name = self.fresh()
        self._record.sending(name)
        return line.publish("", WORK, name)

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


def declare_specials(url: str) -> None:
    """Make what these clients use."""
    queues: dict[str, FieldTable] = {
        WORK: {
            "x-delivery-limit": DELIVERY_LIMIT,
            "x-dead-letter-exchange": "",
            "x-dead-letter-routing-key": DEAD,
        },
        DEAD: {},
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


@contextmanager
def opened(url: str, record: Record, chance: random.Random) -> Iterator[Line]:
    """A line of the judge's own."""
    with RawClient(url, limit_s=20).handshake() as client:
        yield Line(client, record, chance)


def all_of(line: Line, queue: str) -> list[Delivery]:
    """Everything that a queue hands out, in order, left unacked.

    Its count alone does not tell how much that is: what has come back too often by a restart dies
    when its turn to be handed out comes, and counts as ready until then.
    """
    line.consume(queue, prefetch=0)
    deadline = time.monotonic() + READ_LIMIT_S
    quiet = 0
    while quiet < 2:
        before = len(line.arrived)
        line.drain(0)
        is_still = line.ready_count(queue) == 0 and len(line.arrived) == before
        quiet = quiet + 1 if is_still else 0
        assert time.monotonic() < deadline, f"{queue} does not hand out what it has"
    return line.take_deliveries(0)


class Specials:
    """The four records, over all rounds of a campaign, and their judge."""

    def __init__(self, directory: Path) -> None:
        self.letters = Letters(directory / "letters.log")
        self.delays = Delays(directory / "delays.log")
        self.keys = Keys(directory / "keys.log")
        self.offsets = Offsets(directory / "offsets.log")

    def close(self) -> None:
        """Close the records."""
        for record in (self.letters, self.delays, self.keys, self.offsets):
            record.close()

    def clients(self, scene: Scene) -> tuple[Client, ...]:
        """One for each feature."""
        return (
            Rejector(scene, self.letters),
            Delayer(scene, self.delays),
            Repeater(scene, self.keys),
            Streamer(scene, self.offsets),
        )

    def judge(self, url: str, chance: random.Random) -> list[str]:
        """Read everything after a restart and compare; one line for each violation."""
        judges: tuple[Callable[[str, random.Random], list[str]], ...] = (
            self._judge_letters,
            self._judge_keys,
            self._judge_stream,
            self._judge_delays,
        )
        return [what for judge in judges for what in judge(url, chance)]

    def _judge_letters(self, url: str, chance: random.Random) -> list[str]:
        record = self.letters
        with opened(url, record, chance) as line, opened(url, record, chance) as grave:
            # What is out cannot die meanwhile: the living are taken first, and held.
            work = [one.name for one in all_of(line, WORK)]
            found = all_of(grave, DEAD)
            dead = {one.name: str(one.headers["x-death"][0]["reason"]) for one in found}
            violations = record.judge(work, dead)
            if len(dead) < len(found):
                violations.append(f"dead letters: {len(found) - len(dead)} are there twice")
            drained = not violations and (len(dead) > DRAINED_BEYOND or chance.random() < 0.3)
            if drained:
                grave.drain()
            record.turn_page(work, dead, drained=drained)
        return violations

    def _judge_keys(self, url: str, chance: random.Random) -> list[str]:
        record = self.keys
        with opened(url, record, chance) as line:
            some = list(record.sent)[-1000:]
            repeat(line, record.unsettled() + chance.sample(some, min(20, len(some))), record)
            found = [one.name for one in all_of(line, KEYS)]
            violations = record.judge(found)
            drained = not violations and (len(found) > DRAINED_BEYOND or chance.random() < 0.3)
            if drained:
                line.drain()
            record.turn_page(found, drained=drained)
        return violations

    def _judge_stream(self, url: str, chance: random.Random) -> list[str]:
        record = self.offsets
        start = max(0, len(record.names) - OVERLAP)
        with opened(url, record, chance) as line:
            count = line.ready_count(STREAM) - start
            if count < len(record.names) - start:
                return [f"stream: {len(record.names) - start - count} offsets are gone"]
            if count:
                line.consume(STREAM, {"x-stream-offset": start}, prefetch=60_000)
            read = line.take_deliveries(count)
            found = [(int(one.headers["x-stream-offset"]), one.name) for one in read]
            violations = record.judge(start, found)
            record.turn_page(start, found)
        return violations

    def _judge_delays(self, url: str, chance: random.Random) -> list[str]:
        record = self.delays
        record.crashed()
        with opened(url, record, chance) as line:
            line.consume(LATER_QUEUE, prefetch=0)
            now = time.time()
            found: list[bytes] = []
            line.client.wait_at_most(LATE_S)
            try:
                while record.awaited(now) - set(found):
                    line.take()
                    while line.arrived:
                        self._note_arrival(line.arrived.popleft(), found)
            except TimeoutError:
                pass
            violations = record.judge(found, now)
            # What comes from now on stays unacked, and comes again.
            line.drain()
            record.turn_page(found)
        return violations

    def _note_arrival(self, delivery: Delivery, found: list[bytes]) -> None:
        self.delays.received(delivery.name, time.time(), redelivered=delivery.redelivered)
        found.append(delivery.name)
