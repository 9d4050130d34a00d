"""`vouchmq tail`: messages as they come, and the truth about those that were not seen."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pika
import pytest
from click.testing import CliRunner
from pika.adapters.blocking_connection import BlockingChannel

from tests.integration.broker_process import BrokerProcess, clean_environment
from tests.waiting import LIMIT_S
from vouchmq.server.cli.main import program

STREAM = {"x-queue-type": "stream"}


@pytest.fixture
def channel(broker: BrokerProcess) -> Iterator[BlockingChannel]:
    with pika.BlockingConnection(pika.URLParameters(broker.url)) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        yield channel


class Tail:
    """A process that follows a queue."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process

    def next(self) -> str:
        """The body of the next message."""
        assert self.process.stdout is not None
        return str(json.loads(self.process.stdout.readline())["body"])

    def end(self) -> tuple[int, str]:
        """Its exit code and what it has complained of."""
        _, said = self.process.communicate(timeout=LIMIT_S)
        return self.process.returncode, said


@contextmanager
def tail(broker: BrokerProcess, *words: str) -> Iterator[Tail]:
    command = [sys.executable, "-m", "vouchmq", "tail", *words, "--json", "--interval", "0.05"]
    command += ["--data-dir", str(broker.data_dir)]
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, text=True, env=clean_environment(), **pipes) as process:
        try:
            yield Tail(process)
        finally:
            process.kill()


def begun(following: Tail, channel: BlockingChannel, queue: str) -> None:
    """Wait until it follows: it begins with one that was there."""
    assert following.next() == "there"
    # What is published from here on is seen, whenever it takes its first count.
    channel.queue_declare(queue, passive=True)


def publish(channel: BlockingChannel, queue: str, *bodies: str) -> None:
    for body in bodies:
        channel.basic_publish("", queue, body.encode())


def test_a_queue_is_followed_and_keeps_everything(
    broker: BrokerProcess, channel: BlockingChannel
) -> None:
    channel.queue_declare("followed", durable=True)
    publish(channel, "followed", "older", "there")
    with tail(broker, "followed", "--last", "1", "--count", "2502") as following:
        begun(following, channel, "followed")
        publish(channel, "followed", "x")
        assert following.next() == "x"
        # More than it takes in one look.
        publish(channel, "followed", *map(str, range(2500)))
        assert [following.next() for _ in range(2500)] == [*map(str, range(2500))]
        assert following.end() == (0, "")
    frame = channel.queue_declare("followed", passive=True)
    assert frame.method.message_count == 2503


def test_what_consumers_hold_is_seen_and_what_they_have_done_is_counted(
    broker: BrokerProcess, channel: BlockingChannel
) -> None:
    channel.queue_declare("busy", durable=True)
    publish(channel, "busy", "there")
    with tail(broker, "busy", "--last", "1", "--count", "3") as following:
        begun(following, channel, "busy")
        held: list[int] = []
        channel.basic_consume("busy", lambda _c, method, _p, _b: held.append(method.delivery_tag))
        publish(channel, "busy", "held")
        assert following.next() == "held"
        channel.connection.process_data_events(0)
        # A transaction brings them and takes them away at once.
        with pika.BlockingConnection(pika.URLParameters(broker.url)) as connection:
            other = connection.channel()
            other.basic_consume("busy", lambda *_: None, auto_ack=True, arguments={"x-priority": 9})
            for _ in range(7):
                other.basic_publish("", "busy", b"gone")
            other.queue_declare("busy", passive=True)
        publish(channel, "busy", "last")
        assert following.next() == "last"
        code, said = following.end()
    assert code == 0
    assert sum(int(line.split()[1]) for line in said.splitlines()) == 7
    assert "came and went unseen" in said


def test_a_stream_is_followed_from_any_offset(
    broker: BrokerProcess, channel: BlockingChannel
) -> None:
    channel.queue_declare("stream", durable=True, arguments=STREAM)
    publish(channel, "stream", *map(str, range(5)))
    with tail(broker, "stream", "--first", "2", "--count", "5") as following:
        assert [following.next() for _ in range(3)] == ["2", "3", "4"]
        publish(channel, "stream", "5", "6")
        assert [following.next() for _ in range(2)] == ["5", "6"]
        assert following.end() == (0, "")
    with tail(broker, "stream", "--last", "2", "--count", "3") as following:
        assert [following.next() for _ in range(2)] == ["5", "6"]
        publish(channel, "stream", "7")
        assert following.next() == "7"


@pytest.mark.parametrize(
    ("words", "code", "line"),
    [
        (["missing"], 1, "there is no queue 'missing' in virtual host '/'"),
        (
            ["plain", "--first", "1"],
            1,
            "--first is for streams, and 'plain' is a queue; use --last",
        ),
        (
            ["plain", "--first", "1", "--last", "1"],
            2,
            "expected --first or --last, not both; see vouchmq tail --help",
        ),
    ],
)
def test_mistakes(
    broker: BrokerProcess, channel: BlockingChannel, words: list[str], code: int, line: str
) -> None:
    channel.queue_declare("plain")
    done = CliRunner().invoke(program, ["tail", *words, "--data-dir", str(broker.data_dir)])
    assert (done.exit_code, done.stdout, done.stderr) == (code, "", f"vouchmq: {line}\n")
