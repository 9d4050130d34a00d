"""A client and its servers: which one it is connected to, and when a request has failed."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, cast

import pytest

from tests.unit.server.replication.answers import First
from tests.unit.server.replication.scripted_server import (
    INFO,
    PATIENCE_S,
    Answer,
    Answerer,
    ScriptedServer,
    until,
)
from vouchmq.server.replication.addresses import Server
from vouchmq.server.replication.client import LATE_LOOK_S, LOOK_S, Client
from vouchmq.server.replication.connection import Connection, Options
from vouchmq.server.replication.credentials import Credentials
from vouchmq.server.replication.nats_protocol import Message


class Told:
    """What a client tells, as it happens."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self._changed = asyncio.Event()

    def add(self, line: str) -> None:
        """Something has happened."""
        self.lines.append(line)
        self._changed.set()

    async def wait_for(self, *parts: str) -> None:
        """Wait until a line with each of these parts has come."""
        async with asyncio.timeout(PATIENCE_S):
            while not all(any(part in line for line in self.lines) for part in parts):
                self._changed.clear()
                await self._changed.wait()

    def count(self, part: str) -> int:
        """How many lines say so."""
        return sum(part in line for line in self.lines)


@asynccontextmanager
async def connected(
    servers: Sequence[Server], told: Told, options: Options | None = None
) -> AsyncIterator[Client]:
    """A client that has been started."""
    client = Client(
        servers,
        options or Options(),
        asyncio.get_running_loop(),
        First(1),
        went_up=lambda: told.add("up"),
        went_down=lambda reason: told.add(f"down {reason}"),
    )
    client.start()
    try:
        yield client
    finally:
        client.stop()


def ask(client: Client, told: Told, subject: str, limit_s: float = PATIENCE_S) -> int:
    """A request with one answer."""

    def answered(message: Message) -> bool:
        told.add(f"{subject} answered {message.payload.decode()}")
        return True

    return client.request(
        subject,
        [b"question"],
        answered,
        lambda reason: told.add(f"{subject} failed {reason}"),
        limit_s=limit_s,
    )


def echo(subject: str, headers: bytes, payload: bytes) -> list[Answer]:
    """An answer to everything but `silent`."""
    return [] if subject == "silent" else [(b"", b"to " + payload)]


async def test_requests_are_answered() -> None:
    told = Told()
    async with ScriptedServer(echo) as server, connected([server.address], told) as client:
        await told.wait_for("up")
        assert client.is_up
        assert client.trouble == ""
        assert client.max_payload == 1048576
        ask(client, told, "one")
        ask(client, told, "two")
        await told.wait_for("one answered to question", "two answered to question")
        greeting = server.greetings[0]
        assert (greeting["headers"], greeting["no_responders"], greeting["echo"]) == (
            *(True, True, False),
        )


async def test_pings_of_the_server_are_answered() -> None:
    told = Told()
    async with ScriptedServer(echo) as server, connected([server.address], told) as client:
        await told.wait_for("up")
        server.send(b"PING\r\n")
        ask(client, told, "one")
        await told.wait_for("one answered")


async def test_the_next_server_is_taken() -> None:
    told = Told()
    async with ScriptedServer() as refusing, ScriptedServer() as silent, ScriptedServer() as good:
        refusing.error = "Authorization Violation"
        silent.greeting = b""
        async with ScriptedServer() as gone:
            nobody = gone.address
        servers = [nobody, refusing.address, silent.address, good.address]
        async with connected(servers, told, Options(handshake_limit_s=0.2)) as client:
            await told.wait_for("up")
            assert client.server == str(good.address)
            assert told.count("down") == 1
            assert (refusing.connections, silent.connections) == (1, 1)


async def test_each_address_of_a_name_is_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    told = Told()
    loop = asyncio.get_running_loop()
    asked: list[str] = []

    async with ScriptedServer() as server:
        port = server.address.port

        async def two_addresses(host: str, port: int) -> list[tuple[Any, ...]]:
            asked.append(host)
            # Nobody listens on the first; each address is named once for each kind of socket.
            where = [("127.0.0.2", port), ("127.0.0.2", port), ("127.0.0.1", port)]
            return [(2, kind, 6, "", each) for kind, each in enumerate(where)]

        monkeypatch.setattr(loop, "getaddrinfo", two_addresses)
        async with connected([Server("log.example", port, needs_tls=False)], told) as client:
            await told.wait_for("up")
            assert client.server == f"log.example:{port}"
    # To connect to an address asks for no name.
    assert set(asked) == {"log.example"}
    assert told.count("down") == 1


