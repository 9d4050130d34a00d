"""Many of one thing, and one step that concerns all of them.

What the broker does about all queues, bindings, channels or consumers at once it has to do in
slices: nobody else may notice how many there are.
"""

from __future__ import annotations

import json
import socket
import struct
import subprocess
import sys
import threading
import time
from contextlib import suppress
from typing import Final

from bench import frames
from bench.abuse.cases import (
    READ_BYTES,
    SETTLE_S,
    Case,
    Stage,
    bind,
    drain,
    finish,
    ids_method,
    nothing,
    until,
)
from bench.client import Address, BrokerError, Client
from bench.servers import ROOT

QUEUE_COUNT: Final = 10_000
CHANNEL_COUNT: Final = 2_000
PER_CHANNEL: Final = 20
BINDING_COUNT: Final = 100_000
KEY_COUNT: Final = 20
PATTERN_WORDS: Final = 17
EMPTY_COUNT: Final = 15_000
READER_COUNT: Final = 50
BACKLOG_COUNT: Final = 500_000
PIECE_COUNT: Final = 1_000
READING_S: Final = 15.0
PREFETCH: Final = 500
EXPIRES_MS: Final = 8_000
DELIVER: Final = (60, 60)
EXCLUSIVE_NOWAIT: Final = 0x14


def vouchmq(stage: Stage, *arguments: str) -> None:
    """Run a command of the broker's own program."""
    command = [sys.executable, "-m", "vouchmq", *arguments, "--data-dir"]
    command.append(str(stage.directory / "vouchmq"))
    subprocess.run(command, cwd=ROOT, stdout=subprocess.DEVNULL, check=True)


def is_there(stage: Stage, queue: str, address: Address | None = None) -> bool:
    """Say whether a queue is there; a failed look costs its channel, so each has its own."""
    try:
        with Client(address or stage.address) as asking:
            asking.call(frames.queue_declare(queue, passive=True))
    except BrokerError:
        return False
    return True


def declare_many(client: Client, count: int, table: bytes = b"", *, durable: bool = False) -> None:
    """Declare queues `many-0`, `many-1`, ...; all are there when this returns."""
    flags = bytes((0x10 | durable << 1,))
    arguments = frames.longstr(table)
    for number in range(count):
        name = frames.shortstr(f"many-{number}")
        client.socket.sendall(ids_method((50, 10), b"\0\0" + name + flags + arguments))
    finish(client)


# Policies.


def queues_for_a_policy(stage: Stage) -> None:
    """Ten thousand queues."""
    declare_many(stage.client(), stage.sized(QUEUE_COUNT))


def change_policies(stage: Stage) -> None:
    """Set a policy for all of them, change it, add an operator policy, delete both."""
    cap = ("put", "policy", "cap", "^many-", "--set")
    vouchmq(stage, *cap, "max-length=1000")
    vouchmq(stage, *cap, "max-length=10", "--set", "message-ttl=60000")
    vouchmq(stage, "put", "policy", "roof", "^many-", "--operator", "--set", "expires=3600000")
    vouchmq(stage, "delete", "policy", "cap")
    vouchmq(stage, "delete", "policy", "roof", "--operator")


# Channels.


def consume_on(channel: int, queue: str, number: int) -> bytes:
    """Encode basic.consume on a channel, without waiting for an answer."""
    names = frames.shortstr(queue) + frames.shortstr(f"tag-{number}")
    return ids_method((60, 20), b"\0\0" + names + b"\x08" + frames.longstr(b""), channel)


def declare_on(channel: int, number: int) -> bytes:
    """Encode queue.declare of an exclusive queue on a channel, without waiting for an answer."""
    name = frames.shortstr(f"own-{channel}-{number}")
    flags = bytes((EXCLUSIVE_NOWAIT,))
    return ids_method((50, 10), b"\0\0" + name + flags + frames.longstr(b""), channel)


