"""Somebody removes files of a running broker: it says so and ends, and confirms nothing more.

What is written to a file without a name is not found again, however well it is synced.
Spec: DURABLE-23
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pamqp.commands as amqp
import pytest

from tests.integration.broker_process import BrokerProcess
from tests.integration.raw_client import PeerClosedError, RawClient, content

MOST_PUBLISHES = 100_000


def remove_segments(data: Path) -> None:
    for path in data.glob("*.journal"):
        path.unlink()


def remove_all(data: Path) -> None:
    shutil.rmtree(data)


def move_away(data: Path) -> None:
    data.rename(data.with_name("moved"))


def replace(data: Path) -> None:
    move_away(data)
    shutil.copytree(data.with_name("moved"), data, ignore=shutil.ignore_patterns("*.sock*"))


@pytest.fixture
def broker(
    referee_url: str | None, tmp_path: Path, request: pytest.FixtureRequest
) -> BrokerProcess:
    """A running broker."""
    if referee_url is not None:
        pytest.skip("removes VouchMQ's own files")
    broker = BrokerProcess(tmp_path)
    broker.forgiven = ("store.failed",)
    request.addfinalizer(broker.kill9)
    broker.start()
    return broker


def assert_ended(broker: BrokerProcess) -> None:
    """In order, with a line that says why."""
    assert broker.wait() == 1
    lines = [json.loads(line) for line in broker.output().splitlines() if line.startswith("{")]
    (told,) = (line for line in lines if line["event"] == "store.failed")
    assert str(broker.data_dir) in told["reason"]
    assert broker.complaints() == []


@pytest.mark.parametrize("harm", [remove_segments, remove_all, move_away, replace])
def test_a_busy_broker_confirms_nothing_more_and_ends(
    broker: BrokerProcess, harm: Callable[[Path], None]
) -> None:
    confirmed = 0
    with RawClient(broker.url).handshake() as client:
        client.open_channel()
        client.call(1, amqp.Queue.Declare(queue="q", durable=True), amqp.Queue.DeclareOk)
        client.call(1, amqp.Confirm.Select(), amqp.Confirm.SelectOk)
        with pytest.raises((PeerClosedError, OSError, AssertionError)):
            while confirmed < MOST_PUBLISHES:
                client.send(content(1, "", "q", b"x", persistent=True))
                client.confirmed_up_to(confirmed + 1)
                confirmed += 1
                if confirmed == 10:
                    harm(broker.data_dir)
    assert 10 <= confirmed < MOST_PUBLISHES
    assert_ended(broker)


def test_an_idle_broker_notices_too(broker: BrokerProcess) -> None:
    remove_segments(broker.data_dir)
    assert_ended(broker)
