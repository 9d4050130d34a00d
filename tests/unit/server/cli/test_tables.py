"""Tables: drawn where they fit on a terminal, plain columns everywhere else."""

from __future__ import annotations

import io
import json

import pytest

from tests.unit.server.cli.brokers import AnsweringBroker
from tests.unit.server.cli.terminals import Terminal
from vouchmq.server.cli.program import CommandFailed
from vouchmq.server.cli.running.listing import Shown, show
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


LISTED: list[dict[str, object]] = [
    {"name": "a", "durable": True, "messages": 1, "arguments": {"x": 1}},
    {"name": "b\t", "durable": False, "messages": 20, "arguments": {}},
    {"name": "c", "durable": False, "messages": 3, "arguments": {}},
]
BROKER = AnsweringBroker(listings={"list queues": LISTED}, columns=list(LISTED[0]))


def listed(out: io.StringIO, *shown: object, what: str = "queues") -> str:
    assert show(BROKER, what, Shown(*shown), {}, out) == 0  # type: ignore[arg-type]
    return out.getvalue()


def test_a_listing_is_drawn_on_a_terminal_and_has_tabs_elsewhere(wide: Terminal) -> None:
    assert '│ a    │ true    │        1 │ {"x": 1}  │' in listed(wide)
    assert listed(io.StringIO()).splitlines() == [
        "name\tdurable\tmessages\targuments",
        'a\ttrue\t1\t{"x": 1}',
        "b\\t\tfalse\t20\t{}",
        "c\tfalse\t3\t{}",
    ]
    for target in (io.StringIO(), Terminal()):
        lines = listed(target, (), "", False, True).splitlines()
        assert [json.loads(line) for line in lines] == LISTED


def test_columns_are_chosen_and_rows_sorted() -> None:
    text = listed(io.StringIO(), ("messages", "name"), "messages")
    assert text == "messages\tname\n1\ta\n3\tc\n20\tb\\t\n"
    text = listed(io.StringIO(), ("name",), "name", True)
    assert text == "name\nc\nb\\t\na\n"


@pytest.mark.parametrize(
    "shown", [Shown(("name", "nam")), Shown((), "nam"), Shown(("nam",), "name")]
)
@pytest.mark.parametrize("rows", [LISTED, []])
def test_a_column_that_is_not_there_is_refused(shown: Shown, rows: list[dict[str, object]]) -> None:
    broker = AnsweringBroker(listings={"list queues": rows}, columns=list(LISTED[0]))
    out = io.StringIO()
    line = "no column 'nam'; there are name, durable, messages, arguments"
    with pytest.raises(CommandFailed, match=line) as caught:
        show(broker, "queues", shown, {}, out)
    assert (caught.value.exit_code, out.getvalue()) == (2, "")


def test_a_listing_of_nothing_says_so_on_a_terminal_and_names_its_columns_elsewhere() -> None:
    broker = AnsweringBroker(listings={"list bindings": []}, columns=["vhost", "source"])
    for target, as_json, text in (
        (Terminal(), False, "no bindings\n"),
        (Terminal(), True, ""),
        (io.StringIO(), False, "vhost\tsource\n"),
        (io.StringIO(), True, ""),
    ):
        assert show(broker, "bindings", Shown(as_json=as_json), {"vhost": "v"}, target) == 0
        assert target.getvalue() == text
    assert broker.asked[0] == ("list bindings", {"vhost": "v"})
