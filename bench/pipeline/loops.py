"""What rows are held against: plain loops with pika, and the messages that all of them carry.

Messages are filled in with octets encoded beforehand, for speed; each has what messages usually
have: a delivery mode, a content type, an id of its own and two headers.
"""

from __future__ import annotations

import socket
import struct
import time
from collections.abc import Callable
from typing import Any, Final

import pika
from pamqp import commands
from pamqp import header as content_header

from bench import frames
from bench.client import Address, BrokerError, Client
from bench.pipeline.row import RowError

BODY_BYTES: Final = 256
CHUNK: Final = 500
WINDOW: Final = 5000
PREFETCH: Final = 2000
STREAM_ACK_EVERY: Final = 500
PATIENCE_S: Final = 60.0
_ACK: Final = 60 << 16 | 80
_NACK: Final = 60 << 16 | 120


def property_block(message_id: str) -> bytes:
    """The flags and values of a persistent message's properties."""
    made = commands.Basic.Properties(
        content_type="application/json",
        delivery_mode=2,
        message_id=message_id,
        headers={"tenant": "north", "attempt": 1},
    )
    # Behind class, weight and body size.
    return bytes(content_header.ContentHeader(0, 0, made).marshal()[12:])


def chunk(queue: str, number: int, size: int) -> bytes:
    """The encoded publishes `number` to `number` + 499 to a queue."""
    body = bytes(size)
    return b"".join(
        frames.publish("", queue, body, persistent=True, block=property_block(f"m-{at:012d}"))
        for at in range(number, number + CHUNK)
    )


def fill(url: str, queue: str, count: int, *, size: int = BODY_BYTES, stream: bool = False) -> None:
    """Declare a durable queue or stream and publish to it, confirmed; a multiple of 500 messages.

    Raises:
        RowError: the count is no multiple, or not all are confirmed
    """
    if count % CHUNK:
        raise RowError(f"{count} messages are no multiple of {CHUNK}")
    chunks = [chunk(queue, at, size) for at in range(0, min(count, 20 * CHUNK), CHUNK)]
    with Client(Address.parse(url)) as client:
        client.call(frames.queue_declare(queue, durable=True, is_stream=stream))
        client.call(frames.confirm_select())
        client.socket.settimeout(PATIENCE_S)
        confirms = Confirms(client.socket)
        for sent in range(CHUNK, count + CHUNK, CHUNK):
            client.socket.sendall(chunks[sent // CHUNK % len(chunks)])
            confirms.wait(count if sent == count else sent - WINDOW)
        client.close()
    if not stream and ready_count(url, queue) != count:
        raise RowError(f"{count} were published, {ready_count(url, queue)} are there")


class Confirms:
    """How many publishes of a channel are confirmed; RabbitMQ tells singly and out of order."""

    def __init__(self, peer: socket.socket) -> None:
        self._peer = peer
        self._rest = b""
        self._up_to = 0
        self._singles: set[int] = set()

    def wait(self, count: int) -> None:
        """Read until so many are confirmed.

        Raises:
            RowError: a nack, or something else came
        """
        while self._up_to + len(self._singles) < count:
            found, self._rest = frames.split(self._rest + self._peer.recv(1 << 20))
            for frame in found:
                kind, tag, flags = struct.unpack_from(">IQB", frame.payload)
                if kind != _ACK:
                    raise RowError("a publish was refused" if kind == _NACK else "no confirm")
                self._take(tag, multiple=bool(flags & 1))

    def _take(self, tag: int, *, multiple: bool) -> None:
        if not multiple:
            self._singles.add(tag)
            return
        self._up_to = max(self._up_to, tag)
        self._singles = {single for single in self._singles if single > self._up_to}


def ready_count(url: str, queue: str) -> int:
    """How many messages a passive declare finds."""
    with Client(Address.parse(url)) as client:
        found = frames.queue_name_and_count(client.call(frames.queue_declare(queue, passive=True)))
        client.close()
    return found[1]


def delete(url: str, queue: str) -> None:
    """Delete a queue or stream; fine when there is none."""
    with Client(Address.parse(url)) as client:
        try:
            client.call(frames.queue_delete(queue))
            client.close()
        except BrokerError:
            client.drop()


def pika_consume(
    url: str,
    queue: str,
    count: int,
    *,
    ack_every: int = 1,
    stream: bool = False,
    keep: Callable[[Any, Any, bytes], None] | None = None,
) -> float:
    """Consume so many with pika's blocking connection; messages per second.

    `keep` gets the method, properties and body of each message.
    An ack for each message is the loop that everybody writes; a stream's acks are only credit.

    Raises:
        RowError: nothing came for a minute before all had come
    """
    arguments: dict[str, Any] = {"x-stream-offset": "first"} if stream else {}
    every = STREAM_ACK_EVERY if stream else ack_every
    connection = pika.BlockingConnection(pika.URLParameters(url))
    channel = connection.channel()
    channel.basic_qos(prefetch_count=PREFETCH)
    seen = 0

    def on_message(at: Any, method: Any, properties: Any, body: bytes) -> None:
        nonlocal seen
        seen += 1
        if keep is not None:
            keep(method, properties, body)
        if seen % every == 0 or seen == count:
            at.basic_ack(method.delivery_tag, multiple=every > 1)

    began = time.perf_counter()
    channel.basic_consume(queue, on_message, arguments=arguments)
    # Not stop_consuming: it rejects what has come beyond that, which a stream does not allow.
    heard, heard_at = 0, began
    while seen < count:
        connection.process_data_events(time_limit=1.0)
        if seen > heard:
            heard, heard_at = seen, time.perf_counter()
        elif time.perf_counter() - heard_at > PATIENCE_S:
            raise RowError(f"{seen} of {count} messages came")
    took = time.perf_counter() - began
    connection.close()
    return seen / took


def pika_publish(url: str, queue: str, count: int, *, size: int = BODY_BYTES) -> float:
    """Publish so many with pika, waiting for each confirm, mandatory; messages per second."""
    connection = pika.BlockingConnection(pika.URLParameters(url))
    channel = connection.channel()
    channel.queue_declare(queue, durable=True)
    channel.confirm_delivery()
    body = bytes(size)
    began = time.perf_counter()
    for number in range(count):
        properties = pika.BasicProperties(
            content_type="application/json",
            delivery_mode=2,
            message_id=f"m-{number:012d}",
            headers={"tenant": "north", "attempt": 1},
        )
        channel.basic_publish("", queue, body, properties, mandatory=True)
    took = time.perf_counter() - began
    connection.close()
    return count / took
