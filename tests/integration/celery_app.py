"""A tiny Celery application, run by a real worker process in test_celery.py.

Broker and queue come from the environment, since the worker is another process.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

import celery

app = celery.Celery(
    "vouchmq-tests",
    broker=os.environ.get("CELERY_TEST_BROKER", "amqp://"),
    backend="rpc://",
)
app.conf.update(
    task_default_queue=os.environ.get("CELERY_TEST_QUEUE", "celery-tests"),
    task_acks_late=True,
    task_reject_on_worker_lost=True,
    worker_prefetch_multiplier=1,
    broker_connection_retry_on_startup=True,
    broker_transport_options={"confirm_publish": True},
    # Reply queues without x-expires; TTL has tests of its own.
    result_expires=None,
    worker_enable_remote_control=os.environ.get("CELERY_TEST_REMOTE_CONTROL") == "1",
)


@app.task
def add(left: int, right: int) -> int:
    """Work with a result."""
    return left + right


@app.task
def fail(text: str) -> None:
    """Work that raises."""
    raise ValueError(text)


@app.task(bind=True, max_retries=2, default_retry_delay=0)
def third_time_lucky(self: celery.Task) -> int:
    """Work that asks for two retries; each is a new message."""
    if self.request.retries < 2:
        raise self.retry()
    return int(self.request.retries)


@app.task(bind=True)
def note(self: celery.Task, path: str, nap_s: float) -> bool:
    """Write down that work began, then take a nap; tells whether it was redelivered."""
    again = bool(self.request.delivery_info["redelivered"])
    with Path(path).open("a", encoding="utf-8") as notes:
        notes.write(f"redelivered={again}\n")
    if not again:
        time.sleep(nap_s)
    return again
