"""The files of an archive: what Spark calls them, where they are, and what a replay calls them.

    file:/lake/a%20b/day=0/part-0.parquet ──▶ day=0/part-0.parquet, /lake/a b/day=0/part-0.parquet

Spark gives a file's place as a URL, takes it as a pattern, and knows its base name, which files of
different directories may share. So a replay has a name of its own for each. Knows no Spark.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final
from urllib.parse import unquote

SINK_LOG: Final = "_spark_metadata"

_LOG_FILE: Final = re.compile(r"(\d+)(\.compact)?")
_PATTERN: Final = re.compile(r"[\\\[\]{}*?]")
_SCHEME: Final = re.compile(r"^file:(?://(?=/))?")


class FilesError(Exception):
    """Files that cannot be told from each other; one line."""


class Files:
    """Those files of an archive that Spark has told of.

    Args:
        source: the archive's directory
    """

    def __init__(self, source: Path) -> None:
        self._source = source
        self._log = source / SINK_LOG
        self._is_logged = self._log.is_dir()
        self._urls: dict[str, str] = {}

    @property
    def pattern(self) -> str:
        """What to give Spark to have all of them read.

        It looks for a sink's log only in a directory that it finds by the name as given.
        """
        return str(self._source) if self._is_logged else pattern_of(str(self._source))

    def name_of(self, url: str) -> str:
        """The name of a file that Spark calls so: its path in the archive.

        Its base name alone where a sink has written a log, which gives no base name twice.

        Raises:
            FilesError: another one has that name
        """
        path = path_of(url)
        name = os.path.relpath(path, self._source)
        if self._is_logged:
            name = Path(path).name
        if self._urls.setdefault(name, url) != url:
            raise FilesError(f"two files of {self._source} have the name {name}")
        return name

    def url(self, name: str) -> str:
        """What Spark calls a file, in `_metadata.file_path`."""
        return self._urls[name]

    def patterns(self, names: Iterable[str]) -> list[str]:
        """What to give Spark to have these files read."""
        return [pattern_of(path_of(self._urls[name])) for name in names]

    def in_order(self) -> list[str]:
        """Their names by the order in which a sink has committed them; else by the alphabet."""
        if not self._is_logged:
            return sorted(self._urls)
        found = [path for path in self._log.iterdir() if _LOG_FILE.fullmatch(path.name)]
        texts = {path.name: path.read_text("utf-8") for path in found}
        return files_of_log(texts)


def path_of(url: str) -> str:
    """The path of a file that Spark calls so."""
    return unquote(_SCHEME.sub("", url), errors="surrogateescape")


def pattern_of(path: str) -> str:
    """A pattern that only this path fits; as it is when there is nothing of that name."""
    return _PATTERN.sub(r"\\\g<0>", path) if os.path.lexists(path) else path


def files_of_log(texts: Mapping[str, str]) -> list[str]:
    """Base names of the files that a file sink has committed, in the order of its batches.

    Args:
        texts: of the log's files by their names: batch numbers, some of them compacted
    """
    numbers = {
        int(match[1]): name for name in texts if (match := _LOG_FILE.fullmatch(name)) is not None
    }
    compact = max((n for n, name in numbers.items() if name.endswith(".compact")), default=-1)
    names: dict[str, None] = {}
    for number in sorted(numbers):
        if number < compact:
            continue
        for line in texts[numbers[number]].splitlines()[1:]:
            entry = json.loads(line)
            name = Path(path_of(entry["path"])).name
            if entry.get("action", "add") == "add":
                names[name] = None
            else:
                names.pop(name, None)
    return list(names)
