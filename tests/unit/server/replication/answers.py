"""What a log has told, and chance without any."""

from __future__ import annotations

import asyncio
import random
from typing import Any

from tests.unit.server.replication.scripted_server import PATIENCE_S


class First(random.Random):
    """Chance, but the first server is the first of the list."""

    def randrange(self, *_: Any) -> int:
        return 0


class Answers:
    """Everything that is told, in order; a `LogAnswers`."""

    def __init__(self) -> None:
        self.told: list[tuple[object, ...]] = []
        self._changed = asyncio.Event()

    def _add(self, *what: object) -> None:
        self.told.append(what)
        self._changed.set()

    def acked(self, token: int, sequence: int) -> None:
        self._add("acked", token, sequence)

    def refused(self, token: int) -> None:
        self._add("refused", token)

    def lost(self) -> None:
        self._add("lost")

    def found(self, token: int, sequence: int, raw: bytes) -> None:
        self._add("found", token, sequence, raw)

    def ended(self, token: int, last: int) -> None:
        self._add("ended", token, last)

    async def wait_for(self, *what: object) -> None:
        """Wait until that has been told."""
        async with asyncio.timeout(PATIENCE_S):
            while what not in self.told:
                self._changed.clear()
                await self._changed.wait()
