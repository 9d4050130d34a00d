"""What can be changed over the HTTP API, and by whom (HTTP-05, HTTP-16 … HTTP-31)."""

from __future__ import annotations

import base64
import json
import shutil
import subprocess
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pika
import pika.exceptions
import pytest

from tests.integration.management import ManagedBroker, managed_broker, quoted
from tests.waiting import LIMIT_S

QUEUE = "/queues/%2F/q"
EXCHANGE = "/exchanges/%2F/x"
ADMIN = shutil.which("rabbitmqadmin") or ""


@pytest.fixture(scope="module")
def managed(module_path: Path) -> Iterator[ManagedBroker]:
    with managed_broker(module_path) as broker:
        yield broker


def refusal(managed: ManagedBroker, method: str, path: str, body: object) -> tuple[int, str]:
    """Status and reason of what is refused."""
    got = managed.ask(method, path, body)
    return got.status, got.body["reason"]


def test_objects_and_messages(managed: ManagedBroker) -> None:
    arguments = {"arguments": {"x-max-length": 9}, "durable": "true"}
    assert managed.ask("PUT", QUEUE, arguments).status == 201
    assert managed.ask("PUT", QUEUE, arguments).status == 204
    assert refusal(managed, "PUT", QUEUE, {"durable": False}) == (
        400,
        "inequivalent arg 'durable' for queue 'q' in vhost '/': received 'false' but current is "
        "'true'",
    )
    assert managed.ask("PUT", EXCHANGE, {"type": "topic"}).status == 201
    assert refusal(managed, "PUT", EXCHANGE, {}) == (400, "[{key_missing,type}]")
    bound = managed.ask("POST", "/bindings/%2F/e/x/q/q", {"routing_key": "a/b", "arguments": {}})
    assert (bound.status, bound.headers["location"]) == (201, "q/a%252Fb")
    message = {
        "routing_key": "a/b",
        "properties": {"delivery_mode": 2, "headers": {"n": 1}},
        "payload": base64.b64encode(b"\xff").decode(),
        "payload_encoding": "base64",
    }
    assert managed.ask("POST", f"{EXCHANGE}/publish", message).body == {"routed": True}
    text = {**message, "payload": "text", "payload_encoding": "string", "properties": {}}
    assert managed.ask("POST", f"{EXCHANGE}/publish", text).body == {"routed": True}
    lost = {**text, "routing_key": "nowhere"}
    assert managed.ask("POST", f"{EXCHANGE}/publish", lost).body == {"routed": False}
    wanted = {"count": 5, "ackmode": "ack_requeue_false", "encoding": "auto", "truncate": 3}
    got = managed.ask("POST", f"{QUEUE}/get", wanted).body
    assert [(each["payload"], each["payload_encoding"]) for each in got] == [
        *(("/w==", "base64"), ("tex", "string"))
    ]
    assert got[0]["properties"] == {"delivery_mode": 2, "headers": {"n": 1}}
    assert (got[1]["properties"], got[1]["payload_bytes"]) == ([], 4)
    assert managed.get(QUEUE)["messages"] == 0
    managed.ask("POST", f"{EXCHANGE}/publish", text)
    assert managed.ask("DELETE", f"{QUEUE}?if-empty=true").status == 400
    assert managed.ask("DELETE", f"{QUEUE}/contents").status == 204
    assert managed.get(QUEUE)["messages"] == 0
    key = managed.get("/bindings/%2F/e/x/q/q")[0]["properties_key"]
    assert managed.ask("DELETE", f"/bindings/%2F/e/x/q/q/{quoted(key)}").status == 204
    assert managed.get("/bindings/%2F/e/x/q/q") == []
    for path in (f"{QUEUE}?if-empty=true", EXCHANGE):
        assert managed.ask("DELETE", path).status == 204
        assert managed.ask("DELETE", path).status == 404


