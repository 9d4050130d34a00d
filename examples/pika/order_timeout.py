"""Orders that are not paid within half an hour are cancelled, by a delay queue.

Nobody consumes the delay queue. Its messages expire after the delay and are dead-lettered to the
queue of the checker, who looks then whether the order has been paid.
"""

from __future__ import annotations

import argparse
import time

import pika

CHECKS = "example.order-checks"
HALF_AN_HOUR_MS = 30 * 60 * 1000
PERSISTENT = pika.DeliveryMode.Persistent


def main() -> None:
    """Place three orders, pay one, and wait until the others are due."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", default="amqp://guest:guest@127.0.0.1:5672/%2F")
    parser.add_argument("--delay-ms", type=int, default=HALF_AN_HOUR_MS, help="time to pay")
    args = parser.parse_args()
    with pika.BlockingConnection(pika.URLParameters(args.url)) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        channel.exchange_declare(CHECKS, "direct")
        due = channel.queue_declare("", exclusive=True).method.queue
        channel.queue_bind(due, CHECKS, "due")
        arguments = {
            "x-message-ttl": args.delay_ms,
            "x-dead-letter-exchange": CHECKS,
            "x-dead-letter-routing-key": "due",
        }
        delay = channel.queue_declare("", exclusive=True, arguments=arguments).method.queue

        placed: dict[str, float] = {}
        for order in ("order-1", "order-2", "order-3"):
            placed[order] = time.monotonic()
            properties = pika.BasicProperties(delivery_mode=PERSISTENT, message_id=order)
            channel.basic_publish("", delay, b"pay me", properties, mandatory=True)
        paid = {"order-2"}
        print(f"placed {len(placed)} orders, paid {', '.join(paid)}")

        for method, properties, _body in channel.consume(due):
            order = properties.message_id
            waited_ms = 1000 * (time.monotonic() - placed.pop(order))
            verdict = "was paid" if order in paid else "is cancelled"
            print(f"{order} {verdict} after {waited_ms:.0f} ms")
            channel.basic_ack(method.delivery_tag)
            if not placed:
                break
        channel.cancel()
        channel.exchange_delete(CHECKS)


if __name__ == "__main__":
    main()
