"""Every row of the argument table: what is accepted, what is refused, and with which text."""

from __future__ import annotations

import pytest

from tests.unit.server.broker.stand_ins import integer
from vouchmq.protocol.errors import PreconditionFailed
from vouchmq.protocol.fields import Field, Table, boolean, long_int, longstr
from vouchmq.server.broker.features.options import (
    OPTIONS,
    check_arguments,
    dead_letter_exchange,
    queue_type_of,
    require_equivalent_arguments,
)

Q = "queue 'q' in vhost '/'"
QUORUM = {"x-queue-type": longstr("quorum")}
STREAM = {"x-queue-type": longstr("stream")}
INTEGERS = [
    "x-expires",
    "x-message-ttl",
    "x-max-length",
    "x-max-length-bytes",
    "x-max-priority",
    "x-delivery-limit",
    "x-consumer-timeout",
    "x-delayed-retry-min",
    "x-delayed-retry-max",
    "x-cache-size",
    "x-cache-ttl",
    "x-max-in-memory-length",
    "x-max-in-memory-bytes",
    "x-queue-version",
    "x-initial-cluster-size",
    "x-quorum-initial-group-size",
    "x-consumer-disconnected-timeout",
]
TEXTS = [
    "x-dead-letter-routing-key",
    "x-dead-letter-strategy",
    "x-overflow",
    "x-queue-type",
    "x-queue-mode",
    "x-delayed-retry-type",
    "x-cache-persistence",
    "x-deduplication-header",
    "x-queue-master-locator",
    "x-queue-leader-locator",
    "x-member-placement-tag",
]
BOOLEANS = ["x-single-active-consumer", "x-message-deduplication", "x-deduplication-dead-letter"]


def refusal(arguments: Table) -> str:
    with pytest.raises(PreconditionFailed) as refused:
        check_arguments(Q, arguments)
    return refused.value.reply_text


def why(arguments: Table, name: str) -> str:
    prefix = f"PRECONDITION_FAILED - invalid arg '{name}' for {Q}: "
    text = refusal(arguments)
    assert text.startswith(prefix)
    return text.removeprefix(prefix)


@pytest.mark.parametrize("name", INTEGERS)
@pytest.mark.parametrize(
    ("value", "type_name"),
    [
        (longstr("5"), "longstr"),
        (boolean(True), "bool"),
        (Field("d", 5.0), "double"),
        (Field("V", None), "void"),
        (Field("T", 5), "timestamp"),
    ],
)
def test_integer_argument_takes_integers_only(name: str, value: Field, type_name: str) -> None:
    assert why({name: value}, name) == f'"expected integer, got {type_name}"'


@pytest.mark.parametrize("name", [name for name in INTEGERS if name != "x-delivery-limit"])
@pytest.mark.parametrize("kind", ["b", "s", "I", "l"])
def test_integer_argument_is_not_negative(name: str, kind: str) -> None:
    assert why({name: integer(-1, kind)}, name) == "{value_negative,-1}"


@pytest.mark.parametrize("name", TEXTS)
def test_text_argument_takes_longstr_only(name: str) -> None:
    assert why({name: integer(5)}, name) == "{unacceptable_type,signedint}"


@pytest.mark.parametrize("name", BOOLEANS)
def test_boolean_argument_takes_bool_only(name: str) -> None:
    assert why({name: integer(1)}, name) == "{unacceptable_type,signedint}"


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("x-expires", integer(0), "{value_zero,0}"),
        ("x-cache-size", integer(0), "{value_zero,0}"),
        ("x-cache-ttl", integer(0), "{value_zero,0}"),
        ("x-expires", long_int(315_360_000_001), "{value_too_large,315360000001}"),
        ("x-message-ttl", long_int(315_360_000_001), "{value_too_large,315360000001}"),
        ("x-max-priority", integer(256), "{max_value_exceeded,256}"),
        ("x-dead-letter-routing-key", longstr("k"), "routing_key_but_no_dlx_defined"),
        ("x-overflow", longstr("z"), "invalid_overflow"),
        ("x-dead-letter-strategy", longstr("z"), "invalid_dlx_strategy"),
        ("x-queue-type", longstr("z"), "\"unsupported queue type 'z'\""),
        ("x-queue-mode", longstr("z"), "\"unsupported queue mode 'z'\""),
        ("x-queue-version", integer(3), "\"unsupported queue version '3'\""),
    ],
)
def test_value_out_of_range_is_refused_with_its_text(
    name: str, value: Field, expected: str
) -> None:
    assert why({name: value}, name) == expected


@pytest.mark.parametrize("age", ["", "D", "0D", "00s", "5", "5d", "5w", "-1D", "1D ", "1.5h", "٣D"])
def test_bad_age_is_refused(age: str) -> None:
    assert why({**STREAM, "x-max-age": longstr(age)}, "x-max-age") == "invalid_max_age"


@pytest.mark.parametrize("age", ["1Y", "10M", "7D", "07h", "120m", "5s"])
def test_good_age(age: str) -> None:
    check_arguments(Q, {**STREAM, "x-max-age": longstr(age)})


