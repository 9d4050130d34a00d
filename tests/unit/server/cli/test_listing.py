"""`vouchmq list` on a terminal: what fits, and what is left out."""

from __future__ import annotations

import io
import re
from typing import Any

import pytest

from tests.unit.server.cli.brokers import AnsweringBroker
from tests.unit.server.cli.terminals import Terminal
from vouchmq.server.admin.views import KINDS
from vouchmq.server.cli.program import CommandFailed
from vouchmq.server.cli.running import listing

STYLES = re.compile(r"\x1b\[[0-9;]*m")
QUEUE: dict[str, Any] = {
    **dict.fromkeys(KINDS["queues"].__struct_fields__, 0),
    "vhost": "/",
    "name": "orders",
    "type": "classic",
    "durable": True,
    "arguments": {},
    "policy": "",
    "operator_policy": "",
    "messages_ready": 5,
    "dropped": 7,
}


def shown(
    monkeypatch: pytest.MonkeyPatch,
    what: str,
    rows: list[dict[str, Any]],
    columns: tuple[str, ...] = (),
    width: int = 80,
) -> list[str]:
    """The lines on a terminal."""
    monkeypatch.setenv("COLUMNS", str(width))
    monkeypatch.setenv("NO_COLOR", "1")
    out = Terminal()
    broker = AnsweringBroker(listings={f"list {what}": rows}, columns=list(rows[0]))
    assert listing.show(broker, what, listing.Shown(columns), {}, out) == 0
    return STYLES.sub("", out.getvalue()).splitlines()


def test_queues_fit_a_narrow_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = shown(monkeypatch, "queues", [QUEUE, {**QUEUE, "name": "other"}])
    assert max(map(len, lines)) <= 80
    text = "\n".join(lines)
    assert all(name in lines[2] for name in ("vhost", "name", "messages_ready", "consumers"))
    assert "orders" in text
    assert listing.MORE in text
    # What is left out is named, whether or not it is empty.
    left_out = " ".join(lines).partition(listing.MORE)[2]
    assert {"dropped", "published"} <= set(left_out.replace(",", "").split())


def test_all_columns_where_there_is_room(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = shown(monkeypatch, "queues", [QUEUE, QUEUE], width=400)
    assert all(name in lines[2] for name in QUEUE)
    assert listing.MORE not in "\n".join(lines)


def test_one_row_that_is_too_wide_is_shown_as_facts(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = shown(monkeypatch, "queues", [QUEUE])
    assert lines[0] == "queues"
    assert [line.split()[0] for line in lines[1:]] == list(QUEUE)


def test_columns_that_were_asked_for_are_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = shown(monkeypatch, "queues", [QUEUE, QUEUE], columns=tuple(QUEUE))
    assert lines[1].split() == list(QUEUE)
    assert listing.MORE not in "\n".join(lines)


def test_a_name_that_is_wider_than_the_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [{"name": "x" * 100, "n": 1}, {"name": "y", "n": 2}]
    lines = shown(monkeypatch, "things", rows)
    assert any("x" * 100 in line or "1" in line for line in lines)


def test_a_virtual_host_that_is_not_there_is_no_empty_list() -> None:
    known = {"list queues": [], "list vhosts": [{"name": "/"}]}
    out = io.StringIO()
    shown = listing.Shown((), "", False, False)
    assert listing.show(AnsweringBroker(listings=known), "queues", shown, {"vhost": "/"}, out) == 0
    with pytest.raises(CommandFailed, match="there is no virtual host 'shop'"):
        listing.show(AnsweringBroker(listings=known), "queues", shown, {"vhost": "shop"}, out)
    # A policymaker is not told of virtual hosts.
    blind = AnsweringBroker(listings={"list policies": []})
    assert listing.show(blind, "policies", shown, {"vhost": "shop"}, out) == 0
