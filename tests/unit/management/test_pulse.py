"""How long the management process waits for its broker: as long as that goes on with anything.

The broker is played: it answers what is asked while the connection was opened, and no other thing
until it is told to go on. Nothing here is timed: it waits for what was asked.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest

from tests.waiting import LIMIT_S
from vouchmq.management.broker import CONNECTIONS, PROBE, Broker, BrokerUnavailable
from vouchmq.management.pulse import Patience
from vouchmq.server.admin.frames import FrameReader, frame
from vouchmq.server.edge.control.client import NAME

SHORT = Patience(look_s=0.005, probe_s=0.01, hung_s=0.2, hung_already_s=0.01)
# So many probes take longer than a broker may be silent.
MANY = 40


class PlayedBroker:
    """Answers commands but those that begin with `long`; when it hangs, none."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self._heard = asyncio.Event()
        self.goes_on = asyncio.Event()
        self.goes_on.set()
        self.long_is_done = asyncio.Event()

    @property
    def probes(self) -> int:
        return self.asked.count(PROBE)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        frames = FrameReader()
        with suppress(OSError, asyncio.CancelledError):
            while True:
                await self.goes_on.wait()
                data = await reader.read(1000)
                await self.goes_on.wait()
                if not data:
                    break
                frames.add(data)
                for content in frames:
                    await self._do(content["command"], writer)
        writer.close()

    async def _do(self, command: str, writer: asyncio.StreamWriter) -> None:
        self.asked.append(command)
        self._heard.set()
        if command == "watch":
            writer.write(frame({"columns": ["n"]}) + frame({"rows": [[1]]}))
            return
        if command == "long":
            await self.long_is_done.wait()
        writer.write(frame({"ok": True, "command": command}))

    async def has_asked(self, is_it: Callable[[], bool]) -> None:
        while not is_it():
            self._heard.clear()
            await self._heard.wait()


@asynccontextmanager
async def played(directory: Path) -> AsyncIterator[tuple[PlayedBroker, Broker]]:
    peer, broker = PlayedBroker(), Broker(directory, SHORT)
    server = await asyncio.start_unix_server(peer.serve, directory / NAME)
    try:
        async with asyncio.timeout(LIMIT_S):
            yield peer, broker
    finally:
        broker.close()
        peer.goes_on.set()
        peer.long_is_done.set()
        server.close()


def play(directory: Path, job: Callable[[PlayedBroker, Broker], Awaitable[None]]) -> None:
    async def run() -> None:
        async with played(directory) as (peer, broker):
            await job(peer, broker)

    asyncio.run(run())


def test_what_takes_long_is_waited_for_while_the_broker_goes_on(tmp_path: Path) -> None:
    async def job(peer: PlayedBroker, broker: Broker) -> None:
        asking = asyncio.create_task(broker.ask("long"))
        await peer.has_asked(lambda: peer.probes >= MANY)
        assert not asking.done()
        peer.long_is_done.set()
        assert (await asking)["command"] == "long"
        # Nobody waits: nothing is asked.
        before = peer.probes
        for _ in range(10):
            await asyncio.sleep(SHORT.probe_s)
        assert peer.probes <= before + 1

    play(tmp_path, job)


def test_a_broker_that_hangs_keeps_nobody_waiting(tmp_path: Path) -> None:
    async def job(peer: PlayedBroker, broker: Broker) -> None:
        with pytest.raises(BrokerUnavailable) as never:
            peer.goes_on.clear()
            await broker.ask("status")
        assert never.value.answered_at_ms is None
        peer.goes_on.set()
        await broker.ask("status")
        peer.goes_on.clear()
        # More than there are connections, one with more to send than the socket takes.
        asked = [broker.ask("status", text="x" * 3_000_000)]
        asked += [broker.ask("status") for _ in range(2 * CONNECTIONS)]
        for each in await asyncio.gather(*asked, return_exceptions=True):
            assert isinstance(each, BrokerUnavailable)
            assert str(each) == "the broker does not answer"
            assert each.answered_at_ms is not None
        # Known by now, and it has gone on since.
        with pytest.raises(BrokerUnavailable):
            await broker.ask("status")
        peer.goes_on.set()
        assert (await broker.ask("status"))["ok"]

    play(tmp_path, job)


def test_streams_of_a_broker_that_hangs_end(tmp_path: Path) -> None:
    async def job(peer: PlayedBroker, broker: Broker) -> None:
        async def read(stream: AsyncIterator[object], found: list[object]) -> None:
            async for each in stream:
                found.append(each)  # noqa: PERF401 - what comes before the end counts

        for stream, first in (
            (broker.watch("watch"), {"n": 1}),
            (broker.frames("watch"), {"columns": ["n"]}),
        ):
            found: list[object] = []
            reading = asyncio.create_task(read(stream, found))
            wanted = peer.probes + MANY
            await peer.has_asked(lambda wanted=wanted: peer.probes >= wanted)  # type: ignore[misc]
            peer.goes_on.clear()
            with pytest.raises(BrokerUnavailable):
                await reading
            assert found[0] == first
            peer.goes_on.set()

    play(tmp_path, job)


def test_what_is_held_asks_for_nothing(tmp_path: Path) -> None:
    """The management process announces itself for as long as it runs."""

    async def job(peer: PlayedBroker, broker: Broker) -> None:
        holding = asyncio.create_task(broker.hold("watch"))
        await peer.has_asked(lambda: "watch" in peer.asked)
        for _ in range(MANY):
            await asyncio.sleep(SHORT.probe_s)
        assert peer.probes == 0
        holding.cancel()

    play(tmp_path, job)
