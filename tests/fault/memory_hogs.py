"""Clients that want the broker's memory, and what it makes of them: resident memory, sampled.

    python -m tests.fault.memory_hogs --watermark 400MB --seconds 30 --seed 1

Each hog is one way to make a broker hold octets: unfinished contents, deliveries that nobody reads
or acks, gets, transactions, tables, returns, connections. They run one by one, or drawn at random
beside each other; what is judged is the most that the process ever had, and that a well-behaved
client is served all the while and behind it.

Spec: LIMIT-01, LIMIT-27, LIMIT-28
"""

from __future__ import annotations

import argparse
import random
import struct
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import pamqp.commands as amqp

from tests.integration.broker_process import BrokerProcess
from tests.integration.raw_client import (
    BODY,
    HEADER,
    PeerClosedError,
    RawClient,
    content,
    frame,
    method,
)
from vouchmq.server.settings.sizes import parse_amount

MIB: Final = 1024 * 1024
# What may come beside what the watermark bounds.
ALLOWANCE_BYTES: Final = 100 * MIB
SAMPLE_S: Final = 0.02
CHUNK_BYTES: Final = 128_000
# How long a hog pushes before it only holds what it has, and how long it tries where nobody reads.
PUSH_S: Final = 5.0
BLOCKED_S: Final = 0.5


class Meter(threading.Thread):
    """Samples resident memory until it is told to stop."""

    def __init__(self, broker: BrokerProcess) -> None:
        super().__init__(daemon=True)
        self._broker = broker
        self._enough = threading.Event()
        self.most_bytes = 0
        self.error: BaseException | None = None

    def run(self) -> None:
        """Sample."""
        try:
            while not self._enough.wait(SAMPLE_S):
                self.most_bytes = max(self.most_bytes, self._broker.resident_bytes())
        except BaseException as error:  # noqa: BLE001 - judged by who started us
            self.error = error

    def finish(self) -> int:
        """Stop; gives the most there was."""
        self._enough.set()
        self.join()
        if self.error is not None:
            raise self.error
        return self.most_bytes


