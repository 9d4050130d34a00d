"""Three ways to publish reliably, with the time each takes.

A confirm says that the broker has the message; VouchMQ has it on disk then. Who waits for every
confirm waits for the disk every time. Messages that are under way together share one sync.
"""

from __future__ import annotations

import argparse
import collections
import time
from collections.abc import Callable

import pika

QUEUE = "example.confirms"
PERSISTENT = pika.BasicProperties(delivery_mode=pika.DeliveryMode.Persistent)


def one_by_one(url: str, count: int) -> None:
    """Publish, wait, publish: simple and slow, and an error stands beside its message."""
    with pika.BlockingConnection(pika.URLParameters(url)) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        for number in range(count):
            channel.basic_publish("", QUEUE, b"%d" % number, PERSISTENT)


class Pipeline:
    """Keeps up to `window` messages unconfirmed, which takes pika's connection with callbacks.

    With `whole_batches` the next messages wait until all of the last ones are confirmed.
    """

    def __init__(self, url: str, count: int, window: int, *, whole_batches: bool) -> None:
        self._window = window
        self._whole_batches = whole_batches
        self._waiting = collections.deque(range(count))
        self._unconfirmed: dict[int, int] = {}
        self._sequence_number = 0
        self._connection = pika.SelectConnection(
            pika.URLParameters(url),
            on_open_callback=lambda connection: connection.channel(on_open_callback=self._begin),
            on_close_callback=lambda connection, _reason: connection.ioloop.stop(),
        )

    def run(self) -> None:
        """Return when every message is confirmed."""
        self._connection.ioloop.start()
        if self._waiting or self._unconfirmed:
            raise ConnectionError(f"{len(self._unconfirmed)} messages may be lost")

    def _begin(self, channel: pika.channel.Channel) -> None:
        self._channel = channel
        channel.confirm_delivery(self._settled, callback=lambda _frame: self._fill())

    def _fill(self) -> None:
        while self._waiting and len(self._unconfirmed) < self._window:
            number = self._waiting.popleft()
            # The broker counts the publishes of a confirming channel from 1, and so must we.
            self._sequence_number += 1
            self._unconfirmed[self._sequence_number] = number
            self._channel.basic_publish("", QUEUE, b"%d" % number, PERSISTENT)

    def _settled(self, frame: pika.frame.Method) -> None:
        answer = frame.method
        settled = [answer.delivery_tag]
        if answer.multiple:
            settled = [tag for tag in self._unconfirmed if tag <= answer.delivery_tag]
        numbers = [self._unconfirmed.pop(tag) for tag in settled]
        if isinstance(answer, pika.spec.Basic.Nack):
            self._waiting.extend(numbers)  # refused: try these once more
        if not self._unconfirmed or not self._whole_batches:
            self._fill()
        if not self._unconfirmed:
            self._connection.close()


def in_batches(url: str, count: int) -> None:
    """Publish a hundred, wait for all of them: one sync for a batch, but pauses between."""
    Pipeline(url, count, 100, whole_batches=True).run()


def asynchronously(url: str, count: int) -> None:
    """Publish on while confirms come in: the fastest, and the window bounds what is uncertain."""
    Pipeline(url, count, 1000, whole_batches=False).run()


def measure(name: str, publish: Callable[[str, int], None], url: str, count: int) -> None:
    """Tell how long a strategy takes for `count` messages."""
    began = time.perf_counter()
    publish(url, count)
    seconds = time.perf_counter() - began
    print(f"{name}: {count} confirmed in {seconds:.3f} s, {count / seconds:.0f} per second")


def main() -> None:
    """Run the three, each with its own connection, into one durable queue."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", default="amqp://guest:guest@127.0.0.1:5672/%2F")
    parser.add_argument("--count", type=int, default=1000, help="messages for each strategy")
    args = parser.parse_args()
    with pika.BlockingConnection(pika.URLParameters(args.url)) as connection:
        channel = connection.channel()
        channel.queue_delete(QUEUE)
        channel.queue_declare(QUEUE, durable=True)
        measure("one by one", one_by_one, args.url, args.count)
        measure("in batches", in_batches, args.url, args.count)
        measure("asynchronously", asynchronously, args.url, args.count)
        held = channel.queue_declare(QUEUE, passive=True).method.message_count
        print(f"the queue holds {held} messages")
        channel.queue_delete(QUEUE)


if __name__ == "__main__":
    main()
