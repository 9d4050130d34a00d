"""`vouchmq ledger`: what it prints, and its exit codes."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest

from vouchmq.server.cli import ledger
from vouchmq.server.edge.control import NoBrokerError

ANSWERS: dict[str, dict[str, Any]] = {
    "ledger status": {"ok": True, "on": True, "lines": 7},
    "ledger on": {"ok": True},
    "ledger inventory": {"ok": True, "path": "/there"},
    "ledger rotate": {"ok": False, "error": "is off"},
}


@pytest.fixture(autouse=True)
def broker(monkeypatch: pytest.MonkeyPatch) -> None:
    """A broker that is asked about the directory `d`, and none on any other."""

    def ask(directory: Path, line: str) -> dict[str, Any]:
        if directory != Path("d"):
            raise NoBrokerError(f"no broker runs on {directory}")
        return dict(ANSWERS[line])

    monkeypatch.setattr(ledger, "ask", ask)


@pytest.mark.parametrize(
    ("directory", "verb", "code", "out", "error"),
    [
        ("d", "status", 0, "on        yes\nlines     7\n", ""),
        ("d", "on", 0, "", ""),
        ("d", "inventory", 0, "/there\n", ""),
        ("d", "rotate", 1, "", "vouchmq: ledger rotate: is off\n"),
        ("e", "on", 2, "", "vouchmq: no broker runs on e\n"),
    ],
)
def test_verbs(
    capsys: pytest.CaptureFixture[str], directory: str, verb: str, code: int, out: str, error: str
) -> None:
    assert ledger.run(Path(directory), verb) == code
    assert capsys.readouterr() == (out, error)
    elsewhere = io.StringIO()
    ledger.run(Path(directory), verb, elsewhere)
    assert elsewhere.getvalue() == out
    assert capsys.readouterr().out == ""
