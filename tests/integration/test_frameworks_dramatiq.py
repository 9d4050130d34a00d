"""Dramatiq as it is used: messages, delays in .DQ queues, retries, dead letters in .XQ queues."""

from __future__ import annotations

import importlib
import itertools
import json
import sys
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pika
import pytest

from tests.integration.frameworks.worker_process import WorkerProcess
from tests.waiting import wait_until

APP: Final = "tests.integration.frameworks.dramatiq_app"
QUEUES: Final = ("notes", "flaky", "slow")
LIMIT_S: Final = 60


class Dramatiq:
    """The application at one broker, under names of its own."""

    def __init__(self, url: str, directory: Path) -> None:
        self.url = url
        self.prefix = f"frameworks.{uuid.uuid4().hex[:8]}"
        self._directory = directory
        self._environment = {"FRAMEWORK_TEST_URL": url, "FRAMEWORK_TEST_PREFIX": self.prefix}
        with pytest.MonkeyPatch.context() as patch:
            for name, value in self._environment.items():
                patch.setenv(name, value)
            self.app: Any = importlib.import_module(APP)

    def worker(self) -> WorkerProcess:
        """Start one process with one thread, which takes one message after the other."""
        command = [sys.executable, "-m", "dramatiq", APP, "--processes", "1", "--threads", "1"]
        return WorkerProcess(
            command,
            self._directory / f"{uuid.uuid4().hex[:8]}.log",
            environment=self._environment,
            ready="Worker process is ready for action.",
        )

    def counts(self, queue: str) -> tuple[int, int, int]:
        """Messages that are ready in the queue, in its delay queue and among its dead."""
        counted: tuple[int, int, int] = self.app.broker.get_queue_message_counts(
            f"{self.prefix}.{queue}"
        )
        return counted

    def close(self) -> None:
        """Close the connection and delete what was declared."""
        self.app.broker.close()
        with pika.BlockingConnection(pika.URLParameters(self.url)) as connection:
            channel = connection.channel()
            for name in QUEUES:
                for suffix in ("", ".DQ", ".XQ"):
                    channel.queue_delete(f"{self.prefix}.{name}{suffix}")


@pytest.fixture(scope="module")
def dramatiq(url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Dramatiq]:
    """The application, for all tests of this module."""
    made = Dramatiq(url, tmp_path_factory.mktemp("dramatiq"))
    yield made
    made.close()


def lines(notes: Path) -> list[tuple[str, float]]:
    """What actors wrote, with the times."""
    if not notes.exists():
        return []
    rows = (line.rsplit(" ", 1) for line in notes.read_text().splitlines())
    return [(text, float(when)) for text, when in rows]


def texts(notes: Path) -> list[str]:
    """What actors wrote."""
    return [text for text, _when in lines(notes)]


def test_messages_delays_and_priorities(dramatiq: Dramatiq, tmp_path: Path) -> None:
    """A delayed message waits in the .DQ queue, unacknowledged, and is published anew when due."""
    notes = tmp_path / "notes"
    note = dramatiq.app.note
    began = time.time()
    note.send_with_options(args=(str(notes), "delayed"), delay=2500)
    for text, priority in (("low", 1), ("middle", 5), ("high", 9)):
        note.send_with_options(args=(str(notes), text), broker_priority=priority)
    assert dramatiq.counts("notes") == (3, 1, 0)
    with dramatiq.worker():
        wait_until(lambda: len(texts(notes)) == 4, lambda: texts(notes))
        dramatiq.app.broker.join(f"{dramatiq.prefix}.notes", timeout=LIMIT_S * 1000)
    # How long a worker takes to start is not known; if very long, the delayed one is due by then.
    when = dict(lines(notes))
    assert when.pop("delayed") >= began + 2.5
    assert sorted(when) == ["high", "low", "middle"]
    assert next(iter(when)) == "high"
    assert dramatiq.counts("notes") == (0, 0, 0)


def test_retries_and_the_dead(dramatiq: Dramatiq, tmp_path: Path) -> None:
    """Each retry is a delayed message; the last failure is rejected into the .XQ queue."""
    notes = tmp_path / "notes"
    with dramatiq.worker():
        dramatiq.app.fail.send(str(notes), "failed")
        wait_until(lambda: dramatiq.counts("flaky") == (0, 0, 1))
    assert texts(notes) == ["failed"] * 3
    times = [when for _text, when in lines(notes)]
    assert all(later - earlier >= 0.1 for earlier, later in itertools.pairwise(times))
    queue = f"{dramatiq.prefix}.flaky"
    with pika.BlockingConnection(pika.URLParameters(dramatiq.url)) as connection:
        method, properties, body = connection.channel().basic_get(f"{queue}.XQ", auto_ack=True)
    assert (method.exchange, method.routing_key) == ("", f"{queue}.XQ")
    (death,) = properties.headers["x-death"]
    assert (death["queue"], death["reason"], death["count"]) == (queue, "rejected", 1)
    assert json.loads(body)["options"]["retries"] == 2


def test_messages_of_a_killed_worker_go_to_the_next(dramatiq: Dramatiq, tmp_path: Path) -> None:
    notes = tmp_path / "notes"
    with dramatiq.worker() as first:
        dramatiq.app.sleep_once.send(str(notes))
        wait_until(lambda: texts(notes) == ["began"], first.text)
        first.kill9()
    with dramatiq.worker():
        wait_until(lambda: texts(notes) == ["began", "began", "done"], lambda: texts(notes))
        dramatiq.app.broker.join(f"{dramatiq.prefix}.slow", timeout=LIMIT_S * 1000)
