"""The abuses: each is something that a single client, or all clients of one kind, can do.

A case prepares the broker (not measured), then does its worst (measured, beside a bystander).
`scale` shrinks it for a quick look; at 1.0 the sizes are those that once stopped the broker.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Final

from bench import frames
from bench.client import Address, BrokerError, Client
from bench.servers import ROOT

MIB: Final = 1024 * 1024
PATIENCE_S: Final = 300.0
READ_BYTES: Final = 1024 * 1024
SETTLE_S: Final = 1.0
"""How long the bystander goes on after an abuse: what is left for later turns counts too."""


@dataclass(slots=True)
class Stage:
    """The broker under abuse, and what a case has opened and prepared there."""

    address: Address
    pid: int
    directory: Path
    scale: float
    stack: ExitStack
    clients: list[Client] = field(default_factory=list)
    processes: list[subprocess.Popen[str]] = field(default_factory=list)
    found: dict[str, object] = field(default_factory=dict)
    """What the case has to tell besides: it becomes part of its row."""

    @property
    def definitions(self) -> Path:
        """The definitions file of the cases that have one."""
        return self.directory / "definitions.json"

    def client(self) -> Client:
        """Connect one more client, which is dropped after the case."""
        made = self.stack.enter_context(Client(self.address))
        made.socket.settimeout(PATIENCE_S)
        return made

    def sized(self, count: int, least: int = 1) -> int:
        """Scale a count."""
        return max(int(count * self.scale), least)


Step = Callable[[Stage], None]


@dataclass(frozen=True, slots=True)
class Case:
    """One abuse: what is done, how it is prepared, and with which flags the broker runs."""

    name: str
    what: str
    prepare: Step
    abuse: Step
    flags: tuple[str, ...] = ()
    watermark_bytes: int = 0
    """Where the memory alarm is set, if the case is about memory."""


def ids_method(ids: tuple[int, int], arguments: bytes, channel: int = 1) -> bytes:
    """Encode a method on a channel."""
    return frames.method(channel, ids, arguments)


def bind(queue: str, exchange: str, key: str, table: bytes = b"") -> bytes:
    """Encode queue.bind with arguments, without waiting for an answer."""
    names = frames.shortstr(queue) + frames.shortstr(exchange) + frames.shortstr(key)
    return ids_method((50, 20), b"\0\0" + names + b"\1" + frames.longstr(table))


def bind_exchange(destination: str, source: str) -> bytes:
    """Encode exchange.bind, without waiting for an answer."""
    names = frames.shortstr(destination) + frames.shortstr(source) + frames.shortstr("")
    return ids_method((40, 30), b"\0\0" + names + b"\1" + frames.longstr(b""))


def declare_nowait(queue: str, table: bytes = b"") -> bytes:
    """Encode queue.declare of a transient queue, without waiting for an answer."""
    return ids_method((50, 10), b"\0\0" + frames.shortstr(queue) + b"\x10" + frames.longstr(table))


def finish(client: Client) -> None:
    """Wait until the broker has done everything the client has sent so far."""
    client.call(frames.qos(0))


def fill(stage: Stage, queue: str, count: int, body: bytes, exchange: str = "") -> None:
    """Publish that many transient messages and wait until they are in."""
    client = stage.client()
    one = frames.publish(exchange, queue, body, persistent=False)
    step = max(1, min(count, 4 * MIB // len(one)))
    left = count
    while left:
        now = min(step, left)
        client.socket.sendall(one * now)
        left -= now
    finish(client)


def count_in(client: Client, queue: str) -> int:
    """Say how many messages of a queue are ready."""
    reply = client.call(frames.queue_declare(queue, passive=True))
    return frames.queue_name_and_count(reply)[1]


def until(is_over: Callable[[], bool]) -> None:
    """Look every 50 ms until it is over."""
    deadline = time.monotonic() + PATIENCE_S
    while not is_over():
        assert time.monotonic() < deadline, "it does not end"
        time.sleep(0.05)


def nothing(stage: Stage) -> None:
    """Prepare or do nothing."""


def calm(stage: Stage) -> None:
    """Do nothing for some seconds: what the machine itself adds."""
    time.sleep(3.0)


# Consumers that leave, or are many.


def backlog_with_consumers(stage: Stage) -> None:
    """A backlog, and consumers without a prefetch limit that do not read."""
    client = stage.client()
    client.call(frames.queue_declare("backlog"))
    fill(stage, "backlog", stage.sized(400_000), bytes(100))
    for number in range(stage.sized(40)):
        consumer = stage.client()
        consumer.call(frames.consume("backlog", f"tag-{number}", no_ack=False))
        stage.clients.append(consumer)
    time.sleep(SETTLE_S)


def leave_together(stage: Stage) -> None:
    """All consumers vanish in one moment; over when the backlog is whole again."""
    watcher = stage.client()
    for client in stage.clients:
        client.drop()
    until(lambda: count_in(watcher, "backlog") == stage.sized(400_000))


def many_consumers(stage: Stage) -> None:
    """Two thousand consumers of one queue, on forty connections."""
    stage.client().call(frames.queue_declare("crowd"))
    for _ in range(40):
        client = stage.client()
        for number in range(stage.sized(2_000) // 40):
            client.call(frames.consume("crowd", f"tag-{number}", no_ack=True))
        stage.clients.append(client)


def publish_many(stage: Stage) -> None:
    """Twenty thousand messages, one behind the other, for all of them."""
    count = stage.sized(20_000)
    drained = [threading.Thread(target=drain, args=(client,)) for client in stage.clients]
    for thread in drained:
        thread.start()
    client = stage.client()
    one = frames.publish("", "crowd", bytes(100), persistent=False)
    for _ in range(0, count, 20):
        client.socket.sendall(one * 20)
    finish(client)
    until(lambda: count_in(client, "crowd") == 0)
    for consumer in stage.clients:
        consumer.socket.shutdown(socket.SHUT_RDWR)
    for thread in drained:
        thread.join()


def drain(client: Client) -> None:
    """Read and drop everything until the connection ends."""
    try:
        while client.socket.recv(READ_BYTES):
            pass
    except OSError:
        pass


# One read full of expensive methods.


def large_messages(stage: Stage) -> None:
    """A hundred messages of ten megabytes."""
    stage.client().call(frames.queue_declare("large"))
    fill(stage, "large", stage.sized(100), bytes(10_000_000))


def get_large(stage: Stage) -> None:
    """Ask for all of them in one write, and read nothing for a while."""
    client = stage.client()
    client.socket.sendall(frames.get("large", no_ack=True) * stage.sized(100))
    time.sleep(5.0)
    threading.Thread(target=drain, args=(client,), daemon=True).start()
    watcher = stage.client()
    until(lambda: count_in(watcher, "large") == 0)


def exchange_chain(stage: Stage) -> None:
    """A thousand exchanges, each bound to the next."""
    client = stage.client()
    names = [f"chain-{number}" for number in range(stage.sized(1_000))]
    for name in names:
        client.call(frames.exchange_declare(name, "fanout"))
    for source, destination in pairwise(names):
        client.socket.sendall(bind_exchange(destination, source))
    finish(client)


def publish_through_chain(stage: Stage) -> None:
    """A thousand publishes at its head, each with another routing key."""
    client = stage.client()
    client.socket.sendall(
        b"".join(
            frames.publish("chain-0", f"key-{number}", b"x", persistent=False)
            for number in range(stage.sized(1_000))
        )
    )
    finish(client)


def header_bindings(stage: Stage) -> None:
    """Three thousand bindings of a headers exchange, none of which matches."""
    client = stage.client()
    client.call(frames.exchange_declare("by-header", "headers"))
    client.call(frames.queue_declare("matched"))
    for number in range(stage.sized(3_000)):
        table = frames.text_entry("x-match", "any") + frames.number_entry("wanted", number)
        client.socket.sendall(bind("matched", "by-header", "", table))
    finish(client)


def publish_by_headers(stage: Stage) -> None:
    """Three hundred publishes, each with other headers."""
    client = stage.client()
    blocks = (
        frames.properties(headers=frames.number_entry("wanted", -1 - number))
        for number in range(stage.sized(300))
    )
    client.socket.sendall(
        b"".join(
            frames.publish("by-header", "", b"x", persistent=False, block=block) for block in blocks
        )
    )
    finish(client)


def queues_behind_topic(stage: Stage) -> None:
    """Five thousand queues that a topic exchange gives everything."""
    client = stage.client()
    client.call(frames.exchange_declare("everything", "topic"))
    for number in range(stage.sized(5_000)):
        name = f"copy-{number}"
        client.socket.sendall(declare_nowait(name) + bind(name, "everything", "#"))
    finish(client)


def publish_to_all(stage: Stage) -> None:
    """A thousand publishes, each with another routing key."""
    client = stage.client()
    client.socket.sendall(
        b"".join(
            frames.publish("everything", f"key.{number}", b"x", persistent=False)
            for number in range(stage.sized(1_000))
        )
    )
    finish(client)


def full_queues(stage: Stage) -> None:
    """A thousand queues of five thousand messages each."""
    queues_behind_fanout(stage, stage.sized(1_000))
    fill(stage, "", stage.sized(5_000), b"x", exchange="spread")


def queues_behind_fanout(stage: Stage, count: int) -> None:
    """Queues `copy-0`, `copy-1`, ... bound to the fanout exchange `spread`."""
    client = stage.client()
    client.call(frames.exchange_declare("spread", "fanout"))
    for number in range(count):
        name = f"copy-{number}"
        client.socket.sendall(declare_nowait(name) + bind(name, "spread", ""))
    finish(client)


def for_each_queue(stage: Stage, encode: Callable[[str], bytes]) -> None:
    """Send one method for each of those queues in one write."""
    client = stage.client()
    count = stage.sized(1_000)
    client.socket.sendall(b"".join(encode(f"copy-{number}") for number in range(count)))
    finish(client)


def purge_all(stage: Stage) -> None:
    """Purge each of them."""
    for_each_queue(
        stage, lambda name: ids_method((50, 30), b"\0\0" + frames.shortstr(name) + b"\1")
    )


def delete_all(stage: Stage) -> None:
    """Delete each of them."""
    for_each_queue(
        stage, lambda name: ids_method((50, 40), b"\0\0" + frames.shortstr(name) + b"\4")
    )


def hash_exchange(stage: Stage) -> None:
    """A consistent-hash exchange and twelve queues."""
    client = stage.client()
    client.call(frames.exchange_declare("hashed", "x-consistent-hash"))
    for number in range(12):
        client.call(frames.queue_declare(f"hashed-{number}"))


def bind_heavily(stage: Stage) -> None:
    """Twelve binds of weight 1000, of which a broker may refuse some; a publish needs the ring."""
    client = stage.client()
    weight = str(stage.sized(1_000))
    client.socket.sendall(b"".join(bind(f"hashed-{n}", "hashed", weight) for n in range(12)))
    try:
        finish(client)
    except BrokerError as refusal:
        if "406" not in str(refusal):
            raise
    publisher = stage.client()
    publisher.socket.sendall(frames.publish("hashed", "key", b"x", persistent=False))
    finish(publisher)


# What the broker multiplies, or has to do at once.


def dead_letter_cycle(stage: Stage) -> None:
    """Nine queues whose expired messages go to all of the nine through a fanout exchange."""
    client = stage.client()
    client.call(frames.exchange_declare("again", "fanout"))
    table = frames.number_entry("x-message-ttl", 1) + frames.text_entry(
        "x-dead-letter-exchange", "again"
    )
    for number in range(dead_letter_queues(stage)):
        client.call(frames.queue_declare(f"cycle-{number}", arguments=table))
        client.socket.sendall(bind(f"cycle-{number}", "again", ""))
    finish(client)


def dead_letter_queues(stage: Stage) -> int:
    """Nine, or fewer on a smaller scale: copies grow with the factorial."""
    return 9 if stage.scale >= 1 else 6


def start_cycle(stage: Stage) -> None:
    """One message; over after thirty seconds or when all queues are empty."""
    client = stage.client()
    client.socket.sendall(frames.publish("", "cycle-0", b"x", persistent=False))
    names = [f"cycle-{number}" for number in range(dead_letter_queues(stage))]
    deadline, empty = time.monotonic() + 30.0, 0
    while time.monotonic() < deadline and empty < 5:
        time.sleep(0.1)
        empty = empty + 1 if not any(count_in(client, name) for name in names) else 0


CROWD: Final = """
import socket, sys, time
from bench.client import Address, handshake_steps
address, count = Address.parse(sys.argv[1]), int(sys.argv[2])
sockets = []
for _ in range(count):
    made = socket.create_connection((address.host, address.port), timeout=60)
    for _, octets in handshake_steps(address):
        made.sendall(octets)
        made.recv(65536)
    sockets.append(made)
