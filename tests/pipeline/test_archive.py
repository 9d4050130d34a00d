"""`vouchmq archive`: what it refuses, what it keeps, and that a replay brings back every octet."""

from __future__ import annotations

import io
import itertools
import json
from collections.abc import Callable
from contextlib import closing
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from tests.integration.broker_process import Broker, BrokerProcess
from tests.pipeline.streams import declare, publish
from tests.waiting import LIMIT_S
from vouchmq.kit.bulk import BulkConnection, encode_properties
from vouchmq.spark.archive import cli
from vouchmq.spark.archive.archive import Archived, ArchivePlan, Waiting, claim, follow, start
from vouchmq.spark.command_line import Line, Stop, UsageError, counted, reason_of
from vouchmq.spark.replay.edit import Edit
from vouchmq.spark.replay.replay import Replayed, ReplayPlan, replay
from vouchmq.spark.sink.property_edit import edited

# A busy machine takes a minute to start a JVM and its Python workers.
pytestmark = pytest.mark.timeout(300)

Fresh = Callable[[str], str]
URL = "amqp://guest:guest@127.0.0.1:1/%2F"
TLS_URL = "amqps://guest:guest@127.0.0.1/%2F"


def plan_of(tmp_path: Path, url: str = URL, **more: Any) -> ArchivePlan:
    """An archive of a test."""
    given: dict[str, Any] = {
        "url": url,
        "queue": "orders",
        "to": tmp_path / "archive",
        "checkpoint": tmp_path / "checkpoint",
        "mode": "spool",
        "interval_s": None,
    }
    return ArchivePlan(**{**given, **more})


def archived(spark: SparkSession, plan: ArchivePlan) -> Archived:
    """Archive what there is."""
    asked = plan.check()
    claim(plan)
    with closing(Waiting(asked)) as waiting:
        return follow(start(spark, plan), waiting, Line(io.StringIO()), Stop())


def replayed(spark: SparkSession, url: str, source: Path, **more: Any) -> Replayed:
    """Replay an archive."""
    given: dict[str, Any] = {"edit": Edit("archive", "guest"), "cores": 2, **more}
    plan = ReplayPlan(source=source, url=url, **given)
    return replay(spark, plan, Line(io.StringIO()), Stop())


# What it takes and refuses, before Spark


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "arguments are required: --url, --queue, --to, --checkpoint"),
        (["--url", "http://x"], "option url: the value does not begin with amqp:// or amqps://"),
        (["--url", f"{URL}?retries=3"], "--url: url: no parameter 'retries'; there are "),
        (["--url", f"{TLS_URL}?cafile=/none.pem"], "--url: amqps://guest@127.0.0.1:5671/: cafile"),
        (["--queue", ""], "option queue: '' has an empty name"),
        (["--mode", "queue"], "invalid choice: 'queue'"),
        (["--once", "--interval", "3"], "not allowed with argument --once"),
        (["--interval", "soon"], "'soon' is not a whole number of at least 0"),
        (["--cores", "0"], "'0' is not a whole number of at least 1"),
        (["--memory", "lots"], "argument --memory: 'lots' is not a size such as 2g or 900m"),
        (["--memory", "1m"], "argument --memory: '1m': Spark needs at least 480m"),
        (["--to", ""], "argument --to: an empty path"),
        (["--checkpoint", ""], "argument --checkpoint: an empty path"),
        (["--option", "prefetch"], "'prefetch' is not of the form NAME=VALUE"),
        (["--option", "prefetch=no"], "option prefetch: 'no' is not a whole number"),
        (["--option", "startingOffsets=latest"], "option startingOffsets: of mode stream"),
        (["--partition-by", "hour"], "invalid choice: 'hour'"),
        (["--table", "csv"], "invalid choice: 'csv'"),
        (["--to", "{tmp}/file"], "--to: {tmp}/file is not a directory"),
        (["--checkpoint", "{tmp}/a/b"], "--checkpoint: must not be inside the archive"),
    ],
)
def test_bad_input_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], said: str
) -> None:
    (tmp_path / "file").touch()
    usual = ["--url", URL, "--queue", "q", "--to", f"{tmp_path}/a", "--checkpoint", f"{tmp_path}/c"]
    given = [each.replace("{tmp}", str(tmp_path)) for each in arguments]
    try:
        code = cli.main([*usual, *given] if arguments else [])
    except SystemExit as left:
        code = int(left.code or 0)
    error = capsys.readouterr().err
    assert code == 2
    assert error.count("\n") == 1
    assert error.startswith("vouchmq archive: ")
    assert said.replace("{tmp}", str(tmp_path)) in error
    assert not (tmp_path / "c").exists()


