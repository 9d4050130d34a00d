"""The data directory: who may use it, what it is on, how much is free, what its syncs are worth.

    mount table, mode, free space ─▶ findings
    a file without a name, written and synced some times ─▶ how long a sync takes

A disk cannot be asked whether it syncs. But a sync that takes less time than any disk needs has
reached none, and some layers say themselves that they do not sync.
"""

from __future__ import annotations

import os
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Final, NamedTuple

from vouchmq.server.cli.doctor.findings import Finding, Level
from vouchmq.server.cli.units import amount

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from vouchmq.server.settings.settings import Settings

SUBJECT: Final = "data directory"
SYNCS: Final = 30
BLOCK: Final = bytes(range(256)) * 16
# Flash behind a controller with a battery takes more than this, memory less.
IMPLAUSIBLE_MS: Final = 0.015
SLOW_MS: Final = 20.0
# Twice the limit of the alarm is little.
FREE_FACTOR: Final = 2
OTHERS_MODE: Final = 0o077
VOLATILE: Final = frozenset({"tmpfs", "ramfs", "devtmpfs"})
LAYERED: Final = frozenset({"overlay", "overlayfs", "aufs"})
NETWORK: Final = frozenset({"nfs", "nfs4", "cifs", "smb3", "9p", "ceph", "glusterfs", "fuse.sshfs"})
UNSYNCED_OPTIONS: Final = frozenset({"nobarrier", "barrier=0", "volatile"})


class Mount(NamedTuple):
    """A line of /proc/self/mountinfo."""

    place: Path
    kind: str
    options: frozenset[str]
    device: str = ""


def check_directory(settings: Settings, root: Path = Path("/")) -> Iterator[Finding]:
    """Whether it can be used, by whom, and what file system it is on."""
    directory = settings.data_dir.absolute()
    if directory.exists() and not directory.is_dir():
        yield Finding(Level.ERROR, SUBJECT, f"{directory} is a file", "choose another --data-dir")
        return
    place = nearest(directory)
    if not os.access(place, os.R_OK | os.W_OK | os.X_OK):
        yield Finding(
            Level.ERROR,
            SUBJECT,
            f"user {os.geteuid()} may not write to {place}",
            f"run as its owner ({place.stat().st_uid}), or chown {os.geteuid()} {place}",
        )
    if place == directory:
        mode = directory.stat().st_mode & 0o777
        if mode & OTHERS_MODE:
            yield Finding(
                Level.WARNING,
                SUBJECT,
                f"its mode {mode:04o} lets others read messages or take files away",
                f"chmod 700 {directory}",
            )
    mount = mount_of(directory, root)
    if mount is None:
        yield Finding(Level.NOTE, SUBJECT, f"{directory} is on a file system of unknown type")
        return
    yield _of_mount(directory, mount)
    wrong = sorted(mount.options & UNSYNCED_OPTIONS)
    if wrong:
        yield Finding(
            Level.ERROR,
            SUBJECT,
            f"{mount.place} is mounted with {wrong[0]}: a sync does not reach the disk",
            f"remount {mount.place} without {wrong[0]}",
        )


def _of_mount(directory: Path, mount: Mount) -> Finding:
    where = f"{directory} is on {mount.kind}, mounted at {mount.place}"
    if mount.kind in VOLATILE:
        mend = "use a directory on a disk; for tests this is fine"
        return Finding(Level.ERROR, SUBJECT, f"{where}: it is gone after a reboot", mend)
    if mount.kind in LAYERED:
        mend = "mount a volume there; the image's page says how"
        return Finding(Level.WARNING, SUBJECT, f"{where}: it is gone with the container", mend)
    if mount.kind in NETWORK:
        mend = "use a local disk, or be sure that the server syncs what clients sync"
        return Finding(Level.WARNING, SUBJECT, f"{where}: syncs depend on the server", mend)
    return Finding(Level.OK, SUBJECT, where)


