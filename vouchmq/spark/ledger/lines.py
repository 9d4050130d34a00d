"""Ledger files become lines in Parquet: which files, which lines are broken, which come twice.

Files are found by their names, read with the schema of `events.py` and written down
once; all later steps read what is here. A line that cannot be read is named and counted, never
passed over. Must not know what events mean for a message.
"""

from __future__ import annotations

import gzip
import json
import mmap
import shutil
import zlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from vouchmq.spark.ledger import events

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

BROKEN_TEXT: Final = "_broken_text"
NAMED_MOST: Final = 20
"""So many broken lines are named, the others are counted."""


class LedgerError(Exception):
    """The input is no ledger that can be judged; the text is one line that says why."""


@dataclass(frozen=True, slots=True)
class Found:
    """The files of an audit: closed ones, and those that a broker still writes to."""

    closed: tuple[Path, ...]
    open: tuple[Path, ...]


def find(paths: Iterable[str | Path]) -> Found:
    """The ledger files that are meant: files, or directories with all that is below them.

    Raises:
        LedgerError: a path is not there, or holds no ledger
    """
    closed: dict[Path, None] = {}
    opened: dict[Path, None] = {}
    for given in paths:
        path = Path(given)
        if path.is_dir():
            below = sorted(each for each in path.rglob("*.jsonl*") if each.is_file())
            found = [each for each in below if events.FILE_NAME.fullmatch(each.name)]
            if not found:
                raise LedgerError(f"{path} holds no ledger (<broker>-<epoch>-<number>.jsonl)")
        elif path.is_file():
            found = [path]
        else:
            raise LedgerError(f"{path} is not there")
        for each in found:
            (opened if each.name.endswith(".open") else closed)[each.resolve()] = None
    return Found(tuple(closed), tuple(opened))


def stage_open(files: Sequence[Path], directory: Path) -> tuple[list[Path], int]:
    """Copy files that are being written to, up to their last whole line, under visible names.

    Spark passes over names that begin with a dot. Returns the copies and how many of the files
    ended in a torn line.
    """
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    copies, torn = [], 0
    for place, path in enumerate(files):
        try:
            data = path.read_bytes()
        except FileNotFoundError:
            # Closed meanwhile; it is read under its new name the next time.
            continue
        whole = data[: data.rfind(b"\n") + 1]
        torn += len(whole) != len(data)
        copy = directory / f"{place:04d}" / path.name.removeprefix(".").removesuffix(".open")
        copy.parent.mkdir()
        copy.write_bytes(whole)
        copies.append(copy)
    return copies, torn


def read(spark: SparkSession, files: Sequence[Path]) -> DataFrame:
    """Lines of files, as `shape` makes them."""
    # A name may hold what Hadoop takes for a pattern.
    escaped = ["".join(f"\\{c}" if c in "{}[]*?\\" else c for c in str(path)) for path in files]
    reader = spark.read.schema(reading_schema()).option("columnNameOfCorruptRecord", BROKEN_TEXT)
    # One that cannot be read to its end is a finding (`seals.look`), not the end of an audit.
    return shape(reader.option("ignoreCorruptFiles", "true").json(escaped))


def reading_schema() -> str:
    """What the JSON source is asked for: the keys, and the text of what is no line."""
    return f"{events.SCHEMA_DDL}, `{BROKEN_TEXT}` string"


def shape(raw: DataFrame) -> DataFrame:
    """Lines with the file that they come from (`f`) and whether they are broken (`broken`)."""
    return shape_streamed(raw.withColumn("f", raw["_metadata.file_path"]))


def shape_streamed(raw: DataFrame) -> DataFrame:
    """The same of lines that say already where they come from."""
    return raw.withColumn("broken", _is_broken(raw)).drop(BROKEN_TEXT)


def _is_broken(raw: DataFrame) -> Column:
    from pyspark.sql import functions as f

    complete = f.lit(False)
    for kind, needed in events.needed_keys().items():
        has_all = f.lit(True)
        for key in needed:
            has_all = has_all & raw[key].isNotNull()
        complete = f.when(raw["e"] == kind, has_all).otherwise(complete)
    lacks = f.greatest(*[f.isnull(raw[key]).cast("int") for key in ("b", "o", "n", "t")]) == 1
    out_of_range = (
        (raw["o"] < 0)
        | (raw["o"] >= events.MOST_EPOCHS)
        | (raw["n"] < 0)
        | (raw["n"] >= events.MOST_LINES)
    )
    straight = raw["i"].isNull() | f.forall(raw["i"], _is_span)
    straight = straight & (raw["lsn"].isNull() | _is_span(raw["lsn"]))
    crooked = ~f.coalesce(straight, f.lit(False))
    return raw[BROKEN_TEXT].isNotNull() | lacks | out_of_range | ~complete | crooked


def _is_span(span: Column) -> Column:
    from pyspark.sql import functions as f

    return (f.size(span) == 2) & (f.get(span, f.lit(0)) <= f.get(span, f.lit(1)))


def name_broken(paths: Iterable[Path]) -> list[str]:
    """`file:line` of the broken lines of these files, the first of them."""
    named: list[str] = []
    for path in paths:
        for number, line in _lines_of(path):
            if _is_broken_text(line):
                named.append(f"{path}:{number}")
                if len(named) == NAMED_MOST:
                    return named
    return named


def may_have_arrays(path: Path) -> bool:
    """Whether a line may be an array, of which Spark makes as many rows as it has elements."""
    # A line that begins with a blank is as strange.
    starts = (b"[", b" ", b"\t")
    try:
        if path.name.endswith(".gz"):
            return any(line.startswith(starts) for _, line in _lines_of(path))
        if not path.stat().st_size:
            return False
        with (
            path.open("rb") as file,
            mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data,
        ):
            return data[:1] in starts or any(data.find(b"\n" + each) >= 0 for each in starts)
    except FileNotFoundError:
        # Read, and removed by its age or packed since.
        return False


def count_broken(path: Path) -> int:
    """How many lines of a file are broken, line by line."""
    return sum(_is_broken_text(line) for _, line in _lines_of(path))


def _lines_of(path: Path) -> Iterator[tuple[int, bytes]]:
    # Of one that is damaged, those that can be read: the rest is a finding.
    with (
        suppress(EOFError, zlib.error, gzip.BadGzipFile),
        gzip.open(path) if path.name.endswith(".gz") else path.open("rb") as file,
    ):
        yield from enumerate(file, 1)


def _is_broken_text(line: bytes) -> bool:
    if not line.strip():
        return False
    try:
        event = json.loads(line)
    except ValueError:
        return True
    return not isinstance(event, dict) or not is_event(event)


def is_event(event: dict[str, Any]) -> bool:
    """Whether a line that is JSON has all that its kind needs, in the right types."""
    needed = events.needed_keys().get(str(event.get("e")))
    if needed is None or any(event.get(key) is None for key in ("b", "o", "n", "t", *needed)):
        return False
    numbers = {key.name for key in events.KEYS if key.ddl in ("int", "bigint")}
    spans = [*(event.get("i") or ()), *([event["lsn"]] if event.get("lsn") is not None else ())]
    return (
        all(type(each) is int for key, each in event.items() if key in numbers and each is not None)
        and 0 <= event["o"] < events.MOST_EPOCHS
        and 0 <= event["n"] < events.MOST_LINES
        and all(len(span) == 2 and span[0] <= span[1] for span in spans)
    )


def sql_text(text: str) -> str:
    """A text as a literal of SQL."""
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"
