"""Pictures of curves: points are where their values are, and stored pictures show stored runs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from bench import curve_plots, plots
from bench.curves.__main__ import CURVES

SVG = "{http://www.w3.org/2000/svg}"
STORED = sorted((plots.DIRECTORY / plots.CURVES).glob("*.svg"))
RESULTS = plots.DIRECTORY.parent / "curves.json"


def point(size: int, cpu_us: float, stall_ms: float, *, quick: bool = False) -> dict[str, Any]:
    """Make a point of one series."""
    conditions = {"at": "2026-11-23T08:00:00", "commit": "abc", "cpu_count": 2, "quick": quick}
    conditions |= {"machine": "a machine", "python": "3.11"}
    return {
        "size": size,
        "cpu_us": {"one": cpu_us},
        "stall_cpu_ms": {"one": stall_ms},
        "load": 4.0,
        "conditions": conditions,
    }


def drawn(*points: dict[str, Any]) -> ElementTree.Element:
    """Draw a curve of these points and read it back."""
    curve = {"title": "Things", "per": "message", "points": list(points)}
    picture = curve_plots.draw_curves({"curves": {"things": curve}}, "run.json")["things"]
    return ElementTree.fromstring(picture)  # noqa: S314 - it was drawn here


def places(picture: ElementTree.Element) -> list[list[tuple[float, float]]]:
    """List the points of each line."""
    lines = [entry.attrib["points"].split() for entry in picture.iter(f"{SVG}polyline")]
    return [[(float(x), float(y)) for x, y in (at.split(",") for at in line)] for line in lines]


def test_a_decade_of_size_and_of_cost_is_a_decade_of_the_frame() -> None:
    cost, stall = places(drawn(point(1, 1.0, 1.0), point(10, 10.0, 10.0), point(100, 10.0, 100.0)))
    (x0, y0), (x1, y1), (x2, y2) = cost
    assert (x0, x2) == (curve_plots.LEFT, curve_plots.RIGHT)
    assert x1 - x0 == pytest.approx(x2 - x1)
    assert y0 - y1 == pytest.approx(curve_plots.PANEL_HEIGHT)
    assert y1 == y2
    assert stall[0][1] - stall[1][1] == pytest.approx(stall[1][1] - stall[2][1])


def test_the_limit_of_stalls_stands_between_those_beneath_and_above() -> None:
    picture = drawn(point(1, 1.0, 19.0), point(10, 1.0, 21.0))
    (limit,) = [e.attrib for e in picture.iter(f"{SVG}line") if e.attrib["class"] == "limit"]
    (_, beneath), (_, above) = places(picture)[1]
    assert above < float(limit["y1"]) < beneath


def test_a_picture_tells_the_values_and_how_they_were_measured() -> None:
    picture = drawn(point(1_000, 1.5, 2.5, quick=True), point(10_000, 12.5, 0.0, quick=True))
    read = [entry.text or "" for entry in picture.iter(f"{SVG}text")]
    for expected in ("Things", "one", "1.5 · 12.5", "2.5 · 0", "1k", "10k", "CPU us per message"):
        assert expected in read
    assert any("quick" in line for line in read)


@pytest.mark.parametrize(
    ("size", "expected"),
    [(1, "1"), (16, "16"), (1_000, "1k"), (65_536, "64Ki"), (1 << 20, "1Mi"), (10**7, "10M")],
)
def test_sizes_are_written_short(size: int, expected: str) -> None:
    assert curve_plots.short(size) == expected


def test_the_command_draws_curves_into_their_own_folder(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    curve = {"title": "Things", "per": "message", "points": [point(1, 1.0, 1.0)]}
    path.write_text(json.dumps({"curves": {"things": curve}}))
    assert plots.main([str(path), "--out", str(tmp_path)]) == 0
    assert (tmp_path / plots.CURVES / "things.svg").exists()


def test_there_is_a_picture_of_every_curve() -> None:
    assert {path.stem for path in STORED} == {curve.name for curve in CURVES}


@pytest.mark.parametrize("path", STORED, ids=lambda path: path.stem)
def test_the_pictures_that_are_shown_are_those_of_the_stored_curves(path: Path) -> None:
    stored = json.loads(RESULTS.read_text())
    assert curve_plots.draw_curves(stored, RESULTS.name)[path.stem] == path.read_text()
