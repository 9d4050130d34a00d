"""`vouchmq ha position`: how far the directory of a stopped node is."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING

from vouchmq.server.cli.program import CommandFailed
from vouchmq.server.edge.progress import RecoveryProgress
from vouchmq.store.disk import ReadOnlyDisk
from vouchmq.store.errors import StoreError
from vouchmq.store.recovery.recover import check_stopped
from vouchmq.store.replication.copy_source import damage_of
from vouchmq.store.replication.position_file import read_positions

if TYPE_CHECKING:
    from pathlib import Path


def position_of(directory: Path) -> dict[str, object]:
    """What a directory has; nothing in it is changed.

    Raises:
        CommandFailed: it cannot be read
    """
    bar = RecoveryProgress(sys.stderr, time.monotonic)
    try:
        disk = ReadOnlyDisk(directory)
        positions = read_positions(disk)
        verdict = check_stopped(disk, bar).verdict
        holder = disk.holder()
    except StoreError as error:
        raise CommandFailed(str(error), 2) from None
    except OSError as error:
        raise CommandFailed(f"{directory}: {error.strerror or error}", 2) from None
    finally:
        bar.close()
    facts: dict[str, object] = {"directory": str(directory), "is_running": holder is not None}
    if positions:
        _, log_id, at = positions[0]
        facts |= {"log": log_id.hex(), "epoch": at.epoch, "sequence": at.sequence}
    last = verdict.accepted[-1] if verdict.accepted else None
    facts["lsn"] = last.next_lsn - 1 if last is not None else 0
    facts["block"] = last.last_number if last is not None else 0
    facts["damage"] = damage_of(verdict)
    return facts
