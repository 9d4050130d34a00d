"""One option of an operator: its default and meaning, what it allows, and how its value is read.

    text of a flag or variable, or a value of TOML ─▶ a value of the option's type, within bounds

Must not know which options there are.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from pathlib import Path
from typing import Any, Final

from vouchmq.server.edge.errors import SettingsError

_TRUE: Final = frozenset({"true", "on", "yes", "1"})
_FALSE: Final = frozenset({"false", "off", "no", "0"})


def option(
    default: object,
    doc: str,
    *,
    low: float | None = None,
    high: float | None = None,
    choices: tuple[str, ...] = (),
    is_secret: bool = False,
) -> Any:
    """A field: default, meaning, and what is allowed (bounds included)."""
    metadata = {"doc": doc, "low": low, "high": high, "choices": choices}
    return field(default=default, metadata=metadata, repr=not is_secret)


def from_text(kind: object, bounds: Mapping[str, Any], text: str, source: str) -> object:
    """A value as typed on a command line or exported.

    Raises:
        SettingsError: it does not fit, with its source.
    """
    if kind is bool:
        word = text.strip().lower()
        if word not in _TRUE | _FALSE:
            raise SettingsError(f"{source}: expected on or off, not {text!r}")
        return word in _TRUE
    if kind in {int, float}:
        try:
            return _checked(bounds, int(text) if kind is int else float(text), source)
        except ValueError:
            raise SettingsError(f"{source}: expected {_called(kind)}, not {text!r}") from None
    if kind is Path:
        return _path(text, source)
    if kind is str:
        return _checked(bounds, text, source)
    return _names([part.strip() for part in text.split(",") if part.strip()])


def from_value(kind: object, bounds: Mapping[str, Any], value: object, source: str) -> object:
    """A value as TOML gives it: its type is part of what is checked.

    Raises:
        SettingsError: it does not fit, with its source.
    """
    if kind is Path and isinstance(value, str):
        return _path(value, source)
    if kind is float and type(value) is int:
        value = float(value)
    # bool is an int to isinstance, and must not pass for one here.
    if kind in {bool, int, float, str} and type(value) is kind:
        return _checked(bounds, value, source)
    if kind == tuple[str, ...] and isinstance(value, str):
        return from_text(kind, bounds, value, source)
    if kind == tuple[str, ...] and isinstance(value, list):
        if not all(isinstance(each, str) for each in value):
            raise SettingsError(f"{source}: expected a list of strings")
        return _names(value)
    raise SettingsError(f"{source}: expected {_called(kind)}, not {value!r}")


def _called(kind: object) -> str:
    """A type in the words of an operator."""
    words: dict[object, str] = {
        bool: "true or false",
        int: "an integer",
        float: "a number",
        str: "a string",
        Path: "a string",
    }
    return words.get(kind, "a list of strings")


def _names(names: list[str]) -> tuple[str, ...]:
    """RabbitMQ's word for an empty list is `none`."""
    return () if names == ["none"] else tuple(names)


def _path(text: str, source: str) -> Path:
    if not text or "\0" in text:
        raise SettingsError(f"{source}: expected a path, not {text!r}")
    return Path(text).expanduser()


def _checked(bounds: Mapping[str, Any], value: Any, source: str) -> Any:
    """The value, if it lies within what its setting allows."""
    low, high, choices = bounds["low"], bounds["high"], bounds["choices"]
    if choices and value not in choices:
        raise SettingsError(f"{source}: expected one of {', '.join(choices)}, not {value!r}")
    # Written so that not-a-number fails as well.
    if (low is not None and not value >= low) or (high is not None and not value <= high):
        raise SettingsError(f"{source}: {value} is not {allowed(low, high)}")
    return value


def allowed(low: float | None, high: float | None) -> str:
    """A range in words."""
    if high is None:
        return f"at least {low}"
    return f"between {low} and {high}"
