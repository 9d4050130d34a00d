"""The load of a campaign: several kinds of clients at once, each writing down what it does.

Every client runs in a thread of its own until its connection ends. Names of messages are
`client:number`, numbers grow; whatever a client is about to do it notes first. Nothing here
judges.
"""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Final, Protocol

import aio_pika
import aio_pika.abc
import aiormq.exceptions
import pamqp.commands as amqp
import pika
import pika.exceptions

from tests.fault.ledger import PADDING, Group, Ledger, name_of
from tests.integration.raw_client import PeerClosedError, RawClient, content, method

FAN: Final = "load.fan"
WORK: Final = ("load.a", "load.b", "load.c")
MARKS: Final = "load.marks"
MOVED: Final = "load.moved"
TX_FROM: Final = "tx.from"
TX_TO: Final = ("tx.one", "tx.two")
QUEUES: Final = (*WORK, MARKS, MOVED, TX_FROM, *TX_TO)
WINDOW: Final = 200
SIZES: Final = (0, 100, 100, 1000, 1000, 4000, 20_000)
MOVER_PREFETCH: Final = 10
JOIN_LIMIT_S: Final = 60.0
DECLARED: Final = "made"
# How a broker says goodbye that has to end.
FORCED: Final = "CONNECTION_FORCED"

LOST: Final = (
    PeerClosedError,
    OSError,
    pika.exceptions.AMQPError,
    aio_pika.exceptions.AMQPError,
    aiormq.exceptions.ChannelInvalidStateError,
    asyncio.CancelledError,
)


@dataclass(frozen=True)
class Scene:
    """What all clients of one life of the broker share."""

    url: str
    ledger: Ledger
    generation: str
    seed: int
    stopping: threading.Event

    def chance(self, name: str) -> random.Random:
        """Random choices of one client."""
        return random.Random(f"{self.seed}:{self.generation}:{name}")


def declare_all(url: str) -> None:
    """Make what the clients use."""
    with RawClient(url).handshake() as client:
        client.open_channel()
        fan = amqp.Exchange.Declare(exchange=FAN, exchange_type="fanout", durable=True)
        client.call(1, fan, amqp.Exchange.DeclareOk)
        for queue in QUEUES:
            client.call(1, amqp.Queue.Declare(queue=queue, durable=True), amqp.Queue.DeclareOk)
        for queue in WORK:
            client.call(1, amqp.Queue.Bind(queue=queue, exchange=FAN), amqp.Queue.BindOk)


def padded(name: bytes, chance: random.Random) -> bytes:
    """The body of a message: its name, and octets to give it a size."""
    return name + PADDING * chance.choice(SIZES)


class ConfirmingChannel:
    """Channel 1 of a raw connection in confirm mode: publishes, and takes confirms apart."""

    def __init__(self, client: RawClient, scene: Scene, name: str) -> None:
        self.client = client
        self.name = name
        self.pending: dict[int, bytes] = {}
        self._ledger = scene.ledger
        self._chance = scene.chance(name)
        self._number = 0
        self._seqno = 0
        client.open_channel()
        client.call(1, amqp.Confirm.Select(), amqp.Confirm.SelectOk)

    def publish(
        self, exchange: str, key: str, queues: tuple[str, ...], *, persistent: bool = True
    ) -> bytes:
        """Note one publish and return its octets."""
        self._number += 1
        self._seqno += 1
        body = b"%s:%d" % (self.name.encode(), self._number)
        self._ledger.sending(body, queues, self.name, persistent=persistent)
        self.pending[self._seqno] = body
        whole = padded(body, self._chance)
        return content(1, exchange, key, whole, persistent=persistent)

    def take_confirm(self, value: object) -> bool:
        """Note what an ack or nack settles; False when the method is neither."""
        if not isinstance(value, amqp.Basic.Ack | amqp.Basic.Nack):
            return False
        tag = value.delivery_tag or 0
        tags = [n for n in self.pending if n <= tag] if value.multiple else [tag]
        bodies = [self.pending.pop(n) for n in tags]
        note = self._ledger.confirmed if isinstance(value, amqp.Basic.Ack) else self._ledger.nacked
        note(bodies)
        return True

    def read(self) -> Any:
        """The next method.

        Raises:
            AssertionError: the broker closes channel or connection.
        """
        _, value = self.client.read()
        assert not isinstance(value, amqp.Channel.Close | amqp.Connection.Close), (
            f"{value.reply_code} {value.reply_text}"
        )
        return value


class Client(Protocol):
    """One of those below."""

    name: str

    def run(self) -> None:
        """Work until the connection ends."""


