"""The only room that touches the operating system's files, behind the Disk protocol.

Production passes FileDisk, tests a simulated disk with the same verbs and worse manners.
It must not know what a block is. Every failure is an OSError as the kernel gave it; only
locking and opening the directory have errors of their own.
"""

import contextlib
import errno
import fcntl
import os
import stat
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Final, Protocol

from mypy_extensions import mypyc_attr

from vouchmq.store.errors import DataDirLocked, DataDirUnreadable

LOCK_NAME: Final = "lock"
# In a backup, and in a directory to which one is being restored: no broker may write there.
BACKUP_NAME: Final = "backup.json"
# What it holds: a process id and blanks.
_LOCK_BYTES: Final = 24
# Linux takes at most 1024 buffers in one call (UIO_MAXIOV).
_MAX_PARTS: Final = 1024
# What an error number says when there is no room; what was written before is as it was.
DISK_FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT})
_NOT_SUPPORTED: Final = frozenset({errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS})


class Syncable(Protocol):
    """Something whose writes a sync makes durable: a file, or the directory itself."""

    def sync(self) -> None:
        """Return when everything written so far is durable; raise OSError otherwise."""

    def fileno(self) -> int:
        """Return the descriptor, for a worker that syncs in another process."""


class DiskFile(Syncable, Protocol):
    """One open file; all positions and sizes in octets."""

    def write(self, parts: Sequence[bytes], offset: int) -> None:
        """Write all of `parts`, one after the other, at `offset`; page cache only."""

    def read(self, offset: int, size: int) -> bytes:
        """Return up to `size` octets from `offset`; fewer only at the end of the file."""

    def will_need(self, offset: int, size: int) -> None:
        """Have these octets read into memory meanwhile, so that `read` need not wait."""

    def size(self) -> int:
        """Return the size of the file."""

    def truncate(self, size: int) -> None:
        """Cut the file; durable after the next sync."""

    def close(self) -> None:
        """Give the descriptor back."""


class ReadableDisk(Protocol):
    """One data directory, as far as somebody who only looks needs it."""

    def listdir(self) -> list[str]:
        """Return the names in the directory, in no order."""

    def open(self, name: str) -> DiskFile:
        """Open an existing file for reading and writing."""


class Disk(Protocol):
    """One data directory. Create, rename and unlink are durable after `directory.sync()`."""

    directory: Syncable

    def lock(self) -> None:
        """Take the directory for this process; a second call is a no-op."""

    def listdir(self) -> list[str]:
        """Return the names in the directory, in no order."""

    def create(self, name: str, size: int) -> DiskFile:
        """Create (or empty) a file and reserve `size` octets of zeros for it."""

    def open(self, name: str) -> DiskFile:
        """Open an existing file for reading and writing."""

    def prepare(self, name: str, size: int) -> None:
        """Create a file like `create`; the name shows up only when it is complete."""

    def rename(self, old: str, new: str) -> None:
        """Give a file another name, replacing whatever had it."""

    def unlink(self, name: str) -> None:
        """Remove a file; a missing one is not an error."""

    def free_bytes(self) -> int:
        """Return the octets an unprivileged process may still write here."""

    def missing(self, names: Collection[str], newest: DiskFile) -> str:
        """Return what is not where it was: the directory, its lock or one of these files.

        `newest` is the open one of them; it may have been replaced. Empty if all is in place.
        """

    def entropy(self) -> int:
        """Return 64 unpredictable bits."""


class Calls:
    """Entered around each call of the thread that owns the disk which may have to wait for it.

    This one tells nobody.
    """

    def __enter__(self) -> None:
        """A call begins."""

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        """It has ended."""


_UNWATCHED: Final = Calls()
# Parts of a write whose sizes are added up one by one.
_FEW_PARTS: Final = 4

_sync_data: Final[Callable[[int], None]] = getattr(os, "fdatasync", os.fsync)


class _Directory:
    __slots__ = ("_calls", "_descriptor")

    def __init__(self, descriptor: int, calls: Calls) -> None:
        self._descriptor = descriptor
        self._calls = calls

    def sync(self) -> None:
        with self._calls:
            os.fsync(self._descriptor)

    def fileno(self) -> int:
        return self._descriptor


