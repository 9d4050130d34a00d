"""`vouchmq replay`: what it changes in a message, how fast, where it goes on, what it refuses."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from tests.integration.broker_process import Broker, BrokerProcess
from vouchmq.kit.bulk import BulkConnection, decode_properties, encode_properties
from vouchmq.spark.archive.files import Files, FilesError, files_of_log, path_of, pattern_of
from vouchmq.spark.command_line import UsageError
from vouchmq.spark.replay import cli
from vouchmq.spark.replay.edit import Edit, EditError
from vouchmq.spark.replay.replay import ReplayError, ReplayPlan, begun, keep, publish
from vouchmq.spark.replay.slices import Resume, Slice, Unit

URL = "amqp://guest:guest@127.0.0.1:1/%2F"
TLS_URL = "amqps://guest:guest@127.0.0.1/%2F"


def on(edit: Edit, *properties: dict[str, Any] | bytes | None) -> list[Any]:
    """What is published for messages with these properties."""
    raws = [encode_properties(each) if isinstance(each, dict) else each for each in properties]
    size = len(raws)
    made = edit.on(
        pa.array(raws, pa.binary()),
        pa.array(["orders"] * size, pa.string()),
        pa.array(list(range(100, 100 + size)), pa.int64()),
    )
    return [decode_properties(each) for each in made.to_pylist()]


def test_headers_of_the_broker_go_and_one_comes_in() -> None:
    headers = {
        "x-stream-offset": 5,
        "mine": "x-stream-offset",
        "x-queue-seq": 7,
        "x-queue-id": 1,
        "x-delivery-count": 2,
        "x-replayed-from": "an older archive",
        "x-death": [{"queue": "q", "count": 1}],
        "x-first-death-queue": "q",
    }
    given = {"headers": headers, "message_id": "m", "user_id": "guest", "expiration": "500"}
    edit = Edit("orders-2026", "guest")
    (made,) = on(edit, given)
    assert made.headers == {
        "mine": "x-stream-offset",
        "x-death": [{"queue": "q", "count": 1}],
        "x-first-death-queue": "q",
        "x-replayed-from": "orders-2026",
    }
    assert (made.message_id, made.user_id, made.expiration) == ("m", "guest", None)
    edit = Edit("a", "other", drops_death=True, keeps_expiration=True)
    made, bare = on(edit, given, None)
    assert made.headers == {"mine": "x-stream-offset", "x-replayed-from": "a"}
    assert (made.user_id, made.expiration) == (None, "500")
    assert bare.headers == {"x-replayed-from": "a"}


def test_a_publishers_own_header_stays_whatever_its_name() -> None:
    """What a broker adds are numbers."""
    own = {"x-queue-id": "blue", "x-delivery-count": "2", "x-stream-offset": None, "x-queue-seq": 7}
    (made,) = on(Edit("a", "guest"), {"headers": own})
    del own["x-queue-seq"]
    assert made.headers == {**own, "x-replayed-from": "a"}


def test_properties_that_are_none_are_told_with_their_place() -> None:
    with pytest.raises(EditError, match=r"at offset 101 of queue 'orders' .* end at 12; leave it"):
        on(Edit("a", "guest"), {}, b"\x80\x00\x09x")


class Clock:
    """A clock that only sleeping moves."""

    def __init__(self) -> None:
        self.now_s = 1000.0
        self.slept: list[float] = []

    def now(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.slept.append(round(seconds, 6))
        self.now_s += seconds


def test_a_rate_is_kept_batch_by_batch() -> None:
    clock = Clock()
    raws = pa.array([b"\0\0"] * 50, pa.binary())
    queues = pa.array(["q"] * 50, pa.string())
    batch = (raws, queues, pa.array([None] * 50, pa.int64()))

    def batches() -> Any:
        yield batch
        yield batch
        # A little late is made up for, a long halt is not.
        clock.now_s += 0.7
        yield batch
        yield batch
        clock.now_s += 60.0
        yield batch
        yield batch
        yield batch

    paced = Edit("a", "guest").at_rate(100.0, clock.now, clock.sleep)
    assert [len(each) for each in paced(batches())] == [50] * 7
    assert clock.slept == [0, 0.5, 0, 0.3, 0, 0.5, 0.5]
    unpaced = Edit("a", "guest").at_rate(None, clock.now, clock.sleep)
    assert [len(each) for each in unpaced(iter([batch]))] == [50]


def log_file(*names: str, delete: bool = False) -> str:
    """A file of a sink's log."""
    action = "delete" if delete else "add"
    entries = [json.dumps({"path": f"file:///x/{name}", "action": action}) for name in names]
    return "\n".join(["v1", *entries])


