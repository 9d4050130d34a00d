"""The hard cases of tasks.py, with workers that are processes."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from examples.testing.with_celery.tasks import QUEUE, app, report
from vouchmq.testing import Broker, VHost

PROJECT = Path(__file__).parents[3]
# How long a worker may take to start, on a machine with much else to do.
PATIENCE_S = 60.0
Work = Callable[[], subprocess.Popen[bytes]]


@pytest.fixture
def start_worker(vouchmq_vhost: VHost, tmp_path: Path) -> Iterator[Work]:
    """Starts workers, which end with the test."""
    workers: list[subprocess.Popen[bytes]] = []
    command = [
        *(sys.executable, "-m", "celery", "-A", "examples.testing.with_celery.tasks", "worker"),
        *("--loglevel", "warning", "--pool", "threads", "--concurrency", "1"),
    ]
    environment = {
        **os.environ,
        "REPORTS_BROKER": vouchmq_vhost.url,
        "REPORTS_FOLDER": str(tmp_path),
    }

    def start() -> subprocess.Popen[bytes]:
        worker = subprocess.Popen(command, cwd=PROJECT, env=environment)
        workers.append(worker)
        vouchmq_vhost.queue(QUEUE).wait(consumers=1, timeout_s=PATIENCE_S)
        return worker

    yield start
    for worker in workers:
        worker.kill()
        worker.wait()


def request_report(vhost: VHost, customer: str) -> None:
    """Publish a task; returns when it is confirmed."""
    with app.connection_for_write(vhost.url) as connection:
        report.apply_async((customer,), connection=connection)


def reports(folder: Path) -> list[str]:
    return sorted(path.stem for path in folder.glob("*.txt"))


def test_tasks_are_done_after_the_worker_has_lost_its_connection(
    vouchmq_vhost: VHost, start_worker: Work, tmp_path: Path
) -> None:
    start_worker()
    request_report(vouchmq_vhost, "ann")
    vouchmq_vhost.queue(QUEUE).wait(acked=1)
    vouchmq_vhost.cut_connections()
    request_report(vouchmq_vhost, "bob")
    vouchmq_vhost.queue(QUEUE).wait(acked=2, timeout_s=PATIENCE_S)
    assert reports(tmp_path) == ["ann", "bob"]


def test_a_task_waits_through_a_crash_of_the_broker(
    vouchmq_broker: Broker, vouchmq_vhost: VHost, start_worker: Work, tmp_path: Path
) -> None:
    request_report(vouchmq_vhost, "ann")
    vouchmq_broker.restart()
    start_worker()
    vouchmq_vhost.queue(QUEUE).wait(acked=1)
    assert reports(tmp_path) == ["ann"]


def test_the_task_of_a_killed_worker_is_done_by_the_next_one(
    vouchmq_vhost: VHost, start_worker: Work, tmp_path: Path
) -> None:
    # Whoever opens it to write waits for a reader.
    report_that_waits = tmp_path / "ann.txt"
    os.mkfifo(report_that_waits)
    worker = start_worker()
    request_report(vouchmq_vhost, "ann")
    vouchmq_vhost.queue(QUEUE).wait(messages_unacknowledged=1)
    worker.kill()
    vouchmq_vhost.queue(QUEUE).wait(messages_ready=1)
    report_that_waits.unlink()
    start_worker()
    vouchmq_vhost.queue(QUEUE).wait(acked=1)
    assert report_that_waits.read_text(encoding="utf-8") == "Dear ann"
