"""Orders with pika: none is lost, and none is booked twice."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterable

import pika
import pika.exceptions

QUEUE = "orders"
PAUSE_S = 0.05


def connect(url: str) -> pika.BlockingConnection:
    """Connect; try again while nobody listens."""
    parameters = pika.URLParameters(url)
    parameters.connection_attempts = 200
    parameters.retry_delay = PAUSE_S
    return pika.BlockingConnection(parameters)


class Shop:
    """Places orders.

    Args:
        url: of the broker
    """

    def __init__(self, url: str) -> None:
        self._url = url
        self._connection: pika.BlockingConnection | None = None

    def place(self, item: str) -> int:
        """Publish an order until it is confirmed; returns how often it was published.

        Whether an order was stored whose confirm did not come cannot be known. It is published
        again with the same message-id, by which consumers recognise it.
        """
        properties = pika.BasicProperties(delivery_mode=2, message_id=str(uuid.uuid4()))
        attempts = 0
        while True:
            attempts += 1
            try:
                self._channel().basic_publish("", QUEUE, item.encode(), properties)
            except pika.exceptions.NackError:
                time.sleep(PAUSE_S)
            except pika.exceptions.AMQPError:
                self._connection = None
            else:
                return attempts

    def close(self) -> None:
        """Close the connection."""
        if self._connection is not None and self._connection.is_open:
            self._connection.close()

    def _channel(self) -> pika.adapters.blocking_connection.BlockingChannel:
        if self._connection is None:
            self._connection = connect(self._url)
            self._publisher = self._connection.channel()
            self._publisher.confirm_delivery()
            self._publisher.queue_declare(QUEUE, durable=True)
        return self._publisher


class Warehouse:
    """Books orders, each once, whatever the broker delivers again.

    Args:
        url: of the broker
    """

    def __init__(self, url: str) -> None:
        self.url = url
        self.booked: dict[str, str] = {}

    def book(self, count: int) -> None:
        """Consume until so many orders are booked."""
        while len(self.booked) < count:
            try:
                self._consume(count)
            except pika.exceptions.AMQPError:
                # What was not acknowledged is delivered again.
                continue

    def _consume(self, count: int) -> None:
        connection = connect(self.url)
        channel = connection.channel()
        channel.queue_declare(QUEUE, durable=True)
        channel.basic_qos(prefetch_count=10)
        for method, properties, body in channel.consume(QUEUE):
            self.booked.setdefault(properties.message_id, body.decode())
            channel.basic_ack(method.delivery_tag)
            if len(self.booked) >= count:
                break
        connection.close()

    def items(self) -> Iterable[str]:
        """What has been booked."""
        return self.booked.values()
