"""What users may say with `.option`, and that each mistake is one line that names the option."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vouchmq.spark.options import (
    SINK_NAMES,
    SOURCE_NAMES,
    OptionError,
    SinkOptions,
    SourceOptions,
)

URL = "amqp://guest:s3cret@broker/%2F"
READ = {"url": URL, "queue": "orders"}
SPOOLED = {**READ, "spoolLocation": "/lake/spool"}
STREAMED = {**READ, "mode": "stream"}
WRITE = {"url": URL, "exchange": "x"}


def test_defaults_of_a_queue() -> None:
    options = SourceOptions.parse(READ)
    assert (options.mode, options.queues) == ("queue", ("orders",))
    assert (options.max_messages_per_trigger, options.prefetch) == (20_000, 40_000)
    assert (options.max_bytes_per_trigger, options.max_buffered_bytes) == (64 << 20, 256 << 20)
    assert (options.fetch_max_wait_ms, options.num_partitions) == (200, 2)
    assert (options.dedupe, options.exclusive) == (None, True)
    assert (options.connect_timeout_ms, options.read_timeout_ms) == (10_000, 30_000)


def test_defaults_of_a_spool_and_of_a_stream() -> None:
    spool = SourceOptions.parse(SPOOLED)
    assert (spool.mode, spool.exclusive, spool.spool_location) == ("spool", True, "/lake/spool")
    stream = SourceOptions.parse({**STREAMED, "queue": "a, b"})
    assert (stream.queues, stream.min_partitions, stream.fail_on_data_loss) == (("a", "b"), 2, True)
    assert (stream.starting_offsets, stream.ending_offsets) == ("earliest", "latest")
    assert not stream.has_ending_offsets
    assert (spool.prefetch, stream.prefetch) == (40_000, 4000)


def test_defaults_of_the_sink() -> None:
    options = SinkOptions.parse(WRITE)
    assert (options.exchange, options.routing_key, options.mandatory) == ("x", None, True)
    assert (options.on_unroutable, options.nack_retries) == ("fail", 3)
    assert (options.confirm_window, options.confirm_timeout_ms) == (2000, 30_000)
    assert (options.persistent, options.message_id, options.dedupe_header) == (True, "auto", None)


def test_names_are_read_in_any_case() -> None:
    given_ = {"URL": URL, "Queue": "q", "PREFETCH": "30000", "maxmessagespertrigger": " 10000 "}
    options = SourceOptions.parse(given_)
    assert (options.prefetch, options.max_messages_per_trigger) == (30_000, 10_000)


def test_what_spark_adds_by_itself_is_no_option_of_ours() -> None:
    SinkOptions.parse({**WRITE, "checkpointLocation": "/checkpoints", "queryName": "q"})
    SourceOptions.parse({**READ, "checkpointLocation": "/checkpoints"})


@pytest.mark.parametrize(
    ("text", "size"),
    [("1", 1), ("64m", 64 << 20), ("2G", 2 << 30), ("512kb", 512 << 10), ("8 MB", 8 << 20)],
)
def test_sizes(text: str, size: int) -> None:
    assert SourceOptions.parse({**READ, "maxBufferedBytes": text}).max_buffered_bytes == size


def test_offsets() -> None:
    def starting(text: str) -> object:
        return SourceOptions.parse({**STREAMED, "startingOffsets": text}).starting_offsets

    assert starting("Latest") == "latest"
    assert starting('{"orders": 12}') == {"orders": 12}
    assert starting("2026-01-31T00:00:00Z") == datetime(2026, 1, 31, tzinfo=UTC)
    assert starting("2026-01-31T02:00:00+02:00") == datetime(2026, 1, 31, tzinfo=UTC)
    ending = SourceOptions.parse({**STREAMED, "endingOffsets": '{"orders":5}'})
    assert (ending.ending_offsets, ending.has_ending_offsets) == ({"orders": 5}, True)


def test_names_with_commas_and_spaces_are_given_as_json() -> None:
    """Nothing else is read in another way than before."""
    for text, queues in (
        ('["a,b", " c "]', ("a,b", " c ")),
        ('  ["a,b"]', ("a,b",)),
        ("[a], b", ("[a]", "b")),
        ('["[\\"a\\"]"]', ('["a"]',)),
    ):
        assert SourceOptions.parse({**READ, "queue": text}).queues == queues


def test_ways_to_recognise_a_copy() -> None:
    for text, dedupe in (("SEQ", "seq"), ("messageid", "messageId"), ("Header:k", "header:k")):
        assert SourceOptions.parse({**SPOOLED, "dedupe": text}).dedupe == dedupe


BAD_SOURCE = [
    # Required.
    ({"queue": "q"}, "option url: required"),
    ({"url": URL}, "option queue: required"),
    ({**READ, "mode": "spool"}, "option spoolLocation: required in mode spool"),
    # Unknown, or of the other direction.
    ({**READ, "prefetchh": "1"}, "option prefetchh: unknown; is prefetch meant?"),
    ({**READ, "zzz": "1"}, "option zzz: unknown"),
    (
        {**READ, "durable": "true"},
        "option durable: a queue's or exchange's, and nothing is declared",
    ),
    ({**READ, "autoAck": "true"}, "option autoAck: not offered"),
    ({**READ, "vhost": "/"}, "option vhost: part of url"),
    ({**READ, "queue": '["a", 1]'}, """option queue: '["a", 1]' is not of the form"""),
    ({**READ, "queue": '["a"'}, "option queue: '[\"a\"' is not JSON"),
    ({**READ, "queue": '["a", "a"]'}, 'option queue: \'["a", "a"]\' names a queue twice'),
    ({**READ, "queue": '["a", ""]'}, 'option queue: \'["a", ""]\' has an empty name'),
    ({**READ, "exchange": "x"}, "option exchange: only for write"),
    ({**READ, "path": "/x"}, "option path: a broker has none"),
    # Of Spark's Kafka source.
    ({**READ, "subscribe": "orders"}, "option subscribe: of Spark's Kafka source; use queue"),
    (
        {**READ, "maxOffsetsPerTrigger": "9"},
        "option maxOffsetsPerTrigger: of Spark's Kafka source; u",
    ),
    (
        {**READ, "kafka.bootstrap.servers": "h"},
        "option kafka.bootstrap.servers: of Spark's Kafka so",
    ),
    (
        {**READ, "kafka.ssl.protocol": "x"},
        "option kafka.ssl.protocol: of Spark's Kafka source; con",
    ),
    # Of another mode.
    ({**READ, "startingOffsets": "latest"}, "option startingOffsets: of mode stream"),
    ({**READ, "mode": "queue", "spoolLocation": "/s"}, "option spoolLocation: of mode spool"),
    ({**STREAMED, "dedupe": "seq"}, "option dedupe: of mode queue and spool, but the mode is str"),
    ({**SPOOLED, "minPartitions": "2"}, "option minPartitions: of mode stream"),
    # Values.
    ({**READ, "mode": "topic"}, "option mode: 'topic' is none of queue, spool, stream"),
    ({**READ, "queue": "a,,b"}, "option queue: 'a,,b' has an empty name"),
    ({**READ, "queue": "a,a"}, "option queue: 'a,a' names a queue twice"),
    (
        {**READ, "queue": ",".join(map(str, range(2001)))},
        "option queue: 2001 queues, and one query reads 2000 at most",
    ),
    ({**READ, "queue": "q" * 256}, "option queue: longer than 255 bytes"),
    ({**READ, "prefetch": "0"}, "option prefetch: '0' is not a whole number from 1 to 65535"),
    ({**READ, "prefetch": "many"}, "option prefetch: 'many' is not a whole number"),
    ({**READ, "prefetch": "100"}, "option prefetch: 100 is below maxMessagesPerTrigger"),
    ({**READ, "maxMessagesPerTrigger": "70000"}, "option maxMessagesPerTrigger: at most 65535"),
    ({**READ, "maxBytesPerTrigger": "64x"}, "option maxBytesPerTrigger: '64x' is not a size"),
    ({**READ, "maxBytesPerTrigger": "0"}, "option maxBytesPerTrigger: '0' is not a size"),
    ({**READ, "exclusive": "yes"}, "option exclusive: 'yes' is neither true nor false"),
    ({**READ, "dedupe": "messageId"}, "option dedupe: messageId needs mode spool"),
    ({**SPOOLED, "dedupe": "header:"}, "option dedupe: the header's name has 1 to 128 bytes"),
    ({**SPOOLED, "dedupe": "best"}, "option dedupe: 'best' is none of"),
    ({**READ, "spoolLocation": "lake"}, "option spoolLocation: 'lake' is not an absolute path"),
    ({**STREAMED, "startingOffsets": "soon"}, "option startingOffsets: 'soon' is neither"),
    ({**STREAMED, "startingOffsets": "2026-01-31T00:00"}, "option startingOffsets: '2026-01-31T"),
    ({**STREAMED, "startingOffsets": "{"}, "option startingOffsets: '{' is not JSON"),
    ({**STREAMED, "startingOffsets": '{"orders":1.5}'}, 'option startingOffsets: \'{"orders":1.'),
    ({**STREAMED, "startingOffsets": '{"orders":-1}'}, "option startingOffsets:"),
    ({**STREAMED, "startingOffsets": '{"other":1}'}, "option startingOffsets: 'orders' is missing"),
    ({**STREAMED, "endingOffsets": "earliest"}, "option endingOffsets: 'earliest' is neither"),
    ({**STREAMED, "endingOffsets": '{"orders":1,"x":2}'}, "option endingOffsets: 'x' is not read"),
]


@pytest.mark.parametrize(("options", "text"), BAD_SOURCE, ids=[text for _, text in BAD_SOURCE])
def test_a_bad_option_of_reading_is_named(options: dict[str, str], text: str) -> None:
    with pytest.raises(OptionError) as raised:
        SourceOptions.parse(options)
    said = str(raised.value)
    assert said.startswith(text)
    assert "\n" not in said
    assert "s3cret" not in said


BAD_SINK = [
    ({"exchange": "x"}, "option url: required"),
    ({**WRITE, "queue": "q"}, "option queue: only for read"),
    ({**WRITE, "save": "q"}, "option save: unknown"),
    ({**WRITE, "durable": "true"}, "option durable: a queue's or exchange's, and nothing is decl"),
    ({**WRITE, "deliveryMode": "2"}, "option deliveryMode: use persistent"),
    ({**WRITE, "exchange": "x" * 256}, "option exchange: longer than 255 bytes"),
    ({**WRITE, "onUnroutable": "ignore"}, "option onUnroutable: 'ignore' is none of fail, count"),
    ({**WRITE, "onUnroutable": "count", "mandatory": "false"}, "option onUnroutable: without mand"),
    ({**WRITE, "onNack": "retry"}, "option onNack: 'retry' is neither fail nor retry:N"),
    ({**WRITE, "onNack": "retry:0"}, "option onNack: 'retry:0' is neither"),
    ({**WRITE, "confirmWindow": "0"}, "option confirmWindow: '0' is not a whole number"),
    ({**WRITE, "messageId": "uuid"}, "option messageId: 'uuid' is none of auto, column, pos"),
    ({**WRITE, "dedupeHeader": "k", "messageId": "none"}, "option dedupeHeader: has no value to"),
    ({**WRITE, "dedupeHeader": "k" * 129}, "option dedupeHeader: a header's name has 1 to 128"),
]


@pytest.mark.parametrize(("options", "text"), BAD_SINK, ids=[text for _, text in BAD_SINK])
def test_a_bad_option_of_writing_is_named(options: dict[str, str], text: str) -> None:
    with pytest.raises(OptionError) as raised:
        SinkOptions.parse(options)
    assert str(raised.value).startswith(text)


@pytest.mark.parametrize(
    ("url", "text"),
    [
        ("http://u:s3cret@h/", "option url: the value does not begin with amqp:// or amqps://"),
        ("amqp://u:s3cret@/v", "option url: the value names no host"),
        ("amqp://u:s3cret@h:x/v", "option url: the value is not a URL"),
        ("amqp://u:s3cret@h:99999/v", "option url: the value is not a URL"),
        (f"{URL},redis://u:s3cret@h", "option url: number 2 of 2 does not begin with amqp://"),
        (f"{URL},", "option url: number 2 of 2 does not begin"),
        ("", "option url: the value does not begin"),
    ],
)
def test_a_bad_url_is_told_without_its_password(url: str, text: str) -> None:
    for options in ({"url": url, "queue": "q"}, {"url": url, "exchange": "x"}):
        with pytest.raises(OptionError) as raised:
            (SourceOptions if "queue" in options else SinkOptions).parse(options)
        assert str(raised.value).startswith(text)
        assert "s3cret" not in str(raised.value)


def test_the_password_is_in_no_repr() -> None:
    assert "s3cret" not in repr(SourceOptions.parse(READ))
    assert "s3cret" not in repr(SinkOptions.parse(WRITE))


def test_several_urls_are_kept_in_order() -> None:
    options = SinkOptions.parse({**WRITE, "url": "amqp://a/ , amqps://b:5671/v"})
    assert options.url == "amqp://a/,amqps://b:5671/v"


@settings(deadline=None)
@given(
    st.sampled_from(SOURCE_NAMES),
    st.text(max_size=30),
    st.sampled_from([READ, SPOOLED, STREAMED]),
)
def test_any_text_is_taken_or_refused_by_the_option(
    name: str, text: str, others: dict[str, str]
) -> None:
    try:
        SourceOptions.parse({**others, name: text})
    except OptionError as error:
        assert str(error).startswith("option ")
        assert len(str(error).splitlines()) == 1


@settings(deadline=None)
@given(st.sampled_from(SINK_NAMES), st.text(max_size=30))
def test_any_text_is_taken_or_refused_by_the_sinks_option(name: str, text: str) -> None:
    try:
        SinkOptions.parse({**WRITE, name: text})
    except OptionError as error:
        assert str(error).startswith(f"option {name}:")
