"""Celery with a real worker process: results over rpc://, late acks, a worker killed at work."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests.conftest import Names
from tests.integration.broker_process import PROJECT
from tests.waiting import LIMIT_S, wait_until


class Worker:
    """A Celery worker process with one slot."""

    def __init__(self, url: str, queue: str, log: Path, *flags: str, remote: bool = False) -> None:
        self.log = log
        environment = {
            **os.environ,
            "CELERY_TEST_BROKER": url,
            "CELERY_TEST_QUEUE": queue,
            "CELERY_TEST_REMOTE_CONTROL": "1" if remote else "0",
        }
        command = [sys.executable, "-m", "celery", "-A", "tests.integration.celery_app", "worker"]
        # The default pool. (The solo pool, on any broker, now and then sleeps over a task.)
        command += ["--pool", "prefork", "--concurrency", "1", "--loglevel", "info", *flags]
        with log.open("ab") as output:
            self.process = subprocess.Popen(
                command,
                cwd=PROJECT,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        wait_until(lambda: " ready." in self.text(), self.text)

    def text(self) -> str:
        """What the worker has logged."""
        return self.log.read_text(encoding="utf-8", errors="replace")

    def kill9(self) -> None:
        """End it and its children without a word."""
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(10)


QUIET = ("--without-gossip", "--without-mingle", "--without-heartbeat")


@pytest.fixture(scope="module")
def app(url: str) -> Iterator[object]:
    """The application, pointed at the broker under test."""
    os.environ["CELERY_TEST_BROKER"] = url
    from tests.integration import celery_app

    celery_app.app.conf.broker_url = url
    yield celery_app.app
    celery_app.app.backend.result_consumer.stop()
    celery_app.app.pool.force_close_all()
    celery_app.app.close()


@pytest.fixture
def tasks(app: object, names: Names) -> Iterator[str]:
    """The name of a fresh task queue that the application sends to."""
    queue = names("tasks")
    app.conf.task_default_queue = queue  # type: ignore[attr-defined]
    app.amqp.queues = app.amqp.Queues({})  # type: ignore[attr-defined]
    yield queue


def test_results_errors_and_retries(url: str, app: object, tasks: str, tmp_path: Path) -> None:
    from tests.integration.celery_app import add, fail, third_time_lucky

    worker = Worker(url, tasks, tmp_path / "worker.log", *QUIET)
    try:
        results = [add.apply_async((n, n), queue=tasks) for n in range(20)]
        assert [result.get(timeout=LIMIT_S) for result in results] == [2 * n for n in range(20)]
        with pytest.raises(ValueError, match="on purpose"):
            fail.apply_async(("on purpose",), queue=tasks).get(timeout=LIMIT_S)
        assert third_time_lucky.apply_async(queue=tasks).get(timeout=LIMIT_S) == 2
    finally:
        worker.kill9()


def test_task_of_a_killed_worker_goes_to_the_next(
    url: str, app: object, tasks: str, tmp_path: Path
) -> None:
    from tests.integration.celery_app import note

    notes = tmp_path / "notes"
    first = Worker(url, tasks, tmp_path / "first.log", *QUIET)
    second = None
    try:
        result = note.apply_async((str(notes), 60), queue=tasks)
        # The file is there before its line is: a worker killed in between leaves it empty.
        wait_until(lambda: notes.exists() and notes.read_text().endswith("\n"), first.text)
        first.kill9()
        second = Worker(url, tasks, tmp_path / "second.log", *QUIET)
        assert result.get(timeout=LIMIT_S) is True
        assert notes.read_text().split() == ["redelivered=False", "redelivered=True"]
    finally:
        first.kill9()
        if second is not None:
            second.kill9()


def test_worker_with_its_default_settings(
    url: str,
    app: object,
    tasks: str,
    tmp_path: Path,
) -> None:
    """Gossip, mingle, events and remote control declare queues with x-expires and a TTL."""
    from tests.integration.celery_app import add

    worker = Worker(url, tasks, tmp_path / "worker.log", remote=True)
    try:
        assert add.apply_async((2, 3), queue=tasks).get(timeout=LIMIT_S) == 5
        replies = app.control.ping(timeout=LIMIT_S, limit=1)  # type: ignore[attr-defined]
        assert [list(reply.values()) for reply in replies] == [[{"ok": "pong"}]]
    finally:
        worker.kill9()
