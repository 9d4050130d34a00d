"""Rows of the pipeline: arms in turn, ratios within a round, ledgers made to measure on."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("pika")

from bench.pipeline import __main__ as command
from bench.pipeline import rounds
from bench.pipeline.ledger_lines import Ledger
from bench.pipeline.row import Demand, Place, Play, Row, RowError, Values

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

RATIO = Demand("rate", "fast", "slow", at_least=2.0)


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing here leaves anything behind to wait for."""
    monkeypatch.setattr(rounds, "SETTLE_S", 0.0)


def no_session() -> SparkSession:
    raise AssertionError("nobody asked for one")


def place(directory: Path) -> Place:
    return Place(None, directory, is_quick=False, session=no_session)


def row_of(figures: dict[str, list[float]], played: list[str], *demands: Demand) -> Row:
    @contextmanager
    def measure(_: Place) -> Iterator[Play]:
        def go(arm: str) -> Values:
            played.append(arm)
            found = figures[arm].pop(0)
            if found < 0:
                raise RowError("a message is missing")
            return {"rate": found}

        yield go
        played.append("put away")

    return Row("a_row", "?", tuple(figures), measure, demands or (RATIO,), servers=())


def test_arms_take_turns_and_the_first_is_not_always_the_same(tmp_path: Path) -> None:
    played: list[str] = []
    row = row_of({"slow": [1, 1, 1], "fast": [2, 3, 4]}, played)
    made = rounds.play(row, place(tmp_path), 3, lambda _: None)
    assert played == ["slow", "fast", "fast", "slow", "slow", "fast", "put away"]
    assert made.figures(RATIO) == [2, 3, 4]
    assert all("foreign_cores" in each["slow"] for each in made.rounds)


def test_the_median_of_the_quotients_is_judged_not_the_quotient_of_medians(tmp_path: Path) -> None:
    row = row_of({"slow": [1, 10, 10], "fast": [3, 15, 40]}, [])
    made = rounds.play(row, place(tmp_path), 3, lambda _: None)
    shown = rounds.as_json(made)["demands"]
    assert shown == [
        {
            "figure": "rate fast / slow",
            "demanded": ">= 2x",
            "median": 3.0,
            "low_high": [1.5, 4.0],
            "met": True,
        }
    ]
    assert not rounds.is_missed(made)


def test_a_miss_is_told(tmp_path: Path) -> None:
    row = row_of({"slow": [1], "fast": [1.9]}, [])
    assert rounds.is_missed(rounds.play(row, place(tmp_path), 1, lambda _: None))


def test_a_round_that_fails_ends_its_row_and_is_told(tmp_path: Path) -> None:
    row = row_of({"slow": [1, -1], "fast": [2, 2]}, [])
    made = rounds.play(row, place(tmp_path), 2, lambda _: None)
    assert made.error == "RowError: a message is missing"
    assert len(made.rounds) == 1


def test_a_figure_may_be_judged_by_itself_and_only_on_one_broker() -> None:
    demand = Demand("rss_gib", "audit", at_most=3.0, server="vouchmq")
    assert demand.text == "<= 3"
    assert demand.figure({"audit": {"rss_gib": 2.5}}) == 2.5
    assert demand.is_met(3.0)
    assert not demand.is_met(3.1)
    row = row_of({"slow": [], "fast": []}, [], demand)
    assert rounds.Played(row, "rabbitmq").demands == []
    assert rounds.Played(row, "vouchmq").demands == [demand]


def test_a_missing_arm_gives_no_figure() -> None:
    assert RATIO.figure({"fast": {"rate": 2}}) is None
    assert RATIO.figure({"fast": {"rate": 2}, "slow": {"rate": 0}}) is None


def test_results_keep_the_rows_that_were_not_played(tmp_path: Path) -> None:
    out = tmp_path / "results.json"
    for name, rate in (("one", 2.0), ("two", 4.0), ("one", 8.0)):
        row = row_of({"slow": [1], "fast": [rate]}, [])
        played = rounds.play(row, place(tmp_path), 1, lambda _: None)
        played.row = Row(name, "?", row.arms, row.measure, row.demands, servers=())
        command.keep(out, [played], {"commit": "abc"}, {})
    found = json.loads(out.read_text())["rows"]
    assert {row["name"]: row["demands"][0]["median"] for row in found} == {"one": 8.0, "two": 4.0}
    assert {row["conditions"]["commit"] for row in found} == {"abc"}


@pytest.mark.parametrize("run", [1, 16])
def test_a_ledger_to_measure_on_is_whole(tmp_path: Path, run: int) -> None:
    """Dense numbers, a time that never goes back, each message published, confirmed and acked."""
    count = Ledger(tmp_path, 1000, run=run).write()
    files = [path.read_text() for path in sorted(tmp_path.iterdir())]
    lines = [json.loads(line) for line in "".join(files).splitlines()]
    assert len(lines) == count
    assert [line["n"] for line in lines] == list(range(count))
    assert [line["t"] for line in lines] == sorted(line["t"] for line in lines)
    for kind, key in (("pub", "lsn"), ("ack", "i"), ("dlv", "i")):
        found = [line[key] for line in lines if line["e"] == kind]
        spans = found if kind == "pub" else [span for each in found for span in each]
        ids = [number for first, last in spans for number in range(first, last + 1)]
        assert sorted(ids) == list(range(1, 1001))
    confirmed = [(line["h"], *line["i"][0]) for line in lines if line["e"] == "cnf"]
    published = [(line["h"], *line["s"]) for line in lines if line["e"] == "pub"]
    assert confirmed == published