print("there", flush=True)
time.sleep(600)
"""
"""A process of its own, so that one SIGKILL ends all of its connections."""


@contextmanager
def crowd(address: Address, count: int) -> Iterator[subprocess.Popen[str]]:
    """Keep that many connections open in another process."""
    url = f"amqp://guest:guest@{address.host}:{address.port}/%2F"
    process = subprocess.Popen(
        [sys.executable, "-c", CROWD, url, str(count)], cwd=ROOT, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    try:
        assert process.stdout.readline() == "there\n", "the crowd could not connect"
        yield process
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def clients_of_a_crowd(stage: Stage) -> None:
    """Nine thousand idle connections."""
    stage.processes.append(stage.stack.enter_context(crowd(stage.address, stage.sized(9_000))))


def end_crowd(stage: Stage) -> None:
    """All of them are gone in one moment."""
    for process in stage.processes:
        process.kill()
        process.wait()
    time.sleep(2 * SETTLE_S)


def one_large_body(stage: Stage) -> None:
    """A body of 128 MiB, confirmed."""
    client = stage.client()
    client.call(frames.queue_declare("bodies", durable=True))
    client.call(frames.confirm_select())
    body = bytes(stage.sized(128) * MIB)
    client.call(frames.publish("", "bodies", body, persistent=True))


def write_definitions(stage: Stage) -> None:
    """Ten thousand queues, declared by the definitions file that is read again."""
    queues = [
        {
            "name": f"q-{number}",
            "vhost": "/",
            "durable": True,
            "auto_delete": False,
            "arguments": {},
        }
        for number in range(stage.sized(10_000))
    ]
    stage.definitions.write_text(json.dumps({"vhosts": [{"name": "/"}], "queues": queues}))
    os.kill(stage.pid, signal.SIGHUP)
    last = f"q-{stage.sized(10_000) - 1}"
    until(lambda: is_declared(stage, last))
    time.sleep(SETTLE_S)


def is_declared(stage: Stage, queue: str) -> bool:
    """Say whether a queue is there; a failed look costs its channel, so each has its own."""
    try:
        with Client(stage.address) as asking:
            count_in(asking, queue)
    except BrokerError:
        return False
    return True


def reload_definitions(stage: Stage) -> None:
    """SIGHUP with nothing changed."""
    os.kill(stage.pid, signal.SIGHUP)
    time.sleep(4 * SETTLE_S)


def many_queues(stage: Stage) -> None:
    """Fifty thousand queues."""
    client = stage.client()
    for number in range(stage.sized(50_000)):
        client.socket.sendall(declare_nowait(f"q-{number}"))
    finish(client)


def list_queues(stage: Stage) -> None:
    """`vouchmq list queues`, read to the end."""
    command = [sys.executable, "-m", "vouchmq", "list", "queues", "--data-dir"]
    command.append(str(stage.directory / "vouchmq"))
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, check=True, text=True)
    if listed.stdout.count("\tq-") != stage.sized(50_000):
        raise BrokerError("queues are missing from the list")


def wrong_passwords(stage: Stage) -> None:
    """Five hundred logins with a wrong password, each on a connection of its own."""
    for _ in range(stage.sized(500)):
        with socket.create_connection((stage.address.host, stage.address.port), 60) as made:
            made.sendall(frames.PROTOCOL_HEADER)
            made.recv(65536)
            made.sendall(frames.start_ok("guest", "wrong"))


# Memory.


def partial_contents(stage: Stage) -> None:
    """Bodies of 16 MiB on four hundred channels, each without its last frame."""
    client = stage.client()
    size = 16 * MIB
    step = frames.FRAME_MAX - frames.FRAME_OVERHEAD
    names = frames.shortstr("") + frames.shortstr("nowhere")
    piece = bytes(step)
    client.socket.settimeout(5.0)
    try:
        for channel in range(2, 2 + stage.sized(400)):
            octets = frames.channel_open(channel)
            octets += ids_method((60, 40), b"\0\0" + names + b"\0", channel)
            head = struct.pack(">HHQHB", 60, 0, size, 0x1000, 1)
            octets += frames.frame(frames.HEADER, channel, head)
            octets += frames.frame(frames.BODY, channel, piece) * (size // step)
            client.socket.sendall(octets)
    except OSError:
        # It is not read any more, or was closed: both are answers.
        pass
    time.sleep(2 * SETTLE_S)


def unread_consumers(stage: Stage) -> None:
    """A hundred consumers without a prefetch limit that never read, before a backlog."""
    stage.client().call(frames.queue_declare("backlog"))
    fill(stage, "backlog", stage.sized(1_000_000), bytes(1_000))
    for number in range(stage.sized(100)):
        client = stage.client()
        client.socket.sendall(frames.consume("backlog", f"tag-{number}", no_ack=False))
    time.sleep(3 * SETTLE_S)


def priority_queues(stage: Stage) -> None:
    """Five thousand queues with 255 priorities."""
    client = stage.client()
    table = frames.number_entry("x-max-priority", 255)
    for number in range(stage.sized(5_000)):
        client.socket.sendall(declare_nowait(f"levels-{number}", table))
    finish(client)


CASES: Final = (
    Case("calm", "nothing happens", nothing, calm),
    Case(
        "consumers_leave",
        "40 unread consumers without prefetch leave a backlog of 400,000",
        backlog_with_consumers,
        leave_together,
    ),
    Case(
        "many_consumers",
        "20,000 messages to 2,000 consumers of one queue",
        many_consumers,
        publish_many,
    ),
    Case("get_large", "100 basic.get of 10 MB in one write, unread", large_messages, get_large),
    Case(
        "exchange_chain",
        "1,000 publishes through a chain of 1,000 exchanges",
        exchange_chain,
        publish_through_chain,
    ),
    Case(
        "header_bindings",
        "300 publishes with different headers against 3,000 bindings",
        header_bindings,
        publish_by_headers,
    ),
    Case(
        "topic_to_all",
        "1,000 different routing keys to 5,000 queues bound by #",
        queues_behind_topic,
        publish_to_all,
    ),
    Case("purges", "1,000 purges of 5,000 messages in one write", full_queues, purge_all),
    Case("deletes", "1,000 deletes of queues of 5,000 messages", full_queues, delete_all),
    Case("hash_binds", "12 binds of weight 1000, then a publish", hash_exchange, bind_heavily),
    Case(
        "dead_letter_cycle",
        "one message in a cycle of nine queues through a fanout",
        dead_letter_cycle,
        start_cycle,
    ),
    Case("disconnects", "9,000 clients vanish at once", clients_of_a_crowd, end_crowd),
    Case(
        "large_body",
        "one body of 128 MiB",
        nothing,
        one_large_body,
        ("--max-message-size-bytes", str(128 * MIB)),
    ),
    Case(
        "reload",
        "SIGHUP with 10,000 unchanged queues in the definitions",
        write_definitions,
        reload_definitions,
        ("--load-definitions", "{definitions}"),
    ),
    Case("list_queues", "`vouchmq list queues` of 50,000 queues", many_queues, list_queues),
    Case("wrong_passwords", "500 wrong passwords", nothing, wrong_passwords),
    Case(
        "partial_contents",
        "400 bodies of 16 MiB without their end; alarm at 500 MB",
        nothing,
        partial_contents,
        watermark_bytes=500_000_000,
    ),
    Case(
        "unread_consumers",
        "100 consumers that never read before a backlog of a million; alarm at 500 MB",
        nothing,
        unread_consumers,
        watermark_bytes=500_000_000,
    ),
    Case("priority_queues", "5,000 queues with 255 priorities", nothing, priority_queues),
)
