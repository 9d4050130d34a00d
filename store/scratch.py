"""Scratch files: pages of messages that are in nobody's memory and that no restart reads.

What the journal holds can be read back from there; a transient message that waits too far
behind cannot, and goes here. Nothing is synced, nothing is recovered: files of an earlier
life are removed at the start, and a file goes with its last page. Who removes it has to free its
pages in memory as well, which takes long for a large one, so that is somebody else's work.

Spec: LIMIT-21, DURABLE-01
"""

import marshal
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from vouchmq.store.disk import Disk, DiskFile

SCRATCH_PREFIX: Final = "scratch-"

Page = list[tuple[bytes, bytes, int, int]]


@dataclass(slots=True)
class _ScratchFile:
    name: str
    file: DiskFile
    end: int = 0
    live_pages: int = 0


class Scratch:
    """Pages by number.

    Args:
        disk: the data directory
        file_size_bytes: from this size on the next page begins a new file
        remove: has a file removed, some time
    """

    def __init__(self, disk: Disk, *, file_size_bytes: int, remove: Callable[[str], None]) -> None:
        self._disk = disk
        self._remove_file = remove
        self._file_size_bytes = file_size_bytes
        self._active: _ScratchFile | None = None
        self._pages: dict[int, tuple[_ScratchFile, int, int]] = {}
        self._next_page = 1
        self._next_file = 1

    def sweep(self) -> None:
        """Remove the files of an earlier life; to be called before the first page is written.

        Raises:
            OSError: the disk refused; they only take room, and go the next time
        """
        for name in self._disk.listdir():
            if name.startswith(SCRATCH_PREFIX):
                self._disk.unlink(name)

    def page_out(self, page: Page) -> int:
        """Write a page; return its number.

        Raises:
            OSError: the disk refused; nothing has changed.
        """
        # Atoms only, and nobody but this process reads them: marshal is the quickest codec.
        data = marshal.dumps(page)
        target = self._target()
        target.file.write([data], target.end)
        number = self._next_page
        self._next_page += 1
        self._pages[number] = (target, target.end, len(data))
        target.end += len(data)
        target.live_pages += 1
        return number

    def page_in(self, number: int) -> Page:
        """Read a page back, which ends it.

        Raises:
            OSError: the disk refused; the page is still there.
        """
        page = self.read(number)
        self.drop_page(number)
        return page

    def read(self, number: int) -> Page:
        """Read a page, which stays.

        Raises:
            OSError: the disk refused
        """
        source, offset, size = self._pages[number]
        data = source.file.read(offset, size)
        if len(data) != size:
            raise OSError(f"{source.name} ends before its page at offset {offset}")
        page: Page = marshal.loads(data)  # noqa: S302 - our own octets, read by nobody else
        return page

    def drop_page(self, number: int) -> None:
        """Give a page up without reading it; its file is removed with its last page."""
        source, _, _ = self._pages.pop(number)
        source.live_pages -= 1
        if not source.live_pages and source is not self._active:
            self._remove(source)

    def close(self) -> None:
        """Remove all files, now."""
        files = {source.name: source for source, _, _ in self._pages.values()}
        if self._active is not None:
            files[self._active.name] = self._active
        for source in files.values():
            source.file.close()
            with suppress(OSError):
                self._disk.unlink(source.name)
        self._pages.clear()
        self._active = None

    def _target(self) -> _ScratchFile:
        active = self._active
        if active is not None and active.end < self._file_size_bytes:
            return active
        name = f"{SCRATCH_PREFIX}{self._next_file:08d}"
        self._active = _ScratchFile(name, self._disk.create(name, 0))
        self._next_file += 1
        if active is not None and not active.live_pages:
            self._remove(active)
        return self._active

    def _remove(self, source: _ScratchFile) -> None:
        source.file.close()
        self._remove_file(source.name)
