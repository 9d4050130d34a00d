"""Unroutable messages come back to their publisher when they are published as mandatory.

Without confirms a listener hears of them some time later; with confirms the return comes before
the confirm, so that the publisher knows what became of its message when it is confirmed.
"""

from __future__ import annotations

import argparse

import pika
import pika.exceptions


def describe(method: pika.spec.Basic.Return) -> str:
    """What the broker says about a returned message."""
    return f"{method.reply_code} {method.reply_text} key={method.routing_key}"


def report(
    _channel: pika.adapters.blocking_connection.BlockingChannel,
    method: pika.spec.Basic.Return,
    _properties: pika.BasicProperties,
    body: bytes,
) -> None:
    """What a listener is called with."""
    print(f"listener heard {body.decode()}: {describe(method)}")


def with_a_listener(connection: pika.BlockingConnection, queue: str) -> None:
    """Publish and go on; a listener is called for what comes back."""
    channel = connection.channel()
    channel.add_on_return_callback(report)
    channel.basic_publish("", queue, b"first", mandatory=True)
    channel.basic_publish("", "nobody.listens", b"second", mandatory=True)
    channel.basic_publish("", "nobody.listens", b"third", mandatory=False)
    # A call that is answered: the returns are older than its answer, so the listener has its turn.
    _method, _properties, stored = channel.basic_get(queue, auto_ack=True)
    connection.process_data_events(time_limit=0)
    print(f"stored {stored.decode()}, the third is nowhere")


def with_confirms(connection: pika.BlockingConnection, queue: str) -> None:
    """Each publish ends with a confirm, or says that the message came back."""
    channel = connection.channel()
    channel.confirm_delivery()
    for key in (queue, "nobody.listens"):
        try:
            channel.basic_publish("", key, b"fourth", mandatory=True)
            print("confirmed and stored")
        except pika.exceptions.UnroutableError as error:
            for message in error.messages:
                print("confirmed and returned:", describe(message.method))


def main() -> None:
    """Publish to a queue that exists and to one that does not."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", default="amqp://guest:guest@127.0.0.1:5672/%2F")
    args = parser.parse_args()
    with pika.BlockingConnection(pika.URLParameters(args.url)) as connection:
        queue = connection.channel().queue_declare("", exclusive=True).method.queue
        with_a_listener(connection, queue)
        with_confirms(connection, queue)


if __name__ == "__main__":
    main()
