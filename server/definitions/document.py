"""The text of a definitions file as a JSON document, parsed step by step.

    text ─▶ the members of one object, and the objects in which a key stands twice

Must not know what a definitions file may hold.

Spec: HTTP-41, HTTP-42
"""

from __future__ import annotations

import json
import re
from collections import Counter
from typing import TYPE_CHECKING, Final, NamedTuple

from vouchmq.server.errors import StartupError
from vouchmq.server.settings.validation import kind_of

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator

BLANKS: Final = re.compile(r"[ \t\n\r]*")
BYTE_ORDER_MARK: Final = "\ufeff"


class DefinitionsError(StartupError):
    """Something is wrong with a definitions file: where, and what, a line for each fault."""


class Repeated(NamedTuple):
    """An object of the file in which keys stand more than once."""

    made: dict[str, object]
    keys: list[str]


def parsing(text: str, repeated: list[Repeated]) -> Generator[None, None, dict[str, object]]:
    """Parse, an element of one of the document's lists at each step (LIMIT-23).

    Editors on Windows write a byte order mark in front, which is skipped.

    Raises:
        DefinitionsError: it is no JSON object; with line and column, as an editor counts them
    """
    text = text.removeprefix(BYTE_ORDER_MARK)
    decoder = json.JSONDecoder(
        parse_constant=_refuse, object_pairs_hook=lambda pairs: _object(pairs, repeated)
    )
    try:
        pairs = yield from _walk(text, decoder)
    except (ValueError, IndexError, RecursionError):
        # Parsed at once it says in its own words what is wrong.
        repeated.clear()
        return _parsed(text, repeated)
    return _object(pairs, repeated)


def _parsed(text: str, repeated: list[Repeated]) -> dict[str, object]:
    try:
        document = json.loads(
            text,
            parse_constant=_refuse,
            object_pairs_hook=lambda pairs: _object(pairs, repeated),
        )
    except RecursionError:
        raise DefinitionsError("nested too deeply") from None
    except ValueError as error:
        raise DefinitionsError(f"not JSON: {error}") from None
    if not isinstance(document, dict):
        raise DefinitionsError(f"expected an object, not {kind_of(document)}")
    return document


def _walk(text: str, decoder: json.JSONDecoder) -> Generator[None, None, list[tuple[str, object]]]:
    """The members of the object that a text is.

    Raises:
        ValueError, IndexError: it is none, or not as it should be
    """
    pairs: list[tuple[str, object]] = []
    word, at = _next(text, 0, "{")
    if text[_behind(text, at)] == "}":
        word, at = _next(text, at, "}")
    while word != "}":
        key, at = decoder.raw_decode(text, _behind(text, at))
        if not isinstance(key, str):
            raise ValueError("expected a key")
        _, at = _next(text, at, ":")
        at = _behind(text, at)
        if text[at] == "[":
            value: object = (elements := list[object]())
            word, at = _next(text, at, "[")
            if text[_behind(text, at)] == "]":
                word, at = _next(text, at, "]")
            while word != "]":
                element, at = decoder.raw_decode(text, _behind(text, at))
                elements.append(element)
                word, at = _next(text, at, ",]")
                yield
        else:
            value, at = decoder.raw_decode(text, at)
        pairs.append((key, value))
        word, at = _next(text, at, ",}")
    if _behind(text, at) != len(text):
        raise ValueError("expected the end")
    return pairs


def _next(text: str, at: int, words: str) -> tuple[str, int]:
    """One of these, which is next, and where it ends."""
    at = _behind(text, at)
    if text[at] not in words:
        raise ValueError(f"expected {words}")
    return text[at], at + 1


def _behind(text: str, at: int) -> int:
    """Where the blanks end that begin there."""
    found = BLANKS.match(text, at)
    return found.end() if found is not None else at


def _object(pairs: list[tuple[str, object]], repeated: list[Repeated]) -> dict[str, object]:
    made = dict(pairs)
    if len(made) != len(pairs):
        counts = Counter(key for key, _ in pairs)
        repeated.append(Repeated(made, [key for key, count in counts.items() if count > 1]))
    return made


def places_of(repeated: list[Repeated], document: dict[str, object]) -> Iterator[str]:
    """Where in the document repeated keys stand; not those in a value that another has replaced."""
    keys_of = {id(each.made): each.keys for each in repeated}
    waiting: list[tuple[str, object]] = [("", document)]
    while waiting:
        place, value = waiting.pop()
        if isinstance(value, dict):
            for key in keys_of.get(id(value), ()):
                yield _below(place, key)
            waiting += reversed([(_below(place, key), each) for key, each in value.items()])
        elif isinstance(value, list):
            inside = [(f"{place}[{number}]", each) for number, each in enumerate(value)]
            waiting += reversed(inside)


def _below(place: str, key: str) -> str:
    shown = key if key and key.isprintable() else repr(key)
    return f"{place}.{shown}" if place else shown


def _refuse(word: str) -> None:
    raise ValueError(f"{word} is not a JSON number")
