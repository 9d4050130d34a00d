"""What a start cuts off the end of the journal, and keeps under another name.

Nobody was told that it is safe, so the broker has no use for it. Somebody may: a disk that damages
the last block before a crash leaves the same picture as the crash itself. The newest few of these
files stay.

Spec: DURABLE-14
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Final

from vouchmq.store.disk import DISK_FULL
from vouchmq.store.journal import records
from vouchmq.store.journal.segment import SUFFIX

if TYPE_CHECKING:
    from collections.abc import Iterable

    from vouchmq.store.disk import Disk

TORN_SUFFIX: Final = ".torn"
# So many stay; a crash leaves one at most.
KEPT_COUNT: Final = 16


def torn_size(rest: bytes, generation: int, salt: int) -> int:
    """Return how much of what stands behind the last block was meant to be a part of a segment.

    A recycled file has blocks of its earlier life there, which tell nothing; in a new one there
    are zeros.
    """
    end = records.end_of_last(rest, generation, salt)
    if end or records.find_signature(rest, 0) >= 0:
        return end
    return len(rest.rstrip(b"\0"))


def has_own_blocks(octets: bytes, generation: int) -> bool:
    """Return whether anything in a file without one whole block was meant for this generation."""
    at = records.find_signature(octets, 0)
    if at < 0:
        return any(octets)
    while at >= 0:
        if records.generation_at(octets, at) == generation:
            return True
        at = records.find_signature(octets, at + 1)
    return False


def keep_torn(disk: Disk, name: str, octets: bytes) -> str:
    """Put what is about to be cut off a file into one beside it, and sync that.

    Returns:
        its name; none if the disk is full, for a start may not fail for want of that room

    Raises:
        OSError: the disk refused for another reason
    """
    kept = name + TORN_SUFFIX
    try:
        file = disk.create(kept, len(octets))
        try:
            file.write([octets], 0)
            file.sync()
        finally:
            file.close()
        disk.directory.sync()
    except OSError as error:
        if error.errno not in DISK_FULL:
            raise
        with suppress(OSError):
            disk.unlink(kept)
        return ""
    return kept


def forget_oldest(disk: Disk, names: Iterable[str]) -> None:
    """Remove what was kept of earlier crashes, but for the newest."""
    kept = sorted(name for name in names if name.endswith(SUFFIX + TORN_SUFFIX))
    for name in kept[: -KEPT_COUNT + 1]:
        disk.unlink(name)
