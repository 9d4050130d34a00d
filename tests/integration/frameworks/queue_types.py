"""Asks a broker for a type of queue; a test that needs one skips where there is none yet."""

from __future__ import annotations

import uuid

import pika
import pika.exceptions
import pytest


def need_queue_type(url: str, kind: str, **arguments: str) -> None:
    """Skip unless durable queues of this type, with these arguments, can be declared."""
    name = f"need.{uuid.uuid4().hex[:8]}"
    with pika.BlockingConnection(pika.URLParameters(url)) as connection:
        channel = connection.channel()
        try:
            arguments["x-queue-type"] = kind
            channel.queue_declare(name, durable=True, arguments=arguments)
        except pika.exceptions.ChannelClosedByBroker as error:
            assert "not supported by this broker version" in str(error), error
            pytest.skip(f"no {kind} queues like that yet: {error.reply_text}")
        channel.queue_delete(name)
