"""rabbitmq-c's command line tools (Debian package amqp-tools): a C client without mercy.

They know no confirms and no transactions; what they can do is publish, get, consume, declare
and delete, each as a process of its own with the whole handshake.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Callable
from typing import Any

import pika
import pytest

from tests.conftest import Names
from tests.integration.samples import FULL_FRAME, MIB, body_of
from tests.waiting import wait_until

pytestmark = pytest.mark.skipif(
    shutil.which("amqp-publish") is None, reason="Debian's amqp-tools is not installed"
)

LIMIT_S = 60
Tool = Callable[..., "subprocess.CompletedProcess[bytes]"]


@pytest.fixture
def tool(url: str) -> Tool:
    """Runs one of the tools against the broker under test."""

    def run(
        name: str, *arguments: str, body: bytes = b"", code: int = 0
    ) -> subprocess.CompletedProcess[bytes]:
        command = [name, f"--url={url}", *arguments]
        done = subprocess.run(
            command, input=body, capture_output=True, timeout=LIMIT_S, check=False
        )
        assert done.returncode == code, (command, done.stdout, done.stderr)
        return done

    return run


@pytest.fixture
def queue(tool: Tool, names: Names) -> str:
    """A durable queue that amqp-declare-queue made."""
    name = names()
    assert tool("amqp-declare-queue", "-d", "-q", name).stdout.decode().strip() == name
    return name


def ready(url: str, queue: str) -> tuple[int, int]:
    """Messages and consumers of a queue, as another client sees them."""
    with pika.BlockingConnection(pika.URLParameters(url)) as connection:
        reply = connection.channel().queue_declare(queue, passive=True).method
        return reply.message_count, reply.consumer_count


@pytest.mark.parametrize("size", [0, 1, FULL_FRAME - 1, FULL_FRAME, FULL_FRAME + 1, MIB, 10 * MIB])
def test_published_body_is_got_back(tool: Tool, queue: str, size: int) -> None:
    body = body_of(size)
    tool("amqp-publish", "-p", "-r", queue, body=body)
    assert tool("amqp-get", "-q", queue).stdout == body
    assert tool("amqp-get", "-q", queue, code=2).stdout == b""


def test_lines_become_messages_consumed_in_order(tool: Tool, url: str, queue: str) -> None:
    lines = [b"line %d" % number for number in range(200)]
    tool("amqp-publish", "-l", "-r", queue, body=b"\n".join(lines) + b"\n")
    assert ready(url, queue) == (200, 0)
    out = tool("amqp-consume", "-q", queue, "-c", "100", "-p", "10", "cat").stdout
    assert out.split(b"\n")[:-1] == lines[:100]
    assert ready(url, queue) == (100, 0)
    out = tool("amqp-consume", "-q", queue, "-c", "100", "-A", "cat").stdout
    assert out.split(b"\n")[:-1] == lines[100:]


def test_a_failing_command_leaves_the_message_redelivered(tool: Tool, url: str, queue: str) -> None:
    tool("amqp-publish", "-r", queue, "-b", "held")
    consumer = subprocess.Popen(
        ["amqp-consume", f"--url={url}", "-q", queue, "-p", "1", "sleep", "30"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    wait_until(lambda: ready(url, queue) == (0, 1), "it is not delivered")
    os.killpg(consumer.pid, signal.SIGKILL)
    consumer.wait(LIMIT_S)
    wait_until(lambda: ready(url, queue) == (1, 0), "it does not come back")
    with pika.BlockingConnection(pika.URLParameters(url)) as connection:
        method, _, body = connection.channel().basic_get(queue, auto_ack=True)
    assert (body, method.redelivered) == (b"held", True)


def test_exclusive_queue_bound_to_an_exchange(tool: Tool, url: str, names: Names) -> None:
    exchange = names("x")
    with pika.BlockingConnection(pika.URLParameters(url)) as connection:
        channel = connection.channel()
        channel.exchange_declare(exchange, "topic")
        consumer = subprocess.Popen(
            [
                "amqp-consume",
                f"--url={url}",
                "-e",
                exchange,
                "-r",
                "logs.#",
                "-x",
                "-c",
                "2",
                "cat",
            ],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        channel.confirm_delivery()

        def is_routed() -> bool:
            try:
                channel.basic_publish(exchange, "logs.first", b"first\n", mandatory=True)
            except pika.exceptions.UnroutableError:
                return False
            return True

        wait_until(is_routed, "nothing is bound")
        channel.basic_publish(exchange, "other", b"other\n")
        channel.basic_publish(exchange, "logs", b"second\n")
        out, problems = consumer.communicate(timeout=LIMIT_S)
        assert out == b"first\nsecond\n", problems


def test_properties_and_headers_arrive(tool: Tool, url: str, queue: str) -> None:
    tool(
        *("amqp-publish", "-p", "-r", queue, "-b", "x", "-C", "text/plain", "-E", "utf-8"),
        *("-t", "reply.here", "-H", "colour: red", "-H", "size: 3"),
    )
    with pika.BlockingConnection(pika.URLParameters(url)) as connection:
        _, got, _ = connection.channel().basic_get(queue, auto_ack=True)
    sent: dict[str, Any] = {
        "content_type": "text/plain",
        "content_encoding": "utf-8",
        "delivery_mode": 2,
        "reply_to": "reply.here",
    }
    assert {name: getattr(got, name) for name in sent} == sent
    assert {key: value.strip() for key, value in got.headers.items()} == {
        "colour": "red",
        "size": "3",
    }


def test_declare_without_a_name_and_transient(tool: Tool) -> None:
    name = tool("amqp-declare-queue", "-q", "").stdout.decode().strip()
    assert name.startswith("amq.gen-")
    assert tool("amqp-delete-queue", "-q", name).stdout.decode().strip() == "0"


def test_delete_tells_the_number_and_keeps_a_queue_that_is_not_empty(
    tool: Tool, queue: str
) -> None:
    tool("amqp-publish", "-l", "-r", queue, body=b"1\n2\n3\n")
    refused = tool("amqp-delete-queue", "-q", queue, "-e", code=1).stderr.decode()
    assert f"PRECONDITION_FAILED - queue '{queue}' in vhost '/' not empty" in refused
    assert tool("amqp-delete-queue", "-q", queue).stdout.decode().strip() == "3"


def test_missing_queue_and_wrong_password_are_told(tool: Tool, url: str, names: Names) -> None:
    missing = names()
    told = tool("amqp-get", "-q", missing, code=1).stderr.decode()
    assert f"NOT_FOUND - no queue '{missing}' in vhost '/'" in told
    wrong = subprocess.run(
        ["amqp-get", f"--url={url.replace(':guest@', ':wrong@')}", "-q", missing],
        capture_output=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert wrong.returncode == 1
    assert b"ACCESS_REFUSED" in wrong.stderr