async def test_a_name_that_is_unknown_is_said_once(monkeypatch: pytest.MonkeyPatch) -> None:
    told = Told()

    async def nowhere(host: str, port: int) -> list[tuple[Any, ...]]:
        raise OSError(-2, "Name or service not known")

    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", nowhere)
    async with connected([Server("log.example", 4222, needs_tls=False)], told) as client:
        await told.wait_for("down")
        assert "log.example:4222: name look-up failed: Name or service not known" in client.trouble


async def test_it_goes_on_trying() -> None:
    told = Told()
    async with ScriptedServer() as server:
        server.error = "no"
        async with connected([server.address], told) as client:
            await told.wait_for("down")
            assert client.trouble == f"{server.address}: no"
            server.error = ""
            await told.wait_for("up")


async def test_a_lost_connection_fails_requests_once() -> None:
    told = Told()
    async with ScriptedServer(echo) as server, connected([server.address], told) as client:
        await told.wait_for("up")
        ask(client, told, "silent")
        await until(lambda: "silent" in server.asked)
        server.drop()
        await told.wait_for("silent failed", "down")
        ask(client, told, "early")
        await told.wait_for("early failed")
        await until(lambda: client.is_up)
        ask(client, told, "again")
        await told.wait_for("again answered")
        assert told.count("silent failed") == 1
        assert told.count("down") == 1


async def test_the_limit_is_the_age_of_the_request() -> None:
    """Other answers do not prolong it, and the server that gives them is kept."""
    told = Told()
    async with ScriptedServer(echo) as server, connected([server.address], told) as client:
        await told.wait_for("up")
        ask(client, told, "silent", limit_s=0.3)
        number = 0
        async with asyncio.timeout(PATIENCE_S):
            while not told.count("silent failed"):
                number += 1
                ask(client, told, f"n{number}.", limit_s=0.3)
                await told.wait_for(f"n{number}. answered", "up")
        assert number > 1
        assert told.count("down") == 0


class HandLoop:
    """A loop whose clock and timers a test moves by hand."""

    def __init__(self) -> None:
        self.now = 100.0
        self.due: Callable[[], None] = lambda: None

    def time(self) -> float:
        return self.now

    def call_later(self, delay: float, job: Callable[[], None]) -> None:
        del delay
        self.due = job

    def pass_time(self, seconds: float) -> None:
        """So late is the next timer."""
        self.now += seconds
        self.due()


class Silent:
    """A connection that is open, and on which nothing comes."""

    is_open = True
    is_silent = False
    received_count = 0

    def publish(self, *message: object) -> None:
        pass

    def ping(self) -> None:
        pass

    def close(self, reason: str) -> None:
        pass


def test_time_that_the_loop_has_missed_is_no_age() -> None:
    """The answer is in the socket when a busy loop is back, and timers may be due first."""
    loop, told = HandLoop(), Told()
    client = Client(
        [Server("n1", 4222, needs_tls=False)],
        Options(),
        cast("asyncio.AbstractEventLoop", loop),
        random.Random(1),
        went_up=lambda: None,
        went_down=told.add,
    )
    client._connection = cast("Connection", Silent())
    ask(client, told, "one.", limit_s=2.0)
    loop.pass_time(LOOK_S)
    loop.pass_time(30.0)
    assert told.lines == []
    # It is old when the loop could have heard the answer for so long.
    for _ in range(int(2.0 / LOOK_S) - int(LATE_LOOK_S / LOOK_S) - 2):
        loop.pass_time(LOOK_S)
    assert told.lines == []
    for _ in range(4):
        loop.pass_time(LOOK_S)
    assert told.lines == ["one. failed no answer after 2 s"]


async def test_a_late_answer_is_dropped() -> None:
    told = Told()
    async with ScriptedServer(echo) as server, connected([server.address], told) as client:
        await told.wait_for("up")
        ask(client, told, "silent", limit_s=0.1)
        await told.wait_for("silent failed no answer after 0.1 s")
        server.send_answer(server.replies[0], b"", b"late")
        ask(client, told, "one")
        await told.wait_for("one answered")
        assert told.count("silent answered") == 0


