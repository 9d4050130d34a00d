"""Floods: one client that sends what costs more than a plain publish, as fast as it can.

What goes on for seconds is judged by the bystander's percentiles as well: a turn may take what its
slices add up to, and no more.
"""

from __future__ import annotations

import random
import struct
import threading
import time
from typing import Final

from bench import frames
from bench.abuse.cases import (
    PATIENCE_S,
    READ_BYTES,
    Case,
    Stage,
    count_in,
    fill,
    finish,
    nothing,
    until,
)

DELIVER: Final = (60, 60)
RETURN: Final = (60, 50)


def queue_with_dead_letters(stage: Stage) -> None:
    """A queue whose dead letters go to another one, and messages for it with TTLs of their own.

    The frames are encoded before: what the client computes is not the broker's delay.
    """
    client = stage.client()
    client.call(frames.queue_declare("dead", durable=True))
    table = frames.text_entry("x-dead-letter-exchange", "")
    table += frames.text_entry("x-dead-letter-routing-key", "dead")
    client.call(frames.queue_declare("mortal", durable=True, arguments=table))
    chance = random.Random(0)
    blocks = (
        frames.properties(expiration=str(chance.randrange(200)), message_id=str(number))
        for number in range(stage.sized(200_000))
    )
    sent = (frames.publish("", "mortal", b"x" * 100, persistent=True, block=it) for it in blocks)
    stage.directory.joinpath("sent").write_bytes(b"".join(sent))


def publish_with_ttls(stage: Stage) -> None:
    """Publish them as fast as the broker takes them."""
    client = stage.client()
    client.socket.sendall(stage.directory.joinpath("sent").read_bytes())
    finish(client)
    until(lambda: count_in(client, "dead") == stage.sized(200_000))


def queue_of_some_thousand(stage: Stage) -> None:
    """A queue of five thousand messages."""
    stage.client().call(frames.queue_declare("again"))
    fill(stage, "again", stage.sized(5_000), b"x" * 100)


def requeue_each(stage: Stage) -> None:
    """Requeue each delivery at once, for five seconds."""
    client = stage.client()
    client.call(frames.qos(200))
    client.socket.sendall(frames.consume("again", "again", no_ack=False))
    until_s = time.monotonic() + 5 * stage.scale
    rest, count = b"", 0
    while time.monotonic() < until_s:
        arrived, rest = frames.split(rest + client.socket.recv(READ_BYTES))
        tags = [
            struct.unpack_from(">Q", each.payload, 5 + each.payload[4])[0]
            for each in arrived
            if each.ids == DELIVER
        ]
        count += len(tags)
        rejects = (frames.method(1, (60, 90), struct.pack(">QB", tag, 1)) for tag in tags)
        client.socket.sendall(b"".join(rejects))
    stage.found["requeued"] = count


def publish_unroutable(stage: Stage) -> None:
    """Publish 200,000 mandatory messages that no queue gets, and take back each return."""
    client = stage.client()
    names = frames.shortstr("") + frames.shortstr("nowhere")
    head = frames.frame(frames.HEADER, 1, struct.pack(">HHQHB", 60, 0, 100, 0x1000, 1))
    body = frames.frame(frames.BODY, 1, b"x" * 100)
    one = frames.method(1, (60, 40), b"\0\0" + names + b"\1") + head + body
    count = stage.sized(200_000)

    def take() -> None:
        left = count
        rest = b""
        while left:
            arrived, rest = frames.split(rest + client.socket.recv(READ_BYTES))
            left -= sum(each.ids == RETURN for each in arrived)

    reader = threading.Thread(target=take)
    reader.start()
    client.socket.sendall(one * count)
    reader.join(PATIENCE_S)
    assert not reader.is_alive(), "not all came back"


FLOODS: Final = (
    Case(
        "expiring_flood",
        "200,000 publishes at full speed, each with its own TTL, to a queue with dead letters",
        queue_with_dead_letters,
        publish_with_ttls,
    ),
    Case("requeue_loop", "every delivery requeued at once", queue_of_some_thousand, requeue_each),
    Case(
        "returned_flood",
        "200,000 mandatory publishes at full speed that no queue gets",
        nothing,
        publish_unroutable,
    ),
)
