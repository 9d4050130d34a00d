"""Tables and views of SQL, and what a user's program shows when one cannot be used."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import vouchmq.spark
from tests.integration.broker_process import Broker
from tests.pipeline import source_world as world

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.slow

PAGE = Path(__file__).parents[2] / "docs" / "guides" / "pipeline.md"


@pytest.fixture
def names(vouch: Broker, fresh: Callable[[str], str]) -> dict[str, str]:
    """A stream, and what the page's examples call it."""
    stream = fresh("sql")
    world.declare(vouch.url, stream, queue_type="stream")
    return {"amqp://guest:guest@localhost/": vouch.url, "'orders'": f"'{stream}'"}


def statements(heading: str, names: dict[str, str]) -> list[str]:
    """The statements of the page's SQL below a heading, for the broker of the test."""
    example = re.search(rf"### {heading}\n.*?```sql\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert example is not None
    text = example[1]
    for name, here in names.items():
        assert name in text
        text = text.replace(name, here)
    return [each for each in text.split(";\n") if each.strip()]


def test_the_views_of_the_page_write_and_read(spark: SparkSession, names: dict[str, str]) -> None:
    *before, last = statements("Views", names)
    for statement in before:
        spark.sql(statement)
    assert [row[0] for row in spark.sql(last).collect()] == ["1 apple", "2 pears"]


def test_the_tables_of_the_page_write_and_read(spark: SparkSession, names: dict[str, str]) -> None:
    *before, last = statements("Tables", names)
    try:
        for statement in before:
            spark.sql(statement)
        assert [row[0] for row in spark.sql(last).collect()] == ["1 apple", "2 pears"]
    finally:
        spark.sql("DROP TABLE IF EXISTS orders")


def test_a_table_is_made_of_its_options_and_not_of_its_properties(
    spark: SparkSession, names: dict[str, str]
) -> None:
    url, stream = names.values()
    options = f"url '{url}', queue {stream}, mode 'stream'"
    kept = "COMMENT 'c' TBLPROPERTIES ('of' = 'mine')"
    try:
        spark.sql(f"CREATE TABLE made USING amqp OPTIONS ({options}) {kept}")
        assert "offset" in spark.table("made").columns
        with pytest.raises(Exception, match="option url: required") as raised:
            spark.sql("SELECT * FROM made").collect()
        assert "WITH (url" in vouchmq.spark.reason_of(raised.value)
    finally:
        spark.sql("DROP TABLE IF EXISTS made")
    with pytest.raises(Exception, match="remove LOCATION"):
        spark.sql(f"CREATE TABLE placed USING amqp OPTIONS ({options}) LOCATION '/tmp/x'")


def test_the_reason_of_an_error_is_one_sentence(
    spark: SparkSession, vouch: Broker, fresh: Callable[[str], str], tmp_path: Path
) -> None:
    """And the error's own text has it without a traceback of ours."""
    with pytest.raises(Exception, match="option queue") as wrong:
        spark.read.format("amqp").option("url", vouch.url).load()
    assert vouchmq.spark.reason_of(wrong.value) == "option queue: required"
    said = str(wrong.value)
    assert said.splitlines()[0].endswith(
        ": vouchmq.spark.options.OptionError: option queue: required"
    )
    key = fresh("nosuch")
    rows = spark.sql("SELECT '1' AS body").write.format("amqp").mode("append")
    with pytest.raises(Exception, match="NO_ROUTE") as lost:
        rows.option("url", vouch.url).option("routingKey", key).save()
    assert vouchmq.spark.reason_of(lost.value) == f"unroutable: 312 NO_ROUTE exchange= key={key}"
    texts = [said, str(lost.value)]
    for mode in ("queue", "stream"):
        reader = spark.readStream.format("amqp").options(url=vouch.url, queue=key, mode=mode)
        writer = reader.load().writeStream.format("noop")
        with pytest.raises(Exception, match="404 NOT_FOUND") as none:
            writer.option("checkpointLocation", str(tmp_path / mode)).start().awaitTermination(120)
        assert (
            vouchmq.spark.reason_of(none.value) == f"404 NOT_FOUND - no queue '{key}' in vhost '/'"
        )
        texts.append(str(none.value))
    assert [text for text in texts if "Traceback" in text or "File " in text] == []
    assert [len(text.splitlines()) for text in texts[:2]] == [2, 2]


def test_the_traceback_of_somebody_elses_error_stays(spark: SparkSession, vouch: Broker) -> None:
    with pytest.raises(Exception, match="option queue: required"):
        spark.read.format("amqp").option("url", vouch.url).load()
    spark.udf.register("divided", divided)
    with pytest.raises(Exception, match=r"Traceback[^$]*ZeroDivisionError"):
        spark.sql("SELECT divided(id) FROM range(1)").collect()


def divided(number: int) -> str:
    """Fails for 0."""
    return str(1 // number)