class RawPublisher:
    """Batches with confirms, to single queues and to all; some messages are transient."""

    def __init__(self, scene: Scene, index: int) -> None:
        self.name = f"raw{index}g{scene.generation}"
        self._scene = scene

    def run(self) -> None:
        """Publish until the connection ends."""
        chance = self._scene.chance(self.name)
        with RawClient(self._scene.url).handshake() as client:
            channel = ConfirmingChannel(client, self._scene, self.name)
            while not self._scene.stopping.is_set():
                size = chance.choice((1, 1, 5, 20, 60))
                client.send(b"".join(self._one(channel, chance) for _ in range(size)))
                limit = chance.choice((0, WINDOW))
                while len(channel.pending) > limit:
                    channel.take_confirm(channel.read())

    @staticmethod
    def _one(channel: ConfirmingChannel, chance: random.Random) -> bytes:
        persistent = chance.random() < 0.9
        target = chance.choice([*WORK, FAN, TX_FROM])
        if target == FAN:
            return channel.publish(FAN, "", WORK, persistent=persistent)
        return channel.publish("", target, (target,), persistent=persistent or target == TX_FROM)


class RawConsumer:
    """Acks one by one and many at once, requeues, holds; marks what it acked by a publish."""

    def __init__(self, scene: Scene, queue: str) -> None:
        self.name = f"con-{queue}-g{scene.generation}"
        self._queue = queue
        self._scene = scene
        self._held: dict[int, bytes] = {}

    def run(self) -> None:
        """Consume until the connection ends."""
        chance = self._scene.chance(self.name)
        prefetch = chance.choice((1, 5, 50))
        with RawClient(self._scene.url).handshake() as client:
            channel = ConfirmingChannel(client, self._scene, self.name)
            client.call(1, amqp.Basic.Qos(prefetch_count=prefetch), amqp.Basic.QosOk)
            self._scene.ledger.on_the_way[self._queue] += prefetch
            client.send(method(1, amqp.Basic.Consume(queue=self._queue)))
            while not self._scene.stopping.is_set():
                value = channel.read()
                if isinstance(value, amqp.Basic.Deliver):
                    self._take(client, value)
                    self._settle(client, chance, is_full=len(self._held) >= prefetch)
                    if chance.random() < 0.05:
                        client.send(channel.publish("", MARKS, (MARKS,)))
                else:
                    channel.take_confirm(value)

    def _take(self, client: RawClient, value: amqp.Basic.Deliver) -> None:
        body = name_of(client.body())
        self._scene.ledger.receiving(self._queue, body, redelivered=bool(value.redelivered))
        self._held[value.delivery_tag or 0] = body

    def _settle(self, client: RawClient, chance: random.Random, *, is_full: bool) -> None:
        if not is_full and chance.random() < 0.3:
            return
        draw = chance.random()
        if draw < 0.15:
            tag = chance.choice(list(self._held))
            del self._held[tag]
            client.send(method(1, amqp.Basic.Nack(delivery_tag=tag, requeue=True)))
            return
        tags = [chance.choice(list(self._held))] if draw < 0.7 else sorted(self._held)
        bodies = [self._held.pop(tag) for tag in tags]
        self._scene.ledger.acking(self._queue, bodies, self.name)
        is_many = len(tags) > 1
        client.send(method(1, amqp.Basic.Ack(delivery_tag=tags[-1], multiple=is_many)))


class AioPikaMover:
    """Takes from one queue, publishes to another, and acks when that is confirmed."""

    def __init__(self, scene: Scene) -> None:
        self.name = f"aio-g{scene.generation}"
        self._scene = scene
        self._number = 0

    def run(self) -> None:
        """Move until the connection ends."""
        asyncio.run(self._main())

    async def _main(self) -> None:
        connection = await aio_pika.connect(self._scene.url)
        closed = asyncio.Event()
        connection.close_callbacks.add(lambda *_: closed.set())
        channel = await connection.channel(publisher_confirms=True)
        await channel.set_qos(prefetch_count=MOVER_PREFETCH)
        self._scene.ledger.on_the_way[WORK[2]] += MOVER_PREFETCH
        queue = await channel.get_queue(WORK[2], ensure=False)

        async def move(message: aio_pika.abc.AbstractIncomingMessage) -> None:
            with suppress(*LOST):
                await self._move(channel, message)

        with suppress(*LOST):
            await queue.consume(move)
        while not closed.is_set() and not self._scene.stopping.is_set():
            with suppress(TimeoutError):
                await asyncio.wait_for(closed.wait(), 0.1)
        with suppress(*LOST):
            await connection.close()

    async def _move(
        self,
        channel: aio_pika.abc.AbstractChannel,
        message: aio_pika.abc.AbstractIncomingMessage,
    ) -> None:
        ledger = self._scene.ledger
        taken = name_of(message.body)
        ledger.receiving(WORK[2], taken, redelivered=bool(message.redelivered))
        self._number += 1
        body = b"%s:%d" % (self.name.encode(), self._number)
        ledger.sending(body, (MOVED,), self.name)
        outgoing = aio_pika.Message(body, delivery_mode=aio_pika.DeliveryMode.PERSISTENT)
        await channel.default_exchange.publish(outgoing, MOVED)
        ledger.confirmed([body])
        ledger.acking(WORK[2], [taken], self.name)
        await message.ack()


