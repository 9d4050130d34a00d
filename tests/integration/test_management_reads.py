"""What the HTTP API shows, and to whom (HTTP-04, HTTP-10 … HTTP-31)."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pika
import pytest

from tests.integration.management import ManagedBroker, managed_broker, quoted
from vouchmq.management.api.call import ANY_TAG, Route
from vouchmq.management.resources.table import ROUTES

USERS = """
[[users]]
name = "{tag}"
password = "{tag}"
tags = [{tags}]
vhosts = ["other"]
"""
TAGS = ("none", "management", "policymaker", "monitoring", "administrator")
CONFIGURATION = """
[[vhosts]]
name = "other"
[[users]]
name = "guest"
password = "guest"
tags = ["administrator"]
vhosts = ["/", "other"]
"""


@pytest.fixture(scope="module")
def managed(module_path: Path) -> Iterator[ManagedBroker]:
    users = [USERS.format(tag=tag, tags="" if tag == "none" else f'"{tag}"') for tag in TAGS]
    (module_path / "c.toml").write_text(CONFIGURATION + "".join(users))
    with managed_broker(module_path, "--config", str(module_path / "c.toml")) as broker:
        yield broker


@pytest.fixture(scope="module")
def channel(
    managed: ManagedBroker,
) -> Iterator[pika.adapters.blocking_connection.BlockingChannel]:
    """A client of guest in the virtual host `/`, with one of everything."""
    with pika.BlockingConnection(pika.URLParameters(managed.process.url)) as connection:
        channel = connection.channel()
        channel.exchange_declare("x", "topic", durable=True)
        channel.exchange_declare("x2", "fanout")
        channel.queue_declare("q", durable=True, arguments={"x-max-length": 9})
        channel.queue_declare("mine", exclusive=True)
        channel.queue_bind("q", "x", "a.#")
        channel.queue_bind("q", "x", "b", arguments={"n": 1})
        channel.exchange_bind("x2", "x", "e")
        channel.confirm_delivery()
        channel.basic_qos(prefetch_count=2)
        for number in range(5):
            channel.basic_publish("x", "a.b", b"%d" % number)
        channel.basic_consume("q", lambda *_: None, consumer_tag="ct")
        connection.process_data_events(0)
        managed.process.wait_until(
            lambda: managed.get("/queues/%2F/q")["messages_unacknowledged"] == 2
        )
        for path, body in (
            ("/policies/%2F/p", {"pattern": "^p", "definition": {"max-length": 1}}),
            ("/operator-policies/%2F/p", {"pattern": "^p", "definition": {"max-length": 1}}),
            ("/global-parameters/g", {"value": {"a": 1}}),
            ("/topic-permissions/%2F/guest", {"exchange": "x", "write": ".*", "read": ".*"}),
        ):
            assert managed.ask("PUT", path, body).status == 201
        yield channel


def names_of(managed: ManagedBroker) -> dict[str, str]:
    """What the names in the paths of routes stand for, quoted."""
    [connection] = managed.get("/connections")
    [shown] = managed.get("/channels")
    values = {
        "vhost": "/",
        "name": "/",
        "queue": "q",
        "exchange": "x",
        "destination": "x2",
        "connection": connection["name"],
        "channel": shown["name"],
        "node": managed.get("/overview")["node"],
        "user": "guest",
        "properties_key": "a.%23",
        "policy": "p",
        "component": "federation",
        "password": "secret",
        "port": str(managed.process.port),
        "count": "1",
        "unit": "weeks",
        "protocol": "amqp",
    }
    return {name: quoted(value) for name, value in values.items()}


def path_of(route: Route, names: dict[str, str]) -> str:
    if route.path.endswith("/e/{destination}/{properties_key}"):
        names = {**names, "properties_key": "e"}
    if route.path.startswith("/global-parameters"):
        names = {**names, "name": "g"}
    return route.path.format(**names)


NOT_THERE = ("/parameters/{component}/{vhost}/{name}",)
OF_VHOST = ("{vhost}", "/vhosts/{name}")
# Monitors see that there is a virtual host, and the clients there.
SEEN = ("/vhosts/{name}", "/vhost-limits/{vhost}", "/consumers/{vhost}")
OF_USER = ("/connections/username/{user}", "/user-limits/{user}")

OF_CLIENT = ("/connections/{connection}", "/channels/{channel}")


def expected(route: Route, tag: str) -> int:
    """The status that a user with this tag gets, who may enter the virtual host `other` only."""
    sees_all = tag in {"monitoring", "administrator"}
    if route.path.endswith("/messages") and tag == "administrator":
        # Who looks into messages needs the permission to read the queue.
        return 401
    if tag == "none" or (tag not in route.tags and route.tags is not ANY_TAG):
        return 401
    if route.path in NOT_THERE:
        return 404
    if any(part in route.path for part in OF_VHOST) and tag != "administrator":
        return 200 if sees_all and route.path in SEEN else 404
    if route.path == "/aliveness-test/{vhost}":
        # To show something is not to be allowed to publish.
        return 401
    if not sees_all and route.path in OF_USER:
        return 401
    if not sees_all and any(part in route.path for part in OF_CLIENT):
        return 404
    return 200


# A stream of events has no end: test_events.py reads some of it.
READS = [
    route for route in ROUTES if "GET" in route.methods and not route.path.startswith("/events")
]


@pytest.mark.parametrize("tag", TAGS)
@pytest.mark.usefixtures("channel")
def test_every_route_for_every_tag(managed: ManagedBroker, tag: str) -> None:
    names = names_of(managed)
    asked = {route.path: managed.ask("GET", path_of(route, names), user=tag) for route in READS}
    statuses = {path: got.status for path, got in asked.items()}
    assert statuses == {route.path: expected(route, tag) for route in READS}
    if tag == "none":
        assert {got.body["reason"] for got in asked.values()} == {"Not management user"}


def test_what_monitors_only_may_see_says_so(managed: ManagedBroker) -> None:
    assert managed.ask("GET", "/nodes", user="management").body == {
        "error": "not_authorised",
        "reason": "Not monitor user",
    }


@pytest.mark.usefixtures("channel")
def test_others_see_nothing_of_a_virtual_host_that_they_may_not_enter(
    managed: ManagedBroker,
) -> None:
    get = partial(managed.get, user="management", password="management")
    for path in (
        "/queues",
        "/connections",
        "/channels",
        "/consumers",
        "/connections/username/management",
    ):
        assert get(path) == [], path
    assert {each["vhost"] for each in get("/exchanges")} == {"other"}
    assert [each["name"] for each in get("/vhosts")] == ["other"]
    totals = get("/overview")
    assert totals["queue_totals"]["messages"] == 0
    assert totals["object_totals"]["queues"] == totals["object_totals"]["connections"] == 0
    assert totals["message_stats"] == {}


@pytest.mark.usefixtures("channel")
def test_queues(managed: ManagedBroker) -> None:
    mine, q = managed.get("/queues")
    [connection] = managed.get("/connections")
    assert (mine["name"], mine["exclusive"]) == ("mine", True)
    assert mine["owner_pid_details"]["name"] == connection["name"]
    assert [each["name"] for each in managed.get("/queues/%2F")] == [mine["name"], q["name"]]
    one = managed.get("/queues/%2F/q")
    assert one["consumer_details"][0]["consumer_tag"] == "ct"
    assert (one["messages"], one["messages_ready"], one["messages_unacknowledged"]) == (5, 3, 2)
    assert one["message_stats"]["publish"] == 5
    assert one["message_stats"]["deliver_get"] == 2
    assert one["arguments"] == {"x-max-length": 9}
    assert (one["state"], one["type"], one["policy"]) == ("running", "classic", None)
    paged = managed.get("/queues?page=1&page_size=1&sort=messages&sort_reverse=true&columns=name")
    assert (paged["items"], paged["page_count"]) == ([{"name": "q"}], 2)
    assert managed.get("/queues/%2F/q?columns=message_stats.publish") == {
        "message_stats": {"publish": 5}
    }


def test_what_is_not_there(managed: ManagedBroker) -> None:
    for path in (
        *("/queues/%2F/nope", "/queues/nope", "/queues/nope/q", "/exchanges/%2F/nope"),
        *("/exchanges/nope", "/connections/nope", "/channels/nope", "/vhosts/nope", "/nodes/nope"),
        *("/bindings/nope", "/bindings/%2F/e/nope/q/q", "/bindings/%2F/e/x/q/q/nope"),
        *("/connections/nope/channels", "/vhosts/nope/connections", "/consumers/nope"),
    ):
        got = managed.ask("GET", path)
        assert (got.status, got.body["error"]) == (404, "Object Not Found"), path


@pytest.mark.usefixtures("channel")
def test_numbers_are_those_of_the_moment(managed: ManagedBroker) -> None:
    """No five seconds of delay, which tests would have to wait for."""
    with pika.BlockingConnection(pika.URLParameters(managed.process.url)) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        channel.queue_declare("now")
        for count in (1, 2, 3):
            channel.basic_publish("", "now", b"x")
            assert managed.get("/queues/%2F/now")["messages_ready"] == count
        channel.queue_delete("now")
        assert managed.ask("GET", "/queues/%2F/now").status == 404


@pytest.mark.usefixtures("channel")
def test_connections_channels_and_consumers(managed: ManagedBroker) -> None:
    [connection] = managed.get("/connections")
    path = f"/connections/{quoted(connection['name'])}"
    same = managed.get(path)
    volatile = {"recv_oct_details", "send_oct_details"}
    assert {k: v for k, v in same.items() if k not in volatile} == {
        k: v for k, v in connection.items() if k not in volatile
    }
    assert (connection["user"], connection["vhost"], connection["state"]) == (
        *("guest", "/"),
        "running",
    )
    assert connection["port"] == managed.process.port
    assert connection["peer_host"] == connection["host"] == "127.0.0.1"
    assert connection["client_properties"]["product"].startswith("Pika")
    assert connection["recv_oct"] > 0 and connection["send_oct"] > 0
    [channel] = managed.get(f"{path}/channels")
    assert channel["name"] == f"{connection['name']} (1)"
    assert (channel["confirm"], channel["prefetch_count"], channel["consumer_count"]) == (
        True,
        2,
        1,
    )
    assert channel["messages_unacknowledged"] == 2
    one = managed.get(f"/channels/{quoted(channel['name'])}")
    assert one["consumer_details"][0]["queue"] == {"name": "q", "vhost": "/"}
    [consumer] = managed.get("/consumers/%2F")
    assert (consumer["consumer_tag"], consumer["activity_status"]) == ("ct", "up")
    assert (consumer["ack_required"], consumer["prefetch_count"]) == (True, 2)
    assert consumer["channel_details"]["connection_name"] == connection["name"]


@pytest.mark.usefixtures("channel")
def test_exchanges_and_bindings(managed: ManagedBroker) -> None:
    x = managed.get("/exchanges/%2F/x")
    assert (x["type"], x["durable"], x["message_stats"]["publish_in"]) == ("topic", True, 5)
    assert managed.get("/exchanges/%2F/amq.default")["name"] == ""
    source = managed.get("/exchanges/%2F/x/bindings/source")
    assert [(each["destination"], each["routing_key"]) for each in source] == [
        *(("q", "a.#"), ("q", "b"), ("x2", "e"))
    ]
    [to_x2] = managed.get("/exchanges/%2F/x2/bindings/destination")
    assert (to_x2["source"], to_x2["properties_key"]) == ("x", "e")
    of_queue = managed.get("/queues/%2F/q/bindings")
    assert [(each["source"], each["properties_key"].partition("~")[0]) for each in of_queue] == [
        *(("", "q"), ("x", "a.%23"), ("x", "b"))
    ]
    between = managed.get("/bindings/%2F/e/x/q/q")
    for each in between:
        path = f"/bindings/%2F/e/x/q/q/{quoted(each['properties_key'])}"
        assert managed.get(path) == each
    assert managed.get("/bindings/%2F/e/amq.default/q/q")[0]["properties_key"] == "q"


@pytest.mark.usefixtures("channel")
def test_overview_and_node(managed: ManagedBroker) -> None:
    overview = managed.get("/overview")
    assert overview["object_totals"] == {
        "channels": 1,
        "connections": 1,
        "consumers": 1,
        # Those that are there at first in both virtual hosts, and two more.
        "exchanges": 16,
        "queues": 2,
    }
    assert overview["queue_totals"]["messages"] == 5
    assert overview["message_stats"]["confirm"] >= 5
    ports = {(each["protocol"], each["port"]) for each in overview["listeners"]}
    assert ports == {("amqp", managed.process.port), ("http", managed.port)}
    [node] = managed.get("/nodes")
    assert node["os_pid"] == str(managed.process.pid)
    assert node["fd_used"] > 10 and node["mem_used"] > 0 and node["mem_alarm"] is False
    assert managed.get(f"/nodes/{quoted(node['name'])}?columns=name") == {"name": node["name"]}


def test_health(managed: ManagedBroker) -> None:
    assert managed.get("/health/checks/alarms") == {"status": "ok"}
    closed = managed.ask("GET", "/health/checks/port-listener/1")
    assert (closed.status, closed.body) == (
        503,
        {
            "status": "failed",
            "reason": "No active listener",
            "missing": 1,
            "ports": sorted([managed.process.port, managed.port]),
        },
    )
    assert managed.ask("GET", "/health/checks/port-listener/x").status == 400
    protocol = "/health/checks/protocol-listener"
    assert managed.get(f"{protocol}/amqp091") == {"status": "ok", "protocol": "amqp"}
    missing = managed.ask("GET", f"{protocol}/mqtt")
    assert (missing.status, missing.body["missing"]) == (503, "mqtt")


def test_an_alarm_fails_the_check(tmp_path: Path) -> None:
    broker = ManagedBroker(tmp_path, "--vm-memory-high-watermark", "1MB")
    try:
        broker.process.wait_until(lambda: broker.ask("GET", "/health/checks/alarms").status == 503)
        got = broker.ask("GET", "/health/checks/local-alarms").body
        assert got["alarms"] == [{"node": "vouchmq@localhost", "resource": "memory"}]
        assert broker.process.stop() == 0
    finally:
        broker.process.kill9()


def test_the_description_has_every_route(managed: ManagedBroker) -> None:
    described = managed.ask("GET", "/openapi.json", user=None).body
    assert {(path, method) for path, each in described["paths"].items() for method in each} == {
        (route.path, method.lower()) for route in ROUTES for method in route.methods
    }
