"""`vouchmq top`: rates from two looks, the order of rows, and what keys do."""

from __future__ import annotations

import io
import json
import os
import pty
from collections.abc import Iterator
from typing import Any

import pytest
from rich.console import Console

from tests.unit.server.cli.brokers import AnsweringBroker
from vouchmq.server.admin.totals import OverviewView
from vouchmq.server.admin.views import ConnectionView, QueueView
from vouchmq.server.cli.running import top as t
from vouchmq.server.cli.running import top_screen

Row = dict[str, Any]


def queue(name: str, **counted: int) -> Row:
    zeros: Row = dict.fromkeys(QueueView.__struct_fields__, 0)
    return zeros | {"vhost": "/", "name": name} | counted


def overview(**counted: int) -> Row:
    return {**dict.fromkeys(OverviewView.__struct_fields__, 0), **counted}


def look(broker: AnsweringBroker, whole: Row, *rows: Row, alarm: bool = False) -> None:
    """What the broker says from now on."""
    connection = {**dict.fromkeys(ConnectionView.__struct_fields__, 0), "name": "c", "state": "x"}
    broker.listings = {
        "list overview": [whole],
        "list queues": list(rows),
        "list connections": [connection],
        "list alarms": [{"name": "memory", "raised": alarm}, {"name": "disk", "raised": False}],
    }


def every(step_s: float) -> Iterator[float]:
    now = 100.0
    while True:
        yield now
        now += step_s


@pytest.fixture
def broker() -> AnsweringBroker:
    broker = AnsweringBroker()
    look(broker, overview(published=10), queue("a", published=10, messages_ready=5), queue("b"))
    return broker


def new_top(broker: AnsweringBroker, sort: str = "") -> t.Top:
    return t.Top(broker, every(2.0).__next__, t.VIEWS["queues"], sort)


def names(top: t.Top, frame: t.Frame, limit: int = 9) -> list[str]:
    return [row["queue"] for row in top.first(frame.rows, limit)]


def test_rates_are_since_the_last_look(broker: AnsweringBroker) -> None:
    top = new_top(broker)
    assert [row["in/s"] for row in top.look().rows] == [0, 0]
    look(
        broker,
        overview(published=110, sent_bytes=8),
        queue("a", published=50),
        # Deleted and declared again; and one that is new.
        queue("b", published=4, delivered=2),
        queue("c", acked=6),
        alarm=True,
    )
    frame = top.look()
    assert (frame.overview["published/s"], frame.overview["sent_bytes/s"]) == (50, 4)
    rates = [(row["queue"], row["in/s"], row["out/s"], row["ack/s"]) for row in frame.rows]
    assert rates == [("a", 20, 0, 0), ("b", 2, 1, 0), ("c", 0, 0, 3)]
    assert frame.alarms == ["memory"]
    look(broker, overview(published=6), queue("a", published=6))
    frame = top.look()
    # It has been restarted, and counts from 0.
    assert (frame.overview["published/s"], frame.rows[0]["in/s"]) == (3, 3)


def test_numbers_are_sorted_from_the_largest_and_names_from_a(broker: AnsweringBroker) -> None:
    top = new_top(broker)
    look(broker, overview(), *(queue(each, messages_ready=ord(each)) for each in "acb"))
    frame = top.look()
    assert names(top, frame) == ["c", "b", "a"]
    assert names(top, frame, 2) == ["c", "b"]
    top_screen.press(top, "r")
    assert names(top, frame) == ["a", "b", "c"]
    top.sort = "queue"
    assert names(top, frame) == ["c", "b", "a"]
    top_screen.press(top, "r")
    assert names(top, frame) == ["a", "b", "c"]


def test_keys_change_the_column_and_what_is_listed(broker: AnsweringBroker) -> None:
    top = new_top(broker)
    top.look()
    assert not top_screen.press(top, "sx")
    assert top.sort == "unacked"
    assert top_screen.press(top, "t")
    assert (top.view.listing, top.sort) == ("connections", "received/s")
    assert [row["connection"] for row in top.look().rows] == ["c"]
    for _ in top.view.heads:
        top_screen.press(top, "s")
    assert top.sort == "received/s"
    assert top_screen.press(top, "t")
    assert top.view.listing == "queues"


def test_the_screen_has_as_many_rows_as_fit(broker: AnsweringBroker) -> None:
    top = new_top(broker, "queue")
    look(broker, overview(queues=30), *(queue(f"[red]{n:02}") for n in range(30)), alarm=True)
    console = Console(file=io.StringIO(), width=90, height=20)
    console.print(top_screen.drawn(top, top.look(), console.height))
    assert isinstance(console.file, io.StringIO)
    lines = console.file.getvalue().splitlines()
    assert len(lines) <= 20
    assert lines[2] == "alarms: memory"
    assert "queue ▾" in lines[4]
    assert "[red]00" in lines[6]
    assert "[red]11" in lines[17]
    assert lines[-1].startswith("q quit")


def test_once_prints_two_looks_as_text_or_json(broker: AnsweringBroker) -> None:
    slept: list[float] = []
    out = io.StringIO()
    assert t.print_once(new_top(broker), slept.append, 1.5, out, as_json=False) == 0
    assert slept == [1.5]
    lines = out.getvalue().splitlines()
    assert lines[0].startswith("published 0/s, ")
    assert lines[3] == "queues"
    assert [line.split()[:3] for line in lines[5:]] == [["/", "a", "5"], ["/", "b", "0"]]
    out = io.StringIO()
    t.print_once(new_top(broker), slept.append, 1.0, out, as_json=True)
    document = json.loads(out.getvalue())
    assert [row["queue"] for row in document["queues"]] == ["a", "b"]
    look(broker, overview())
    out = io.StringIO()
    t.print_once(new_top(broker), slept.append, 1.0, out, as_json=False)
    assert out.getvalue().splitlines()[-1] == "no queues"


def test_keys_come_at_once_and_the_end_of_the_terminal_is_a_q() -> None:
    master, slave = pty.openpty()
    try:
        with top_screen.keys_at_once(slave) as terminal:
            assert top_screen.next_keys(terminal, 0) == ""
            os.write(master, b"st")
            assert top_screen.next_keys(terminal, 10) == "st"
    finally:
        os.close(slave)
        os.close(master)
    reading, writing = os.pipe()
    os.close(writing)
    assert top_screen.next_keys(reading, 10) == "q"
    os.close(reading)
