"""Clients that live through take-overs: each has three addresses, and goes on with the next one.

A publisher publishes again what was not confirmed, with the same key for de-duplication. A consumer
acks, and now and then has its acks confirmed by a publish behind them. What they see is put into
one `History`, in the order in which they see it. Nothing here judges.
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final

import pamqp.body
import pamqp.commands as amqp
import pamqp.frame
import pamqp.header
from pamqp.common import FieldTable

from tests.engine.servers import PATIENCE_S
from tests.integration.raw_client import PeerClosedError, RawClient, method
from tests.waiting import wait_until

KEY: Final = "x-deduplication-header"
WINDOW_KEYS: Final = 1_000_000
# To be let in, before the next address is tried: behind it may be a broker that is paused.
CONNECT_S: Final = 5.0
RETRY_S: Final = 0.05
LOOK_S: Final = 0.5
PREFETCH: Final = 20
FENCE: Final = "roaming.fence"
# Deliveries, until their acks are made sure.
FENCED: Final = 10


class ConnectionOverError(Exception):
    """The broker has closed it."""


OVER: Final = (PeerClosedError, ConnectionOverError, OSError, AssertionError)


@dataclass(frozen=True)
class Delivered:
    """A consumer was handed a message, on one of its connections."""

    connection: int
    name: bytes
    redelivered: bool


@dataclass(frozen=True)
class Gone:
    """A confirm behind the acks of these has come: their acks are committed."""

    names: tuple[bytes, ...]


@dataclass
class History:
    """What the clients of one queue have seen, in order."""

    events: list[Delivered | Gone] = field(default_factory=list)
    published: list[bytes] = field(default_factory=list)
    confirmed: set[bytes] = field(default_factory=set)
    # The broker of each connection of a consumer, and how many deliveries may be on their way.
    connections: dict[int, str] = field(default_factory=dict)
    prefetch: int = PREFETCH
    complaints: list[str] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)


def declare(url: str, queue: str, arguments: FieldTable | None = None) -> None:
    """A durable queue that knows the keys of the past, and one for confirms of acks."""
    keys: FieldTable = {"x-message-deduplication": True, "x-cache-size": WINDOW_KEYS}
    with RawClient(url).handshake() as client:
        client.open_channel()
        tables: dict[str, FieldTable] = {queue: {**keys, **(arguments or {})}}
        tables[FENCE] = {"x-max-length": 1}
        for name, table in tables.items():
            asked = amqp.Queue.Declare(queue=name, durable=True, arguments=table)
            client.call(1, asked, amqp.Queue.DeclareOk)


class Roamer:
    """A thread with one connection at a time.

    Args:
        urls: the addresses, by the names of their brokers
        history: what it sees goes there
        silence_s: of a broker that owes an answer, before another address is tried
    """

    def __init__(
        self, urls: dict[str, str], history: History, *, silence_s: float = PATIENCE_S
    ) -> None:
        self.history = history
        self.connected_to: list[str] = []
        self._urls = list(urls.items())
        self._silence_s = silence_s
        self._ending = threading.Event()
        self._is_abandoned = False
        self._client: RawClient | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def end(self) -> None:
        """Finish, and wait for that."""
        self._ending.set()
        self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive(), f"a client hangs: {self.connected_to[-3:]}"

    def abandon(self) -> None:
        """Hang up, whatever is under way."""
        self._is_abandoned = True
        self._ending.set()
        client = self._client
        if client is not None:
            with suppress(OSError):
                client._socket.shutdown(socket.SHUT_RDWR)
        self._thread.join(PATIENCE_S)

    def _run(self) -> None:
        try:
            while not self.is_done():
                for name, client in self._connections():
                    self._client = client
                    with client, suppress(*OVER):
                        self.connected_to.append(name)
                        self.work(client, name)
        except Exception as error:
            self.history.complaints.append(f"a client: {type(error).__name__}: {error}")
            raise

    def _connections(self) -> Iterator[tuple[str, RawClient]]:
        """A connection to whoever lets it in, by turns."""
        while not self.is_done():
            name, url = self._urls.pop(0)
            self._urls.append((name, url))
            try:
                client = RawClient(url, limit_s=CONNECT_S).handshake()
            except OVER:
                time.sleep(RETRY_S)
                continue
            client.wait_at_most(self._silence_s)
            yield name, client

    def is_done(self) -> bool:
        """Whether nothing is left to do."""
        return self._ending.is_set()

    def work(self, client: RawClient, broker: str) -> None:
        """Use a connection until it ends."""
        raise NotImplementedError

    def read(self, client: RawClient) -> Any:
        """The next method.

        Raises:
            ConnectionOverError: the broker says goodbye
        """
        _, value = client.read()
        if isinstance(value, amqp.Connection.Close):
            client.send(method(0, amqp.Connection.CloseOk()))
            raise ConnectionOverError(value.reply_text)
        if isinstance(value, amqp.Channel.Close):
            self.history.complaints.append(f"{value.reply_code} {value.reply_text}")
            raise ConnectionOverError(value.reply_text)
        return value


class Publisher(Roamer):
    """Publishes numbered messages to a queue, some at a time, until each is confirmed.

    Args:
        urls: see `Roamer`
        history: the same
        queue: where to
        window: how many may wait for their confirm
        pace_s: between two messages
        size_bytes: of each
    """

    def __init__(
        self,
        urls: dict[str, str],
        history: History,
        queue: str,
        *,
        window: int = 20,
        pace_s: float = 0.004,
        size_bytes: int = 100,
        silence_s: float = PATIENCE_S,
    ) -> None:
        super().__init__(urls, history, silence_s=silence_s)
        self._queue = queue
        self._window = window
        self._pace_s = pace_s
        self._padding = b"." * size_bytes
        self.repeated_count = self.nacked_count = 0
        # Beyond this it publishes nothing.
        self.most = 1 << 60

    @property
    def confirmed_count(self) -> int:
        """How many are confirmed."""
        return len(self.history.confirmed)

    def wait(self, count: int) -> None:
        """Wait until so many more are confirmed."""
        goal = self.confirmed_count + count
        wait_until(
            lambda: self.confirmed_count >= goal or self.history.complaints,
            lambda: f"{self.confirmed_count} confirmed, {self.connected_to[-5:]}",
            limit_s=PATIENCE_S,
        )
        assert not self.history.complaints, self.history.complaints

    def is_done(self) -> bool:
        """When nothing waits for its confirm."""
        has_all = len(self.history.confirmed) == len(self.history.published)
        return self._is_abandoned or (self._ending.is_set() and has_all)

    def work(self, client: RawClient, broker: str) -> None:
        """First again what was not confirmed, in its order."""
        del broker
        history = self.history
        client.open_channel()
        client.call(1, amqp.Confirm.Select(), amqp.Confirm.SelectOk)
        pending: dict[int, bytes] = {}
        again = [name for name in history.published if name not in history.confirmed]
        self.repeated_count += len(again)
        again.reverse()
        seqno = 0
        while True:
            while len(pending) < self._window and (again or not self._ending.is_set()):
                name = again.pop() if again else self._fresh()
                if not name:
                    break
                seqno += 1
                pending[seqno] = name
                client.send(publish(self._queue, name, self._padding))
                time.sleep(self._pace_s)
            if not pending:
                if self._ending.is_set():
                    return
                time.sleep(RETRY_S)
                continue
            # What was refused is published again, behind what waits already.
            again += self._settle(self.read(client), pending)

    def _fresh(self) -> bytes:
        published = self.history.published
        if len(published) >= self.most:
            return b""
        name = b"m:%d" % len(published)
        published.append(name)
        return name

    def _settle(self, value: object, pending: dict[int, bytes]) -> list[bytes]:
        """Note a confirm; what was refused."""
        if not isinstance(value, amqp.Basic.Ack | amqp.Basic.Nack):
            return []
        tag = value.delivery_tag or 0
        tags = [n for n in pending if n <= tag] if value.multiple else [tag]
        names = [pending.pop(each) for each in tags]
        if isinstance(value, amqp.Basic.Nack):
            self.nacked_count += len(names)
            return names[::-1]
        self.history.confirmed.update(names)
        return []


class Consumer(Roamer):
    """Consumes a queue and acks everything.

    Args:
        urls: see `Roamer`
        history: the same
        queue: which one
    """

    def __init__(self, urls: dict[str, str], history: History, queue: str) -> None:
        super().__init__(urls, history)
        self._queue = queue

    def work(self, client: RawClient, broker: str) -> None:
        """Take and ack, and have that confirmed."""
        history = self.history
        with history.lock:
            number = len(history.connections)
            history.connections[number] = broker
        client.open_channel()
        client.call(1, amqp.Confirm.Select(), amqp.Confirm.SelectOk)
        client.call(1, amqp.Basic.Qos(prefetch_count=history.prefetch), amqp.Basic.QosOk)
        client.call(1, amqp.Basic.Consume(queue=self._queue), amqp.Basic.ConsumeOk)
        # A standby of a single active consumer hears nothing for long.
        client.wait_at_most(LOOK_S)
        fences: dict[int, tuple[bytes, ...]] = {}
        acked: list[bytes] = []
        seqno = 0
        while not self._ending.is_set():
            try:
                value = self.read(client)
            except TimeoutError:
                continue
            if isinstance(value, amqp.Basic.Deliver):
                name = client.body().rstrip(b".")
                with history.lock:
                    history.events.append(Delivered(number, name, bool(value.redelivered)))
                acked.append(name)
                client.send(method(1, amqp.Basic.Ack(delivery_tag=value.delivery_tag or 0)))
                if len(acked) >= FENCED:
                    seqno += 1
                    fences[seqno] = tuple(acked)
                    acked.clear()
                    client.send(publish(FENCE, b"fence", b""))
            elif isinstance(value, amqp.Basic.Ack):
                tag = value.delivery_tag or 0
                tags = [n for n in fences if n <= tag] if value.multiple else [tag]
                with history.lock:
                    history.events += [Gone(fences.pop(each)) for each in tags]


def publish(queue: str, name: bytes, padding: bytes) -> bytes:
    """The bytes of a persistent publish with its name as its key."""
    body = name + padding
    properties = amqp.Basic.Properties(headers={KEY: name.decode()}, delivery_mode=2)
    header = pamqp.header.ContentHeader(body_size=len(body), properties=properties)
    return b"".join(
        (
            method(1, amqp.Basic.Publish(exchange="", routing_key=queue)),
            pamqp.frame.marshal(header, 1),
            pamqp.frame.marshal(pamqp.body.ContentBody(body), 1),
        )
    )


def left_in(url: str, queue: str) -> list[tuple[bytes, bool]]:
    """Everything in a queue, taken from it: names, and whether they are said to be redelivered."""
    found: list[tuple[bytes, bool]] = []
    with RawClient(url).handshake() as client:
        client.open_channel()
        count = client.ready_count(queue)
        client.call(1, amqp.Basic.Consume(queue=queue, no_ack=True), amqp.Basic.ConsumeOk)
        for sent, body in client.deliveries(count):
            found.append((body.rstrip(b"."), bool(sent.redelivered)))
    return found
