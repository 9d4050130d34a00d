"""A wire between a client and a broker that can be listened to and cut.

It tells which methods the client has sent, so that a test can say what the kit does on the wire
and not only what comes of it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import suppress

import pamqp.frame
from pamqp import base
from pamqp.commands import Basic, Channel, Tx
from yarl import URL

from tests import waiting

HEADER_OCTETS = 8
READ_OCTETS = 65536
SETTLED_S = 0.15


class Tap:
    """Forwards connections to a broker; made with `await Tap.start(url)`."""

    def __init__(self, broker: URL) -> None:
        self._broker = broker
        self._server: asyncio.Server | None = None
        self._pairs: list[asyncio.StreamWriter] = []
        self._tasks: set[asyncio.Task[None]] = set()
        # What the client has sent, in order: channel and method.
        self.sent: list[tuple[int, base.Frame]] = []
        self.connection_count = 0

    @classmethod
    async def start(cls, url: str) -> Tap:
        """Listen on a free port of loopback."""
        made = cls(URL(url))
        made._server = await asyncio.start_server(made._connected, "127.0.0.1", 0)
        return made

    @property
    def url(self) -> str:
        """Where a client connects to be listened to."""
        assert self._server is not None
        port: int = self._server.sockets[0].getsockname()[1]
        return str(self._broker.with_host("127.0.0.1").with_port(port))

    def settlements(self) -> list[str]:
        """Acks, rejects, transactions and recoveries, as text, in order."""
        return [text for text in map(told, self.methods()) if text]

    def methods(self) -> Iterator[base.Frame]:
        """The methods that were sent so far."""
        return (method for _, method in self.sent)

    def clear(self) -> None:
        """Forget what was sent so far."""
        self.sent.clear()

    def cut(self) -> None:
        """Break all connections, as a network does."""
        for writer in self._pairs:
            writer.transport.abort()
        self._pairs.clear()

    async def stop(self) -> None:
        """Listen no more."""
        assert self._server is not None
        self._server.close()
        self.cut()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        assert self._broker.host is not None
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self.connection_count += 1
        behind = await asyncio.open_connection(self._broker.host, self._broker.port)
        self._pairs += [writer, behind[1]]
        await asyncio.gather(
            self._forward(reader, behind[1], listened=True),
            self._forward(behind[0], writer, listened=False),
        )

    async def _forward(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, listened: bool
    ) -> None:
        heard = bytearray()
        skipped = HEADER_OCTETS
        with suppress(ConnectionError):
            while octets := await reader.read(READ_OCTETS):
                if listened:
                    heard += octets[skipped:]
                    skipped = max(0, skipped - len(octets))
                    self._listen(heard)
                writer.write(octets)
                await writer.drain()
        writer.close()

    def _listen(self, heard: bytearray) -> None:
        """Take the whole frames off the front."""
        while len(heard) > 7:
            size = 8 + int.from_bytes(heard[3:7], "big")
            if len(heard) < size:
                return
            _, channel, frame = pamqp.frame.unmarshal(bytes(heard[:size]))
            del heard[:size]
            if isinstance(frame, base.Frame):
                self.sent.append((channel, frame))


async def until(claim: Callable[[], bool]) -> None:
    """Wait until it holds; in the end the assertion that follows will tell that it did not.

    A little longer then, so that what should not happen had its chance.
    """
    with suppress(TimeoutError):
        await waiting.until(claim)
    await asyncio.sleep(SETTLED_S)


def told(method: base.Frame) -> str:
    """A method of acknowledgement as text, "" for any other."""
    match method:
        case Basic.Ack():
            return f"ack {method.delivery_tag}{' multiple' if method.multiple else ''}"
        case Basic.Reject() | Basic.Nack():
            return f"reject {method.delivery_tag}{' requeue' if method.requeue else ''}"
        case Basic.Recover():
            return f"recover{' requeue' if method.requeue else ''}"
        case Basic.Qos():
            return f"qos {method.prefetch_count}{' channel' if method.global_ else ''}"
        case Tx.Select() | Tx.Commit() | Tx.Rollback():
            return method.name.removeprefix("Tx.").lower()
        case Channel.Close():
            return "close"
        case _:
            return ""
