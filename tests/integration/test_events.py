"""Events of a running broker, as a command and as server-sent events get them."""

from __future__ import annotations

import json
import select
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pika
import pytest

from tests.integration.broker_process import BrokerProcess, clean_environment
from tests.integration.management import EventStream, ManagedBroker, managed_broker, quoted
from tests.waiting import LIMIT_S
from vouchmq.management.api.streams import MOST_STREAMS
from vouchmq.management.api.streams import MOST_STREAMS_OF_USER as OF_ONE

CONFIGURATION = """
[[vhosts]]
name = "other"
[[users]]
name = "guest"
password = "guest"
tags = ["administrator"]
vhosts = ["/", "other"]
[[users]]
name = "limited"
password = "limited"
tags = ["management"]
vhosts = ["other"]
"""


@pytest.fixture
def managed(tmp_path: Path) -> Iterator[ManagedBroker]:
    (tmp_path / "c.toml").write_text(CONFIGURATION)
    with managed_broker(tmp_path, "--config", str(tmp_path / "c.toml")) as broker:
        yield broker


def make_queue(managed: ManagedBroker, vhost: str, name: str) -> None:
    parameters = pika.URLParameters(managed.process.url)
    parameters.virtual_host = vhost
    with pika.BlockingConnection(parameters) as connection:
        connection.channel().queue_declare(name, durable=True)


def test_server_sent_events_of_all_and_of_a_virtual_host(managed: ManagedBroker) -> None:
    every, other = (
        EventStream(managed, "/events?event=queue"),
        EventStream(managed, "/events/other"),
    )
    own = EventStream(managed, "/events", "limited")
    make_queue(managed, "/", "here")
    make_queue(managed, "other", "there")
    event, facts = every.next()
    assert facts.pop("time_ms") > 0
    assert (event, facts) == ("queue.created", {"vhost": "/", "name": "here", "durable": True})
    assert every.next()[1]["name"] == "there"
    assert [other.next()[0] for _ in range(3)] == [
        "connection.created",
        "channel.created",
        "queue.created",
    ]
    # The connection and channel are somebody else's.
    assert own.next()[0] == "queue.created"
    for stream in (every, other, own):
        stream.close()


def test_who_may_not_enter_a_virtual_host_hears_nothing_of_it(managed: ManagedBroker) -> None:
    assert managed.ask("GET", "/events/%2F", user="limited", password="limited").status == 404
    assert managed.ask("GET", "/events/moon").status == 404
    assert managed.ask("HEAD", "/events").status == 200


def test_streams_leave_room_for_others(managed: ManagedBroker) -> None:
    """Of a user for other users, and of all for requests that are none."""
    users = ["guest", "limited", *(f"user {n}" for n in range(MOST_STREAMS // OF_ONE - 1))]
    for user in users[2:]:
        managed.ask("PUT", f"/users/{quoted(user)}", {"password": user, "tags": "monitoring"})
    streams = []
    for user in users[:-1]:
        streams += [EventStream(managed, "/events?event=nothing", user) for _ in range(OF_ONE)]
        refused = managed.ask("GET", "/events", user=user)
        assert (refused.status, refused.body) == (
            429,
            {
                "error": "too_many_requests",
                "reason": f"user '{user}' has {OF_ONE} streams open, and that is the limit",
            },
        )
    assert len(streams) == MOST_STREAMS
    refused = managed.ask("GET", "/events", user=users[-1])
    assert (refused.status, refused.body["error"]) == (503, "service_unavailable")
    assert managed.get("/whoami")["name"] == "guest"
    streams.pop().close()
    managed.process.wait_until(lambda: managed.ask("HEAD", "/events", user=users[-1]).status == 200)
    # One that is refused, and one of which only the head is asked for, count for nothing.
    streams.append(EventStream(managed, "/events?event=nothing", users[-1]))
    assert managed.ask("HEAD", "/events", user=users[-1]).status == 503
    for stream in streams:
        stream.close()


def test_a_stop_with_open_streams_is_clean(managed: ManagedBroker) -> None:
    """The fixture looks for complaints."""
    streams = [EventStream(managed, "/events?event=nothing") for _ in range(3)]
    assert managed.process.stop() == 0
    for stream in streams:
        assert stream.rest() == b""
        stream.close()


def test_a_stream_and_a_command_end_with_the_broker(tmp_path: Path) -> None:
    managed = ManagedBroker(tmp_path)
    try:
        stream = EventStream(managed, "/events?event=nothing")
        with watching(managed.process) as command:
            managed.process.kill9()
            # The management process goes with the broker.
            assert stream.rest() == b""
            _, complaint = command.communicate(timeout=LIMIT_S)
        assert command.returncode == 2
        assert complaint.startswith("vouchmq: no broker runs on data directory")
        stream.close()
    finally:
        managed.process.kill9()


def watching(broker: BrokerProcess) -> subprocess.Popen[str]:
    """A command that shows the events of queues, and has seen some already."""
    command = subprocess.Popen(
        [
            *(sys.executable, "-m", "vouchmq", "watch", "queue", "--json"),
            *("--data-dir", str(broker.data_dir)),
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=clean_environment(),
        text=True,
    )
    assert command.stdout is not None
    # It says nothing when it begins; so there are events until it has seen one.
    with pika.BlockingConnection(pika.URLParameters(broker.url)) as connection:
        channel = connection.channel()
        while not select.select([command.stdout], [], [], 0.05)[0]:
            assert command.poll() is None
            channel.queue_declare("", exclusive=True)
        event = json.loads(command.stdout.readline())
    assert event["event"] == "queue.created"
    assert event["facts"]["name"].startswith("amq.gen-")
    return command
