"""Values from outside against the types that they should have: msgspec decides, faults have places.

    a value, a type, a place ─▶ a value of that type, or one more line in `Faults`

A type says what is allowed, ranges and choices included (`Annotated[int, Meta(ge=0)]`, `Literal`);
what no type can say is a `Check` behind it. From the same types come the words of faults, of
`--help` and of the pages. Every field of a record is looked at, so that all faults of a file are
told at once: `msgspec.convert` of a whole record would end at the first. Must not know what a
value means.

msgspec and not pydantic, which tells all faults by itself: a start would take 200 ms of CPU time
longer (docs/internals/decisions/0007-libraries-at-the-edges.md).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from datetime import datetime
from functools import cache, reduce
from operator import or_
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Final, Literal, NamedTuple, TypeVar, Union, get_args, get_origin

import msgspec
from msgspec import inspect

from vouchmq.server.errors import StartupError

NAME_MAX_SIZE: Final = 255
# More would hide the first.
MOST_FAULTS: Final = 20

T = TypeVar("T")


class Faults:
    """What is wrong with a file or a command line: a line for each fault, with its place."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def add(self, where: str, what: str) -> None:
        """Note one fault, with its place."""
        self.lines.append(f"{where}: {what}")

    def refuse(self, error: type[StartupError]) -> None:
        """Raise the error if there is any fault."""
        if not self.lines:
            return
        rest = len(self.lines) - MOST_FAULTS
        more = [f"{rest} more faults are not listed"] if rest > 0 else []
        raise error(*self.lines[:MOST_FAULTS], *more)


class InvalidValueError(ValueError):
    """A check refuses a value; `at` is where in it: `.x`, `[3]`."""

    def __init__(self, why: str, at: str = "") -> None:
        super().__init__(why)
        self.at = at


@dataclass(slots=True, frozen=True)
class Check:
    """Beside a type in `Annotated`: gives the value or another, or raises `InvalidValueError`."""

    check: Callable[[Any], Any]


def option(default: T, doc: str, *, is_secret: bool = False) -> T:
    """A field of a dataclass: its default and meaning; what is allowed stands in its type."""
    made: T = field(default=default, metadata={"doc": doc}, repr=not is_secret)
    return made


class Key(NamedTuple):
    """One key of a record."""

    attribute: str
    key: str
    type: Any
    checks: tuple[Check, ...]
    is_required: bool


@cache
def keys_of(kind: type[msgspec.Struct]) -> tuple[Key, ...]:
    """The keys of a record, in order."""
    return tuple(
        Key(each.name, each.encode_name, *_split(_given(each.type)), each.required)
        for each in msgspec.structs.fields(kind)
    )


def _given(kind: Any) -> Any:
    """What a value may be where None stands for one that is not given."""
    if get_origin(kind) not in {Union, UnionType}:
        return kind
    return reduce(or_, (each for each in get_args(kind) if each is not NoneType))


def converted(kind: Any, value: object, *, strict: bool = True) -> Any:
    """A value of the type, through all of its checks.

    Args:
        kind: the type
        value: of TOML or JSON
        strict: off for text, which may stand for a number

    Raises:
        InvalidValueError: it has not that type, or a check refuses it
    """
    return _converted(*_split(kind), value, strict)


def _converted(kind: Any, checks: tuple[Check, ...], value: object, strict: bool) -> Any:
    try:
        made = msgspec.convert(value, kind, strict=strict, dec_hook=_path)
    except msgspec.ValidationError:
        raise InvalidValueError(f"expected {expected(kind)}") from None
    for each in checks:
        made = each.check(made)
    return made


def _path(kind: type, value: object) -> Path:
    if kind is not Path or not isinstance(value, str) or not value or "\0" in value:
        raise ValueError
    return Path(value).expanduser()


def _split(kind: Any) -> tuple[Any, tuple[Check, ...]]:
    """A type and the checks behind it."""
    if get_origin(kind) is not Annotated:
        return kind, ()
    plain, *extras = get_args(kind)
    checks = tuple(each for each in extras if isinstance(each, Check))
    # Without bounds the plain one does, and msgspec is several times faster with it.
    return plain if len(checks) == len(extras) else kind, checks


