"""`vouchmq store backup` and `store restore`: what they print.

Exit codes: 0 done, 1 it failed or is damaged, 2 no broker runs on the directory.
"""

from __future__ import annotations

import json
import os
import sys
import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final, TextIO

from vouchmq.server.backup.copying import Pace, back_up
from vouchmq.server.backup.manifest import BackupError
from vouchmq.server.backup.restoring import restore
from vouchmq.server.cli.units import amount, plural
from vouchmq.server.edge.control.client import NoBrokerError

if TYPE_CHECKING:
    from pathlib import Path

DONE: Final = 0
FAILED: Final = 1
NO_BROKER: Final = 2
# The broker beside it goes first.
NICE: Final = 10


def run_backup(
    data_dir: Path,
    target: Path,
    *,
    bytes_s: float,
    is_checked: bool,
    as_json: bool,
    out: TextIO | None = None,
) -> int:
    """Make a backup; returns the exit code."""
    out = sys.stdout if out is None else out
    os.nice(NICE)
    pace = Pace(bytes_s, time.monotonic, time.sleep)
    try:
        made = back_up(data_dir, target, now=datetime.now(UTC), pace=pace, is_checked=is_checked)
    except NoBrokerError as error:
        sys.stderr.write(f"vouchmq: {error}\n")
        return NO_BROKER
    except BackupError as error:
        sys.stderr.write(f"vouchmq: {error}\n")
        return FAILED
    if as_json:
        out.write(json.dumps(made._asdict(), default=str) + "\n")
    else:
        out.write(
            f"{made.path}\n"
            f"{plural(made.segments, 'segment')}, {amount(made.size_bytes)}; "
            f"copied {made.copied_segments}, {amount(made.copied_bytes)}\n"
        )
    if made.is_damaged:
        sys.stderr.write(
            f"vouchmq: {made.path} is damaged, and so is probably the data directory: "
            "`vouchmq store check` says where\n"
        )
        return FAILED
    return DONE


def run_restore(
    backup: Path, directory: Path, *, as_json: bool = False, out: TextIO | None = None
) -> int:
    """Restore a backup; returns the exit code."""
    out = sys.stdout if out is None else out
    try:
        manifest = restore(backup, directory, Pace(0, time.monotonic, time.sleep))
    except BackupError as error:
        sys.stderr.write(f"vouchmq: {error}\n")
        return FAILED
    if as_json:
        document = {
            "path": str(directory),
            "segments": len(manifest.segments),
            "size_bytes": manifest.size_bytes,
            "taken_at": manifest.taken_at,
        }
        out.write(json.dumps(document, default=str) + "\n")
        return DONE
    out.write(
        f"{directory}: {plural(len(manifest.segments), 'segment')}, {amount(manifest.size_bytes)}, "
        f"as of {manifest.taken_at}\n"
    )
    return DONE
