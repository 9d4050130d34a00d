"""Counters that are added up: no field is forgotten."""

from __future__ import annotations

from dataclasses import asdict, fields

import pytest

from vouchmq.server.broker.counters import (
    ChannelCounters,
    ChurnCounters,
    ConnectionCounters,
    Counters,
    ExchangeCounters,
    QueueCounters,
)

KINDS: list[type[Counters]] = [
    ChannelCounters,
    ChurnCounters,
    ConnectionCounters,
    ExchangeCounters,
    QueueCounters,
]


@pytest.mark.parametrize("kind", KINDS)
def test_all_fields_are_added_up(kind: type[Counters]) -> None:
    names = [field.name for field in fields(kind)]
    known, others = kind(), kind()
    for number, name in enumerate(names, 1):
        setattr(known, name, number)
        setattr(others, name, 1000 * number)
    known.add(others)
    assert asdict(known) == {name: 1001 * number for number, name in enumerate(names, 1)}
    assert asdict(others) == {name: 1000 * number for number, name in enumerate(names, 1)}
