"""Several reports side by side, from their JSON files to the page."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from html.parser import HTMLParser
from pathlib import Path

import pytest

from vouchmq.conformance.__main__ import main
from vouchmq.conformance.case import Case, Outcome, Verdict
from vouchmq.conformance.comparison import Comparison, Key, Report, named, read
from vouchmq.conformance.page import Cell
from vouchmq.conformance.report import write_json
from vouchmq.conformance.stage import Stage

A = Key("CONF-01", "select is answered", "≡")
B = Key("TX-01", "a <b> & 'c'", "≡")
C = Key("DUP-01", "keys [x]", "+")


def kept(stage: Stage) -> None:
    """A case that is never run here."""


def report(name: str, **verdicts: str) -> Report:
    """A report with these verdicts on A, B and C."""
    keys = {"a": A, "b": B, "c": C}
    cells = {keys[key]: Cell(verdict) for key, verdict in verdicts.items()}
    return Report(name, f"amqp://{name}/", cells)


def written(path: Path, product: str, outcomes: Sequence[Outcome]) -> Path:
    """A report file as the suite writes it; one case for each outcome, CONF-01, CONF-02 …"""
    verdicts = [
        Verdict(
            Case(f"CONF-{number:02}", f"case {number}", "≡", kept),
            outcome,
            "" if outcome == "passed" else "because <it> is & was",
            ("  > 1 basic.ack", "  < </pre><script>alert(1)</script>")
            if outcome == "failed"
            else (),
        )
        for number, outcome in enumerate(outcomes, 1)
    ]
    write_json(path, "amqp://guest@h:1/", verdicts, product)
    return path


class _Rows(HTMLParser):
    """Reads the page back: the cells of every case, and which tags were not closed."""

    def __init__(self) -> None:
        super().__init__()
        self.rows: list[list[str]] = []
        self.classes: list[str] = []
        self.open: list[str] = []
        self._is_cell = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in ("meta", "input"):
            self.open.append(tag)
        names = str(dict(attrs).get("class", ""))
        if tag == "tr" and names.startswith("case"):
            self.rows.append([])
            self.classes.append(names)
        self._is_cell = tag in ("td", "th") or (self._is_cell and tag != "tr")
        if tag in ("td", "th") and self.rows:
            self.rows[-1].append("")

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag
        self._is_cell = self._is_cell and tag not in ("td", "th")

    def handle_data(self, data: str) -> None:
        if self.rows and self.rows[-1] and self._is_cell:
            self.rows[-1][-1] += data


def read_page(text: str) -> _Rows:
    """The page, parsed; it must be well nested."""
    rows = _Rows()
    rows.feed(text)
    rows.close()
    assert rows.open == []
    return rows


def test_brokers_differ_when_they_were_judged_differently() -> None:
    one = report("one", a="passed", b="passed", c="passed")
    assert not Comparison([one, report("two", a="passed", b="skipped")]).differs(A)
    assert Comparison([one, report("two", a="failed")]).differs(A)
    assert Comparison([one, report("two", a="excused")]).differs(A)


def test_what_was_not_judged_makes_no_difference() -> None:
    one = report("one", a="passed", b="failed", c="passed")
    both = Comparison([one, report("two", a="skipped", b="skipped")])
    assert not any(map(both.differs, (A, B, C)))


def test_sections_stand_in_the_order_of_the_rules() -> None:
    both = Comparison([report("one", c="passed", b="passed"), report("two", a="passed")])
    assert [(section, keys) for section, keys in both.sections()] == [
        ("CONF", [A]),
        ("TX", [B]),
        ("DUP", [C]),
    ]


def test_brokers_of_one_name_get_that_of_their_file() -> None:
    reports = [report("R 1"), report("R 1"), report("other")]
    paths = [Path("x/monday.json"), Path("x/tuesday.json"), Path("x/other.json")]
    names = [one.name for one in named(reports, paths)]
    assert names == ["R 1 (monday)", "R 1 (tuesday)", "other"]


def test_a_report_keeps_its_way_through_a_file(tmp_path: Path) -> None:
    path = written(tmp_path / "r.json", "Broker 1.0", ["passed", "failed", "skipped", "excused"])
    back = read(path)
    assert (back.name, back.url) == ("Broker 1.0", "amqp://guest@h:1/")
    assert [cell.verdict for cell in back.cells.values()] == [
        "passed",
        "failed",
        "skipped",
        "excused",
    ]
    assert back.cells[Key("CONF-02", "case 2", "≡")].trace[0] == "  > 1 basic.ack"


def test_a_report_without_a_name_has_that_of_its_file(tmp_path: Path) -> None:
    assert read(written(tmp_path / "mine.json", "", ["passed"])).name == "mine"


def test_the_page_shows_every_case_with_a_verdict_for_each_broker(tmp_path: Path) -> None:
    paths = [
        written(tmp_path / "a.json", "Ours <1>", ["passed", "failed", "passed"]),
        written(tmp_path / "b.json", "Theirs & 2", ["passed", "passed"]),
    ]
    out = tmp_path / "page.html"
    assert main(["compare", *map(str, paths), "--html", str(out)]) == 0
    text = out.read_text(encoding="utf-8")
    page = read_page(text)
    assert [(row[0], row[3], row[4]) for row in page.rows] == [
        ("CONF-01", "✓ passed", "✓ passed"),
        ("CONF-02", "✗ failed", "✓ passed"),
        ("CONF-03", "✓ passed", "· not run"),
    ]
    assert page.classes == ["case", "case different", "case"]
    assert "because <it> is & was" in page.rows[1][1]
    assert "Ours &lt;1&gt;" in text
    assert "<script>alert" not in text


def test_the_page_needs_nothing_else(tmp_path: Path) -> None:
    path = written(tmp_path / "a.json", "Ours", ["passed"])
    out = tmp_path / "page.html"
    assert main(["compare", str(path), "--html", str(out)]) == 0
    text = out.read_text(encoding="utf-8")
    assert not re.search(r"(src|href)=|@import|url\(|fetch\(|https?:", text)
    assert "prefers-color-scheme: dark" in text


def test_the_terminal_gets_counts_and_differences(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    paths = [
        written(tmp_path / "a.json", "Ours", ["passed", "failed"]),
        written(tmp_path / "b.json", "Theirs", ["passed", "passed"]),
    ]
    assert main(["compare", *map(str, paths)]) == 0
    shown = capsys.readouterr().out
    assert re.search(r"Publisher confirms\W+2\W+1 of 2\W+2 of 2", shown)
    assert re.search(r"CONF-02\W+case 2\W+FAILED\W+ok", shown)
    assert "case 1" not in shown
    assert shown.endswith("1 of 2 cases differ\n")
    assert main(["compare", *map(str, paths), "--all"]) == 0
    assert "case 1" in capsys.readouterr().out


@pytest.mark.parametrize(
    "text", ["", "{}", "[]", "nonsense", '{"url": "x", "cases": [{"rule": "CONF-01"}]}']
)
def test_what_is_no_report_is_one_line_and_exit_2(
    tmp_path: Path, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "r.json"
    path.write_text(text, encoding="utf-8")
    assert main(["compare", str(path)]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_a_rule_that_is_none_is_no_report(tmp_path: Path) -> None:
    row = {"rule": "none", "says": "", "mark": "", "verdict": "", "reason": "", "trace": []}
    path = tmp_path / "r.json"
    path.write_text(json.dumps({"url": "x", "cases": [row]}), encoding="utf-8")
    assert main(["compare", str(path)]) == 2


def test_a_missing_file_is_exit_2(tmp_path: Path) -> None:
    assert main(["compare", str(tmp_path / "gone.json")]) == 2
