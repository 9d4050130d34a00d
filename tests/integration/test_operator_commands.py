"""Commands of operators over the real control socket."""

from __future__ import annotations

import json
import threading

import pika
import pytest

from tests.integration.broker_process import BrokerProcess, run_command
from vouchmq.server.edge.control import client as control


def test_what_is_declared_and_answered_outlives_a_kill(broker: BrokerProcess) -> None:
    directory = broker.data_dir
    asked = control.ask(directory, "put queue", name="q", arguments={"x-max-length": 5})
    assert asked["ok"], asked
    assert control.ask(directory, "put exchange", name="x", type="topic")["created"]
    assert control.ask(directory, "put binding", source="x", destination="q", routing_key="a.*")[
        "ok"
    ]
    broker.kill9()
    broker.start()
    [queue] = broker.listed("queues")
    assert (queue["name"], queue["arguments"]) == ("q", {"x-max-length": 5})
    [binding] = broker.listed("bindings")
    assert (binding["source"], binding["routing_key"]) == ("x", "a.*")
    assert control.ask(directory, "delete queue", name="q")["messages"] == 0
    assert control.ask(directory, "delete queue", name="q")["code"] == 404
    refused = control.ask(directory, "delete exchange", name="x", user="nobody", origin="192.0.2.7")
    assert refused["code"] == 403


def test_a_client_learns_why_its_connection_was_closed(broker: BrokerProcess) -> None:
    connection = pika.BlockingConnection(pika.URLParameters(broker.url))
    [row] = broker.listed("connections")
    name = str(row["name"])
    asked = control.ask(broker.data_dir, "close connection", name=name, reason="maintenance")
    assert asked == {"ok": True}
    with pytest.raises(pika.exceptions.ConnectionClosedByBroker) as closed:
        connection.process_data_events(time_limit=30)
    assert (closed.value.reply_code, closed.value.reply_text) == (
        320,
        "CONNECTION_FORCED - maintenance",
    )


def test_what_was_published_is_there_after_a_kill(broker: BrokerProcess) -> None:
    directory = broker.data_dir
    assert control.ask(directory, "put queue", name="q")["ok"]
    sent = {"delivery_mode": 2, "headers": {"n": 1}}
    asked = control.ask(directory, "publish", routing_key="q", body=b"kept", properties=sent)
    assert asked == {"ok": True, "routed": True}
    broker.kill9()
    broker.start()
    asked = control.ask(directory, "wait queue", name="q", counts={"messages_ready": 1})
    assert asked["queue"]["messages"] == 1
    row, answer = control.ask_rows(directory, "get", name="q", ackmode="ack_requeue_false")
    assert (row["body"], row["properties"]) == (b"kept", sent)
    assert answer["count"] == 1
    assert control.ask(directory, "get", name="q") == {"ok": True, "count": 0}


@pytest.mark.parametrize("arrived", [1, 5000])
def test_a_kill_in_the_midst_of_a_move_leaves_each_message_once(
    broker: BrokerProcess, arrived: int
) -> None:
    directory, count = broker.data_dir, 20_000
    source, target = f"from{arrived}", f"to{arrived}"
    for name in (source, target):
        control.ask(directory, "put queue", name=name)
    with pika.BlockingConnection(pika.URLParameters(broker.url)) as connection:
        channel = connection.channel()
        persistent = pika.BasicProperties(delivery_mode=2)
        for number in range(count):
            channel.basic_publish("", source, b"%06d" % number, persistent)
        channel.confirm_delivery()
        channel.basic_publish("", source, b"%06d" % count, persistent)

    def move() -> None:
        with pytest.raises(control.NoBrokerError):
            control.ask(directory, "move", name=source, to_queue=target)

    mover = threading.Thread(target=move)
    mover.start()
    # One whose answer comes from beside the move: it has begun by then.
    control.ask(directory, "wait queue", name=target, counts={"messages": arrived}, at_least=True)
    broker.kill9()
    mover.join()
    broker.start()
    found: list[bytes] = []
    for name in (target, source):
        rows = [
            row["body"]
            for first in range(0, count + 1, 10_000)
            for row in control.ask_rows(directory, "peek", name=name, first=first, count=10_000)
            if "body" in row
        ]
        found += rows
    assert found == [b"%06d" % number for number in range(count + 1)]


def test_the_command_line_looks_and_moves(broker: BrokerProcess) -> None:
    where = ("--data-dir", str(broker.data_dir))

    def said(*words: str, code: int = 0) -> str:
        done = run_command(*words, *where)
        assert done.returncode == code, done.stderr
        return done.stdout

    for name in ("orders", "archive"):
        said("declare", "queue", name)
    for body in ("one", "two", "three"):
        said("publish", "--routing-key", "orders", body)
    rows = [json.loads(line) for line in said("peek", "orders", "--json").splitlines()]
    assert [row["body"] for row in rows] == ["one", "two", "three"]
    chosen = str(rows[1]["id"])
    assert said("move", "orders", "--to-queue", "archive", "--id", chosen) == "1 message moved\n"
    assert "   two\n" in said("peek", "archive")
    expected = (
        "0 messages moved\nthen stopped: the next message is no dead letter: it has no x-death\n"
    )
    assert said("move", "orders", "--back", code=1) == expected
    copied = said("move", "orders", "--to-queue", "archive", "--keep")
    assert copied == "2 messages copied\n"
    said("peek", code=2)
    said("move", "orders", code=2)
    said("peek", "none", code=1)
