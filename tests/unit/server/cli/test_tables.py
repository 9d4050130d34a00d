"""Tables: drawn where they fit on a terminal, plain columns everywhere else."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.server.cli.terminals import Terminal
from vouchmq.server.cli import listing
from vouchmq.server.cli.tables import MOST_DRAWN_ROWS, print_table

HEADS = ("queue", "messages", "")
ROWS = [("orders [red] :x:", "12", ""), ("b", "7", "damaged")]
PLAIN = """\
queues
  queue             messages
  orders [red] :x:        12
  b                        7  damaged
"""


@pytest.fixture
def wide(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    monkeypatch.setenv("COLUMNS", "120")
    return Terminal()


def printed(out: io.StringIO, rows: list[tuple[str, str, str]]) -> str:
    print_table("queues", HEADS, rows, out, numbers=frozenset({1}))
    return out.getvalue()


def test_columns_are_plain_where_nobody_looks() -> None:
    assert printed(io.StringIO(), ROWS) == PLAIN


def test_a_terminal_gets_a_drawn_table_with_cells_as_they_are(wide: Terminal) -> None:
    shown = printed(wide, ROWS)
    assert "━" in shown
    assert "│ orders [red] :x: │       12 │         │" in shown


def test_a_terminal_that_is_too_narrow_gets_plain_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "30")
    assert printed(Terminal(), ROWS) == PLAIN


def test_a_table_that_takes_long_to_draw_is_plain(wide: Terminal) -> None:
    shown = printed(wide, ROWS[:1] * (MOST_DRAWN_ROWS + 1))
    assert "━" not in shown
    assert shown.count("\n") == MOST_DRAWN_ROWS + 3


def answers(_: Path, verb: str) -> Iterator[dict[str, object]]:
    assert verb == "list queues"
    yield {"name": "a", "durable": True, "messages": 1, "arguments": {"x": 1}}
    yield {"name": "b\t", "durable": False, "messages": 20, "arguments": {}}
    yield {"ok": True, "rows": 2}


def test_a_listing_is_drawn_on_a_terminal_and_has_tabs_elsewhere(
    monkeypatch: pytest.MonkeyPatch, wide: Terminal
) -> None:
    monkeypatch.setattr(listing, "ask_rows", answers)
    assert listing.run(Path(), "queues", as_json=False, out=wide) == 0
    assert '│ a    │ true    │        1 │ {"x": 1}  │' in wide.getvalue()
    out = io.StringIO()
    assert listing.run(Path(), "queues", as_json=False, out=out) == 0
    assert out.getvalue().splitlines() == [
        "name\tdurable\tmessages\targuments",
        'a\ttrue\t1\t{"x": 1}',
        "b\\t\tfalse\t20\t{}",
    ]
    for target in (io.StringIO(), Terminal()):
        assert listing.run(Path(), "queues", as_json=True, out=target) == 0
        assert [json.loads(line)["name"] for line in target.getvalue().splitlines()] == ["a", "b\t"]


def test_a_listing_of_nothing_says_so_on_a_terminal_and_names_its_columns_elsewhere(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    answer = {"ok": True, "rows": 0, "columns": ["vhost", "source"]}
    monkeypatch.setattr(listing, "ask_rows", lambda *_: iter([answer]))
    for target, as_json, text in (
        (Terminal(), False, "no bindings\n"),
        (Terminal(), True, ""),
        (io.StringIO(), False, "vhost\tsource\n"),
        (io.StringIO(), True, ""),
    ):
        assert listing.run(Path(), "bindings", as_json=as_json, out=target) == 0
        assert target.getvalue() == text
