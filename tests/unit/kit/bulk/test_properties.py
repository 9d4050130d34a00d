"""Properties to bytes and back, against pamqp's own reading, and bytes that are no properties."""

from __future__ import annotations

import datetime
from decimal import Decimal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pamqp.commands import Basic

from vouchmq.kit.bulk.errors import PropertiesError
from vouchmq.kit.bulk.properties import NAMES, decode_properties, encode_properties

NOON = datetime.datetime(2026, 1, 31, 12, 0, tzinfo=datetime.UTC)
EVERYTHING: dict[str, object] = {
    "content_type": "application/json",
    "content_encoding": "utf-8",
    "headers": {
        "text": "заказ",
        "small": 7,
        "big": 2**40,
        "half": 0.1,
        "yes": True,
        "none": None,
        "bytes": b"\x00\xff",
        "when": NOON,
        "price": Decimal("12.50"),
        "list": [1, "two", [3.5, {"deep": "er"}]],
        "table": {"a": {"b": "c"}},
    },
    "delivery_mode": 2,
    "priority": 9,
    "correlation_id": "c-1",
    "reply_to": "answers",
    "expiration": "60000",
    "message_id": "m-1",
    "timestamp": NOON,
    "message_type": "order.placed",
    "user_id": "guest",
    "app_id": "shop",
}


def read_back(properties: dict[str, object]) -> dict[str, object]:
    decoded = decode_properties(encode_properties(properties))
    return {name: getattr(decoded, name) for name in NAMES if getattr(decoded, name) is not None}


def test_every_property_is_read_back() -> None:
    read = read_back(EVERYTHING)
    expected = dict(EVERYTHING)
    headers = dict(EVERYTHING["headers"])  # type: ignore[call-overload]  # a dict, above
    # Byte strings that are no text stay bytes; the rest is what it was.
    expected["headers"] = headers
    got = dict(read["headers"])  # type: ignore[call-overload]  # a dict, from pamqp
    assert got.pop("price") == headers.pop("price")
    assert got == headers
    del read["headers"], expected["headers"]
    assert read == expected


def test_a_float_keeps_all_its_digits() -> None:
    assert read_back({"headers": {"x": 0.1}}) == {"headers": {"x": 0.1}}


@pytest.mark.parametrize("name", [name for name in NAMES if name != "headers"])
def test_each_property_alone_is_read_back(name: str) -> None:
    assert read_back({name: EVERYTHING[name]}) == {name: EVERYTHING[name]}


def test_nothing_at_all_is_two_bytes() -> None:
    assert encode_properties(None) == encode_properties({}) == b"\x00\x00"
    assert encode_properties(Basic.Properties()) == b"\x00\x00"
    assert encode_properties({"priority": None}) == b"\x00\x00"


def test_pamqps_own_properties_are_taken() -> None:
    made = Basic.Properties(message_id="m", delivery_mode=2, headers={"a": 1})
    assert encode_properties(made) == encode_properties(
        {"message_id": "m", "delivery_mode": 2, "headers": {"a": 1}}
    )


def test_type_is_another_word_for_message_type() -> None:
    assert encode_properties({"type": "t"}) == encode_properties({"message_type": "t"})


@pytest.mark.parametrize(
    ("properties", "text"),
    [
        ({"colour": "red"}, "no property 'colour'"),
        ({"priority": 256}, "priority: must be a number from 0 to 255"),
        ({"priority": "9"}, "priority: must be a number"),
        ({"message_id": 5}, "message_id: must be a string, not 5"),
        ({"message_id": "x" * 256}, "message_id: is longer than 255 bytes"),
        ({"timestamp": "today"}, "timestamp: must be a datetime or seconds"),
        ({"timestamp": -1}, "timestamp: "),
        ({"headers": [1]}, "headers: must be a mapping"),
        ({"headers": {"k" * 256: 1}}, "headers: is longer than 255 bytes"),
        ({"headers": {5: 1}}, "headers: must be a string, not 5"),
        ({"headers": {"x": object()}}, "headers: "),
        ({"headers": {"x": 2**63}}, "headers: "),
    ],
)
def test_a_value_that_does_not_fit_is_named(properties: dict[str, object], text: str) -> None:
    with pytest.raises(PropertiesError, match=text):
        encode_properties(properties)


@settings(deadline=None)
@given(st.binary(max_size=80))
def test_bytes_are_properties_or_an_error_of_ours(raw: bytes) -> None:
    try:
        decode_properties(raw)
    except PropertiesError as error:
        assert str(error)


values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner),
    max_leaves=8,
)


@settings(deadline=None)
@given(st.dictionaries(st.text(st.characters(codec="utf-8"), max_size=20), values, max_size=6))
def test_any_table_is_read_back(headers: dict[str, object]) -> None:
    assert decode_properties(encode_properties({"headers": headers})).headers == headers
