"""Listings of a broker without sockets, as whoever asks for them gets them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from tests.unit.server.in_memory import World
from vouchmq.server.admin.commands import ControlCommands
from vouchmq.server.admin.details import KINDS as DETAILS
from vouchmq.server.admin.details import Details
from vouchmq.server.admin.frames import FrameReader, frame
from vouchmq.server.admin.listing import ListingCommands, RowSender
from vouchmq.server.admin.measures import KINDS as MEASURES
from vouchmq.server.admin.measures import measures_of
from vouchmq.server.admin.numbers.samples import Samples
from vouchmq.server.admin.views import KINDS, Views
from vouchmq.store.histogram import DURATIONS_S, Histogram

WALL_MS = 1_700_000_000_000


class Reader:
    """Who asked: what has been answered so far."""

    def __init__(self) -> None:
        self.is_open = True
        self.is_full = False
        self.columns: list[str] = []
        self.lines: list[dict[str, Any]] = []
        self.facts: Mapping[str, object] | None = None
        self.waiting: Callable[[], None] | None = None
        self.gone: list[Callable[[], None]] = []

    def has_answer(self) -> bool:
        return self.facts is not None

    def when_writable(self, job: Callable[[], None]) -> None:
        self.waiting = job

    def when_gone(self, job: Callable[[], None]) -> None:
        self.gone.append(job)

    def send(self, content: Mapping[str, object]) -> None:
        # As it arrives.
        reader = FrameReader()
        reader.add(frame(content))
        [got] = reader
        self.columns = got.get("columns", self.columns)
        self.lines += [dict(zip(self.columns, row, strict=True)) for row in got.get("rows", ())]

    def __call__(self, facts: Mapping[str, object], /) -> None:
        assert self.facts is None
        self.facts = facts


def views_of(world: World) -> Views:
    return Views(
        world.context, world.runtime.connections, world.runtime.journal, world.runtime.commit
    )


def samples_of(world: World) -> Samples:
    """What has been counted before: nothing is known of it."""
    return Samples(
        views_of(world),
        lambda: world.now,
        lambda: WALL_MS,
        lambda job: None,
        lambda after_s, job: None,
    )


def listed(
    world: World, what: str, samples: Samples | None = None, **selection: str
) -> list[dict[str, Any]]:
    """A listing, as whoever asks for it gets it."""
    later: list[Callable[[], None]] = []
    registry = ControlCommands()
    views = views_of(world)
    details = Details(views, lambda: world.now, lambda: WALL_MS, samples or samples_of(world))
    sender = RowSender(later.append, lambda: world.now)
    ListingCommands(views.listings, KINDS, sender).register(registry)
    ListingCommands(details.listings, DETAILS, sender).register(registry)
    measures = measures_of(world.runtime, views, Histogram(DURATIONS_S))
    ListingCommands(measures.listings, MEASURES, sender).register(registry)
    reader = Reader()
    registry.run({"command": f"list {what}", **selection}, reader)
    while later:
        later.pop(0)()
    kind = {**KINDS, **DETAILS, **MEASURES}[what]
    assert reader.columns == list(kind.__struct_fields__)
    assert reader.facts == {"ok": True, "count": len(reader.lines)}
    return reader.lines
