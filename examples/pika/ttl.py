"""Messages that expire, by their queue or by themselves, and queues that expire."""

from __future__ import annotations

import argparse
import time
from typing import Any

import pika
import pika.exceptions

LONG_MS = 60_000


class Expiry:
    """One channel, and one time to live for what is tried."""

    def __init__(self, connection: pika.BlockingConnection, ttl_ms: int) -> None:
        self._channel = connection.channel()
        self._channel.confirm_delivery()  # what is confirmed is in the queue, and is counted
        self._ttl_ms = ttl_ms

    def _queue(self, arguments: dict[str, Any]) -> str:
        return str(
            self._channel.queue_declare("", exclusive=True, arguments=arguments).method.queue
        )

    def _publish(self, queue: str, body: bytes, ttl_ms: int | None) -> None:
        expiration = None if ttl_ms is None else str(ttl_ms)  # a string of milliseconds
        self._channel.basic_publish("", queue, body, pika.BasicProperties(expiration=expiration))

    def _count(self, queue: str) -> int:
        return int(self._channel.queue_declare(queue, passive=True).method.message_count)

    def tell(self, name: str, queue_ttl_ms: int | None, message_ttl_ms: int | None) -> None:
        """Publish one message and measure how long the queue holds it."""
        queue = self._queue({} if queue_ttl_ms is None else {"x-message-ttl": queue_ttl_ms})
        began = time.perf_counter()
        self._publish(queue, b"a message", message_ttl_ms)
        while self._count(queue):
            time.sleep(0.01)
        print(f"{name}: gone after {1000 * (time.perf_counter() - began):.0f} ms")

    def behind_a_head(self) -> None:
        """Messages expire at the head of their queue: one that lives on hides those behind it."""
        queue = self._queue({})
        self._publish(queue, b"lives long", LONG_MS)
        self._publish(queue, b"lives shortly", self._ttl_ms)
        time.sleep(2 * self._ttl_ms / 1000)
        print(f"behind a head that lives: {self._count(queue)} still counted")
        _method, _properties, head = self._channel.basic_get(queue, auto_ack=True)
        _method, _properties, behind = self._channel.basic_get(queue, auto_ack=True)
        print(f"got {head!r}, then {behind!r}")

    def queue_expires(self) -> None:
        """A queue that nobody uses goes with all its messages; publishing is no use of it."""
        arguments = {"x-expires": self._ttl_ms}
        queue = self._channel.queue_declare("", arguments=arguments).method.queue
        self._publish(queue, b"goes with the queue", None)
        time.sleep(2 * self._ttl_ms / 1000 + 0.3)
        try:
            self._count(queue)
        except pika.exceptions.ChannelClosedByBroker as error:
            print(f"an unused queue is gone: {error.reply_code}")


def main() -> None:
    """Let messages and a queue expire."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", default="amqp://guest:guest@127.0.0.1:5672/%2F")
    parser.add_argument("--ttl-ms", type=int, default=1000, help="the short time to live")
    args = parser.parse_args()
    with pika.BlockingConnection(pika.URLParameters(args.url)) as connection:
        expiry = Expiry(connection, args.ttl_ms)
        expiry.tell("by the queue", args.ttl_ms, None)
        expiry.tell("by the message", None, args.ttl_ms)
        expiry.tell("the queue's is smaller", args.ttl_ms, LONG_MS)
        expiry.tell("the message's is smaller", LONG_MS, args.ttl_ms)
        expiry.tell("nobody waits and it is 0", None, 0)
        expiry.behind_a_head()
        expiry.queue_expires()


if __name__ == "__main__":
    main()
