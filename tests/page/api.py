"""An HTTP API with a broker's objects in memory, for tests of the page alone.

Its routes, fields and errors are those of the real one, which has tests of its own.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable
from typing import Any
from urllib.parse import parse_qs, unquote

from starlette.types import Message, Receive, Scope, Send

Row = dict[str, Any]

NOT_FOUND = (404, {"error": "Object Not Found", "reason": "Not Found"})
USERS = {"guest": ("guest", ["administrator"]), "watcher": ("secret", ["monitoring"])}
QUEUE_ROUTE = "/queues/{vhost}/{name}"
READS = (
    *("overview", "nodes", "vhosts", "connections", "channels", "consumers", "exchanges"),
    *("queues", "users", "permissions", "policies", "operator-policies", "definitions", "whoami"),
)
PEEK = {f"{QUEUE_ROUTE}/messages": ["get"], f"{QUEUE_ROUTE}/move": ["post"]}
CHANGES = {
    QUEUE_ROUTE: ["get", "put", "delete"],
    f"{QUEUE_ROUTE}/contents": ["delete"],
    f"{QUEUE_ROUTE}/get": ["post"],
    "/exchanges/{vhost}/{name}": ["get", "put", "delete"],
    "/exchanges/{vhost}/{name}/publish": ["post"],
    "/connections/{name}": ["get", "delete"],
    "/policies/{vhost}/{name}": ["put", "delete"],
    "/users/{user}": ["get", "put", "delete"],
}


class MemoryApi:
    """The API as an ASGI application; `requests` has all that came, with their methods."""

    def __init__(self) -> None:
        self.queues: dict[str, list[Row]] = {}
        self.requests: list[tuple[str, str]] = []
        self.routes: dict[str, list[str]] = {f"/{each}": ["get"] for each in READS}
        self.routes |= CHANGES | PEEK
        self.policies: list[Row] = []
        self.is_alarmed = False
        # When the broker has answered last; None: it answers.
        self.silent_since_ms: int | None = None
        # Of a broker with `ha_log`.
        self.shared_log: Row | None = None
        self.is_log_stalled = False
        self.passwords = dict(USERS)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = {name.decode(): value.decode() for name, value in scope["headers"]}
        parts = [unquote(each) for each in scope["raw_path"].decode().split("/")[2:]]
        query = {
            name: values[0] for name, values in parse_qs(scope["query_string"].decode()).items()
        }
        body = b""
        while True:
            message = await receive()
            body += message.get("body", b"")
            if not message.get("more_body", False):
                break
        self.requests.append((scope["method"], "/".join(parts)))
        status: int
        answer: Any
        user = self._user(headers.get("authorization", ""))
        if parts == ["openapi.json"]:
            described: Row = {path: {key: {} for key in each} for path, each in self.routes.items()}
            status, answer = 200, {"paths": described}
        elif self.silent_since_ms is not None:
            told = {"error": "service_unavailable", "reason": "the broker does not answer"}
            status, answer = 503, {**told, "last_answer_ms": self.silent_since_ms}
        elif user is None:
            status, answer = 401, {"error": "not_authorized", "reason": "Login failed"}
        else:
            status, answer = self._answer(
                scope["method"], parts, query, json.loads(body or b"{}"), user
            )
        content = b"" if answer is None else json.dumps(answer).encode()
        start: Message = {
            "type": "http.response.start",
            "status": status,
            "headers": [
                (b"content-type", b"application/json"),
                *([(b"www-authenticate", b"Basic")] if status == 401 else []),
            ],
        }
        await send(start)
        await send({"type": "http.response.body", "body": content})

    def _user(self, authorization: str) -> str | None:
        if not authorization.startswith("Basic "):
            return None
        name, _, password = base64.b64decode(authorization[6:]).decode().partition(":")
        known = self.passwords.get(name)
        return name if known is not None and known[0] == password else None

    def _answer(
        self, method: str, parts: list[str], query: Row, body: Row, user: str
    ) -> tuple[int, Any]:
        match method, parts:
            case "GET", ["whoami"]:
                return 200, {"name": user, "tags": self.passwords[user][1]}
            case "GET", [kind] | [kind, "/"]:
                return 200, self._list(kind, query)
            case "PUT", ["policies", vhost, name]:
                self.policies.append({"vhost": vhost, "name": name, **body})
                return 201, None
            case "POST", ["exchanges", _, _, "publish"]:
                return self._publish(body)
            case _, ["exchanges", _, name, *rest]:
                return exchange(name, rest)
            case _, ["queues", _, name, *rest]:
                return self._one(method, name, rest, query, body)
        return NOT_FOUND

    def _list(self, kind: str, query: Row) -> Any:
        if kind in {"queues", "exchanges", "connections", "channels"} or "page" in query:
            rows = {
                "queues": map(self._queue, self.queues),
                "exchanges": EXCHANGES,
                "connections": CONNECTIONS,
                "consumers": CONSUMERS,
            }
            return page(rows.get(kind, ()), query)
        users = self.passwords.items()
        return {
            "overview": self._overview(),
            "nodes": [self._node()],
            "vhosts": [{"name": "/", "messages_ready": 0}],
            "consumers": CONSUMERS,
            "bindings": BINDINGS,
            "users": [{"name": name, "tags": each[1]} for name, each in users],
            "permissions": [ALL_OF | {"user": "guest", "vhost": "/"}],
            "policies": self.policies,
            "operator-policies": [],
            "definitions": {"queues": [{"name": name} for name in self.queues]},
        }[kind]

    def _one(
        self, method: str, name: str, rest: list[str], query: Row, body: Row
    ) -> tuple[int, Any]:
        if (method, rest) == ("PUT", []):
            self.queues[name] = []
            return 201, None
        if name not in self.queues:
            return NOT_FOUND
        messages = self.queues[name]
        match method, rest:
            case "GET", []:
                return 200, self._queue(name)
            case "GET", ["bindings"]:
                return 200, [each for each in BINDINGS if each["destination"] == name]
            case "DELETE", []:
                del self.queues[name]
                return 204, None
            case "DELETE", ["contents"]:
                messages.clear()
                return 204, None
            case "GET", ["messages"]:
                first = int(query["first"])
                chosen = messages[first : first + int(query["count"])]
                return 200, [] if query["state"] != "ready" else chosen
            case "POST", ["move"]:
                if body["to_queue"] not in self.queues:
                    return 400, {"error": "bad_request", "reason": "there is no such queue"}
                moved = messages[: body["count"]]
                del messages[: body["count"]]
                self.queues[body["to_queue"]] += moved
                return 200, {"moved": len(moved), "stopped": ""}
        return 405, None

    def _publish(self, body: Row) -> tuple[int, Any]:
        name = body["routing_key"]
        if name not in self.queues:
            return 200, {"routed": False}
        self.queues[name].append(
            {
                "payload": body["payload"],
                "payload_bytes": len(body["payload"]),
                "payload_encoding": "string",
                "exchange": "",
                "routing_key": name,
                "redelivered": False,
                "properties": body["properties"],
            }
        )
        return 200, {"routed": True}

    def _queue(self, name: str) -> Row:
        number = len(self.queues[name])
        return {
            "name": name,
            "vhost": "/",
            "type": "classic",
            "durable": True,
            "state": "running",
            "auto_delete": False,
            "exclusive": False,
            "arguments": {},
            "consumers": 0,
            "messages": number,
            "messages_ready": number,
            "messages_unacknowledged": 0,
            "message_stats": {},
            "consumer_details": [],
        }

    def _overview(self) -> Row:
        ready = sum(map(len, self.queues.values()))
        objects = ("connections", "channels", "consumers", "exchanges")
        return {
            "product_name": "VouchMQ",
            "product_version": "1",
            "message_stats": {"publish": ready, "publish_details": {"rate": 1.5}},
            "queue_totals": {"messages_ready": ready, "messages_unacknowledged": 0},
            "object_totals": {"queues": len(self.queues), **dict.fromkeys(objects, 0)},
            "churn_rates": {},
            "listeners": [{"protocol": "amqp", "ip_address": "127.0.0.1", "port": 5672}],
        }

    def _node(self) -> Row:
        return {
            "name": "vouchmq@here",
            "running": True,
            "mem_alarm": self.is_alarmed,
            "disk_free_alarm": False,
            "mem_used": 50_000_000,
            "mem_limit": 400_000_000,
            "disk_free": 9_000_000_000,
            "disk_free_limit": 50_000_000,
            "fd_used": 40,
            "fd_total": 1024,
            "sockets_used": 3,
            "sockets_total": 900,
            "uptime": 100_000,
            "db_dir": "/var/lib/vouchmq",
            "os_pid": "12",
            "processors": 2,
            **self._shared_log(),
        }

    def _shared_log(self) -> Row:
        if self.shared_log is None:
            return {}
        return {"shared_log": self.shared_log, "replication_alarm": self.is_log_stalled}


ALL_OF = {"configure": ".*", "write": ".*", "read": ".*"}
EXCHANGES: tuple[Row, ...] = tuple(
    {
        "name": name,
        "vhost": "/",
        "type": kind,
        "durable": True,
        "auto_delete": False,
        "internal": False,
        "arguments": {},
    }
    for name, kind in (("", "direct"), ("amq.topic", "topic"), ("orders", "topic"))
)
BINDINGS: list[Row] = [
    {
        "source": "orders",
        "destination": name,
        "destination_type": kind,
        "vhost": "/",
        "routing_key": "order.#",
        "arguments": {},
        "properties_key": "order.%23",
    }
    for name, kind in (("first", "queue"), ("amq.topic", "exchange"))
]
CONNECTIONS: tuple[Row, ...] = (
    {
        "name": "127.0.0.1:4 -> 127.0.0.1:5672",
        "vhost": "/",
        "user": "guest",
        "channels": 1,
        "state": "running",
        "client_properties": {"product": "pika"},
        "connected_at": 1,
    },
)
CONSUMERS: tuple[Row, ...] = (
    {
        "consumer_tag": "ctag1",
        "queue": {"vhost": "/", "name": "first"},
        "channel_details": {"name": "127.0.0.1:4 -> 127.0.0.1:5672 (1)"},
        "ack_required": True,
        "exclusive": False,
        "prefetch_count": 10,
        "messages_unacknowledged": 10,
        "oldest_unacknowledged_age": 65_000,
    },
)


def exchange(name: str, rest: list[str]) -> tuple[int, Any]:
    """One exchange, or its bindings."""
    if rest[:1] == ["bindings"]:
        end = rest[1]
        return 200, [each for each in BINDINGS if each[end] == name]
    found = [each for each in EXCHANGES if each["name"] == name.replace("amq.default", "")]
    return (200, found[0]) if found else NOT_FOUND


def page(rows: Iterable[Row], query: Row) -> Row:
    """One page of these, filtered and sorted, as the API has it."""
    every = list(rows)
    text: str = query.get("name", "")
    wanted = [each for each in every if text in each.get("name", text)]
    field = query.get("sort", "name")
    wanted.sort(key=lambda row: str(row.get(field, "")), reverse="sort_reverse" in query)
    size, number = int(query["page_size"]), int(query["page"])
    items = wanted[(number - 1) * size : number * size]
    return {
        "items": items,
        "item_count": len(items),
        "filtered_count": len(wanted),
        "total_count": len(every),
        "page": number,
        "page_count": -(-len(wanted) // size),
        "page_size": size,
    }