def check_space(settings: Settings, limit: int) -> Iterator[Finding]:
    """Whether much more is free than the disk alarm wants, in bytes."""
    place = nearest(settings.data_dir.absolute())
    found = os.statvfs(place)
    free = found.f_bavail * found.f_frsize
    subject = "disk space"
    if not limit:
        yield Finding(
            Level.WARNING,
            subject,
            f"{amount(free)} are free, and no alarm stops publishers before the disk is full",
            "set disk_free_limit",
        )
    elif free < limit:
        yield Finding(
            Level.ERROR,
            subject,
            f"{amount(free)} are free, less than disk_free_limit, {amount(limit)}: publishers are "
            "blocked",
            "free space, or use a larger disk",
        )
    elif free < limit * FREE_FACTOR:
        text = f"{amount(free)} are free, not much more than disk_free_limit, {amount(limit)}"
        yield Finding(Level.WARNING, subject, text, "free space, or use a larger disk")
    else:
        yield Finding(
            Level.OK, subject, f"{amount(free)} are free, the alarm is at {amount(limit)}"
        )


def check_syncs(
    settings: Settings, measure: Callable[[Path], list[float]] | None = None
) -> Iterator[Finding]:
    """How long a sync takes, and whether that can be true."""
    place = nearest(settings.data_dir.absolute())
    try:
        times_ms = sorted((measure or sync_times_ms)(place))
    except OSError as error:
        text = f"a file in {place} cannot be synced: {error.strerror}"
        yield Finding(Level.ERROR, "syncs", text, "use another disk")
        return
    middle, longest = median(times_ms), times_ms[-1]
    shown = f"a sync takes {middle:.3g} ms, the longest of {len(times_ms)} took {longest:.3g} ms"
    if middle < IMPLAUSIBLE_MS:
        yield Finding(
            Level.WARNING,
            "syncs",
            f"{shown}: no disk is so fast, so that they reach none",
            "use a directory on a disk, and no layer that ignores fsync",
        )
    elif middle > SLOW_MS:
        mend = "confirms wait for a sync: use a faster disk where that is too slow"
        yield Finding(Level.WARNING, "syncs", shown, mend)
    else:
        yield Finding(Level.OK, "syncs", shown)


def check_write_cache(settings: Settings, root: Path = Path("/")) -> Iterator[Finding]:
    """Whether the kernel has the disk empty its cache in a sync, as far as it says so."""
    mount = mount_of(settings.data_dir.absolute(), root)
    if mount is None or not mount.device:
        return
    block = root / "sys/dev/block" / mount.device
    for place in (block, block.resolve().parent):
        with suppress(OSError):
            cache = (place / "queue/write_cache").read_text().strip()
            said = sorted((place / "device/scsi_disk").glob("*/cache_type"))
            has_cache = any("write back" in each.read_text() for each in said)
            if cache == "write through" and has_cache:
                yield Finding(
                    Level.ERROR,
                    "syncs",
                    f"disk {place.name} has a cache, and the kernel is told not to empty it: a "
                    "sync does not reach the disk",
                    f"echo 'write back' > /sys/block/{place.name}/queue/write_cache",
                )
            elif cache == "write through":
                yield Finding(
                    Level.NOTE,
                    "syncs",
                    f"disk {place.name} says that it has no cache that it could lose, so that it "
                    "is never told to empty one",
                    "be sure that this is true: a virtual disk must not be cached by its host, a "
                    "controller needs a battery",
                )
            return


def sync_times_ms(place: Path) -> list[float]:
    """How long each of some syncs takes, of a file that has no name."""
    times = []
    with tempfile.TemporaryFile(dir=place) as file:
        descriptor = file.fileno()
        for at in range(SYNCS):
            os.pwrite(descriptor, BLOCK, at * len(BLOCK))
            began = time.perf_counter()
            os.fdatasync(descriptor)
            times.append((time.perf_counter() - began) * 1000)
    return times


def nearest(directory: Path) -> Path:
    """A directory, or the one above it in which it would be made."""
    while not directory.exists() and directory != directory.parent:
        directory = directory.parent
    return directory


def mount_of(place: Path, root: Path = Path("/")) -> Mount | None:
    """The mount that a path is on; None where that cannot be told."""
    best: Mount | None = None
    resolved = place.resolve()
    with suppress(OSError):
        for line in (root / "proc/self/mountinfo").read_text("utf-8", "replace").splitlines():
            before, _, after = line.partition(" - ")
            fields, kinds = before.split(), after.split()
            if len(fields) < 6 or len(kinds) < 3:
                continue
            # Spaces and the like are octal there.
            at = Path(fields[4].encode().decode("unicode_escape"))
            if resolved.is_relative_to(at) and (best is None or at.is_relative_to(best.place)):
                options = frozenset(f"{fields[5]},{kinds[2]}".split(","))
                best = Mount(at, kinds[0], options, fields[2])
    return best
