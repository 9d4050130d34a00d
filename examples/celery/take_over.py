"""Tasks and a worker that go on when another broker takes over.

Celery has the addresses of all brokers and tries one after the other: standbys refuse connections.

`apply_async` returns when the broker has the task. If the connection breaks before, the task may be
stored or not; Celery publishes it again with the same key, and the queue drops what it has had
before: no task is lost, and none is there twice. The worker acknowledges a task when it is done;
one that comes again says so, and has to find out whether it was done.

BROKERS="amqp://…;amqp://…" celery -A take_over worker    in this directory
BROKERS="amqp://…;amqp://…" python take_over.py
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

import celery
import kombu

QUEUE = "example.take_over.tasks"
PROGRESS = 100
FOR_EVER = {"max_retries": None, "interval_start": 0, "interval_step": 0.2, "interval_max": 1}

app = celery.Celery("take_over")
app.conf.update(
    broker_url=os.environ.get("BROKERS", "amqp://guest:guest@127.0.0.1:5672/%2F").split(";"),
    # Without heartbeats a broker that hangs is not noticed.
    broker_heartbeat=10,
    broker_connection_timeout=5,
    # A worker goes on looking for the broker that leads.
    broker_connection_retry_on_startup=True,
    broker_connection_max_retries=None,
    # So does who publishes; a task is published when it is confirmed.
    broker_transport_options={"confirm_publish": True},
    task_publish_retry=True,
    task_publish_retry_policy=FOR_EVER,
    # A task is acknowledged when it is done, and comes again if that gets lost.
    task_acks_late=True,
    task_reject_on_worker_lost=True,
    worker_prefetch_multiplier=1,
    task_ignore_result=True,
    task_default_queue=QUEUE,
    task_queues=[
        kombu.Queue(
            QUEUE,
            kombu.Exchange(QUEUE, durable=True),
            QUEUE,
            # The queue knows the last keys, also those of tasks that are done.
            queue_arguments={"x-message-deduplication": True, "x-cache-size": 100_000},
        )
    ],
)


@app.task(bind=True)
def work(self: celery.Task, order: int) -> None:
    """Note the order, and whether it came again."""
    again = " again" if self.request.delivery_info["redelivered"] else ""
    with Path(os.environ["NOTES"]).open("a", encoding="utf-8") as notes:
        notes.write(f"{order}{again}\n")


def main() -> None:
    """Publish a task for each order."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=500, help="how many orders")
    args = parser.parse_args()
    for order in range(args.count):
        work.apply_async((order,), headers={"x-deduplication-header": f"order-{order}"})
        if (order + 1) % PROGRESS == 0:
            print(f"confirmed {order + 1}", flush=True)
    print("all confirmed")


if __name__ == "__main__":
    main()
