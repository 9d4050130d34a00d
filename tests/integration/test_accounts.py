"""Users and virtual hosts changed over the control socket of a real process, and kill -9."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pika
import pika.exceptions
import pytest

from tests.integration.broker_process import BrokerProcess
from vouchmq.server.edge.control import client as control


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    """One of its own: others need the users that go here."""
    process = BrokerProcess(tmp_path, flags=["--log-level", "info"])
    process.start()
    yield process
    process.stop()


EVERYTHING = {"configure": ".*", "write": ".*", "read": ".*"}


def do(broker: BrokerProcess, command: str, **arguments: Any) -> dict[str, Any]:
    """The answer to a change that is made."""
    answer = control.ask(broker.data_dir, command, **arguments)
    assert answer["ok"], answer
    return answer


def connect(broker: BrokerProcess, user: str, password: str, vhost: str) -> pika.BlockingConnection:
    parameters = pika.URLParameters(broker.url)
    parameters.credentials = pika.PlainCredentials(user, password)
    parameters.virtual_host = vhost
    return pika.BlockingConnection(parameters)


@contextmanager
def connected(
    broker: BrokerProcess, user: str, password: str, vhost: str = "/"
) -> Iterator[pika.BlockingConnection]:
    connection = connect(broker, user, password, vhost)
    try:
        yield connection
    finally:
        if connection.is_open:
            connection.close()


def test_what_was_answered_outlives_a_kill(broker: BrokerProcess) -> None:
    """AUTH-01, AUTH-02, VHOST-05."""
    do(broker, "put user", name="shop", password="s\u00e9cret", tags=["monitoring"])
    do(broker, "put vhost", name="orders", tags=["a"])
    do(broker, "put permissions", name="shop", vhost="orders", **EVERYTHING)
    do(broker, "put vhost", name="old")
    do(broker, "delete vhost", name="old")
    do(broker, "delete user", name="guest")
    for _ in range(2):
        broker.kill9()
        broker.start()
        assert [row["name"] for row in broker.listed("users")] == ["shop"]
        [row] = broker.listed("users")
        assert row["hashing_algorithm"] == "rabbit_password_hashing_scrypt"
        assert "password_hash" not in row
        assert [row["name"] for row in broker.listed("vhosts")] == ["/", "orders"]
        with connected(broker, "shop", "s\u00e9cret", "orders") as connection:
            connection.channel().queue_declare("q", durable=True)
        for user, password in (("shop", "wrong"), ("guest", "guest"), ("shop", "")):
            with pytest.raises(pika.exceptions.ProbableAuthenticationError):
                connect(broker, user, password, "orders")


def test_many_logins_with_a_slow_hash_at_once(broker: BrokerProcess) -> None:
    """All wait for the first check, and another user's client is served meanwhile."""
    do(broker, "put user", name="shop", password="secret")
    do(broker, "put permissions", name="shop", vhost="/", **EVERYTHING)
    broker.kill9()
    broker.start()
    with connected(broker, "guest", "guest") as other:
        channel = other.channel()
        parameters = pika.URLParameters(broker.url)
        parameters.credentials = pika.PlainCredentials("shop", "secret")
        opened: list[object] = []
        closed: list[object] = []

        def count(connection: Any, *why: object) -> None:
            opened.append(why[0] if why else None)
            if len(opened) == 30:
                connection.ioloop.stop()

        def count_closed(connection: Any, _why: object) -> None:
            closed.append(connection)
            if len(closed) == 30:
                connection.ioloop.stop()

        def opening(ioloop: Any = None) -> pika.SelectConnection:
            return pika.SelectConnection(parameters, count, count, count_closed, ioloop)

        first = opening()
        connections = [first, *(opening(first.ioloop) for _ in range(29))]
        channel.queue_declare("meanwhile", exclusive=True)
        first.ioloop.start()
        assert opened == [None] * 30
        assert len(broker.listed("connections")) == 31
        for each in connections:
            each.close()
        first.ioloop.start()
        first.ioloop.close()


def test_whoever_is_deleted_learns_why(broker: BrokerProcess) -> None:
    """CONN-56."""
    do(broker, "put vhost", name="orders")
    do(broker, "put permissions", name="guest", vhost="orders", **EVERYTHING)
    with connected(broker, "guest", "guest", "orders") as connection:
        connection.channel().queue_declare("q", durable=True)
        do(broker, "delete vhost", name="orders")
        with pytest.raises(pika.exceptions.ConnectionClosedByBroker) as closed:
            connection.process_data_events(time_limit=30)
        assert closed.value.reply_text == "CONNECTION_FORCED - vhost 'orders' is deleted"
    with pytest.raises(pika.exceptions.ProbableAccessDeniedError, match="vhost orders not found"):
        connect(broker, "guest", "guest", "orders")


def test_a_change_says_who_asked_for_it(broker: BrokerProcess) -> None:
    do(broker, "put user", name="boss", password="x", tags=["administrator"])
    do(broker, "put vhost", name="v", user="boss", origin="192.0.2.7")
    broker.wait_for_log("admin.vhost_set")
    lines = [line for line in broker.output().splitlines() if line.startswith("{")]
    [event] = [each for each in map(json.loads, lines) if each["event"] == "admin.vhost_set"]
    assert (event["user"], event["origin"], event["vhost"]) == ("boss", "192.0.2.7", "v")
    refused = control.ask(broker.data_dir, "put vhost", name="w", user="guestt")
    assert refused["code"] == 401
