"""How a replay goes through an archive: in slices, whose order and place a later run finds again.

    files in the order they were written ──▶ units of so many rows ──▶ slices, one job each

A run that is killed repeats at most the slice it was in. Where messages shall come in the order of
their queues, a slice ends only where everything before it comes before everything behind it. Knows
neither Spark nor files.
"""

from __future__ import annotations

import hashlib
import json
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

# More files in one job would make its plan longer than its work.
MAX_FILES: Final = 200


@dataclass(frozen=True, slots=True)
class Place:
    """What a unit holds of one queue: which incarnation, and between which offsets.

    `first` and `last` are None where the broker gave no offsets.
    """

    queue: str
    queue_id: int | None
    first: int | None
    last: int | None


@dataclass(frozen=True, slots=True)
class Unit:
    """Some rows of one file.

    Attributes:
        file: its name
        chunk: which part of the file
        rows: how many of them are to be replayed
        places: where they come from
    """

    file: str
    chunk: int
    rows: int
    places: tuple[Place, ...] = ()


@dataclass(frozen=True, slots=True)
class Slice:
    """Units that one job replays."""

    units: tuple[Unit, ...]

    @property
    def rows(self) -> int:
        """The number of messages in the slice."""
        return sum(unit.rows for unit in self.units)

    @property
    def files(self) -> list[str]:
        """The names of its files, each once."""
        return list(dict.fromkeys(unit.file for unit in self.units))


def slices_of(units: Sequence[Unit], max_rows: int, *, in_order: bool) -> list[Slice]:
    """Units put together, so many rows at a time as far as order allows.

    Args:
        units: in the order of their files
        max_rows: of a slice, unless one unit has more
        in_order: whether offsets have to rise from slice to slice, per queue
    """
    joined = _joined(units) if in_order else [False] * len(units)
    found: list[Slice] = []
    current: list[Unit] = []
    rows = 0
    for unit, belongs in zip(units, joined, strict=True):
        is_full = rows + unit.rows > max_rows or len(current) >= MAX_FILES
        if current and is_full and not belongs:
            found.append(Slice(tuple(current)))
            current, rows = [], 0
        current.append(unit)
        rows += unit.rows
    if current:
        found.append(Slice(tuple(current)))
    return found


def _joined(units: Sequence[Unit]) -> list[bool]:
    """For each unit whether it must be in one slice with the one before it.

    It must where some unit from here on holds an offset below one that some unit before it holds.
    """
    tops: dict[tuple[str, int | None], tuple[list[int], list[int]]] = {}
    # Differences: +1 where a stretch of forbidden edges begins, -1 behind it.
    edges = [0] * (len(units) + 1)
    for number, unit in enumerate(units):
        for place in unit.places:
            if place.first is None or place.last is None:
                continue
            numbers, highest = tops.setdefault((place.queue, place.queue_id), ([], []))
            at = bisect_left(highest, place.first)
            if at < len(numbers):
                edges[numbers[at] + 1] += 1
                edges[number + 1] -= 1
            numbers.append(number)
            highest.append(max(place.last, highest[-1] if highest else place.last))
    joined: list[bool] = []
    depth = 0
    for edge in edges[:-1]:
        depth += edge
        joined.append(depth > 0)
    return joined


class ResumeError(Exception):
    """What a checkpoint says does not fit what is to be done; one line."""


@dataclass(frozen=True, slots=True)
class Resume:
    """How far a replay has come.

    Attributes:
        task: what makes it this replay and no other
        chunk_rows: rows of a unit
        done: how many units are replayed
        digest: of these units: the archive may have grown since, it may not have changed
    """

    task: Mapping[str, Any]
    chunk_rows: int
    done: int = 0
    digest: str = ""

    def text(self) -> str:
        """The progress as the JSON that the checkpoint keeps."""
        kept = {
            "v": 1,
            "task": dict(self.task),
            "chunk_rows": self.chunk_rows,
            "done": self.done,
            "digest": self.digest,
        }
        return json.dumps(kept)

    @classmethod
    def of(cls, text: str) -> Resume:
        """Raises ResumeError when the text is none of ours."""
        try:
            kept = json.loads(text)
            if kept["v"] != 1:
                raise ValueError(f"version {kept['v']}")
            return cls(kept["task"], int(kept["chunk_rows"]), int(kept["done"]), kept["digest"])
        except (ValueError, KeyError, TypeError) as error:
            raise ResumeError(f"is not the checkpoint of a replay: {error}") from None

    def check_task(self, task: Mapping[str, Any]) -> None:
        """Raises ResumeError when it is of another replay."""
        for name, value in task.items():
            if self.task.get(name) != value:
                raise ResumeError(
                    f"belongs to a replay with {name} {self.task.get(name)!r}, not {value!r}"
                )

    def left(self, units: Sequence[Unit]) -> Sequence[Unit]:
        """What is still to be replayed.

        Raises:
            ResumeError: the archive is not the one that was begun with
        """
        if self.done > len(units) or self.digest != digest_of(units[: self.done]):
            raise ResumeError("is of an archive whose files have changed since")
        return units[self.done :]

    def after(self, units: Sequence[Unit], more: int) -> Resume:
        """When `more` of all `units` are replayed, too."""
        done = self.done + more
        return Resume(self.task, self.chunk_rows, done, digest_of(units[:done]))


def digest_of(units: Iterable[Unit]) -> str:
    """A short text that tells units from others; empty for none."""
    known = hashlib.sha256()
    count = 0
    for unit in units:
        known.update(f"{unit.file}\0{unit.chunk}\0{unit.rows}\n".encode())
        count += 1
    return known.hexdigest()[:32] if count else ""
