"""Ledgers of real brokers: an honest one that is killed, and some that are not honest.

The default tests judge in plain Python beside one run of the command; `--campaign` does what
docs/internals/results/audit.json has. Spec: DURABLE-16
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.ledger_reader import lines_in
from tests.pipeline import audit_campaign
from tests.pipeline.audit_campaign import CAUGHT_BY, campaign
from tests.pipeline.audit_reference import Reference

pytestmark = [pytest.mark.fault, pytest.mark.timeout(300)]
SMALL: dict[str, tuple[int, dict[str, str]]] = {
    "confirm-before-sync": (3000, {}),
    "lose-some": (6000, {"PLANTED_RARE": "500"}),
    "overtake": (8000, {}),
    "forget-redelivered": (8000, {}),
}


@pytest.mark.slow
def test_a_broker_that_is_killed_has_no_findings(tmp_path: Path) -> None:
    outcome = campaign(tmp_path, messages=6000, kills=3, memory="1g", limit_s=120)
    assert outcome.kills == 3
    assert outcome.summary["findings"] == {}, outcome.printed
    assert outcome.exit == 0, outcome.printed
    assert outcome.summary["copies"] >= outcome.confirmed * 0.99


@pytest.mark.slow
@pytest.mark.parametrize("bug", sorted(CAUGHT_BY))
def test_a_defect_is_found_by_the_finding_that_it_deserves(
    tmp_path: Path, bug: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    messages, environment = SMALL[bug]
    # What Spark says is the same (test_audit_verdicts); this is faster than to start it.
    monkeypatch.setattr(audit_campaign, "audit", _in_plain_python)
    outcome = campaign(
        tmp_path, messages=messages, kills=0, bug=bug, environment=environment, limit_s=120
    )
    findings = set(outcome.summary["findings"])
    if bug == "overtake":
        # Who is overtaken by another batch comes behind the mark, and so is called a redelivery.
        findings.discard("redelivered_flag")
    assert findings == {CAUGHT_BY[bug]}


def _in_plain_python(ledger: Path, out: Path, memory: str) -> tuple[int, dict[str, object], str]:
    del out, memory
    reference = Reference(lines_in(ledger, with_open=True))
    kinds: dict[str, int] = {}
    for *_, kind in reference.findings:
        kinds[kind] = kinds.get(kind, 0) + 1
    return int(bool(kinds)), {"findings": kinds}, ""


@pytest.mark.campaign
@pytest.mark.timeout(7200)
def test_two_million_messages_under_kills(tmp_path: Path) -> None:
    outcome = campaign(tmp_path, messages=2_000_000, kills=20, limit_s=5400)
    assert outcome.summary["findings"] == {}, outcome.printed
    assert outcome.exit == 0, outcome.printed


@pytest.mark.campaign
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("bug", sorted(CAUGHT_BY))
def test_the_command_finds_defects(tmp_path: Path, bug: str) -> None:
    messages = 400_000 if bug == "lose-some" else 30_000
    outcome = campaign(
        tmp_path, messages=messages, kills=0, bug=bug, environment={"PLANTED_RARE": "100000"}
    )
    assert outcome.exit == 1
    assert CAUGHT_BY[bug] in outcome.summary["findings"], outcome.printed
