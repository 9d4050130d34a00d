"""A disk with bad manners, for the store's tests; the same verbs as `vouchmq.store.disk.FileDisk`.

What it may do, each needed to catch a bug that was planted:
- A write is pending until a sync of its file succeeds. At a crash each pending write is
  dropped, kept, kept up to a prefix, or kept in a random subset of its 512-octet sectors;
  the file may have grown with zeros.
- A failed sync clears the pending writes and loses them, though reads still show them.
- Create, rename and unlink are pending until the directory is synced; at a crash a prefix
  of them survives, or any subset of them (`is_strict`).
- `fail[(verb, n)] = errno` makes the n-th call of a verb fail, n from 1. A failing write
  may have written everything, something or nothing.
- `crash_after` calls of any verb, PowerCut is raised out of the next one.

It does not lose or change what was synced; tests of damage do that by hand (`durable`).
"""

from __future__ import annotations

import errno
import os
import random
from collections import Counter
from collections.abc import Collection, Sequence
from itertools import pairwise

from vouchmq.store.disk import DiskFile, Syncable

SECTOR_SIZE = 512


class PowerCut(BaseException):
    """The machine is off; nothing above the disk may catch this."""


class Inode:
    """One file's octets: as reads see them, as they are on the platter, and what is between."""

    def __init__(self) -> None:
        self.visible = bytearray()
        self.durable = bytearray()
        self.pending: list[tuple[int, bytes] | int] = []

    def write(self, data: bytes, offset: int) -> None:
        _put(self.visible, data, offset)
        self.pending.append((offset, data))

    def truncate(self, size: int) -> None:
        _resize(self.visible, size)
        self.pending.append(size)

    def sync(self) -> None:
        for change in self.pending:
            _apply(self.durable, change)
        self.pending = []

    def crash(self, draw: random.Random) -> None:
        for change in self.pending:
            if isinstance(change, int):
                if draw.random() < 0.5:
                    _resize(self.durable, change)
            else:
                self._tear(change, draw)
        self.pending = []
        self.visible = bytearray(self.durable)

    def _tear(self, change: tuple[int, bytes], draw: random.Random) -> None:
        offset, data = change
        outcome = draw.choice(("drop", "keep", "prefix", "sectors", "size"))
        if outcome == "keep":
            _put(self.durable, data, offset)
        elif outcome == "prefix":
            _put(self.durable, data[: draw.randrange(len(data) + 1)], offset)
        elif outcome == "sectors":
            for start, end in _sectors(offset, offset + len(data)):
                if draw.random() < 0.5:
                    _put(self.durable, data[start - offset : end - offset], start)
        elif outcome == "size":
            _resize(self.durable, max(len(self.durable), offset + len(data)))


def _sectors(start: int, end: int) -> list[tuple[int, int]]:
    bounds = [start, *range(start - start % SECTOR_SIZE + SECTOR_SIZE, end, SECTOR_SIZE), end]
    return list(pairwise(bounds))


def _apply(octets: bytearray, change: tuple[int, bytes] | int) -> None:
    if isinstance(change, int):
        _resize(octets, change)
    else:
        _put(octets, change[1], change[0])


def _put(octets: bytearray, data: bytes, offset: int) -> None:
    if data:
        _resize(octets, max(len(octets), offset + len(data)))
        octets[offset : offset + len(data)] = data


def _resize(octets: bytearray, size: int) -> None:
    del octets[size:]
    octets.extend(bytes(size - len(octets)))


