"""Every rule of the document is judged by a case, or listed with the reason why none can."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from vouchmq.conformance.case import all_cases, order
from vouchmq.conformance.untestable import UNTESTABLE

RULES: Final = Path(__file__).resolve().parents[3] / "docs" / "reference" / "behaviour.md"
# A rule stands in the first cell of a row, or in bold at the beginning of a line.
_ROW: Final = re.compile(r"\|\s*([A-Z]+-\d+[a-z]?)\s*\|")
_BOLD: Final = re.compile(r"(?:- )?\*\*([A-Z]+-\d+[a-z]?)\b")


def rules(text: str) -> set[str]:
    """The ids that the document gives, its appendices left out."""
    body = text.split("\n# Appendix A")[0]
    found = (_ROW.match(line) or _BOLD.match(line) for line in body.splitlines())
    return {match[1] for match in found if match}


def test_rules_are_found_in_tables_and_in_bold() -> None:
    text = "| CONN-01 | x |\n| id | rule |\n**GEN-02 Words.**\n- **DLX-05** y\nsee TX-01\n"
    assert rules(text + "\n# Appendix A\n| C-01 | z |") == {"CONN-01", "GEN-02", "DLX-05"}


def test_every_rule_is_tested_or_listed() -> None:
    known = rules(RULES.read_text(encoding="utf-8"))
    assert len(known) > 500
    judged = {one.rule for one in all_cases()} | set(UNTESTABLE)
    assert sorted(known - judged, key=order) == []
    assert sorted(judged - known, key=order) == []


def test_every_reason_says_something() -> None:
    assert all(len(reason) > 5 for reason in UNTESTABLE.values())
