"""Celery applications as people configure them; their tasks write down what happens to them.

Broker, names and the place for notes come from the environment: workers are other processes.
"""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import celery
import kombu


def applications(url: str, prefix: str) -> dict[str, celery.Celery]:
    """One application for each way of use, with queues under this prefix."""
    made = {
        name: celery.Celery(name, broker=url, backend="rpc://")
        for name in ("quickstart", "careful", "prioritised", "quorum", "hurried")
    }
    for name, app in made.items():
        app.conf.task_default_queue = f"{prefix}.{name}"
    # The quick-start has not one setting more. What is advised for work that must not be lost:
    made["careful"].conf.update(
        task_acks_late=True,
        task_reject_on_worker_lost=True,
        worker_prefetch_multiplier=1,
        broker_transport_options={"confirm_publish": True},
    )
    # Priorities: one at a time, and nothing prefetched that something urgent could overtake.
    made["prioritised"].conf.update(
        task_queue_max_priority=10,
        task_default_priority=5,
        task_acks_late=True,
        worker_prefetch_multiplier=1,
    )
    # Quorum queues, which make Celery leave waiting to the broker.
    made["quorum"].conf.update(
        task_default_queue_type="quorum",
        task_default_exchange=f"{prefix}.quorum",
        task_default_exchange_type="topic",
        task_default_routing_key=f"{prefix}.quorum",
        broker_transport_options={"confirm_publish": True},
    )
    # A queue whose consumers must not hold a message for longer than a second.
    arguments = {"x-consumer-timeout": 1000}
    made["hurried"].conf.task_queues = [kombu.Queue(f"{prefix}.hurried", queue_arguments=arguments)]
    return made


quickstart, careful, prioritised, quorum, hurried = applications(
    os.environ.get("FRAMEWORK_TEST_URL", "amqp://"),
    os.environ.get("FRAMEWORK_TEST_PREFIX", "frameworks"),
).values()


@celery.shared_task(name="add")
def add(left: int, right: int) -> int:
    """Work with a result."""
    return left + right


@celery.shared_task(name="fail")
def fail(text: str) -> None:
    """Work that raises."""
    raise ValueError(text)


@celery.shared_task(bind=True, name="retry", max_retries=2, default_retry_delay=0)
def third_time_lucky(self: celery.Task) -> int:
    """Work that asks for two retries; each is a new message."""
    if self.request.retries < 2:
        raise self.retry()
    return int(self.request.retries)


@celery.shared_task(name="note")
def note(path: str, text: str, nap_s: float = 0) -> float:
    """Take a nap, write a line; returns the time at which it was written."""
    time.sleep(nap_s)
    with Path(path).open("a", encoding="utf-8") as notes:
        notes.write(f"{text}\n")
    return time.time()


@celery.shared_task(bind=True, name="die-once")
def die_once(self: celery.Task, path: str) -> bool:
    """Kill the pool's process at the first delivery, as the kernel does when memory is short."""
    again = bool(self.request.delivery_info["redelivered"])
    with Path(path).open("a", encoding="utf-8") as notes:
        notes.write(f"redelivered={again}\n")
    if not again:
        os.kill(os.getpid(), signal.SIGKILL)
    return again
