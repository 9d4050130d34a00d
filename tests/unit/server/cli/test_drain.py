"""`vouchmq drain`: what it says while it waits, and when it gives up."""

from __future__ import annotations

import io
from collections.abc import Iterator
from typing import Any

import pytest

from tests.unit.server.cli.brokers import AnsweringBroker
from vouchmq.server.cli.client import EXIT_NO_BROKER, Listing
from vouchmq.server.cli.program import CommandFailed
from vouchmq.server.cli.running import drain


class DrainingBroker(AnsweringBroker):
    """A broker that has these connections at each look, and then is gone."""

    def __init__(self, *counts: int) -> None:
        super().__init__({"drain": {"connections": counts[0]}})
        self._counts = iter(counts[1:])

    def rows(self, command: str, /, **arguments: object) -> Listing:
        return Listing(self._overview())

    def _overview(self) -> Iterator[dict[str, Any]]:
        count = next(self._counts, None)
        if count is None:
            raise CommandFailed("no broker runs", EXIT_NO_BROKER)
        yield {"connections": count}
        yield {"ok": True}


def drained(broker: DrainingBroker, timeout_s: float | None, *, as_json: bool = False) -> str:
    out = io.StringIO()
    clock = iter(range(1000)).__next__
    assert drain.run(broker, timeout_s, clock, lambda _: None, as_json=as_json, out=out) == 0
    return out.getvalue()


def test_each_change_is_said_until_the_broker_is_gone() -> None:
    assert drained(DrainingBroker(2, 2, 1, 1, 0), None).splitlines() == [
        *("waiting for 2 connections", "waiting for 1 connection"),
        "the broker has stopped",
    ]
    assert drained(DrainingBroker(2, 1), None, as_json=True) == '{"connections": 2}\n'


def test_it_gives_up_but_the_broker_does_not() -> None:
    with pytest.raises(CommandFailed, match="1 connection left; the broker stops") as caught:
        drained(DrainingBroker(*[1] * 50), 5)
    assert caught.value.exit_code == 1