@pytest.mark.parametrize(
    "method, path, body, status, reason",
    [
        ("PUT", QUEUE, b"{", 400, "not_json"),
        ("PUT", QUEUE, b"[]", 400, "not_json"),
        ("PUT", QUEUE, {"durable": 7}, 400, "Expected `bool | str`, got `int` - at `$.durable`"),
        (
            "PUT",
            "/permissions/%2F/guest",
            {"configure": ""},
            400,
            "[{key_missing,write},{key_missing,read}]",
        ),
        (
            "PUT",
            "/permissions/%2F/nobody",
            {"configure": "", "write": "", "read": ""},
            400,
            "vhost_or_user_not_found",
        ),
        (
            "PUT",
            "/permissions/nope/guest",
            {"configure": "", "write": "", "read": ""},
            400,
            "vhost_or_user_not_found",
        ),
        ("PUT", "/users/u", {"password": "x"}, 400, "tags_not_present"),
        (
            "PUT",
            "/parameters/shovel/%2F/s",
            {"value": {}},
            400,
            "Validation failed\n\ncomponent shovel not found\n",
        ),
        (
            "DELETE",
            "/exchanges/%2F/amq.direct",
            None,
            401,
            "deletion of system exchange 'amq.direct' in vhost '/' not allowed",
        ),
        ("POST", "/bindings/%2F/e/amq.direct/q/nope", {}, 404, "no queue 'nope' in vhost '/'"),
        ("PUT", "/queues/nope/q", {}, 404, "vhost_not_found"),
        ("DELETE", "/users/nobody", None, 404, "Not Found"),
        ("DELETE", "/policies/%2F/nope", None, 404, "Not Found"),
        (
            "POST",
            "/exchanges/%2F/nope/publish",
            {"routing_key": "", "properties": {}, "payload": "", "payload_encoding": "string"},
            400,
            "404 NOT_FOUND - no exchange 'nope' in vhost '/'",
        ),
    ],
)
def test_refusals_have_rabbitmqs_texts(
    managed: ManagedBroker, method: str, path: str, body: object, status: int, reason: str
) -> None:
    assert refusal(managed, method, path, body) == (status, reason)


def test_users_permissions_and_limits(managed: ManagedBroker) -> None:
    new = {"password": "secret", "tags": "management, policymaker"}
    assert managed.ask("PUT", "/users/ann", new).status == 201
    assert managed.ask("PUT", "/users/ann", new).status == 204
    ann = managed.get("/users/ann")
    assert (sorted(ann["tags"]), ann["limits"]) == (["management", "policymaker"], {})
    assert [each["name"] for each in managed.get("/users/without-permissions")] == ["ann"]
    assert managed.get("/whoami", user="ann", password="secret")["name"] == "ann"
    assert managed.ask("GET", QUEUE, user="ann", password="secret").status == 404
    grant = {"configure": "^ann", "write": "^ann", "read": ".*"}
    assert managed.ask("PUT", "/permissions/%2F/ann", grant).status == 201
    assert managed.get("/permissions/%2F/ann") == {"user": "ann", "vhost": "/", **grant}
    assert managed.get("/users/ann/permissions") == [managed.get("/permissions/%2F/ann")]
    mine = managed.ask("PUT", "/queues/%2F/ann.q", {}, user="ann", password="secret")
    assert mine.status == 201
    others = managed.ask("PUT", "/queues/%2F/other", {}, user="ann", password="secret")
    assert (others.status, others.body["error"]) == (401, "not_authorised")
    assert "configure access to queue 'other'" in others.body["reason"]
    assert managed.ask("PUT", "/users/bob", new, user="ann", password="secret").status == 401
    assert managed.ask("PUT", "/user-limits/ann/max-channels", {"value": 3}).status == 204
    assert managed.get("/user-limits") == [{"user": "ann", "value": {"max-channels": 3}}]
    assert managed.ask("DELETE", "/user-limits/ann/max-channels").status == 204
    assert managed.get("/user-limits/ann") == []
    hashed = managed.get("/auth/hash_password/other")["ok"]
    again = {"password_hash": hashed, "tags": []}
    assert managed.ask("PUT", "/users/ann", again).status == 204
    assert managed.ask("GET", "/whoami", user="ann", password="secret").status == 401
    # Without a tag the right password opens nothing.
    got = managed.ask("GET", "/whoami", user="ann", password="other")
    assert (got.status, got.body["reason"]) == (401, "Not management user")
    assert managed.ask("DELETE", "/queues/%2F/ann.q").status == 204
    assert managed.ask("DELETE", "/permissions/%2F/ann").status == 204
    assert managed.ask("POST", "/users/bulk-delete", {"users": ["ann", "nobody"]}).status == 204
    assert managed.ask("GET", "/users/ann").status == 404


