"""The ledger's files: the only module of the ledger that touches the disk.

    DIR/.<broker>-<epoch>-<number>.jsonl.open  ──rotate──▶  DIR/<broker>-<epoch>-<number>.jsonl[.gz]

An open file has a name that readers of a directory pass over. Giving one up (sync, rename, sync of
the directory, compression, removal of old ones) is done by a thread. Whatever is written at once
gets a seal (`seals.py`). `.<broker>.state` remembers what must be known when files have been
carried away; it also keeps two brokers of one name apart.
Must not know what lines mean, beyond the numbers in them.
"""

from __future__ import annotations

import fcntl
import gzip
import json
import os
import re
import shutil
import time
from contextlib import suppress
from dataclasses import replace
from threading import Lock
from typing import TYPE_CHECKING, Any, Final

import structlog

from vouchmq.server.errors import StartupError
from vouchmq.server.ledger.ledger import Before
from vouchmq.server.ledger.seals import last_seal, seal_of, sealed
from vouchmq.store.disk import Calls

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from vouchmq.store.disk import Syncable
    from vouchmq.store.sync.worker import SyncWorker

STATE_OCTETS: Final = 256
HOUR_S: Final = 3600.0
COPY_OCTETS: Final = 1024 * 1024
LSNS: Final = re.compile(rb'"(?:lsn":\[\d+,|wm":)(\d+)')

log = structlog.get_logger(__name__)


class OpenFile:
    """A file that lines are written to; also what a sync of the journal syncs before it."""

    # A sync that fails here costs evidence, not messages (see `SyncWorker`).
    may_fail = True

    def __init__(self, path: Path) -> None:
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        self._descriptor = os.open(path, flags, 0o640)
        self.path = path
        self.octets = 0
        self.is_torn = False

    def fileno(self) -> int:
        """The file descriptor, to be synced."""
        return self._descriptor

    def sync(self) -> None:
        """Have what was written on disk."""
        os.fdatasync(self._descriptor)

    def write(self, data: bytes) -> None:
        """Append all of it; after an error the next write cuts off what was written in part."""
        if self.is_torn:
            os.ftruncate(self._descriptor, self.octets)
            self.is_torn = False
        at = self.octets
        while data:
            try:
                count = os.pwrite(self._descriptor, data, at)
            except OSError:
                self.is_torn = at > self.octets
                raise
            data, at = data[count:], at + count
        self.octets = at

    def close(self) -> None:
        """Cut off what was written in part, and close the descriptor."""
        if self.is_torn:
            with suppress(OSError):
                os.ftruncate(self._descriptor, self.octets)
        with suppress(OSError):
            os.close(self._descriptor)


class Directory:
    """The directory of the files, to be synced with a file that is new in it."""

    may_fail = True

    def __init__(self, path: Path) -> None:
        self._descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)

    def fileno(self) -> int:
        """The file descriptor, to be synced."""
        return self._descriptor

    def sync(self) -> None:
        """Have its names on disk."""
        os.fsync(self._descriptor)

    def close(self) -> None:
        """Close the descriptor."""
        os.close(self._descriptor)


