"""An alternate exchange takes what its exchange cannot route; nothing is lost or returned."""

from __future__ import annotations

import argparse

import pika

ORDERS = "example.orders"
UNROUTED = "example.orders.unrouted"


def main() -> None:
    """Route two countries, and look at what became of the order from a third."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", default="amqp://guest:guest@127.0.0.1:5672/%2F")
    args = parser.parse_args()
    with pika.BlockingConnection(pika.URLParameters(args.url)) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        channel.exchange_declare(UNROUTED, "fanout")
        channel.exchange_declare(ORDERS, "direct", arguments={"alternate-exchange": UNROUTED})
        routed = channel.queue_declare("", exclusive=True).method.queue
        unrouted = channel.queue_declare("", exclusive=True).method.queue
        channel.queue_bind(unrouted, UNROUTED)
        for country in ("de", "fr"):
            channel.queue_bind(routed, ORDERS, country)

        for country in ("de", "fr", "it"):
            # Mandatory, yet none comes back: the alternate exchange found a queue for the third.
            channel.basic_publish(ORDERS, country, b"an order", mandatory=True)
        for name, queue in (("routed", routed), ("unrouted", unrouted)):
            while (got := channel.basic_get(queue, auto_ack=True))[0] is not None:
                print(f"{name}: key={got[0].routing_key} exchange={got[0].exchange}")

        channel.queue_delete(unrouted)
        try:
            channel.basic_publish(ORDERS, "it", b"an order", mandatory=True)
        except pika.exceptions.UnroutableError as error:
            method = error.messages[0].method
            told = f"{method.reply_code} {method.reply_text} key={method.routing_key}"
            print("no queue behind it:", told)
        channel.exchange_delete(ORDERS)
        channel.exchange_delete(UNROUTED)


if __name__ == "__main__":
    main()
