"""A publisher and a consumer that go on when another broker takes over.

Both have the addresses of all brokers and try one after the other: standbys refuse connections.

What was not confirmed when the connection broke may be stored or not. The publisher publishes it
again with the same key, and the queue drops what it has had before: nothing is lost, and nothing is
there twice. The consumer acknowledges when its work is done. What comes again says so, and the
consumer looks whether it has done it.
"""

from __future__ import annotations

import argparse
import threading
import time
from collections.abc import Callable, Iterator

import pika
import pika.exceptions
from pika.adapters.utils.connection_workflow import AMQPConnectorException

QUEUE = "example.take_over"
# The queue knows the last keys, also those of messages that have been consumed.
CHECKED = {"x-message-deduplication": True, "x-cache-size": 100_000}
RETRY_S = 0.2
ATTEMPTS = 600
PROGRESS = 100
BROKEN = (
    pika.exceptions.AMQPConnectionError,
    pika.exceptions.ChannelClosed,
    pika.exceptions.ChannelWrongStateError,
    # No answer within `stack_timeout`.
    AMQPConnectorException,
)


def until_done(work: Callable[[pika.BlockingConnection], None], urls: list[str]) -> int:
    """Do the work, over a new connection whenever one breaks; returns how many were opened."""
    # pika tries them in this order; a broker that hangs is given up after `stack_timeout`.
    addresses = [pika.URLParameters(f"{url}?heartbeat=10&stack_timeout=5") for url in urls]
    opened = 0
    for _ in range(ATTEMPTS):
        try:
            with pika.BlockingConnection(addresses) as connection:
                opened += 1
                work(connection)
                return opened
        except BROKEN:
            time.sleep(RETRY_S)
    raise ConnectionError(f"no broker was there {ATTEMPTS} times")


class Publisher:
    """Keeps an order until it is confirmed."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._orders: Iterator[int] = iter(range(count))
        self._order = next(self._orders, None)
        self.published = 0

    def publish(self, connection: pika.BlockingConnection) -> None:
        """Publish from the order on that is not confirmed."""
        channel = connection.channel()
        channel.queue_declare(QUEUE, durable=True, arguments=CHECKED)
        channel.confirm_delivery()
        while self._order is not None:
            properties = pika.BasicProperties(
                delivery_mode=pika.DeliveryMode.Persistent,
                headers={"x-deduplication-header": f"order-{self._order}"},
            )
            self.published += 1
            channel.basic_publish("", QUEUE, b"%d" % self._order, properties, mandatory=True)
            if self._order % PROGRESS == 0:
                print(f"confirmed {self._order}", flush=True)
            self._order = next(self._orders, None)


class Consumer:
    """Works on orders, each of them once."""

    def __init__(self, count: int) -> None:
        self._count = count
        self.done: set[int] = set()
        self.again = 0
        self.copies = 0

    def consume(self, connection: pika.BlockingConnection) -> None:
        """Work until all orders are done, and the queue is empty."""
        channel = connection.channel()
        channel.queue_declare(QUEUE, durable=True, arguments=CHECKED)
        channel.basic_qos(prefetch_count=20)
        for method, _, body in channel.consume(QUEUE, inactivity_timeout=1):
            if method is None:
                if len(self.done) == self._count:
                    break
                continue
            order = int(body)
            if order not in self.done:
                self.done.add(
                    order
                )  # the work, and in the same transaction the note that it is done
            elif method.redelivered:
                self.again += 1
            else:
                self.copies += 1
            channel.basic_ack(method.delivery_tag)
        channel.cancel()


def tidy(connection: pika.BlockingConnection) -> None:
    """Leave nothing behind."""
    left = connection.channel().queue_delete(QUEUE).method.message_count
    print(f"{left} were left")


def main() -> None:
    """Publish and consume orders at the same time, and count them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", action="append", help="of a broker; give it once for each")
    parser.add_argument("--count", type=int, default=1000, help="how many orders")
    args = parser.parse_args()
    urls = args.url or ["amqp://guest:guest@127.0.0.1:5672/%2F"]
    publisher = Publisher(args.count)
    consumer = Consumer(args.count)
    worker = threading.Thread(target=until_done, args=(consumer.consume, urls))
    worker.start()
    opened = until_done(publisher.publish, urls)
    print(f"all confirmed after {publisher.published} publishes over {opened} connections")
    worker.join()
    print(f"{len(consumer.done)} of {args.count} were done, {consumer.copies} copies were found")
    print(f"{consumer.again} came again after they were done")
    until_done(tidy, urls)


if __name__ == "__main__":
    main()