def test_virtual_hosts(managed: ManagedBroker) -> None:
    body = {"description": "d", "tags": "a,b", "default_queue_type": "quorum"}
    assert managed.ask("PUT", "/vhosts/v", body).status == 201
    shown = managed.get("/vhosts/v")
    assert (shown["description"], shown["tags"]) == ("d", ["a", "b"])
    assert shown["default_queue_type"] == "quorum"
    # Who makes one may use it.
    assert managed.get("/permissions/v/guest")["configure"] == ".*"
    assert managed.ask("PUT", "/vhost-limits/v/max-queues", {"value": 1}).status == 204
    assert managed.get("/vhost-limits/v") == [{"vhost": "v", "value": {"max-queues": 1}}]
    assert managed.ask("POST", "/vhosts/v/deletion/protection").status == 204
    assert managed.ask("DELETE", "/vhosts/v").status == 412
    assert managed.ask("DELETE", "/vhosts/v/deletion/protection").status == 204
    assert managed.ask("DELETE", "/vhosts/v").status == 204
    assert managed.ask("GET", "/vhosts/v").status == 404


def test_policies_take_effect(managed: ManagedBroker) -> None:
    managed.ask("PUT", "/queues/%2F/limited", {})
    policy = {"pattern": "^lim", "definition": {"max-length": 1}, "apply-to": "queues"}
    assert managed.ask("PUT", "/policies/%2F/p", policy).status == 201
    assert managed.get("/policies/%2F/p") == {
        "vhost": "/",
        "name": "p",
        "priority": 0,
        **policy,
    }
    shown = managed.get("/queues/%2F/limited")
    assert (shown["policy"], shown["effective_policy_definition"]) == ("p", {"max-length": 1})
    operator = {"pattern": "^lim", "definition": {"expires": 99999}}
    assert managed.ask("PUT", "/operator-policies/%2F/o", operator).status == 201
    assert managed.get("/queues/%2F/limited")["operator_policy"] == "o"
    for path in ("/policies/%2F/p", "/operator-policies/%2F/o", "/queues/%2F/limited"):
        assert managed.ask("DELETE", path).status == 204


def test_definitions_come_back(managed: ManagedBroker) -> None:
    managed.ask("PUT", "/queues/%2F/kept", {"arguments": {"x-max-length": 3}})
    managed.ask("POST", "/bindings/%2F/e/amq.topic/q/kept", {"routing_key": "k.#"})
    whole = managed.get("/definitions")
    assert [each["name"] for each in whole["queues"]] == ["kept"]
    of_vhost = managed.get("/definitions/%2F")
    assert "users" not in of_vhost
    assert managed.ask("DELETE", "/queues/%2F/kept").status == 204
    assert managed.ask("POST", "/definitions", whole).status == 204
    assert managed.get("/definitions") == whole
    managed.ask("DELETE", "/queues/%2F/kept")
    form = (
        b'--b\r\nContent-Disposition: form-data; name="file"; filename="d.json"\r\n\r\n'
        + json.dumps(of_vhost).encode()
        + b"\r\n--b--\r\n"
    )
    kind = {"Content-Type": "multipart/form-data; boundary=b"}
    assert managed.ask("POST", "/definitions/%2F", form, headers=kind).status == 204
    assert managed.get("/queues/%2F/kept")["arguments"] == {"x-max-length": 3}
    wrong = {"queues": [{"name": "kept", "vhost": "/", "durable": False}]}
    assert managed.ask("POST", "/definitions", wrong).status == 400
    managed.ask("DELETE", "/queues/%2F/kept")