def test_files_count_in_the_order_of_the_log() -> None:
    texts = {
        "0": log_file("z"),
        "1": log_file("y", "b"),
        "2.compact": log_file("z", "y", "b", "d=1/c"),
        "3": log_file("a"),
        "10": log_file("f"),
        "11": log_file("a", delete=True),
        ".12.tmp": log_file("not this"),
    }
    assert files_of_log(texts) == ["z", "y", "b", "c", "f"]
    assert files_of_log({}) == []
    assert files_of_log({"0": log_file("a%20b%2525", "ü")}) == ["a b%25", "ü"]


def url_of(path: Path) -> str:
    """As Spark calls a file."""
    return f"file:{quote(str(path), safe='/=')}"


def test_files_that_share_a_base_name_are_several(tmp_path: Path) -> None:
    source = tmp_path / "a [b] 100% {x}*"
    paths = [source / name for name in ("day=1/part 0", "day=0/part 0", "part 0", "day=0/10%3A30")]
    for path in paths:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    files = Files(source)
    names = [files.name_of(url_of(path)) for path in paths]
    assert names == ["day=1/part 0", "day=0/part 0", "part 0", "day=0/10%3A30"]
    assert [files.url(name) for name in names] == [url_of(path) for path in paths]
    assert files.in_order() == sorted(names)
    assert files.pattern == f"{tmp_path}/a \\[b\\] 100% \\{{x\\}}\\*"
    assert files.patterns(names[:2]) == [f"{files.pattern}/{name}" for name in names[:2]]
    assert files.name_of(url_of(paths[0])) == names[0]
    with pytest.raises(FilesError, match="have the name part 0"):
        files.name_of(url_of(paths[2]).replace("file:", "file://"))


def test_files_that_a_sink_has_logged_have_their_base_names(tmp_path: Path) -> None:
    """So they were called in checkpoints of old, also in directories by the day."""
    log = tmp_path / "[q]" / "_spark_metadata"
    log.mkdir(parents=True)
    (log / "0").write_text(log_file("day=1/b%20b", "day=0/a"))
    files = Files(tmp_path / "[q]")
    assert files.name_of(url_of(tmp_path / "[q]" / "day=0" / "a")) == "a"
    assert files.name_of(url_of(tmp_path / "[q]" / "day=1" / "b b")) == "b b"
    assert files.in_order() == ["b b", "a"]
    # Spark finds the log only so.
    assert files.pattern == str(tmp_path / "[q]")
    with pytest.raises(FilesError, match=r"two files of .* have the name a"):
        files.name_of(url_of(tmp_path / "[q]" / "day=1" / "a"))


def test_paths_as_spark_calls_them(tmp_path: Path) -> None:
    urls = ("file:/a%20b/%25/ü", "file:///a%20b/%25/ü", "/a b/%25/ü")
    assert [path_of(url) for url in urls] == ["/a b/%/ü"] * 3
    there = tmp_path / "a?[b]{c}*\\"
    there.touch()
    assert pattern_of(str(there)) == f"{tmp_path}/a\\?\\[b\\]\\{{c\\}}\\*\\\\"
    assert pattern_of(f"{tmp_path}/b*") == f"{tmp_path}/b*"


def plan_of(tmp_path: Path, **more: Any) -> ReplayPlan:
    given: dict[str, Any] = {"source": tmp_path, "url": URL, "edit": Edit("a", "guest"), **more}
    return ReplayPlan(**given)


def test_how_far_it_has_come_is_kept(tmp_path: Path) -> None:
    assert begun(plan_of(tmp_path)).done == 0
    plan = plan_of(tmp_path, checkpoint=tmp_path / "c", rate=50)
    assert begun(plan) == Resume(plan.task, 500)
    keep(plan, begun(plan).after([Unit("f", 0, 500), Unit("f", 1, 500)], 1))
    # Another rate is no other replay, and units stay as they were.
    faster = plan_of(tmp_path, checkpoint=tmp_path / "c")
    assert (begun(faster).done, begun(faster).chunk_rows) == (1, 500)
    for more, said in (
        ({"exchange": "x"}, "exchange None, not 'x'"),
        ({"where": "offset > 1"}, "where None, not 'offset > 1'"),
        ({"in_order": True}, "order False, not True"),
    ):
        with pytest.raises(UsageError, match=said):
            begun(plan_of(tmp_path, checkpoint=tmp_path / "c", **more))
    (tmp_path / "c" / "replay.json").write_text("[]")
    with pytest.raises(UsageError, match="is not the checkpoint of a replay"):
        begun(plan)
    with pytest.raises(UsageError, match="holds something else"):
        begun(plan_of(tmp_path, checkpoint=tmp_path))
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match="is not a directory"):
        begun(plan_of(tmp_path, checkpoint=tmp_path / "file"))