@pytest.mark.parametrize(
    ("arguments", "name", "module"),
    [
        ({"x-max-age": longstr("1D")}, "x-max-age", "rabbit_classic_queue"),
        ({"x-max-age": integer(5)}, "x-max-age", "rabbit_classic_queue"),
        (
            {"x-stream-max-segment-size-bytes": integer(-1)},
            "x-stream-max-segment-size-bytes",
            "rabbit_classic_queue",
        ),
        ({**QUORUM, "x-max-priority": integer(1)}, "x-max-priority", "rabbit_quorum_queue"),
        ({**STREAM, "x-expires": integer(0)}, "x-expires", "rabbit_stream_queue"),
        ({**STREAM, "x-overflow": longstr("z")}, "x-overflow", "rabbit_stream_queue"),
    ],
)
def test_argument_of_another_queue_type_is_refused_by_name(
    arguments: Table, name: str, module: str
) -> None:
    assert refusal(arguments) == (
        f"PRECONDITION_FAILED - invalid arg '{name}' for {Q} of queue type {module}"
    )


def test_of_two_arguments_of_another_type_the_first_sent_is_named() -> None:
    one, two = "x-stream-max-segment-size-bytes", "x-max-age"
    assert f"'{one}'" in refusal({one: integer(5), two: longstr("1D")})
    assert f"'{two}'" in refusal({two: longstr("1D"), one: integer(5)})


def test_bad_value_is_named_before_an_argument_of_another_type() -> None:
    assert why({"x-max-age": longstr("1D"), "x-overflow": longstr("z")}, "x-overflow")


def test_of_two_bad_values_the_first_of_the_table_is_named() -> None:
    arguments = {"x-overflow": longstr("z"), "x-message-ttl": integer(-1)}
    assert why(arguments, "x-message-ttl") == "{value_negative,-1}"


@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {"x-queue-type": longstr("classic")},
        {"x-max-priority": integer(0)},
        {"x-single-active-consumer": boolean(False)},
        {"x-message-deduplication": boolean(False)},
        {"x-delivery-limit": integer(-1)},
        {"x-consumer-timeout": integer(0)},
        {"x-delayed-retry-type": longstr("disabled")},
        {"x-queue-mode": longstr("lazy")},
        {"x-queue-version": integer(2)},
        {"x-queue-master-locator": longstr("min-masters")},
        {"x-queue-leader-locator": longstr("balanced")},
        {"x-initial-cluster-size": integer(3)},
        {"x-quorum-initial-group-size": integer(3)},
        {"x-max-in-memory-length": integer(3)},
        {"x-max-in-memory-bytes": integer(3)},
        {"x-consumer-disconnected-timeout": integer(3)},
        {"x-member-placement-tag": longstr("t")},
        {"x-unheard-of": Field("F", {})},
    ],
)
def test_what_has_no_effect_or_asks_for_none_is_accepted(arguments: Table) -> None:
    check_arguments(Q, arguments)


def test_dead_letter_exchange_of_wrong_type_has_its_own_text() -> None:
    with pytest.raises(PreconditionFailed) as refused:
        dead_letter_exchange(Q, {"x-dead-letter-exchange": integer(5)})
    assert refused.value.reply_text == (
        f"PRECONDITION_FAILED - invalid type 'signedint' for arg 'x-dead-letter-exchange' in {Q}"
    )
    assert dead_letter_exchange(Q, {"x-dead-letter-exchange": longstr("")}) == ""
    assert dead_letter_exchange(Q, {}) is None


def test_absent_queue_type_means_classic() -> None:
    assert queue_type_of({}) == "classic"
    require_equivalent_arguments(Q, {"x-queue-type": longstr("classic")}, {})
    require_equivalent_arguments(Q, {}, {"x-queue-type": longstr("classic")})


def test_integers_of_other_width_are_equivalent() -> None:
    declared, current = {"x-max-priority": integer(0, "s")}, {"x-max-priority": integer(0, "l")}
    require_equivalent_arguments(Q, declared, current)


def test_unknown_arguments_and_those_of_other_types_are_not_compared() -> None:
    require_equivalent_arguments(
        Q, {"x-unheard-of": integer(1), "x-max-age": longstr("1D")}, {"other": integer(2)}
    )


@pytest.mark.parametrize(
    ("received", "current", "name", "text"),
    [
        (
            {"x-message-ttl": integer(6), "x-overflow": longstr("z")},
            {"x-message-ttl": integer(5)},
            "x-message-ttl",
            "received '6' but current is '5'",
        ),
        (
            {"x-message-ttl": longstr("5")},
            {"x-message-ttl": integer(5)},
            "x-message-ttl",
            "received '5' but current is '5'",
        ),
        (
            {},
            {"x-overflow": longstr("drop-head")},
            "x-overflow",
            "received none but current is the value 'drop-head' of type 'longstr'",
        ),
        (
            {"x-expires": integer(5)},
            {},
            "x-expires",
            "received the value '5' of type 'signedint' but current is none",
        ),
        (
            {"x-queue-type": longstr("quorum")},
            {},
            "x-queue-type",
            "received the value 'quorum' of type 'longstr' but current is none",
        ),
        (
            {"x-single-active-consumer": boolean(True)},
            {"x-single-active-consumer": boolean(False)},
            "x-single-active-consumer",
            "received 'true' but current is 'false'",
        ),
    ],
)
def test_inequivalent_argument_is_told_with_both_values(
    received: Table, current: Table, name: str, text: str
) -> None:
    with pytest.raises(PreconditionFailed) as refused:
        require_equivalent_arguments(Q, received, current)
    assert refused.value.reply_text == (
        f"PRECONDITION_FAILED - inequivalent arg '{name}' for {Q}: {text}"
    )


def test_table_names_every_argument_once() -> None:
    names = [row.name for row in OPTIONS]
    assert len(names) == len(set(names))
