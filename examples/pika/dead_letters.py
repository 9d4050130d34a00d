"""What a queue drops goes to its dead-letter exchange, with a note of where and why it died."""

from __future__ import annotations

import argparse
import itertools

import pika

EXCHANGE = "example.dead"


def show(properties: pika.BasicProperties, body: bytes) -> None:
    """Print the newest entry of a message's history."""
    death = properties.headers["x-death"][0]
    original = death.get("original-expiration")
    print(
        f"{body.decode()}: {death['reason']} in {death['queue']}, count {death['count']},"
        f" published with key {death['routing-keys'][0]}"
        + (f", had expiration {original}, has {properties.expiration}" if original else "")
    )


def main() -> None:
    """Let messages die by the queue's length, by a consumer's reject and by age."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", default="amqp://guest:guest@127.0.0.1:5672/%2F")
    args = parser.parse_args()
    with pika.BlockingConnection(pika.URLParameters(args.url)) as connection:
        channel = connection.channel()
        channel.exchange_declare(EXCHANGE, "direct")
        work = "example.work"
        arguments = {
            "x-dead-letter-exchange": EXCHANGE,
            "x-dead-letter-routing-key": "dead",  # without it the message keeps its own key
            "x-max-length": 2,
        }
        channel.queue_declare(work, exclusive=True, arguments=arguments)
        dead = channel.queue_declare("", exclusive=True).method.queue
        channel.queue_bind(dead, EXCHANGE, "dead")

        for body in (b"one", b"two", b"three"):
            channel.basic_publish("", work, body)  # the queue has room for two: "one" must go
        method, _properties, body = channel.basic_get(work)
        channel.basic_reject(method.delivery_tag, requeue=False)
        method, _properties, done = channel.basic_get(work)
        channel.basic_ack(method.delivery_tag)
        print(f"rejected {body.decode()}, acknowledged {done.decode()}")
        channel.basic_publish("", work, b"four", pika.BasicProperties(expiration="50"))

        dead_letters = channel.consume(dead, auto_ack=True)
        for _method, properties, body in itertools.islice(dead_letters, 3):
            show(properties, body)
        channel.cancel()
        channel.exchange_delete(EXCHANGE)


if __name__ == "__main__":
    main()
