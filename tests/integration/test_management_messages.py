"""Looking at messages over HTTP without consuming them (HTTP-20), and the switch of the ledger."""

from __future__ import annotations

import base64
import time
from collections.abc import Iterator
from pathlib import Path

import pika
import pytest

from tests.integration.management import ManagedBroker, managed_broker, quoted
from tests.waiting import wait_until
from vouchmq.management.resources.messages import text_of


@pytest.fixture(scope="module")
def managed(module_path: Path) -> Iterator[ManagedBroker]:
    with managed_broker(module_path) as broker:
        yield broker


def test_messages_are_shown_and_stay_as_they_are(managed: ManagedBroker) -> None:
    before_ms = time.time() * 1000
    with pika.BlockingConnection(pika.URLParameters(managed.process.url)) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        channel.queue_declare("shown", durable=True)
        properties = pika.BasicProperties(content_type="text/plain", headers={"n": 1})
        for body in (b"first", "zweite \u00e4".encode(), b"\xff\x00"):
            channel.basic_publish("", "shown", body, properties)
        path = "/queues/%2F/shown/messages"
        rows = managed.get(path)
        assert [each["payload"] for each in rows] == ["first", "zweite \u00e4", "/wA="]
        assert [each["payload_encoding"] for each in rows] == ["string", "string", "base64"]
        assert [each["position"] for each in rows] == [0, 1, 2]
        first = rows[0]
        assert first["properties"] == {"content_type": "text/plain", "headers": {"n": 1}}
        assert (first["exchange"], first["routing_key"]) == ("", "shown")
        assert (first["state"], first["redelivered"]) == ("ready", False)
        # The journal's clock and that of the system may differ by a second.
        assert abs(first["arrived_at"] - before_ms) < 60_000
        assert "held_by" not in first
        [cut] = managed.get(f"{path}?first=1&count=1&body_bytes=8")
        assert (cut["payload"], cut["payload_bytes"]) == ("zweite ", 9)
        [plain] = managed.get(f"{path}?count=1&encoding=base64")
        assert base64.b64decode(plain["payload"]) == b"first"
        # Nothing has been consumed, nor marked.
        method, _, body = channel.basic_get("shown")
        assert (body, method.redelivered) == (b"first", False)
        [held] = managed.get(f"{path}?state=unacknowledged")
        assert held["held_by"]["delivery_tag"] == method.delivery_tag
        assert held["held_by"]["channel"] == managed.get("/channels")[0]["name"]


def test_wrong_parameters_and_names_are_refused(managed: ManagedBroker) -> None:
    for query in ("state=all", "first=-1", "count=0", "count=1001", "count=x", "more=1"):
        got = managed.ask("GET", f"/queues/%2F/shown/messages?{query}")
        assert (got.status, got.body["error"]) == (400, "bad_request")
    assert managed.ask("GET", "/queues/%2F/none/messages").status == 404
    assert managed.ask("GET", "/queues/none/none/messages").status == 404


@pytest.mark.parametrize(
    ("body", "size", "shown"),
    [
        (b"", 0, ("", "string")),
        ("\u20ac".encode()[:2], 3, ("", "string")),
        (b"ab\xe2\x82", 10, ("ab", "string")),
        (b"ab\xe2\x82", 4, ("YWLigg==", "base64")),
        (b"\xffabcd", 100, ("/2FiY2Q=", "base64")),
    ],
)
def test_a_cut_through_a_character_leaves_text(
    body: bytes, size: int, shown: tuple[str, str]
) -> None:
    assert text_of(body, size, "auto") == shown


def test_the_ledger_is_switched(managed: ManagedBroker) -> None:
    assert managed.get("/ledger")["on"] is False
    assert managed.ask("PUT", "/ledger", {"on": True}).status == 204
    assert managed.get("/ledger")["on"] is True
    assert managed.ask("PUT", "/ledger", {"on": False}).status == 204
    assert managed.get("/ledger")["on"] is False
    assert managed.ask("PUT", "/ledger", {"on": "yes"}).status == 400


