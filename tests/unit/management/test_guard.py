"""How many requests are let through at one time."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, NoReturn

from vouchmq.management.web.guard import Guard

if TYPE_CHECKING:
    from starlette.types import Message, Receive, Scope, Send


class Stage:
    """A guard in front of an application that answers when it is told to."""

    def __init__(self) -> None:
        self.go_on = asyncio.Event()
        self.guard = Guard(self._app, most=3, per_address=2)

    async def _app(self, scope: Scope, receive: Receive, send: Send) -> None:
        del scope, receive
        await self.go_on.wait()
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"{}"})

    def ask(self, address: str, path: str = "/api/queues") -> asyncio.Task[tuple[int, bytes]]:
        return asyncio.create_task(self._asked(address, path))

    async def _asked(self, address: str, path: str) -> tuple[int, bytes]:
        told: list[Message] = []

        async def receive() -> Message:
            return {"type": "http.request", "body": b"", "more_body": False}

        async def send(message: Message) -> None:
            told.append(message)

        scope = {"type": "http", "method": "GET", "path": path, "client": (address, 1)}
        await self.guard(scope, receive, send)
        start, end = told
        return start["status"], end["body"]


async def refused(task: asyncio.Task[tuple[int, bytes]]) -> tuple[int, str]:
    status, body = await task
    return status, json.loads(body)["error"]


def test_one_address_has_its_share() -> None:
    async def play() -> None:
        stage = Stage()
        under_way = [stage.ask("a"), stage.ask("a")]
        assert await refused(stage.ask("a")) == (429, "too_many_requests")
        under_way.append(stage.ask("b"))
        assert await refused(stage.ask("b")) == (503, "service_unavailable")
        # A stream of events lasts, and has a limit of its own.
        under_way.append(stage.ask("a", "/api/events"))
        stage.go_on.set()
        assert [status for status, _ in await asyncio.gather(*under_way)] == [200] * 4
        assert (await stage.ask("a"))[0] == 200

    asyncio.run(play())


def test_what_fails_is_not_under_way_any_more() -> None:
    async def broken(scope: Scope, receive: Receive, send: Send) -> None:
        raise ZeroDivisionError

    async def play() -> None:
        guard = Guard(broken, most=1, per_address=1)
        scope = {"type": "http", "method": "GET", "path": "/", "client": None}
        for _ in range(3):
            try:
                await guard(scope, never, never)
            except ZeroDivisionError:
                continue
            raise AssertionError("it was refused")

    asyncio.run(play())


async def never(*_: object) -> NoReturn:
    raise AssertionError