@dataclass
class Attack:
    """One hog at work: where the broker is, how much it wants, what it has open."""

    url: str
    wanted_bytes: int
    rng: random.Random
    stack: ExitStack = field(default_factory=ExitStack)
    push_s: float = PUSH_S
    began: float = field(default_factory=time.monotonic)

    @property
    def is_over(self) -> bool:
        """Whether the time for pushing is up."""
        return time.monotonic() - self.began > self.push_s

    def push(self, client: RawClient, pieces: Iterable[bytes]) -> None:
        """Send pieces until the peer takes none for a while, or hangs up."""
        for piece in pieces:
            if self.is_over or client.send_some(piece, BLOCKED_S) < len(piece):
                return

    def client(self, *, channels: int = 1, frame_max: int | None = None) -> RawClient:
        """A connection with so many channels open, closed at the end of the attack."""
        client = self.stack.enter_context(RawClient(self.url, limit_s=5.0))
        client.handshake(frame_max=frame_max)
        client.send(b"".join(method(n, amqp.Channel.Open()) for n in range(1, channels + 1)))
        for _ in range(channels):
            client.expect(amqp.Channel.OpenOk)
        return client

    def queue(self, client: RawClient, *, durable: bool = False) -> str:
        """A queue of our own."""
        name = f"hog.{self.rng.getrandbits(48):x}"
        asked = amqp.Queue.Declare(queue=name, durable=durable)
        client.call(1, asked, amqp.Queue.DeclareOk)
        return name

    def fill(self, queue: str, count: int, body: bytes, *, persistent: bool) -> None:
        """Put messages into a queue, as far as the broker takes them."""
        filler = self.client()
        batch = content(1, "", queue, body, persistent=persistent)
        batch *= max(1, min(count, MIB // len(body)))
        many = max(1, min(count, MIB // len(body)))
        for _ in range(max(1, count // many)):
            if self.is_over or filler.send_some(batch, BLOCKED_S) < len(batch):
                return


Hog = Callable[[Attack], None]
HOGS: dict[str, Hog] = {}


def hog(function: Hog) -> Hog:
    """Enter a hog under its name."""
    HOGS[function.__name__] = function
    return function


def beginning(channel: int, announced: int) -> bytes:
    """A publish up to the header of its content."""
    head = struct.pack(">HHQ", 60, 0, announced) + b"\x00\x00"
    publish = amqp.Basic.Publish(exchange="", routing_key="q")
    return method(channel, publish) + frame(HEADER, channel, head)


def body_but(channel: int, size: int, missing: int = 1) -> Iterator[bytes]:
    """The body of a content without its last octets, in pieces."""
    for at in range(0, size - missing, CHUNK_BYTES):
        yield frame(BODY, channel, bytes(min(CHUNK_BYTES, size - missing - at)))


@hog
def partial_contents(attack: Attack) -> None:
    """One connection, many channels, all but the last octet of large messages on each."""
    size = 16 * MIB
    channels = max(1, attack.wanted_bytes // size)
    client = attack.client(channels=channels)
    client.send(b"".join(beginning(number, size) for number in range(1, channels + 1)))
    for number in range(1, channels + 1):
        attack.push(client, body_but(number, size))


@hog
def partial_contents_of_many(attack: Attack) -> None:
    """The same from many connections, each of which stays below any bound of its own."""
    size = 8 * MIB
    clients = [attack.client() for _ in range(max(1, attack.wanted_bytes // size))]
    for client in clients:
        client.send(beginning(1, size))
    for client in clients:
        attack.push(client, body_but(1, size))


@hog
def empty_beginnings(attack: Attack) -> None:
    """Publishes without a header, on all channels there are, from many connections."""
    for _ in range(max(1, attack.wanted_bytes // (8 * MIB))):
        if attack.is_over:
            return
        client = attack.client(channels=2047)
        key = "k" * 200
        publish = amqp.Basic.Publish(exchange="", routing_key=key)
        attack.push(client, [b"".join(method(number, publish) for number in range(1, 2048))])


@hog
def unread_consumers(attack: Attack) -> None:
    """Many consumers without prefetch that never read."""
    first = attack.client()
    queue = attack.queue(first)
    body = bytes(attack.rng.choice((16, 1024, 100_000)))
    attack.fill(queue, attack.wanted_bytes // (len(body) + 300), body, persistent=False)
    for _ in range(100):
        client = attack.client()
        client.send(method(1, amqp.Basic.Consume(queue=queue, consumer_tag="c")))


@hog
def never_acked(attack: Attack) -> None:
    """A consumer that reads everything and acks nothing."""
    client = attack.client()
    queue = attack.queue(client, durable=True)
    body = bytes(attack.rng.choice((1024, 10_000, 1_000_000)))
    filling = threading.Thread(
        target=quietly,
        args=(lambda: attack.fill(queue, attack.wanted_bytes // len(body), body, persistent=True),),
        daemon=True,
    )
    client.send(method(1, amqp.Basic.Consume(queue=queue, consumer_tag="c")))
    filling.start()
    client.wait_at_most(BLOCKED_S)
    with suppress(TimeoutError):
        while not attack.is_over:
            client._fill()
            client._buffer.clear()


@hog
def gets(attack: Attack) -> None:
    """Gets of large messages, answers unread."""
    first = attack.client()
    queue = attack.queue(first, durable=True)
    size = attack.rng.choice((100_000, 4 * MIB))
    attack.fill(queue, attack.wanted_bytes // size, bytes(size), persistent=True)
    for _ in range(20):
        client = attack.client()
        attack.push(client, [method(1, amqp.Basic.Get(queue=queue, no_ack=False)) * 500])


@hog
def got_again_and_again(attack: Attack) -> None:
    """One large message, got and given back by many who read nothing."""
    first = attack.client()
    queue = attack.queue(first)
    attack.fill(queue, 1, bytes(8 * MIB), persistent=False)
    for _ in range(30):
        client = attack.client()
        asks = (
            method(1, amqp.Basic.Get(queue=queue)) + method(1, amqp.Basic.Reject(tag, requeue=True))
            for tag in range(1, 50)
        )
        attack.push(client, asks)


@hog
def transactions(attack: Attack) -> None:
    """Uncommitted publishes on many channels."""
    channels = max(1, attack.wanted_bytes // (32 * MIB))
    client = attack.client(channels=channels)
    for number in range(1, channels + 1):
        client.call(number, amqp.Tx.Select(), amqp.Tx.SelectOk)
    queue = attack.queue(client)
    size = attack.rng.choice((100, 50_000))
    for number in range(1, channels + 1):
        mine = content(number, "", queue, bytes(size)) * (MIB // (size + 100))
        attack.push(client, [mine] * 30)


def large_table() -> bytes:
    """Entries of a table that is much larger decoded than sent."""
    return b"".join(b"\x06k%05dt\x01" % number for number in range(9000))


@hog
def tables(attack: Attack) -> None:
    """Messages whose headers have to be decoded to be routed."""
    client = attack.client()
    queue = attack.queue(client)
    exchange = f"{queue}.x"
    declare = amqp.Exchange.Declare(exchange=exchange, exchange_type="headers")
    client.call(1, declare, amqp.Exchange.DeclareOk)
    client.call(1, amqp.Queue.Bind(queue=queue, exchange=exchange), amqp.Queue.BindOk)
    entries = large_table()

    def messages() -> Iterator[bytes]:
        for number in range(attack.wanted_bytes // len(entries)):
            mark = b"\x04mark" + b"I" + struct.pack(">I", number)
            own = struct.pack(">I", len(entries) + len(mark)) + mark + entries
            head = struct.pack(">HHQH", 60, 0, 0, 0x2000) + own
            publish = amqp.Basic.Publish(exchange=exchange, routing_key="k")
            yield method(1, publish) + frame(HEADER, 1, head)

    attack.push(client, messages())


@hog
def declared_tables(attack: Attack) -> None:
    """Queues with arguments that mean nothing, and are many."""
    client = attack.client()
    entries = large_table()
    table = struct.pack(">I", len(entries)) + entries

    def declares() -> Iterator[bytes]:
        for number in range(attack.wanted_bytes // len(entries) // 8):
            name = b"hog.%d" % number
            short = bytes((len(name),)) + name
            yield frame(1, 1, struct.pack(">HHH", 50, 10, 0) + short + b"\x08" + table)

    attack.push(client, declares())


@hog
def returns(attack: Attack) -> None:
    """Mandatory messages that come back to who does not read."""
    for _ in range(8):
        client = attack.client()
        one = content(1, "", "nowhere", bytes(500_000), mandatory=True)
        attack.push(client, [one] * max(1, attack.wanted_bytes // 8 // 500_000))


@hog
def recovering(attack: Attack) -> None:
    """Deliveries asked for again and again, and read by nobody."""
    client = attack.client()
    queue = attack.queue(client)
    attack.fill(queue, 40, bytes(500_000), persistent=False)
    client.send(method(1, amqp.Basic.Consume(queue=queue, consumer_tag="c")))
    recover = method(1, amqp.Basic.Recover(requeue=False))
    attack.push(client, [recover] * 500)


@hog
def connections(attack: Attack) -> None:
    """More connections than anybody needs, each with a few channels and half a frame."""
    for _ in range(min(1500, max(1, attack.wanted_bytes // (200 * 1024)))):
        if attack.is_over:
            return
        client = attack.client(channels=4)
        client.send(beginning(1, 70_000))
        attack.push(client, body_but(1, 70_000, 10_000))


def quietly(job: Callable[[], None]) -> None:
    """Do it, as far as the broker lets us."""
    with suppress(PeerClosedError, OSError, AssertionError):
        job()


@contextmanager
def running(name: str, url: str, wanted_bytes: int, seed: int, push_s: float) -> Iterator[None]:
    """Have a hog at work; it holds what it has until the end."""
    with ExitStack() as stack:
        attack = Attack(url, wanted_bytes, random.Random(seed), stack, push_s)
        quietly(lambda: HOGS[name](attack))
        yield


class Served(threading.Thread):
    """A well-behaved client: gets from an empty queue, on one connection, all the time."""

    def __init__(self, url: str) -> None:
        super().__init__(daemon=True)
        self._client = RawClient(url, limit_s=30.0).handshake()
        self._client.open_channel(1)
        asked = amqp.Queue.Declare(queue="served", exclusive=True)
        self._client.call(1, asked, amqp.Queue.DeclareOk)
        self._enough = threading.Event()
        self.longest_s = 0.0
        self.rounds = 0
        self.error: BaseException | None = None

    def run(self) -> None:
        """Ask on and on."""
        try:
            while not self._enough.wait(0.01):
                began = time.monotonic()
                self._client.call(1, amqp.Basic.Get(queue="served"), amqp.Basic.GetEmpty)
                self.longest_s = max(self.longest_s, time.monotonic() - began)
                self.rounds += 1
        except BaseException as error:  # noqa: BLE001 - judged by who started us
            self.error = error

    def finish(self) -> None:
        """Stop; raises what went wrong."""
        self._enough.set()
        self.join()
        with self._client:
            if self.error is not None:
                raise self.error


def broker_for(directory: Path, watermark: str, *flags: str) -> BrokerProcess:
    """A broker with this watermark."""
    chosen = ("--vm-memory-high-watermark", watermark, "--disk-free-limit", "0", *flags)
    return BrokerProcess(directory, flags=chosen)


def try_out(
    broker: BrokerProcess,
    names: list[str],
    wanted_bytes: int,
    seed: int,
    hold_s: float,
    push_s: float = PUSH_S,
) -> tuple[int, float]:
    """Have hogs at work beside each other; gives the most memory, and the longest wait."""
    served = Served(broker.url)
    served.start()
    meter = Meter(broker)
    meter.start()
    with ExitStack() as stack:
        lock = threading.Lock()

        def work(number: int, name: str) -> None:
            attack = running(name, broker.url, wanted_bytes, seed * 1000 + number, push_s)
            with lock:
                stack.callback(attack.__exit__, None, None, None)
            attack.__enter__()

        threads = [
            threading.Thread(target=work, args=(number, name), daemon=True)
            for number, name in enumerate(names)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        time.sleep(hold_s)
    most_bytes = meter.finish()
    served.finish()
    return most_bytes, served.longest_s


def main() -> int:
    """Try each hog alone, then drawn ones together until the time is up."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--watermark", default="400MB")
    parser.add_argument("--wanted", default="1500MB", help="what each hog tries to make it hold")
    parser.add_argument("--seconds", type=float, default=0.0, help="of drawn hogs together")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--hold", type=float, default=3.0, help="seconds that a hog keeps what it has"
    )
    parser.add_argument("hogs", nargs="*", default=[], help=", ".join(HOGS))
    chosen = parser.parse_args()
    limit_bytes = parse_amount(chosen.watermark).of(1) + ALLOWANCE_BYTES
    wanted_bytes = parse_amount(chosen.wanted).of(1)
    rng = random.Random(chosen.seed)
    is_fine = True

    def judge(names: list[str], seed: int) -> bool:
        with tempfile.TemporaryDirectory() as directory:
            broker = broker_for(Path(directory), chosen.watermark)
            broker.start(limit_s=30)
            try:
                before = broker.resident_bytes()
                most, wait_s = try_out(broker, names, wanted_bytes, seed, chosen.hold)
                time.sleep(1.5)
                behind = broker.resident_bytes()
                complaints = broker.complaints()
            finally:
                broker.kill9()
        verdict = "ok" if most <= limit_bytes and not complaints else "FAILED"
        sys.stdout.write(
            f"{verdict:6} {'+'.join(names):40} before {before // MIB:5} most {most // MIB:5} "
            f"after {behind // MIB:5} limit {limit_bytes // MIB} MiB, longest wait "
            f"{wait_s * 1000:.0f} ms\n"
        )
        for line in complaints:
            sys.stdout.write(f"       {line}\n")
        sys.stdout.flush()
        return verdict == "ok"

    for name in chosen.hogs or ([] if chosen.seconds else list(HOGS)):
        is_fine &= judge([name], chosen.seed)
    end = time.monotonic() + chosen.seconds
    seed = chosen.seed
    while time.monotonic() < end:
        seed += 1
        is_fine &= judge(rng.choices(list(HOGS), k=rng.randint(2, 4)), seed)
    return 0 if is_fine else 1


if __name__ == "__main__":
    raise SystemExit(main())