async def test_a_forgotten_request_is_not_answered() -> None:
    told = Told()
    async with ScriptedServer(echo) as server, connected([server.address], told) as client:
        await told.wait_for("up")
        client.forget(ask(client, told, "one"))
        ask(client, told, "two")
        await told.wait_for("two answered")
        assert told.count("one") == 0


async def test_a_silent_server_is_left() -> None:
    told = Told()
    async with (
        ScriptedServer(echo) as first,
        ScriptedServer(echo) as second,
        connected([first.address, second.address], told) as client,
    ):
        await told.wait_for("up")
        first.answers_pings = False
        ask(client, told, "silent", limit_s=0.2)
        await told.wait_for("silent failed", "down")
        await until(lambda: client.is_up)
        assert client.server == str(second.address)


def speaks_to(client: Client, server: ScriptedServer) -> bool:
    """Whether that server is the one that accepts requests."""
    return client.is_up and client.server == str(server.address)


async def test_a_silent_server_is_passed_over_while_others_answer() -> None:
    """One that is paused takes connections; each would cost the limit of the handshake."""
    told = Told()
    async with (
        ScriptedServer(echo) as first,
        ScriptedServer(echo) as second,
        ScriptedServer(echo) as third,
        connected([first.address, second.address, third.address], told) as client,
    ):
        await told.wait_for("up")
        first.answers_pings = False
        ask(client, told, "silent", limit_s=0.2)
        await told.wait_for("silent failed")
        for left, taken in [(second, third), (third, second), (second, third)]:
            await until(partial(speaks_to, client, left))
            left.drop()
            await until(partial(speaks_to, client, taken))
        assert first.connections == 1


async def test_a_silent_server_is_tried_again_when_no_other_answers() -> None:
    told = Told()
    options = Options(handshake_limit_s=0.2)
    async with (
        ScriptedServer(echo) as first,
        ScriptedServer(echo) as second,
        connected([first.address, second.address], told, options) as client,
    ):
        await told.wait_for("up")
        first.answers_pings = second.answers_pings = False
        ask(client, told, "silent", limit_s=0.2)
        await told.wait_for("silent failed", "down")
        await until(lambda: second.connections and first.connections > 1)
        first.answers_pings = True
        await until(lambda: client.is_up)
        assert client.server == str(first.address)


async def test_a_server_that_stops_is_left() -> None:
    told = Told()
    async with (
        ScriptedServer(echo) as first,
        ScriptedServer(echo) as second,
        connected([first.address, second.address], told) as client,
    ):
        await told.wait_for("up")
        first.send(b'INFO {"ldm":true}\r\n')
        await told.wait_for("down", "about to stop")
        await until(lambda: client.is_up)
        assert client.server == str(second.address)


@pytest.mark.parametrize(
    ("greeting", "info", "options", "reason"),
    [
        (b"HTTP/1.0 400\r\n", INFO, Options(), "is not NATS"),
        (None, {**INFO, "headers": False}, Options(), "needs nats-server 2.14 or later"),
        (None, INFO, Options(credentials=Credentials(seed="SU")), "asks for no signature"),
    ],
)
async def test_a_server_that_cannot_be_used(
    greeting: bytes | None, info: dict[str, Any], options: Options, reason: str
) -> None:
    told = Told()
    async with ScriptedServer(info=info) as server:
        server.greeting = greeting
        async with connected([server.address], told, options) as client:
            await told.wait_for("down")
            assert reason in client.trouble
            assert server.greetings == []


async def test_nothing_is_said_without_tls() -> None:
    told = Told()
    options = Options(credentials=Credentials(user="me", password="it"))
    async with ScriptedServer() as server:
        address = Server(server.address.host, server.address.port, needs_tls=True)
        async with connected([address], told, options) as client:
            await told.wait_for("down")
            assert "offers no TLS" in client.trouble
            assert server.greetings == []


async def test_a_client_that_stops_fails_its_requests() -> None:
    told = Told()
    async with ScriptedServer(echo) as server, connected([server.address], told) as client:
        await told.wait_for("up")
        ask(client, told, "silent")
        client.stop()
        assert told.lines[-1].startswith("silent failed")
        assert server.connections == 1


