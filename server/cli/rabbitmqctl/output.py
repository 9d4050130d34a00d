"""What rabbitmqctl prints: a line about what is done, columns separated by tabs, or JSON.

Must not know commands.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final, TextIO

from vouchmq.server.cli.rabbitmqctl.words import Mistake

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from vouchmq.server.cli.rabbitmqctl.words import Words

TABLE: Final = "table"
FORMATTERS: Final = ("table", "json", "csv")


class Output:
    """Where one command prints.

    Args:
        words: of the command line
        out: standard output

    Raises:
        Mistake: there is no such formatter
    """

    def __init__(self, words: Words, out: TextIO) -> None:
        self.out = out
        self._formatter = words.values.get("formatter", TABLE)
        if self._formatter not in FORMATTERS:
            known = ", ".join(FORMATTERS)
            raise Mistake(f"there is no formatter {self._formatter!r}; there are {known}")
        self._is_quiet = bool({"quiet", "silent"} & words.switches) or self._formatter != TABLE
        self._has_heads = not {"silent", "no_table_headers"} & words.switches

    def banner(self, text: str) -> None:
        """Say what is being done, unless only the result is wanted."""
        if not self._is_quiet:
            self.out.write(f"{text}\n")

    def line(self, text: str) -> None:
        """A line of the result."""
        self.out.write(f"{text}\n")

    def rows(self, columns: Sequence[str], rows: Iterable[Mapping[str, Any]]) -> None:
        """The rows of a listing."""
        if self._formatter == "json":
            self.out.write("[\n")
            for at, row in enumerate(rows):
                chosen = {name: row[name] for name in columns}
                text = json.dumps(chosen, ensure_ascii=False, separators=(",", ":"))
                self.out.write(f"{',' * bool(at)}{text}\n")
            self.out.write("]\n")
            return
        separator, show = (",", csv_cell) if self._formatter == "csv" else ("\t", cell)
        heads = separator.join(map(show, columns))
        has_heads = self._has_heads
        for row in rows:
            # A listing of nothing has no heads.
            if has_heads:
                self.out.write(heads + "\n")
                has_heads = False
            self.out.write(separator.join(show(row[name]) for name in columns) + "\n")


def cell(value: object) -> str:
    """A value as rabbitmqctl prints it in a table."""
    if isinstance(value, str):
        return "".join(each if each.isprintable() else f"\\{ord(each):03o}" for each in value)
    if isinstance(value, list) and all(isinstance(each, str) for each in value):
        return f"[{', '.join(value)}]"
    return term(value)


def csv_cell(value: object) -> str:
    """The same in CSV."""
    return '"' + cell(value).replace('"', '""') + '"'


def term(value: object) -> str:
    """A value as an Erlang term: tables are lists of pairs."""
    if isinstance(value, bool):
        return str(value).lower()
    if value is None:
        return "undefined"
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False)
    if isinstance(value, dict):
        pairs = (f"{{{term(name)},{term(each)}}}" for name, each in value.items())
        return f"[{','.join(pairs)}]"
    if isinstance(value, list):
        return f"[{','.join(map(term, value))}]"
    return str(value)
