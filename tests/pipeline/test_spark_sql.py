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

PAGE = Path(__file__).parents[2] / "docs" / "pipeline.md"


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
    spark: SparkSession, vouch: Broker, fresh: Callable[[str], str]
) -> None:
    with pytest.raises(Exception, match="Traceback") as wrong:
        spark.read.format("amqp").option("url", vouch.url).load()
    assert vouchmq.spark.reason_of(wrong.value) == "option queue: required"
    key = fresh("nosuch")
    rows = spark.sql("SELECT '1' AS body").write.format("amqp").mode("append")
    with pytest.raises(Exception, match="Traceback") as lost:
        rows.option("url", vouch.url).option("routingKey", key).save()
    assert vouchmq.spark.reason_of(lost.value) == f"unroutable: 312 NO_ROUTE exchange= key={key}"
