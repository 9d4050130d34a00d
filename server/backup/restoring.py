"""A data directory from a backup.

Files are copied, never shared: a broker writes to them. `backup.json` comes first and goes last, so
that no broker starts on a directory that is not complete.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from vouchmq.server.backup import manifest as m
from vouchmq.server.backup.copying import (
    DIRECTORY_MODE,
    copy_file,
    is_intact,
    sync_directory,
    write_end,
    write_file,
)
from vouchmq.store.disk import BACKUP_NAME

if TYPE_CHECKING:
    from pathlib import Path

    from vouchmq.server.backup.copying import Pace

FILE_MODE: Final = 0o640


def restore(backup: Path, directory: Path, pace: Pace) -> m.Manifest:
    """Copy a backup to a new or empty directory, and verify it; what it holds.

    Raises:
        BackupError: it is damaged, or the directory cannot be used
    """
    manifest = m.read(backup)
    try:
        directory.mkdir(DIRECTORY_MODE, parents=True, exist_ok=True)
        # The root of a file system may have that one.
        if {path.name for path in directory.iterdir()} - {"lost+found"}:
            raise m.BackupError(
                f"{directory} is not empty: choose another, or remove what is in it"
            )
        write_file(directory / BACKUP_NAME, m.encode(manifest))
        for segment in manifest.segments:
            crc = copy_file(
                backup / segment.name,
                directory / segment.name,
                segment.size_bytes,
                pace,
                FILE_MODE,
            )
            if crc != segment.crc:
                raise m.BackupError(f"{backup / segment.name} is damaged: its checksum is wrong")
        write_end(directory, manifest.end)
        if not is_intact(directory):
            raise m.BackupError(
                f"{backup} is damaged: `vouchmq store check {backup}` says where; what could be "
                f"copied is in {directory}"
            )
        sync_directory(directory)
        (directory / BACKUP_NAME).unlink()
        sync_directory(directory)
    except OSError as error:
        raise m.BackupError(f"cannot restore {backup} to {directory}: {error}") from error
    return manifest