def test_a_rate_makes_small_slices_and_few_tasks(tmp_path: Path) -> None:
    def shape(rate: int | None) -> tuple[int, int, str]:
        plan = plan_of(tmp_path, rate=rate, cores=4)
        rows = plan.session["spark.sql.execution.arrow.maxRecordsPerBatch"]
        return plan.slice_rows, plan.tasks, rows

    assert shape(None) == (50_000, 4, "10000")
    assert shape(1) == (100, 1, "1")
    assert shape(1000) == (10_000, 1, "100")
    assert shape(12_000) == (50_000, 3, "400")
    assert plan_of(tmp_path, in_order=True).sink["onNack"] == "fail"
    assert "onNack" not in plan_of(tmp_path).sink
    assert plan_of(tmp_path, options={"ONNACK": "retry:9"}, in_order=True).sink["ONNACK"]
    assert "guest:guest" not in repr(plan_of(tmp_path))


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "arguments are required: --from, --url"),
        (["--from", "{tmp}/nothing"], "--from: {tmp}/nothing is not a directory"),
        (["--from", "{tmp}/empty"], "--from: {tmp}/empty holds no Parquet files"),
        (["--url", "localhost"], "--url: "),
        (["--url", f"{TLS_URL}?certfile=/none.pem"], "certfile or keyfile: [Errno 2] "),
        (["--from", ""], "argument --from: an empty path"),
        (["--checkpoint", ""], "argument --checkpoint: an empty path"),
        (["--memory", "2gb"], "argument --memory: '2gb' is not a size such as 2g or 900m"),
        (["--rate", "0"], "argument --rate: '0' is not a whole number of at least 1"),
        (["--exchange", "x" * 300], "argument --exchange: longer than 255 octets"),
        (
            ["--option", "mandatory=perhaps"],
            "option mandatory: 'perhaps' is neither true nor false",
        ),
        (["--option", "queue=q"], "option queue: only for read"),
        (["--sort"], "unrecognized arguments: --sort"),
    ],
)
def test_bad_input_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], said: str
) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "archive").mkdir()
    (tmp_path / "archive" / "part-0.parquet").touch()
    given = [each.replace("{tmp}", str(tmp_path)) for each in arguments]
    usual = ["--from", f"{tmp_path}/archive", "--url", URL]
    try:
        code = cli.main([*usual, *given] if arguments else [])
    except SystemExit as left:
        code = int(left.code or 0)
    error = capsys.readouterr().err
    assert code == 2
    assert error.count("\n") == 1
    assert error.startswith("vouchmq replay: ")
    assert said.replace("{tmp}", str(tmp_path)) in error


def test_a_broker_that_is_not_there_or_has_no_such_exchange(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], either: Broker
) -> None:
    (tmp_path / "part-0.parquet").touch()
    usual = ["--from", str(tmp_path), "--exchange", "no-such-exchange"]
    assert cli.main([*usual, "--url", URL]) == 1
    assert "127.0.0.1:1/: Connection refused" in capsys.readouterr().err
    assert cli.main([*usual, "--url", either.url]) == 2
    assert "404 NOT_FOUND - no exchange 'no-such-exchange'" in capsys.readouterr().err


def test_a_slice_of_other_rows_than_were_counted_fails(
    spark: SparkSession, vouch: BrokerProcess, fresh: Callable[[str], str]
) -> None:
    queue = fresh("queue")
    sink = {"url": vouch.url, "routingKey": queue}
    with BulkConnection.open(vouch.url, heartbeat_s=0) as connection:
        connection.channel().declare(queue)
        rows = spark.range(5).selectExpr("cast(id as string) body")
        publish(rows, Slice((Unit("a", 0, 2), Unit("b", 0, 3))), sink)
        with pytest.raises(ReplayError, match=r"^5 messages published of a slice in which 6 had"):
            publish(rows, Slice((Unit("a", 0, 6),)), sink)
        with pytest.raises(ReplayError, match=r"^0 messages published"):
            publish(rows.where("body is null"), Slice((Unit("a", 0, 6),)), sink)
        assert connection.channel().delete(queue) == 10
