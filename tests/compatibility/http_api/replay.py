"""Plays the log against a broker and gives its answers.

Names that each run makes anew (of the node and of connections) are replaced in the answers.
"""

from __future__ import annotations

import base64
import contextlib
import functools
import json
import time
from collections.abc import Callable, Iterable, Mapping
from http.client import HTTPConnection
from types import TracebackType
from typing import Any, Final
from urllib.parse import quote

import pika
import pika.exceptions
from pika.adapters.blocking_connection import BlockingChannel

from tests.compatibility.http_api.log import AmqpCall, Request, Step, Wait
from tests.waiting import LIMIT_S, wait_until

Answers = dict[str, dict[str, Any]]

ADMINISTRATOR: Final = ("guest", "guest")
PAUSE_S: Final = 0.05
# What pika wants beside what the log says.
CALLBACKS: Final = {
    "basic_consume": {"on_message_callback": lambda *_: None},
    "basic_cancel": {},
}


class Player:
    """Plays steps against one broker.

    Args:
        http_port: of its HTTP API
        url: of AMQP
    """

    def __init__(self, http_port: int, url: str) -> None:
        self._http_port = http_port
        self._url = url
        self._connections: dict[str, pika.BlockingConnection] = {}
        self._channels: dict[tuple[str, int], BlockingChannel] = {}
        self._names: dict[str, str] = {}
        self.node: str = self._get("/overview?columns=node")["node"]

    def __enter__(self) -> Player:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        del kind, error, trace
        for connection in self._connections.values():
            with contextlib.suppress(pika.exceptions.AMQPError):
                connection.close()

    def play(self, steps: Iterable[Step]) -> Answers:
        """The answers to all requests, by their keys."""
        answers: Answers = {}
        for step in steps:
            if isinstance(step, AmqpCall):
                self._call(step)
            elif isinstance(step, Wait):
                self._wait(step)
            else:
                answers[step.key] = self._answer(step)
        return answers

    def _answer(self, step: Request) -> dict[str, Any]:
        login = (step.user, step.user) if step.user != "nobody" else None
        status, headers, text = self._ask(step.method, step.path, step.body, login)
        found: dict[str, Any] = {"status": status}
        if "location" in headers:
            found["location"] = headers["location"]
        if text:
            with contextlib.suppress(ValueError):
                found["body"] = json.loads(text)
        return self._plain(found)

    def _plain(self, found: dict[str, Any]) -> dict[str, Any]:
        """With `<…>` for what is new in each run."""
        text = json.dumps(found)
        for label, name in self._names.items():
            text = text.replace(name, f"<{label}>")
        plain: dict[str, Any] = json.loads(text.replace(self.node, "<node>"))
        return plain

    def _wait(self, step: Wait) -> None:
        found: dict[str, Any] = {}

        def is_so() -> bool:
            status, _, text = self._ask("GET", step.path, None, ADMINISTRATOR)
            found.clear()
            found.update(json.loads(text) if status == 200 else {})
            return all(value_at(found, path) == value for path, value in step.values.items())

        wait_until(is_so, lambda: f"{step} has not come about: {found}", between=self._listen)

    def _listen(self) -> None:
        """Let all clients take what comes."""
        for connection in self._connections.values():
            # The broker may have closed it, as the log wants.
            with contextlib.suppress(pika.exceptions.AMQPError):
                if connection.is_open:
                    connection.process_data_events(0)
        time.sleep(PAUSE_S)

    def _get(self, path: str) -> Any:
        status, _, text = self._ask("GET", path, None, ADMINISTRATOR)
        assert status == 200, text
        return json.loads(text)

    def _ask(
        self, method: str, path: str, body: bytes | None, login: tuple[str, str] | None
    ) -> tuple[int, Mapping[str, str], str]:
        headers = {"Content-Type": "application/json"}
        if login is not None:
            token = base64.b64encode(":".join(login).encode()).decode()
            headers["Authorization"] = f"Basic {token}"
        for label, name in self._names.items():
            path = path.replace(f"{{{label}}}", quote(name, safe=""))
        path = path.replace("{node}", quote(getattr(self, "node", ""), safe=""))
        connection = HTTPConnection("127.0.0.1", self._http_port, timeout=LIMIT_S)
        with contextlib.closing(connection):
            connection.request(method, f"/api{path}", body, headers)
            answer = connection.getresponse()
            found = {name.lower(): value for name, value in answer.getheaders()}
            return answer.status, found, answer.read().decode()

    def _call(self, step: AmqpCall) -> None:
        connection = self._connections.get(step.connection)
        if connection is None:
            connection = self._open(step.connection)
        if not step.channel:
            getattr(connection, step.method)(**step.arguments)
            return
        key = (step.connection, step.channel)
        channel = self._channels.get(key)
        if channel is None or not channel.is_open:
            channel = self._channels[key] = connection.channel(step.channel)
        arguments = {**CALLBACKS.get(step.method, {}), **step.arguments}
        for name, make in MADE.items():
            if name in arguments:
                arguments[name] = make(arguments[name])
        with contextlib.suppress(pika.exceptions.UnroutableError, pika.exceptions.AMQPChannelError):
            getattr(channel, step.method)(**arguments)

    def _open(self, label: str) -> pika.BlockingConnection:
        parameters = pika.URLParameters(self._url)
        parameters.client_properties = {"connection_name": label}
        connection = self._connections[label] = pika.BlockingConnection(parameters)
        impl = connection._impl
        sock = impl._transport._sock
        here, there = sock.getsockname(), sock.getpeername()
        self._names[label] = f"{here[0]}:{here[1]} -> {there[0]}:{there[1]}"
        return connection


MADE: Final[Mapping[str, Callable[[Any], Any]]] = {
    "properties": lambda given: pika.BasicProperties(**given),
    "body": lambda given: given.encode(),
}


def value_at(found: Any, path: str) -> Any:
    """The value of a field; None where there is none."""
    return functools.reduce(_inside, path.split("."), found)


def _inside(found: Any, name: str) -> Any:
    if isinstance(found, list):
        return found[int(name)] if int(name) < len(found) else None
    return found.get(name) if isinstance(found, dict) else None
