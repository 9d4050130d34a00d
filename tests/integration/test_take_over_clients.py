"""The programs `take_over` of examples/: clients that go on when another broker takes over.

The leader is killed while a program publishes and consumes; all that it prints must be true for
each message: none is lost, none is there twice.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO, Final

import pika
import pytest

from tests.engine.brokers import Brokers
from tests.engine.servers import MISSING, program, running_server
from tests.integration.broker_process import PROJECT, clean_environment
from tests.waiting import wait_until

pytestmark = pytest.mark.skipif(program() is None, reason=MISSING)

EXAMPLES: Final = PROJECT / "examples"
COUNT: Final = 600
KILLED_AT: Final = "confirmed 200"
TASKS: Final = 300
TASK_QUEUE: Final = "example.take_over.tasks"


@pytest.fixture
def brokers(tmp_path: Path) -> Iterator[Brokers]:
    """A leader and a standby, whose address is known before it serves."""
    with ExitStack() as stack:
        engine = stack.enter_context(running_server(tmp_path / "engine"))
        made = Brokers(tmp_path, engine)
        stack.callback(made.kill)
        made.standby.choose_port()
        made.start()
        yield made


def addresses(brokers: Brokers) -> list[str]:
    """The standby's first: clients have to go on to the next."""
    return [brokers.standby.url, brokers.leader.url]


@contextmanager
def running(command: list[str], directory: Path, **variables: str) -> Iterator[IO[str]]:
    """A program that must end well; gives what it prints."""
    errors = directory / "errors"
    with (
        errors.open("w") as stderr,
        subprocess.Popen(
            command,
            cwd=directory,
            env=clean_environment(variables),
            stdout=subprocess.PIPE,
            stderr=stderr,
            text=True,
        ) as process,
    ):
        assert process.stdout is not None
        try:
            yield process.stdout
        finally:
            if sys.exc_info()[0] is not None:
                process.kill()
    assert (process.returncode, errors.read_text()) == (0, "")


def take_over(brokers: Brokers, printed: IO[str]) -> list[str]:
    """Kill the leader in the middle; the rest of what a program prints."""
    for line in printed:
        if line.startswith(KILLED_AT):
            brokers.leader.kill9()
            break
    else:
        raise AssertionError("the program has ended before")
    return [line.rstrip("\n") for line in printed if not line.startswith("confirmed")]


@pytest.mark.parametrize("client", ["pika", "aio_pika", "amqplib"])
def test_nothing_is_lost_and_nothing_is_there_twice(
    client: str, brokers: Brokers, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    script = EXAMPLES / client / "take_over"
    variables: dict[str, str] = {}
    if client == "amqplib":
        command = ["node", f"{script}.js", str(COUNT), *addresses(brokers)]
        variables["NODE_PATH"] = str(request.getfixturevalue("node_path"))
    else:
        urls = [part for url in addresses(brokers) for part in ("--url", url)]
        command = [sys.executable, f"{script}.py", "--count", str(COUNT), *urls]
    with running(command, tmp_path, **variables) as printed:
        lines = take_over(brokers, printed)
    confirmed, done, again, left = lines
    found = re.fullmatch(r"all confirmed after (\d+) publishes over (\d+) connections", confirmed)
    assert found is not None, confirmed
    assert int(found[1]) > COUNT
    assert int(found[2]) >= 2
    assert done == f"{COUNT} of {COUNT} were done, 0 copies were found"
    assert re.fullmatch(r"\d+ came again after they were done", again)
    assert left == "0 were left"


def test_tasks_of_celery(brokers: Brokers, tmp_path: Path) -> None:
    """Each is done; what is done twice came again and was marked."""
    notes = tmp_path / "notes"
    variables = {"BROKERS": ";".join(addresses(brokers)), "NOTES": str(notes)}
    folder = EXAMPLES / "celery"
    log = tmp_path / "worker.log"
    with log.open("wb") as output:
        worker = subprocess.Popen(
            [
                *(sys.executable, "-m", "celery", "-A", "take_over", "worker"),
                *("--pool", "threads", "--concurrency", "2", "--loglevel", "info"),
                *("--without-gossip", "--without-mingle"),
            ],
            cwd=folder,
            env=clean_environment(variables),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
        )
    try:
        command = [sys.executable, str(folder / "take_over.py"), "--count", str(TASKS)]
        with running(command, tmp_path, **variables) as printed:
            assert take_over(brokers, printed) == ["all confirmed"]
        wait_until(
            lambda: len(done(notes)) == TASKS, lambda: log.read_text(errors="replace")[-3000:]
        )
        worker.send_signal(signal.SIGTERM)
        worker.wait()
    finally:
        worker.kill()
        worker.wait()
    assert set(done(notes)) == {str(order) for order in range(TASKS)}
    firsts = Counter(line for line in notes.read_text().split("\n") if line.isdigit())
    assert [order for order, count in firsts.items() if count > 1] == []
    with pika.BlockingConnection(pika.URLParameters(brokers.standby.url)) as connection:
        queue = connection.channel().queue_declare(TASK_QUEUE, passive=True)
        assert queue.method.message_count == 0


def done(notes: Path) -> Counter[str]:
    """How often each order was worked on."""
    text = notes.read_text() if notes.exists() else ""
    # The last line may be half there.
    return Counter(line.split(" ")[0] for line in text.split("\n")[:-1])


def test_all_examples_are_tried() -> None:
    found = {path.parent.name for path in EXAMPLES.glob("*/take_over.*")}
    assert found == {"pika", "aio_pika", "amqplib", "celery"}
    assert os.listdir(EXAMPLES / "amqplib") == ["take_over.js"]  # noqa: PTH208
