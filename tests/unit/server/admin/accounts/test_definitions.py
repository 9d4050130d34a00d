"""Definitions exported and imported while the broker runs, and the listings of what they hold."""

from __future__ import annotations

import itertools
import json
from typing import Any

import pytest

from tests.unit.server.admin.accounts.administrating import Administrator
from tests.unit.server.admin.listings import listed
from tests.unit.server.auth.accounts import logged_in
from tests.unit.server.in_memory import World
from vouchmq.server.definitions.export import exported


@pytest.fixture
def admin() -> Administrator:
    return Administrator()


def furnish(admin: Administrator) -> None:
    """Something of each kind."""
    admin.do("put user", name="u", password="secret", tags=["monitoring"])
    admin.do("put user-limit", name="u", limit="max-connections", value=4)
    admin.do("put vhost", name="v", description="d", tags=["t"], default_queue_type="quorum")
    admin.do("put vhost-limit", name="v", limit="max-queues", value=7)
    admin.do("put permissions", name="u", vhost="v", configure="a", write="b", read="c")
    topic = {"name": "u", "vhost": "v", "exchange": "amq.topic"}
    admin.do("put topic-permissions", **topic, write="d", read="e")
    policy: dict[str, Any] = {"vhost": "v", "name": "p", "definition": {"max-length": 5}}
    admin.do("put policy", **policy, pattern="^q", apply_to="queues", priority=2)
    admin.do("put operator-policy", **policy, pattern="")
    admin.do("put parameter", vhost="v", component="mine", name="n", value={"x": [1]})
    admin.do("put global-parameter", name="g", value={"y": None})
    vhost = admin.world.broker.vhosts["v"]
    vhost.declare_exchange(
        "x", "topic", durable=True, auto_delete=False, internal=False, arguments={}
    )
    vhost.declare_queue("q", durable=True, exclusive_owner=None, auto_delete=False, arguments={})
    vhost.bind("x", "queue", "q", "k", {}, None)
    admin.world.sync()


def document_of(admin: Administrator, vhost: str | None = None) -> dict[str, Any]:
    reader = admin.begin("export definitions", **({} if vhost is None else {"vhost": vhost}))
    admin.world.sync()
    assert reader.facts is not None
    assert reader.facts["ok"], reader.facts
    document: dict[str, Any] = {}
    for row in reader.lines:
        document.setdefault(row["kind"], []).append(row["entry"])
    return document


def test_what_is_exported_makes_the_same_again(admin: Administrator) -> None:
    """HTTP-40, HTTP-41: users with their hashes, limits, metadata and parameters included."""
    furnish(admin)
    document = document_of(admin)
    again = Administrator()
    answer = again.do("import definitions", text=json.dumps(document))
    assert answer["skipped"] == []
    assert document_of(again) == document
    assert document_of(again.restart()) == document
    assert logged_in(again.world.auth, "u", "secret").max_connections == 4
    vhost = again.world.broker.vhosts["v"]
    assert (vhost.description, vhost.tags, vhost.queue_limit) == ("d", ["t"], 7)
    assert vhost.default_queue_type == "quorum"
    text, left_out = exported(again.world.broker)
    assert left_out == []
    told = json.loads(text)
    assert {kind: rows for kind, rows in told.items() if rows and kind in document} == document


def test_one_vhost_is_exported_without_its_name_into_another(admin: Administrator) -> None:
    """HTTP-29."""
    furnish(admin)
    document = document_of(admin, "v")
    assert document.keys() == {"parameters", "policies", "queues", "exchanges", "bindings"}
    assert all("vhost" not in row for rows in document.values() for row in rows)
    users = {"users": [{"name": "evil", "password_hash": "", "tags": ["administrator"]}]}
    text = json.dumps(document | users)
    answer = admin.do("import definitions", text=text, vhost="/")
    assert answer["skipped"] == ["users"]
    assert "evil" not in admin.world.runtime.broker.accounts.users
    assert "q" in admin.world.vhost.queues
    assert document_of(admin, "/") == document
    assert admin.refused("import definitions", text=text, vhost="nx")[0] == 404


