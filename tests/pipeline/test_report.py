"""The report: one page that loads nothing, escapes every name, follows light and dark."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from html.parser import HTMLParser
from math import log2
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("pyarrow")
pytest.importorskip("matplotlib")

from tests.pipeline import audit_tables
from tests.pipeline.audit_tables import HOSTILE, Made
from vouchmq.spark.audit import verdicts
from vouchmq.spark.report import plots, report, sections
from vouchmq.spark.report.plots import Series, duration, instant, shortened
from vouchmq.spark.report.tables import Heat, ReportError, Tables

if TYPE_CHECKING:
    from matplotlib.axes import Axes

SECTIONS = 8
EMPTY = frozenset({"meta", "path", "use", "line", "rect", "br", "link", "img", "input"})


class Page(HTMLParser):
    """What a browser would make of the page: its elements, in balance, and its attributes."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.wrong: list[str] = []
        self.count: Counter[str] = Counter()
        self.ids: Counter[str] = Counter()
        self.attributes: set[tuple[str, str, str]] = set()
        self.words: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.count[tag] += 1
        for name, value in attrs:
            self.attributes.add((tag, name, value or ""))
            if name == "id":
                self.ids[value or ""] += 1
        if tag not in EMPTY:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in EMPTY:
            self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        if tag in EMPTY:
            return
        if not self.open or self.open.pop() != tag:
            self.wrong.append(tag)

    def handle_data(self, data: str) -> None:
        if "style" not in self.open:
            self.words.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.words).split())


def written(made: Made, directory: Path) -> str:
    tables = made.write(directory / "tables")
    report.write(tables, directory / "report.html")
    assert [path.name for path in directory.glob("*.html")] == ["report.html"]
    assert not list(directory.glob(".report*"))
    return (directory / "report.html").read_text(encoding="utf-8")


def headed(made: Made, directory: Path) -> str:
    """Only the verdict: plots take their time."""
    return report.header(Tables(made.write(directory / "tables")))


@pytest.fixture(scope="module")
def troubled(tmp_path_factory: pytest.TempPathFactory) -> str:
    return written(audit_tables.with_findings(), tmp_path_factory.mktemp("troubled"))


@pytest.fixture(scope="module")
def honest(tmp_path_factory: pytest.TempPathFactory) -> str:
    return written(audit_tables.honest(), tmp_path_factory.mktemp("honest"))


def test_a_page_is_whole_and_loads_nothing(troubled: str) -> None:
    page = Page(troubled)
    assert page.wrong == []
    assert page.open == []
    assert page.count["section"] == SECTIONS
    assert not {"script", "link", "img", "iframe", "object", "embed"} & page.count.keys()
    assert [identity for identity, count in page.ids.items() if count > 1] == []
    loading = {"src", "srcset", "href", "xlink:href", "action", "data", "poster"}
    targets = {value for _, name, value in page.attributes if name in loading}
    assert targets
    assert all(target.startswith("#") and target[1:] in page.ids for target in targets)
    assert "url(" not in troubled.replace("url(#", "")
    assert "@import" not in troubled
    policy = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"
    assert ("meta", "content", policy) in page.attributes
    assert not [name for _, name, _ in page.attributes if name.startswith("on")]


def test_references_inside_of_drawings_lead_somewhere(troubled: str) -> None:
    ids = set(Page(troubled).ids)
    referred = set(re.findall(r"url\(#([^)]*)\)", troubled))
    assert referred
    assert referred <= ids


def test_names_out_of_the_ledger_are_escaped_everywhere(troubled: str) -> None:
    assert HOSTILE not in troubled
    assert "<b>" not in troubled
    assert "\u202e" not in troubled
    # Its style sheet is the only one: the broker's name did not end it.
    assert troubled.count("</style>") == 1
    page = Page(troubled)
    assert HOSTILE in page.text
    assert "naïve $x_1$ очередь" in page.text
    assert "west</style>" in page.text


def test_colours_are_variables_that_both_schemes_define(troubled: str) -> None:
    drawings = re.findall(r"<figure>.*?</figure>", troubled, re.DOTALL)
    assert len(drawings) >= SECTIONS
    for drawing in drawings:
        assert not re.findall(r"(?:fill|stroke): *#[0-9a-f]{3,6}", drawing)
        assert not re.search(r"#0[123]0[123]0", drawing)
    used = set(re.findall(r"var\((--[a-z0-9-]+)\)", troubled))
    style = troubled.partition("<style>")[2].partition("</style>")[0]
    light, dark = style.split("@media (prefers-color-scheme: dark)")[:2]
    for variable in used:
        assert f"{variable}:" in light
        assert f"{variable}:" in dark


def test_text_in_drawings_stays_text_in_the_font_of_the_page(troubled: str) -> None:
    drawing = re.findall(r"<svg.*?</svg>", troubled, re.DOTALL)[0]
    assert "LOST" in re.findall(r"<text[^>]*>([^<]*)</text>", drawing)
    assert "DejaVu" not in drawing


