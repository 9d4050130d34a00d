"""Compares two sets of answers field by field, and knows which differences have a reason.

A field is named by its keys, with `#` for each element of a list: `items.#.message_stats.ack`.
Lists of objects are put in one order first, unless the request sorts them.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Final, NamedTuple

FILE: Final = Path(__file__).with_name("differences.toml")
# What tells the objects of a list apart, wherever they are told.
ORDER: Final = (
    *("vhost", "name", "user", "component", "source", "destination_type", "destination"),
    *("properties_key", "routing_key", "consumer_tag", "protocol", "exchange", "number"),
)
MISSING: Final = "missing"
EXTRA: Final = "extra"
VALUE: Final = "value"
KIND: Final = "kind"
STATUS: Final = "status"
LENGTH: Final = "length"


class Difference(NamedTuple):
    """A field in which our answer is not RabbitMQ's.

    Args:
        request: the step
        field: where; empty: the whole answer
        what: missing or extra here; another value, or one of another type (kind); the length of
            a list; the status
        theirs: what RabbitMQ answers
        ours: what we do
    """

    request: str
    field: str
    what: str
    theirs: Any
    ours: Any

    def __str__(self) -> str:
        where = f"{self.request}: {self.field or 'answer'}: {self.what}"
        return f"{where}: {_short(self.theirs)} / {_short(self.ours)}"


class Reason(NamedTuple):
    """Why some fields differ; patterns as of file names.

    Args:
        requests: steps
        field: where in their answers
        what: which differences; none: all
        text: the reason
        expected: how many differences it is for; None: any number
    """

    requests: tuple[str, ...]
    field: str
    what: tuple[str, ...]
    text: str
    expected: int | None = None

    def explains(self, found: Difference) -> bool:
        """Whether a difference is one of these."""
        return (
            (not self.what or found.what in self.what)
            and fnmatchcase(found.field, self.field)
            and any(fnmatchcase(found.request, each) for each in self.requests)
        )


def reasons(path: Path = FILE) -> list[Reason]:
    """The differences that are known, with their reasons."""
    listed = tomllib.loads(path.read_text())["difference"]
    return [
        Reason(
            tuple(request.replace("[", "[[]") for request in each.get("requests", ["*"])),
            field,
            tuple(each.get("what", ())),
            each["reason"],
            count,
        )
        for each in listed
        for field, count in _fields(each["fields"])
    ]


def _fields(told: list[str] | dict[str, int]) -> Iterable[tuple[str, int | None]]:
    """Patterns of fields, and how many differences each is for."""
    return told.items() if isinstance(told, dict) else ((field, None) for field in told)


def differences(
    theirs: Mapping[str, dict[str, Any]], ours: Mapping[str, dict[str, Any]]
) -> Iterator[Difference]:
    """All differences, answer by answer."""
    for key, expected in theirs.items():
        found = ours[key]
        is_sorted = "sort=" in key
        for field, what, left, right in _compared("", expected, found, is_sorted=is_sorted):
            yield Difference(key, field, what, left, right)


def unexplained(found: Iterable[Difference], known: Iterable[Reason]) -> list[Difference]:
    """Those without a reason."""
    every = list(known)
    return [each for each in found if not any(reason.explains(each) for reason in every)]


def unused(found: Iterable[Difference], known: Iterable[Reason]) -> list[Reason]:
    """Reasons for what does not differ any more."""
    every = list(found)
    return [reason for reason in known if not any(map(reason.explains, every))]


def miscounted(found: Iterable[Difference], known: Iterable[Reason]) -> list[tuple[Reason, int]]:
    """Reasons for more or fewer differences than they say, and for how many."""
    every = list(found)
    counted = [(reason, sum(map(reason.explains, every))) for reason in known]
    return [(reason, count) for reason, count in counted if reason.expected not in {None, count}]


Finding = tuple[str, str, Any, Any]


def _compared(field: str, theirs: Any, ours: Any, *, is_sorted: bool) -> Iterator[Finding]:
    if isinstance(theirs, dict) and isinstance(ours, dict):
        for name in [*theirs, *(name for name in ours if name not in theirs)]:
            inside = f"{field}.{name}" if field else name
            if name not in ours:
                yield inside, MISSING, theirs[name], None
            elif name not in theirs:
                yield inside, EXTRA, None, ours[name]
            elif name == "status" and not field and theirs[name] != ours[name]:
                yield "", STATUS, theirs[name], ours[name]
            else:
                yield from _compared(inside, theirs[name], ours[name], is_sorted=is_sorted)
    elif isinstance(theirs, list) and isinstance(ours, list):
        yield from _compared_lists(field, theirs, ours, is_sorted=is_sorted)
    elif _kind(theirs) != _kind(ours):
        yield field, KIND, theirs, ours
    elif theirs != ours:
        yield field, VALUE, theirs, ours


def _compared_lists(
    field: str, theirs: list[Any], ours: list[Any], *, is_sorted: bool
) -> Iterator[Finding]:
    left, right = (theirs, ours) if is_sorted else (_ordered(theirs), _ordered(ours))
    if len(left) != len(right):
        yield field, LENGTH, theirs, ours
        known = {_identity(item): item for item in right}
        pairs = [(item, known[_identity(item)]) for item in left if _identity(item) in known]
    else:
        pairs = list(zip(left, right, strict=True))
    for one, other in pairs:
        yield from _compared(f"{field}.#", one, other, is_sorted=is_sorted)


def _ordered(items: list[Any]) -> list[Any]:
    return sorted(items, key=_identity)


def _identity(item: Any) -> tuple[str, ...]:
    if not isinstance(item, dict):
        return (json.dumps(item),)
    return tuple(str(item.get(name, "")) for name in ORDER)


def _kind(value: Any) -> str:
    if isinstance(value, bool) or value is None:
        return str(type(value))
    return "number" if isinstance(value, int | float) else str(type(value))


def _short(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 200 else f"{text[:200]}…"
