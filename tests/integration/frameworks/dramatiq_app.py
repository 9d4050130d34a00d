"""A Dramatiq application as its guide builds one; its actors write down what happens to them."""

from __future__ import annotations

import os
import time
from pathlib import Path

import dramatiq
from dramatiq.brokers.rabbitmq import RabbitmqBroker

PREFIX = os.environ.get("FRAMEWORK_TEST_PREFIX", "frameworks")

broker = RabbitmqBroker(
    url=os.environ.get("FRAMEWORK_TEST_URL", "amqp://guest:guest@127.0.0.1:5672/%2F"),
    confirm_delivery=True,
    max_priority=10,
)
dramatiq.set_broker(broker)


def write(path: str, text: str) -> None:
    """Append a line with the time."""
    with Path(path).open("a", encoding="utf-8") as notes:
        notes.write(f"{text} {time.time()}\n")


@dramatiq.actor(queue_name=f"{PREFIX}.notes")
def note(path: str, text: str) -> None:
    """Write a line."""
    write(path, text)


@dramatiq.actor(queue_name=f"{PREFIX}.flaky", max_retries=2, min_backoff=200, max_backoff=400)
def fail(path: str, text: str) -> None:
    """Fail, until Dramatiq gives up and the message is dead."""
    write(path, text)
    raise RuntimeError(text)


@dramatiq.actor(queue_name=f"{PREFIX}.slow")
def sleep_once(path: str) -> None:
    """Note that work began; the first time it does not end by itself."""
    first = not Path(path).exists()
    write(path, "began")
    if first:
        time.sleep(60)
    write(path, "done")