def test_a_broker_that_is_not_there_or_says_no(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], either: Broker, fresh: Fresh
) -> None:
    missing = fresh("queue")
    usual = ["--queue", missing, "--to", f"{tmp_path}/a", "--checkpoint", f"{tmp_path}/c", "--once"]
    assert cli.main(["--url", URL, *usual]) == 1
    assert capsys.readouterr().err == (
        "vouchmq archive: amqp://guest@127.0.0.1:1/: Connection refused\n"
    )
    for mode in ("spool", "stream"):
        assert cli.main(["--url", either.url, *usual, "--mode", mode]) == 2
        assert f"404 NOT_FOUND - no queue '{missing}'" in capsys.readouterr().err
    with BulkConnection.open(either.url, heartbeat_s=0) as connection:
        connection.channel().declare(missing)
        publish(either.url, missing, 0, 1)
        assert cli.main(["--url", either.url, *usual, "--mode", "stream"]) == 2
        assert "x-stream-offset" in capsys.readouterr().err
        assert connection.channel().delete(missing) == 1
    assert not (tmp_path / "c").exists()


def test_checkpoint_and_archive_belong_together(tmp_path: Path) -> None:
    """Else a sink that knows batch 5 would drop another query's batch 5, and its queue be acked."""
    mine = plan_of(tmp_path)
    claim(mine)
    claim(mine)
    other = tmp_path / "other"
    for plan, said in (
        (plan_of(tmp_path, queue="bills"), "archive of queue 'orders', not 'bills'"),
        (plan_of(tmp_path, mode="stream"), "archive of mode 'spool', not 'stream'"),
        (
            plan_of(tmp_path, checkpoint=other),
            f"is the archive of queue 'orders' .* {mine.checkpoint}",
        ),
    ):
        with pytest.raises(UsageError, match=said):
            claim(plan)
    assert not other.exists()
    # Killed between the two notes.
    (mine.to / "_archive.json").unlink()
    claim(mine)
    foreign = tmp_path / "foreign"
    (foreign / "_spark_metadata").mkdir(parents=True)
    with pytest.raises(UsageError, match="holds the table of another query"):
        claim(plan_of(tmp_path, to=foreign, checkpoint=other))
    (other / "offsets").mkdir(parents=True)
    with pytest.raises(UsageError, match="is that of another query"):
        claim(plan_of(tmp_path, to=tmp_path / "new", checkpoint=other))
    (mine.checkpoint / "archive.json").write_text("{")
    with pytest.raises(UsageError, match=r"archive\.json: Expecting"):
        claim(mine)


def test_options_that_are_given_win(tmp_path: Path) -> None:
    more = {"maxmessagespertrigger": "7", "dedupe": "none"}
    source = plan_of(tmp_path, options=more, cores=3).source
    assert source["maxmessagespertrigger"] == "7"
    assert "maxMessagesPerTrigger" not in source
    assert source["spoolLocation"] == str(tmp_path / "checkpoint" / "spool")
    assert source["numPartitions"] == "3"
    stream = plan_of(tmp_path, mode="stream").source
    assert stream["minPartitions"] == "2"
    assert "spoolLocation" not in stream


# What it says


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_progress_is_one_line_on_a_terminal_and_few_elsewhere() -> None:
    ticks = itertools.count(0.0, 0.15)
    terminal = Terminal()
    line = Line(terminal, clock=lambda: next(ticks))
    for text in ("first one", "too soon", "third"):
        line.show(text)
    line.clear()
    assert terminal.getvalue() == "\rfirst one\rthird    \r     \r"
    seconds = itertools.count(0, 4)
    plain = io.StringIO()
    line = Line(plain, clock=lambda: float(next(seconds)))
    for number in range(7):
        line.show(f"line {number}")
    line.clear()
    assert plain.getvalue() == "line 2\nline 5\n"


SPARK = "org.apache.spark.SparkException"
JAVA = "java.lang.RuntimeException"
UNREAD = "[FAILED_READ_FILE.NO_HINT] Encountered error while reading file:/a.parquet"


