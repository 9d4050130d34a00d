"""Values on the command line: directories, lists of names, `name=value`.

Must not know which command they are for.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click


class Directory(click.ParamType[Path]):
    """A path that is not empty: one of an unset variable would be the current directory."""

    name = "directory"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Path:
        """See click."""
        if not str(value):
            self.fail("expected a path, not ''", param, ctx)
        return Path(value)


class Names(click.ParamType[tuple[str, ...]]):
    """Names with commas between them."""

    name = "names"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, ...]:
        """See click."""
        if isinstance(value, tuple):
            return value
        names = tuple(each.strip() for each in str(value).split(","))
        if not all(names):
            self.fail(f"expected names with commas between them, not {value!r}", param, ctx)
        return names


class Assignment(click.ParamType[tuple[str, object]]):
    """`name=value`; the value is JSON where it can be read as such, and text otherwise."""

    name = "assignment"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, object]:
        """See click."""
        if isinstance(value, tuple):
            return value
        name, equals, text = str(value).partition("=")
        if not (name and equals):
            self.fail(f"expected NAME=VALUE, not {value!r}", param, ctx)
        try:
            return name, json.loads(text, parse_constant=_refuse)
        except ValueError:
            return name, text


def _refuse(text: str) -> object:
    """Of NaN and infinities, which JSON does not have."""
    raise ValueError(text)
