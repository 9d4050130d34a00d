"""Lists: filtered by name, sorted, cut into pages, and with the columns that are asked for.

Spec: HTTP-06
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final

import regex

from vouchmq.management.api.errors import ApiError, bad_request

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

DEFAULT_SIZE: Final = 100
LARGEST_SIZE: Final = 500
FALSE: Final = frozenset({"", "false"})
# Of all searches of one list.
SEARCH_LIMIT_S: Final = 1.0

Item = dict[str, Any]


class Page:
    """What a request asks of a list.

    Args:
        query: parameters of the request

    Raises:
        ApiError: 400, they make no sense
    """

    def __init__(self, query: Mapping[str, str]) -> None:
        self._query = query
        number, size = query.get("page"), query.get("page_size")
        self.is_paged = number is not None
        self._number = self._size = 0
        if number is not None:
            if not (_is_number(number) and _is_number(size or "")):
                raise bad_request("Pagination parameters are invalid")
            self._number, self._size = _whole(number), _whole(size or str(DEFAULT_SIZE))
            if self._number < 1 or not 1 <= self._size <= LARGEST_SIZE:
                raise bad_request(
                    f"Invalid pagination parameters: page number {number}, "
                    f"page size {size or 'undefined'}",
                    "invalid_pagination_parameters",
                )

    @property
    def sort_key(self) -> tuple[str, ...]:
        """The path of the key to sort by; empty: the order of the list."""
        text = self._query.get("sort", "")
        return tuple(text.split(".")) if text else ()

    def of(
        self, items: Iterable[Item], finished: Callable[[list[Item]], list[Item]] | None = None
    ) -> object:
        """The list as it is answered.

        Args:
            items: all there is, in the order of the list
            finished: adds to items what is costly to know; it gets those only that are needed

        Raises:
            ApiError: 400, the page or the pattern is none
        """
        every = list(items)
        found = self._filtered(every)
        if finished is not None and self.sort_key:
            found, finished = finished(found), None
        found = self._sorted(found)
        shown = self._cut(found) if self.is_paged else found
        if finished is not None:
            shown = finished(shown)
        shown = self._projected(shown)
        if not self.is_paged:
            return shown
        return {
            "filtered_count": len(found),
            "item_count": len(shown),
            "items": shown,
            "page": self._number,
            "page_count": self._page_count(len(found)),
            "page_size": self._size,
            "total_count": len(every),
        }

    def _filtered(self, items: list[Item]) -> list[Item]:
        wanted = self._query.get("name", "")
        if not wanted:
            return items
        if self._query.get("use_regex", "") in FALSE:
            lowered = wanted.lower()
            return [each for each in items if lowered in str(each.get("name", "")).lower()]
        try:
            pattern = regex.compile(wanted, regex.IGNORECASE)
            ends_at = time.monotonic() + SEARCH_LIMIT_S
            return [
                each
                for each in items
                if pattern.search(
                    str(each.get("name", "")), timeout=max(0.0, ends_at - time.monotonic())
                )
            ]
        except regex.error as error:
            raise bad_request(f"name is not a regular expression: {error}") from None
        except TimeoutError:
            raise bad_request("the regular expression takes too long") from None

    def _sorted(self, items: list[Item]) -> list[Item]:
        key = self.sort_key
        is_reversed = self._query.get("sort_reverse", "") not in FALSE
        if not key:
            return items[::-1] if is_reversed else items
        return sorted(items, key=lambda each: _rank(_value(each, key)), reverse=is_reversed)

    def _cut(self, items: list[Item]) -> list[Item]:
        first = (self._number - 1) * self._size
        # As RabbitMQ: the page behind the last full one is empty, those after it are none.
        if first > len(items):
            raise ApiError(
                400,
                "page_out_of_range",
                f"Page out of range, page: {self._number} page size: {self._size}, "
                f"len: {len(items)}",
            )
        return items[first : first + self._size]

    def _page_count(self, count: int) -> int:
        return -(-count // self._size)

    def _projected(self, items: list[Item]) -> list[Item]:
        return [projected(each, self._query) for each in items]


def projected(item: Item, query: Mapping[str, str]) -> Item:
    """An object with the columns that `columns=a,b.c` names; all without it."""
    columns = query.get("columns", "")
    if not columns:
        return item
    found: Item = {}
    for column in columns.split(","):
        path = column.split(".")
        value = _value(item, path)
        if value is _ABSENT:
            continue
        inside = found
        for part in path[:-1]:
            inside = inside.setdefault(part, {})
        inside[path[-1]] = value
    return found


_ABSENT: Final = object()


def _value(item: object, path: Iterable[str]) -> Any:
    for part in path:
        if not isinstance(item, dict) or part not in item:
            return _ABSENT
        item = item[part]
    return item


def _rank(value: object) -> tuple[int, Any]:
    """Values of all kinds in one order: what is not there, numbers, texts, the rest."""
    if value is _ABSENT or value is None:
        return 0, 0
    if isinstance(value, bool | int | float):
        return 1, value
    return (2, value) if isinstance(value, str) else (3, str(value))


def _is_number(text: str) -> bool:
    return text.removeprefix("-").isdecimal() if text else True


def _whole(text: str) -> int:
    return int(text) if text.isascii() and text.isdigit() and len(text) < 10 else 0
