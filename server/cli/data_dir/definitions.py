"""`vouchmq definitions export`: the definitions in a data directory, as a file that can be loaded.

    data directory (read only) → vouchmq.store.inspection → broker without messages → JSON

It prints. The broker may be running; what is not on disk yet is not told. Exit codes are
those of `store check`: 0 nothing wrong, 1 damage was found, 2 the directory cannot be read.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, TextIO

from vouchmq.server.broker.definitions import BadDefinition
from vouchmq.server.cli.data_dir.store import (
    EXIT_CLEAN,
    EXIT_DAMAGED,
    EXIT_UNREADABLE,
    complain,
    look,
)
from vouchmq.server.definitions.export import exported
from vouchmq.server.definitions.importer import empty_dry_run
from vouchmq.store.errors import StoreError

if TYPE_CHECKING:
    from pathlib import Path


def export(directory: Path, out: TextIO | None = None) -> int:
    """Print the definitions of a data directory; returns the exit code."""
    out = sys.stdout if out is None else out
    broker = empty_dry_run()
    try:
        found = look(directory)
        broker.restore(found.inspection.definitions)
    except (StoreError, OSError) as error:
        return complain(directory, error)
    except BadDefinition as error:
        sys.stderr.write(f"vouchmq: {directory}: {error}\n")
        return EXIT_UNREADABLE
    text, left_out = exported(broker)
    out.write(text)
    for each in left_out:
        sys.stderr.write(f"vouchmq: omitted, because JSON cannot represent the number: {each}\n")
    return EXIT_DAMAGED if found.inspection.damaged else EXIT_CLEAN
