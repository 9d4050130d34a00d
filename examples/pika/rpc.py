"""Calls over a queue: the reply finds its caller by a queue, and its call by a correlation id."""

from __future__ import annotations

import argparse
import threading
import uuid

import pika

CALLS = "example.rpc"


def fibonacci(n: int) -> int:
    """The n-th Fibonacci number."""
    a, b = 0, 1
    for _ in range(n):
        a, b = b, a + b
    return a


def serve(url: str, calls: int) -> None:
    """Answer calls two by two, the later one first, so that order alone would mislead callers."""
    with pika.BlockingConnection(pika.URLParameters(url)) as connection:
        channel = connection.channel()
        channel.basic_qos(prefetch_count=2)
        pair = []
        for method, properties, body in channel.consume(CALLS):
            calls -= 1
            pair.append((method, properties, int(body)))
            if len(pair) < 2 and calls:
                continue
            for method, properties, number in reversed(pair):
                answer = b"%d" % fibonacci(number)
                reply = pika.BasicProperties(correlation_id=properties.correlation_id)
                channel.basic_publish("", properties.reply_to, answer, reply)
                channel.basic_ack(method.delivery_tag)  # a server that dies before is replaced
            pair.clear()
            if not calls:
                break
        channel.cancel()


class Caller:
    """Sends calls and collects the replies in a queue of its own."""

    def __init__(self, connection: pika.BlockingConnection) -> None:
        self._connection = connection
        self._channel = connection.channel()
        self.replies: dict[str, int] = {}
        self.strangers = 0
        self._open: set[str] = set()
        self._reply_queue = self._channel.queue_declare("", exclusive=True).method.queue
        self._channel.basic_consume(self._reply_queue, self._on_reply, auto_ack=True)

    def call(self, number: int) -> str:
        """Send one call; returns its correlation id."""
        correlation_id = str(uuid.uuid4())
        self._open.add(correlation_id)
        properties = pika.BasicProperties(reply_to=self._reply_queue, correlation_id=correlation_id)
        self._channel.basic_publish("", CALLS, b"%d" % number, properties)
        return correlation_id

    def send_a_stray_reply(self) -> None:
        """A reply to a call of somebody who used this queue before."""
        properties = pika.BasicProperties(correlation_id="of another life")
        self._channel.basic_publish("", self._reply_queue, b"0", properties)

    def _on_reply(
        self,
        _channel: pika.channel.Channel,
        _method: pika.spec.Basic.Deliver,
        properties: pika.BasicProperties,
        body: bytes,
    ) -> None:
        if properties.correlation_id not in self._open:
            self.strangers += 1
            return
        self._open.discard(properties.correlation_id)
        self.replies[properties.correlation_id] = int(body)

    def wait(self) -> None:
        """Return when every call is answered."""
        while self._open:
            self._connection.process_data_events(time_limit=1)


def main() -> None:
    """Have some calls answered by a server in a thread of its own."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", default="amqp://guest:guest@127.0.0.1:5672/%2F")
    args = parser.parse_args()
    with pika.BlockingConnection(pika.URLParameters(args.url)) as connection:
        channel = connection.channel()
        channel.queue_declare(CALLS, auto_delete=True)
        numbers = range(10, 16)
        server = threading.Thread(target=serve, args=(args.url, len(numbers)), daemon=True)
        server.start()
        caller = Caller(connection)
        caller.send_a_stray_reply()
        ids = {caller.call(number): number for number in numbers}
        caller.wait()
        print("replies came in this order:", *[ids[each] for each in caller.replies])
        for correlation_id, number in ids.items():
            print(f"fibonacci({number}) = {caller.replies[correlation_id]}")
        print(f"{caller.strangers} reply was to no call of ours")
        server.join()


if __name__ == "__main__":
    main()
