"""Section EXCH: which bindings match which messages."""

from __future__ import annotations

from functools import partial
from typing import Final

from vouchmq.conformance.case import case
from vouchmq.conformance.client import Channel
from vouchmq.conformance.expect import Text, equal
from vouchmq.conformance.stage import Stage
from vouchmq.conformance.wire import Plain, Table, Typed

KEYS: Final = ("", "a", "b", "a.b", "a.c", "a.b.c", ".", "a.", ".a", "a..b")

# Measured: binding key, then one mark per routing key of KEYS.
TRUTH: Final = (
    ("#", "●●●●●●●●●●"),
    ("#.#", "●●●●●●●●●●"),
    ("*", "·●●·······"),
    ("*.#", "·●●●●●●●●●"),
    ("*.*", "···●●·●●●·"),
    ("a.*", "···●●··●··"),
    ("a.#", "·●·●●●·●·●"),
    ("*.b", "···●······"),
    ("#.b", "··●●·····●"),
    ("a.*.c", "·····●····"),
    ("a.#.c", "····●●····"),
    ("#.a.#", "·●·●●●·●●●"),
    ("a..b", "·········●"),
    ("", "●·········"),
)


def _topic_row(pattern: str, row: str, stage: Stage) -> None:
    channel = stage.channel()
    exchange = stage.exchange(channel, "topic")
    queue = stage.bound(channel, exchange, pattern)
    for key in KEYS:
        channel.publish(exchange, key, key)
    wanted = [key for key, mark in zip(KEYS, row, strict=True) if mark == "●"]
    channel.holds(queue, len(wanted))
    equal(channel.drain(queue), wanted, f"keys that match {pattern!r}")


for _pattern, _row in TRUTH:
    case("EXCH-40", says=f"topic pattern '{_pattern}' matches as in the truth table")(
        partial(_topic_row, _pattern, _row)
    )


@case("EXCH-40", says="* and # are wildcards only as whole words")
def wildcards_are_words(stage: Stage) -> None:
    channel = stage.channel()
    exchange = stage.exchange(channel, "topic")
    queue = stage.bound(channel, exchange, "a*.b#.**")
    for key in ("ax.b.c", "a*.b#.**", "a*.b#.*", "a.b.c"):
        channel.publish(exchange, key, key)
    channel.holds(queue, 1)
    equal(channel.drain(queue), ["a*.b#.**"], "keys")


@case("EXCH-40", says="overlapping patterns of one exchange do not disturb each other")
def overlapping_patterns(stage: Stage) -> None:
    channel = stage.channel()
    exchange = stage.exchange(channel, "topic")
    queues = {key: stage.bound(channel, exchange, key) for key in ("a.#", "a.*", "#", "a.b.c")}
    channel.call("queue.unbind", queue=queues["a.*"], exchange=exchange, routing_key="a.*")
    channel.publish(exchange, "a.b", "one")
    channel.publish(exchange, "a.b.c", "two")
    for key, wanted in (("#", 2), ("a.#", 2), ("a.b.c", 1), ("a.*", 0)):
        channel.holds(queues[key], wanted)


@case("EXCH-41", says="a binding key with three # words is soft 406", mark="≡4")
def too_many_wildcards(stage: Stage) -> None:
    channel = stage.channel()
    queue = stage.queue(channel)
    text = (
        "PRECONDITION_FAILED - Topic binding key '#.a.#.b.#' uses 3 '#' wildcards, "
        "at most 2 are allowed"
    )
    with channel.soft(406, text, "queue.bind"):
        channel.call("queue.bind", queue=queue, exchange="amq.topic", routing_key="#.a.#.b.#")


@case("EXCH-31", says="direct: the key must be equal, octet by octet")
def direct(stage: Stage) -> None:
    channel = stage.channel()
    exchange = stage.exchange(channel, "direct")
    queue = stage.bound(channel, exchange, "a.€")
    for key in ("a.€", "A.€", "a.€ ", "a", "#", ""):
        channel.publish(exchange, key, key)
    channel.holds(queue, 1)
    equal(channel.drain(queue), ["a.€"], "keys")


@case("EXCH-32", says="fanout: every binding matches, whatever its key")
def fanout(stage: Stage) -> None:
    channel = stage.channel()
    exchange = stage.exchange(channel, "fanout")
    queues = [stage.bound(channel, exchange, key) for key in ("", "x", "y.z")]
    channel.publish(exchange, "anything", "x")
    for queue in queues:
        channel.holds(queue, 1)


def _routes_by_copies(kind: str, stage: Stage) -> None:
    channel = stage.channel()
    exchange = stage.exchange(channel, kind)
    queues = [stage.bound(channel, exchange, key) for key in ("main", "copy", "blind", "other")]
    channel.publish(exchange, "main", "x", headers={"CC": ["copy"], "BCC": ["blind"]})
    for queue in queues[:3]:
        channel.holds(queue, 1)
    equal(channel.count(queues[3]), 0, "messages for a key that nobody named")


for _kind in ("direct", "topic"):
    case("EXCH-35", says=f"{_kind}: every key of CC and BCC is matched, too")(
        partial(_routes_by_copies, _kind)
    )


@case("EXCH-35", says="the default exchange: every key of CC and BCC is matched, too")
def default_by_copies(stage: Stage) -> None:
    channel = stage.channel()
    first, second, third = (stage.queue(channel) for _ in range(3))
    channel.publish("", first, "x", headers={"CC": [second], "BCC": [third]})
    for queue in (first, second, third):
        channel.holds(queue, 1)


# --- headers --------------------------------------------------------------------------------

