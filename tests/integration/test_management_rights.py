"""Who may change what over the HTTP API: every permission that is missing, and every tag (HTTP-04).

Spec: HTTP-04, PERM-03 … PERM-06
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.integration.management import Got, ManagedBroker, managed_broker, quoted
from vouchmq.management.api.call import ADMINISTRATORS, Route
from vouchmq.management.resources.table import ROUTES

USER = "ann"
TAGS = ("none", "management", "policymaker", "monitoring", "administrator")
PERMISSIONS = ("configure", "write", "read")
NOTHING_MISSING = "nothing"
NO_VHOST = "vhost"
MESSAGE = {"routing_key": "k", "properties": {}, "payload": "", "payload_encoding": "string"}
GET = {"count": 1, "ackmode": "ack_requeue_true", "encoding": "auto"}


class Operation(NamedTuple):
    """Something that users may do to what is in the virtual host `v`."""

    method: str
    path: str
    needed: frozenset[str]
    body: object = None


def operation(method: str, path: str, needed: str, body: object = None) -> Operation:
    return Operation(method, path, frozenset(needed.split()), body)


OPERATIONS = (
    operation("PUT", "/queues/v/new", "configure", {}),
    operation("DELETE", "/queues/v/q", "configure"),
    operation("DELETE", "/queues/v/q/contents", "read"),
    operation("PUT", "/queues/v/q/pause", "configure"),
    operation("PUT", "/queues/v/q/resume", "configure"),
    operation("POST", "/queues/v/q/get", "read", GET),
    operation("GET", "/queues/v/q/messages", "read"),
    operation("POST", "/queues/v/q/move", "read write", {"to_queue": "r"}),
    operation("POST", "/queues/v/q/move", "read write", {"to_queue": "r", "keep": True}),
    operation("POST", "/queues/v/q/move", "read write", {"to_exchange": "x"}),
    operation("POST", "/queues/v/q/return-dead-letters", "read write", {}),
    operation("PUT", "/exchanges/v/new", "configure", {"type": "fanout"}),
    operation("DELETE", "/exchanges/v/x", "configure"),
    operation("POST", "/exchanges/v/x/publish", "write", MESSAGE),
    operation("POST", "/bindings/v/e/x/q/q", "write read", {"routing_key": "new"}),
    operation("DELETE", "/bindings/v/e/x/q/q/k", "write read"),
    operation("POST", "/bindings/v/e/x/e/y", "write read", {"routing_key": "new"}),
    operation("DELETE", "/bindings/v/e/x/e/y/k", "write read"),
    operation("GET", "/aliveness-test/v", "configure write read"),
)


@pytest.fixture(scope="module")
def managed(module_path: Path) -> Iterator[ManagedBroker]:
    with managed_broker(module_path) as broker:
        put(broker, "/vhosts/v")
        put(broker, f"/users/{USER}", {"password": USER, "tags": "management"})
        for tag in TAGS:
            put(broker, f"/users/{tag}", {"password": tag, "tags": "" if tag == "none" else tag})
            put(broker, f"/permissions/v/{tag}", dict.fromkeys(PERMISSIONS, ".*"))
        for name in ("x", "y"):
            put(broker, f"/exchanges/v/{name}", {"type": "topic"})
        yield broker


def put(managed: ManagedBroker, path: str, body: object = None) -> None:
    got = managed.ask("PUT", path, body or {})
    assert got.status in {201, 204}, got


def prepare(managed: ManagedBroker) -> None:
    """Have everything there that the operations want, and nothing that they make."""
    for name in ("/queues/v/new", "/exchanges/v/new"):
        managed.ask("DELETE", name)
    for name in ("q", "r"):
        put(managed, f"/queues/v/{name}")
    put(managed, "/exchanges/v/x", {"type": "topic"})
    for end in ("q/q", "e/y"):
        managed.ask("DELETE", f"/bindings/v/e/x/{end}/new")
        managed.ask("POST", f"/bindings/v/e/x/{end}", {"routing_key": "k"})
    put(managed, "/queues/v/q/resume")


def is_refused(got: Got) -> bool:
    """Whether the user may not; a publish is refused as AMQP refuses it (HTTP-18)."""
    if got.status == 400:
        return "ACCESS_REFUSED" in got.body["reason"]
    return got.status == 401


@pytest.mark.parametrize("missing", [NOTHING_MISSING, *PERMISSIONS, NO_VHOST])
@pytest.mark.parametrize("wanted", OPERATIONS, ids=lambda each: f"{each.method} {each.path}")
def test_every_operation_for_every_missing_permission(
    managed: ManagedBroker, wanted: Operation, missing: str
) -> None:
    prepare(managed)
    if missing == NO_VHOST:
        managed.ask("DELETE", f"/permissions/v/{USER}")
    else:
        granted = {name: "" if name == missing else ".*" for name in PERMISSIONS}
        put(managed, f"/permissions/v/{USER}", granted)
    got = managed.ask(wanted.method, wanted.path, wanted.body, user=USER)
    if missing == NO_VHOST:
        # As if there were none, which is nobody else's business.
        assert got.status == 404, got
    elif missing in wanted.needed:
        assert is_refused(got), got
    else:
        assert got.status in {200, 201, 204}, got


CHANGES = [(method, route) for route in ROUTES for method in route.methods if method not in {"GET"}]


@pytest.mark.parametrize("name", ["a\nb", "\u00e4/%", " ", "..", "a?b#c", "~"])
def test_names_of_any_characters(managed: ManagedBroker, name: str) -> None:
    path = f"/queues/v/{quoted(name)}"
    put(managed, path)
    # Queues have no line breaks in their names.
    wanted = name.replace("\n", "")
    assert managed.get("/queues/v?columns=name&sort=name").count({"name": wanted}) == 1
    assert managed.ask("DELETE", f"/queues/v/{quoted(wanted)}").status == 204
    # The name is read whole, and refused by who knows what names may be.
    user = managed.ask("PUT", f"/users/{quoted(name)}", {"password_hash": "", "tags": ""})
    assert user.status == (400 if "\n" in name else 201), user


def ident(value: object) -> str:
    return value.path if isinstance(value, Route) else str(value)


@pytest.mark.parametrize("method, route", CHANGES, ids=ident)
def test_every_change_for_every_tag(managed: ManagedBroker, method: str, route: Route) -> None:
    """With all permissions; what is named is not there, so that nothing is changed."""
    # Objects of virtual hosts are in one that is there; all other names are of nothing.
    path = re.sub(r"\{\w+\}", "nothing", route.path.replace("{vhost}", "v"))
    # What belongs to another user is an administrator's.
    needed = ADMINISTRATORS if "/username/" in path else route.needed(method)
    for tag in TAGS:
        got = managed.ask(method, path, b"not json", user=tag)
        assert (got.status == 401) == (tag not in needed), (tag, got)