class _File:
    __slots__ = ("_calls", "_descriptor")

    def __init__(self, descriptor: int, calls: Calls = _UNWATCHED) -> None:
        self._descriptor = descriptor
        self._calls = calls

    def write(self, parts: Sequence[bytes], offset: int) -> None:
        with self._calls:
            if len(parts) <= _MAX_PARTS:
                self._write(parts, offset)
                return
            for start in range(0, len(parts), _MAX_PARTS):
                offset += self._write(parts[start : start + _MAX_PARTS], offset)

    def _write(self, parts: Sequence[bytes], offset: int) -> int:
        if len(parts) == 1:
            return self._write_one(parts[0], offset)
        written = os.pwritev(self._descriptor, parts, offset)
        wanted = 0
        if len(parts) > _FEW_PARTS:
            wanted = sum(map(len, parts))
        else:
            for part in parts:
                wanted += len(part)
        if written < wanted:
            self._write_rest(b"".join(parts), written, offset)
        return wanted

    def _write_one(self, part: bytes, offset: int) -> int:
        written = os.pwrite(self._descriptor, part, offset)
        if written < len(part):
            self._write_rest(part, written, offset)
        return len(part)

    def _write_rest(self, data: bytes, written: int, offset: int) -> None:
        with memoryview(data) as view:
            while written < len(data):
                count = os.pwrite(self._descriptor, view[written:], offset + written)
                if count == 0:
                    raise OSError(errno.EIO, "the disk accepted only a part of the data")
                written += count

    def read(self, offset: int, size: int) -> bytes:
        parts = []
        while size > 0:
            part = os.pread(self._descriptor, size, offset)
            if not part:
                break
            parts.append(part)
            offset += len(part)
            size -= len(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def will_need(self, offset: int, size: int) -> None:
        if hasattr(os, "posix_fadvise"):
            with contextlib.suppress(OSError):
                os.posix_fadvise(self._descriptor, offset, size, os.POSIX_FADV_WILLNEED)

    def size(self) -> int:
        return os.fstat(self._descriptor).st_size

    def truncate(self, size: int) -> None:
        with self._calls:
            os.ftruncate(self._descriptor, size)

    def sync(self) -> None:
        with self._calls:
            _sync_data(self._descriptor)

    def fileno(self) -> int:
        return self._descriptor

    def close(self) -> None:
        # The descriptor is gone whatever is said now; what counts is what a sync has said.
        with contextlib.suppress(OSError):
            os.close(self._descriptor)


def reserve(descriptor: int, size: int) -> None:
    """Make room for `size` octets, or leave it to the writes where that is unsupported."""
    if size <= 0 or not hasattr(os, "posix_fallocate"):
        return
    try:
        os.posix_fallocate(descriptor, 0, size)
    except OSError as error:
        if error.errno not in _NOT_SUPPORTED:
            raise


@mypyc_attr(allow_interpreted_subclasses=True)
class FileDisk:
    """A real directory.

    Args:
        directory: its path
        calls: entered around calls that change something, by the one thread that makes them

    Raises:
        DataDirUnreadable: the directory cannot be made or opened, or anybody may write to it.
    """

    def __init__(self, directory: str | os.PathLike[str], calls: Calls = _UNWATCHED) -> None:
        self.path = Path(directory)
        self._calls = calls
        self._lock_descriptor: int | None = None
        try:
            self._make_directory()
            self._descriptor = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError as error:
            raise DataDirUnreadable(
                f"cannot use data directory {self.path}: {error.strerror}{remedy(error, self.path)}"
            ) from error
        status = os.fstat(self._descriptor)
        mode = status.st_mode
        if mode & stat.S_IWOTH:
            os.close(self._descriptor)
            raise DataDirUnreadable(
                f"data directory {self.path} has mode {stat.S_IMODE(mode):04o}, so anybody can "
                f"write to it: chmod o-w {self.path}"
            )
        # Who else may see what is here, or remove it: others, or a group that may write. That of
        # root is the one in which containers run that are given any user.
        lax = stat.S_IRWXO | (stat.S_IWGRP if status.st_gid else 0)
        self.lax_mode = stat.S_IMODE(mode) if mode & lax else 0
        self.directory: Syncable = _Directory(self._descriptor, calls)

    def _make_directory(self) -> None:
        if self.path.is_dir():
            return
        if self.path.exists():
            raise NotADirectoryError(errno.ENOTDIR, "it is a file, not a directory")
        self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
        # The name of a new directory is durable only when its parent is synced.
        parent = os.open(self.path.absolute().parent, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(parent)
        finally:
            os.close(parent)

    def lock(self) -> None:
        """Take the lock of this directory until the process ends or `close` is called.

        Raises:
            DataDirLocked: another process has it.
            DataDirUnreadable: the lock file cannot be written, or the directory is a backup.
        """
        if self._lock_descriptor is not None:
            return
        if BACKUP_NAME in self.listdir():
            raise DataDirUnreadable(
                f"{self.path} is a backup, or a restore that was not finished: "
                "`vouchmq store restore BACKUP DIR` makes a data directory of a backup"
            )
        try:
            descriptor = self._open(LOCK_NAME, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW)
        except OSError as error:
            if error.errno == errno.ELOOP:
                raise DataDirUnreadable(
                    f"{self.path / LOCK_NAME} is a symbolic link: remove it"
                ) from error
            raise DataDirUnreadable(
                f"cannot write to data directory {self.path}: {error.strerror}"
                f"{remedy(error, self.path)}"
            ) from error
        status = os.fstat(descriptor)
        if status.st_nlink > 1 or not stat.S_ISREG(status.st_mode):
            os.close(descriptor)
            raise DataDirUnreadable(
                f"{self.path / LOCK_NAME} is not a regular file with a single link: remove it"
            )
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            holder = os.pread(descriptor, 32, 0).decode("ascii", "replace").strip()
            os.close(descriptor)
            raise DataDirLocked(
                f"data directory {self.path} is in use by another broker"
                + (f" (process {holder})" if holder else "")
            ) from error
        # Nothing is ever cut: what has this name need not be ours.
        if status.st_size <= _LOCK_BYTES:
            os.pwrite(descriptor, f"{os.getpid()}".ljust(_LOCK_BYTES - 1).encode() + b"\n", 0)
        self._lock_descriptor = descriptor

    def close(self) -> None:
        """Release the lock and the directory; open files stay open."""
        if self._lock_descriptor is not None:
            os.close(self._lock_descriptor)
            self._lock_descriptor = None
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def listdir(self) -> list[str]:
        return os.listdir(self._descriptor)  # noqa: PTH208 - a descriptor has no Path

    def create(self, name: str, size: int) -> DiskFile:
        descriptor = self._open(name, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW)
        try:
            with self._calls:
                reserve(descriptor, size)
        except OSError:
            os.close(descriptor)
            with contextlib.suppress(OSError):
                self.unlink(name)
            raise
        return _File(descriptor, self._calls)

    def open(self, name: str) -> DiskFile:
        return _File(self._open(name, os.O_RDWR), self._calls)

    def prepare(self, name: str, size: int) -> None:
        unfinished = name + ".new"
        self.create(unfinished, size).close()
        self.rename(unfinished, name)

    def rename(self, old: str, new: str) -> None:
        with self._calls:
            os.rename(old, new, src_dir_fd=self._descriptor, dst_dir_fd=self._descriptor)

    def unlink(self, name: str) -> None:
        with contextlib.suppress(FileNotFoundError), self._calls:
            os.unlink(name, dir_fd=self._descriptor)

    def free_bytes(self) -> int:
        status = os.fstatvfs(self._descriptor)
        return status.f_bavail * status.f_frsize

    def size_bytes(self) -> int:
        """Size of the file system; 0 if it tells none."""
        status = os.fstatvfs(self._descriptor)
        return status.f_blocks * status.f_frsize

    def missing(self, names: Collection[str], newest: DiskFile) -> str:
        try:
            if not os.path.samestat(self.path.stat(), os.fstat(self._descriptor)):
                return f"data directory {self.path} was replaced"
        except OSError as error:
            return f"data directory {self.path} no longer exists ({error.strerror})"
        found = {LOCK_NAME, *names}.difference(self.listdir())
        if not found and self._lock_descriptor is not None:
            lock = os.stat(LOCK_NAME, dir_fd=self._descriptor)
            if not os.path.samestat(lock, os.fstat(self._lock_descriptor)):
                found = {LOCK_NAME}
        if not found and not os.fstat(newest.fileno()).st_nlink:
            found = {max(names)}
        return f"{min(found)} was removed from data directory {self.path}" if found else ""

    def entropy(self) -> int:
        return int.from_bytes(os.urandom(8), "little")

    def _open(self, name: str, flags: int) -> int:
        with self._calls:
            return os.open(name, flags | os.O_CLOEXEC, 0o640, dir_fd=self._descriptor)


class ReadOnlyDisk:
    """A real directory in which nothing is ever changed, not even a lock taken.

    Raises:
        DataDirUnreadable: there is no such directory, or it cannot be read.
    """

    def __init__(self, directory: str | os.PathLike[str]) -> None:
        self.path = Path(directory)
        try:
            self.listdir()
        except OSError as error:
            raise DataDirUnreadable(
                f"cannot read data directory {self.path}: {error.strerror}"
            ) from error

    def listdir(self) -> list[str]:
        return os.listdir(self.path)  # noqa: PTH208 - names, as the other disk gives them

    def open(self, name: str) -> DiskFile:
        return _File(os.open(self.path / name, os.O_RDONLY | os.O_CLOEXEC))

    def holder(self) -> int | None:
        """Return the process that has the directory's lock, 0 if it is not known which.

        Read from the kernel's table: even to try the lock might refuse a broker that starts.
        """
        lock = self.path / LOCK_NAME
        try:
            inode = lock.stat().st_ino
            table = Path("/proc/locks").read_text("ascii").splitlines()
            text = lock.read_text("ascii").strip()
        except (OSError, ValueError):
            return None
        locks = [line.split() for line in table]
        if any(f[1] == "FLOCK" and f[-3].endswith(f":{inode}") for f in locks if len(f) > 4):
            return int(text) if text.isdigit() else 0
        return None


def remedy(error: OSError, path: Path) -> str:
    """What to do about a directory of somebody else, for example the volume of a container."""
    if error.errno not in {errno.EACCES, errno.EPERM}:
        return ""
    ids = f"{os.geteuid()}:{os.getegid()}"
    return f"; the broker runs as user and group {ids}: chown -R {ids} {path}"
