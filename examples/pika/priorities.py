"""A priority queue hands out what is most important first, and equals in the order they came."""

from __future__ import annotations

import argparse

import pika


def main() -> None:
    """Publish with priorities in disorder and get them in order."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", default="amqp://guest:guest@127.0.0.1:5672/%2F")
    args = parser.parse_args()
    with pika.BlockingConnection(pika.URLParameters(args.url)) as connection:
        channel = connection.channel()
        arguments = {"x-max-priority": 5}
        queue = channel.queue_declare("", exclusive=True, arguments=arguments).method.queue
        # None counts as 0, and 9 as the queue's highest, 5.
        for number, priority in enumerate((None, 1, 5, 9, 0, 3, 5)):
            properties = pika.BasicProperties(priority=priority)
            channel.basic_publish("", queue, b"message %d" % number, properties)
        while (got := channel.basic_get(queue, auto_ack=True))[0] is not None:
            _method, properties, body = got
            print(f"{body.decode()} with priority {properties.priority}")


if __name__ == "__main__":
    main()