class PikaTransactor:
    """Moves groups from one queue to two others in transactions; rolls some back."""

    def __init__(self, scene: Scene) -> None:
        self.name = f"tx-g{scene.generation}"
        self._scene = scene
        self._number = 0

    def run(self) -> None:
        """Commit and roll back until the connection ends."""
        chance = self._scene.chance(self.name)
        connection = pika.BlockingConnection(pika.URLParameters(self._scene.url))
        try:
            channel = connection.channel()
            channel.tx_select()
            while not self._scene.stopping.is_set():
                self._transact(channel, chance)
        finally:
            with suppress(*LOST):
                connection.close()

    def _transact(self, channel: Any, chance: random.Random) -> None:
        ledger = self._scene.ledger
        group = ledger.begin()
        for _ in range(chance.randint(1, 6)):
            self._publish(channel, group, chance)
        tag = 0
        for _ in range(chance.randint(0, 3)):
            ledger.on_the_way[TX_FROM] += 1
            got, _, body = channel.basic_get(TX_FROM)
            if got is None:
                ledger.on_the_way[TX_FROM] -= 1
                break
            ledger.receiving(TX_FROM, name_of(body), redelivered=got.redelivered)
            ledger.on_the_way[TX_FROM] -= 1
            group.acks.append((TX_FROM, name_of(body)))
            tag = got.delivery_tag
        if tag:
            channel.basic_ack(tag, multiple=True)
        commit = chance.random() < 0.85
        ledger.ending(group, commit=commit)
        if commit:
            channel.tx_commit()
            ledger.committed(group)
            return
        channel.tx_rollback()
        # The deliveries are outstanding again; what is not acked would pile up here.
        if tag:
            channel.basic_recover(requeue=True)

    def _publish(self, channel: Any, group: Group, chance: random.Random) -> None:
        self._number += 1
        body = b"%s:%d" % (self.name.encode(), self._number)
        self._scene.ledger.sending(body, TX_TO, self.name)
        whole = padded(body, chance)
        for queue in TX_TO:
            group.publishes.append((queue, body))
            channel.basic_publish("", queue, whole, pika.BasicProperties(delivery_mode=2))


class Declarer:
    """Declares durable queues and deletes some of them again."""

    def __init__(self, scene: Scene) -> None:
        self.name = f"dec-g{scene.generation}"
        self._scene = scene

    def run(self) -> None:
        """Declare until the connection ends, a few hundred at most."""
        ledger, chance = self._scene.ledger, self._scene.chance(self.name)
        with RawClient(self._scene.url).handshake() as client:
            client.open_channel()
            for number in range(300):
                if self._scene.stopping.wait(0.004):
                    return
                name = f"{DECLARED}.{self._scene.generation}.{number}"
                ledger.defining(name)
                declare = amqp.Queue.Declare(queue=name, durable=True)
                client.call(1, declare, amqp.Queue.DeclareOk)
                ledger.defined(name)
                if chance.random() < 0.3:
                    ledger.defining(name, delete=True)
                    client.call(1, amqp.Queue.Delete(queue=name), amqp.Queue.DeleteOk)
                    ledger.defined(name)


def everybody(scene: Scene) -> tuple[Client, ...]:
    """One of each, and two of those who publish."""
    return (
        *(RawPublisher(scene, index) for index in range(2)),
        RawConsumer(scene, WORK[0]),
        RawConsumer(scene, WORK[1]),
        AioPikaMover(scene),
        PikaTransactor(scene),
        Declarer(scene),
    )


@contextmanager
def load(scene: Scene, who: Callable[[Scene], tuple[Client, ...]] = everybody) -> Iterator[None]:
    """Clients at work; on leaving, the broker must be gone, and they end with it."""
    clients = who(scene)
    threads = [
        threading.Thread(target=until_lost, args=(client.run, client.name, scene.ledger))
        for client in clients
    ]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        scene.stopping.set()
        for thread, client in zip(threads, clients, strict=True):
            thread.join(JOIN_LIMIT_S)
            if thread.is_alive():
                scene.ledger.complaints.append(f"{client.name} hangs although the broker is gone")


def until_lost(run: Callable[[], None], name: str, ledger: Ledger) -> None:
    """Run a client until its connection ends; anything else it meets is a complaint."""
    try:
        with suppress(*LOST):
            run()
    except AssertionError as error:
        if FORCED not in str(error):
            ledger.complaints.append(f"{name}: {error}")
    except Exception as error:  # noqa: BLE001 - a client that fails is a finding, not a crash of ours
        ledger.complaints.append(f"{name}: {type(error).__name__}: {error}")
