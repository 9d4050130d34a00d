"""A plain blocking client: connects, sets up and clears away; it never carries the load.

The connections it opens are handed to the load generator as file descriptors and come back
to be closed in order.
"""

from __future__ import annotations

import socket
from collections import deque
from dataclasses import dataclass
from types import TracebackType
from typing import Self
from urllib.parse import unquote, urlsplit

from bench import frames
from bench.frames import Frame

PATIENCE_S = 30.0


class BrokerError(Exception):
    """The broker answered with an error or ended the connection."""


@dataclass(frozen=True, slots=True)
class Address:
    """Where a broker listens and who we are there."""

    host: str
    port: int
    user: str = "guest"
    password: str = "guest"  # noqa: S105 - the predefined account of every AMQP broker
    vhost: str = "/"

    @classmethod
    def parse(cls, url: str) -> Address:
        """Read an amqp:// URL."""
        parts = urlsplit(url)
        if parts.scheme != "amqp" or not parts.hostname:
            raise ValueError(f"not an amqp:// URL: {url}")
        return cls(
            parts.hostname,
            parts.port or 5672,
            unquote(parts.username or "guest"),
            unquote(parts.password or "guest"),
            unquote(parts.path[1:]) or "/",
        )


def handshake_steps(address: Address, heartbeat_s: int = 0) -> list[tuple[int, bytes]]:
    """List what a client sends to get connected, each with the number of replies to wait for."""
    return [
        (1, frames.PROTOCOL_HEADER),
        (1, frames.start_ok(address.user, address.password)),
        (1, frames.tune_ok(heartbeat_s) + frames.connection_open(address.vhost)),
    ]


class Client:
    """One connection with channel 1 open; `start` is what the broker introduced itself with."""

    def __init__(self, address: Address) -> None:
        self.socket = socket.create_connection((address.host, address.port), timeout=PATIENCE_S)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._rest = b""
        self._frames: deque[Frame] = deque()
        self.start, *_ = [self.call(octets) for _, octets in handshake_steps(address)]
        self.call(frames.channel_open())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.drop()

    def call(self, octets: bytes) -> Frame:
        """Send a method and return the next one that comes back.

        Raises:
            BrokerError: with the reply text, when it is a close.
        """
        self.socket.sendall(octets)
        return self._next()

    def close(self) -> int:
        """Close in order; return how many deliveries came that nobody had counted.

        Raises:
            BrokerError: the broker closed first, or did not answer.
        """
        self.socket.settimeout(PATIENCE_S)  # the generator has left it non-blocking
        self.socket.sendall(frames.connection_close())
        uncounted = 0
        while (received := self._next()).ids != frames.CONNECTION_CLOSE_OK:
            uncounted += received.ids == (60, 60)
        self.socket.close()
        return uncounted

    def drop(self) -> None:
        """End the connection without a word."""
        self.socket.close()

    def _next(self) -> Frame:
        while not self._frames:
            try:
                octets = self.socket.recv(65536)
            except OSError as error:
                raise BrokerError(f"no answer: {error}") from error
            if not octets:
                raise BrokerError("the broker ended the connection")
            found, self._rest = frames.split(self._rest + octets)
            self._frames.extend(found)
        received = self._frames.popleft()
        if received.ids in (frames.CONNECTION_CLOSE, frames.CHANNEL_CLOSE):
            raise BrokerError(frames.reply_text(received))
        return received
