"""Nameko as it is used: calls between services, events, plain messages.

Nameko and its green threads live in a virtual environment of their own in `.cache/`, which the
first run makes from `requirements/nameko.txt`.
"""

from __future__ import annotations

import json
import subprocess
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pika
import pika.exceptions
import pytest

from tests.environments import environment
from tests.integration.broker_process import PROJECT, clean_environment
from tests.integration.frameworks.worker_process import WorkerProcess
from tests.waiting import wait_until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]

SERVICES: Final = PROJECT / "tests" / "integration" / "frameworks"
LIMIT_S: Final = 60


@pytest.fixture(scope="session")
def nameko_python() -> Path:
    """The interpreter of an environment that has Nameko; skips where it cannot be installed."""
    return environment("nameko")


class Nameko:
    """Services at one broker, under names of their own."""

    def __init__(self, python: Path, url: str, directory: Path) -> None:
        self._python = python
        self._directory = directory
        self.url = url
        self.prefix = f"frameworks-{uuid.uuid4().hex[:8]}"
        self.notes = directory / "notes"
        self._environment = {
            "FRAMEWORK_TEST_PREFIX": self.prefix,
            "FRAMEWORK_TEST_NOTES": str(self.notes),
            "PYTHONWARNINGS": "ignore",
        }

    def services(self) -> WorkerProcess:
        """Start one more instance of all services and wait until all of them consume."""
        before = self._consumers()
        services = WorkerProcess(
            [str(self._python.parent / "nameko"), "run", "--broker", self.url, "nameko_services"],
            self._directory / f"{uuid.uuid4().hex[:8]}.log",
            environment=self._environment,
            ready="Connected to amqp://",
            cwd=SERVICES,
        )
        try:
            wait_until(lambda: self._consumers() >= before + 1, services.text)
        except BaseException:
            services.kill9()
            raise
        return services

    def _consumers(self) -> int:
        """How many consumers the least consumed of the services' queues has."""
        counts = []
        with pika.BlockingConnection(pika.URLParameters(self.url)) as connection:
            for queue in self._queues():
                try:
                    declared = connection.channel().queue_declare(queue, passive=True)
                except pika.exceptions.ChannelClosedByBroker:
                    return 0
                counts.append(int(declared.method.consumer_count))
        return min(counts)

    def _queues(self) -> list[str]:
        """The queues that services leave behind."""
        greeted = f"evt-{self.prefix}-greeting-greeted--{self.prefix}-listener.heard_by_one"
        calls = [f"rpc-{self.prefix}-{name}" for name in ("greeting", "front")]
        return [*calls, greeted, f"{self.prefix}-tasks"]

    def call(self, service: str, method: str, *texts: str) -> list[str]:
        """What the calls returned, as soon as all are answered."""
        done = subprocess.run(
            self.calling(service, method, *texts),
            env=clean_environment(self._environment),
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        results: list[str] = json.loads(done.stdout)
        return results

    def calling(self, service: str, method: str, *texts: str) -> list[str]:
        """The command that calls."""
        caller = str(SERVICES / "nameko_caller.py")
        return [str(self._python), caller, self.url, self.prefix, service, method, *texts]

    def heard(self) -> list[str]:
        """What was written down, sorted, without the process that wrote it."""
        if not self.notes.exists():
            return []
        return sorted(line.rsplit(" ", 1)[0] for line in self.notes.read_text().splitlines())

    def delete(self) -> None:
        """Delete what the services leave behind; reply and broadcast queues go by themselves."""
        with pika.BlockingConnection(pika.URLParameters(self.url)) as connection:
            channel = connection.channel()
            for queue in self._queues():
                channel.queue_delete(queue)
            channel.exchange_delete(f"{self.prefix}-tasks")
            channel.exchange_delete(f"{self.prefix}-greeting.events")


@pytest.fixture
def nameko(
    nameko_python: Path,
    url: str,
    tmp_path: Path,
) -> Iterator[Nameko]:
    """Fresh names for one test."""
    made = Nameko(nameko_python, url, tmp_path)
    yield made
    made.delete()


def test_calls_events_and_messages(nameko: Nameko) -> None:
    with nameko.services():
        whom = [f"{number}" for number in range(10)]
        assert nameko.call("greeting", "hello", *whom) == [f"Hello, {each}!" for each in whom]
        assert nameko.call("front", "welcome", "Ann") == ["HELLO, ANN!"]
        assert nameko.call("greeting", "fail", "on purpose") == ["ValueError: on purpose"]
        # A mandatory message that came back: nobody serves this name.
        assert nameko.call("nobody", "hello", "Ann") == [f"unknown {nameko.prefix}-nobody"]
        nameko.call("greeting", "enqueue", "to do")
        events = [f"{kind} {each}" for kind in ("broadcast", "pool") for each in [*whom, "Ann"]]
        wait_until(lambda: nameko.heard() == sorted([*events, "task to do"]), nameko.heard)


def test_two_instances(nameko: Nameko) -> None:
    """A pool hears an event once, a broadcast reaches every instance."""
    whom = [f"{number}" for number in range(20)]
    with nameko.services(), nameko.services():
        assert nameko.call("greeting", "hello", *whom) == [f"Hello, {each}!" for each in whom]
        wanted = sorted(
            f"{kind} {each}" for kind in ("broadcast", "broadcast", "pool") for each in whom
        )
        wait_until(lambda: nameko.heard() == wanted, nameko.heard)
    writers = {line.rsplit(" ", 1)[1] for line in nameko.notes.read_text().splitlines()}
    assert len(writers) == 2


def test_call_outlives_its_server(nameko: Nameko) -> None:
    """A call is acknowledged when it is answered, so that another instance takes it over."""
    with (
        nameko.services() as first,
        subprocess.Popen(
            nameko.calling("greeting", "sleep_once"),
            env=clean_environment({"PYTHONWARNINGS": "ignore"}),
            stdout=subprocess.PIPE,
            text=True,
        ) as caller,
    ):
        wait_until(lambda: nameko.heard() == ["began"], first.text)
        first.kill9()
        with nameko.services():
            printed, _ = caller.communicate(timeout=LIMIT_S)
    assert json.loads(printed) == ["woke up"]
    assert nameko.heard() == ["began", "began"]
