"""A broker that plays a script: it says what a test wants said, when and in whatever pieces.

Logs clients in by itself and then hands the connection to the test's script, which runs in a
thread; what goes wrong there is raised when the peer is closed.
"""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Callable, Iterator
from typing import TypeAlias, TypeVar

import pamqp.commands as amqp
from pamqp import base, body, frame, header, heartbeat
from pamqp.common import FieldTable

PATIENCE_S = 60.0
SERVER_PROPERTIES: FieldTable = {
    "product": "script",
    "capabilities": {"basic.nack": True, "other": False},
}

Read: TypeAlias = base.Frame | header.ContentHeader | body.ContentBody | heartbeat.Heartbeat
Method = TypeVar("Method", bound=base.Frame)


class Session:
    """One client's connection, from the broker's side."""

    def __init__(self, connection: socket.socket) -> None:
        self.socket = connection
        # Without it, two sends in a row wait for each other.
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._rest = b""
        self.over = threading.Event()

    def send(self, *frames: bytes) -> None:
        """Send bytes in one piece."""
        self.socket.sendall(b"".join(frames))

    def say(self, method: base.Frame, channel: int = 0) -> None:
        """Send a method."""
        self.send(frame.marshal(method, channel))

    def read(self, limit_s: float = PATIENCE_S) -> tuple[int, Read]:
        """The next frame and its channel; TimeoutError when none comes, EOFError at the end."""
        self.socket.settimeout(limit_s)
        while True:
            if len(self._rest) >= 7:
                size = struct.unpack_from(">I", self._rest, 3)[0] + 8
                if len(self._rest) >= size:
                    raw, self._rest = self._rest[:size], self._rest[size:]
                    _, channel, read = frame.unmarshal(raw)
                    assert not isinstance(read, header.ProtocolHeader)
                    return channel, read
            more = self.socket.recv(1 << 16)
            if not more:
                raise EOFError
            self._rest += more

    def frames(self, limit_s: float) -> Iterator[Read]:
        """The frames that come until nothing comes for so long, or the client says good-bye."""
        try:
            while True:
                read = self.read(limit_s)[1]
                if isinstance(read, amqp.Connection.Close):
                    self.say(amqp.Connection.CloseOk())
                    return
                yield read
        except (TimeoutError, EOFError, ConnectionError):
            return

    def expect(self, kind: type[Method], *, is_answered: bool = True) -> tuple[int, Method]:
        """Read a method of this kind, heartbeats apart, and answer it if it has one answer."""
        channel, read = self.read()
        while isinstance(read, heartbeat.Heartbeat):
            channel, read = self.read()
        assert isinstance(read, kind), f"{read.name} where {kind.name} was due"
        if is_answered and len(kind.valid_responses) == 1:
            answer = kind.valid_responses[0].split(".")
            self.say(getattr(getattr(amqp, answer[0]), answer[1])(), channel)
        return channel, read

    def open_channel(self) -> int:
        """Let the client open a channel; its number."""
        return self.expect(amqp.Channel.Open)[0]


class ScriptedPeer:
    """Listens on a port of its own for one client after the other; a context manager."""

    def __init__(
        self,
        script: Callable[[Session], None] = lambda _: None,
        *,
        heartbeat_s: int = 0,
        frame_max: int = 131072,
        logs_in: bool = True,
    ) -> None:
        self._script = script
        self._heartbeat_s = heartbeat_s
        self._frame_max = frame_max
        self._logs_in = logs_in
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self.url = f"amqp://user:geheim@127.0.0.1:{self.port}/shop"
        self.tuned: amqp.Connection.TuneOk | None = None
        self.vhost = ""
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._serve, daemon=True)

    def __enter__(self) -> ScriptedPeer:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            # The script ends by itself, or with the client's connection.
            self._thread.join(PATIENCE_S)
        self._listener.close()
        if self._error is not None:
            raise self._error

    def _serve(self) -> None:
        try:
            connection, _ = self._listener.accept()
        except OSError:
            return
        with connection:
            session = Session(connection)
            try:
                if self._logs_in:
                    self._log_in(session)
                self._script(session)
            except (EOFError, ConnectionError):
                pass
            except BaseException as error:  # noqa: BLE001 - raised in the test's own thread
                self._error = error

    def _log_in(self, session: Session) -> None:
        assert session.socket.recv(8, socket.MSG_WAITALL) == b"AMQP\x00\x00\x09\x01"
        session.say(amqp.Connection.Start(0, 9, SERVER_PROPERTIES, "PLAIN AMQPLAIN", "en_US"))
        session.expect(amqp.Connection.StartOk, is_answered=False)
        session.say(amqp.Connection.Tune(2047, self._frame_max, self._heartbeat_s))
        self.tuned = session.expect(amqp.Connection.TuneOk, is_answered=False)[1]
        self.vhost = session.expect(amqp.Connection.Open)[1].virtual_host


def content(channel: int, size: int, *pieces: bytes) -> bytes:
    """A content header that announces `size` bytes, and some body frames."""
    head = struct.pack(">BHIHHQH", 2, channel, 14, 60, 0, size, 0) + b"\xce"
    return head + b"".join(
        struct.pack(">BHI", 3, channel, len(piece)) + piece + b"\xce" for piece in pieces
    )


def delivery(channel: int, tag: int, text: bytes, announced: int | None = None) -> bytes:
    """A delivery; with `announced` its header tells of that many bytes."""
    method = amqp.Basic.Deliver("c", tag, redelivered=False, exchange="", routing_key="q")
    size = len(text) if announced is None else announced
    return frame.marshal(method, channel) + content(channel, size, *([text] if text else []))


def published(session: Session, count: int) -> int:
    """Read `count` whole publishes; the bytes of the biggest frame seen."""
    biggest = 0
    while count:
        channel, read = session.read()
        assert channel
        if isinstance(read, header.ContentHeader):
            missing = read.body_size
            while missing:
                piece = session.read()[1]
                assert isinstance(piece, body.ContentBody)
                biggest = max(biggest, len(piece.value) + 8)
                missing -= len(piece.value)
            count -= 1
    return biggest
