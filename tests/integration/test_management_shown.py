"""What is shown over the HTTP API: every route, for every tag, in virtual hosts with and without
permissions. Whether a request may be made at all is in `test_management_rights.py`.

An administrator sees everything. Everybody else gets of each answer exactly what of it is theirs.

Spec: HTTP-04, HTTP-15, HTTP-39
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from http.client import HTTPConnection
from pathlib import Path
from typing import NamedTuple

import pika
import pytest
from pika.adapters.blocking_connection import BlockingConnection

from tests.integration.management import (
    EventStream,
    Got,
    ManagedBroker,
    login,
    managed_broker,
    quoted,
)
from tests.waiting import LIMIT_S
from vouchmq.management.api.call import MONITORS, Route
from vouchmq.management.resources.table import ROUTES
from vouchmq.server.admin.frames import FrameReader, frame

ADMINISTRATOR = "administrator"
# Users by the name of their tag; `none` has none.
USERS = ("none", "management", "policymaker", "monitoring", ADMINISTRATOR)
# With all permissions, with permissions that allow nothing, and without any.
FULL, EMPTY, FOREIGN = VHOSTS = ("full", "empty", "foreign")
ENTERED = (FULL, EMPTY)
ALL = dict.fromkeys(("configure", "write", "read"), ".*")
NOTHING = dict.fromkeys(ALL, "")
# Names of all objects say where they are, those of clients also whose they are.
OBJECT = re.compile(r"\b[qxyklpo]-(full|empty|foreign)\b")
CLIENT = re.compile(r"\b(?:conn|tag)-(\w+)-(\w+)\b")
# A list of them is what one gets who may see the clients of a virtual host.
OF_CLIENTS = ("/consumers/{vhost}", "/vhost-limits/{vhost}")
# As RabbitMQ 4.3.6 does it: whoever sees a queue sees who takes from it.
ALL_CONSUMERS = "/queues/{vhost}/{queue}"


class World(NamedTuple):
    """A broker with objects in three virtual hosts, and a client of everybody."""

    broker: ManagedBroker
    connections: dict[str, str]
    """Their names, by the names that the clients give themselves."""


@pytest.fixture(scope="module")
def world(module_path: Path) -> Iterator[World]:
    clients: list[BlockingConnection] = []
    with managed_broker(module_path) as broker:
        for vhost in VHOSTS:
            fill(broker, vhost)
        for user in USERS:
            put(
                broker, f"/users/{user}", {"password": user, "tags": "" if user == "none" else user}
            )
            put(broker, f"/user-limits/{user}/max-channels", {"value": 50})
            put(broker, f"/permissions/{FULL}/{user}", ALL)
            put(broker, f"/permissions/{EMPTY}/{user}", NOTHING)
            clients.append(consuming(broker, user, FULL))
        clients += [consuming(broker, "guest", vhost) for vhost in VHOSTS]
        rows = broker.get("/connections")
        yield World(broker, {row["user_provided_name"]: row["name"] for row in rows})
        for each in clients:
            each.close()


def put(broker: ManagedBroker, path: str, body: object) -> None:
    got = broker.ask("PUT", path, body)
    assert got.status in {201, 204}, got


def fill(broker: ManagedBroker, vhost: str) -> None:
    put(broker, f"/vhosts/{vhost}", {})
    put(broker, f"/permissions/{vhost}/guest", ALL)
    put(broker, f"/queues/{vhost}/q-{vhost}", {})
    for name in ("x", "y"):
        put(broker, f"/exchanges/{vhost}/{name}-{vhost}", {"type": "topic"})
    source = f"/bindings/{vhost}/e/x-{vhost}"
    broker.ask("POST", f"{source}/q/q-{vhost}", {"routing_key": f"k-{vhost}"})
    broker.ask("POST", f"{source}/e/y-{vhost}", {"routing_key": f"l-{vhost}"})
    policy = {"pattern": "nothing", "definition": {"max-length": 9}}
    put(broker, f"/policies/{vhost}/p-{vhost}", policy)
    put(broker, f"/operator-policies/{vhost}/o-{vhost}", policy)
    put(broker, f"/vhost-limits/{vhost}/max-queues", {"value": 50})


def consuming(broker: ManagedBroker, user: str, vhost: str) -> BlockingConnection:
    client = BlockingConnection(
        pika.ConnectionParameters(
            "127.0.0.1",
            broker.process.port,
            vhost,
            pika.PlainCredentials(user, user),
            heartbeat=0,
            client_properties={"connection_name": f"conn-{user}-{vhost}"},
        )
    )
    client.channel().basic_consume(
        f"q-{vhost}", lambda *_: None, consumer_tag=f"tag-{user}-{vhost}"
    )
    return client


def is_shown(user: str, mark: str, path: str) -> bool:
    """Whether somebody sees what has this name."""
    client = CLIENT.fullmatch(mark)
    if client is None:
        if path.startswith(("/channels", "/consumers")):
            # The queue that a consumer takes from is shown with the consumer.
            return user in MONITORS or (path.startswith("/consumers") and mark == f"q-{FULL}")
        vhost = mark.partition("-")[2]
        return user == ADMINISTRATOR or vhost in ENTERED
    if path == ALL_CONSUMERS:
        return user == ADMINISTRATOR or client[2] in ENTERED
    return user in MONITORS or client[1] == user


def marks(got: Got, world: World) -> set[str]:
    """The names in an answer."""
    text = str(got.body)
    for client, connection in world.connections.items():
        text = text.replace(connection, client)
    return {each[0] for pattern in (OBJECT, CLIENT) for each in pattern.finditer(text)}


# Streams have no end, and two routes need the permissions of AMQP.
NOT_HERE = ("/events", "/events/{vhost}", "/aliveness-test/{vhost}", f"{ALL_CONSUMERS}/messages")
READ = [route for route in ROUTES if "GET" in route.methods and route.path not in NOT_HERE]


@pytest.mark.parametrize("vhost", VHOSTS)
@pytest.mark.parametrize("route", READ, ids=lambda each: each.path)
def test_everybody_is_shown_what_is_theirs(world: World, route: Route, vhost: str) -> None:
    every = asked(world, route, vhost, ADMINISTRATOR)
    assert every.status in {200, 404, 503}, every
    shown = marks(every, world)
    for user in USERS:
        got = asked(world, route, vhost, user)
        if user not in route.needed("GET"):
            assert got.status == 401, (user, got)
            continue
        is_entered = vhost in ENTERED or user == ADMINISTRATOR
        is_seen = route.path in OF_CLIENTS and user in MONITORS
        if "{vhost}" in route.path and not is_entered and not is_seen:
            assert got.status == 404, (user, got)
            continue
        wanted = {each for each in shown if is_shown(user, each, route.path)}
        assert marks(got, world) == wanted, (user, got)


def asked(world: World, route: Route, vhost: str, user: str) -> Got:
    """A GET of what guest has in this virtual host."""
    broker = world.broker
    connection = world.connections[f"conn-guest-{vhost}"]
    given = {
        "vhost": vhost,
        "queue": f"q-{vhost}",
        "exchange": f"{'y' if route.path.endswith('bindings/destination') else 'x'}-{vhost}",
        "destination": f"y-{vhost}",
        "properties_key": f"{'l' if '{destination}' in route.path else 'k'}-{vhost}",
        "policy": f"{'o' if route.path.startswith('/operator') else 'p'}-{vhost}",
        "connection": connection,
        "channel": f"{connection} (1)",
        "name": vhost,
        "user": "guest",
        "node": broker.get("/overview")["node"] if "{node}" in route.path else "",
        "component": "vhost-limits",
        "port": str(broker.process.port),
        "protocol": "amqp",
        "password": "secret",
        "count": "1",
        "unit": "days",
    }
    path = re.sub(r"\{(\w+)\}", lambda found: quoted(given[found[1]]), route.path)
    return broker.ask("GET", path, user=user)


@pytest.mark.parametrize("route", ["/connections", "/channels", "/consumers", "/queues"])
def test_lists_show_somebody_something(world: World, route: str) -> None:
    """Or else the test above would compare nothing with nothing."""
    every = marks(world.broker.ask("GET", route, user=ADMINISTRATOR), world)
    assert len(every) >= len(VHOSTS)
    assert every > marks(world.broker.ask("GET", route, user="management"), world) > set()


def test_the_consumers_of_others_are_not_counted(world: World) -> None:
    totals = world.broker.get("/overview", "management")["object_totals"]
    assert (totals["connections"], totals["channels"], totals["consumers"]) == (1, 1, 1)


@pytest.mark.parametrize("user", USERS[1:])
def test_connections_of_a_user_are_for_the_user_and_monitors(world: World, user: str) -> None:
    for method, others in (("GET", MONITORS), ("DELETE", {ADMINISTRATOR})):
        got = world.broker.ask(method, "/connections/username/nobody", user=user)
        assert (got.status in {200, 204}) == (user in others), (method, got)
    own = world.broker.ask("GET", f"/connections/username/{user}", user=user)
    assert marks(own, world) == {f"conn-{user}-{FULL}"}


@pytest.mark.parametrize("user", USERS[1:])
def test_limits_of_a_user_are_for_the_user_and_monitors(world: World, user: str) -> None:
    assert world.broker.get(f"/user-limits/{user}", user) == [
        {"user": user, "value": {"max-channels": 50}}
    ]
    assert (world.broker.ask("GET", "/user-limits/none", user=user).status == 200) == (
        user in MONITORS
    )


LISTED = {
    **dict.fromkeys(("queues", "exchanges", "bindings"), ("monitoring", ADMINISTRATOR)),
    **dict.fromkeys(("policies", "operator-policies"), ("policymaker", ADMINISTRATOR)),
}


@pytest.mark.parametrize("listing", LISTED)
def test_commands_list_what_lists_show(world: World, listing: str) -> None:
    def rows(user: str) -> tuple[set[str], int, int]:
        request = frame({"command": f"list {listing}"})
        connection = HTTPConnection("127.0.0.1", world.broker.port, timeout=LIMIT_S)
        try:
            connection.request("POST", "/api/commands", request, login(user, user))
            frames = FrameReader()
            frames.add(connection.getresponse().read())
        finally:
            connection.close()
        found = list(frames)
        told = [row for each in found for row in each.get("rows", ())]
        return marks(Got(200, told, {}), world), len(told), found[-1]["count"]

    user, administrator = LISTED[listing]
    every, _, _ = rows(administrator)
    shown, lines, count = rows(user)
    assert {FULL, EMPTY, FOREIGN} == {each.partition("-")[2] for each in every}
    assert shown == {each for each in every if not each.endswith(FOREIGN)}
    assert lines == count


def test_events_tell_what_lists_show(world: World) -> None:
    """Each reads until the last thing that happens, which is everybody's."""
    broker = world.broker
    streams = {user: EventStream(broker, "/events", user) for user in ("management", "monitoring")}
    for vhost in (FOREIGN, FULL):
        put(broker, f"/queues/{vhost}/new-{vhost}", {})
        with consuming(broker, "guest", vhost):
            pass
    with consuming(broker, "management", FULL):
        pass
    put(broker, f"/queues/{FULL}/last", {})
    for user, stream in streams.items():
        told = ""
        while "'name': 'last'" not in told:
            told += str(stream.next())
        stream.close()
        assert "new-foreign" not in told, user
        assert "new-full" in told
        assert ("tag-guest-full" in told) == (user in MONITORS), (user, told)
        assert ("tag-guest-foreign" in told) == (user in MONITORS), (user, told)
        assert "tag-management-full" in told
