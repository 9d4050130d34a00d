"""docs/guides/pipeline.md says of options and columns what the code does."""

from __future__ import annotations

import re
from functools import cache

import pytest

from tests.integration.broker_process import PROJECT
from vouchmq.spark.columns import COLUMNS
from vouchmq.spark.options import SINK_NAMES, SOURCE_NAMES, SinkOptions, SourceOptions

URL = "amqp://127.0.0.1"
MIB = 1 << 20


@cache
def part(heading: str) -> str:
    text = (PROJECT / "docs" / "guides" / "pipeline.md").read_text(encoding="utf-8")
    found = re.search(rf"^## {heading}\n(.*?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL)
    assert found is not None
    return found[1]


@cache
def defaults(heading: str) -> dict[str, str]:
    """What the table of options gives as default; a line may be about several of them."""
    found: dict[str, str] = {}
    for line in part(heading).splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        names = re.findall(r"`(\w+)`", cells[0])
        values = cells[1].split(", ") if len(names) > 1 and len(cells) > 1 else cells[1:2]
        found |= dict(zip(names, values * (1 if len(values) > 1 else len(names)), strict=False))
    return found


@pytest.mark.parametrize("name", SOURCE_NAMES)
def test_every_option_of_the_source_is_on_the_page(name: str) -> None:
    assert name in defaults("Options of the source")


@pytest.mark.parametrize("name", SINK_NAMES)
def test_every_option_of_the_sink_is_on_the_page(name: str) -> None:
    assert name in defaults("Options of the sink")


def test_defaults_on_the_page_are_those_of_the_code() -> None:
    queue = SourceOptions.parse({"url": URL, "queue": "q"})
    stream = SourceOptions.parse({"url": URL, "queue": "q", "mode": "stream"})
    spool = SourceOptions.parse({"url": URL, "queue": "q", "spoolLocation": "/spool"})
    told = defaults("Options of the source")
    assert told["maxMessagesPerTrigger"] == str(queue.max_messages_per_trigger)
    assert told["maxBytesPerTrigger"] == f"`{queue.max_bytes_per_trigger // MIB}m`"
    assert told["maxBufferedBytes"] == f"`{queue.max_buffered_bytes // MIB}m`"
    assert told["fetchMaxWaitMs"] == str(queue.fetch_max_wait_ms)
    assert told["numPartitions"] == str(queue.num_partitions)
    assert told["connectTimeoutMs"] == str(queue.connect_timeout_ms)
    assert told["readTimeoutMs"] == str(queue.read_timeout_ms)
    assert told["startingOffsets"] == f"`{stream.starting_offsets}`"
    assert told["endingOffsets"] == f"`{stream.ending_offsets}`"
    assert told["failOnDataLoss"] == str(stream.fail_on_data_loss).lower()
    assert queue.prefetch == 2 * queue.max_messages_per_trigger
    assert f"{stream.prefetch} in mode `stream`" in told["prefetch"]
    assert (queue.mode, spool.mode) == ("queue", "spool")
    assert (queue.exclusive, spool.exclusive) == (True, True)


def test_defaults_of_the_sink_on_the_page_are_those_of_the_code() -> None:
    sink = SinkOptions.parse({"url": URL})
    told = defaults("Options of the sink")
    assert told["mandatory"] == str(sink.mandatory).lower()
    assert told["persistent"] == str(sink.persistent).lower()
    assert told["onUnroutable"] == f"`{sink.on_unroutable}`"
    assert told["onNack"] == f"`retry:{sink.nack_retries}`"
    assert told["confirmWindow"] == str(sink.confirm_window)
    assert told["confirmTimeoutMs"] == str(sink.confirm_timeout_ms)
    assert told["messageId"] == f"`{sink.message_id}`"
    assert told["connectTimeoutMs"] == str(sink.connect_timeout_ms)


def test_columns_that_are_no_property_are_on_the_page() -> None:
    text = part("Options of the source")
    own = ("queue", "body", "exchange", "routing_key", "redelivered", "delivery_count", "offset")
    assert ", ".join((*own, "queue_id")) in text
    assert set(own) < set(COLUMNS)
