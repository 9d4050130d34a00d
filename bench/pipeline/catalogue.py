"""Which rows there are: those of every module of this folder that has `ROWS`, in its order."""

from __future__ import annotations

import pkgutil
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path

from bench.pipeline.row import Row


def rows() -> dict[str, Row]:
    """All rows by name.

    Raises:
        ValueError: two have one name
    """
    found: dict[str, Row] = {}
    for module in pkgutil.iter_modules([str(Path(__file__).parent)]):
        if module.name.startswith("__"):
            continue
        for row in getattr(import_module(f"bench.pipeline.{module.name}"), "ROWS", ()):
            if row.name in found:
                raise ValueError(f"two rows are called {row.name}")
            found[row.name] = row
    return found


def chosen(names: Sequence[str]) -> list[Row]:
    """Pick rows by name, all but those that must be asked for when none is named.

    Raises:
        ValueError: a name that is none
    """
    known = rows()
    if unknown := [name for name in names if name not in known]:
        raise ValueError(f"no row {', '.join(unknown)}; there are: {', '.join(known)}")
    if names:
        return [known[name] for name in names]
    return [row for row in known.values() if not row.is_asked_for]