def java(call: str, *errors: str) -> str:
    """What py4j says of an exception and its causes."""
    stack = "\n\tat org.apache.A$.b(A.scala:1)\n\tat c.D.e(Unknown Source)"
    causes = "".join(f"\nCaused by: {each}{stack}\n\t... 23 more" for each in errors[1:])
    return f"An error occurred while calling {call}.\n: {errors[0]}{stack}{causes}\n"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("plain words", "plain words"),
        ("[PARSE_SYNTAX_ERROR] Syntax error at 'x'. SQLSTATE: 42601 (line 1)\n== SQL ==", None),
        (
            '[STREAM_FAILED] Query terminated: Traceback (most recent call last):\n  File "a"\n'
            "    raise\nvouchmq.kit.bulk_errors.BulkClosed: 404 NOT_FOUND - no queue 'q'\n"
            " SQLSTATE: 38000",
            "404 NOT_FOUND - no queue 'q'",
        ),
        (
            # Without a traceback, behind words of Spark's on the same line.
            "[STREAM_FAILED] Query [id = 1] terminated with exception: [PYTHON] Failed when it "
            "performs latestOffset: vouchmq.spark.source.consumer.ConsumerError: "
            "404 NOT_FOUND - no queue 'q'\n"
            " SQLSTATE: 38000 SQLSTATE: XXKST\n=== Streaming Query ===\nIdentifier: [id = 1]",
            "404 NOT_FOUND - no queue 'q'",
        ),
        ("x" * 1000, "x" * 399 + "…"),
        (
            # The tail of a query's error has lines that look like errors of Python.
            "[STREAM_FAILED] Query [id = 1] terminated: Traceback (most recent call last):\n"
            '  File "a"\n    raise\nvouchmq.spark.sink.SinkError: nacked: 3 of 5 rows\n'
            " SQLSTATE: XXKST\n=== Streaming Query ===\nIdentifier: [id = 1, runId = 2]\n"
            "Current Committed Offsets: {}",
            "nacked: 3 of 5 rows",
        ),
        (
            java("o157.parquet", f"{SPARK}: {UNREAD} footer. SQLSTATE: KD001"),
            "Encountered error while reading file:/a.parquet footer",
        ),
        (
            java("o1.x", f"{SPARK}: {UNREAD}.  SQLSTATE: KD001", f"{JAVA}: file:/a is not Parquet"),
            "Encountered error while reading file:/a.parquet: file:/a is not Parquet",
        ),
        (
            # The innermost one that says something else.
            java("o1.x", f"{SPARK}: one\nand two: 3", "a.B$C: why", f"{JAVA}: one", JAVA),
            "one and two: 3: why",
        ),
        (java("o1.x", JAVA, f"{JAVA}: [A.B] why. SQLSTATE: 1"), "why"),
        (java("o1.x", f"{SPARK}: a", f"{JAVA}: b: c", f"{JAVA}: {JAVA}: c", "x.Y: c"), "a: b: c"),
        (java("o1.x", JAVA), "Exception"),
        (
            java("o1.x", f"{SPARK}: {'w' * 900}", f"{JAVA}: {'c' * 100}"),
            f"{'w' * 297}…: {'c' * 100}",
        ),
        (
            java("o1.x", f"{SPARK}: {'w' * 900}", f"{JAVA}: {'c' * 900}"),
            f"{'w' * 99}…: {'c' * 297}…",
        ),
    ],
)
def test_reasons_are_one_line(text: str, reason: str | None) -> None:
    assert reason_of(Exception(text)) == (reason or "Syntax error at 'x'")
    assert reason_of(ValueError()) == "ValueError"


def test_numbers_in_words() -> None:
    assert counted(1, "batch") == "1 batch"
    assert counted(2000, "batch") == "2,000 batches"
    assert counted(0, "message") == "0 messages"


# With Spark


def properties(number: int, *, of_stream: bool = False) -> dict[str, Any]:
    """All that AMQP knows, different in each message."""
    nested: dict[str, Any] = {
        "price": Decimal(number).scaleb(-2),
        "list": [number, None, True, "ü", {"deep": [Decimal("0.5"), number]}],
        "bytes": bytearray(b"\x00\xff%d" % number),
    }
    headers = {f"h{number % 7}": number, "nested": nested, "when": datetime(2026, 1, 1, tzinfo=UTC)}
    return {
        "content_type": "application/json",
        "content_encoding": "gzip",
        "headers": headers if not of_stream else {f"h{number % 7}": number},
        "delivery_mode": 2,
        "priority": number % 10,
        "correlation_id": f"c{number}",
        "reply_to": "answers",
        "expiration": "3600000",
        "message_id": f"m{number}",
        "timestamp": datetime.fromtimestamp(1_770_000_000 + 60 * number, UTC),
        "message_type": "order",
        "user_id": "guest",
        "app_id": "tests",
    }


