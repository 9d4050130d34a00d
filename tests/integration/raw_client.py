"""A client that says exactly what a test wants said, well-formed or not.

Frames are made and read with pamqp; nothing of the broker's own codec is used.
"""

from __future__ import annotations

import socket
import struct
import time
from types import TracebackType
from typing import Any, TypeVar
from urllib.parse import unquote, urlsplit

import pamqp.commands as amqp
import pamqp.frame
import pamqp.header
from pamqp.base import Frame
from pamqp.common import FieldTable

from tests.waiting import LIMIT_S

PROTOCOL_HEADER = b"AMQP\x00\x00\x09\x01"
FRAME_END = 0xCE
METHOD, HEADER, BODY, HEARTBEAT = 1, 2, 3, 8
CAPABILITIES: FieldTable = {
    "authentication_failure_close": True,
    "basic.nack": True,
    "connection.blocked": True,
    "consumer_cancel_notify": True,
    "publisher_confirms": True,
}

Method = TypeVar("Method", bound=Frame)


class PeerClosedError(Exception):
    """The broker closed the TCP connection."""


def frame(kind: int, channel: int, payload: bytes) -> bytes:
    """One frame."""
    return struct.pack(">BHI", kind, channel, len(payload)) + payload + bytes([FRAME_END])


def method(channel: int, value: Frame) -> bytes:
    """A method frame."""
    return bytes(pamqp.frame.marshal(value, channel))


def content(
    channel: int,
    exchange: str,
    key: str,
    body: bytes,
    *,
    persistent: bool = False,
    mandatory: bool = False,
    frame_max: int = 131072,
) -> bytes:
    """A whole publish: method, header and body frames."""
    flags = b"\x10\x00\x02" if persistent else b"\x00\x00"
    header = struct.pack(">HHQ", 60, 0, len(body)) + flags
    step = frame_max - 8
    return b"".join(
        (
            method(
                channel,
                amqp.Basic.Publish(exchange=exchange, routing_key=key, mandatory=mandatory),
            ),
            frame(HEADER, channel, header),
            *(frame(BODY, channel, body[at : at + step]) for at in range(0, len(body), step)),
        )
    )


