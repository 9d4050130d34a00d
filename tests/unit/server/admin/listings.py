"""Listings of a broker without sockets, as whoever asks for them gets them."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from tests.unit.server.in_memory import World
from vouchmq.server.admin.commands import ControlCommands, ListingCommands
from vouchmq.server.admin.views import Views, columns_of


class Reader:
    """Who asked: what has been answered so far."""

    def __init__(self) -> None:
        self.is_open = True
        self.is_full = False
        self.lines: list[dict[str, Any]] = []
        self.facts: Mapping[str, object] | None = None
        self.waiting: Callable[[], None] | None = None

    def when_writable(self, job: Callable[[], None]) -> None:
        self.waiting = job

    def send(self, lines: bytes) -> None:
        self.lines += map(json.loads, lines.splitlines())

    def __call__(self, facts: Mapping[str, object], /) -> None:
        assert self.facts is None
        self.facts = facts


def views_of(world: World) -> Views:
    return Views(
        world.context, world.runtime.connections, world.runtime.journal, world.runtime.commit
    )


def listed(world: World, what: str) -> list[dict[str, Any]]:
    """A listing, as whoever asks for it gets it."""
    later: list[Callable[[], None]] = []
    registry = ControlCommands()
    ListingCommands(views_of(world), later.append, lambda: world.now).register(registry)
    command = registry.find(f"list {what}")
    assert command is not None
    reader = Reader()
    command(reader)
    while later:
        later.pop(0)()
    columns = columns_of(what)
    assert reader.facts == {"ok": True, "rows": len(reader.lines), "columns": columns}
    assert all(list(row) == columns for row in reader.lines)
    return reader.lines
