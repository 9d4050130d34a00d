"""Numbers of the wire, read without making objects of them where this is compiled.

Compiled, an octet of `bytes` is one load, and a method of `struct` is a look-up by name, a tuple
and an object for each number. Interpreted, it is the other way round: each octet is a step of the
interpreter, and `struct` reads a whole header in one. So whoever reads numbers for every message
asks `IS_NATIVE`, reads them one way or the other, and judges them in one place for both.
"""

from __future__ import annotations

from types import FunctionType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mypy_extensions import i64


def short_at(data: bytes, at: i64) -> i64:
    """The 16 bits without a sign that stand there.

    Raises:
        IndexError: they reach past the end
    """
    high: i64 = data[at]
    low: i64 = data[at + 1]
    return high << 8 | low


def long_at(data: bytes, at: i64) -> i64:
    """The 32 bits without a sign that stand there.

    Raises:
        IndexError: they reach past the end
    """
    first: i64 = data[at]
    second: i64 = data[at + 1]
    third: i64 = data[at + 2]
    last: i64 = data[at + 3]
    return first << 24 | second << 16 | third << 8 | last


# Not a constant: tests have the interpreter go both ways.
IS_NATIVE: bool = not isinstance(long_at, FunctionType)