class RawClient:
    """A socket, and a buffer of what came in."""

    def __init__(
        self, url: str, *, limit_s: float = LIMIT_S, receive_buffer_bytes: int | None = None
    ) -> None:
        parts = urlsplit(url)
        self.user, self.password = parts.username or "guest", parts.password or "guest"
        self.vhost = unquote(parts.path[1:]) or "/"
        self.limit_s = limit_s
        self.tune: amqp.Connection.Tune | None = None
        self.server_properties: dict[str, Any] = {}
        self._buffer = bytearray()
        self._socket = socket.socket()
        if receive_buffer_bytes is not None:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer_bytes)
        self._socket.settimeout(limit_s)
        try:
            self._socket.connect((parts.hostname or "127.0.0.1", parts.port or 5672))
        except OSError:
            self._socket.close()
            raise
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def __enter__(self) -> RawClient:
        """For `with`: the socket is closed at the end, without an AMQP goodbye."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close the socket."""
        self._socket.close()

    @property
    def local_port(self) -> int:
        """Our end's port, by which the broker's side of the connection is found."""
        return int(self._socket.getsockname()[1])

    def send(self, data: bytes) -> None:
        """Send everything."""
        self._socket.sendall(data)

    def send_some(self, data: bytes, limit_s: float) -> int:
        """Send what the peer takes within the time, or before it hangs up; returns the bytes."""
        view, sent = memoryview(data), 0
        deadline = time.monotonic() + limit_s
        self._socket.settimeout(0.1)
        try:
            while sent < len(data) and time.monotonic() < deadline:
                try:
                    sent += self._socket.send(view[sent : sent + 1_000_000])
                except TimeoutError:
                    continue
                except ConnectionError:
                    break
        finally:
            self._socket.settimeout(self.limit_s)
        return sent

    def wait_at_most(self, limit_s: float) -> None:
        """Change how long sends and reads may take."""
        self.limit_s = limit_s
        self._socket.settimeout(limit_s)

    def call(self, channel: int, value: Frame, reply: type[Method]) -> Method:
        """Send a method and wait for its reply."""
        self.send(method(channel, value))
        return self.expect(reply)

    def reset(self) -> None:
        """Close with a TCP reset instead of an orderly end."""
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._socket.close()

    def handshake(self, *, heartbeat_s: int = 0, frame_max: int | None = None) -> RawClient:
        """Log in and open the virtual host of the URL; frame_max None takes what is offered."""
        try:
            self._log_in(heartbeat_s, frame_max)
        except BaseException:
            # `with RawClient(url).handshake()` has nothing to close yet.
            self._socket.close()
            raise
        return self

    def _log_in(self, heartbeat_s: int, frame_max: int | None) -> None:
        self.send(PROTOCOL_HEADER)
        start = self.expect(amqp.Connection.Start)
        self.server_properties = dict(start.server_properties or {})
        response = f"\0{self.user}\0{self.password}"
        self.send(
            method(
                0,
                amqp.Connection.StartOk(
                    client_properties={"capabilities": CAPABILITIES}, response=response
                ),
            )
        )
        self.tune = self.expect(amqp.Connection.Tune)
        self.send(
            method(
                0,
                amqp.Connection.TuneOk(
                    channel_max=self.tune.channel_max,
                    frame_max=self.tune.frame_max if frame_max is None else frame_max,
                    heartbeat=heartbeat_s,
                ),
            )
        )
        self.call(0, amqp.Connection.Open(virtual_host=self.vhost), amqp.Connection.OpenOk)

    def open_channel(self, number: int = 1) -> int:
        """Open a channel and return its number."""
        self.call(number, amqp.Channel.Open(), amqp.Channel.OpenOk)
        return number

    def expect(self, kind: type[Method]) -> Method:
        """The next method of this kind; other frames before it are skipped.

        Raises:
            PeerClosedError: the connection ended first.
            AssertionError: the broker closed channel or connection instead.
        """
        while True:
            _, value = self.read()
            if isinstance(value, kind):
                return value
            assert not isinstance(value, amqp.Connection.Close | amqp.Channel.Close), (
                f"instead of {kind.__name__}: {value.reply_code} {value.reply_text}"
            )

    def expect_close(self) -> amqp.Connection.Close:
        """The broker's connection.close; other frames before it are skipped."""
        while True:
            _, value = self.read()
            if isinstance(value, amqp.Connection.Close):
                return value

    def confirmed_up_to(self, seqno: int) -> None:
        """Wait until everything up to `seqno` is acked (all messages are of one kind)."""
        while (self.expect(amqp.Basic.Ack).delivery_tag or 0) < seqno:
            pass

    def ready_count(self, queue: str) -> int:
        """Messages ready in a queue, asked on channel 1."""
        asked = amqp.Queue.Declare(queue=queue, passive=True)
        return self.call(1, asked, amqp.Queue.DeclareOk).message_count or 0

    def read(self) -> tuple[int, Any]:
        """The next frame: channel, and method, header, body or heartbeat as pamqp sees it."""
        _, channel, value = pamqp.frame.unmarshal(self.read_frame())
        return channel, value

    def read_frame(self) -> bytes:
        """The next frame as it came."""
        while True:
            if len(self._buffer) >= 7:
                size = int.from_bytes(self._buffer[3:7], "big")
                if len(self._buffer) >= size + 8:
                    data = bytes(self._buffer[: size + 8])
                    del self._buffer[: size + 8]
                    return data
            self._fill()

    def read_to_end(self) -> bytes:
        """Everything until the broker closes the connection."""
        try:
            while True:
                self._fill()
        except PeerClosedError:
            return bytes(self._buffer)

    def deliveries(self, count: int) -> list[tuple[amqp.Basic.Deliver, bytes]]:
        """The next so many deliveries with their bodies."""
        got: list[tuple[amqp.Basic.Deliver, bytes]] = []
        while len(got) < count:
            _, value = self.read()
            if isinstance(value, amqp.Basic.Deliver):
                got.append((value, self.body()))
        return got

    def body(self) -> bytes:
        """The body that follows a deliver, get-ok or return."""
        _, header = self.read()
        assert isinstance(header, pamqp.header.ContentHeader)
        pieces: list[bytes] = []
        while sum(map(len, pieces)) < header.body_size:
            _, piece = self.read()
            pieces.append(piece.value)
        return b"".join(pieces)

    def _fill(self) -> None:
        try:
            data = self._socket.recv(262_144)
        except ConnectionError as error:
            raise PeerClosedError from error
        if not data:
            raise PeerClosedError
        self._buffer += data
