"""Asks a broker for a type of queue; a test that needs one skips where there is none yet."""

from __future__ import annotations

import uuid

import pika
import pika.exceptions
import pytest


def need_queue_type(url: str, kind: str) -> None:
    """Skip unless durable queues of this type can be declared."""
    name = f"need.{uuid.uuid4().hex[:8]}"
    with pika.BlockingConnection(pika.URLParameters(url)) as connection:
        channel = connection.channel()
        try:
            channel.queue_declare(name, durable=True, arguments={"x-queue-type": kind})
        except pika.exceptions.ChannelClosedByBroker as error:
            assert "not supported by this broker version" in str(error), error
            pytest.skip(f"the broker has no {kind} queues yet")
        channel.queue_delete(name)
