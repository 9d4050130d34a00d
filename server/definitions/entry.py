"""One object of a definitions file, and what its values are as names, numbers and tables.

Every fault is told with its place. What nobody asked an object for is told, too, so that no word of
a file is passed over in silence. Must not know what the objects mean.

Spec: HTTP-40, HTTP-41
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final, TypeVar

from vouchmq.protocol.fields import Field, Table, boolean, long_int, longstr
from vouchmq.server.edge.errors import StartupError

if TYPE_CHECKING:
    from collections.abc import Mapping

NAME_MAX_SIZE: Final = 255
MOST_DEPTH: Final = 16
LARGEST_INTEGER: Final = 1 << 63

T = TypeVar("T")


class DefinitionsError(StartupError):
    """Something is wrong with a definitions file: where, and what."""


class Entry:
    """One object of the file, and where it stands."""

    def __init__(self, value: object, where: str) -> None:
        if not isinstance(value, dict):
            raise DefinitionsError(f"{where}: expected an object, not {kind_of(value)}")
        self.where = where
        self.values: dict[str, object] = value
        self._asked: set[str] = set()

    @property
    def unread(self) -> list[str]:
        """Keys that nobody has asked for."""
        return sorted(self.values.keys() - self._asked)

    def pass_over(self) -> None:
        """It is told, or of no matter, as a whole."""
        self._asked.update(self.values)

    def value(self, key: str) -> object:
        """A value of any type, None when there is none."""
        self._asked.add(key)
        return self.values.get(key)

    def at(self, key: str) -> str:
        """Where the value of a key stands."""
        return f"{self.where}.{key}"

    def text(self, key: str, default: str | None = None) -> str:
        """A text, which must be there unless there is a default."""
        return self._of_type(key, str, default)

    def flag(self, key: str, default: bool = False) -> bool:
        """True or false."""
        return self._of_type(key, bool, default)

    def number(self, key: str, default: float) -> float:
        """A number."""
        self._asked.add(key)
        value = self.values.get(key, default)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise DefinitionsError(f"{self.at(key)}: expected a number, not {kind_of(value)}")
        if not math.isfinite(value):
            raise DefinitionsError(f"{self.at(key)}: too large")
        return value

    def object(self, key: str) -> dict[str, object]:
        """An object; a missing one is empty. RabbitMQ 3.10 writes some as lists of pairs."""
        self._asked.add(key)
        value = self.values.get(key, {})
        if isinstance(value, list) and all(is_pair(each) for each in value):
            value = dict(value)
        if not isinstance(value, dict):
            raise DefinitionsError(f"{self.at(key)}: expected an object, not {kind_of(value)}")
        return value

    def table(self, key: str = "arguments") -> Table:
        """An object as an argument table."""
        return table_of(self.object(key), self.at(key))

    def name(self, key: str = "name", *, may_be_empty: bool = False) -> str:
        """A name of at most 255 octets, without line ends."""
        name = self.text(key)
        try:
            size = len(name.encode("utf-8", "surrogateescape"))
        except UnicodeEncodeError:
            raise DefinitionsError(f"{self.at(key)}: not valid Unicode text") from None
        if not size and not may_be_empty:
            raise DefinitionsError(f"{self.at(key)}: must not be empty")
        if size > NAME_MAX_SIZE:
            raise DefinitionsError(
                f"{self.at(key)}: expected at most {NAME_MAX_SIZE} bytes, not {size}"
            )
        if "\n" in name or "\r" in name:
            raise DefinitionsError(f"{self.at(key)}: must not have line ends")
        return name

    def _of_type(self, key: str, kind: type[T], default: T | None) -> T:
        self._asked.add(key)
        if key not in self.values:
            if default is None:
                raise DefinitionsError(f"{self.at(key)}: missing")
            return default
        value = self.values[key]
        if not isinstance(value, kind):
            words = {str: "a text", bool: "true or false"}
            raise DefinitionsError(f"{self.at(key)}: expected {words[kind]}, not {kind_of(value)}")
        return value


def table_of(values: Mapping[str, object], where: str, depth: int = 0) -> Table:
    """An argument table; integers get 64 bits.

    Raises:
        DefinitionsError: a value that no table can hold
    """
    table: Table = {}
    for name, value in values.items():
        if len(name.encode("utf-8", "backslashreplace")) > NAME_MAX_SIZE:
            raise DefinitionsError(f"{where}: a name of more than {NAME_MAX_SIZE} bytes")
        table[name] = _field(value, f"{where}.{name}", depth)
    return table


def _field(value: object, where: str, depth: int) -> Field:
    if depth > MOST_DEPTH:
        raise DefinitionsError(f"{where}: nested too deeply")
    if isinstance(value, bool):
        return boolean(value)
    if isinstance(value, int):
        if not -LARGEST_INTEGER <= value < LARGEST_INTEGER:
            raise DefinitionsError(f"{where}: {value} does not fit into 64 bits")
        return long_int(value)
    if isinstance(value, float):
        return Field("d", value)
    if isinstance(value, str):
        try:
            return longstr(value)
        except UnicodeEncodeError:
            raise DefinitionsError(f"{where}: not valid Unicode text") from None
    if isinstance(value, dict):
        return Field("F", table_of(value, where, depth + 1))
    if isinstance(value, list):
        items = (_field(each, f"{where}[{at}]", depth + 1) for at, each in enumerate(value))
        return Field("A", tuple(items))
    return Field("V", None)


def is_pair(value: object) -> bool:
    """Whether it is a list of a name and a value."""
    return isinstance(value, list) and len(value) == 2 and isinstance(value[0], str)


def kind_of(value: object) -> str:
    """What a value of JSON is, in words; the value itself may be a secret."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    words: dict[type, str] = {str: "a text", dict: "an object", list: "a list"}
    return words.get(type(value), "a number")