def channels_of_one(stage: Stage, *, declares: bool) -> None:
    """Open channels in one write, use each twenty times, and vanish."""
    client = stage.client()
    client.call(frames.queue_declare("shared"))
    octets = []
    for channel in range(2, 1 + stage.sized(CHANNEL_COUNT)):
        octets.append(frames.channel_open(channel))
        for number in range(PER_CHANNEL):
            if declares:
                octets.append(declare_on(channel, number))
            else:
                octets.append(consume_on(channel, "shared", number))
    reader = threading.Thread(target=drain, args=(client,))
    reader.start()
    client.socket.sendall(b"".join(octets))
    client.socket.sendall(ids_method((50, 10), b"\0\0\4done\x10" + frames.longstr(b"")))
    until(lambda: is_there(stage, "done"))
    client.socket.shutdown(socket.SHUT_RDWR)
    reader.join()


def channels_with_consumers(stage: Stage) -> None:
    """2,000 channels with 20 consumers of one queue each, and the connection is lost."""
    channels_of_one(stage, declares=False)


def channels_with_queues(stage: Stage) -> None:
    """2,000 channels that declare 20 exclusive queues each, and the connection is lost."""
    channels_of_one(stage, declares=True)


# Bindings.


def wildcard_bindings(stage: Stage) -> None:
    """Bind one queue 100,000 times by patterns, publish with 20 keys, and delete the queue.

    Each key comes by nearly all of the patterns and matches none.
    """
    client = stage.client()
    client.call(frames.exchange_declare("wild", "topic"))
    client.call(frames.queue_declare("tame"))
    for number in range(stage.sized(BINDING_COUNT)):
        words = ("*" if number >> bit & 1 else "a" for bit in range(PATTERN_WORDS))
        client.socket.sendall(bind("tame", "wild", ".".join((*words, "end"))))
    finish(client)
    key = "a." * PATTERN_WORDS
    keys = (f"{key}{number}" for number in range(stage.sized(KEY_COUNT)))
    client.socket.sendall(
        b"".join(frames.publish("wild", key, b"x", persistent=False) for key in keys)
    )
    finish(client)
    client.call(frames.queue_delete("tame"))
    time.sleep(SETTLE_S)


# Queues.


def empty_queues(stage: Stage) -> None:
    """Fifteen thousand durable queues."""
    declare_many(stage.client(), stage.sized(EMPTY_COUNT), durable=True)


def delete_each(stage: Stage) -> None:
    """Delete each of them, in one write."""
    client = stage.client()
    names = (frames.shortstr(f"many-{number}") for number in range(stage.sized(EMPTY_COUNT)))
    client.socket.sendall(b"".join(ids_method((50, 40), b"\0\0" + name + b"\4") for name in names))
    finish(client)


