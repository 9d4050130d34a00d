"""Questions to servers that a test waits for."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import TypeVar

from tests.engine.servers import PATIENCE_S, STREAM, SUBJECTS
from vouchmq.server.replication import jetstream
from vouchmq.server.replication.addresses import Server
from vouchmq.server.replication.client import Client
from vouchmq.server.replication.connection import Options
from vouchmq.server.replication.jetstream import API, JetStreamError, StreamInfo
from vouchmq.server.replication.log import NatsLog
from vouchmq.server.replication.nats_protocol import Message

T = TypeVar("T")


class Questions:
    """A client that asks one question after the other: `async with`."""

    def __init__(self, servers: Sequence[Server], options: Options | None = None) -> None:
        self._loop = asyncio.get_running_loop()
        self.up = asyncio.Event()
        self.reasons: list[str] = []
        self.client = Client(
            servers,
            options or Options(),
            self._loop,
            random.Random(),
            went_up=self.up.set,
            went_down=self.reasons.append,
        )

    async def __aenter__(self) -> Questions:
        self.client.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.client.stop()

    async def ask(self, subject: str, payload: bytes = b"", limit_s: float = 2.0) -> Message:
        """One question, one answer.

        Raises:
            JetStreamError: there is none
        """
        done: asyncio.Future[Message] = self._loop.create_future()

        def answered(message: Message) -> bool:
            if not done.done():
                done.set_result(message)
            return True

        def failed(reason: str) -> None:
            if not done.done():
                done.set_exception(JetStreamError(reason))

        number = self.client.request(subject, [payload], answered, failed, limit_s=limit_s)
        try:
            return await done
        finally:
            self.client.forget(number)

    async def keep_asking(
        self, subject: str, payload: bytes, parse: Callable[[Message], T], limit_s: float = 2.0
    ) -> T:
        """Ask until there is a good answer: there may be an election."""
        async with asyncio.timeout(PATIENCE_S):
            while True:
                try:
                    return parse(await self.ask(subject, payload, limit_s))
                except JetStreamError as error:
                    last = error
                    await asyncio.sleep(0.1)
        raise last

    async def info(self) -> StreamInfo:
        """The stream, as its leader sees it, as soon as it has one."""
        return await self.keep_asking(f"{API}STREAM.INFO.{STREAM}", b"", jetstream.parse_info)

    async def create_stream(
        self, replicas: int, *, max_bytes: int = 1 << 30, **changes: object
    ) -> None:
        """Make the stream, as an operator would; `changes` of its settings are mistakes."""
        settings = jetstream.stream_settings(
            STREAM, SUBJECTS, replicas=replicas, max_bytes=max_bytes, max_message_bytes=-1
        )
        request = jetstream.settings_request({**settings, **changes})
        await self.keep_asking(
            f"{API}STREAM.CREATE.{STREAM}", request, jetstream.parse_info, limit_s=5.0
        )

    async def wait_until_current(self, replicas: int = 2) -> StreamInfo:
        """Wait until the stream has a leader, and followers that have everything."""
        async with asyncio.timeout(PATIENCE_S):
            while True:
                info = await self.info()
                current = [each for each in info.cluster.replicas if each.current]
                if len(current) >= replicas:
                    return info
                await asyncio.sleep(0.1)


class Found:
    """What a reading finds: a `LogAnswers`."""

    def __init__(self) -> None:
        self.records: list[tuple[int, bytes]] = []
        self.last: int | None = None
        self.ends: asyncio.Event = asyncio.Event()
        self._engine: NatsLog | None = None

    async def read(self, engine: NatsLog, first: int) -> list[tuple[int, bytes]]:
        """Everything from a sequence on."""
        self._engine = engine
        engine.start(self)
        engine.read_from(first, first)
        try:
            async with asyncio.timeout(PATIENCE_S):
                await self.ends.wait()
        finally:
            engine.stop()
        return self.records

    def acked(self, token: int, sequence: int) -> None:
        raise AssertionError("nothing was sent")

    def refused(self, token: int) -> None:
        raise AssertionError("nothing was sent")

    def lost(self) -> None:
        if self._engine is not None:
            first = self.records[-1][0] + 1 if self.records else 1
            self._engine.read_from(first, first)

    def found(self, token: int, sequence: int, raw: bytes) -> None:
        self.records.append((sequence, raw))

    def ended(self, token: int, last: int) -> None:
        self.last = last
        self.ends.set()


async def read_all(
    servers: Sequence[Server], options: Options | None = None
) -> list[tuple[int, bytes]]:
    """Everything that the stream holds."""
    loop = asyncio.get_running_loop()
    engine = NatsLog(STREAM, servers, options or Options(), loop, random.Random())
    return await Found().read(engine, 1)


async def read_replica(server: Server) -> list[tuple[int, bytes]]:
    """Everything that this one server holds; it must be the only one that can answer."""
    records: list[tuple[int, bytes]] = []
    async with Questions([server]) as questions:
        await questions.up.wait()
        async with asyncio.timeout(PATIENCE_S):
            while True:
                try:
                    first = records[-1][0] + 1 if records else 1
                    batch = await _batch(questions, first)
                except JetStreamError:
                    await asyncio.sleep(0.1)
                    continue
                if not batch:
                    return records
                records += batch


async def _batch(questions: Questions, first: int) -> list[tuple[int, bytes]]:
    """A batch; empty when the replica has nothing from there on.

    Raises:
        JetStreamError: nobody answers
    """
    found: list[tuple[int, bytes]] = []
    done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def answered(message: Message) -> bool:
        try:
            stored = jetstream.parse_stored(message)
        except JetStreamError as error:
            if error.code == jetstream.NO_MESSAGE_FOUND:
                done.set_result(None)
            else:
                done.set_exception(error)
            return True
        if stored is None:
            done.set_result(None)
            return True
        found.append((stored.sequence, stored.raw))
        return False

    def failed(reason: str) -> None:
        done.set_exception(JetStreamError(reason))

    request = jetstream.batch_request(first, 1000, 1 << 20)
    questions.client.request(f"{API}DIRECT.GET.{STREAM}", [request], answered, failed, limit_s=3.0)
    await done
    return found
