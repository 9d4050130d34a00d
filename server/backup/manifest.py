"""What a backup says of itself: `backup.json`, in its directory.

Nothing starts a broker on a directory that has it (`store/disk.py`): files may be shared with other
backups, and a restore that was interrupted leaves it behind.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from msgspec import DecodeError, Struct, json

from vouchmq.store.disk import BACKUP_NAME
from vouchmq.store.journal.end_mark import EndMark

if TYPE_CHECKING:
    from pathlib import Path

FORMAT: Final = 1


class BackupError(Exception):
    """A backup or a restore that failed, in one line."""


class BackupSegment(Struct, frozen=True):
    """A file of a backup: the first `size_bytes` of a segment, and their CRC-32."""

    name: str
    generation: int
    salt: int
    size_bytes: int
    last_number: int
    crc: int


class Manifest(Struct, frozen=True):
    """What a backup holds.

    `data_directory` and `start` are those of the broker, `taken_at` is when it began, `end`
    where its journal ends.
    """

    format: int
    version: str
    data_directory: str
    start: str
    taken_at: str
    end: EndMark
    segments: list[BackupSegment]

    @property
    def size_bytes(self) -> int:
        """Of all segments."""
        return sum(each.size_bytes for each in self.segments)


def encode(manifest: Manifest) -> bytes:
    """The content of the file."""
    return json.format(json.encode(manifest), indent=1) + b"\n"


def read(directory: Path) -> Manifest:
    """The manifest of a backup.

    Raises:
        BackupError: it is not a backup, or a newer program made it
    """
    path = directory / BACKUP_NAME
    try:
        found = json.decode(path.read_bytes(), type=Manifest)
    except FileNotFoundError:
        raise BackupError(f"{directory} is not a backup: {_instead(directory)}") from None
    except (OSError, DecodeError) as error:
        raise BackupError(f"cannot read {path}: {error}") from error
    if found.format != FORMAT:
        raise BackupError(f"{directory} has format {found.format}, which a newer version made")
    return found


def _instead(directory: Path) -> str:
    """Why a directory is no backup: many take the directory of all backups for one."""
    found = sorted(path.parent.name for path in directory.glob(f"*/{BACKUP_NAME}"))
    if found:
        return f"the newest backup in it is {directory / found[-1]}"
    return f"it has no {BACKUP_NAME}"