def test_what_is_no_parquet_is_told_by_its_file(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "part-0.parquet").write_bytes(b"PAR1, and then something else")
    with pytest.raises(UsageError) as raised:
        replayed(spark, URL, tmp_path)
    text = str(raised.value)
    assert text.startswith(f"--from: {tmp_path}: Encountered error while reading file")
    assert f"{tmp_path}/part-0.parquet is not a Parquet file." in text
    assert "\n" not in text


def test_files_of_one_name_are_all_replayed(
    spark: SparkSession, vouch: BrokerProcess, fresh: Fresh, tmp_path: Path
) -> None:
    """Directories that Spark makes by a column hold files of the same names."""
    queue = fresh("queue")
    source = tmp_path / "lake [q] 100% {x}*"
    for day in range(3):
        place = source / f"at=0{day}%3A00" / "part 0%.parquet"
        place.parent.mkdir(parents=True)
        rows = [
            {
                "queue": "q",
                "offset": number,
                "exchange": "",
                "routing_key": "k",
                "body": b"%d" % number,
                "properties_raw": b"\0\0",
            }
            for number in range(250 * day, 250 * (day + 1))
        ]
        pq.write_table(pa.Table.from_pylist(rows), place)
    way: dict[str, Any] = {"exchange": "", "routing_key": queue}
    with BulkConnection.open(vouch.url, heartbeat_s=0) as connection:
        connection.channel().declare(queue)
        # Whole files in a slice, and parts of them.
        for more in ({}, {"rate": 2000}, {"rate": 10, "where": "offset % 50 = 0"}):
            for in_order in (False, True):
                done = replayed(spark, vouch.url, source, in_order=in_order, **way, **more)
                wanted = [*range(0, 750, 50 if "where" in more else 1)]
                assert (done.messages, done.total) == (len(wanted), len(wanted))
                got = [int(body) for *_, body in drained(connection, queue, len(wanted))]
                assert (got if in_order else sorted(got)) == wanted
        connection.channel().delete(queue)


def test_an_archive_in_a_directory_with_odd_characters(
    spark: SparkSession, vouch: BrokerProcess, fresh: Fresh, tmp_path: Path
) -> None:
    queue, back = fresh("queue"), fresh("queue")
    rows = [("", queue, encode_properties(properties(n * 100)), b"%d" % n) for n in range(50)]
    with BulkConnection.open(vouch.url, heartbeat_s=0) as connection:
        channel = connection.channel()
        channel.declare(queue)
        channel.declare(back)
        channel.confirm_select()
        assert channel.publish_many(rows).confirmed == 50
        plan = plan_of(tmp_path / "arch [q] 100% {x}", vouch.url, queue=queue, by_day=True)
        assert archived(spark, plan).messages == 50
        # What is not in the sink's log does not count.
        committed = next(plan.to.rglob("*.parquet"))
        committed.with_name("part-9.parquet").write_bytes(committed.read_bytes())
        done = replayed(spark, vouch.url, plan.to, exchange="", routing_key=back, in_order=True)
        assert (done.messages, done.total) == (50, 50)
        got = drained(connection, back, 50)
        channel.delete(queue)
        channel.delete(back)
    assert [int(body) for *_, body in got] == list(range(50))


def drained(
    connection: BulkConnection, queue: str, count: int
) -> list[tuple[str, str, bytes, bytes]]:
    """The messages of a queue, in order; acked."""
    channel = connection.channel()
    channel.qos(5000)
    channel.consume(queue)
    found = channel.wait(count, LIMIT_S)
    channel.ack(found[-1][0], multiple=True)
    channel.close()
    return [each[2:] for each in found]