class LedgerFiles:
    """The files of one broker's ledger.

    Args:
        directory: where; made if missing
        broker: the broker's id, the first part of each name
        compresses: files that are given up become `.gz`
        keep_s: files older than that are removed, 0: none
        keep_octets: and the oldest beyond so much, 0: none
        run: has a job done elsewhere, in the order given
        worker: syncs the journal; with it the open file is synced before each sync of the journal
        calls: entered around each write of lines

    Raises:
        StartupError: the directory cannot be used, or another broker of this name uses it
    """

    def __init__(
        self,
        directory: Path,
        broker: str,
        *,
        compresses: bool = False,
        keep_s: float = 0,
        keep_octets: int = 0,
        run: Callable[[Callable[[], None]], object] = lambda job: job(),
        worker: SyncWorker | None = None,
        now_s: Callable[[], float] = time.time,
        calls: Calls | None = None,
    ) -> None:
        self._directory = directory
        self._broker = broker
        self._names = re.compile(
            rf"\.?{re.escape(broker)}-(\d{{8}})-(\d{{8}})\.jsonl(\.gz|\.open)?$"
        )
        self._compresses = compresses
        self._keep_s = keep_s
        self._keep_octets = keep_octets
        self._run = run
        self._worker = worker
        self._now_s = now_s
        self._calls = Calls() if calls is None else calls
        self._file: OpenFile | None = None
        self._retired: list[OpenFile] = []
        self._in_flight: list[OpenFile] = []
        self._folder: Directory | None = None
        self._known_file: OpenFile | None = None  # the directory was synced with
        self._state = -1
        self._is_unsynced = False
        self._lock = Lock()  # the state is written by two threads
        self._known: dict[str, Any] = {}
        self._epoch = self._number = 0
        self.newest = ""
        self.before = Before()
        self.seal = ""  # of all that was written until now

    # Start

    def open(self, *, makes: bool) -> None:
        """Repair what a crash has left, find out what there was; `makes` the directory.

        Without it the broker begins its life in the dark, of which a later epoch will know.
        """
        try:
            if makes:
                self._directory.mkdir(parents=True, exist_ok=True)
            elif not self._directory.exists():
                return
            if self._worker is not None:
                self._folder = Directory(self._directory)
            self._state = os.open(
                self._directory / f".{self._broker}.state",
                os.O_RDWR | os.O_CREAT | os.O_CLOEXEC,
                0o640,
            )
            try:
                fcntl.flock(self._state, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise StartupError(
                    f"ledger directory {self._directory}: another broker called {self._broker} "
                    "writes there; choose another ledger_broker or ledger_dir"
                ) from None
            with suppress(ValueError):
                self._known = json.loads(os.pread(self._state, STATE_OCTETS, 0) or b"{}")
            self.before = self._look()
            if not makes:
                self._remember(dark=True)
                self.before = replace(self.before, is_dark=True)
        except OSError as error:
            raise StartupError(
                f"ledger directory {self._directory}: {error.strerror or error}"
            ) from error

    def _look(self) -> Before:
        known = self._known
        found = self._found()
        for path in [path for _, _, path in found if path.suffix == ".open"]:
            self._repair(path)
        found = self._found()
        epoch = max([known.get("epoch", 0), *(each[0] for each in found)])
        number, lsn, is_clean = known.get("line", -1), known.get("lsn", 0), True
        newest = [path for each, _, path in found if each == epoch]
        self.seal = known.get("seal", "")
        if newest:
            last: dict[str, Any] = {}
            datas = [read_lines(path) for path in newest[-2:]]
            for data in datas:
                lsn = max([lsn, *(int(each) for each in LSNS.findall(data))])
                with suppress(ValueError):
                    last = json.loads(data[data.rfind(b"\n", 0, -1) + 1 :])
            self.seal = self._sealed_until(
                datas, known.get("seal") if epoch == known.get("epoch") else None
            )
            number = max(number, last.get("n", -1))
            is_clean = last.get("e") == "end"
        is_dark = bool(known.get("dark") or known.get("failing"))
        return Before(epoch, number, lsn, is_clean, is_dark)

    @staticmethod
    def _sealed_until(datas: list[bytes], known: str | None) -> str:
        """What the next seal goes on from, by the last files of an epoch.

        `known` is the seal that the state remembers of it; a crash may have left no other one.
        """
        behind: list[bytes] = []
        for data in reversed(datas):
            seal, rest = last_seal(data)
            behind.insert(0, rest)
            if seal is not None:
                break
        else:
            if known is None:
                return ""  # of a build that did not seal: a chain begins
            seal, behind = known, behind[-1:]
        tail = b"".join(behind)
        return seal_of(seal, tail) if tail else seal

    def _found(self) -> list[tuple[int, int, Path]]:
        """Files of this broker: epoch, number, path, in their order."""
        matches = ((self._names.fullmatch(path.name), path) for path in self._directory.iterdir())
        return sorted((int(m[1]), int(m[2]), path) for m, path in matches if m is not None)

    def _repair(self, path: Path) -> None:
        """Cut what a crash has torn, and give the file up."""
        data = path.read_bytes()
        end = data.find(b"\0")
        end = data.rfind(b"\n", 0, len(data) if end < 0 else end) + 1
        if end < len(data):
            os.truncate(path, end)
            log.warning("ledger.truncated", file=path.name, size_bytes=len(data) - end)
        self._give_up(path)

    # Files

    def begin(self, epoch: int) -> None:
        """See `Files`."""
        if self._state < 0:
            try:
                self.open(makes=True)
            except StartupError as error:
                raise OSError(str(error)) from error
        self._epoch, self._number = epoch, 1
        self._file = self._opened()
        self._remember(epoch=epoch, dark=False, failing=False, seal=self.seal)

    def _opened(self) -> OpenFile:
        name = f".{self._broker}-{self._epoch:08}-{self._number:08}.jsonl.open"
        return OpenFile(self._directory / name)

    @property
    def octets(self) -> int:
        """See `Files`."""
        return self._file.octets if self._file is not None else 0

    def write(self, data: bytes) -> None:
        """See `Sink`."""
        if self._file is None:
            raise OSError("no file")
        data, seal = sealed(self.seal, data, begins_file=not self._file.octets)
        with self._calls:
            self._file.write(data)
        self.seal = seal

    def failing(self, is_so: bool) -> None:
        """See `Sink`."""
        self._mark(failing=is_so)

    def rotate(self, lsn: int, done: Callable[[str], None] | None = None) -> None:
        """See `Files`."""
        file = self._file
        if file is None:
            return
        if not file.octets:
            self._run(lambda: self._tell(done))
            return
        self._number += 1
        try:
            self._file = self._opened()
        except OSError as error:
            # The present one goes on, until there is room for another.
            self._number -= 1
            log.error("ledger.rotate_failed", step="open", reason=str(error))
            self._run(lambda: self._tell(done))
            return
        self._retire(file, lsn, done)

    def end(self, lsn: int, done: Callable[[str], None] | None = None, *, goes_dark: bool) -> None:
        """See `Files`."""
        if goes_dark:
            self._mark(dark=True)
        file, self._file = self._file, None
        if file is not None:
            self._retire(file, lsn, done)

    def _retire(self, file: OpenFile, lsn: int, done: Callable[[str], None] | None) -> None:
        if self._worker is not None:
            self._retired.append(file)  # a sync of the journal may need it first
        else:
            file.close()

        seal = self.seal

        def job() -> None:
            try:
                self._give_up(file.path)
                self._remember(lsn=lsn, seal=seal)
                self._clear_out()
            except OSError as error:
                log.error(
                    "ledger.rotate_failed", step="close", file=file.path.name, reason=str(error)
                )
            except Exception:
                log.exception("internal_error", where="ledger")
            self._tell(done)

        self._run(job)

    def _tell(self, done: Callable[[str], None] | None) -> None:
        if done is not None:
            done(self.newest)

    def _give_up(self, path: Path) -> None:
        """Sync, rename, compress; an empty one goes."""
        if not path.stat().st_size:
            path.unlink()
            return
        target = path.with_name(path.name.removeprefix(".").removesuffix(".open"))
        if self._compresses:
            packed = path.with_name(f".{target.name}.gz.new")
            with path.open("rb") as plain, gzip.open(packed, "wb", 6) as out:
                shutil.copyfileobj(plain, out, COPY_OCTETS)
            sync_path(packed)
            target = target.with_name(target.name + ".gz")
            packed.rename(target)
            path.unlink()
        else:
            sync_path(path)
            path.rename(target)
        sync_path(self._directory)
        self.newest = str(target)

    def _clear_out(self) -> None:
        """Remove what is too old or too much, never the newest."""
        found = [path for _, _, path in self._found() if path.suffix != ".open"]
        sizes = [(path, path.stat()) for path in found]
        total = sum(stat.st_size for _, stat in sizes)
        for path, stat in sizes[:-1]:
            is_old = self._keep_s and self._now_s() - stat.st_mtime > self._keep_s
            if not is_old and not (self._keep_octets and total > self._keep_octets):
                break
            path.unlink()
            total -= stat.st_size
            log.info("ledger.removed", file=path.name)

    def _remember(self, **facts: object) -> None:
        """Overwrite the state in its place, for which no disk is too full, and sync it."""
        if any(self._known.get(name) != value for name, value in facts.items()):
            self._mark(**facts)
            os.fdatasync(self._state)

    def _mark(self, **facts: object) -> None:
        """Overwrite the state: it survives the end of this process, if not that of the power."""
        if self._state < 0:
            return
        with self._lock, suppress(OSError):
            self._known |= facts
            text = json.dumps(self._known).ljust(STATE_OCTETS - 1) + "\n"
            os.pwrite(self._state, text.encode("ascii"), 0)

    # Syncs of the journal

    def targets(self) -> list[Syncable]:
        """See `ExtraSyncTargets`."""
        self._in_flight = list(self._retired)
        found: list[Syncable] = [*self._retired]
        if self._file is not None:
            found.append(self._file)
            if self._file is not self._known_file and self._folder is not None:
                found.append(self._folder)
                self._known_file = self._file
        return found

    def synced(self, error: int) -> None:
        """See `ExtraSyncTargets`: files that were given up can be closed."""
        for file in self._in_flight:
            self._retired.remove(file)
            self._close(file)
        self._in_flight = []
        if error and not self._is_unsynced:
            log.error("ledger.sync_failed", reason=os.strerror(error))
            self._mark(failing=True)
        self._is_unsynced = bool(error)

    def _close(self, file: OpenFile) -> None:
        if self._worker is not None:
            self._worker.forget(file)
        file.close()

    def close(self) -> None:
        """Close all files and the directory; nothing can be written afterwards."""
        # After a failure of the store the present one is still here.
        for file in (*self._retired, *filter(None, (self._file,))):
            self._close(file)
        self._retired, self._file = [], None
        if self._folder is not None:
            self._folder.close()
        if self._state >= 0:
            os.close(self._state)
            self._state = -1


def read_lines(path: Path) -> bytes:
    """All of a file, compressed or not."""
    if path.suffix == ".gz":
        with gzip.open(path, "rb") as packed:
            return packed.read()
    return path.read_bytes()


def sync_path(path: Path) -> None:
    """Have a file or directory on disk."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
