"""Clients of the HTTP API that take more than they should (LIMIT-30, AUTH-10)."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pika
import pytest
import uvicorn
from starlette.types import Send

from tests.integration.management import ManagedBroker, ask, managed_broker
from tests.waiting import LIMIT_S, wait_until
from vouchmq.management.api.app import MOST_BODY_BYTES
from vouchmq.management.web.protocol import Limits, limited

PER_ADDRESS = Limits().per_address


@pytest.fixture(scope="module")
def managed(module_path: Path) -> Iterator[ManagedBroker]:
    with managed_broker(module_path, "--auth-failures-max", "5") as broker:
        yield broker


def connected(port: int, source: str = "127.0.0.1") -> socket.socket:
    made = socket.create_connection(("127.0.0.1", port), LIMIT_S, source_address=(source, 0))
    made.settimeout(LIMIT_S)
    return made


def first_line(octets: bytes) -> bytes:
    return octets.partition(b"\r\n")[0]


def heard(client: socket.socket) -> bytes:
    """What comes until the other side closes."""
    found = b""
    while piece := client.recv(65536):
        found += piece
    return found


def test_one_address_has_so_many_connections(managed: ManagedBroker) -> None:
    """Those of other addresses, and AMQP, go on; and so do its own when it lets go."""
    with ExitStack() as stack:
        for _ in range(PER_ADDRESS):
            stack.enter_context(connected(managed.port)).sendall(b"GET /api/overview HTTP/1.1\r\n")
        with connected(managed.port) as one_more:
            assert first_line(heard(one_more)) == b"HTTP/1.1 503 Service Unavailable"
        with connected(managed.port, "127.0.0.2") as other:
            other.sendall(b"GET / HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
            assert first_line(heard(other)) == b"HTTP/1.1 200 OK"
        with pika.BlockingConnection(pika.URLParameters(managed.process.url)) as connection:
            channel = connection.channel()
            channel.confirm_delivery()
            channel.queue_declare("q", durable=True)
            channel.basic_publish("", "q", b"x", pika.BasicProperties(delivery_mode=2))
    managed.process.wait_until(lambda: ask(managed.port, "GET", "/").status == 200)


def test_a_body_that_is_too_large_is_not_read_to_its_end(managed: ManagedBroker) -> None:
    got = managed.ask("POST", "/definitions", b"[" * (MOST_BODY_BYTES + 1))
    assert (got.status, got.body["error"]) == (413, "payload_too_large")
    assert managed.get("/whoami")["name"] == "guest"


def test_guessing_ends_in_an_error_of_its_own(managed: ManagedBroker) -> None:
    """The right password too, from there; other users go on."""
    managed.ask("PUT", "/users/victim", {"password": "right", "tags": "management"})
    answers = [
        managed.ask("GET", "/whoami", user="victim", password=f"guess {number}")
        for number in range(7)
    ]
    assert [got.status for got in answers] == [401] * 5 + [429] * 2
    assert answers[-1].body["error"] == "too_many_requests"
    assert answers[-1].headers["retry-after"] == "10"
    assert managed.ask("GET", "/whoami", user="victim", password="right").status == 429
    assert managed.get("/whoami")["name"] == "guest"


class Server:
    """An HTTP server with limits that answers each request with so many bytes."""

    def __init__(self, limits: Limits, answer_bytes: int = 1) -> None:
        self._answer = b"x" * answer_bytes
        self.http = limited(limits)
        config = uvicorn.Config(
            self._app, log_config=None, lifespan="off", http=self.http, ws="none", interface="asgi3"
        )
        self._server = uvicorn.Server(config)

    async def _app(self, scope: object, receive: object, send: Send) -> None:
        del scope, receive
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": self._answer})

    def play(self, client: Callable[[int], bytes]) -> bytes:
        """What a client, which is given the port, does beside it."""

        async def play() -> bytes:
            with socket.create_server(("127.0.0.1", 0)) as listener:
                task = asyncio.create_task(self._server.serve([listener]))
                async with asyncio.timeout(LIMIT_S):
                    found = await asyncio.to_thread(client, listener.getsockname()[1])
                self._server.should_exit = True
                await task
            return found

        return asyncio.run(play())


@pytest.mark.parametrize("begin", [b"", b"GET / HTTP/1.1\r\nx-one: "])
def test_a_head_that_does_not_come_is_not_waited_for(begin: bytes) -> None:
    def slow(port: int) -> bytes:
        with connected(port) as client:
            client.sendall(begin)
            return heard(client)

    found = Server(Limits(head_s=0.2)).play(slow)
    assert first_line(found) == b"HTTP/1.1 408 Request Timeout"


def test_the_second_head_of_a_connection_has_its_time_as_well() -> None:
    def slow(port: int) -> bytes:
        with connected(port) as client:
            client.sendall(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n")
            assert first_line(client.recv(65536)) == b"HTTP/1.1 200 OK"
            client.sendall(b"GET / HTTP/1.1\r\n")
            found = heard(client)
            return found[found.rindex(b"HTTP/1.1") :]

    found = Server(Limits(head_s=0.2)).play(slow)
    assert first_line(found) == b"HTTP/1.1 408 Request Timeout"


def test_an_answer_that_is_not_read_is_given_up() -> None:
    server = Server(Limits(unread_s=0.2), 50_000_000)

    def lazy(port: int) -> bytes:
        with connected(port) as client:
            client.sendall(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n")
            found = client.recv(100)
            assert server.http.addresses["127.0.0.1"] == 1
            wait_until(lambda: not server.http.addresses, lambda: "the connection goes on")
            return found

    assert first_line(server.play(lazy)) == b"HTTP/1.1 200 OK"


def exchanged(port: int, *pieces: bytes) -> bytes:
    """What comes for pieces, each sent when something has come for the one before."""
    found = b""
    with connected(port) as client:
        for piece in pieces[:-1]:
            client.sendall(piece)
            found += client.recv(65536)
        client.sendall(pieces[-1])
        return found + heard(client)


LOGIN = b"authorization: Basic Z3Vlc3Q6Z3Vlc3Q=\r\n"
EVENTS = b"GET /api/events HTTP/1.1\r\nhost: x\r\n" + LOGIN
GARBAGE = b"\xff\xfe\r\n\r\n"
CHUNKED = b"transfer-encoding: chunked\r\n\r\n"


@pytest.mark.parametrize(
    "pieces, status",
    [
        ((GARBAGE,), b"400"),
        ((b"GET / HTTP/1.1\r\nhost: x\r\n\r\n", GARBAGE), b"200"),
        # An answer is under way, and goes no further.
        ((EVENTS + CHUNKED, b"zz\r\n"), b"200"),
        # There has been one, to the first half of a request.
        ((b"POST /api/definitions HTTP/1.1\r\nhost: x\r\n" + CHUNKED, b"zz\r\n"), b"401"),
        ((b"POST /api/definitions HTTP/1.1\r\nhost: x\r\n" + LOGIN + CHUNKED + b"zz\r\n",), b"400"),
    ],
)
def test_broken_requests_leave_nothing_in_the_log(
    managed: ManagedBroker, pieces: tuple[bytes, ...], status: bytes
) -> None:
    before = managed.process.output()
    found = exchanged(managed.port, *pieces)
    assert first_line(found).split()[1] == status
    # A second answer only to what may be a second request.
    assert found.count(b"HTTP/1.1") == (2 if pieces[0].startswith(b"GET / ") else 1)
    with connected(managed.port) as client:
        upgrade = b"connection: close, upgrade\r\nupgrade: websocket\r\n\r\n"
        client.sendall(b"GET /api/whoami HTTP/1.1\r\nhost: x\r\n" + upgrade)
        assert first_line(heard(client)).split()[1] == b"401"
    assert managed.process.output() == before


@pytest.mark.parametrize(
    "credentials", [b"\xe9", b"Basic \xe9\xff", b"Basic Z3Vlc3Q6\xe9", b"Basic //8=", b"B\xe9sic x"]
)
def test_a_login_of_any_bytes_is_refused(managed: ManagedBroker, credentials: bytes) -> None:
    request = (
        b"GET /api/whoami HTTP/1.1\r\nhost: x\r\nconnection: close\r\nauthorization: %b\r\n\r\n"
    )
    found = exchanged(managed.port, request % credentials)
    assert first_line(found) == b"HTTP/1.1 401 Unauthorized"
    assert "internal_error" not in managed.process.output()


@pytest.mark.parametrize("value", [b"\xe9\xff", b'"', b"; =", b"-1"])
@pytest.mark.parametrize(
    "header", ["cookie", "x-csrf-token", "x-reason", "content-type", "if-none-match", "origin"]
)
def test_headers_of_any_bytes_break_nothing(
    managed: ManagedBroker, header: str, value: bytes
) -> None:
    named = header.encode() + b": " + value + b"\r\nconnection: close\r\n\r\n"
    for path in (b"/", b"/session", b"/api/whoami", b"/api/connections/nothing"):
        for method in (b"GET", b"POST", b"DELETE"):
            head = b"%b %b HTTP/1.1\r\nhost: x\r\ncontent-length: 0\r\n" % (method, path)
            found = exchanged(managed.port, head + LOGIN + named)
            assert int(first_line(found).split()[1]) < 500, (method, path, found)
    assert "internal_error" not in managed.process.output()
