"""The control socket of a running broker: `DATA_DIR/control.sock`, for its owner alone.

Who may open the socket is what the mode of the file says (0600). `server/admin/frames.py` says what
goes over it. Must not know what the commands do.
"""

from __future__ import annotations

import asyncio
import os
import socket
from contextlib import suppress
from typing import TYPE_CHECKING, Final, cast

from vouchmq.server.admin.commands import refuse
from vouchmq.server.admin.frames import BadFrame, FrameReader, frame
from vouchmq.server.edge.control.client import NAME, short_address

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from vouchmq.server.admin.commands import ControlCommands

BACKLOG: Final = 64


def listening_socket(directory: Path) -> socket.socket:
    """Make the control socket of a data directory that is locked by this process.

    Raises:
        OSError: it cannot be made
    """
    remove(directory)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    before = os.umask(0o177)
    try:
        with short_address(directory) as address:
            listener.bind(address)
    except OSError:
        listener.close()
        raise
    finally:
        os.umask(before)
    listener.listen(BACKLOG)
    listener.setblocking(False)
    return listener


def remove(directory: Path) -> None:
    """The socket is of no use any more."""
    with suppress(FileNotFoundError):
        (directory / NAME).unlink()


class ControlPeer(asyncio.Protocol):
    """Somebody at the control socket: one request after the other, each answered to its end.

    Args:
        commands: what may be asked for
    """

    def __init__(self, commands: ControlCommands) -> None:
        self._commands = commands
        self._frames = FrameReader()
        self._transport: asyncio.Transport | None = None
        self._reply: ControlReply | None = None
        self.is_full = False
        self._is_taking = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See `asyncio.Protocol`."""
        # uvloop's is one in all but its name.
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        """See `asyncio.Protocol`."""
        self._frames.add(data)
        self._take_next()

    def connection_lost(self, exc: Exception | None) -> None:
        """See `asyncio.Protocol`."""
        del exc
        self._transport = None
        reply, self._reply = self._reply, None
        if reply is not None:
            reply.lose()

    def pause_writing(self) -> None:
        """See `asyncio.Protocol`."""
        self.is_full = True

    def resume_writing(self) -> None:
        """See `asyncio.Protocol`."""
        self.is_full = False
        if self._reply is not None:
            self._reply.go_on()

    def write(self, content: Mapping[str, object]) -> None:
        """Send one frame."""
        if self._transport is not None:
            self._transport.write(frame(content))

    def end(self) -> None:
        """The request has its answer."""
        self._reply = None
        self._take_next()

    def _take_next(self) -> None:
        """Do what has been asked for; what is sent while a command runs waits for its end."""
        # Most answer at once, from within: then it is this loop that goes on.
        if self._is_taking:
            return
        self._is_taking = True
        while self._transport is not None and self._reply is None and self._frames.has_frame:
            self._take_one(self._transport)
        self._is_taking = False

    def _take_one(self, transport: asyncio.Transport) -> None:
        reply = self._reply = ControlReply(self)
        try:
            request = self._frames.next()
        except BadFrame as error:
            refuse(reply, str(error))
            self._transport = None
            transport.close()
            return
        if request is not None:
            self._commands.run(request, reply)


class ControlReply:
    """The answer to one request; see `server.admin.commands.Reply`.

    Args:
        peer: who has asked
    """

    def __init__(self, peer: ControlPeer) -> None:
        self._peer: ControlPeer | None = peer
        self._waiting: Callable[[], None] | None = None
        self._when_gone: list[Callable[[], None]] = []

    @property
    def is_open(self) -> bool:
        """See `Reply`."""
        return self._peer is not None

    @property
    def is_full(self) -> bool:
        """See `Reply`."""
        return self._peer is not None and self._peer.is_full

    def send(self, content: Mapping[str, object], /) -> None:
        """See `Reply`."""
        if self._peer is not None:
            self._peer.write(content)

    def when_writable(self, job: Callable[[], None], /) -> None:
        """See `Reply`."""
        self._waiting = job

    def when_gone(self, job: Callable[[], None], /) -> None:
        """See `Reply`."""
        self._when_gone.append(job)

    def go_on(self) -> None:
        """The reader has read."""
        job, self._waiting = self._waiting, None
        if job is not None:
            job()

    def lose(self) -> None:
        """The reader has gone."""
        self._peer = self._waiting = None
        jobs, self._when_gone = self._when_gone, []
        for job in jobs:
            job()

    def __call__(self, facts: Mapping[str, object], /) -> None:
        """See `Reply`."""
        peer, self._peer = self._peer, None
        if peer is not None:
            self._when_gone.clear()
            peer.write(facts)
            peer.end()