def test_each_plot_has_its_table_behind_it(troubled: str) -> None:
    for section in re.findall(r"<section.*?</section>", troubled, re.DOTALL):
        plots, tables = section.count("<figure>"), section.count("<details")
        assert plots
        assert tables >= plots


def test_the_verdict_comes_first_and_says_what_is_wrong(troubled: str, honest: str) -> None:
    assert (
        '<div class="verdict bad"><h1>3 confirmed messages are missing; 1 message ended more than '
        "once; 1 message was delivered out of order; 1 message was redelivered without the "
        "redelivered flag</h1>" in troubled
    )
    head = Page(troubled.partition("<nav>")[0]).text
    assert (
        "Of 360,911 copies of messages: 3 LOST, 1 double_end, 1 order, 1 redelivered_flag" in head
    )
    assert '<div class="verdict good"><h1>Clean</h1>' in honest
    assert "Each of 180,025 copies of messages is accounted for." in Page(honest).text


def test_missing_lines_make_it_not_provable(tmp_path: Path) -> None:
    made = audit_tables.honest()
    made.rows["completeness"][0]["missing"] = 7
    text = Page(headed(made, tmp_path)).text
    assert "Not provable" in text
    assert "7 lines of the ledgers are missing" in text


def test_lines_that_cannot_be_read_make_it_not_provable(tmp_path: Path) -> None:
    made = audit_tables.honest()
    made.summary["broken"] = 3
    text = Page(headed(made, tmp_path)).text
    assert "Not provable" in text
    assert "0 lines of the ledgers are missing, 3 cannot be read" in text


def test_copies_without_a_verdict_are_not_called_clean(tmp_path: Path) -> None:
    made = audit_tables.honest()
    made.rows["states"][1]["state"] = "open"
    text = Page(headed(made, tmp_path)).text
    assert "No verdict yet" in text
    assert "Of 180,025 copies of messages 12 have no inventory" in text
    assert "accounted for" not in text


def test_a_page_that_cannot_be_put_in_its_place_leaves_nothing(tmp_path: Path) -> None:
    made = audit_tables.honest().write(tmp_path / "tables")
    (tmp_path / "page.html").mkdir()
    with pytest.raises(IsADirectoryError):
        report.write(made, tmp_path / "page.html")
    assert {each.name for each in tmp_path.iterdir()} == {"tables", "page.html"}


def test_what_a_crash_may_do_is_no_fault(tmp_path: Path) -> None:
    made = audit_tables.honest()
    made.rows["states"][1]["state"] = "resurrected"
    text = headed(made, tmp_path)
    assert "<h1>Clean</h1>" in text
    assert "12 came back after a crash" in text


def test_each_state_that_the_audit_has_is_explained() -> None:
    assert set(report.STATES) == set(verdicts.STATES)
    assert report.failing(Counter(verdicts.FINDINGS)) >= {"LOST", "order", "early_confirm"}


def test_a_state_that_is_wrong_counts_without_a_finding(tmp_path: Path) -> None:
    made = audit_tables.honest()
    made.rows["states"][1]["state"] = "LOST"
    assert "12 LOST" in Page(headed(made, tmp_path)).text


def test_the_life_of_the_worst_stands_open(troubled: str) -> None:
    page = Page(troubled.partition('id="findings"')[2].partition("</section>")[0])
    assert f"LOST east / {HOSTILE} , LSN 71" in page.text
    assert f"published to {HOSTILE}" in page.text
    assert troubled.count("<details open>") == 1


def test_queues_count_their_findings(troubled: str) -> None:
    page = Page(troubled.partition('id="verdict"')[2].partition("</section>")[0])
    assert "6 3 LOST, 1 double_end, 1 order, 1 redelivered_flag" in page.text


def test_a_run_of_nothing_says_so_in_each_section(tmp_path: Path) -> None:
    page = Page(written(audit_tables.empty(), tmp_path))
    assert page.count["section"] == SECTIONS
    assert page.count["svg"] == 0
    assert page.count["p"] >= SECTIONS + 1
    assert "Nothing to judge" in page.text


def test_five_thousand_queues_fit_into_a_page(tmp_path: Path) -> None:
    text = written(audit_tables.of_many_queues(), tmp_path)
    assert len(text) < 600_000
    page = Page(text)
    assert "Queues (5,000)" in page.text
    assert "The first 50 of 5,000 rows." in page.text
    assert "15 of 5,000" in page.text
    # The slowest are those that are shown.
    assert "queue.04999" in page.text.partition("Unacked age")[2]


def test_a_page_is_the_same_each_time(tmp_path: Path, honest: str) -> None:
    again = written(audit_tables.honest(), tmp_path)
    assert re.sub(r"<dt>tables.*?</dd>", "", again) == re.sub(r"<dt>tables.*?</dd>", "", honest)


def test_a_directory_without_tables_is_refused_and_nothing_is_written(tmp_path: Path) -> None:
    with pytest.raises(ReportError, match="holds no tables of an audit"):
        report.write(tmp_path, tmp_path / "report.html")
    assert list(tmp_path.iterdir()) == []


