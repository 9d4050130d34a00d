"""What a user may say with `.option(…)`, per direction: parsed once, checked, then never changed.

Names are case-insensitive, as everywhere in Spark. What is wrong is one `OptionError` whose text
begins with the option's name: an unknown one, a bad value, one of another mode. Values of `url`
hold passwords and are in no text and no repr. Knows neither Spark nor AMQP beyond these limits.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from difflib import get_close_matches
from typing import Any, Final, NamedTuple, NoReturn
from urllib.parse import urlsplit

QUEUE: Final = "queue"
SPOOL: Final = "spool"
STREAM: Final = "stream"
MODES: Final = (QUEUE, SPOOL, STREAM)

Offsets = str | datetime | dict[str, int]

# A connection has 2,047 channels as brokers are set by default; some are for questions.
MAX_QUEUES: Final = 2000
# Prefetch counts are 16 bit on the wire.
MAX_PREFETCH: Final = 65535
# Of each task in stream mode: acks come with every read of the socket, more would only wait.
STREAM_PREFETCH: Final = 4000
_MAX_INT: Final = 2**31 - 1
_MAX_LONG: Final = 2**63 - 1
_SHORTSTR: Final = 255
_TABLE_KEY: Final = 128
_SIZE: Final = re.compile(r"(\d+)\s*([kmgt]?)b?", re.IGNORECASE | re.ASCII)
_SIZE_SHIFT: Final = {"": 0, "k": 10, "m": 20, "g": 30, "t": 40}
_RETRY: Final = re.compile(r"retry:(\d{1,3})", re.IGNORECASE | re.ASCII)
# Spark hands these of its own to a source or sink, beside the user's.
_OF_SPARK: Final = frozenset({"checkpointlocation", "queryname"})
# With CREATE TABLE it hands over all properties of the table: the options have this in front.
_OF_TABLE: Final = "option."
_NO_URL: Final = (
    "required (Spark does not keep the options of a table: give them behind its name, "
    "WITH (url '...'), or use CREATE TEMPORARY VIEW)"
)
# What users of Spark's Kafka source and sink are used to, and what it is called here.
_OF_KAFKA_SOURCE: Final = {
    "subscribe": "use queue",
    "assign": "use queue",
    "topic": "use queue",
    "subscribepattern": "name the queues in option queue; AMQP cannot list them",
    "maxoffsetspertrigger": "use maxMessagesPerTrigger",
    "minoffsetspertrigger": "use fetchMaxWaitMs, which lets a batch fill",
    "maxtriggerdelay": "use fetchMaxWaitMs",
    "startingtimestamp": "use startingOffsets with a time, in mode stream",
    "startingoffsetsbytimestamp": "use startingOffsets with a time, in mode stream",
    "endingtimestamp": "use endingOffsets with offsets, in mode stream",
    "endingoffsetsbytimestamp": "use endingOffsets with offsets, in mode stream",
    "includeheaders": "headers is always a column",
    "groupidprefix": "there are no groups: consumers of a queue share it",
    "kafka.group.id": "there are no groups: consumers of a queue share it",
    "fetchoffset.numretries": "use readTimeoutMs",
    "kafkaconsumer.polltimeoutms": "use readTimeoutMs",
}
_OF_KAFKA_SINK: Final = {
    "topic": "use exchange and routingKey",
    "includeheaders": "publish headers",
}


# Of AMQP clients, and of other connectors.
_DECLARED: Final = "nothing is declared here; declare it with a client, or in the broker"
_OF_CLIENTS: Final = {
    "durable": f"a queue's or exchange's, and {_DECLARED}",
    "autodelete": f"a queue's or exchange's, and {_DECLARED}",
    "exchangetype": f"an exchange's, and {_DECLARED}",
    "autoack": "not offered: a message is acknowledged when it is stored",
    "deliverymode": "use persistent, or the column delivery_mode",
    **dict.fromkeys(
        ("host", "port", "user", "username", "password", "vhost", "virtualhost"),
        "part of url: amqp://user:password@host:port/vhost",
    ),
}


class OptionError(ValueError):
    """One option is wrong; the text is one line that begins with its name."""


def refuse(name: str, why: str) -> NoReturn:
    """Raise the error of option `name`."""
    raise OptionError(f"option {name}: {why}")


class _Option(NamedTuple):
    name: str
    parse: Callable[[str, str], Any]
    modes: tuple[str, ...] = MODES
    # Names of the broker's may begin or end with a space; elsewhere it is a slip.
    is_exact: bool = False


def _whole(low: int, high: int) -> Callable[[str, str], int]:
    def parse(name: str, text: str) -> int:
        if not re.fullmatch(r"[+-]?\d{1,19}", text, re.ASCII) or not low <= int(text) <= high:
            refuse(name, f"{text!r} is not a whole number from {low} to {high}")
        return int(text)

    return parse


def _size(name: str, text: str) -> int:
    match = _SIZE.fullmatch(text)
    size = int(match[1]) << _SIZE_SHIFT[match[2].lower()] if match else 0
    if not 1 <= size <= _MAX_LONG:
        refuse(name, f"{text!r} is not a size in bytes, such as 1048576, 512k, 64m or 1g")
    return size


def _flag(name: str, text: str) -> bool:
    if text.lower() not in ("true", "false"):
        refuse(name, f"{text!r} is neither true nor false")
    return text.lower() == "true"


def _one_of(*values: str) -> Callable[[str, str], str]:
    def parse(name: str, text: str) -> str:
        found = next((value for value in values if value.lower() == text.lower()), None)
        if found is None:
            refuse(name, f"{text!r} is none of {', '.join(values)}")
        return found

    return parse


def _short(name: str, text: str) -> str:
    if len(text.encode("utf-8", "surrogatepass")) > _SHORTSTR:
        refuse(name, f"longer than {_SHORTSTR} bytes")
    return text


def _url(name: str, text: str) -> str:
    """One or several URLs; what is wrong is said without quoting them: they hold passwords."""
    urls = [url.strip() for url in text.split(",")]
    for number, url in enumerate(urls, 1):
        which = f"number {number} of {len(urls)}" if len(urls) > 1 else "the value"
        try:
            parts = urlsplit(url)
            host, _ = parts.hostname, parts.port
        except ValueError:
            refuse(name, f"{which} is not a URL; commas and slashes in a password are %2C and %2F")
        if parts.scheme.lower() not in ("amqp", "amqps"):
            refuse(name, f"{which} does not begin with amqp:// or amqps://")
        if not host:
            refuse(name, f"{which} names no host")
    return ",".join(urls)


def _queues(name: str, text: str) -> tuple[str, ...]:
    queues = tuple(_short(name, queue) for queue in _listed(name, text))
    if not all(queues):
        refuse(name, f"{text!r} has an empty name")
    if len(set(queues)) < len(queues):
        refuse(name, f"{text!r} names a queue twice")
    if len(queues) > MAX_QUEUES:
        refuse(
            name,
            f"{len(queues)} queues, and one query reads {MAX_QUEUES} at most: each takes a channel "
            "of its one connection; use several queries",
        )
    return queues


def _listed(name: str, text: str) -> list[str]:
    """Names between commas, or a JSON array of them: there they may have commas and spaces."""
    if not text.startswith('["'):
        return [queue.strip() for queue in text.split(",")]
    try:
        queues = json.loads(text)
    except ValueError as error:
        refuse(name, f"{text!r} is not JSON: {error}")
    if not all(isinstance(queue, str) for queue in queues):
        refuse(name, f'{text!r} is not of the form ["queue", …]')
    return list(queues)


def _location(name: str, text: str) -> str:
    if not (text.startswith("/") or re.match(r"[a-z][a-z0-9+.-]*:/", text, re.IGNORECASE)):
        refuse(name, f"{text!r} is not an absolute path; driver and executors must share it")
    return text


def _dedupe(name: str, text: str) -> str:
    if text.lower().startswith("header:"):
        header = text[len("header:") :]
        if not 1 <= len(header.encode("utf-8", "surrogatepass")) <= _TABLE_KEY:
            refuse(name, f"the header's name has 1 to {_TABLE_KEY} bytes")
        return f"header:{header}"
    return _one_of("none", "seq", "messageId", "header:NAME")(name, text)


def _offsets(name: str, text: str) -> dict[str, int]:
    try:
        offsets = json.loads(text)
    except ValueError as error:
        refuse(name, f"{text!r} is not JSON: {error}")
    if not isinstance(offsets, dict) or not all(
        type(value) is int and 0 <= value <= _MAX_LONG for value in offsets.values()
    ):
        refuse(name, f'{text!r} is not of the form {{"queue": offset, …}}, offsets from 0')
    return offsets


def _starting(name: str, text: str) -> Offsets:
    if text.lower() in ("earliest", "latest"):
        return text.lower()
    if text.startswith("{"):
        return _offsets(name, text)
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        refuse(name, f"{text!r} is neither earliest, latest, JSON offsets nor a time with its zone")
    if time.tzinfo is None:
        refuse(name, f"{text!r} has no time zone; add Z for UTC")
    return time.astimezone(UTC)


def _ending(name: str, text: str) -> Offsets:
    if text.lower() == "latest":
        return "latest"
    if not text.startswith("{"):
        refuse(name, f"{text!r} is neither latest nor JSON offsets")
    return _offsets(name, text)


def _on_nack(name: str, text: str) -> int:
    if text.lower() == "fail":
        return 0
    match = _RETRY.fullmatch(text)
    if match is None or not int(match[1]):
        refuse(name, f"{text!r} is neither fail nor retry:N with N from 1 to 999")
    return int(match[1])


def _header_name(name: str, text: str) -> str:
    if not 1 <= len(text.encode("utf-8", "surrogatepass")) <= _TABLE_KEY:
        refuse(name, f"a header's name has 1 to {_TABLE_KEY} bytes")
    return text


_MILLISECONDS: Final = _whole(1, _MAX_INT)
_FROM_QUEUES: Final = (QUEUE, SPOOL)
_SOURCE: Final = (
    _Option("url", _url),
    _Option("queue", _queues),
    _Option("mode", _one_of(*MODES)),
    _Option("maxMessagesPerTrigger", _whole(1, _MAX_INT)),
    _Option("maxBytesPerTrigger", _size),
    _Option("fetchMaxWaitMs", _whole(0, _MAX_INT), _FROM_QUEUES),
    _Option("prefetch", _whole(1, MAX_PREFETCH)),
    _Option("maxBufferedBytes", _size, _FROM_QUEUES),
    _Option("numPartitions", _whole(1, 10_000), _FROM_QUEUES),
    _Option("spoolLocation", _location, (SPOOL,)),
    _Option("dedupe", _dedupe, _FROM_QUEUES),
    _Option("exclusive", _flag, _FROM_QUEUES),
    _Option("consumerPriority", _whole(-(2**31), _MAX_INT), _FROM_QUEUES),
    _Option("consumerTimeoutMs", _MILLISECONDS, _FROM_QUEUES),
    _Option("startingOffsets", _starting, (STREAM,)),
    _Option("endingOffsets", _ending, (STREAM,)),
    _Option("minPartitions", _whole(1, 10_000), (STREAM,)),
    _Option("failOnDataLoss", _flag, (STREAM,)),
    _Option("typedHeaders", _flag),
    _Option("connectTimeoutMs", _MILLISECONDS),
    _Option("readTimeoutMs", _MILLISECONDS),
)
_SINK: Final = (
    _Option("url", _url),
    _Option("exchange", _short, is_exact=True),
    _Option("routingKey", _short, is_exact=True),
    _Option("mandatory", _flag),
    _Option("onUnroutable", _one_of("fail", "count")),
    _Option("onNack", _on_nack),
    _Option("confirmWindow", _whole(1, 1_000_000)),
    _Option("confirmTimeoutMs", _MILLISECONDS),
    _Option("persistent", _flag),
    _Option("messageId", _one_of("auto", "column", "position", "hash", "none")),
    _Option("dedupeHeader", _header_name, is_exact=True),
    _Option("connectTimeoutMs", _MILLISECONDS),
)
SOURCE_NAMES: Final = tuple(option.name for option in _SOURCE)
SINK_NAMES: Final = tuple(option.name for option in _SINK)


@dataclass(frozen=True, kw_only=True)
class SourceOptions:
    """How to read. `None` where the option was not given and has no fixed default.

    Times are in milliseconds, sizes in bytes.
    """

    url: str = field(repr=False)
    queues: tuple[str, ...]
    mode: str
    max_messages_per_trigger: int = 20_000
    max_bytes_per_trigger: int = 64 << 20
    fetch_max_wait_ms: int = 200
    prefetch: int = 40_000
    max_buffered_bytes: int = 256 << 20
    num_partitions: int = 2
    spool_location: str | None = None
    # None: `seq` where the broker offers it, else none.
    dedupe: str | None = None
    exclusive: bool = True
    consumer_priority: int | None = None
    consumer_timeout_ms: int | None = None
    starting_offsets: Offsets = "earliest"
    ending_offsets: Offsets = "latest"
    has_ending_offsets: bool = False
    min_partitions: int = 1
    fail_on_data_loss: bool = True
    typed_headers: bool = False
    connect_timeout_ms: int = 10_000
    read_timeout_ms: int = 30_000

    @property
    def has_several_brokers(self) -> bool:
        """Whether `url` names more than one: then another one may be about to take over."""
        return "," in self.url

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> SourceOptions:
        """Check what a user has given for reading.

        Raises:
            OptionError: one of them is unknown, has a bad value, or is of another mode
        """
        given = _given(options, _SOURCE, SINK_NAMES, "write")
        if "url" not in given:
            refuse("url", _NO_URL)
        if "queue" not in given:
            refuse("queue", "required")
        mode = _one_of(*MODES)(
            "mode", given.get("mode", SPOOL if "spoolLocation" in given else QUEUE).strip()
        )
        for option in _SOURCE:
            if option.name in given and mode not in option.modes:
                refuse(option.name, f"of mode {' and '.join(option.modes)}, but the mode is {mode}")
        values = _values(given, _SOURCE)
        values["mode"] = mode
        values["queues"] = values.pop("queue")
        if mode == SPOOL and "spool_location" not in values:
            refuse("spoolLocation", "required in mode spool")
        _check_window(values, mode)
        _check_dedupe(values, mode)
        _check_offsets(values)
        values.setdefault("min_partitions", len(values["queues"]))
        values["has_ending_offsets"] = "ending_offsets" in values
        return cls(**values)


@dataclass(frozen=True, kw_only=True)
class SinkOptions:
    """How to write. Times are in milliseconds."""

    url: str = field(repr=False)
    exchange: str = ""
    routing_key: str | None = None
    mandatory: bool = True
    on_unroutable: str = "fail"
    # How often nacked messages are published again; 0 fails at the first nack.
    nack_retries: int = 3
    confirm_window: int = 2000
    confirm_timeout_ms: int = 30_000
    persistent: bool = True
    message_id: str = "auto"
    dedupe_header: str | None = None
    connect_timeout_ms: int = 10_000

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> SinkOptions:
        """Check what a user has given for writing.

        Raises:
            OptionError: one of them is unknown or has a bad value, or two contradict each other
        """
        given = _given(options, _SINK, SOURCE_NAMES, "read")
        if "url" not in given:
            refuse("url", _NO_URL)
        values = _values(given, _SINK)
        if "on_nack" in values:
            values["nack_retries"] = values.pop("on_nack")
        if "dedupe_header" in values and values.get("message_id") == "none":
            refuse("dedupeHeader", "has no value to carry with messageId none")
        if "on_unroutable" in values and not values.get("mandatory", True):
            refuse("onUnroutable", "without mandatory the broker reports no unroutable messages")
        return cls(**values)


def _given(
    options: Mapping[str, str], known: Iterable[_Option], others: tuple[str, ...], other: str
) -> dict[str, str]:
    """The options by their written names."""
    names = {option.name.lower(): option.name for option in known}
    elsewhere = {name.lower(): name for name in others}
    given: dict[str, str] = {}
    options = _of_table(options)
    for key in options:
        lower = key.lower()
        if lower in names:
            given[names[lower]] = str(options[key])
        elif lower in elsewhere:
            refuse(elsewhere[lower], f"only for {other}")
        elif lower == "path":
            refuse("path", "a broker has none; remove it from load(), save() or start()")
        elif lower not in _OF_SPARK:
            refuse(
                key, _unknown(lower, names, _OF_KAFKA_SINK if other == "read" else _OF_KAFKA_SOURCE)
            )
    return given


def _of_table(options: Mapping[str, str]) -> Mapping[str, str]:
    """The options among the properties of a table that is made; elsewhere all that is given."""
    if not any(key.lower() == "provider" for key in options):
        return options
    if any(key.lower() == "location" for key in options):
        refuse("path", "a broker has none; remove LOCATION")
    return {
        key[len(_OF_TABLE) :]: options[key] for key in options if key.lower().startswith(_OF_TABLE)
    }


def _unknown(lower: str, names: Mapping[str, str], of_kafka: Mapping[str, str]) -> str:
    if lower == "kafka.bootstrap.servers":
        return "of Spark's Kafka source; use url"
    if lower in of_kafka:
        return f"of Spark's Kafka source; {of_kafka[lower]}"
    if lower in _OF_CLIENTS:
        return _OF_CLIENTS[lower]
    if lower.startswith("kafka."):
        return "of Spark's Kafka source; connections are described by url"
    close = get_close_matches(lower, names, n=1)
    return f"unknown; is {names[close[0]]} meant?" if close else "unknown"


def _values(given: Mapping[str, str], known: Iterable[_Option]) -> dict[str, Any]:
    return {
        _field_name(option.name): option.parse(
            option.name, given[option.name] if option.is_exact else given[option.name].strip()
        )
        for option in known
        if option.name in given
    }


def _field_name(name: str) -> str:
    return re.sub("([A-Z])", r"_\1", name).lower()


def _check_window(values: dict[str, Any], mode: str) -> None:
    """A batch must fit into the prefetch window, or acks that come with the next one stall it."""
    messages = values.get("max_messages_per_trigger", SourceOptions.max_messages_per_trigger)
    usual = STREAM_PREFETCH if mode == STREAM else min(MAX_PREFETCH, 2 * messages)
    prefetch = values.setdefault("prefetch", usual)
    if mode != QUEUE:
        return
    if messages > MAX_PREFETCH:
        refuse("maxMessagesPerTrigger", f"at most {MAX_PREFETCH} in mode queue")
    if prefetch < messages:
        refuse("prefetch", f"{prefetch} is below maxMessagesPerTrigger, which is {messages}")


def _check_dedupe(values: dict[str, Any], mode: str) -> None:
    dedupe = values.get("dedupe", "none")
    if mode == QUEUE and dedupe not in ("none", "seq"):
        refuse("dedupe", f"{dedupe} needs mode spool; in mode queue it is none or seq")


def _check_offsets(values: dict[str, Any]) -> None:
    for name in ("startingOffsets", "endingOffsets"):
        offsets = values.get(_field_name(name))
        if isinstance(offsets, dict):
            wrong = set(offsets) ^ set(values["queues"])
            if wrong:
                queue = min(wrong)
                refuse(name, f"{queue!r} is {'not read' if queue in offsets else 'missing'}")
