"""A store for paged messages that keeps them in memory, and knows what it was asked for."""

from __future__ import annotations

from collections.abc import Sequence

from server.broker.message import Message
from server.broker.pager import Pager


class FakePagedStore:
    """What the journal holds, by LSN, and scratch pages by number."""

    def __init__(self) -> None:
        self.stored: dict[int, tuple[bytes, bytes]] = {}
        self.pages: dict[int, list[Message]] = {}
        self.fetched: list[int] = []
        self._next_page = 1

    def fetch(self, lsns: Sequence[int]) -> list[tuple[bytes, bytes]]:
        self.fetched += lsns
        return [self.stored[lsn] for lsn in lsns]

    def page_out(self, messages: list[Message]) -> int:
        page, self._next_page = self._next_page, self._next_page + 1
        self.pages[page] = list(messages)
        return page

    def page_in(self, page: int) -> list[Message]:
        return self.pages.pop(page)

    def drop_page(self, page: int) -> None:
        del self.pages[page]


def unpaged() -> Pager:
    """A pager that never finds too much in memory."""
    return Pager(FakePagedStore(), 1 << 62, 1 << 62)
