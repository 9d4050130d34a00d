"""Asking a running broker over its control socket, with a plain blocking socket.

Commands of the command line import this: it must start fast, so no asyncio and no structlog. Must
not know what the commands do.
"""

from __future__ import annotations

import os
import socket
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from vouchmq.server.admin.frames import FrameReader, request_frame

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

NAME: Final = "control.sock"
# The command that tells where the broker listens.
LISTENERS: Final = "listeners"
READ_BYTES: Final = 65536
# A command that takes inventories may take its time.
ANSWER_LIMIT_S: Final = 600.0


class NoBrokerError(Exception):
    """Nobody answers on the control socket of a data directory."""


@contextmanager
def short_address(directory: Path) -> Iterator[str]:
    """A name of the socket that is short enough, however long that of the directory is."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{descriptor}/{NAME}"
    finally:
        os.close(descriptor)


def ask(
    directory: Path, command: str, limit_s: float = ANSWER_LIMIT_S, **arguments: object
) -> dict[str, Any]:
    """Have the broker that runs on a data directory do something; gives its answer.

    Raises:
        NoBrokerError: none runs there, or it does not answer
    """
    *_, answer = ask_rows(directory, command, limit_s, **arguments)
    return answer


def ask_rows(
    directory: Path, command: str, limit_s: float | None = ANSWER_LIMIT_S, **arguments: object
) -> Iterator[dict[str, Any]]:
    """The same, of a command that answers with rows: they come first, the answer last.

    Without a limit it waits for the next row as long as it takes.

    The answer of a listing has the names of its `columns`.

    Raises:
        NoBrokerError: none runs there, or it does not answer to the end
    """
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as peer:
            peer.settimeout(limit_s)
            with short_address(directory) as address:
                peer.connect(address)
            peer.sendall(request_frame({"command": command, **arguments}))
            yield from _answers(peer)
    except (OSError, ValueError) as error:
        why = error.strerror or str(error) if isinstance(error, OSError) else str(error)
        raise NoBrokerError(f"no broker runs on data directory {directory} ({why})") from error


def _answers(peer: socket.socket) -> Iterator[dict[str, Any]]:
    """Rows by their columns, then the answer.

    Raises:
        ValueError: the broker has gone before the end of its answer, or speaks something else
    """
    frames = FrameReader()
    columns: list[str] = []
    while data := peer.recv(READ_BYTES):
        frames.add(data)
        for content in frames:
            if "ok" in content:
                yield {**content, "columns": columns} if columns else content
                return
            columns = content.get("columns", columns)
            for row in content.get("rows", ()):
                yield dict(zip(columns, row, strict=True))
    raise ValueError("no answer")
