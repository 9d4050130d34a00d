"""The spool: a directory in which a batch is durable before its messages are acked.

    000000000012.arrow       a batch: an Arrow file with the record batches of its tasks
    000000000013.arrow.tmp   one being written; what a dead process has left of it means nothing
    owner.json               which checkpoint it belongs to, and who writes now
    lock                     held by the process that writes

A file is written under its other name, synced, renamed, and the directory synced: whoever sees its
name sees all of it, also after a power cut. Must not know brokers, nor Spark.
"""

from __future__ import annotations

import errno
import fcntl
import json
import logging
import os
import secrets
import socket
import time
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit
from urllib.request import url2pathname

import pyarrow as pa

from vouchmq.spark.source.data_directory import Seen
from vouchmq.spark.source.offsets import Places

SUFFIX: Final = ".arrow"
UNFINISHED: Final = ".tmp"
DIGITS: Final = 12
# Spooled files of finished batches that stay: what comes again is looked up in them.
KEPT_FILES: Final = 4
_LOCK_WAIT_S: Final = 10.0
_FORMAT: Final = 1
# Metadata of a file: which record batches each task has; places of all that was spooled; which
# data directory it was read from.
_TASKS: Final = b"vouchmq.tasks"
_PLACES: Final = b"vouchmq.places"
_AT: Final = b"vouchmq.at"

log = logging.getLogger("vouchmq.spark")


class SpoolError(Exception):
    """The spool cannot be used; the text names its directory."""


def directory_of(location: str) -> Path:
    """The local path that option `spoolLocation` means.

    Raises:
        SpoolError: it is a store without fsync and rename, such as s3://
    """
    parts = urlsplit(location)
    if location.startswith("/"):
        return Path(location)
    if parts.scheme == "file" and parts.netloc in ("", "localhost"):
        return Path(url2pathname(parts.path))
    raise SpoolError(
        f"option spoolLocation: {parts.scheme}:// has neither fsync nor an atomic rename; give a "
        "directory of a file system that driver and executors share"
    )


