"""A broker with its management process, and requests to that."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.client import HTTPConnection, HTTPResponse, IncompleteRead
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

from tests.integration.broker_process import BrokerProcess
from tests.waiting import LIMIT_S

READY = re.compile(r"VouchMQ management ready on https?://127\.0\.0\.1:(\d+)")
METRICS = re.compile(r"VouchMQ metrics ready on https?://127\.0\.0\.1:(\d+)/metrics")
FLAGS = ("--management", "on", "--management-port", "0", "--prometheus-port", "0")


class Got(NamedTuple):
    """An answer over HTTP."""

    status: int
    body: Any
    headers: Mapping[str, str]


class ManagedBroker:
    """A broker that runs its management process."""

    def __init__(self, directory: Path, *flags: str) -> None:
        self.process = BrokerProcess(directory, flags=(*FLAGS, *flags))
        self.process.start()
        self._starts = 0
        self.wait_ready()

    @property
    def starts(self) -> int:
        """How often the management process has told that it is ready."""
        return len(READY.findall(self.process.output()))

    def wait_ready(self) -> None:
        """Wait for the management process, or for the next one."""
        self.process.wait_until(lambda: self.starts > self._starts)
        self._starts = self.starts

    @property
    def port(self) -> int:
        """That of the HTTP API, of the newest process."""
        return int(READY.findall(self.process.output())[-1])

    @property
    def metrics_port(self) -> int:
        """That of the Prometheus endpoint, of the newest process."""
        return int(METRICS.findall(self.process.output())[-1])

    def get(self, path: str, user: str = "guest", password: str = "") -> Any:
        """The body of an answer with status 200; names in the path are quoted already."""
        got = self.ask("GET", path, user=user, password=password)
        assert got.status == 200, got
        return got.body

    def ask(
        self,
        method: str,
        path: str,
        body: object = None,
        *,
        user: str | None = "guest",
        password: str = "",
        headers: Mapping[str, str] | None = None,
    ) -> Got:
        """One request below /api; without a user there is no login."""
        return ask(
            self.port,
            method,
            f"/api{path}",
            body,
            headers={**login(user, password or user or ""), **(headers or {})},
        )

    def metrics(self, path: str = "/metrics") -> str:
        """The text of a scrape."""
        got = ask(self.metrics_port, "GET", path)
        assert got.status == 200, got
        return str(got.body)


class EventStream:
    """A stream of server-sent events that has begun."""

    def __init__(self, managed: ManagedBroker, path: str, user: str = "guest") -> None:
        self._http = HTTPConnection("127.0.0.1", managed.port, timeout=LIMIT_S)
        self._http.request("GET", f"/api{path}", headers=login(user, user))
        self._answer: HTTPResponse = self._http.getresponse()
        assert self._answer.status == 200
        assert self._answer.headers["content-type"].startswith("text/event-stream")
        assert self._lines() == [": listening"]

    def _lines(self) -> list[str]:
        lines = []
        while line := self._answer.readline().decode().rstrip("\n"):
            lines.append(line)
        return lines

    def next(self) -> tuple[str, dict[str, Any]]:
        event, data = self._lines()
        return event.removeprefix("event: "), json.loads(data.removeprefix("data: "))

    def rest(self) -> bytes:
        try:
            return self._answer.read()
        except (ConnectionResetError, IncompleteRead) as error:
            return error.partial if isinstance(error, IncompleteRead) else b""

    def close(self) -> None:
        self._answer.close()
        self._http.close()


@contextmanager
def managed_broker(directory: Path, *flags: str) -> Iterator[ManagedBroker]:
    """One that ends with exit code 0, without a traceback."""
    broker = ManagedBroker(directory, *flags)
    try:
        yield broker
        assert broker.process.stop() == 0, broker.process.output()
        assert broker.process.complaints() == []
    finally:
        broker.process.kill9()


def login(user: str | None, password: str) -> dict[str, str]:
    """The header of Basic authentication."""
    if user is None:
        return {}
    return {"Authorization": f"Basic {base64.b64encode(f'{user}:{password}'.encode()).decode()}"}


def ask(
    port: int,
    method: str,
    path: str,
    body: object = None,
    *,
    headers: Mapping[str, str] | None = None,
) -> Got:
    """One request, on a connection of its own; the answer is decoded if it is JSON."""
    connection = HTTPConnection("127.0.0.1", port, timeout=LIMIT_S)
    try:
        content = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
        connection.request(method, path, content, dict(headers or {}))
        answer = connection.getresponse()
        text = answer.read().decode()
        found = {name.lower(): value for name, value in answer.getheaders()}
        is_json = bool(text) and found.get("content-type") == "application/json"
        return Got(answer.status, json.loads(text) if is_json else text, found)
    finally:
        connection.close()


def quoted(name: str) -> str:
    """A name as it stands in a path."""
    return quote(name, safe="")
