"""An operator's regular expressions, searched in names that clients choose.

An expression of a permission or a policy may take for ever over the wrong name, so the search is
bounded in CPU time. Where that clock moves in ticks (virtual machines), one tick can be the whole
bound although microseconds have passed: a search that runs out of time is tried again, and in the
end is undecided, which is no verdict to remember. What needs no search at all is not searched:
`.*`, `^$`, and names with or without anchors.

Spec: PERM-01, POLICY-01
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import regex
import structlog

if TYPE_CHECKING:
    from collections.abc import Callable

# An honest expression takes microseconds for 255 bytes; a search stalls every client of the broker.
SEARCH_LIMIT_S: Final = 0.01
# The least that the bound shrinks to for an expression that always runs out of time.
SEARCH_FLOOR_S: Final = 0.0001
TRIES: Final = 3

# A name with its anchors, and at the end perhaps "whatever follows". A backslash before anything
# but a letter or digit makes it literal.
_PLAIN: Final = regex.compile(
    r"(?P<start>\^?)"
    r"(?P<name>(?:[^\\^$.|?*+()\[\]{}]|\\[^\p{L}\p{N}_])*+)"
    r"(?P<rest>(?:\.\*)?)"
    r"(?P<end>\$?)",
    regex.VERSION0,
)
_ESCAPED: Final = regex.compile(r"\\(.)", regex.VERSION0 | regex.DOTALL)

log = structlog.get_logger(__name__)


class Pattern:
    """One regular expression, searched in names, not anchored.

    Raises:
        ValueError: it is none, in the words of the engine.
    """

    __slots__ = ("_engine", "_find_plain", "_timeouts", "text")

    def __init__(self, text: str) -> None:
        self.text = text
        try:
            self._engine = regex.compile(text, regex.VERSION0)
        except regex.error as error:
            raise ValueError(str(error)) from None
        # Searches in a row that ran out of time.
        self._timeouts = 0
        self._find_plain = _plain_search(text)

    def is_in(self, name: str) -> bool | None:
        """Whether it is found in the name; None: that took too long to know."""
        if self._find_plain is not None:
            return self._find_plain(name)
        # Every further search that runs out of time is given half, so that an expression that
        # always does costs little for the thousandth name.
        limit_s = max(SEARCH_LIMIT_S / 2 ** min(self._timeouts, 16), SEARCH_FLOOR_S)
        for _ in range(TRIES):
            try:
                is_found = self._engine.search(name, timeout=limit_s) is not None
            except TimeoutError:
                continue
            self._timeouts = 0
            return is_found
        self._timeouts += 1
        # The first, the second, the fourth …: names of clients must not flood the log.
        if not self._timeouts & (self._timeouts - 1):
            log.warning(
                "regex.timeout",
                pattern=self.text,
                name=name,
                count=self._timeouts,
                meaning="treated as no match; simplify the regular expression",
            )
        return None


def _plain_search(text: str) -> Callable[[str], bool] | None:
    """The same search without the engine, None for an expression that needs one."""
    found = _PLAIN.fullmatch(text)
    if found is None:
        return None
    name = _ESCAPED.sub(r"\1", found["name"])
    size = len(name)
    from_start, to_end = bool(found["start"]), bool(found["end"])
    if found["rest"] and to_end:
        # `.` is no line feed, and `$` also stands before a last one.
        if not from_start:
            return None
        return lambda it: it.startswith(name) and "\n" not in it[size:-1]
    if from_start and to_end:
        return lambda it: it in {name, name + "\n"}
    if from_start:
        return lambda it: it.startswith(name)
    if to_end:
        return lambda it: it.endswith((name, name + "\n"))
    return lambda it: name in it
