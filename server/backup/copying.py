"""A backup of a running broker: one directory for each, which shares files with the one before.

    TARGET/2026-11-23T120000Z/            complete: it appears under this name in one step
        0000000000000007.journal          a link to that of the backup before, or copied
        journal.end                       where the copy ends: what is missing before it is damage
        backup.json                       see `manifest.py`
    TARGET/2026-11-23T130000Z.partial/    under way, or left by one that died; the next removes it

A segment only grows, and its generation and salt are used once. So of one that has the same size as
in the backup before, nothing has to be copied, and what is copied is what a kill of the broker at
the moment of `backup begin` would have left: all that was confirmed until then, and no half of any
decision.
"""

from __future__ import annotations

import fcntl
import os
import shutil
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Final, NamedTuple

from vouchmq.server.backup import manifest as m
from vouchmq.server.backup.hold import confirm, held
from vouchmq.server.version import VERSION
from vouchmq.store.checksum import crc32
from vouchmq.store.disk import BACKUP_NAME, FileDisk, ReadOnlyDisk
from vouchmq.store.inspection import Inspector
from vouchmq.store.journal.end_mark import EndMarkFile
from vouchmq.store.journal.segment import segment_name

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from datetime import datetime
    from pathlib import Path

    from vouchmq.server.backup.hold import Hold
    from vouchmq.store.journal.end_mark import EndMark
    from vouchmq.store.journal.segments import SegmentExtent

PARTIAL: Final = ".partial"
DAMAGED: Final = ".damaged"
PIECE_BYTES: Final = 1024 * 1024
# A sync of the broker on the same disk waits for what is written back of other files: with syncs of
# whole segments a confirm waited for up to 0.7 s.
SYNC_BYTES: Final = 4 * PIECE_BYTES
# Nobody writes to a file that several backups share.
FILE_MODE: Final = 0o400
DIRECTORY_MODE: Final = 0o700


class Backup(NamedTuple):
    """A backup that was made; sizes of its segments in bytes."""

    path: Path
    segments: int
    size_bytes: int
    copied_segments: int
    copied_bytes: int
    is_damaged: bool


class Pace:
    """So many bytes a second at most, so that the broker has the disk too.

    Args:
        bytes_s: 0 for no limit
        clock: monotonic seconds
        sleep: waits for so many seconds
    """

    def __init__(
        self, bytes_s: float, clock: Callable[[], float], sleep: Callable[[float], None]
    ) -> None:
        self._bytes_s = bytes_s
        self._clock = clock
        self._sleep = sleep
        self._began_at = clock()
        self._bytes = 0

    def spend(self, size: int) -> None:
        """So many were copied."""
        self._bytes += size
        if self._bytes_s:
            ahead_s = self._bytes / self._bytes_s - (self._clock() - self._began_at)
            if ahead_s > 0:
                self._sleep(ahead_s)


def back_up(
    data_dir: Path, target: Path, *, now: datetime, pace: Pace, is_checked: bool = True
) -> Backup:
    """Make a backup of a running broker below `target`.

    Args:
        data_dir: what the broker runs on
        target: directory of the backups of this broker; made if it is missing
        now: the time, UTC
        pace: how fast
        is_checked: read everything once more and verify it

    Raises:
        NoBrokerError: none runs there
        BackupError: it cannot be made; nothing of it is left
    """
    if target.resolve().is_relative_to(data_dir.resolve()):
        raise m.BackupError(f"{target} is inside of the data directory: choose another place")
    try:
        with _locked(target):
            return _back_up(data_dir, target, now, pace, is_checked=is_checked)
    except OSError as error:
        raise m.BackupError(f"cannot make a backup in {target}: {error}") from error


def _back_up(
    data_dir: Path, target: Path, now: datetime, pace: Pace, *, is_checked: bool
) -> Backup:
    for left in target.glob(f"*{PARTIAL}"):
        shutil.rmtree(left)
    final = _free_name(target, f"{now:%Y-%m-%dT%H%M%SZ}")
    partial = final.with_name(final.name + PARTIAL)
    with held(data_dir) as hold:
        before = newest(target, hold.data_directory)
        partial.mkdir(DIRECTORY_MODE)
        try:
            segments, copied = _copy_segments(data_dir, partial, hold, before, pace)
            confirm(data_dir, hold)
            write_end(partial, hold.end)
            manifest = m.Manifest(
                format=m.FORMAT,
                version=VERSION,
                data_directory=hold.data_directory,
                start=hold.start,
                taken_at=f"{now:%Y-%m-%dT%H:%M:%SZ}",
                end=hold.end,
                segments=segments,
            )
            write_file(partial / BACKUP_NAME, m.encode(manifest))
            sync_directory(partial)
            is_damaged = is_checked and not is_intact(partial)
            if is_damaged:
                final = final.with_name(final.name + DAMAGED)
            partial.rename(final)
            sync_directory(target)
        except BaseException:
            with suppress(OSError):
                shutil.rmtree(partial)
            raise
    return Backup(
        final,
        len(segments),
        manifest.size_bytes,
        len(copied),
        sum(each.size_bytes for each in copied),
        is_damaged,
    )


