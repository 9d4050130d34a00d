"""`vouchmq ledger`: what it prints, and what ends it."""

from __future__ import annotations

import io

import pytest

from tests.unit.server.cli.brokers import AnsweringBroker
from vouchmq.server.cli.client import Refused
from vouchmq.server.cli.running import ledger

BROKER = AnsweringBroker(
    {
        "ledger status": {"on": True, "lines": 7},
        "ledger on": {},
        "ledger inventory": {"path": "/there"},
    }
)


@pytest.mark.parametrize(
    ("verb", "out", "as_json"),
    [
        (
            "status",
            "on          yes\nlines       7\nlast audit  none is known\n",
            '{"on": true, "lines": 7}\n',
        ),
        ("on", "", "{}\n"),
        ("inventory", "/there\n", '{"path": "/there"}\n'),
    ],
)
def test_verbs(capsys: pytest.CaptureFixture[str], verb: str, out: str, as_json: str) -> None:
    assert ledger.run(BROKER, verb, as_json=False) == 0
    assert capsys.readouterr() == (out, "")
    elsewhere = io.StringIO()
    ledger.run(BROKER, verb, as_json=True, out=elsewhere)
    assert elsewhere.getvalue() == as_json
    assert capsys.readouterr().out == ""


def test_what_the_broker_refuses_is_not_printed(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(Refused, match="ledger rotate: no answer to this"):
        ledger.run(BROKER, "rotate", as_json=False)
    assert capsys.readouterr() == ("", "")
