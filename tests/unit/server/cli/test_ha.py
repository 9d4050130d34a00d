"""`vouchmq ha`: what it prints, and its exit codes."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.unit.server.cli.brokers import AnsweringBroker
from vouchmq.server.cli import main as program

LEADER = {
    "node": "a",
    "role": "leader",
    "stream": "orders",
    "server": "127.0.0.1:4222",
    "epoch": 3,
    "sequence": 70,
    "lsn": 8,
    "trouble": "",
    "is_serving": True,
    "uncommitted_bytes": 0,
}
STANDBY = {
    **{name: value for name, value in LEADER.items() if not name.startswith(("is_", "unc"))},
    "role": "standby",
    "leader": "b",
    "lag": 2,
    "synced_sequence": 60,
    "is_complete": True,
}


@pytest.fixture
def ask(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Have commands ask a broker that answers so; gives it."""

    def answered_by(facts: dict[str, object]) -> AnsweringBroker:
        broker = AnsweringBroker({"ha status": facts, "ha handover": {}})
        monkeypatch.setattr("vouchmq.server.cli.client.LocalBroker", lambda *_: broker)
        return broker

    return answered_by


def test_a_leader_that_serves_is_well(ask: Any, capsys: pytest.CaptureFixture[str]) -> None:
    ask(LEADER)
    assert program.main(["ha", "status"]) == 0
    assert "role:                 leader\n" in capsys.readouterr().out


def test_a_standby_that_can_take_over_is_well(ask: Any, capsys: pytest.CaptureFixture[str]) -> None:
    ask(STANDBY)
    assert program.main(["ha", "status"]) == 0
    said = capsys.readouterr().out
    assert "leader:               b\n" in said
    assert "can take over:        yes\n" in said


@pytest.mark.parametrize(
    "changes", [{"is_complete": False}, {"trouble": "no server answers"}, {"role": "candidate"}]
)
def test_who_can_do_neither_is_not(ask: Any, changes: dict[str, object]) -> None:
    ask({**STANDBY, "is_complete": False, **changes})
    assert program.main(["ha", "status"]) == 1


def test_programs_get_all_of_it(ask: Any, capsys: pytest.CaptureFixture[str]) -> None:
    ask(STANDBY)
    assert program.main(["ha", "status", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == STANDBY


def test_a_handover_is_asked_for(ask: Any, capsys: pytest.CaptureFixture[str]) -> None:
    broker = ask(LEADER)
    assert program.main(["ha", "handover"]) == 0
    assert broker.asked == [("ha handover", {})]
    assert capsys.readouterr().out == "handing over\n"


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["ha", "create"], "vouchmq: ha_log: name the servers of the log"),
        (["ha", "create", "--ha-log", "a"], "vouchmq: ha_log: a is no address"),
        (["ha", "create", "--max-bytes", "much"], "vouchmq: invalid value for '--max-bytes'"),
        (["ha", "create", "--max-bytes", "0.5"], "vouchmq: invalid value for '--max-bytes'"),
        (["ha", "create", "--ha-log", "nats://a", "--ha-stream", "a.b"], "vouchmq: --ha-stream"),
    ],
)
def test_mistakes_are_told_in_a_line(
    words: list[str], text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert program.main(words) == 2
    said = capsys.readouterr().err
    assert said.startswith(text)
    assert said.count("\n") == 1
