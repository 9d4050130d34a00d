"""A NATS server in this process that answers as a test says, with a stream if that wants one."""

from __future__ import annotations

import asyncio
import json
from base64 import b64encode
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

from vouchmq.server.replication.addresses import Server
from vouchmq.server.replication.nats_protocol import Message

INFO: Final[dict[str, Any]] = {
    "server_id": "N",
    "version": "2.15.1",
    "headers": True,
    "max_payload": 1048576,
}
# Only to find out that something hangs.
PATIENCE_S: Final = 60.0
# Answers are (header, payload).
Answer = tuple[bytes, bytes]
Answerer = Callable[[str, bytes, bytes], list[Answer]]


def nobody(subject: str, headers: bytes, payload: bytes) -> list[Answer]:
    """No answers."""
    return []


async def until(holds: Callable[[], object]) -> None:
    """Let the loop run until something holds of which nobody tells."""
    async with asyncio.timeout(PATIENCE_S):
        while not holds():  # noqa: ASYNC110 - there is no event
            await asyncio.sleep(0.002)


class ScriptedServer:
    """Accepts clients until it is told otherwise: `async with`."""

    def __init__(self, answer: Answerer = nobody, info: dict[str, Any] | None = None) -> None:
        self.answer = answer
        self.info = INFO if info is None else info
        self.greeting: bytes | None = None
        self.answers_pings = True
        self.error = ""
        self.connections = 0
        self.greetings: list[dict[str, Any]] = []
        self.asked: list[str] = []
        self.subscriptions: list[str] = []
        self.replies: list[str] = []
        self.writers: set[asyncio.StreamWriter] = set()
        self._server: asyncio.Server

    async def __aenter__(self) -> ScriptedServer:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        return self

    async def __aexit__(self, *_: object) -> None:
        self.drop()
        self._server.close()
        await self._server.wait_closed()

    @property
    def address(self) -> Server:
        """As clients name it."""
        port: int = self._server.sockets[0].getsockname()[1]
        return Server("127.0.0.1", port, needs_tls=False)

    def drop(self) -> None:
        """Cut all connections."""
        for writer in list(self.writers):
            writer.transport.abort()

    def send(self, data: bytes) -> None:
        """Say something to all clients."""
        for writer in self.writers:
            writer.write(data)

    def send_answer(self, reply: str, header: bytes, payload: bytes) -> None:
        """Answer late."""
        self.send(_message(reply, header, payload))

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self.writers.add(writer)
        writer.write(
            b"INFO " + json.dumps(self.info).encode() + b"\r\n"
            if self.greeting is None
            else self.greeting
        )
        try:
            while line := await reader.readline():
                await self._do(line.split(), line, reader, writer)
        except (OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass  # the end of the test
        finally:
            self.writers.discard(writer)
            writer.close()

    async def _do(
        self,
        words: list[bytes],
        line: bytes,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        match words[0]:
            case b"CONNECT":
                self.greetings.append(json.loads(line[8:]))
                if self.error:
                    writer.write(b"-ERR '%b'\r\n" % self.error.encode())
                    writer.close()
            case b"SUB":
                self.subscriptions.append(words[1].decode())
            case b"PING":
                if self.answers_pings:
                    writer.write(b"PONG\r\n")
            case b"PUB" | b"HPUB":
                header_bytes = int(words[3]) if words[0] == b"HPUB" else 0
                content = (await reader.readexactly(int(words[-1]) + 2))[:-2]
                has_reply = words[0] == b"HPUB" or len(words) == 4
                subject, reply = words[1].decode(), words[2].decode() if has_reply else ""
                self.asked.append(subject)
                self.replies.append(reply)
                header, payload = content[:header_bytes], content[header_bytes:]
                for answer in self.answer(subject, header, payload):
                    writer.write(_message(reply, *answer))


def _message(reply: str, header: bytes, payload: bytes) -> bytes:
    size = len(header) + len(payload)
    subject = reply.encode()
    if not header:
        return b"MSG %b 1 %d\r\n%b\r\n" % (subject, size, payload)
    return b"HMSG %b 1 %d %d\r\n%b%b\r\n" % (subject, len(header), size, header, payload)


@dataclass
class ScriptedStream:
    """A stream with what may happen to one: its `answer` is that of a server."""

    records: dict[int, bytes] = field(default_factory=dict)
    last: int = 0
    # What the next appends are answered with instead; None for no answer, and it is stored.
    append_answers: list[list[Answer] | None] = field(default_factory=list)
    # The ends that the next questions are told instead.
    ends: list[int] = field(default_factory=list)
    # The replica that answers batches has nothing behind this.
    replica_last: int = 1 << 60
    # Messages of the next batch that get lost on the way.
    dropped: set[int] = field(default_factory=set)
    has_direct: bool = True
    # The replica that is asked for batches is paused.
    is_paused: bool = False
    batch_messages: int = 3
    # When the leader has heard each follower.
    heard_s: tuple[float, ...] = (0.2, 1.0)

    def answer(self, subject: str, headers: bytes, payload: bytes) -> list[Answer]:
        """What it says to a request."""
        if subject.startswith("$JS.API.STREAM.INFO"):
            last = self.ends.pop(0) if self.ends else self.last
            followers = [{"name": "n", "active": int(each * 1e9)} for each in self.heard_s]
            info = {"state": {"last_seq": last}, "cluster": {"leader": "n1", "replicas": followers}}
            return [(b"", json.dumps(info).encode())]
        if subject.startswith("$JS.API.DIRECT.GET") and self.is_paused:
            return []
        if subject.startswith("$JS.API.DIRECT.GET"):
            return self._batch(json.loads(payload)) if self.has_direct else [NO_LEADER]
        if subject.startswith("$JS.API.STREAM.MSG.GET"):
            return [(b"", self._next(json.loads(payload)["seq"]))]
        if subject.startswith("$JS.API.STREAM.PURGE"):
            self.records.clear()
            return [(b"", b'{"success":true}')]
        return self._append(headers, payload)

    def put(self, *payloads: bytes) -> None:
        """Somebody else appends."""
        for payload in payloads:
            self.last += 1
            self.records[self.last] = payload

    def _append(self, headers: bytes, payload: bytes) -> list[Answer]:
        answers = self.append_answers.pop(0) if self.append_answers else ACCEPT
        if answers is not ACCEPT and answers is not None:
            return answers
        expected = int(Message("", "", headers, b"").headers()["Nats-Expected-Last-Sequence"])
        if expected != self.last:
            return [(b"", WRONG_LAST)]
        self.put(payload)
        return [] if answers is None else [(b"", b'{"stream":"LOG","seq":%d}' % self.last)]

    def _batch(self, wanted: dict[str, int]) -> list[Answer]:
        there = [each for each in sorted(self.records) if wanted["seq"] <= each]
        there = [each for each in there if each <= self.replica_last]
        if not there:
            return [(b"NATS/1.0 404 Message Not Found\r\n\r\n", b"")]
        answers: list[Answer] = []
        previous = 0
        for sequence in there[: min(wanted["batch"], self.batch_messages)]:
            header = b"NATS/1.0\r\nNats-Sequence: %d\r\nNats-Last-Sequence: %d\r\n\r\n"
            if sequence not in self.dropped:
                answers.append((header % (sequence, previous), self.records[sequence]))
            previous = sequence
        self.dropped.clear()
        return [*answers, (b"NATS/1.0 204 EOB\r\n\r\n", b"")]

    def _next(self, first: int) -> bytes:
        for sequence in sorted(self.records):
            if sequence >= first:
                data = b64encode(self.records[sequence]).decode()
                return json.dumps({"message": {"seq": sequence, "data": data}}).encode()
        return b'{"error":{"code":404,"err_code":10037,"description":"no message found"}}'


ACCEPT: Final[list[Answer]] = []
NO_LEADER: Final[Answer] = (b"NATS/1.0 503\r\n\r\n", b"")
WRONG_LAST: Final = b'{"error":{"code":400,"err_code":10071,"description":"wrong last sequence"}}'
FULL: Final[Answer] = (
    b"",
    b'{"error":{"code":400,"err_code":10077,"description":"maximum bytes exceeded"}}',
)
