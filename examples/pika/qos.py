"""Two limits at once: each consumer may hold 3 unacknowledged messages, the channel 5."""

from __future__ import annotations

import argparse

import pika

PER_CONSUMER = 3
PER_CHANNEL = 5


class Consumers:
    """Two consumers on one channel, which note what they hold."""

    def __init__(self, channel: pika.adapters.blocking_connection.BlockingChannel) -> None:
        self._channel = channel
        self.held: dict[str, list[tuple[int, str]]] = {}
        self.most_held = 0
        self.received = 0

    def consume(self, name: str, queue: str) -> None:
        """Start a consumer that acknowledges nothing by itself."""
        self.held[name] = []

        def note(
            _channel: pika.adapters.blocking_connection.BlockingChannel,
            method: pika.spec.Basic.Deliver,
            _properties: pika.BasicProperties,
            body: bytes,
        ) -> None:
            self.held[name].append((method.delivery_tag, body.decode()))
            self.received += 1
            self.most_held = max(self.most_held, sum(map(len, self.held.values())))

        self._channel.basic_consume(queue, note)

    def acknowledge_oldest(self) -> None:
        """Acknowledge one message, which lets the window slide by one."""
        tag, name = min((held[0][0], name) for name, held in self.held.items() if held)
        self._channel.basic_ack(tag)
        del self.held[name][0]


def main() -> None:
    """Consume 1 to 10 and 11 to 20 side by side."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", default="amqp://guest:guest@127.0.0.1:5672/%2F")
    args = parser.parse_args()
    with pika.BlockingConnection(pika.URLParameters(args.url)) as connection:
        channel = connection.channel()
        queues = [channel.queue_declare("", exclusive=True).method.queue for _ in range(2)]
        for number in range(1, 21):
            channel.basic_publish("", queues[number > 10], b"%d" % number)
        # In this order: RabbitMQ forgets the channel's limit when the consumers' one comes later.
        channel.basic_qos(prefetch_count=PER_CONSUMER, global_qos=False)
        channel.basic_qos(prefetch_count=PER_CHANNEL, global_qos=True)
        consumers = Consumers(channel)
        for name, queue in zip(("first", "second"), queues, strict=True):
            consumers.consume(name, queue)
            connection.process_data_events(time_limit=0.5)
        for name, held in consumers.held.items():
            print(f"{name} consumer holds", *[body for _tag, body in held])
        while any(consumers.held.values()):
            consumers.acknowledge_oldest()
            connection.process_data_events(time_limit=0.02)
        print(f"received {consumers.received}, never more than {consumers.most_held} at once")


if __name__ == "__main__":
    main()