def expire_together(stage: Stage) -> None:
    """Ten thousand queues that expire within one moment."""
    table = frames.number_entry("x-expires", EXPIRES_MS)
    count = stage.sized(QUEUE_COUNT)
    declare_many(stage.client(), count, table)
    watcher = stage.client()
    watcher.socket.settimeout(None)
    time.sleep(EXPIRES_MS / 1000)
    until(lambda: not any(is_there(stage, f"many-{n}") for n in (0, count // 2, count - 1)))


def queues_of_a_vhost(stage: Stage) -> None:
    """A virtual host with ten thousand queues, each bound and with a message."""
    vouchmq(stage, "put", "vhost", "doomed")
    every = [f"--{what}=.*" for what in ("configure", "write", "read")]
    vouchmq(stage, "put", "permissions", "guest", "--vhost", "doomed", *every)
    address = Address(stage.address.host, stage.address.port, vhost="doomed")
    with Client(address) as client:
        count = stage.sized(QUEUE_COUNT)
        declare_many(client, count, durable=True)
        for number in range(count):
            client.socket.sendall(bind(f"many-{number}", "amq.topic", f"*.{number}"))
            client.socket.sendall(frames.publish("", f"many-{number}", b"x", persistent=True))
        finish(client)


def delete_vhost(stage: Stage) -> None:
    """Delete it."""
    vouchmq(stage, "delete", "vhost", "doomed")
    time.sleep(SETTLE_S)


def import_definitions(stage: Stage) -> None:
    """Import ten thousand queues with a binding each while clients are served."""
    count = stage.sized(QUEUE_COUNT)
    common = {"vhost": "/", "arguments": {}}
    queues = [
        {**common, "name": f"many-{number}", "durable": True, "auto_delete": False}
        for number in range(count)
    ]
    bindings = [
        {
            **common,
            "source": "amq.topic",
            "destination": f"many-{number}",
            "destination_type": "queue",
            "routing_key": f"*.{number}",
        }
        for number in range(count)
    ]
    path = stage.directory / "imported.json"
    path.write_text(json.dumps({"queues": queues, "bindings": bindings}))
    vouchmq(stage, "definitions", "import", str(path))


# Streams.


def stream_of_many(stage: Stage) -> None:
    """A stream of half a million messages."""
    client = stage.client()
    client.call(frames.queue_declare("long", durable=True, is_stream=True))
    client.call(frames.confirm_select())
    one = frames.publish("", "long", bytes(100), persistent=True)
    for _ in range(0, stage.sized(BACKLOG_COUNT), PIECE_COUNT):
        client.socket.sendall(one * PIECE_COUNT)
    finish(client)


def read_and_ack(client: Client, ends_at: float) -> None:
    """Take what comes and acknowledge it, for a while."""
    rest, tag = b"", 0
    with suppress(OSError):
        while time.monotonic() < ends_at:
            arrived, rest = frames.split(rest + client.socket.recv(READ_BYTES))
            tag += sum(each.ids == DELIVER for each in arrived)
            client.socket.sendall(frames.method(1, (60, 80), struct.pack(">QB", tag, 1)))


def read_stream(stage: Stage) -> None:
    """Fifty consumers read it from the first message, beside one who publishes and waits."""
    ends_at = time.monotonic() + READING_S * stage.scale
    table = frames.text_entry("x-stream-offset", "first")
    names = frames.shortstr("long") + frames.shortstr("reader")
    readers = []
    for _ in range(READER_COUNT):
        client = stage.client()
        client.call(frames.qos(PREFETCH))
        client.socket.sendall(ids_method((60, 20), b"\0\0" + names + b"\0" + frames.longstr(table)))
        readers.append(threading.Thread(target=read_and_ack, args=(client, ends_at)))
    for reader in readers:
        reader.start()
    publisher = stage.client()
    publisher.call(frames.queue_declare("besides", durable=True))
    publisher.call(frames.confirm_select())
    waits_ms = []
    while time.monotonic() < ends_at:
        began = time.perf_counter()
        publisher.call(frames.publish("", "besides", b"x", persistent=True))
        waits_ms.append((time.perf_counter() - began) * 1000)
        time.sleep(0.01)
    stage.found["confirm_p50_ms"] = round(sorted(waits_ms)[len(waits_ms) // 2], 1)
    stage.found["confirm_worst_ms"] = round(max(waits_ms), 1)


MANY: Final = (
    Case(
        "policies",
        "policies for 10,000 queues set, changed and deleted",
        queues_for_a_policy,
        change_policies,
    ),
    Case(
        "channel_consumers",
        "2,000 channels with 20 consumers each, and their connection is lost",
        nothing,
        channels_with_consumers,
    ),
    Case(
        "channel_queues",
        "2,000 channels with 20 exclusive queues each, and their connection is lost",
        nothing,
        channels_with_queues,
    ),
    Case(
        "wildcards",
        "100,000 bindings by patterns, 20 keys, and their queue is deleted",
        nothing,
        wildcard_bindings,
    ),
    Case("empty_deletes", "15,000 deletes of empty queues", empty_queues, delete_each),
    Case("expiries", "10,000 queues expire together", nothing, expire_together),
    Case(
        "vhost_delete",
        "a virtual host of 10,000 queues is deleted",
        queues_of_a_vhost,
        delete_vhost,
    ),
    Case(
        "import",
        "10,000 queues and bindings are imported at run time",
        nothing,
        import_definitions,
    ),
    Case(
        "stream_readers", "50 consumers read a stream from the first", stream_of_many, read_stream
    ),
)
