"""One client library as a publisher or consumer of headers: `header_clients.py CLIENT publish URL`.

A publisher sends one message for each of `VALUES`, with it as the header `v`; a consumer prints
what it has read, by body, as JSON.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Callable
from typing import Any, NamedTuple
from urllib.parse import urlsplit

EXCHANGE = "matrix"
LIMIT_S = 30
VALUES: dict[str, Any] = {
    "yes": True,
    "no": False,
    "zero": 0,
    "small": 5,
    "minus": -5,
    "short": -300,
    "int": 70000,
    "long": 2**40,
    "long minus": -(2**40),
    "float": 1.5,
    "text": "é",
    "empty": "",
    "none": None,
    "list": [1, 2**40, "a", [2**41], {"b": 2**42}],
    "map": {"a": 2**40, "b": [2**41, {"c": 2**42}]},
}
Seen = dict[str, Any]


class Client(NamedTuple):
    """How a library publishes all values, and reads so many messages of a queue."""

    publish: Callable[[str], None]
    consume: Callable[[str, str, int], Seen]


def readable(value: Any) -> Any:
    """As JSON has it."""
    if isinstance(value, bytes):
        return value.decode("utf-8", "backslashreplace")
    if isinstance(value, dict):
        return {readable(key): readable(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [readable(each) for each in value]
    return value if isinstance(value, bool | int | float | str | None) else str(value)


def pika_publish(url: str) -> None:
    import pika

    with pika.BlockingConnection(pika.URLParameters(url)) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        # It reads floats and writes none.
        for name, value in [each for each in VALUES.items() if each[0] != "float"]:
            properties = pika.BasicProperties(headers={"v": value})
            channel.basic_publish(EXCHANGE, "", f"pika/{name}".encode(), properties)


def pika_consume(url: str, queue: str, count: int) -> Seen:
    import pika

    seen: Seen = {}
    with pika.BlockingConnection(pika.URLParameters(url)) as connection:
        channel = connection.channel()
        for method, properties, body in channel.consume(queue, inactivity_timeout=LIMIT_S):
            if method is None:
                break
            seen[body.decode()] = properties.headers.get("v")
            channel.basic_ack(method.delivery_tag)
            if len(seen) == count:
                break
    return seen


def aio_pika_publish(url: str) -> None:
    import aio_pika

    async def publish() -> None:
        async with await aio_pika.connect(url) as connection:
            exchange = await (await connection.channel()).get_exchange(EXCHANGE, ensure=False)
            for name, value in VALUES.items():
                body = f"aio-pika/{name}".encode()
                await exchange.publish(aio_pika.Message(body, headers={"v": value}), "")

    asyncio.run(publish())


def aio_pika_consume(url: str, name: str, count: int) -> Seen:
    import aio_pika

    async def consume() -> Seen:
        seen: Seen = {}
        async with await aio_pika.connect(url) as connection:
            queue = await (await connection.channel()).get_queue(name, ensure=False)
            async with queue.iterator(timeout=LIMIT_S) as messages:
                async for message in messages:
                    seen[message.body.decode()] = message.headers.get("v")
                    await message.ack()
                    if len(seen) == count:
                        break
        return seen

    return asyncio.run(consume())


def py_amqp_publish(url: str) -> None:
    import amqp

    with amqp.Connection(f"127.0.0.1:{urlsplit(url).port}", confirm_publish=True) as connection:
        channel = connection.channel()
        for name, value in VALUES.items():
            message = amqp.Message(f"py-amqp/{name}", application_headers={"v": value})
            channel.basic_publish(message, EXCHANGE)


def py_amqp_consume(url: str, queue: str, count: int) -> Seen:
    import amqp

    seen: Seen = {}

    def take(message: Any) -> None:
        body = message.body
        seen[body if isinstance(body, str) else bytes(body).decode()] = message.headers.get("v")
        message.channel.basic_ack(message.delivery_tag)

    with amqp.Connection(f"127.0.0.1:{urlsplit(url).port}") as connection:
        channel = connection.channel()
        channel.basic_consume(queue, callback=take)
        while len(seen) < count:
            connection.drain_events(timeout=LIMIT_S)
    return seen


def amqpstorm_publish(url: str) -> None:
    import amqpstorm

    with amqpstorm.UriConnection(url) as connection:
        channel = connection.channel()
        channel.confirm_deliveries()
        for name, value in VALUES.items():
            properties = {"headers": {"v": value}}
            channel.basic.publish(f"amqpstorm/{name}", "", EXCHANGE, properties=properties)


def amqpstorm_consume(url: str, queue: str, count: int) -> Seen:
    import amqpstorm

    seen: Seen = {}
    with amqpstorm.UriConnection(url) as connection:
        channel = connection.channel()
        while len(seen) < count and (message := channel.basic.get(queue)) is not None:
            seen[message.body] = message.properties["headers"].get("v")
            message.ack()
    return seen


def bulk_publish(url: str) -> None:
    from vouchmq.kit.bulk import BulkConnection, encode_properties

    with BulkConnection.open(url) as connection:
        channel = connection.channel()
        channel.confirm_select()
        channel.publish_many(
            [
                (
                    EXCHANGE,
                    "",
                    encode_properties({"headers": {"v": value}}),
                    f"bulk/{name}".encode(),
                )
                for name, value in VALUES.items()
            ]
        )


def bulk_consume(url: str, queue: str, count: int) -> Seen:
    from vouchmq.kit.bulk import BulkConnection, decode_properties

    seen: Seen = {}
    with BulkConnection.open(url) as connection:
        channel = connection.channel()
        channel.consume(queue)
        while len(seen) < count and (run := channel.wait(count, LIMIT_S)):
            for tag, _, _, _, properties, body in run:
                headers = decode_properties(properties).headers
                seen[body.decode()] = headers.get("v") if headers else None
                channel.ack(tag)
    return seen


def tools_publish(url: str) -> None:
    for name in ("text", "empty"):
        command = ("amqp-publish", "-u", url, "-e", EXCHANGE, "-b", f"rabbitmq-c/{name}")
        subprocess.run((*command, "-H", f"v: {VALUES[name]}"), check=True)


def tools_consume(url: str, queue: str, count: int) -> Seen:
    """It reads headers and shows none of them."""
    command = ("amqp-consume", "-u", url, "-q", queue, "-c", str(count), "awk", "1")
    done = subprocess.run(command, stdout=subprocess.PIPE, timeout=LIMIT_S, check=True)
    return dict.fromkeys(done.stdout.decode().splitlines())


CLIENTS = {
    "pika": Client(pika_publish, pika_consume),
    "aio-pika": Client(aio_pika_publish, aio_pika_consume),
    "py-amqp": Client(py_amqp_publish, py_amqp_consume),
    "amqpstorm": Client(amqpstorm_publish, amqpstorm_consume),
    "bulk": Client(bulk_publish, bulk_consume),
    "rabbitmq-c": Client(tools_publish, tools_consume),
}


def main(client: str, verb: str, url: str, queue: str = "", count: str = "0") -> None:
    """One process: a client that ends on a message must not end the others."""
    if verb == "publish":
        CLIENTS[client].publish(url)
        return
    seen = CLIENTS[client].consume(url, queue, int(count))
    sys.stdout.write(json.dumps(readable(seen)))


if __name__ == "__main__":
    main(*sys.argv[1:])
