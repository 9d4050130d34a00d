"""`vouchmq tail` of a queue into which something comes at every moment."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from typing import Any

import pytest

from vouchmq.server.cli.client import Listing
from vouchmq.server.cli.program import CommandFailed
from vouchmq.server.cli.running import tail

WANTED = tail.Wanted("/", "q", count=2, as_json=True)


class BusyBroker:
    """One message comes with each question; a consumer takes all but every third at once."""

    def __init__(self) -> None:
        self.published = 100
        self.told = 0
        self.ready: list[int] = []

    def ask(self, command: str, /, **arguments: object) -> dict[str, Any]:
        raise NotImplementedError(command, arguments)

    def watch(self, command: str, /, **arguments: object) -> Listing:
        raise NotImplementedError(command, arguments)

    def rows(self, command: str, /, **arguments: object) -> Listing:
        self.published += 1
        if self.published % 3 == 0:
            self.ready.append(self.published)
        if command == "list queues":
            self.told = self.published
            found = {"type": "classic", "messages_ready": len(self.ready)}
            return Listing(iter([{**found, "published": self.published}]))
        held = arguments.get("state") == "unacknowledged"
        ids = [] if held else self.ready
        return Listing(self.peeked(ids[int(str(arguments.get("first", 0))) :]))

    def peeked(self, ids: list[int]) -> Iterator[dict[str, Any]]:
        facts = {"published": self.published, "newest_id": self.published}
        for each in ids:
            yield {"id": each, "properties": {}, "body": b"", "size": 0, "place": 0}
        yield {"ok": True, **facts}


def test_nothing_that_came_before_or_since_is_counted_wrongly(
    capsys: pytest.CaptureFixture[str],
) -> None:
    broker, out = BusyBroker(), io.StringIO()
    assert tail.run(broker, WANTED, lambda _: None, out) == 0
    shown = [json.loads(line)["id"] for line in out.getvalue().splitlines()]
    # The first two questions are for the kind of queue, and for the moment at which it begins.
    began = 102
    assert shown == [105, 108]
    missed = sum(int(line.split()[1]) for line in capsys.readouterr().err.splitlines())
    # Each that has come since, as far as the broker has told, is either shown or counted.
    assert began + missed + len(shown) == broker.told


def test_a_broker_that_does_not_tell_the_moment_is_refused() -> None:
    broker = BusyBroker()
    broker.peeked = lambda ids: iter([{"ok": True}])  # type: ignore[method-assign]
    with pytest.raises(CommandFailed, match="too old"):
        tail.run(broker, WANTED, lambda _: None, io.StringIO())
