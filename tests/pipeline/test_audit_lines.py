"""Ledger files as they are found, read and put in order; what is known of epochs."""

from __future__ import annotations

import gzip
import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.pipeline.worlds import World, write_files
from vouchmq.spark.ledger import events, lines
from vouchmq.spark.ledger.facts import LINE_BITS, Broker, Epoch, Facts, merged
from vouchmq.spark.ledger.lines import LedgerError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def epoch(last: int, boot: Mapping[str, object] | None = None, end: str | None = None) -> Epoch:
    """An epoch all of whose lines are there."""
    told = {"w": "crash", "wm": 0, "prev_o": None, "prev_n": None, "prev_lsn": None, "dark": 0}
    return Epoch([[0, last]], 1, 2, {**told, **(boot or {})}, end)


class TestFiles:
    def test_a_directory_has_the_ledgers_below_it(self, tmp_path: Path) -> None:
        names = (
            "a/one@host-00000001-00000003.jsonl",
            "b/.one@host-00000002-00000001.jsonl.open",
            "b/one@host-00000001-00000004.jsonl.gz",
            "b/notes.jsonl",
            "b/.one@host.state",
        )
        for name in names:
            (tmp_path / name).parent.mkdir(exist_ok=True)
            (tmp_path / name).write_bytes(b"")
        found = lines.find([tmp_path])
        assert {path.name for path in found.closed} == {Path(names[0]).name, Path(names[2]).name}
        assert [path.name for path in found.open] == [Path(names[1]).name]

    def test_a_file_that_is_given_twice_is_read_once(self, tmp_path: Path) -> None:
        path = tmp_path / "one-00000001-00000001.jsonl"
        path.write_bytes(b"")
        assert lines.find([tmp_path, path, tmp_path / "." / path.name]).closed == (path.resolve(),)

    @pytest.mark.parametrize("there", [True, False])
    def test_what_holds_no_ledger_is_named(self, tmp_path: Path, there: bool) -> None:
        path = tmp_path / "somewhere"
        if there:
            path.mkdir()
        with pytest.raises(LedgerError, match=str(path)):
            lines.find([path])

    def test_an_open_file_is_read_up_to_its_last_whole_line(self, tmp_path: Path) -> None:
        path = tmp_path / ".one-00000001-00000001.jsonl.open"
        path.write_bytes(b'{"a":1}\n{"b":2}\n{"c"')
        (copy,), torn = lines.stage_open([path], tmp_path / "copies")
        assert copy.read_bytes() == b'{"a":1}\n{"b":2}\n'
        assert copy.name == "one-00000001-00000001.jsonl"
        assert torn == 1

    def test_broken_lines_are_named_by_file_and_line(self, tmp_path: Path) -> None:
        good = json.dumps({"b": "x", "o": 1, "n": 0, "t": 5, "e": "syn", "wm": 1, "us": 2})
        broken = ("{", "[]", good.replace('"syn"', '"new"'), good.replace('"wm": 1, ', ""))
        more = (good.replace('"n": 0', '"n": "0"'), good.replace('"n": 0', '"n": -1'), "\0\0")
        path = tmp_path / "one-00000001-00000001.jsonl"
        path.write_text("\n".join([good, *broken, "", *more, good]) + "\n")
        found = [2, 3, 4, 5, 7, 8, 9]
        assert lines.name_broken([path]) == [f"{path}:{number}" for number in found]
        assert lines.count_broken(path) == len(found)

    @pytest.mark.parametrize("name", ["l.jsonl", "l.jsonl.gz"])
    def test_lines_that_are_arrays_are_looked_for(self, tmp_path: Path, name: str) -> None:
        path = tmp_path / name
        pack = gzip.compress if name.endswith(".gz") else bytes
        for text, may in (
            (b"", False),
            (b'{"i":[[1,2]]}\n{"b":1}\n', False),
            (b'[{"b":1}]\n', True),
            (b'{"b":1}\n[]\n', True),
            (b'{"b":1}\n []\n', True),
        ):
            path.write_bytes(pack(text))
            assert lines.may_have_arrays(path) == may, text
        path.unlink()
        assert not lines.may_have_arrays(path), "removed by its age since it was read"

    def test_spark_and_we_agree_on_what_is_broken(
        self, spark: SparkSession, tmp_path: Path
    ) -> None:
        world = World("one")
        world.follow([(number, number * 7, number * 3) for number in range(60)])
        kinds: dict[str, dict[str, object]] = {}
        for line in world.lines:
            kinds.setdefault(line["e"], line)
        told = []
        for line in kinds.values():
            told.append(line)
            told += [{k: v for k, v in line.items() if k != key} for key in line]
            told.append({**line, "t": "soon"})
        path = tmp_path / "one-00000001-00000001.jsonl"
        path.write_text("".join(json.dumps(line) + "\n" for line in told))
        found = lines.read(spark, [path]).select("broken").collect()
        assert [row["broken"] for row in found] == [not lines.is_event(line) for line in told]