def read_record(
    kind: type[T], values: dict[str, object], place: str, faults: Faults, **given: object
) -> T | None:
    """A record of the values; None if there are faults, each of which is told.

    Args:
        kind: what to make, a `msgspec.Struct`
        values: by key; those that it has no key for are passed over
        place: of the record
        faults: what is wrong goes there
        given: attributes that do not come from the values
    """
    made = dict(given)
    before = len(faults.lines)
    for each in keys_of(kind):  # type: ignore[arg-type]  # T is one
        if each.attribute in given:
            continue
        if each.key not in values:
            if each.is_required:
                faults.add(f"{place}.{each.key}", "missing")
            continue
        value = values[each.key]
        try:
            made[each.attribute] = _converted(each.type, each.checks, value, True)
        except InvalidValueError as error:
            what = str(error) if error.at else but_is(str(error), _described(str(error), value))
            faults.add(f"{place}.{each.key}{error.at}", what)
    return kind(**made) if len(faults.lines) == before else None


def but_is(what: str, shown: str) -> str:
    """`expected an integer` with what it is instead; a text that has said so already as it is."""
    has_said = not what.startswith("expected ") or ", not " in what or "; " in what
    return what if has_said or not shown else f"{what}, not {shown}"


def _described(what: str, value: object) -> str:
    """What a value is: itself only where it is a number, as it may be a secret."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if is_number and " from " in what:
        return str(value)
    same = "expected one of" if isinstance(value, str) else "expected a list"
    return "" if isinstance(value, str | list) and what.startswith(same) else kind_of(value)


def unknown_keys(kind: type[msgspec.Struct], values: Iterable[str]) -> list[str]:
    """Keys that such a record has not, sorted."""
    return sorted(set(values) - _names_of(kind))


@cache
def _names_of(kind: type[msgspec.Struct]) -> frozenset[str]:
    return frozenset(each.key for each in keys_of(kind))


@cache
def expected(kind: Any) -> str:
    """What values a type takes, in words."""
    plain = plain_type(kind)
    if choices := choices_of(kind):
        return f"{'some' if get_origin(plain) is tuple else 'one'} of {', '.join(choices)}"
    words: dict[Any, str] = {
        bool: "true or false",
        int: "an integer",
        float: "a number",
        int | float: "a number",
        str: "a string",
        Path: "a path",
        tuple[str, ...]: "a list of strings",
    }
    return words.get(plain, "an object") + range_of(kind, " from {} to {}", " of at least {}")


def plain_type(kind: Any) -> Any:
    """A type without bounds and checks."""
    return get_args(kind)[0] if get_origin(kind) is Annotated else kind


def choices_of(kind: Any) -> tuple[str, ...]:
    """The words that a type takes, or its items; empty where it takes others."""
    plain = plain_type(kind)
    if get_origin(plain) is tuple:
        plain = get_args(plain)[0]
    return tuple(filter(None, get_args(plain))) if get_origin(plain) is Literal else ()


def range_of(kind: Any, within: str, from_on: str) -> str:
    """The bounds of a number as one of two forms says; nothing without bounds."""
    told = inspect.type_info(kind)
    if isinstance(told, inspect.Metadata):
        told = told.type
    if not isinstance(told, inspect.IntType | inspect.FloatType) or told.ge is None:
        return ""
    return from_on.format(told.ge) if told.le is None else within.format(told.ge, told.le)


def kind_of(value: object) -> str:
    """What a value is, in words."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    words: dict[type, str] = {str: "a string", dict: "an object", list: "a list"}
    # What is left of TOML.
    rest = "a number" if isinstance(value, int | float) else "a date or time"
    return words.get(type(value), rest)


def shown_in_file(value: object) -> str:
    """A value as it would stand in the file."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list):
        return f"[{', '.join(map(shown_in_file, value))}]"
    if isinstance(value, dict):
        inside = ", ".join(f"{key} = {shown_in_file(each)}" for key, each in value.items())
        return f"{{{inside}}}"
    if isinstance(value, datetime):
        return value.isoformat().replace("+00:00", "Z")
    return repr(value) if isinstance(value, str) else str(value)


def check_name(name: str) -> str:
    """A name of 1 to 255 bytes without line ends, as AMQP sends it."""
    if not name:
        raise InvalidValueError("must not be empty")
    return check_shortstr(name)


def check_shortstr(text: str) -> str:
    """At most 255 bytes without line ends."""
    try:
        size = len(text.encode("utf-8", "surrogateescape"))
    except UnicodeEncodeError:
        raise InvalidValueError("not valid Unicode text") from None
    if size > NAME_MAX_SIZE:
        raise InvalidValueError(f"expected at most {NAME_MAX_SIZE} bytes, not {size}")
    if "\n" in text or "\r" in text:
        raise InvalidValueError("must not have line ends")
    return text


Name = Annotated[str, Check(check_name)]