class Spool:
    """One directory, and the process that writes to it."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.identity = ""
        self._is_claimed = False
        self._lock = -1

    # Who it belongs to

    def open(self, identity: str) -> None:
        """Make sure that it belongs to the checkpoint that has seen `identity`, and lock it.

        Spark does not tell a source which checkpoint it runs for. So the directory has a random
        identity, which is in every offset: a checkpoint that has one of them is its owner.

        Args:
            identity: as the checkpoint's offset has it; empty for one that has none yet

        Raises:
            SpoolError: it belongs to another checkpoint, is being written to, or cannot be
        """
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
            self._take_lock()
            self._check_owner(identity)
        except OSError as error:
            raise SpoolError(f"spool {self.directory}: {error.strerror or error}") from error

    def close(self) -> None:
        """Give up the lock of the directory, so that another process may write."""
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    def _check_owner(self, identity: str) -> None:
        owner = self._owner()
        if identity and owner is None:
            raise SpoolError(
                f"spool {self.directory}: owner.json is missing, but the checkpoint has read from "
                "here: is the right directory mounted? If it is permanently lost, start with a new "
                "checkpointLocation"
            )
        theirs = owner["spool"] if owner is not None else ""
        if identity and identity != theirs:
            raise SpoolError(
                f"spool {self.directory} belongs to another checkpoint (identity {theirs}, this "
                f"one has {identity}): every query needs a spoolLocation of its own"
            )
        if not identity and owner is not None and owner["claimed"]:
            raise SpoolError(
                f"spool {self.directory} belongs to another checkpoint, which has read from it "
                f"(last by process {owner['pid']} on {owner['host']}, since {owner['since']}): "
                "give this query a spoolLocation of its own, or continue with that checkpoint"
            )
        # Whoever had it without ever reading from it would find another identity, and stop.
        self.identity = identity or secrets.token_hex(6)
        self._is_claimed = bool(identity)
        self._write_owner()

    def claim(self) -> None:
        """A checkpoint has an offset of this directory by now: nobody else may have it."""
        if not self._is_claimed:
            self._is_claimed = True
            self._write_owner()

    def _owner(self) -> dict[str, Any] | None:
        try:
            text = (self.directory / "owner.json").read_text(encoding="utf-8")
        except FileNotFoundError:
            return None
        try:
            owner = json.loads(text)
            return {
                "spool": str(owner["spool"]),
                "claimed": bool(owner["claimed"]),
                "pid": owner.get("pid"),
                "host": owner.get("host"),
                "since": owner.get("since"),
            }
        except (ValueError, KeyError, TypeError, AttributeError):
            raise SpoolError(f"spool {self.directory}: owner.json cannot be read") from None

    def _write_owner(self) -> None:
        owner = {
            "v": _FORMAT,
            "spool": self.identity,
            "claimed": self._is_claimed,
            "pid": os.getpid(),
            "host": socket.gethostname(),
            "since": datetime.now(UTC).isoformat(timespec="seconds"),
        }
        text = json.dumps(owner) + "\n"
        self._publish("owner.json", lambda path: path.write_text(text, encoding="utf-8"))

    def _take_lock(self) -> None:
        """The exclusive consumer keeps others out; this one keeps them out of the files too."""
        if self._lock >= 0:
            return
        self._lock = os.open(self.directory / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        deadline = time.monotonic() + _LOCK_WAIT_S
        while True:
            try:
                fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                if error.errno in (errno.ENOLCK, errno.ENOTSUP, errno.EINVAL):
                    log.warning(
                        "vouchmq source: cannot lock files in %s: %s", self.directory, error
                    )
                    return
                if error.errno != errno.EWOULDBLOCK:
                    raise
                if time.monotonic() > deadline:
                    self.close()
                    owner = self._owner() or {}
                    raise SpoolError(
                        f"spool {self.directory} is being written to by process "
                        f"{owner.get('pid')} on {owner.get('host')}, since {owner.get('since')}"
                    ) from error
                time.sleep(0.1)
            else:
                return

    # Its files

    def files(self) -> list[int]:
        """The numbers of the spooled files, rising.

        Raises:
            SpoolError: the directory cannot be read
        """
        try:
            names = os.listdir(self.directory)  # noqa: PTH208 - names are all that is wanted
        except OSError as error:
            raise SpoolError(f"spool {self.directory}: {error.strerror}") from error
        return sorted(
            int(name[:DIGITS])
            for name in names
            if len(name) == DIGITS + len(SUFFIX)
            and name.endswith(SUFFIX)
            and name[:DIGITS].isdecimal()
        )

    def path(self, number: int) -> Path:
        """The path of the spool file with this number."""
        return self.directory / f"{number:0{DIGITS}}{SUFFIX}"

    def clear_unfinished(self) -> None:
        """Remove what a dead process was writing; only the one who may write may do so."""
        for path in self.directory.glob(f"*{UNFINISHED}"):
            path.unlink(missing_ok=True)

    def write(
        self,
        number: int,
        tasks: Sequence[Sequence[pa.RecordBatch]],
        schema: pa.Schema,
        places: Places,
        at: Seen | None = None,
    ) -> None:
        """Write a batch; it is durable when this returns.

        Args:
            number: of the file, one more than the last
            tasks: record batches of each
            schema: of all record batches
            places: of everything that was spooled, as far as it is remembered
            at: where it was read, None where the broker does not tell

        Raises:
            SpoolError: it could not be written or synced; then there is no such file
        """
        numbers: list[list[int]] = []
        count = 0
        for batches in tasks:
            numbers.append(list(range(count, count + len(batches))))
            count += len(batches)
        marked = schema.with_metadata(
            {
                _TASKS: json.dumps(numbers).encode(),
                _PLACES: json.dumps(places.as_json()).encode(),
                **({_AT: json.dumps(at.as_json()).encode()} if at is not None else {}),
            }
        )

        def fill(path: Path) -> None:
            with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, marked) as writer:
                for batches in tasks:
                    for batch in batches:
                        writer.write_batch(batch)

        self._publish(self.path(number).name, fill)

    def _publish(self, name: str, fill: Callable[[Path], object]) -> None:
        """All of it or nothing, and durable."""
        unfinished = self.directory / (name + UNFINISHED)
        try:
            fill(unfinished)
            _sync(unfinished)
            unfinished.rename(self.directory / name)
            _sync(self.directory)
        except OSError as error:
            try:
                unfinished.unlink(missing_ok=True)
            except OSError as again:
                log.warning("vouchmq source: cannot remove %s: %s", unfinished, again)
            raise SpoolError(
                f"spool {self.directory}: {name} could not be written: {error.strerror or error}"
            ) from error

    def remove(self, numbers: Iterable[int]) -> None:
        """Remove files that nobody needs any more."""
        for number in numbers:
            self.path(number).unlink(missing_ok=True)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _opened(path: Path) -> pa.ipc.RecordBatchFileReader:
    try:
        return pa.ipc.open_file(pa.memory_map(str(path)))
    except FileNotFoundError:
        raise SpoolError(
            f"spool file {path} is missing: was it deleted, or do driver and executors not share "
            "the directory?"
        ) from None
    except (OSError, pa.ArrowInvalid) as error:
        raise SpoolError(f"spool file {path} cannot be read: {error}") from error


def tasks_of(path: Path) -> list[list[int]]:
    """The record batches of each task of a spooled batch.

    Raises:
        SpoolError: it cannot be read
    """
    metadata = _opened(path).schema.metadata or {}
    if _TASKS not in metadata:
        raise SpoolError(f"spool file {path} was not written by this source")
    tasks: list[list[int]] = json.loads(metadata[_TASKS])
    return tasks


def places_in(path: Path) -> Places:
    """The places that a file remembers: its own, and of those before it.

    Raises:
        SpoolError: it cannot be read
    """
    metadata = _opened(path).schema.metadata or {}
    return Places.of_json(json.loads(metadata.get(_PLACES, b"{}")))


def seen_in(path: Path) -> Seen | None:
    """Where the rows of a file were read; None where nobody told.

    Raises:
        SpoolError: it cannot be read
    """
    text = (_opened(path).schema.metadata or {}).get(_AT)
    return Seen.of_json(json.loads(text)) if text is not None else None


def column_of(path: Path, column: str) -> list[Any]:
    """The values of one column in all rows; none when the file does not have it.

    Raises:
        SpoolError: it cannot be read
    """
    reader = _opened(path)
    if column not in reader.schema.names:
        return []
    return [
        value
        for number in range(reader.num_record_batches)
        for value in reader.get_batch(number).column(column).to_pylist()
    ]


def read(path: Path, numbers: Iterable[int], columns: tuple[str, ...]) -> Iterable[pa.RecordBatch]:
    """Record batches of a file, with these columns.

    Raises:
        SpoolError: it cannot be read, or was written without one of the columns
    """
    reader = _opened(path)
    missing = [name for name in columns if name not in reader.schema.names]
    if missing:
        raise SpoolError(
            f"spool file {path} was written without column {', '.join(missing)}: run the query "
            "with its old schema until the spool is empty"
        )
    for number in numbers:
        yield reader.get_batch(number).select(list(columns)).replace_schema_metadata(None)
