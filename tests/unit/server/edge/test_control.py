"""The control socket: requests in turn, answers whole, readers that go."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from vouchmq.server.admin.commands import Arguments, ControlCommands, Reply
from vouchmq.server.admin.frames import FrameReader, frame
from vouchmq.server.edge.control import client, peer


class Text(Arguments, frozen=True):
    text: str = ""


class Stage:
    """A control socket whose commands answer at once, with rows, or when a test says so."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.open: list[Reply] = []
        self.gone = asyncio.Event()
        self.come = asyncio.Event()
        self.commands = ControlCommands()
        self.commands.register(
            "echo", Text, lambda given, reply: reply({"ok": True, "text": given.text})
        )
        self.commands.register("rows", Arguments, self._rows)
        self.commands.register("later", Arguments, self._later)

    @staticmethod
    def _rows(_: Arguments, reply: Reply) -> None:
        reply.send({"columns": ["a", "b"]})
        reply.send({"rows": [[1, "x"], [2, "y"]]})
        reply.send({"rows": [[3, "z"]]})
        reply({"ok": True, "count": 3})

    def _later(self, _: Arguments, reply: Reply) -> None:
        self.open.append(reply)
        reply.when_gone(self.gone.set)
        self.come.set()


@asynccontextmanager
async def serving(directory: Path) -> AsyncIterator[Stage]:
    stage = Stage(directory)
    loop = asyncio.get_running_loop()
    server = await loop.create_unix_server(
        lambda: peer.ControlPeer(stage.commands), sock=peer.listening_socket(directory)
    )
    try:
        yield stage
    finally:
        server.close()
        peer.remove(directory)


async def connected(directory: Path) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    return await asyncio.open_unix_connection(str(directory / client.NAME))


async def answers(reader: asyncio.StreamReader, count: int) -> list[dict[str, Any]]:
    frames = FrameReader()
    got: list[dict[str, Any]] = []
    while len(got) < count and (data := await reader.read(4096)):
        frames.add(data)
        got += list(frames)
    return got


async def test_who_asks_gets_rows_by_their_columns_and_the_answer(tmp_path: Path) -> None:
    async with serving(tmp_path):
        rows = await asyncio.to_thread(lambda: list(client.ask_rows(tmp_path, "rows")))
        assert rows[:-1] == [{"a": 1, "b": "x"}, {"a": 2, "b": "y"}, {"a": 3, "b": "z"}]
        assert rows[-1] == {"ok": True, "count": 3, "columns": ["a", "b"]}
        answer = await asyncio.to_thread(client.ask, tmp_path, "echo", text="ü")
        assert answer == {"ok": True, "text": "ü"}


async def test_one_connection_asks_many_times_and_is_answered_in_order(tmp_path: Path) -> None:
    most = 5000
    async with serving(tmp_path) as stage:
        reader, writer = await connected(tmp_path)
        writer.write(b"".join(frame({"command": "echo", "text": str(n)}) for n in range(most)))
        writer.write(frame({"command": "later"}) + frame({"command": "echo", "text": "behind"}))
        got = await answers(reader, most)
        assert [each["text"] for each in got] == [str(number) for number in range(most)]
        await stage.come.wait()
        stage.open[0]({"ok": True, "text": "first"})
        assert not stage.open[0].is_open
        assert [each["text"] for each in await answers(reader, 2)] == ["first", "behind"]
        writer.close()


async def test_a_command_hears_that_its_reader_has_gone(tmp_path: Path) -> None:
    async with serving(tmp_path) as stage:
        _, writer = await connected(tmp_path)
        writer.write(frame({"command": "later"}))
        await stage.come.wait()
        writer.transport.abort()
        await stage.gone.wait()
        # Nobody hears it any more, and nothing happens.
        stage.open[0]({"ok": True})
        assert not stage.open[0].is_open


async def test_what_is_no_frame_is_told_and_ends_the_connection(tmp_path: Path) -> None:
    async with serving(tmp_path):
        reader, writer = await connected(tmp_path)
        writer.write(b'{"verb": "list queues"}\n')
        [answer] = await answers(reader, 2)
        assert (answer["ok"], answer["code"]) == (False, 400)
        assert await reader.read() == b""
        writer.close()


@pytest.mark.parametrize("make", [lambda _: None, peer.listening_socket])
def test_no_broker_runs_there(tmp_path: Path, make: Callable[[Path], Any]) -> None:
    listener = make(tmp_path)
    if listener is not None:
        listener.close()
    with pytest.raises(client.NoBrokerError, match="no broker runs on data directory"):
        client.ask(tmp_path, "echo")
