"""At least once from end to end, and an effect that happens exactly once.

The publisher persists its messages, publishes them as mandatory and sends again what is not
confirmed. The consumer acknowledges when its work is stored. So every message arrives, some twice;
the consumer notes the ids of what it has done in the same transaction as the work itself.

Mishaps are staged: some confirms get lost, and the consumer dies between its work and its ack.
A broker that is killed and started again meanwhile changes nothing in the sum.
"""

from __future__ import annotations

import argparse
import sqlite3
import time
from collections.abc import Callable

import pika
import pika.exceptions

QUEUE = "example.payments"
RETRY_S = 0.2
MISHAPS = 100


class StagedError(Exception):
    """The staged end of a consumer."""


def until_done(work: Callable[[pika.BlockingConnection], None], url: str) -> int:
    """Do the work, over a new connection whenever one breaks; returns how often one broke."""
    for broken in range(MISHAPS):
        try:
            with pika.BlockingConnection(pika.URLParameters(url)) as connection:
                work(connection)
                return broken
        except (pika.exceptions.AMQPConnectionError, pika.exceptions.ChannelClosed, StagedError):
            time.sleep(RETRY_S)
    raise ConnectionError(f"{MISHAPS} connections broke or were refused")


def tidy(connection: pika.BlockingConnection) -> None:
    """Leave nothing behind."""
    connection.channel().queue_delete(QUEUE)


class Publisher:
    """Keeps a payment in its outbox until it is confirmed."""

    def __init__(self, payments: dict[str, int]) -> None:
        self._outbox = dict(payments)
        self._confirms_to_lose = {"payment-10", "payment-20"} & payments.keys()
        self.published = 0

    def publish(self, connection: pika.BlockingConnection) -> None:
        """Publish what is not confirmed yet."""
        channel = connection.channel()
        channel.queue_declare(QUEUE, durable=True)
        channel.confirm_delivery()
        while self._outbox:
            message_id, amount = next(iter(self._outbox.items()))
            properties = pika.BasicProperties(
                message_id=message_id, delivery_mode=pika.DeliveryMode.Persistent
            )
            # An UnroutableError is no mishap but a mistake: it ends the program.
            try:
                channel.basic_publish("", QUEUE, b"%d" % amount, properties, mandatory=True)
            except pika.exceptions.NackError:
                time.sleep(RETRY_S)
                continue
            self.published += 1
            if self.published % 50 == 0:
                print(f"published {self.published}", flush=True)
            if message_id in self._confirms_to_lose:
                self._confirms_to_lose.discard(message_id)
                continue  # staged: this confirm never came, so the payment stays in the outbox
            del self._outbox[message_id]


class Consumer:
    """Books payments; its database knows which it has booked."""

    def __init__(self, expected: int) -> None:
        self._expected = expected
        self._crash_at = {expected // 3, expected // 2}
        self.deliveries = 0
        self.duplicates = 0
        self._database = sqlite3.connect(":memory:")  # a file, in real life
        self._database.execute("CREATE TABLE booked (message_id TEXT PRIMARY KEY, amount INTEGER)")

    def consume(self, connection: pika.BlockingConnection) -> None:
        """Book until all payments are booked and the queue is empty."""
        channel = connection.channel()
        channel.queue_declare(QUEUE, durable=True)
        channel.basic_qos(prefetch_count=20)
        for method, properties, body in channel.consume(QUEUE, inactivity_timeout=0.3):
            if method is None:
                if self.booked == self._expected:
                    break
                continue
            self.deliveries += 1
            self._book(properties.message_id, int(body))
            if self.booked in self._crash_at:
                self._crash_at.discard(self.booked)
                raise StagedError  # staged: booked, but not acknowledged
            channel.basic_ack(method.delivery_tag)
            if self.deliveries % 50 == 0:
                print(f"consumed {self.deliveries}", flush=True)
        channel.cancel()

    def _book(self, message_id: str, amount: int) -> None:
        with self._database:  # one transaction for the work and the note that it is done
            row = (message_id, amount)
            done = self._database.execute("INSERT OR IGNORE INTO booked VALUES (?, ?)", row)
        self.duplicates += not done.rowcount

    @property
    def booked(self) -> int:
        """How many payments are booked."""
        return int(self._database.execute("SELECT count(*) FROM booked").fetchone()[0])

    @property
    def total(self) -> int:
        """The sum of what is booked."""
        return int(self._database.execute("SELECT sum(amount) FROM booked").fetchone()[0])


def main() -> None:
    """Publish payments, consume them, and compare the sums."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", default="amqp://guest:guest@127.0.0.1:5672/%2F")
    parser.add_argument("--count", type=int, default=200, help="how many payments")
    args = parser.parse_args()
    payments = {f"payment-{number}": number for number in range(1, args.count + 1)}
    publisher = Publisher(payments)
    broken = until_done(publisher.publish, args.url)
    print(f"all confirmed after {publisher.published} publishes, {broken} connections broke")

    consumer = Consumer(len(payments))
    broken = until_done(consumer.consume, args.url)
    print(f"{consumer.deliveries} deliveries, {broken} connections broke")
    print(f"{consumer.duplicates} were known already, {consumer.booked} were booked")
    print(f"the sum is {consumer.total} of {sum(payments.values())}")
    until_done(tidy, args.url)


if __name__ == "__main__":
    main()
