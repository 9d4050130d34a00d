"""Tasks with Celery that are done at least once, whatever happens to a worker or the broker.

celery -A examples.testing.with_celery.tasks worker
"""

from __future__ import annotations

import os
from pathlib import Path

import celery

QUEUE = "reports"

app = celery.Celery("reports", broker=os.environ.get("REPORTS_BROKER", "amqp://"))
app.conf.update(
    task_default_queue=QUEUE,
    # Acknowledged when it is done, and given to another worker if this one dies.
    task_acks_late=True,
    task_reject_on_worker_lost=True,
    worker_prefetch_multiplier=1,
    # `delay` returns when the broker has the task.
    broker_transport_options={"confirm_publish": True},
    broker_connection_retry_on_startup=True,
)


@app.task
def report(customer: str) -> None:
    """Write a report."""
    folder = Path(os.environ["REPORTS_FOLDER"])
    (folder / f"{customer}.txt").write_text(f"Dear {customer}", encoding="utf-8")
