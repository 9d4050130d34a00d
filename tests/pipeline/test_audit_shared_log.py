"""The ledgers of brokers that share a log: one audit says what it says of a single broker.

A broker that never was, with restarts, is played; then its epochs are given to three brokers that
lead in turn, each with the numbers, LSNs and boot lines that it would have written.
"""

from __future__ import annotations

import json
import random
from collections import defaultdict
from collections.abc import Callable, Sequence
from itertools import accumulate, pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.pipeline.worlds import Event, World, damage, write_files, write_sealed
from vouchmq.spark.audit import audit, cli
from vouchmq.spark.audit.result import Job, Result
from vouchmq.spark.ledger.shared_log import LEFT_OUT_LSNS
from vouchmq.store.replication.log_writer import EPOCH_LSNS

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.timeout(600)]

NAMES = ("a", "b", "c")
OF_MESSAGES = ("dlv", "ack", "req", "dle", "drp", "uns", "inv")


def played(seed: int, faults: Sequence[tuple[int, int, int]] = ()) -> list[Event]:
    """The lines of one broker with some restarts."""
    chance = random.Random(seed)
    world = World("one")
    world.follow(
        [(chance.randrange(100), chance.randrange(20), chance.randrange(20)) for _ in range(500)]
    )
    lines = damage(world.lines, faults)
    assert len({line["o"] for line in lines}) > 8
    return lines


class Split:
    """The lines of a broker as those of brokers that lead in turn; `lsn` says what one became."""

    def __init__(self, lines: Sequence[Event], seed: int) -> None:
        chance = random.Random(seed)
        self.brokers: dict[str, list[Event]] = {name: [] for name in NAMES}
        self.places: list[tuple[str, int]] = []
        epochs: dict[int, list[Event]] = defaultdict(list)
        for line in lines:
            epochs[line["o"]].append(line)
        highest = [
            max((line["lsn"][1] for line in epoch if line.get("lsn")), default=0)
            for epoch in epochs.values()
        ]
        self._highest = list(accumulate(highest, max))
        own: dict[str, tuple[int, int, int, int]] = {}
        before = ""
        for at, (number, epoch) in enumerate(epochs.items()):
            name = chance.choice(NAMES)
            self.places.append((name, own[name][0] + 1 if name in own else 1))
            said = epochs[number + 1][0]["prev_n"] if number + 1 in epochs else epoch[-1]["n"]
            for line in epoch:
                made = self._moved(line) | {"b": name, "o": self.places[-1][1]}
                if line["e"] == "boot":
                    made |= self._boot(line, at, own.get(name), is_dark=before != name)
                self.brokers[name].append(made)
            own[name] = (self.places[-1][1], said, self.lsn(self._highest[at]), at)
            before = name

    def lsn(self, lsn: int) -> int:
        """One that was given in the epoch of this index is so many further."""
        at = next(
            (at for at, high in enumerate(self._highest) if lsn <= high), len(self._highest) - 1
        )
        return lsn + at * EPOCH_LSNS if lsn else 0

    def _spans(self, spans: Sequence[Sequence[int]]) -> list[list[int]]:
        found: list[list[int]] = []
        for first, last in spans:
            for each in map(self.lsn, range(first, last + 1)):
                if found and each == found[-1][1] + 1:
                    found[-1][1] = each
                else:
                    found.append([each, each])
        return found

    def _moved(self, line: Event) -> Event:
        made = dict(line)
        if line.get("lsn"):
            made["lsn"] = [self.lsn(each) for each in line["lsn"]]
        if "wm" in line:
            made["wm"] = self.lsn(line["wm"])
        for key in ("i", "si"):
            if line.get(key) and (key == "si" or line["e"] in OF_MESSAGES):
                made[key] = self._spans(line[key])
        made.pop("s", None) if line["e"] == "dlv" else None
        return made

    def _boot(
        self, line: Event, at: int, own: tuple[int, int, int, int] | None, *, is_dark: bool
    ) -> Event:
        """As a leader writes it: of its own last epoch, and dark if others have led since."""
        # With a note of the start, which has an LSN too.
        reached = self._highest[at - 1] + (at - 1) * EPOCH_LSNS + 1 if at else 0
        told: Event = {"wm": reached, "msg": self.lsn(line["wm"])}
        if own is None:
            return told | {
                "w": "clean",
                "prev_o": None,
                "prev_n": None,
                "prev_lsn": None,
                "dark": 0,
            }
        previous = {"prev_o": own[0], "prev_n": own[1], "prev_lsn": own[2]}
        return told | previous | {"w": "crash", "dark": int(is_dark)}

    def write(self, directory: Path) -> list[Path]:
        """Sealed files, as brokers write them."""
        chance = random.Random(1)
        lines = [each for each in self.brokers.values() if each]
        return [
            path for each in lines for path in write_sealed(each, directory / each[0]["b"], chance)
        ]