@pytest.mark.parametrize(
    "either", ["vouch", pytest.param("rabbit", marks=pytest.mark.campaign)], indirect=True
)
def test_every_octet_comes_back_in_order(
    spark: SparkSession, either: Broker, fresh: Fresh, tmp_path: Path
) -> None:
    """3,000 messages: queue → spool → Parquet → exchange → queue."""
    queue, back, exchange = fresh("queue"), fresh("queue"), fresh("exchange")
    sent = [
        (exchange, f"key.{n % 5}", encode_properties(properties(n)), b"%d " % n + bytes(n % 50))
        for n in range(3000)
    ]
    with BulkConnection.open(either.url, heartbeat_s=0) as connection:
        channel = connection.channel()
        channel.exchange_declare(exchange, "topic")
        channel.declare(queue)
        channel.declare(back)
        channel.bind(queue, exchange, "#")
        channel.confirm_select()
        assert channel.publish_many(sent).confirmed == 3000
        plan = plan_of(tmp_path, either.url, queue=queue, by_day=True)
        assert archived(spark, plan).messages == 3000
        assert channel.declare_passive(queue)[0] == 0
        days = [path.name for path in sorted(plan.to.glob("archived_day=*"))]
        assert days == [
            "archived_day=2026-02-02",
            "archived_day=2026-02-03",
            "archived_day=2026-02-04",
        ]
        # The exchange's other queue gets them again; the first one is out of the way.
        channel.delete(queue)
        channel.bind(back, exchange, "#")
        done = replayed(
            spark,
            either.url,
            plan.to,
            in_order=True,
            cores=1,
            edit=Edit("archive", "guest", keeps_expiration=True),
        )
        assert (done.messages, done.total) == (3000, 3000)
        got = drained(connection, back, 3000)
        channel.delete(back)
        channel.exchange_delete(exchange)
    assert [edited(raw, drop=[b"x-replayed-from"]) for _, _, raw, _ in got] == [
        row[2] for row in sent
    ]
    assert [(x, key, body) for x, key, _, body in got] == [
        (x, key, body) for x, key, _, body in sent
    ]
    assert all(b"x-replayed-fromS\x00\x00\x00\x07archive" in raw for _, _, raw, _ in got)


def test_a_stream_is_archived_and_replayed(
    spark: SparkSession, vouch: BrokerProcess, fresh: Fresh, tmp_path: Path
) -> None:
    stream, back = fresh("stream"), fresh("queue")
    declare(vouch.url, stream)
    rows = [("", stream, encode_properties(properties(n)), b"%d" % n) for n in range(2000)]
    with BulkConnection.open(vouch.url, heartbeat_s=0) as connection:
        channel = connection.channel()
        channel.confirm_select()
        assert channel.publish_many(rows).confirmed == 2000
        channel.declare(back)
        plan = plan_of(
            tmp_path,
            vouch.url,
            queue=stream,
            mode="stream",
            options={"maxMessagesPerTrigger": "900"},
        )
        done = archived(spark, plan)
        assert (done.messages, done.batches) == (2000, 3)
        assert archived(spark, plan).messages == 0
        # Some of it, at a rate, in two runs: the first is stopped.
        checkpoint = tmp_path / "replay"
        more: dict[str, Any] = {
            "exchange": "",
            "routing_key": back,
            "where": "offset >= 700 and archived_day is not null",
            "in_order": True,
            "rate": 2000,
            "checkpoint": checkpoint,
            "edit": Edit("archive", "guest", keeps_expiration=False),
        }
        stopping = ReplayPlan(source=plan.to, url=vouch.url, **more)
        stop = Stop()
        stop.count = 1
        assert replay(spark, stopping, Line(io.StringIO()), stop).messages == 0
        assert replayed(spark, vouch.url, plan.to, **more).messages == 1300
        again = replayed(spark, vouch.url, plan.to, **more)
        assert (again.messages, again.before) == (0, 1300)
        got = drained(connection, back, 1300)
        assert [int(body) for *_, body in got] == list(range(700, 2000))
        with pytest.raises(UsageError, match=r"--checkpoint: .* exchange '', not 'other'"):
            replayed(spark, vouch.url, plan.to, **{**more, "exchange": "other"})
        with pytest.raises(UsageError, match="--where"):
            replayed(spark, vouch.url, plan.to, where="no_such_column = 1")
        channel.delete(back)
    state = json.loads((checkpoint / "replay.json").read_text())
    assert state["done"] == 5
    first = edited(rows[700][2], without=1 << 8)
    assert edited(got[0][2], drop=[b"x-replayed-from"]) == first