def test_a_queue_is_paused_and_goes_on(managed: ManagedBroker) -> None:
    path = "/queues/%2F/halted"
    with pika.BlockingConnection(pika.URLParameters(managed.process.url)) as connection:
        channel = connection.channel()
        channel.queue_declare("halted", durable=True)
        got: list[bytes] = []
        channel.basic_consume("halted", lambda _c, _m, _p, body: got.append(body), auto_ack=True)
        for _ in range(2):
            assert managed.ask("PUT", f"{path}/pause").status == 204
        assert managed.get(path)["state"] == "paused"
        channel.basic_publish("", "halted", b"kept")
        assert managed.get(path)["messages_ready"] == 1
        assert managed.ask("PUT", f"{path}/resume").status == 204
        wait_until(lambda: connection.process_data_events(0) or got)
        assert got == [b"kept"]
        assert managed.get(path)["state"] == "running"
    assert managed.ask("PUT", "/queues/%2F/none/pause").status == 404


def test_messages_are_moved_copied_and_returned(managed: ManagedBroker) -> None:
    with pika.BlockingConnection(pika.URLParameters(managed.process.url)) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        channel.queue_declare("dead", durable=True)
        dead = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}
        channel.queue_declare("source", durable=True, arguments=dead)
        channel.queue_declare("target", durable=True)
        for number in range(4):
            channel.basic_publish("", "source", b"%d" % number)

        def contents(name: str) -> list[str]:
            return [each["payload"] for each in managed.get(f"/queues/%2F/{name}/messages")]

        path = "/queues/%2F/source"
        moved = managed.ask("POST", f"{path}/move", {"to_queue": "target", "count": 1})
        assert (moved.status, moved.body) == (200, {"moved": 1, "stopped": ""})
        third = managed.get(f"{path}/messages")[1]["id"]
        assert managed.ask("POST", f"{path}/move", {"to_queue": "target", "ids": [third]}).body == {
            "moved": 1,
            "stopped": "",
        }
        copy = {"to_queue": "target", "keep": True, "count": 1}
        assert managed.ask("POST", f"{path}/move", copy).body["moved"] == 1
        assert (contents("source"), contents("target")) == (["1", "3"], ["0", "2", "1"])
        for _ in range(2):
            method, _, _ = channel.basic_get("source")
            channel.basic_reject(method.delivery_tag, requeue=False)
        managed.process.wait_until(lambda: contents("dead") == ["1", "3"])
        back = managed.ask("POST", "/queues/%2F/dead/return-dead-letters", {})
        assert back.body == {"moved": 2, "stopped": ""}
        assert (contents("source"), contents("dead")) == (["1", "3"], [])
    for body in ({}, {"to_queue": "target", "to_exchange": ""}, {"to_queue": "target", "count": 0}):
        assert managed.ask("POST", f"{path}/move", body).status == 400
    assert managed.ask("POST", f"{path}/move", {"to_queue": "none"}).status == 404


def test_names_may_have_any_characters(managed: ManagedBroker) -> None:
    queue, exchange = quoted("a/b % \u00e4 \u20ac"), quoted("x y?&=#")
    assert managed.ask("PUT", f"/queues/%2F/{queue}", {}).status == 201
    assert managed.ask("PUT", f"/exchanges/%2F/{exchange}", {"type": "topic"}).status == 201
    binding = f"/bindings/%2F/e/{exchange}/q/{queue}"
    assert managed.ask("POST", binding, {"routing_key": "\u00e4 *"}).status == 201
    assert (
        managed.ask(
            "POST",
            f"/queues/%2F/{queue}/get",
            {"count": 1, "ackmode": "ack_requeue_true", "encoding": "auto"},
        ).body
        == []
    )
    [bound] = managed.get(binding)
    key = quoted(bound["properties_key"])
    assert managed.ask("DELETE", f"{binding}/{key}").status == 204
    assert managed.ask("DELETE", f"/queues/%2F/{queue}/contents").status == 204
    assert managed.ask("DELETE", f"/exchanges/%2F/{exchange}").status == 204
    assert managed.ask("DELETE", f"/queues/%2F/{queue}").status == 204
