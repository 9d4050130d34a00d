"""Definitions go from RabbitMQ 3.10.8 to this broker and back, and nothing of them is lost.

Spec: HTTP-29, HTTP-40, HTTP-41
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.compatibility.http_api.peer import Peer
from tests.integration.management import Got, ask, login, managed_broker

pytestmark = [pytest.mark.integration, pytest.mark.slow]

HASH = base64.b64encode(bytes(range(36))).decode()
# The categories that both have, in the order of an export.
KINDS = (
    *("users", "vhosts", "permissions", "topic_permissions", "parameters", "policies"),
    *("queues", "exchanges", "bindings"),
)
DEFINITIONS: Mapping[str, list[dict[str, Any]]] = {
    "users": [
        {
            "name": "ann",
            "password_hash": HASH,
            "hashing_algorithm": "rabbit_password_hashing_sha256",
            "tags": ["management", "policymaker"],
            "limits": {"max-channels": 9},
        },
        {
            "name": "bob",
            "password_hash": base64.b64encode(bytes(range(68))).decode(),
            "hashing_algorithm": "rabbit_password_hashing_sha512",
            "tags": [],
            "limits": {},
        },
    ],
    "vhosts": [{"name": "/"}, {"name": "shop ä/%"}],
    "permissions": [
        {"user": "ann", "vhost": "shop ä/%", "configure": "^a", "write": "", "read": ".*"}
    ],
    "topic_permissions": [
        {"user": "ann", "vhost": "/", "exchange": "amq.topic", "write": "^a", "read": "^b"}
    ],
    "parameters": [
        {
            "vhost": "shop ä/%",
            "component": "vhost-limits",
            "name": "limits",
            "value": {"max-queues": 50},
        },
        {
            "vhost": "/",
            "component": "operator_policy",
            "name": "op",
            "value": {
                "pattern": "^q",
                "definition": {"max-length": 9},
                "priority": 3,
                "apply-to": "queues",
            },
        },
    ],
    "policies": [
        {
            "vhost": "/",
            "name": "p",
            "pattern": "^q.*$",
            "apply-to": "queues",
            "definition": {"message-ttl": 60000, "dead-letter-exchange": "x"},
            "priority": 1,
        }
    ],
    "queues": [
        {
            "name": name,
            "vhost": vhost,
            "durable": True,
            "auto_delete": False,
            "arguments": arguments,
        }
        for name, vhost, arguments in (
            ("q", "/", {}),
            ("lazy", "/", {"x-queue-mode": "lazy", "x-max-length": 9}),
            ("quorum", "/", {"x-queue-type": "quorum", "x-delivery-limit": 3}),
            ("stream", "/", {"x-queue-type": "stream", "x-max-age": "7D"}),
            ("prio ä/%", "shop ä/%", {"x-max-priority": 5, "x-overflow": "reject-publish"}),
        )
    ],
    "exchanges": [
        {
            "name": name,
            "vhost": "/",
            "type": kind,
            "durable": True,
            "auto_delete": False,
            "internal": name == "inner",
            "arguments": arguments,
        }
        for name, kind, arguments in (
            ("x", "topic", {"alternate-exchange": "inner"}),
            ("inner", "headers", {}),
        )
    ],
    "bindings": [
        {
            "source": source,
            "vhost": "/",
            "destination": destination,
            "destination_type": kind,
            "routing_key": key,
            "arguments": arguments,
        }
        for source, kind, destination, key, arguments in (
            ("x", "queue", "q", "a.#", {}),
            ("x", "exchange", "inner", "", {}),
            ("inner", "queue", "lazy", "", {"x-match": "all", "n": 5, "t": True, "s": "ä"}),
        )
    ],
}


@pytest.fixture
def ports(tmp_path: Path) -> Iterator[tuple[int, int]]:
    """Of RabbitMQ and of ours, both new."""
    with Peer(tmp_path) as peer:
        ours = tmp_path / "ours"
        ours.mkdir()
        with managed_broker(ours) as broker:
            yield peer.http_port, broker.port


def request(port: int, method: str, path: str, body: object = None) -> Got:
    headers = {**login("guest", "guest"), "Content-Type": "application/json"}
    got = ask(port, method, f"/api{path}", body, headers=headers)
    assert got.status in {200, 204}, got
    return got


def exported(port: int) -> dict[str, list[dict[str, Any]]]:
    """What both have, in one order; without the user who asks, whose password each has salted."""
    whole = request(port, "GET", "/definitions").body
    found = {}
    for kind in KINDS:
        rows = [row for row in whole[kind] if "guest" not in (row.get("name"), row.get("user"))]
        if kind == "vhosts":
            # RabbitMQ 3.10 exports no more than the name.
            rows = [{"name": row["name"]} for row in rows]
        for row in rows:
            row["tags"] = sorted(row.get("tags", []))
            if kind == "queues":
                # RabbitMQ 3.10 exports none.
                type_ = row["arguments"].get("x-queue-type", "classic")
                assert row.pop("type", type_) == type_
        found[kind] = sorted(rows, key=str_of)
    return found


def str_of(row: Mapping[str, Any]) -> str:
    return json.dumps(row, sort_keys=True)


def expected() -> dict[str, list[dict[str, Any]]]:
    return {
        kind: sorted(({**row, "tags": sorted(row.get("tags", []))} for row in rows), key=str_of)
        for kind, rows in DEFINITIONS.items()
    }


@pytest.mark.parametrize("first", [0, 1], ids=["from RabbitMQ", "to RabbitMQ"])
def test_nothing_is_lost_on_the_way(ports: tuple[int, int], first: int) -> None:
    here, there = ports[first], ports[1 - first]
    request(here, "POST", "/definitions", DEFINITIONS)
    assert exported(here) == expected()
    whole = request(here, "GET", "/definitions").body
    if first == 1:
        # Of users with a password of their own, whose hash RabbitMQ does not know.
        whole["users"] = [each for each in whole["users"] if each["name"] != "guest"]
    request(there, "POST", "/definitions", whole)
    assert exported(there) == expected()
    assert exported(here) == expected()
    of_vhost = request(here, "GET", "/definitions/%2F").body
    request(there, "POST", "/definitions/%2F", of_vhost)
    assert exported(there) == expected()
