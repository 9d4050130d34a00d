"""`vouchmq watch`: a line for each event."""

from __future__ import annotations

import io
import json

from tests.unit.server.cli.brokers import AnsweringBroker
from vouchmq.server.cli.running import watch

ROWS = [
    {"time_ms": 1795435201322, "event": "queue.created", "facts": {"vhost": "/", "name": "a\n"}},
    {"time_ms": 1795435201323, "event": "alarm.cleared", "facts": {}},
]


def test_a_line_for_each_event() -> None:
    broker = AnsweringBroker(listings={"watch events": ROWS})
    out = io.StringIO()
    assert watch.run(broker, ["queue", "alarm"], "/", as_json=False, out=out) == 0
    assert broker.asked == [("watch events", {"vhost": "/", "prefixes": ["queue", "alarm"]})]
    assert out.getvalue().splitlines() == [
        '2026-11-23T12:00:01.322Z  queue.created        vhost="/" name="a\\n"',
        "2026-11-23T12:00:01.323Z  alarm.cleared",
    ]


def test_an_object_for_each_event() -> None:
    broker = AnsweringBroker(listings={"watch events": ROWS})
    out = io.StringIO()
    assert watch.run(broker, [], None, as_json=True, out=out) == 0
    assert [json.loads(line) for line in out.getvalue().splitlines()] == ROWS