def newest(target: Path, data_directory: str) -> tuple[Path, m.Manifest] | None:
    """The newest complete backup of a data directory, and what it says."""
    found: list[tuple[str, Path, m.Manifest]] = []
    for path in target.iterdir():
        if path.name.endswith((PARTIAL, DAMAGED)) or not (path / BACKUP_NAME).exists():
            continue
        with suppress(m.BackupError):
            manifest = m.read(path)
            if manifest.data_directory == data_directory:
                found.append((path.name, path, manifest))
    return max(found)[1:] if found else None


def is_intact(directory: Path) -> bool:
    """Whether everything up to the end mark is there, and what was written."""
    inspection = Inspector(ReadOnlyDisk(directory)).inspect()
    return inspection.is_sealed and not inspection.damaged


def _copy_segments(
    data_dir: Path,
    partial: Path,
    hold: Hold,
    before: tuple[Path, m.Manifest] | None,
    pace: Pace,
) -> tuple[list[m.BackupSegment], list[m.BackupSegment]]:
    """Have all segments in `partial`: what they are, and which of them were copied."""
    known = {each.generation: each for each in before[1].segments} if before else {}
    segments: list[m.BackupSegment] = []
    copied: list[m.BackupSegment] = []
    for extent in hold.extents:
        name = segment_name(extent.generation)
        old = known.get(extent.generation)
        if before and old and _is_same(old, extent) and _is_linked(before[0], partial, old):
            segments.append(old)
            continue
        crc = copy_file(data_dir / name, partial / name, extent.size_bytes, pace)
        segments.append(m.BackupSegment(name=name, crc=crc, **extent._asdict()))
        copied.append(segments[-1])
    return segments, copied


def _is_same(old: m.BackupSegment, extent: SegmentExtent) -> bool:
    return (old.salt, old.size_bytes) == (extent.salt, extent.size_bytes)


def _is_linked(before: Path, partial: Path, old: m.BackupSegment) -> bool:
    """Share a file with the backup before; False if that is not possible, or it has changed."""
    try:
        if (before / old.name).stat().st_size != old.size_bytes:
            return False
        (partial / old.name).hardlink_to(before / old.name)
    except OSError:
        # Not every file system has links, and a file only so many.
        return False
    return True


def copy_file(source: Path, target: Path, size: int, pace: Pace, mode: int = FILE_MODE) -> int:
    """Copy the first `size` bytes of a file and sync them; their CRC-32.

    Raises:
        BackupError: the file is shorter
        OSError: a disk refused
    """
    crc = 0
    with source.open("rb", buffering=0) as reader, target.open("xb", buffering=0) as writer:
        os.fchmod(writer.fileno(), mode)
        left = size
        while left:
            piece = reader.read(min(left, PIECE_BYTES))
            if not piece:
                raise m.BackupError(f"{source} is shorter than it was")
            crc = crc32(piece, crc)
            left -= len(piece)
            view = memoryview(piece)
            while view:
                view = view[writer.write(view) :]
            if left % SYNC_BYTES == 0:
                os.fdatasync(writer.fileno())
            pace.spend(len(piece))
        os.fsync(writer.fileno())
    return crc


def write_end(directory: Path, mark: EndMark) -> None:
    """Say in a directory where its journal ends, in both places, and sync that."""
    disk = FileDisk(directory)
    file = EndMarkFile(disk)
    try:
        while not file.seal(mark):
            for target in file.targets():
                target.sync()
            file.synced()
    finally:
        file.close()
        disk.close()


def write_file(path: Path, content: bytes) -> None:
    """Write a small file and sync it."""
    with path.open("xb") as writer:
        os.fchmod(writer.fileno(), FILE_MODE)
        writer.write(content)
        writer.flush()
        os.fsync(writer.fileno())


def sync_directory(path: Path) -> None:
    """Have the names in a directory on disk."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _free_name(target: Path, name: str) -> Path:
    """Two in a second, and one that was damaged, have names of their own."""
    taken = {path.name.removesuffix(DAMAGED) for path in target.iterdir()}
    count = 1
    free = name
    while free in taken:
        count += 1
        free = f"{name}-{count}"
    return target / free


@contextmanager
def _locked(target: Path) -> Iterator[None]:
    """Nobody else makes backups in this directory meanwhile.

    Raises:
        BackupError: somebody does
        OSError: it cannot be made or opened
    """
    target.mkdir(DIRECTORY_MODE, parents=True, exist_ok=True)
    descriptor = os.open(target, os.O_RDONLY | os.O_DIRECTORY)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise m.BackupError(f"another backup is being made in {target}") from None
        yield
    finally:
        os.close(descriptor)
