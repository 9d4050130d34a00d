"""Pictures of a run: what stands in them is what was measured, and they are those of the file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from bench import plots
from bench.client import Address
from bench.measure import Round
from bench.run import Row, as_json
from bench.scenarios import catalogue
from bench.servers import Server

SVG = "{http://www.w3.org/2000/svg}"
STORED = sorted(plots.DIRECTORY.glob("*.svg"))


def results(work_dir: Path, name: str, **measured: list[float]) -> dict[str, Any]:
    """Make the results of a run of one row, of which every second round was not quiet."""
    (scenario,) = catalogue.chosen([name])
    row = Row(scenario)
    for server, figures in measured.items():
        for index, figure in enumerate(figures):
            values = {scenario.headline: figure, "foreign_cores": 0.9 * (index % 2)}
            values |= {"delivery_p50_ms": 1.5, "delivery_p99_ms": 12.5, "cpu_us": 3.25}
            row.rounds.append(Round(server, values))
    servers = [
        Server(server, Address("127.0.0.1", 1), None, f"1.{index}", None)
        for index, server in enumerate(measured)
    ]
    made: dict[str, Any] = json.loads(
        json.dumps(as_json(servers, [row], quick=True, work_dir=work_dir))
    )
    return made


def parsed(picture: str) -> ElementTree.Element:
    """Read a picture back."""
    return ElementTree.fromstring(picture)  # noqa: S314 - it was drawn here


def texts(picture: str) -> list[str]:
    """List what can be read in a picture."""
    return [entry.text or "" for entry in parsed(picture).iter(f"{SVG}text")]


def bars(picture: str) -> dict[str, float]:
    """Give the length of each bar by how it is drawn."""
    found = parsed(picture).iter(f"{SVG}rect")
    return {entry.attrib["class"]: float(entry.attrib["width"]) for entry in found}


def test_bars_are_as_long_as_the_medians_of_a_row(tmp_path: Path) -> None:
    told = results(tmp_path, "fanout_10", vouchmq=[100.0], lavinmq=[25.0], sink=[900.0])
    pictures = plots.draw_all(told, "run.json")
    assert list(pictures) == ["flow"]
    assert bars(pictures["flow"]) == {"vouchmq": 360.0, "peer-0": 90.0}
    assert "sink" not in texts(pictures["flow"])


def test_a_picture_says_what_was_measured_and_how(tmp_path: Path) -> None:
    told = results(tmp_path, "fanout_10", vouchmq=[100.0, 90.0, 101.0], lavinmq=[25.0])
    read = texts(plots.draw_all(told, "run.json")["flow"])
    for expected in ("fanout_10", "vouchmq", "100", "1.5 / 12.5", "3.25", "2 of 3", "1 of 1"):
        assert expected in read
    assert any("quick" in line and "vouchmq 1.0, lavinmq 1.1" in line for line in read)
    assert any(f"commit {told['conditions']['commit']}" in line for line in read)


def test_a_bar_is_pale_when_a_round_was_not_quiet_and_has_its_spread(tmp_path: Path) -> None:
    told = results(tmp_path, "fanout_10", vouchmq=[100.0, 50.0], lavinmq=[25.0])
    picture = plots.draw_all(told, "run.json")["flow"]
    assert set(bars(picture)) == {"vouchmq unquiet", "peer-0"}
    found = parsed(picture).iter(f"{SVG}line")
    (spread,) = [entry.attrib for entry in found if entry.attrib["class"] == "spread"]
    assert float(spread["x1"]) - plots.BAR_LEFT == 180.0
    assert float(spread["x2"]) - plots.BAR_LEFT == 360.0


def test_a_broker_whose_rounds_failed_has_no_bar(tmp_path: Path) -> None:
    told = results(tmp_path, "fanout_10", vouchmq=[100.0], lavinmq=[])
    (row,) = told["scenarios"]
    row["rounds"].append({"server": "lavinmq", "values": {}, "is_quiet": False, "error": "lost"})
    picture = plots.draw_all(told, "run.json")["flow"]
    assert set(bars(picture)) == {"vouchmq"}
    assert "no round counted" in texts(picture)


def test_every_group_has_a_title_and_every_headline_a_unit() -> None:
    assert set(plots.TITLES) == set(catalogue.GROUPS)
    assert {scenario.headline for scenario in catalogue.SCENARIOS} <= set(plots.UNITS)


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ('{"scenarios": [{"name": "x"}]}', "are of no group"),
        ("{}", "there are no rows"),
        ("half", "Expecting value"),
    ],
)
def test_a_file_without_rows_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], written: str, expected: str
) -> None:
    path = tmp_path / "run.json"
    path.write_text(written)
    assert plots.main([str(path), "--out", str(tmp_path / "plots")]) == 2
    assert expected in capsys.readouterr().err
    assert not (tmp_path / "plots").exists()


def test_the_command_writes_a_picture_of_each_group(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    path.write_text(json.dumps(results(tmp_path, "fanout_10", vouchmq=[100.0])))
    assert plots.main([str(path), "--out", str(tmp_path / "plots")]) == 0
    assert [entry.name for entry in (tmp_path / "plots").iterdir()] == ["flow.svg"]


def test_there_is_a_picture_of_every_group() -> None:
    assert {path.stem for path in STORED} == set(catalogue.GROUPS)


@pytest.mark.parametrize("path", STORED, ids=lambda path: path.stem)
def test_the_pictures_that_are_shown_are_those_of_the_stored_results(path: Path) -> None:
    picture = path.read_text()
    source = (parsed(picture).findtext(f"{SVG}desc") or "").split()[-1]
    stored = json.loads((plots.DIRECTORY.parent / source).read_text())
    assert plots.draw_all(stored, source)[path.stem] == picture
