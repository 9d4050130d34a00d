"""A store for paged messages that keeps them in memory, and knows what it was asked for."""

from __future__ import annotations

from collections.abc import Sequence

from vouchmq.server.broker.message import Message
from vouchmq.server.broker.paging.paged_store import FETCH_STEPS
from vouchmq.server.broker.paging.pager import Pager
from vouchmq.store.reading.reader import RUN_STEPS


class FakePagedStore:
    """What the journal holds, by LSN, and scratch pages by number."""

    def __init__(self) -> None:
        self.stored: dict[int, tuple[bytes, bytes]] = {}
        self.pages: dict[int, list[Message]] = {}
        self.fetched: list[int] = []
        self.read_steps = 0
        self._next_page = 1

    def fetch_runs(
        self, lsns: Sequence[int], limit_octets: int, limit_steps: int = FETCH_STEPS
    ) -> list[tuple[int, bytes, Sequence[bytes], int]]:
        runs: list[tuple[int, bytes, Sequence[bytes], int]] = []
        enough = self.read_steps + limit_steps
        for lsn in lsns:
            if runs and (limit_octets <= 0 or self.read_steps >= enough):
                break
            self.fetched.append(lsn)
            raw, tail = self.stored[lsn]
            limit_octets -= len(raw)
            if runs and runs[-1][0] + len(runs[-1][2]) == lsn and runs[-1][1] == tail:
                runs[-1] = (runs[-1][0], tail, (*runs[-1][2], raw), 0)
            else:
                runs.append((lsn, tail, [raw], 0))
                self.read_steps += RUN_STEPS
        return runs

    def page_out(self, messages: list[Message]) -> int:
        page, self._next_page = self._next_page, self._next_page + 1
        self.pages[page] = list(messages)
        return page

    def page_in(self, page: int) -> list[Message]:
        return self.pages.pop(page)

    def read_page(self, page: int) -> list[Message]:
        return self.pages[page]

    def drop_page(self, page: int) -> None:
        del self.pages[page]


def unpaged() -> Pager:
    """A pager that never finds too much in memory."""
    return Pager(FakePagedStore(), 1 << 62, 1 << 62)
