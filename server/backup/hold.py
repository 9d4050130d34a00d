"""Has a running broker keep its files; the other side of `server/admin/backup.py`.

The connection stays open as long as they are needed: if this process ends, however it does, the
broker hears of it at once.
"""

from __future__ import annotations

import socket
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from vouchmq.server.admin.frames import FrameReader, frame
from vouchmq.server.backup.manifest import BackupError
from vouchmq.server.edge.control.client import READ_BYTES, NoBrokerError, ask, short_address
from vouchmq.store.journal.end_mark import EndMark
from vouchmq.store.journal.segments import SegmentExtent

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

ANSWER_LIMIT_S: Final = 60.0


class Hold(NamedTuple):
    """What is there to be copied."""

    number: int
    data_directory: str
    start: str
    end: EndMark
    extents: list[SegmentExtent]


@contextmanager
def held(directory: Path) -> Iterator[Hold]:
    """Have the files of a data directory kept by its broker; the hold ends with the block.

    Raises:
        NoBrokerError: none runs there
        BackupError: it refuses
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as peer:
        peer.settimeout(ANSWER_LIMIT_S)
        try:
            with short_address(directory) as address:
                peer.connect(address)
            peer.sendall(frame({"command": "backup begin"}))
            hold = _answer(peer)
        except (OSError, ValueError) as error:
            why = getattr(error, "strerror", None) or error
            raise NoBrokerError(f"no broker runs on data directory {directory} ({why})") from error
        yield hold


def confirm(directory: Path, hold: Hold) -> None:
    """End a hold, after everything was read.

    Raises:
        BackupError: the files were not kept to the end, so that the copy is worth nothing
    """
    try:
        answer = ask(directory, "backup end", ANSWER_LIMIT_S, number=hold.number)
    except NoBrokerError as error:
        raise BackupError(f"the broker ended during the backup: {error}") from error
    if not answer["ok"]:
        raise BackupError(str(answer.get("error", "the broker refuses")))


def _answer(peer: socket.socket) -> Hold:
    """What the broker says before it waits for the end.

    Raises:
        BackupError: it refuses
        ValueError: the broker has gone
    """
    frames = FrameReader()
    extents: list[SegmentExtent] = []
    while data := peer.recv(READ_BYTES):
        frames.add(data)
        for content in frames:
            if "ok" in content:
                raise BackupError(str(content.get("error", "the broker refuses")))
            extents += [SegmentExtent(*row) for row in content.get("rows", ())]
            if "backup" in content:
                return _hold(content["backup"], extents)
    raise ValueError("no answer")


def _hold(facts: dict[str, Any], extents: list[SegmentExtent]) -> Hold:
    return Hold(
        number=facts["number"],
        data_directory=facts["data_directory"],
        start=facts["start"],
        end=EndMark(*facts["end"]),
        extents=extents,
    )
