"""The control socket of a running broker: `DATA_DIR/control.sock`, for its owner alone.

    one line of JSON in: {"verb": "ledger status"}  ─▶  one line out: {"ok": true, …}, then the end

Who may open the socket is what the mode of the file says (0600). Must not know what the
verbs do.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
from collections.abc import Callable, Mapping
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Final, cast

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

NAME: Final = "control.sock"
MOST_OCTETS: Final = 65536
BACKLOG: Final = 16
# A command that takes inventories may take its time.
ANSWER_LIMIT_S: Final = 600.0

# Gets called with what the answer holds, once, now or later; in the thread of the loop.
Answer = Callable[[Mapping[str, object]], None]
# Does what a request asks for.
Verb = Callable[[Answer], None]


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
    asked = json.dumps({"verb": verb}).encode() + b"\n"
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as peer:
            peer.settimeout(limit_s)
            with _address(directory) as address:
                peer.connect(address)
            peer.sendall(asked)
            answer = b""
            while more := peer.recv(MOST_OCTETS):
                answer += more
        found: dict[str, Any] = json.loads(answer)
    except (OSError, ValueError) as error:
        why = error.strerror or str(error) if isinstance(error, OSError) else "no answer"
        raise NoBrokerError(f"no broker runs on data directory {directory} ({why})") from error
    return found


class Peer(asyncio.Protocol):
    """Somebody at the control socket.

    Args:
        verbs: what may be asked for
    """

    def __init__(self, verbs: Mapping[str, Verb]) -> None:
        self._verbs = verbs
        self._heard = b""
        self._transport: asyncio.Transport | None = None

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
            self._answer({"ok": False, "error": "too long"})

    def connection_lost(self, exc: Exception | None) -> None:
        """See `asyncio.Protocol`."""
        del exc
        self._transport = None

    def _obey(self, line: bytes) -> None:
        try:
            request = json.loads(line)
            verb = self._verbs.get(request["verb"])
        except (ValueError, KeyError, TypeError):
            self._answer({"ok": False, "error": "expected a JSON object with a verb"})
            return
        if verb is None:
            self._answer({"ok": False, "error": "no such verb"})
        else:
            verb(self._answer)

    def _answer(self, facts: Mapping[str, object]) -> None:
        if self._transport is not None:
            self._transport.write(json.dumps(facts).encode() + b"\n")
            self._transport.close()
            self._transport = None