@pytest.mark.usefixtures("spark")
class TestSchema:
    def test_every_key_of_every_kind_is_in_the_schema(self) -> None:
        names = {key.name for key in events.KEYS}
        assert {key for kind in events.KINDS for key in (*kind.needed, *kind.optional)} <= names
        used = {key for kind in events.KINDS for key in (*kind.needed, *kind.optional)}
        assert names - used == {"b", "o", "n", "t", "e"}
        assert [field.name for field in events.schema()] == [key.name for key in events.KEYS]


class TestHoles:
    def test_a_whole_ledger_has_none(self) -> None:
        follows = {"prev_o": 1, "prev_n": 9, "prev_lsn": 50, "wm": 50}
        assert Broker({1: epoch(9), 2: epoch(5, follows)}).holes() == []

    def test_an_lsn_that_is_of_no_message_is_no_hole(self) -> None:
        follows = {"prev_o": 1, "prev_n": 9, "prev_lsn": 50, "wm": 57, "msg": 50}
        assert Broker({1: epoch(9), 2: epoch(5, follows)}).holes() == []

    def test_missing_lines_are_holes_where_they_are(self) -> None:
        broker = Broker({1: Epoch([[0, 3], [6, 9]], 1, 2, {"w": "clean"})})
        assert broker.holes() == [1 << LINE_BITS | 4]
        assert broker.missing(1) == 2

    def test_lines_that_the_broker_dropped_are_holes_but_not_missing(self) -> None:
        broker = Broker({1: Epoch([[0, 3], [6, 9]], 1, 2, {"w": "clean"}, None, [[6, 2]])})
        assert broker.holes() == [1 << LINE_BITS | 4]
        assert broker.missing(1) == 0

    @pytest.mark.parametrize(
        ("boot", "short"),
        [
            ({"prev_o": 1, "prev_n": 12, "prev_lsn": 50, "wm": 50}, 3),
            ({"prev_o": 1, "prev_n": 9, "prev_lsn": 50, "wm": 57, "msg": 51}, 0),
            ({"prev_o": 1, "prev_n": 9, "prev_lsn": 50, "wm": 51}, 0),
            ({"prev_o": 1, "prev_n": 9, "prev_lsn": 50, "wm": 50, "dark": 1}, 0),
            ({"prev_o": 0, "prev_n": 9, "prev_lsn": 50, "wm": 50}, 0),
            ({"prev_o": 1, "prev_n": 9, "prev_lsn": 50, "wm": 50, "w": "clean"}, 0),
        ],
        ids=[
            "its last file",
            "a tail that was not synced",
            "one of an older broker",
            "dark",
            "an epoch",
            "its end",
        ],
    )
    def test_what_an_epoch_lacks_at_its_end_is_a_hole_there(
        self, boot: dict[str, object], short: int
    ) -> None:
        broker = Broker({1: epoch(9), 2: epoch(5, boot)})
        assert broker.holes() == [1 << LINE_BITS | 10]
        assert broker.missing(1) == short

    def test_spans_are_merged(self) -> None:
        assert merged([[5, 9], [0, 2], [3, 3], [12, 14], [8, 10]]) == [[0, 3], [5, 10], [12, 14]]


class TestOneIdTwice:
    def test_an_epoch_that_goes_on_after_the_next_has_begun(self) -> None:
        follows = {"prev_o": 1, "prev_n": 7, "prev_lsn": 50}
        facts = Facts({"one": Broker({1: epoch(9), 2: epoch(5, follows)})})
        assert list(facts.overlaps()) == [("one", 1, 2)]

    def test_epochs_that_overlap_in_time_and_know_nothing_of_each_other(self) -> None:
        first, second = epoch(9), epoch(5)
        first.first_t, first.last_t, second.first_t, second.last_t = 10, 90, 50, 120
        facts = Facts({"one": Broker({1: first, 2: second})})
        assert list(facts.overlaps()) == [("one", 1, 2)]

    def test_a_clock_that_was_set_back_is_no_other_broker(self) -> None:
        first, second = epoch(9), epoch(5, {"prev_o": 1, "prev_n": 9, "prev_lsn": 50})
        first.first_t, first.last_t, second.first_t, second.last_t = 10, 90, 50, 120
        assert not list(Facts({"one": Broker({1: first, 2: second})}).overlaps())


def test_facts_survive_json() -> None:
    facts = Facts({"one": Broker({1: epoch(9), 12: epoch(3, end="stop")})}, ["expired"], [], 2, 1)
    assert Facts.from_json(json.loads(json.dumps(facts.to_json()))) == facts


def test_worlds_write_files_that_are_found(tmp_path: Path) -> None:
    world = World("one")
    world.follow([(13, 1, 1), (0, 3, 4), (13, 0, 0)])
    written = write_files(world.lines, tmp_path, [7, 3])
    assert set(lines.find([tmp_path]).closed) == set(written)