def test_closing_a_connection(managed: ManagedBroker) -> None:
    connection = pika.BlockingConnection(pika.URLParameters(managed.process.url))
    [shown] = managed.get("/connections")
    path = f"/connections/{quoted(shown['name'])}"
    assert managed.ask("DELETE", path, headers={"X-Reason": "enough"}).status == 204
    with pytest.raises(pika.exceptions.ConnectionClosedByBroker, match="enough"):
        while True:
            connection.process_data_events(1)
    managed.process.wait_until(lambda: managed.get("/connections") == [])
    assert managed.ask("DELETE", path).status == 404


def test_the_prefetch_of_a_consumer_is_changed(managed: ManagedBroker) -> None:
    with pika.BlockingConnection(pika.URLParameters(managed.process.url)) as connection:
        channel = connection.channel()
        channel.queue_declare("prefetched")
        channel.basic_qos(prefetch_count=1)
        got: list[bytes] = []
        channel.basic_consume("prefetched", lambda *each: got.append(each[3]), consumer_tag="a/b")
        for body in (b"1", b"2", b"3"):
            channel.basic_publish("", "prefetched", body)
        connection.process_data_events(LIMIT_S)
        [shown] = managed.get("/channels")
        path = f"/channels/{quoted(shown['name'])}/consumers"
        changed = f"{path}/a%2Fb/prefetch"
        assert managed.ask("PUT", changed, {"prefetch_count": 2}).status == 204
        while len(got) < 2:
            connection.process_data_events(LIMIT_S)
        [consumer] = managed.get("/consumers")
        assert (consumer["prefetch_count"], consumer["messages_unacknowledged"]) == (2, 2)
        for wrong in ({}, {"prefetch_count": 65536}, {"prefetch_count": -1}, {"count": 2}):
            assert managed.ask("PUT", changed, wrong).status == 400
        assert managed.ask("PUT", f"{path}/c/prefetch", {"prefetch_count": 2}).status == 404
        channel.queue_delete("prefetched")


def rabbitmqadmin(managed: ManagedBroker, *words: str) -> str:
    done = subprocess.run(
        [ADMIN, "--port", str(managed.port), "--format", "tsv", *words],
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.skipif(not ADMIN, reason="rabbitmqadmin is not installed")
def test_rabbitmqadmin(managed: ManagedBroker) -> None:
    """Debian's, as its users call it."""
    say = partial(rabbitmqadmin, managed)
    say("declare", "queue", "name=ra", "durable=true", 'arguments={"x-max-length": 9}')
    say("declare", "exchange", "name=rx", "type=topic")
    say("declare", "binding", "source=rx", "destination=ra", "routing_key=k")
    say("publish", "exchange=rx", "routing_key=k", "payload=hello")
    assert "ra\t1" in say("list", "queues", "name", "messages")
    assert "hello" in say("get", "queue=ra", "ackmode=ack_requeue_false")
    say("declare", "policy", "name=rp", "pattern=^ra", 'definition={"max-length": 5}')
    say("declare", "vhost", "name=rv")
    say("declare", "user", "name=ru", "password=x", "tags=monitoring")
    say("declare", "permission", "vhost=rv", "user=ru", "configure=.*", "write=.*", "read=.*")
    for what in (
        *("users", "vhosts", "connections", "exchanges", "bindings", "permissions", "channels"),
        *("parameters", "consumers", "queues", "policies", "nodes"),
    ):
        say("list", what)
    assert "vouchmq" in say("show", "overview")
    say("purge", "queue", "name=ra")
    say(
        "delete",
        "binding",
        "source=rx",
        "destination_type=queue",
        "destination=ra",
        "properties_key=k",
    )
    for what in (
        "queue name=ra",
        "exchange name=rx",
        "policy name=rp",
        "user name=ru",
        "vhost name=rv",
    ):
        say("delete", *what.split())