def test_tables_that_are_absent_have_no_rows(tmp_path: Path) -> None:
    tables = audit_tables.honest().write(tmp_path / "tables")
    for path in tables.glob("*/*.parquet"):
        if path.parent.name not in ("states", "completeness"):
            path.unlink()
            path.parent.rmdir()
    report.write(tables, tmp_path / "report.html")
    assert "There was no consumer." in Page((tmp_path / "report.html").read_text()).text


def test_a_pause_is_drawn_as_one(tmp_path: Path) -> None:
    made = audit_tables.honest()
    del made.rows["rates"][10:20]
    rows = Tables(made.write(tmp_path / "tables")).sums("rates", ["t", "width_s"], ["published"])
    times, filled = sections.every_bucket(rows, 60)
    assert len(times) == 30
    assert [row is None for row in filled].count(True) == 10


def test_nothing_measured_is_a_gap_in_the_line(tmp_path: Path) -> None:
    made = audit_tables.honest()
    made.rows["heat"] = [row for row in made.rows["heat"] if row["t"].minute not in range(10, 20)]
    panels: list[tuple[Sequence[int], Sequence[Series]]] = []

    def seen(_: str, __: str, given: Sequence[tuple[str, Sequence[int], Sequence[Series]]]) -> str:
        panels.extend((times, series) for _, times, series in given)
        return ""

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(plots, "latencies", seen)
        sections.latency(Tables(made.write(tmp_path / "tables")))
    assert len(panels) == 3
    for times, series in panels:
        assert len(times) == 30
        assert [value is None for value in series[0].values].count(True) == 10


def test_percentiles_are_the_upper_edges_of_their_bins() -> None:
    heat = Heat({(0, 40): 50, (0, 44): 45, (0, 48): 4, (0, 60): 1, (7, 40): 1}, 7)
    first, second = heat.quantiles()
    edges = [2 ** ((number + 1) / 4) for number in (40, 44, 48, 60)]
    assert first[:2] == (0, 100)
    assert first[2] == pytest.approx(edges)
    assert second[:2] == (7, 1)
    assert second[2] == pytest.approx([edges[0]] * 4)


def test_of_many_epochs_those_that_lack_something_are_drawn() -> None:
    plain = {"b": "east", "missing": 0, "gaps": 0, "ended": "stop"}
    rows = [plain | {"o": number} for number in range(100)]
    rows[70] |= {"missing": 3}
    rows[90] |= {"ended": "crash"}
    drawn = [row["o"] for row in report.drawn_epochs(rows)]
    assert len(drawn) == report.MOST_EPOCHS
    assert {70, 90} < set(drawn)
    assert drawn == sorted(drawn)


def test_durations_and_moments_read_as_people_say_them() -> None:
    assert [duration(value) for value in (350, 1500, 2e7, 6e8, 9e9)] == [
        *("350 µs", "1.5 ms", "20 s", "10 min", "2.5 h"),
    ]
    assert instant(1_772_359_200_123_456) == "2026-03-01 10:00:00.123"


@pytest.mark.parametrize(
    ("values", "labels"),
    [
        ((11e6, 90e6), ("20 s", "40 s", "60 s", "80 s")),
        ((11_000, 13_000), ("11 ms", "12 ms", "13 ms")),
        ((130e6, 500e6), ("3 min", "6 min")),
        ((30, 900), ("50 µs", "200 µs", "500 µs")),
        ((2e6, 1.9e9), ("10 s", "100 s", "16.7 min")),
        ((12, 1.3e6), ("100 µs", "10 ms", "1 s")),
        ((5000,), ("5 ms",)),
        ((None, None), ()),
    ],
)
def test_durations_have_labels_wherever_they_lie(
    values: Sequence[float | None], labels: Sequence[str]
) -> None:
    seen: list[Axes] = []
    axis_of = plots._duration_axis

    def watched(axes: Axes) -> None:
        axis_of(axes)
        seen.append(axes)

    times = [60_000_000 * number for number, _ in enumerate(values)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(plots, "_duration_axis", watched)
        series = [Series("p50", values)]
        drawn = plots.latencies("a", "A", [("x", times, series), ("y", times, series)])
        cells = {(0, int(4 * log2(value))): 1 for value in values if value}
        if cells:
            drawn += plots.heat("b", "B", [0], 60_000_000, cells, 4)
    for axes in seen:
        low, high = axes.get_ylim()
        inside = [tick for tick in axes.yaxis.get_majorticklocs() if low <= tick <= high]
        assert 2 <= len(inside) <= 9
        assert len({duration(tick) for tick in inside}) == len(inside)
    assert len(seen) == (3 if cells else 2)
    for label in labels:
        assert f">{label}</text>" in drawn


def test_long_labels_keep_both_ends() -> None:
    assert shortened("a" * 50 + "z", 21) == "a" * 10 + "…" + "a" * 9 + "z"
    assert shortened("tab\there") == "tab\ufffdhere"
