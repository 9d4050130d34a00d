"""Memory and disk alarms as pika sees them: who waits, who is told, and that it ends."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pika
import pika.exceptions
import pytest

from tests.integration.broker_process import PROJECT, BrokerProcess, run_command
from tests.waiting import wait_until

MIB = 1024 * 1024
QUEUE = "alarmed"
BODY = bytes(100_000)
# A broker without messages is far below this, one with some hundred of those bodies above it.
WATERMARK = "110MB"
LIMIT_S = 60.0


@pytest.fixture
def broker(
    request: pytest.FixtureRequest, referee_url: str | None, tmp_path: Path
) -> Iterator[BrokerProcess]:
    """A broker with settings of its own, given as parameter."""
    if referee_url is not None:
        pytest.skip("needs a broker with other settings")
    process = BrokerProcess(tmp_path, flags=request.param)
    process.start()
    try:
        yield process
        assert process.is_running
        assert process.stop() == 0
        assert process.complaints() == []
    finally:
        process.kill9()


class Publisher:
    """A connection that publishes in a thread of its own until it is told to stop."""

    def __init__(self, url: str) -> None:
        self.told: list[str] = []
        self.count = 0
        self.is_stopped = False
        self._url = url
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        parameters = pika.URLParameters(self._url)
        with pika.BlockingConnection(parameters) as connection:
            connection.add_on_connection_blocked_callback(
                lambda _, frame: self.told.append(frame.method.reason)
            )
            connection.add_on_connection_unblocked_callback(lambda *_: self.told.append("-"))
            channel = connection.channel()
            channel.queue_declare(QUEUE)
            while not self.is_stopped:
                if not self.told or self.told[-1] == "-":
                    channel.basic_publish("", QUEUE, BODY)
                    self.count += 1
                connection.process_data_events(time_limit=0.002)

    def stop(self) -> None:
        """Stop publishing, close, and wait until that is done."""
        self.is_stopped = True
        self._thread.join(LIMIT_S)
        assert not self._thread.is_alive()


class Hoarder:
    """A consumer in a thread of its own that acks nothing, until it lets go of everything."""

    def __init__(self, url: str) -> None:
        self.count = 0
        self.lets_go = False
        self.is_stopped = False
        self.told: list[object] = []
        self._url = url
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        with pika.BlockingConnection(pika.URLParameters(self._url)) as connection:
            connection.add_on_connection_blocked_callback(lambda *_: self.told.append(1))
            channel = connection.channel()
            channel.queue_declare(QUEUE)
            channel.basic_consume(QUEUE, self._take)
            acked = 0
            while not self.is_stopped:
                connection.process_data_events(time_limit=0.01)
                if self.lets_go and acked < self.count:
                    acked = self.count
                    channel.basic_ack(acked, multiple=True)

    def _take(self, *_: object) -> None:
        self.count += 1

    def settled_count(self) -> int:
        """Deliveries so far, once no more of them come."""
        count = -1
        while count != self.count:
            count = self.count
            time.sleep(0.3)
        return count

    def stop(self) -> None:
        """Close, and wait until that is done."""
        self.is_stopped = True
        self._thread.join(LIMIT_S)
        assert not self._thread.is_alive()


def end_of(connection: pika.BlockingConnection) -> BaseException:
    """Let pika work until the connection ends; why it did."""
    try:
        while True:
            connection.process_data_events(time_limit=1)
    except pika.exceptions.AMQPError as error:
        end: BaseException = error
        return end


@pytest.mark.parametrize(
    "broker", [("--vm-memory-high-watermark", WATERMARK, "--disk-free-limit", "0")], indirect=True
)
def test_memory_fills_up_and_is_given_back(broker: BrokerProcess) -> None:
    """What was delivered and not acked cannot be left to the disk, so memory runs low."""
    hoarder = Hoarder(broker.url)
    publisher = Publisher(broker.url)
    wait_until(lambda: bool(publisher.told), "never blocked")
    # Whoever does not publish is served, and told nothing; all that was taken is delivered.
    wait_until(lambda: hoarder.count >= publisher.count - 30, "not all of it is delivered")
    count = hoarder.settled_count()
    assert publisher.told == ["low on memory"]
    assert publisher.count - 30 <= count <= publisher.count
    hoarder.lets_go = True
    wait_until(lambda: publisher.told[:2] == ["low on memory", "-"], "never unblocked")
    wait_until(lambda: hoarder.count > publisher.count - 5 > count, "does not go on")
    publisher.stop()
    hoarder.stop()
    assert hoarder.told == []


@pytest.mark.parametrize("broker", [("--vm-memory-high-watermark", "1MB")], indirect=True)
def test_publisher_gives_up_by_its_own_timeout(broker: BrokerProcess) -> None:
    parameters = pika.URLParameters(broker.url)
    parameters.blocked_connection_timeout = 0.5
    connection = pika.BlockingConnection(parameters)
    channel = connection.channel()
    channel.queue_declare(QUEUE)
    channel.basic_publish("", QUEUE, b"x")
    assert isinstance(end_of(connection), pika.exceptions.ConnectionBlockedTimeout)
    # Its socket is closed, which the broker sees although it does not read.
    with pika.BlockingConnection(pika.URLParameters(broker.url)) as other:
        declared = other.channel().queue_declare(QUEUE, passive=True)
        assert declared.method.message_count == 0


def test_a_limit_that_the_disk_cannot_have_free_is_refused(tmp_path: Path) -> None:
    limit = ("--disk-free-limit", "99999999999999999999TB")
    done = run_command("serve", "--port", "0", "--data-dir", str(tmp_path / "data"), *limit)
    assert (done.returncode, done.stdout) == (2, "")
    [line] = done.stderr.splitlines()
    assert line.startswith("vouchmq: disk_free_limit: 99999999999999999999TB is more than the ")


# As much as there is: something is always in use.
DISK_SIZE: Final = str(shutil.disk_usage(tempfile.gettempdir()).total)


@pytest.mark.parametrize(
    "broker",
    [("--disk-free-limit", DISK_SIZE, "--blocked-connection-log-after-s", "0.2")],
    indirect=True,
)
def test_the_operator_finds_the_silent_publisher(broker: BrokerProcess) -> None:
    parameters = pika.URLParameters(broker.url)
    parameters.client_properties = {"connection_name": "the invoices"}
    # A graceful end would have to wait for the alarm (LIMIT-11): the client hangs up instead.
    parameters.blocked_connection_timeout = 1.0
    connection = pika.BlockingConnection(parameters)
    reasons: list[str] = []
    connection.add_on_connection_blocked_callback(
        lambda _, frame: reasons.append(frame.method.reason)
    )
    connection.channel().basic_publish("", "nowhere", b"x")
    assert isinstance(end_of(connection), pika.exceptions.ConnectionBlockedTimeout)
    assert reasons == ["low on disk"]
    assert "the invoices" in broker.output()


@pytest.mark.parametrize("broker", [("--vm-memory-high-watermark", "1MB")], indirect=True)
def test_the_rules_of_an_alarm(broker: BrokerProcess) -> None:
    """The conformance cases that need a broker in alarm, none of them skipped."""
    done = subprocess.run(
        [
            *(sys.executable, "-m", "vouchmq.conformance", "--url", broker.url),
            *("--only", "LIMIT-10", "LIMIT-11", "LIMIT-13", "CONN-62"),
        ],
        cwd=PROJECT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.rstrip().endswith(" passed, 0 failed, 0 skipped")


@pytest.mark.parametrize(
    "broker", [("--vm-memory-high-watermark", "1MB", "--shutdown-timeout-s", "600")], indirect=True
)
def test_stopping_does_not_wait_for_blocked_publishers(broker: BrokerProcess) -> None:
    connection = pika.BlockingConnection(pika.URLParameters(broker.url))
    blocked: list[object] = []
    connection.add_on_connection_blocked_callback(lambda *_: blocked.append(1))
    channel = connection.channel()
    for _ in range(3):
        channel.basic_publish("", "nowhere", b"x" * 1000)
    connection.process_data_events(time_limit=0.5)
    assert blocked
    closed: list[BaseException] = []
    thread = threading.Thread(target=lambda: closed.append(end_of(connection)))
    thread.start()
    assert broker.stop() == 0
    thread.join(LIMIT_S)
    assert isinstance(closed[0], pika.exceptions.ConnectionClosedByBroker)
    assert closed[0].reply_code == 320
    broker.start()