HEADERS: Final[tuple[tuple[str, Table, Table | None, bool], ...]] = (
    ("all: every argument matches", {"x-match": "all", "a": 1, "b": "t"}, {"a": 1, "b": "t"}, True),
    ("all: one is missing", {"x-match": "all", "a": 1, "b": "t"}, {"a": 1}, False),
    ("all: one differs", {"x-match": "all", "a": 1, "b": "t"}, {"a": 1, "b": "u"}, False),
    ("all: more headers do not matter", {"x-match": "all", "a": 1}, {"a": 1, "z": 2}, True),
    ("all: x- arguments are not considered", {"x-match": "all", "x-a": 1}, {}, True),
    ("no x-match counts as all", {"a": 1, "b": 2}, {"a": 1}, False),
    ("all: nothing to consider matches", {"x-match": "all"}, {}, True),
    ("no arguments match", {}, {"a": 1}, True),
    ("any: one is enough", {"x-match": "any", "a": 1, "b": 2}, {"b": 2}, True),
    ("any: none", {"x-match": "any", "a": 1, "b": 2}, {"a": 2}, False),
    ("any: nothing to consider never matches", {"x-match": "any"}, {"a": 1}, False),
    ("any: x- arguments are not considered", {"x-match": "any", "x-a": 1}, {"x-a": 1}, False),
    ("all-with-x: x- arguments count", {"x-match": "all-with-x", "x-a": 1}, {"x-a": 2}, False),
    ("all-with-x: and match", {"x-match": "all-with-x", "x-a": 1}, {"x-a": 1}, True),
    ("any-with-x: x- arguments count", {"x-match": "any-with-x", "x-a": 1}, {"x-a": 1}, True),
    ("any-with-x: none", {"x-match": "any-with-x", "x-a": 1, "b": 1}, {"x-a": 2}, False),
)
SAME: Final[tuple[tuple[str, Plain, Plain, bool], ...]] = (
    ("void matches any value", None, "anything", True),
    ("void matches a void", None, None, True),
    ("integers of other widths", Typed("b", 5), Typed("l", 5), True),
    ("unsigned against signed", Typed("B", 200), Typed("s", 200), True),
    ("other integers", 5, 6, False),
    ("equal longstrs", "text", "text", True),
    ("longstrs in another case", "text", "Text", False),
    ("a longstr and a number", "5", 5, False),
    ("equal bools", True, True, True),
    ("other bools", True, False, False),
    ("a bool and an integer", True, 1, False),
    ("equal floats", 1.5, 1.5, True),
    ("equal arrays", [1, "a"], [1, "a"], True),
    ("arrays in another order", [1, 2], [2, 1], False),
    ("equal tables", {"k": 1}, {"k": 1}, True),
    ("other tables", {"k": 1}, {"k": 2}, False),
)


def _headers_match(arguments: Table, headers: Table | None, wanted: bool, stage: Stage) -> None:
    channel = stage.channel()
    exchange = stage.exchange(channel, "headers")
    stage.bound(channel, exchange, "", arguments)
    if headers is None:
        channel.publish(exchange, "any key", "x", mandatory=True)
    else:
        channel.publish(exchange, "any key", "x", mandatory=True, headers=headers)
    channel.sync()
    is_returned = any(event.name == "basic.return" for event in channel.connection.inbox(1))
    equal(not is_returned, wanted, "matches")


for _what, _arguments, _headers, _wanted in HEADERS:
    case("EXCH-50", says=f"headers {_what}")(partial(_headers_match, _arguments, _headers, _wanted))
for _what, _argument, _header, _wanted in SAME:
    _says = f"{_what}: {'a match' if _wanted else 'no match'}"
    case("EXCH-51", says=_says)(
        partial(_headers_match, {"key": _argument}, {"key": _header}, _wanted)
    )
case("EXCH-51", says="an integer never equals a float", mark="≡4")(
    partial(_headers_match, {"key": 1}, {"key": 1.0}, False)
)
case("EXCH-51", says="void needs the header to be present")(
    partial(_headers_match, {"key": None}, {"other": 1}, False)
)
case("EXCH-53", says="a message without headers matches as one with an empty table")(
    partial(_headers_match, {"x-match": "all"}, None, True)
)
case("EXCH-53", says="a message without headers does not match an argument")(
    partial(_headers_match, {"a": 1}, None, False)
)


@case("EXCH-53", says="the routing key is ignored")
def key_is_ignored(stage: Stage) -> None:
    channel = stage.channel()
    exchange = stage.exchange(channel, "headers")
    queue = stage.bound(channel, exchange, "one key", {"a": 1})
    channel.publish(exchange, "another key", "x", headers={"a": 1})
    channel.holds(queue, 1)


def _bad_match(value: Plain, text: Text, stage: Stage) -> None:
    channel = stage.channel()
    queue = stage.queue(channel)
    with channel.soft(406, text, "queue.bind"):
        bind(channel, queue, {"x-match": value})


def bind(channel: Channel, queue: str, arguments: Table) -> None:
    """Bind to amq.headers."""
    channel.call("queue.bind", queue=queue, exchange="amq.headers", arguments=arguments)


case("EXCH-52", says="another x-match is soft 406")(
    partial(
        _bad_match,
        "most",
        'PRECONDITION_FAILED - Invalid x-match field value <<"most">>; '
        "expected all, any, all-with-x, or any-with-x",
    )
)
for _value, _type, _shown in (
    (Typed("I", 7), "signedint", "7"),
    (Typed("t", True), "bool", "true"),
    (Typed("l", -1), "long", "-1"),
    (Typed("V", None), "void", "undefined"),
):
    case("EXCH-52", says=f"x-match of type {_type} is soft 406")(
        partial(
            _bad_match,
            _value,
            f"PRECONDITION_FAILED - Invalid x-match field type {_type} (value {_shown}); "
            "expected longstr",
        )
    )
