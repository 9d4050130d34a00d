"""Objects of a definitions file, and arguments of queues, exchanges and bindings as field tables.

Must not know what an argument means.

Spec: HTTP-41
"""

from __future__ import annotations

import math
from typing import Annotated, Any, Final

from vouchmq.protocol.fields import Field, Table, boolean, long_int, longstr
from vouchmq.server.settings.validation import NAME_MAX_SIZE, Check, InvalidValueError

MOST_DEPTH: Final = 16
LARGEST_INTEGER: Final = 1 << 63
LARGEST_UNSIGNED: Final = (1 << 64) - 1
# Of parameters, whose values mean something to others.
MOST_DOCUMENT_DEPTH: Final = 100


def object_of(value: object) -> dict[str, object]:
    """An object; RabbitMQ 3.10 writes some as lists of pairs.

    Raises:
        InvalidValueError: it is neither
    """
    if isinstance(value, list) and all(_is_pair(each) for each in value):
        value = dict(value)
    if not isinstance(value, dict):
        raise InvalidValueError("expected an object")
    return value


def _is_pair(value: object) -> bool:
    return isinstance(value, list) and len(value) == 2 and isinstance(value[0], str)


def arguments_of(value: object) -> Table:
    """A field table; integers get 64 bits.

    Raises:
        InvalidValueError: a value that no table can hold, with its place
    """
    return _table(object_of(value), "", 0)


def _table(values: dict[str, object], at: str, depth: int) -> Table:
    table: Table = {}
    for name, value in values.items():
        if len(name.encode("utf-8", "backslashreplace")) > NAME_MAX_SIZE:
            raise InvalidValueError(f"a name of more than {NAME_MAX_SIZE} bytes", at)
        table[name] = _field(value, f"{at}.{name}", depth)
    return table


def _field(value: object, at: str, depth: int) -> Field:
    if depth > MOST_DEPTH:
        raise InvalidValueError("nested too deeply", at)
    if isinstance(value, bool):
        return boolean(value)
    if isinstance(value, int):
        if not -LARGEST_INTEGER <= value < LARGEST_INTEGER:
            raise InvalidValueError(f"{value} does not fit into 64 bits", at)
        return long_int(value)
    if isinstance(value, float):
        return Field("d", value)
    if isinstance(value, str):
        try:
            return longstr(value)
        except UnicodeEncodeError:
            raise InvalidValueError("not valid Unicode text", at) from None
    if isinstance(value, dict):
        return Field("F", _table(value, at, depth + 1))
    if isinstance(value, list):
        items = (_field(each, f"{at}[{place}]", depth + 1) for place, each in enumerate(value))
        return Field("A", tuple(items))
    return Field("V", None)


def require_storable(value: object) -> None:
    """Pass what the broker can keep and show again: not all that JSON has.

    Raises:
        InvalidValueError: a number or text that it cannot, with its place
    """
    waiting: list[tuple[object, str, int]] = [(value, "", 0)]
    while waiting:
        each, at, depth = waiting.pop()
        if isinstance(each, str):
            _require_text(each, at)
        elif isinstance(each, dict | list):
            if depth >= MOST_DOCUMENT_DEPTH:
                raise InvalidValueError("nested too deeply")
            if isinstance(each, list):
                waiting += [(item, f"{at}[{place}]", depth + 1) for place, item in enumerate(each)]
                continue
            for name, item in each.items():
                _require_text(name, at)
                waiting.append((item, f"{at}.{name}", depth + 1))
        elif isinstance(each, int) and not -LARGEST_INTEGER <= each <= LARGEST_UNSIGNED:
            raise InvalidValueError(f"{each} does not fit into 64 bits", at)
        elif isinstance(each, float) and not math.isfinite(each):
            raise InvalidValueError("too large", at)


def _require_text(text: str, at: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise InvalidValueError("not valid Unicode text", at) from None


Object = Annotated[Any, Check(object_of)]
Arguments = Annotated[Any, Check(arguments_of)]