class SimFile:
    """One open file of a SimDisk."""

    def __init__(self, disk: SimDisk, inode: Inode) -> None:
        self._disk = disk
        self.inode = inode

    def write(self, parts: Sequence[bytes], offset: int) -> None:
        data = b"".join(parts)
        error = self._disk.count("write")
        if error:
            self.inode.write(data[: self._disk.draw.choice((0, len(data) // 2, len(data)))], offset)
            raise error
        self.inode.write(data, offset)

    def read(self, offset: int, size: int) -> bytes:
        self._disk.count_or_raise("read")
        return bytes(self.inode.visible[offset : offset + size])

    def will_need(self, offset: int, size: int) -> None:
        pass

    def size(self) -> int:
        return len(self.inode.visible)

    def truncate(self, size: int) -> None:
        self._disk.count_or_raise("truncate")
        self.inode.truncate(size)

    def sync(self) -> None:
        error = self._disk.count("sync")
        if error:
            self.inode.pending = []
            raise error
        self.inode.sync()

    def fileno(self) -> int:
        return -1

    def close(self) -> None:
        pass


class SimDirectory:
    """The directory as something to sync."""

    def __init__(self, disk: SimDisk) -> None:
        self._disk = disk

    def sync(self) -> None:
        self._disk.count_or_raise("sync")
        self._disk.sync_names()

    def fileno(self) -> int:
        return -1


class SimDisk:
    """One data directory in memory."""

    def __init__(self, seed: int = 0, *, is_strict: bool = False) -> None:
        self.draw = random.Random(seed)
        self.is_strict = is_strict
        # Files with such names survive each crash whole, synced or not, and are hard to remove.
        self.sticky_suffix = ""
        self.directory: Syncable = SimDirectory(self)
        self.fail: dict[tuple[str, int], int] = {}
        self.calls: Counter[str] = Counter()
        self.crash_after: int | None = None
        self.is_cut = False  # from the cut of the power to `crash`
        self.visible: dict[str, Inode] = {}
        self.durable: dict[str, Inode] = {}
        self._pending: list[tuple[str, str, Inode | str]] = []

    # Faults.

    def count(self, verb: str) -> OSError | None:
        if self.crash_after is not None:
            self.crash_after -= 1
            if self.crash_after < 0:
                self.is_cut = True
                raise PowerCut
        self.calls[verb] += 1
        number = self.fail.pop((verb, self.calls[verb]), 0)
        return OSError(number, os.strerror(number)) if number else None

    def count_or_raise(self, verb: str) -> None:
        error = self.count(verb)
        if error:
            raise error

    def fail_next(self, verb: str, number: int = errno.EIO) -> None:
        self.fail[(verb, self.calls[verb] + 1)] = number

    def crash(self, seed: int) -> None:
        """Cut the power: what was not synced is lost, or not, as `seed` has it."""
        draw = random.Random(seed)
        pending, self._pending = self._pending, []
        kept = draw.randrange(len(pending) + 1)
        for index, change in enumerate(pending):
            if self._is_sticky(change[1]):
                is_kept = change[0] == "create"
            else:
                is_kept = draw.random() < 0.5 if self.is_strict else index < kept
            if is_kept:
                self._apply(self.durable, change)
        for name, inode in self.durable.items():
            if self._is_sticky(name):
                inode.sync()
        for inode in {id(inode): inode for inode in self.durable.values()}.values():
            inode.crash(draw)
        self.visible = dict(self.durable)
        self.fail.clear()
        self.crash_after = None
        self.is_cut = False

    def _is_sticky(self, name: str) -> bool:
        return bool(self.sticky_suffix) and name.endswith(self.sticky_suffix)

    def kill(self) -> None:
        """End the process only: the page cache survives."""
        self.fail.clear()
        self.crash_after = None
        self.is_cut = False

    def sync_names(self) -> None:
        for change in self._pending:
            self._apply(self.durable, change)
        self._pending = []

    @staticmethod
    def _apply(names: dict[str, Inode], change: tuple[str, str, Inode | str]) -> None:
        verb, name, what = change
        if verb == "create" and isinstance(what, Inode):
            names[name] = what
        elif verb == "unlink":
            names.pop(name, None)
        elif name in names and isinstance(what, str):
            names[what] = names.pop(name)

    # The verbs of a Disk.

    def lock(self) -> None:
        pass

    def listdir(self) -> list[str]:
        return list(self.visible)

    def create(self, name: str, size: int) -> DiskFile:
        self.count_or_raise("create")
        inode = Inode()
        self._change("create", name, inode)
        inode.truncate(size)
        return SimFile(self, inode)

    def open(self, name: str) -> DiskFile:
        if name not in self.visible:
            raise FileNotFoundError(errno.ENOENT, "no such file", name)
        return SimFile(self, self.visible[name])

    def prepare(self, name: str, size: int) -> None:
        self.create(name + ".new", size)
        self.rename(name + ".new", name)

    def rename(self, old: str, new: str) -> None:
        if old not in self.visible:
            raise FileNotFoundError(errno.ENOENT, "no such file", old)
        self.count_or_raise("rename")
        self._change("rename", old, new)

    def unlink(self, name: str) -> None:
        self.count_or_raise("unlink")
        if name in self.visible:
            self._change("unlink", name, "")

    def free_bytes(self) -> int:
        return 1 << 40

    def missing(self, names: Collection[str], newest: DiskFile) -> str:
        found = set(names).difference(self.visible)
        return f"{min(found)} was removed" if found else ""

    def entropy(self) -> int:
        return self.draw.getrandbits(64)

    def _change(self, verb: str, name: str, what: Inode | str) -> None:
        change = (verb, name, what)
        self._apply(self.visible, change)
        self._pending.append(change)
