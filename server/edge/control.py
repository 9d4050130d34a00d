"""The control socket of a running broker: `DATA_DIR/control.sock`, for its owner alone.

    one line of JSON in: {"verb": "ledger status"}  ─▶  one line out: {"ok": true, …}, then the end
    {"verb": "list queues"}  ─▶  a line for each row, then that line

Who may open the socket is what the mode of the file says (0600). Must not know what the
commands do.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Final, cast

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    from vouchmq.server.admin.commands import ControlCommands

NAME: Final = "control.sock"
# The command that tells where the broker listens.
LISTENERS: Final = "listeners"
MOST_OCTETS: Final = 65536
BACKLOG: Final = 16
# A command that takes inventories may take its time.
ANSWER_LIMIT_S: Final = 600.0


class NoBrokerError(Exception):
    """Nobody answers on the control socket of a data directory."""


@contextmanager
def _address(directory: Path) -> Iterator[str]:
    """A name of the socket that is short enough, however long that of the directory is."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{descriptor}/{NAME}"
    finally:
        os.close(descriptor)


def listening_socket(directory: Path) -> socket.socket:
    """Make the control socket of a data directory that is locked by this process.

    Raises:
        OSError: it cannot be made
    """
    remove(directory)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    before = os.umask(0o177)
    try:
        with _address(directory) as address:
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


def ask(directory: Path, verb: str, limit_s: float = ANSWER_LIMIT_S) -> dict[str, Any]:
    """Have the broker that runs on a data directory do something; gives its answer.

    Raises:
        NoBrokerError: none runs there, or it does not answer
    """
    *_, answer = ask_rows(directory, verb, limit_s)
    return answer


def ask_rows(
    directory: Path, verb: str, limit_s: float = ANSWER_LIMIT_S
) -> Iterator[dict[str, Any]]:
    """The same, of a command that answers with rows: they come first, the answer last.

    Raises:
        NoBrokerError: none runs there, or it does not answer to the end
    """
    asked = json.dumps({"verb": verb}).encode() + b"\n"
    found: dict[str, Any] = {}
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as peer:
            peer.settimeout(limit_s)
            with _address(directory) as address:
                peer.connect(address)
            peer.sendall(asked)
            with peer.makefile("rb") as lines:
                for line in lines:
                    found = json.loads(line)
                    yield found
    except (OSError, ValueError) as error:
        why = error.strerror or str(error) if isinstance(error, OSError) else "no answer"
        raise NoBrokerError(f"no broker runs on data directory {directory} ({why})") from error
    if "ok" not in found:
        raise NoBrokerError(f"no broker runs on data directory {directory} (no answer)")


class Peer(asyncio.Protocol):
    """Somebody at the control socket.

    Args:
        commands: what may be asked for
    """

    def __init__(self, commands: ControlCommands) -> None:
        self._commands = commands
        self._heard = b""
        self._transport: asyncio.Transport | None = None
        self.is_full = False
        self._waiting: Callable[[], None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See `asyncio.Protocol`."""
        # uvloop's is one in all but its name.
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        """See `asyncio.Protocol`."""
        self._heard += data
        if b"\n" in self._heard:
            line, self._heard = self._heard.split(b"\n", 1)[0], b""
            self._obey(line)
        elif len(self._heard) > MOST_OCTETS:
            self({"ok": False, "error": "too long"})

    def connection_lost(self, exc: Exception | None) -> None:
        """See `asyncio.Protocol`."""
        del exc
        self._transport = self._waiting = None

    def pause_writing(self) -> None:
        """See `asyncio.Protocol`."""
        self.is_full = True

    def resume_writing(self) -> None:
        """See `asyncio.Protocol`."""
        self.is_full = False
        job, self._waiting = self._waiting, None
        if job is not None:
            job()

    @property
    def is_open(self) -> bool:
        """See `commands.Reply`."""
        return self._transport is not None

    def send(self, lines: bytes) -> None:
        """See `commands.Reply`."""
        if self._transport is not None:
            self._transport.write(lines)

    def when_writable(self, job: Callable[[], None]) -> None:
        """See `commands.Reply`."""
        self._waiting = job

    def __call__(self, facts: Mapping[str, object], /) -> None:
        """See `commands.Reply`."""
        if self._transport is not None:
            self._transport.write(json.dumps(facts).encode() + b"\n")
            self._transport.close()
            self._transport = None

    def _obey(self, line: bytes) -> None:
        try:
            request = json.loads(line)
            command = self._commands.find(request["verb"])
        except (ValueError, KeyError, TypeError):
            self({"ok": False, "error": "expected a JSON object with a verb"})
            return
        if command is None:
            self({"ok": False, "error": "no such verb", "verbs": self._commands.names})
        else:
            command(self)
