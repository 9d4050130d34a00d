"""Witnesses beside the clients that people use: what they write is what the broker said."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from pathlib import Path
from typing import Any

import aio_pika
import pika
import pika.exceptions
import pytest
from pamqp.common import FieldTable

from tests.conftest import Names
from tests.waiting import LIMIT_S
from vouchmq.kit import Message, connect
from vouchmq.kit.bulk import BulkConnection, encode_properties
from vouchmq.kit.witness import Witness


def told(directory: Path) -> list[tuple[str, str, int]]:
    lines: list[dict[str, Any]] = [
        json.loads(line)
        for path in sorted(directory.glob("*.jsonl"))
        for line in path.read_text(encoding="utf-8").splitlines()
    ]
    return [(each["e"], each["m"], each["r"]) for each in lines]


async def test_with_aio_pika(url: str, names: Names, tmp_path: Path) -> None:
    with Witness(tmp_path, "w") as witness:
        async with await aio_pika.connect(url) as connection:
            channel = await connection.channel(on_return_raises=True)
            full: FieldTable = {"x-max-length": 1, "x-overflow": "reject-publish"}
            queue = await channel.declare_queue(names(), durable=True, arguments=full)
            for message_id, key, error in (
                ("good", queue.name, None),
                ("nowhere", "no.such.queue", aio_pika.exceptions.PublishError),
                ("refused", queue.name, aio_pika.exceptions.DeliveryError),
            ):
                message = aio_pika.Message(b"x", message_id=message_id)
                try:
                    with witness.publishing(message_id, key):
                        await channel.default_exchange.publish(message, key, mandatory=True)
                    assert error is None
                except aio_pika.exceptions.DeliveryError as raised:
                    assert error is not None
                    assert isinstance(raised, error)
            received = await queue.get()
            witness.seen(received, queue.name)
            await received.nack(requeue=True)
            witness.rejected([received.message_id or ""], queue.name)
            received = await queue.get()
            witness.seen(received, queue.name)
            await received.ack()
            witness.acked([received.message_id or ""], queue.name)
    assert told(tmp_path) == [
        ("sent", "good", 0),
        ("confirmed", "good", 0),
        ("sent", "nowhere", 0),
        ("returned", "nowhere", 0),
        ("sent", "refused", 0),
        ("nacked", "refused", 0),
        ("received", "good", 0),
        ("rejected", "good", 0),
        ("received", "good", 1),
        ("acked", "good", 0),
    ]


async def test_with_the_kit(url: str, names: Names, tmp_path: Path) -> None:
    with Witness(tmp_path, "w") as witness:
        async with await connect(url, redelivery=None) as kit:
            queue = await kit.declare(names())
            with witness.publishing("m", queue):
                await kit.publish(aio_pika.Message(b"x", message_id="m"), queue)
            receiver = await kit.receiver("auto")
            done = asyncio.Event()

            async def take(message: Message) -> None:
                witness.seen(message, queue)
                done.set()

            await receiver.listen(queue, take)
            await done.wait()
    assert told(tmp_path) == [("sent", "m", 0), ("confirmed", "m", 0), ("received", "m", 0)]


def test_with_pika(url: str, names: Names, tmp_path: Path) -> None:
    with Witness(tmp_path, "w") as witness, pika.BlockingConnection(pika.URLParameters(url)) as c:
        channel = c.channel()
        channel.confirm_delivery()
        queue = channel.queue_declare(names(), durable=True).method.queue
        with witness.publishing("good", queue):
            channel.basic_publish("", queue, b"x", mandatory=True)
        with (
            pytest.raises(pika.exceptions.UnroutableError),
            witness.publishing("nowhere", "no.such.queue"),
        ):
            channel.basic_publish("", "no.such.queue", b"x", mandatory=True)
    assert [each[:2] for each in told(tmp_path)] == [
        ("sent", "good"),
        ("confirmed", "good"),
        ("sent", "nowhere"),
        ("returned", "nowhere"),
    ]


def test_with_the_bulk_client(url: str, names: Names, tmp_path: Path) -> None:
    with Witness(tmp_path, "w") as witness, BulkConnection.open(url) as connection:
        channel = connection.channel()
        channel.confirm_select()
        queue = channel.declare(names()).queue
        keys = [queue, "no.such.queue", queue]
        rows = [
            ("", key, encode_properties({"message_id": f"m{number}"}), b"x")
            for number, key in enumerate(keys)
        ]
        channel.publish_many(rows, mandatory=True, watch=witness.watch())
        channel.consume(queue)
        taken = channel.wait(2, LIMIT_S)
        ids = witness.took(taken, queue)
        channel.ack(taken[-1][0], multiple=True)
        witness.acked(ids, queue)
    events = told(tmp_path)
    assert Counter(each[0] for each in events) == {
        "sent": 3,
        "confirmed": 3,
        "returned": 1,
        "received": 2,
        "acked": 2,
    }
    assert [each[1] for each in events if each[0] == "returned"] == ["m1"]
    assert events.index(("returned", "m1", 0)) < events.index(("confirmed", "m1", 0))
    assert ids == ["m0", "m2"]
