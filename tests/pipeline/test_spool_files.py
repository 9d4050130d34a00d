"""The spool directory: what is durable when, who owns it, what a dead process leaves."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from vouchmq.spark.source import spool
from vouchmq.spark.source.offsets import Places
from vouchmq.spark.source.spool import Spool, SpoolError, directory_of

SCHEMA = pa.schema([pa.field("n", pa.int64()), pa.field("text", pa.string())])


def batch(*numbers: int) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict(
        {"n": list(numbers), "text": [str(each) for each in numbers]}, schema=SCHEMA
    )


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path / "lake" / "spool"


@pytest.fixture
def opened(directory: Path) -> Spool:
    made = Spool(directory)
    made.open("")
    return made


class TestFiles:
    def test_tasks_come_back(self, opened: Spool) -> None:
        places = Places()
        places.add(7, 1, 3)
        opened.write(12, [[batch(1), batch(2)], [batch(3)]], SCHEMA, places)
        path = opened.directory / "000000000012.arrow"
        assert opened.files() == [12]
        assert spool.tasks_of(path) == [[0, 1], [2]]
        assert spool.places_in(path) == places
        assert spool.column_of(path, "n") == [1, 2, 3]
        assert spool.column_of(path, "none") == []
        (first, second), (third,) = (
            list(spool.read(path, numbers, ("text",))) for numbers in spool.tasks_of(path)
        )
        assert [each.to_pylist() for each in (first, second, third)] == [
            [{"text": "1"}],
            [{"text": "2"}],
            [{"text": "3"}],
        ]
        # Spark compares schemas, and metadata is none of its business.
        assert first.schema.metadata is None

    def test_nothing_has_its_name_before_it_is_synced(
        self, opened: Spool, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        steps: list[str] = []
        real = os.fsync

        def fsync(descriptor: int) -> None:
            target = Path(f"/proc/self/fd/{descriptor}").readlink().name
            has_name = (opened.directory / "000000000001.arrow").exists()
            steps.append(f"{target} {'named' if has_name else 'unnamed'}")
            real(descriptor)

        monkeypatch.setattr(os, "fsync", fsync)
        opened.write(1, [[batch(1)]], SCHEMA, Places())
        assert steps == ["000000000001.arrow.tmp unnamed", "spool named"]

    @pytest.mark.parametrize("call", ["fsync", "rename"])
    def test_what_fails_leaves_nothing(
        self, opened: Spool, monkeypatch: pytest.MonkeyPatch, call: str
    ) -> None:
        def fail(*_: Any) -> None:
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(os if call == "fsync" else Path, call, fail)
        with pytest.raises(SpoolError, match=r"000000000001\.arrow could not be .*No space left"):
            opened.write(1, [[batch(1)]], SCHEMA, Places())
        assert opened.files() == []
        assert not list(opened.directory.glob("*.tmp"))

    def test_other_names_are_not_files_of_it(self, opened: Spool) -> None:
        for name in ("000000000003.arrow.tmp", "x.arrow", "3.arrow", "notes.txt"):
            (opened.directory / name).write_text("?")
        opened.write(2, [[batch(1)]], SCHEMA, Places())
        assert opened.files() == [2]
        opened.clear_unfinished()
        assert not list(opened.directory.glob("*.tmp"))
        assert (opened.directory / "notes.txt").exists()

    def test_a_missing_a_torn_and_a_foreign_file(self, opened: Spool) -> None:
        path = opened.path(1)
        with pytest.raises(SpoolError, match="is missing: was it deleted"):
            spool.tasks_of(path)
        path.write_bytes(b"ARROW1\0\0torn")
        with pytest.raises(SpoolError, match="cannot be read"):
            spool.tasks_of(path)
        with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, SCHEMA) as writer:
            writer.write_batch(batch(1))
        with pytest.raises(SpoolError, match="not written by this source"):
            spool.tasks_of(path)

    def test_a_column_that_was_not_spooled(self, opened: Spool) -> None:
        opened.write(1, [[batch(1)]], SCHEMA, Places())
        with pytest.raises(SpoolError, match="without column body: run the query with its old"):
            list(spool.read(opened.path(1), [0], ("n", "body")))


class TestOwner:
    def test_the_checkpoint_that_has_read_from_it(self, directory: Path, opened: Spool) -> None:
        opened.claim()
        opened.close()
        again = Spool(directory)
        again.open(opened.identity)
        assert again.identity == opened.identity
        again.close()
        owner = json.loads((directory / "owner.json").read_text())
        assert owner["claimed"]
        assert owner["pid"] == os.getpid()

    def test_another_checkpoint(self, opened: Spool, directory: Path) -> None:
        opened.claim()
        opened.close()
        with pytest.raises(SpoolError, match=r"belongs to another checkpoint.*identity"):
            Spool(directory).open("0123456789ab")

    def test_a_new_checkpoint(self, opened: Spool, directory: Path) -> None:
        opened.claim()
        opened.close()
        with pytest.raises(SpoolError, match=rf"another checkpoint.*process {os.getpid()} on"):
            Spool(directory).open("")

    def test_one_that_nobody_has_read_from_may_be_taken_over(
        self, opened: Spool, directory: Path
    ) -> None:
        """The checkpoint died before it had an offset; or it is another one."""
        opened.close()
        second = Spool(directory)
        second.open("")
        second.close()
        assert second.identity != opened.identity
        with pytest.raises(SpoolError, match="belongs to another checkpoint"):
            Spool(directory).open(opened.identity)

    def test_a_directory_that_is_not_there_any_more(self, directory: Path) -> None:
        with pytest.raises(SpoolError, match=r"owner\.json is missing.*is the right directory"):
            Spool(directory).open("0123456789ab")

    def test_owner_json_is_broken(self, opened: Spool, directory: Path) -> None:
        opened.close()
        (directory / "owner.json").write_text("{}")
        with pytest.raises(SpoolError, match=r"owner\.json cannot be read"):
            Spool(directory).open("")

    def test_one_writer_at_a_time(
        self, opened: Spool, directory: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(spool, "_LOCK_WAIT_S", 0.2)
        with pytest.raises(SpoolError, match=rf"being written to by process {os.getpid()}"):
            Spool(directory).open(opened.identity)
        opened.close()
        Spool(directory).open("")

    def test_a_directory_that_cannot_be_made(self, tmp_path: Path) -> None:
        (tmp_path / "file").write_text("")
        with pytest.raises(SpoolError, match=r"spool /.*/file/spool: Not a directory"):
            Spool(tmp_path / "file" / "spool").open("")


def test_where_a_spool_may_be() -> None:
    assert directory_of("/lake/a b") == Path("/lake/a b")
    assert directory_of("file:///lake/a%20b") == Path("/lake/a b")
    for location in ("s3://bucket/spool", "hdfs:/spool", "file://host/spool"):
        with pytest.raises(SpoolError, match="option spoolLocation"):
            directory_of(location)