async def test_plain_messages_are_passed_on_over_each_connection() -> None:
    heard: list[bytes] = []
    told = Told()
    async with ScriptedServer(echo) as server, connected([server.address], told) as client:
        client.tell("others", b"lost, as there is no connection yet")
        client.listen("news", heard.append)
        await told.wait_for("up")
        server.send(b"MSG news 2 1\r\nx\r\n")
        await until(lambda: heard == [b"x"])
        client.listen("more", heard.append)
        client.listen("more", heard.append)
        ask(client, told, "one")
        await told.wait_for("one answered")
        assert server.subscriptions[1:] == ["news", "more"]
        client.tell("others", b"from here")
        await until(lambda: "others" in server.asked)
        server.drop()
        await until(lambda: server.connections == 2 and client.is_up)
        server.send(b"MSG more 3 1\r\ny\r\n")
        await until(lambda: heard == [b"x", b"y"])
        assert server.subscriptions[4:] == ["news", "more"]


def named(name: str, answer: Answerer = echo) -> ScriptedServer:
    """A server that calls itself so."""
    return ScriptedServer(answer, {**INFO, "server_name": name})


async def test_the_preferred_server_is_taken_without_a_failed_request() -> None:
    told = Told()
    async with named("a") as first, named("b") as second, named("c") as third:
        servers = [second.address, first.address, third.address]
        async with connected(servers, told) as client:
            await told.wait_for("up")
            assert client.server == str(second.address)
            client.listen("news", lambda payload: told.add(f"news {payload.decode()}"))
            client.prefer("c")
            # The first candidate has another name.
            await until(lambda: client.server == str(third.address))
            assert (first.connections, third.connections) == (1, 1)
            await until(lambda: not (first.writers or second.writers))
            assert "news" in third.subscriptions
            ask(client, told, "one")
            await told.wait_for("one answered")
            client.prefer("c")
            assert third.connections == 1
            assert told.count("down") + told.count("failed") == 0


async def test_a_server_is_changed_only_between_two_requests() -> None:
    """An answer could be lost with the connection, or come twice."""
    told = Told()
    async with (
        named("a") as first,
        named("b") as second,
        connected([second.address, first.address], told) as client,
    ):
        await told.wait_for("up")
        ask(client, told, "silent")
        client.prefer("a")
        await until(lambda: first.greetings)
        ask(client, told, "one")
        await told.wait_for("one answered")
        assert client.server == str(second.address)
        assert first.subscriptions == []
        # The next request is made within the call that brings the last answer.
        second.send_answer(second.replies[0], b"", b"late")
        await told.wait_for("silent answered late")
        ask(client, told, "two")
        await told.wait_for("two answered")
        assert client.server == str(first.address)
    assert told.count("failed") == 0


async def test_a_preferred_server_that_was_left_or_refuses_is_not_tried_again() -> None:
    told = Told()
    async with (
        named("a") as first,
        named("b") as second,
        connected([second.address, first.address], told) as client,
    ):
        await told.wait_for("up")
        client.leave_server("a test")
        await until(lambda: client.is_up and client.server == str(first.address))
        client.prefer("b")
        await asyncio.sleep(0)
        assert second.connections == 1
    async with named("a") as first, named("b") as second:
        first.error = "no"
        async with connected([second.address, first.address], told) as client:
            await until(lambda: client.is_up)
            client.prefer("a")
            await until(lambda: first.connections == 1 and not first.writers)
            client.prefer("a")
            ask(client, told, "one")
            await told.wait_for("one answered")
            assert client.server == str(second.address)
            assert first.connections == 1


async def test_a_lost_connection_takes_the_second_with_it() -> None:
    told = Told()
    async with (
        named("a") as first,
        named("b") as second,
        connected([second.address, first.address], told) as client,
    ):
        await told.wait_for("up")
        ask(client, told, "silent")
        client.prefer("a")
        await until(lambda: first.greetings)
        second.drop()
        await told.wait_for("silent failed")
        await until(lambda: client.is_up)
        ask(client, told, "one")
        await told.wait_for("one answered")
        assert client.server == str(first.address)
        await until(lambda: len(first.writers) == 1)
