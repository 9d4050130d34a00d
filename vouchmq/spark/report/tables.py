"""What the report reads: the audit's small tables, as columns of numbers by the questions asked.

Never the table of copies: it has a row for each message, and whatever is to be counted over it was
counted by the audit. A table that is not there is one without rows, since an audit of nothing may
leave it out.
"""

from __future__ import annotations

import json
import math
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    import pyarrow as pa

Row = dict[str, Any]
BINS_PER_OCTAVE: Final = 4
"""Of the durations in the table `heat`."""
QUANTILES: Final = (0.5, 0.95, 0.99, 1.0)
KINDS: Final = {
    "confirm": "publish → confirm",
    "delivery": "publish → first delivery",
    "ack": "last delivery → ack",
}


class ReportError(Exception):
    """There is nothing to make a report of; the text says why."""


@dataclass(frozen=True, slots=True)
class Heat:
    """How often things took how long: counts by (start of a bucket in µs, bin)."""

    cells: dict[tuple[int, int], int]
    width_us: int

    @property
    def times_us(self) -> list[int]:
        """The buckets that have anything."""
        return sorted({time_us for time_us, _ in self.cells})

    def quantiles(self) -> list[tuple[int, int, list[float]]]:
        """For each bucket its start, its count, and the QUANTILES in µs: upper edges of bins."""
        columns: dict[int, list[tuple[int, int]]] = defaultdict(list)
        for (time_us, number), count in self.cells.items():
            columns[time_us].append((number, count))
        found = []
        for time_us, column in sorted(columns.items()):
            total = sum(count for _, count in column)
            found.append((time_us, total, [_quantile(column, total, q) for q in QUANTILES]))
        return found


def _quantile(column: list[tuple[int, int]], total: int, quantile: float) -> float:
    due = math.ceil(total * quantile)
    for number, count in sorted(column):
        due -= count
        if due <= 0:
            return float(2 ** ((number + 1) / BINS_PER_OCTAVE))
    return 0.0


class Tables:
    """The tables below an audit's output directory."""

    def __init__(self, directory: Path) -> None:
        """Open them.

        Raises:
            ReportError: the directory is not there or holds no table of an audit
        """
        self.directory = directory
        self._read: dict[str, pa.Table | None] = {}
        known = ("completeness", "findings", "states", "summary.json")
        if not any((directory / name).exists() for name in known):
            raise ReportError(f"{directory} holds no tables of an audit")

    def summary(self) -> Row:
        """What the audit says of itself; empty when it left no note."""
        path = self.directory / "summary.json"
        if not path.exists():
            return {}
        found = json.loads(path.read_text(encoding="utf-8"))
        return found if isinstance(found, dict) else {}

    def table(self, name: str) -> pa.Table | None:
        """A table with its partition columns; None when there is none or it has no rows."""
        if name not in self._read:
            self._read[name] = self._load(self.directory / name)
        return self._read[name]

    def _load(self, path: Path) -> pa.Table | None:
        # Not when the package is imported: other modules do without it.
        from pyarrow import dataset

        if not any(path.rglob("*.parquet")):
            return None
        found = dataset.dataset(path, format="parquet", partitioning="hive").to_table()
        return found if found.num_rows else None

    def rows(
        self,
        name: str,
        order: Sequence[tuple[str, str]] = (),
        most: int = 0,
        *,
        kind: str = "",
    ) -> list[Row]:
        """Rows of a table, sorted, at most so many when a number is given, of one `kind`."""
        found = self.table(name)
        if found is None:
            return []
        if kind:
            found = _of_kind(found, kind)
        if order:
            found = found.sort_by([(column, way) for column, way in order])
        return list((found.slice(0, most) if most else found).to_pylist())

    def count(self, name: str, *, kind: str = "") -> int:
        """How many rows a table has, of one `kind` when one is given."""
        found = self.table(name)
        if found is None:
            return 0
        return int((_of_kind(found, kind) if kind else found).num_rows)

    def sums(self, name: str, by: Sequence[str], columns: Sequence[str]) -> list[Row]:
        """A table summed up by some columns, in their order."""
        found = self.table(name)
        if found is None:
            return []
        summed = found.group_by(list(by)).aggregate([(column, "sum") for column in columns])
        renamed = summed.rename_columns([each.removesuffix("_sum") for each in summed.column_names])
        return list(renamed.sort_by([(column, "ascending") for column in by]).to_pylist())

    def states(self) -> Counter[str]:
        """How many copies there are in each state."""
        return Counter(
            {row["state"]: int(row["count"]) for row in self.sums("states", ["state"], ["count"])}
        )

    def heat(self, kind: str) -> Heat:
        """How long something took over time, for all brokers together."""
        cells: Counter[tuple[int, int]] = Counter()
        width_us = 1
        for row in self.rows("heat", kind=kind):
            cells[micros(row["t"]), int(row["bin"])] += int(row["count"])
        for row in self.rows("rates", most=1):
            width_us = int(row["width_s"]) * 1_000_000
        return Heat(dict(cells), width_us)

    def events(self) -> Iterator[tuple[int, list[Row]]]:
        """The lives of the messages with the worst findings, by the finding's rank."""
        lives: dict[int, list[Row]] = defaultdict(list)
        for row in self.rows("lives", [("finding", "ascending"), ("t", "ascending")]):
            lives[int(row["finding"])].append(row)
        yield from lives.items()

    def kinds(self, ranks: Sequence[int]) -> dict[int, str]:
        """The kinds of findings, by their rank."""
        from pyarrow import array, compute

        found = self.table("findings")
        if found is None or not ranks:
            return {}
        column = found.column("rank")
        chosen = found.filter(compute.is_in(column, array(ranks, column.type)))
        return {int(row["rank"]): str(row["kind"]) for row in chosen.to_pylist()}


def _of_kind(table: pa.Table, kind: str) -> pa.Table:
    from pyarrow import compute

    return table.filter(compute.equal(table.column("kind"), kind))


def micros(value: object) -> int:
    """A time as µs since 1970, whether the table holds a timestamp or the number itself."""
    if isinstance(value, datetime):
        at = value if value.tzinfo else value.replace(tzinfo=UTC)
        # Not timestamp(): a float has no room for the microseconds of our century.
        return (at - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)
    return int(value) if isinstance(value, int) else 0
