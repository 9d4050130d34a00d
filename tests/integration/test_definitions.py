"""A definitions file as an operator uses it: at start, edited and read again, exported."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pika
import pika.exceptions
import pytest

from tests.integration.broker_process import PROJECT, BrokerProcess, StartError, clean_environment
from tests.integration.moving import blocking
from tests.integration.pika_async import PERSISTENT
from tests.waiting import wait_until

QUEUE = {"vhost": "/", "name": "orders", "durable": True, "auto_delete": False, "arguments": {}}
POLICY = {
    "vhost": "/",
    "name": "short",
    "pattern": "^orders",
    "apply-to": "queues",
    "definition": {"max-length": 3},
    "priority": 1,
}


class Operator:
    """Somebody with an editor, and a broker that reads what they wrote."""

    def __init__(self, directory: Path, *flags: str) -> None:
        self.file = directory / "definitions.json"
        flags = ("--load-definitions", str(self.file), *flags)
        self.broker = BrokerProcess(directory, flags=flags)

    def write(self, **document: Any) -> None:
        """Write the file anew."""
        self.file.write_text(json.dumps(document))

    def hang_up(self) -> None:
        """Have it read."""
        os.kill(self.broker.pid, signal.SIGHUP)


@pytest.fixture
def operator(tmp_path: Path) -> Iterator[Operator]:
    """An operator whose broker is not started."""
    operator = Operator(tmp_path)
    yield operator
    operator.broker.kill9()


def count(connection: pika.BlockingConnection, queue: str = "orders") -> int:
    """Ready messages."""
    return int(connection.channel().queue_declare(queue, passive=True).method.message_count)


def has(connection: pika.BlockingConnection, queue: str) -> bool:
    """Whether there is such a queue."""
    with contextlib.suppress(pika.exceptions.ChannelClosedByBroker):
        return count(connection, queue) >= 0
    return False


def becomes(look: Callable[[], int], wanted: int) -> None:
    """Fail unless that is so before long."""
    wait_until(lambda: look() == wanted, lambda: f"{look()} is not {wanted}")


def fill(connection: pika.BlockingConnection, messages: int) -> None:
    """Publish so many messages and wait for the confirms."""
    channel = connection.channel()
    channel.confirm_delivery()
    for number in range(messages):
        channel.basic_publish("", "orders", str(number).encode(), PERSISTENT)


def test_policies_live_and_die_with_the_file(operator: Operator) -> None:
    """POLICY-04, LEN-26, DURABLE-01."""
    broker = operator.broker
    operator.write(vhosts=[{"name": "/"}], queues=[QUEUE], policies=[POLICY])
    broker.start()
    with blocking(broker) as connection:
        fill(connection, 5)
        becomes(lambda: count(connection), 3)
        operator.write(policies=[POLICY | {"definition": {"max-length": 1}}])
        operator.hang_up()
        becomes(lambda: count(connection), 1)
    broker.kill9()
    # The journal knows it, whatever has become of the file.
    operator.write()
    again = BrokerProcess(broker.data_dir.parent)
    again.start()
    with blocking(again) as connection:
        fill(connection, 3)
        becomes(lambda: count(connection), 1)
    assert again.stop() == 0
    # What the file has brought it takes away, even after a restart.
    broker.start()
    with blocking(broker) as connection:
        fill(connection, 3)
        becomes(lambda: count(connection), 4)
        assert broker.stop() == 0
    assert broker.complaints() == []


@pytest.mark.parametrize("is_killed", [False, True], ids=["no restart", "kill -9"])
def test_what_a_policy_has_counted_and_delayed_outlives_it(
    operator: Operator, is_killed: bool
) -> None:
    """REDELIVER-13, REDELIVER-22: the policy is away while the broker starts."""
    broker = operator.broker
    limited = POLICY | {"definition": {"delivery-limit": 2}}
    late = {"delayed-retry-type": "all", "delayed-retry-min": 60_000}
    delayed = POLICY | {"name": "late", "pattern": "^late", "definition": late}
    both = [QUEUE, QUEUE | {"name": "late"}]
    operator.write(queues=both, policies=[limited, delayed])
    broker.start()

    def returned(channel: Any, queue: str) -> int | None:
        """Have the head returned; how often it had been."""
        method, properties, _ = channel.basic_get(queue)
        assert method is not None
        channel.basic_reject(method.delivery_tag, requeue=True)
        return (properties.headers or {}).get("x-delivery-count")

    with blocking(broker) as connection:
        fill(connection, 1)
        channel = connection.channel()
        channel.confirm_delivery()
        for _ in range(2):
            channel.basic_publish("", "late", b"", PERSISTENT)
        assert [returned(channel, "orders") for _ in range(2)] == [None, 1]
        returned(channel, "late")
        becomes(lambda: count(connection, "late"), 1)
        operator.write(queues=[*both, QUEUE | {"name": "read"}])
        operator.hang_up()
        becomes(lambda: has(connection, "read"), True)
        # Its returns are on disk with it.
        channel.basic_publish("", "late", b"", PERSISTENT)
    if is_killed:
        broker.kill9()
        broker.start()
    with blocking(broker) as connection:
        channel = connection.channel()
        assert count(connection, "late") == 2
        operator.write(queues=[QUEUE | {"name": "again"}], policies=[limited, delayed])
        operator.hang_up()
        becomes(lambda: has(connection, "again"), True)
        assert returned(channel, "orders") == 2
        assert channel.basic_get("orders")[0] is None
        assert count(connection, "late") == 2
    assert broker.stop() == 0
    assert broker.complaints() == []


def test_publishers_feel_an_operator_policy_at_once(operator: Operator) -> None:
    """LEN-25: no new connection, no new channel."""
    broker = operator.broker
    operator.write(queues=[QUEUE])
    broker.start()
    with blocking(broker) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        channel.basic_publish("", "orders", b"1")
        definition = {"max-length": 1, "overflow": "reject-publish"}
        value = {"pattern": "", "definition": definition, "apply-to": "queues", "priority": 0}
        row = {"vhost": "/", "component": "operator_policy", "name": "o", "value": value}
        operator.write(parameters=[row])
        operator.hang_up()
        with pytest.raises(pika.exceptions.NackError):
            wait_until(lambda: channel.basic_publish("", "orders", b"2"))


def test_a_fault_is_told_and_nothing_changes(operator: Operator) -> None:
    broker = operator.broker
    broker.forgiven = ("definitions.rejected",)
    operator.write(queues=[QUEUE], policies=[POLICY])
    broker.start()
    fault = POLICY | {"name": "other", "definition": {"max-lenght": 3}}
    operator.write(queues=[QUEUE | {"name": "more"}], policies=[fault])
    operator.hang_up()
    broker.wait_for_log("definitions.rejected")
    line = next(one for one in broker.output().splitlines() if "definitions.rejected" in one)
    assert 'policies[0]: [{<<\\"max-lenght\\">>,3}] are not recognised' in line
    with blocking(broker) as connection:
        fill(connection, 5)
        becomes(lambda: count(connection), 3)
        with pytest.raises(pika.exceptions.ChannelClosedByBroker):
            count(connection, "more")
    assert broker.stop() == 0
    with pytest.raises(StartError) as refused:
        broker.start()
    assert len(str(refused.value).strip().splitlines()) == 1
    assert broker.wait() == 2


@pytest.mark.parametrize(
    ("text", "told"),
    [(None, "No such file or directory"), ("{", "not JSON"), ('{"queues": 1}', "queues: expected")],
)
def test_a_file_that_cannot_be_read(operator: Operator, text: str | None, told: str) -> None:
    if text is not None:
        operator.file.write_text(text)
    with pytest.raises(StartError, match=told):
        operator.broker.start()
    assert operator.broker.wait() == 2


def test_hanging_up_without_a_file_does_no_harm(tmp_path: Path) -> None:
    broker = BrokerProcess(tmp_path)
    broker.start()
    os.kill(broker.pid, signal.SIGHUP)
    with blocking(broker) as connection:
        connection.channel().queue_declare("q")
    assert broker.stop() == 0


def test_users_of_the_file_are_all_there_are(operator: Operator) -> None:
    """HTTP-43."""
    grant = {"user": "shop", "vhost": "/", "configure": ".*", "write": ".*", "read": ".*"}
    operator.write(users=[{"name": "shop", "password": "secret"}], permissions=[grant])
    broker = operator.broker
    broker.start()
    with pytest.raises(pika.exceptions.ProbableAuthenticationError):
        pika.BlockingConnection(pika.URLParameters(broker.url))
    url = broker.url.replace("guest:guest", "shop:secret")
    with pika.BlockingConnection(pika.URLParameters(url)) as connection:
        connection.channel().queue_declare("q")
    assert broker.stop() == 0


def test_what_one_broker_exports_another_loads(operator: Operator, tmp_path: Path) -> None:
    """HTTP-40, HTTP-41: beside the running broker, and offline."""
    broker = operator.broker
    operator.write(vhosts=[{"name": "v"}], queues=[QUEUE], policies=[POLICY])
    broker.start()
    with blocking(broker) as connection:
        channel = connection.channel()
        channel.exchange_declare("x", "topic", durable=True)
        channel.queue_bind("orders", "x", "a.#", {"n": 1})
    texts = [export(broker.data_dir)]
    assert broker.stop() == 0
    texts.append(export(broker.data_dir))
    other = Operator(tmp_path / "other")
    other.file.parent.mkdir()
    other.file.write_text(texts[1])
    other.broker.start()
    texts.append(export(other.broker.data_dir))
    assert other.broker.stop() == 0
    assert texts == [texts[1]] * 3
    assert {row["name"] for row in json.loads(texts[0])["vhosts"]} == {"/", "v"}


def export(data_dir: Path) -> str:
    """What `vouchmq definitions export` prints."""
    done = subprocess.run(
        [sys.executable, "-m", "vouchmq", "definitions", "export", "--data-dir", str(data_dir)],
        cwd=PROJECT,
        env=clean_environment(None),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_export_of_nothing(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "vouchmq", "definitions", "export", "--data-dir", str(tmp_path)],
        cwd=PROJECT,
        env=clean_environment(None),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 2
    assert "contains no VouchMQ journal" in done.stderr


def test_a_file_that_was_applied_before_undoes_nothing(tmp_path: Path) -> None:
    """HTTP-43: neither at a start nor on SIGHUP; any other file is applied as a whole."""
    flags = ("--definitions-skip-if-unchanged", "true", "--log-level", "info")
    operator = Operator(tmp_path, *flags)
    broker = operator.broker
    operator.write(queues=[QUEUE], policies=[POLICY])
    broker.start()
    try:
        with blocking(broker) as connection:
            connection.channel().queue_delete("orders")
        operator.hang_up()
        broker.wait_for_log("definitions.unchanged")
        with blocking(broker) as connection:
            assert not has(connection, "orders")
        broker.kill9()
        broker.start()
        with blocking(broker) as connection:
            assert not has(connection, "orders")
        exported = json.loads(export(broker.data_dir))
        assert exported["global_parameters"] == []
        operator.write(queues=[QUEUE, QUEUE | {"name": "late"}], policies=[POLICY])
        operator.hang_up()
        with blocking(broker) as connection:
            wait_until(lambda: has(connection, "late"))
            assert has(connection, "orders")
    finally:
        broker.kill9()