def test_an_import_takes_nothing_back(admin: Administrator) -> None:
    """HTTP-41: policies of the definitions file stay, too."""
    furnish(admin)
    before = document_of(admin)
    admin.do("import definitions", text=json.dumps({"vhosts": [{"name": "w"}]}))
    after = document_of(admin)
    assert [each["name"] for each in after.pop("vhosts")] == ["/", "v", "w"]
    del before["vhosts"]
    assert after == before


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("{", "not JSON"),
        ('{"users": [{"name": 5}]}', "users[0].name: expected a string"),
        ('{"queues": [{"vhost": "nx", "name": "q"}]}', "queues[0].vhost: no vhost 'nx'"),
        ('{"parameters": [{"vhost": "/", "component": "c", "name": "n"}]}', "value: missing"),
        (
            '{"users": [{"name": "u", "password": "x", '
            '"hashing_algorithm": "rabbit_password_hashing_scrypt"}]}',
            "takes a password_hash, not a password",
        ),
    ],
)
def test_a_fault_anywhere_changes_nothing(admin: Administrator, text: str, reason: str) -> None:
    """HTTP-42."""
    code, error = admin.refused("import definitions", text=text)
    assert code == 400
    assert reason in error


def test_parameters_of_plugins_are_skipped(admin: Administrator) -> None:
    row = {"vhost": "/", "component": "shovel", "name": "n", "value": {}}
    answer = admin.do("import definitions", text=json.dumps({"parameters": [row]}))
    assert answer["skipped"] == ["parameters[0] of component 'shovel'"]


def test_listings_show_what_there_is(admin: Administrator) -> None:
    furnish(admin)
    world: World = admin.world
    [user] = listed(world, "users", name="u")
    assert user.pop("password_hash") == world.runtime.broker.accounts.users["u"].password_hash
    assert user == {
        "name": "u",
        "tags": ["monitoring"],
        "has_password": True,
        "hashing_algorithm": "rabbit_password_hashing_sha256",
        "max_connections": 4,
        "max_channels": -1,
    }
    assert [row["name"] for row in listed(world, "users", vhost="v")] == ["u"]
    assert len(listed(world, "users")) == 5
    permission = {"user": "u", "vhost": "v", "configure": "a", "write": "b", "read": "c"}
    assert listed(world, "permissions", vhost="v") == [permission]
    assert len(listed(world, "permissions", name="u")) == 1
    topic = {"user": "u", "vhost": "v", "exchange": "amq.topic", "write": "d", "read": "e"}
    assert listed(world, "topic-permissions") == [topic]
    policy = {
        "vhost": "v",
        "name": "p",
        "pattern": "^q",
        "apply_to": "queues",
        "priority": 2,
        "definition": {"max-length": 5},
    }
    assert listed(world, "policies") == [policy]
    operator = policy | {"pattern": "", "priority": 0}
    assert listed(world, "operator-policies", vhost="v", name="p") == [operator]
    assert listed(world, "operator-policies", vhost="/") == []
    parameter = {"vhost": "v", "component": "mine", "name": "n", "value": {"x": [1]}}
    assert listed(world, "parameters") == [parameter]
    assert listed(world, "global-parameters") == [{"name": "g", "value": {"y": None}}]
    [vhost] = listed(world, "vhosts", name="v")
    assert (vhost["description"], vhost["tags"], vhost["max_queues"]) == ("d", ["t"], 7)


def test_others_are_served_while_definitions_are_imported(admin: Administrator) -> None:
    """LIMIT-23: also while they are validated and made."""
    world = admin.world
    names = [f"q{number:03}" for number in range(200)]
    queues = [{"vhost": "/", "name": name, "durable": True} for name in names]
    world.tick_s = 0.0005  # eight looks at the clock are a slice
    reader = admin.begin("import definitions", text=json.dumps({"queues": queues}))
    made = []
    while reader.facts is None:
        scheduled, world.scheduled[:] = list(world.scheduled), []
        for job in scheduled:
            job()
        made.append(len(world.vhost.queues))
        if not world.scheduled:
            world.sync()
    grown = [after - before for before, after in itertools.pairwise(made)]
    assert sum(grown) == len(names)
    assert max(grown) <= 16