def judged(spark: SparkSession, paths: Sequence[Path], out: Path, *, is_shared: bool) -> Result:
    job = Job(tuple(map(str, paths)), out, is_shared=is_shared)
    return audit.run(spark, job)


def copies(spark: SparkSession, out: Path, lsn: Callable[[int], int] = lambda lsn: lsn) -> Any:
    """What became of each copy."""
    rows = spark.read.parquet(str(out / "copies")).collect()
    kept = ("state", "cnf_ok", "n_dlv", "n_req", "n_ack", "n_dle", "n_drp", "early_confirm")
    return {(row["qid"], lsn(row["lsn"])): tuple(row[name] for name in kept) for row in rows}


def test_brokers_leave_out_so_many_lsns() -> None:
    assert LEFT_OUT_LSNS == EPOCH_LSNS


def test_three_ledgers_say_what_one_says(spark: SparkSession, tmp_path: Path) -> None:
    faults = [(2, 700, 3), (5, 320, 3), (14, 40, 0), (12, 40, 3)]
    lines = played(7, faults)
    write_files(lines, tmp_path / "one", [])
    wanted = judged(spark, [tmp_path / "one"], tmp_path / "wanted", is_shared=False)
    split = Split(lines, 3)
    split.write(tmp_path / "three")
    found = judged(spark, [tmp_path / "three"], tmp_path / "found", is_shared=True)
    assert len({name for name, _ in split.places}) == 3
    assert found.joined is not None
    assert [
        place for place, _ in sorted(found.joined.numbers.items(), key=lambda item: item[1])
    ] == split.places
    assert copies(spark, tmp_path / "found") == copies(spark, tmp_path / "wanted", split.lsn)
    assert found.findings == wanted.findings
    assert {"LOST", "redelivered_flag", "double_end", "orphan"} <= found.findings.keys()
    assert found.is_provable == wanted.is_provable
    assert list(found.facts.brokers) == ["a+b+c"]
    audit.write_summary(found, cli.FAIL_ON)
    told = json.loads((tmp_path / "found" / "summary.json").read_text())
    assert [(each["of"]["b"], each["of"]["o"]) for each in told["joined"]] == split.places
    assert [each["o"] for each in told["joined"]] == list(range(1, len(split.places) + 1))


def test_a_ledger_that_is_not_there_proves_nothing(spark: SparkSession, tmp_path: Path) -> None:
    split = Split(played(7), 3)
    split.write(tmp_path / "three")
    two = [tmp_path / "three" / name for name in ("a", "c")]
    found = judged(spark, two, tmp_path / "found", is_shared=True)
    # Each time that b has led between two others is such a time.
    gone = [name == "b" for name, _ in split.places]
    gaps = sum(was and not now for was, now in pairwise(gone))
    assert found.facts.unseen() == gaps > 1
    assert found.exit_code(("LOST",)) == 3


def test_lines_that_were_changed_are_found_in_their_own_files(
    spark: SparkSession, tmp_path: Path
) -> None:
    split = Split(played(7), 3)
    paths = split.write(tmp_path / "three")
    path = max(
        (each for each in paths if each.name.startswith("b")), key=lambda p: p.stat().st_size
    )
    lines = path.read_text().splitlines(keepends=True)
    at = next(at for at, line in enumerate(lines) if '"tag":1' in line)
    lines[at] = lines[at].replace('"tag":1', '"tag":2')
    path.write_text("".join(lines))
    found = judged(spark, [tmp_path / "three"], tmp_path / "found", is_shared=True)
    assert found.findings["tampered"] == 1
    rows = spark.read.parquet(str(tmp_path / "found" / "findings")).where("kind = 'tampered'")
    (row,) = rows.collect()
    assert path.name in row["detail"]
    assert split.places[row["o"] - 1] == ("b", int(path.name.split("-")[1]))
    assert found.exit_code(cli.FAIL_ON) == 1
