"""Transactions: publishes and acknowledgements that take effect together, or not at all."""

from __future__ import annotations

import argparse

import pika


def count(channel: pika.adapters.blocking_connection.BlockingChannel, queue: str) -> int:
    """How many messages the queue has ready."""
    return int(channel.queue_declare(queue, passive=True).method.message_count)


def main() -> None:
    """Commit, roll back, and move a message from one queue to another in one step."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", default="amqp://guest:guest@127.0.0.1:5672/%2F")
    args = parser.parse_args()
    with pika.BlockingConnection(pika.URLParameters(args.url)) as connection:
        channel = connection.channel()
        source = channel.queue_declare("", exclusive=True).method.queue
        target = channel.queue_declare("", exclusive=True).method.queue
        channel.tx_select()

        for number in range(3):
            channel.basic_publish("", source, b"%d" % number)
        print(f"published, not committed: {count(channel, source)} ready")
        channel.tx_commit()
        print(f"committed: {count(channel, source)} ready")

        channel.basic_publish("", source, b"never seen")
        channel.tx_rollback()
        channel.tx_commit()
        print(f"rolled back: {count(channel, source)} ready")

        method, _properties, body = channel.basic_get(source)
        channel.basic_ack(method.delivery_tag)
        channel.basic_publish("", target, body)
        channel.tx_rollback()
        print(f"move rolled back: {count(channel, target)} in the target")

        # The acknowledgement is undone as well: the message is ours still and the tag is good.
        channel.basic_ack(method.delivery_tag)
        channel.basic_publish("", target, body)
        channel.tx_commit()
        print(f"moved: {count(channel, source)} left, {count(channel, target)} in the target")


if __name__ == "__main__":
    main()
