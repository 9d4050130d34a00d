"""A disk that refuses."""

from __future__ import annotations

import errno

from tests.unit.server.on_disk import DiskWorld


def refuse(world: DiskWorld, *, times: int = 1, number: int = errno.ENOSPC) -> None:
    """The next writes fail; what wipes a failed block is a write as well, and works."""
    at = world.disk.calls["write"] + 1
    for _ in range(times):
        world.disk.fail[("write", at)] = number
        at += 2
