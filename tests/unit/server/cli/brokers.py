"""Brokers that answer what a test says."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from vouchmq.server.cli.client import Listing, Refused


class AnsweringBroker:
    """A broker with fixed answers; it refuses everything else.

    Args:
        answers: by command
        listings: rows, by command
    """

    def __init__(
        self,
        answers: Mapping[str, Mapping[str, Any]] | None = None,
        listings: Mapping[str, Sequence[dict[str, Any]]] | None = None,
        columns: Sequence[str] = (),
    ) -> None:
        self.answers = dict(answers or {})
        self.listings = dict(listings or {})
        self.columns = list(columns)
        self.asked: list[tuple[str, dict[str, object]]] = []

    def ask(self, command: str, /, **arguments: object) -> dict[str, Any]:
        self.asked.append((command, arguments))
        if command not in self.answers:
            raise Refused(f"{command}: no answer to this", 404)
        return {"ok": True, **self.answers[command]}

    def rows(self, command: str, /, **arguments: object) -> Listing:
        self.asked.append((command, arguments))
        return Listing(self._rows(command))

    def watch(self, command: str, /, **arguments: object) -> Listing:
        return self.rows(command, **arguments)

    def _rows(self, command: str) -> Iterator[dict[str, Any]]:
        if command not in self.listings:
            raise Refused(f"{command}: no answer to this", 404)
        yield from self.listings[command]
        yield {"ok": True, "columns": self.columns}
