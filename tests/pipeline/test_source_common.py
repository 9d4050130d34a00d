"""The class that Spark knows: who serves which call, and what is refused before anything opens."""

from __future__ import annotations

import pickle
import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import pytest
from pyspark.sql.datasource import CaseInsensitiveDict

from tests.pipeline.row_schemas import Schema, Spelt
from vouchmq.spark import register
from vouchmq.spark.columns import SCHEMA_DDL, SchemaError
from vouchmq.spark.data_source import AmqpDataSource, SpeculativeAmqpDataSource
from vouchmq.spark.options import OptionError
from vouchmq.spark.sink.sink import BatchWriter, StreamWriter
from vouchmq.spark.source.queue_mode import QueueReader
from vouchmq.spark.source.spool_mode import SpoolReader
from vouchmq.spark.source.streams.mode import StreamModeReader

# Nobody listens there: whatever connects fails.
READ = {"url": "amqp://guest:s3cret@127.0.0.1:1/", "queue": "q"}
WRITE = {"url": "amqp://guest:s3cret@127.0.0.1:1/", "exchange": "x"}
BODY: Any = Schema(Spelt("body", "binary"))


def source(
    options: dict[str, str], kind: type[AmqpDataSource] = AmqpDataSource, **more: str
) -> AmqpDataSource:
    """As Spark makes it: option names in lower case, and pickled on its way."""
    made = kind(CaseInsensitiveDict(options | more))
    copied: AmqpDataSource = pickle.loads(pickle.dumps(made))  # noqa: S301
    return copied


def test_importing_the_package_imports_neither_spark_nor_arrow() -> None:
    code = "import sys, vouchmq.spark; print({'pyspark', 'pyarrow', 'pamqp'} & set(sys.modules))"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout == "set()\n"


def test_executors_need_no_library_of_the_command_line() -> None:
    """Whoever runs a source or a sink on a cluster installs few packages there."""
    code = (
        "import sys, vouchmq.kit, vouchmq.kit.bulk, vouchmq.spark.data_source\n"
        "import vouchmq.spark.source.queue_mode, vouchmq.spark.source.streams.mode\n"
        "import vouchmq.spark.source.spool_mode, vouchmq.spark.sink.sink\n"
        "print({'jinja2', 'matplotlib', 'msgspec', 'rich', 'structlog'} & set(sys.modules))"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout == "set()\n"


class Session:
    """What `register` looks at of a session."""

    def __init__(self, speculation: str | None) -> None:
        self.registered: list[type] = []
        given = {} if speculation is None else {"spark.speculation": speculation}
        conf = SimpleNamespace(get=given.get)
        self.sparkContext = SimpleNamespace(getConf=lambda: conf, master="local[2]")
        self.dataSource = SimpleNamespace(register=self.registered.append)


@pytest.mark.parametrize(
    ("speculation", "kind"),
    [
        (None, AmqpDataSource),
        ("false", AmqpDataSource),
        ("TRUE", SpeculativeAmqpDataSource),
    ],
)
def test_a_session_that_speculates_gets_its_own_class(
    speculation: str | None, kind: type[AmqpDataSource]
) -> None:
    session: Any = Session(speculation)
    register(session)
    assert session.registered == [kind]
    assert kind.name() == "amqp"


def test_tasks_that_run_twice_at_once_need_ids() -> None:
    twice = source(WRITE, SpeculativeAmqpDataSource, messageId="none")
    for writer in (twice.writer, twice.streamWriter):
        with pytest.raises(OptionError, match=r"option messageId: none with spark\.speculation"):
            writer(BODY, False)
    assert isinstance(source(WRITE, SpeculativeAmqpDataSource).writer(BODY, False), BatchWriter)
    assert isinstance(source(WRITE, messageId="none").writer(BODY, False), BatchWriter)


def test_each_mode_has_its_reader(tmp_path: Any) -> None:
    spool = source(READ, spoolLocation=str(tmp_path)).streamReader(BODY)
    assert isinstance(spool, SpoolReader)
    assert isinstance(source(READ).streamReader(BODY), QueueReader)
    assert isinstance(source(READ, mode="stream").streamReader(BODY), StreamModeReader)
    assert source(READ, mode="stream").reader(BODY) is not None


def test_each_write_has_its_writer() -> None:
    assert isinstance(source(WRITE).writer(BODY, False), BatchWriter)
    assert isinstance(source(WRITE).streamWriter(BODY, False), StreamWriter)


def test_a_queue_cannot_be_read_as_a_batch() -> None:
    for more in ({}, {"mode": "spool", "spoolLocation": "/s"}):
        with pytest.raises(
            OptionError, match=r"option mode: spark\.read cannot read .*availableNow"
        ):
            source(READ | more).reader(BODY)


def test_a_query_has_no_end() -> None:
    reader = source(READ, mode="stream", endingOffsets="latest").streamReader(BODY)
    with pytest.raises(OptionError, match=r"option endingOffsets: of spark\.read"):
        reader.initialOffset()


def test_a_streaming_query_that_cannot_be_says_so_when_it_is_asked(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Where a reader is made Spark hides what we raise behind an error of its own."""
    reader: Any = source(READ, spoolLocation="s3://bucket/spool").streamReader(BODY)
    for call in (
        reader.getDefaultReadLimit,
        reader.initialOffset,
        reader.prepareForTriggerAvailableNow,
        lambda: reader.latestOffset({}, None),
        lambda: reader.partitions({}, {}),
        lambda: reader.read(None),
    ):
        caplog.clear()
        with pytest.raises(Exception, match="spoolLocation"):
            call()
        assert "spoolLocation" in caplog.text
    reader.commit({})
    reader.stop()


def test_options_of_reading_are_looked_at_with_the_schema() -> None:
    assert source(READ).schema() == SCHEMA_DDL
    with pytest.raises(OptionError, match="option prefetchh: unknown"):
        source(READ, prefetchh="1").schema()


def test_schemas_are_looked_at_before_anything_opens() -> None:
    wrong: Any = Schema(Spelt("bodi", "binary"))
    for call in (
        lambda schema: source(READ).streamReader(schema).initialOffset(),
        source(READ, mode="stream").reader,
        lambda schema: source(WRITE).writer(schema, False),
        lambda schema: source(WRITE).streamWriter(schema, False),
    ):
        with pytest.raises(SchemaError, match="column bodi: unknown"):
            call(wrong)


def test_only_appending() -> None:
    for writer in (source(WRITE).writer, source(WRITE).streamWriter):
        with pytest.raises(OptionError, match="mode: only append"):
            writer(BODY, True)
