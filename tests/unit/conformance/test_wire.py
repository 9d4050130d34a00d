"""The suite's own codec: what it encodes is what AMQP 0-9-1 says, and it reads it back."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vouchmq.conformance import wire
from vouchmq.conformance.wire import Raw, Typed

FIELDS = (
    Typed("t", True),
    Typed("b", -128),
    Typed("B", 255),
    Typed("s", -32768),
    Typed("u", 65535),
    Typed("I", -(2**31)),
    Typed("i", 2**32 - 1),
    Typed("l", -(2**63)),
    Typed("L", 2**63 - 1),
    Typed("f", 1.5),
    Typed("d", 0.1),
    Typed("D", (2, 12345)),
    Typed("S", b"\xff\x00text"),
    Typed("x", b"\x00\x01"),
    Typed("A", (Typed("I", 1), Typed("S", b"a"))),
    Typed("T", 2**64 - 1),
    Typed("F", {"inner": Typed("t", False)}),
    Typed("V", None),
)


def test_a_frame_is_header_payload_and_end_octet() -> None:
    assert wire.frame(3, 258, b"ab") == b"\x03\x01\x02\x00\x00\x00\x02ab\xce"
    assert wire.frame(8, 0, b"", end=0) == b"\x08\x00\x00\x00\x00\x00\x00\x00"


def test_a_declare_has_the_octets_of_the_specification() -> None:
    payload = wire.method_payload(
        "queue.declare", queue="q", durable=True, nowait=True, arguments={"k": 1}
    )
    assert payload == (
        b"\x00\x32\x00\x0a"  # class 50, method 10
        b"\x00\x00"  # ticket
        b"\x01q"
        b"\x12"  # bits: durable is the second, no-wait the fifth
        b"\x00\x00\x00\x07\x01kI\x00\x00\x00\x01"
    )


def test_bits_that_are_parted_by_other_fields_do_not_share_an_octet() -> None:
    payload = wire.method_payload("basic.nack", delivery_tag=5, multiple=True, requeue=True)
    assert payload == b"\x00\x3c\x00\x78" + struct.pack(">Q", 5) + b"\x03"


@pytest.mark.parametrize("name", ["tx.commit", "queue.declare", "basic.deliver", "basic.consume"])
def test_every_method_without_arguments_reads_back_as_zeroes(name: str) -> None:
    method = wire.decode_method(wire.method_payload(name))
    assert method.name == name
    assert method.ids == wire.ids_of(name)
    assert not any(method.arguments.values())


def test_method_arguments_read_back() -> None:
    payload = wire.method_payload(
        "basic.deliver",
        consumer_tag="c €",
        delivery_tag=2**63,
        redelivered=True,
        exchange="x",
        routing_key="a.b",
    )
    assert wire.decode_method(payload).arguments == {
        "consumer_tag": "c €",
        "delivery_tag": 2**63,
        "redelivered": True,
        "exchange": "x",
        "routing_key": "a.b",
    }


def test_a_field_name_that_does_not_exist_is_a_mistake_of_the_case() -> None:
    with pytest.raises(TypeError, match="no_such_field"):
        wire.method_payload("basic.ack", no_such_field=1)


@pytest.mark.parametrize("field", FIELDS, ids=lambda field: field.kind)
def test_a_table_keeps_the_type_of_every_field(field: Typed) -> None:
    encoded = wire.encode_table({"key": field})
    assert encoded[:4] == struct.pack(">I", len(encoded) - 4)
    assert wire.decode_table(encoded[4:]) == {"key": field}


def test_plain_values_get_the_types_that_clients_use() -> None:
    decoded = wire.decode_table(
        wire.encode_table({"a": 1, "b": 2**40, "c": "s", "d": None, "e": 1.5, "f": [True]})[4:]
    )
    assert decoded == {
        "a": Typed("I", 1),
        "b": Typed("l", 2**40),
        "c": Typed("S", b"s"),
        "d": Typed("V", None),
        "e": Typed("d", 1.5),
        "f": Typed("A", (Typed("t", True),)),
    }


def test_plain_shows_nested_values_without_types() -> None:
    table: wire.Table = {"a": [1, "x", {"b": None}], "raw": Typed("x", b"\xff")}
    decoded = wire.decode_table(wire.encode_table(table)[4:])
    assert wire.plain(Typed("F", decoded)) == {"a": [1, "x", {"b": None}], "raw": b"\xff"}


def test_properties_stand_in_the_order_of_their_flags() -> None:
    block = wire.encode_properties(app_id="a", content_type="c", delivery_mode=2)
    assert block == b"\x90\x08\x01c\x02\x01a"
    assert wire.decode_properties(block) == {
        "content_type": "c",
        "delivery_mode": 2,
        "app_id": "a",
    }


def test_empty_properties_are_present() -> None:
    assert wire.decode_properties(wire.encode_properties(message_id="")) == {"message_id": ""}


def test_content_is_cut_to_the_frame_size() -> None:
    octets = wire.content(1, b"x" * 10, wire.encode_properties(), frame_max=8 + 4)
    header = wire.frame(2, 1, b"\x00\x3c\x00\x00" + struct.pack(">Q", 10) + b"\x00\x00")
    bodies = [wire.frame(3, 1, b"x" * size) for size in (4, 4, 2)]
    assert octets == header + b"".join(bodies)


def test_an_empty_content_has_no_body_frame() -> None:
    assert wire.content(1, b"", Raw(b"\x00\x00"), 4096).count(b"\xce") == 1


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"\x00\x32\x00",
        b"\x00\x63\x00\x63",
        wire.method_payload("queue.declare", queue="name")[:-1],
        wire.method_payload("queue.declare", queue="name") + b"\x00",
        wire.method_payload("queue.declare", arguments=Raw(b"\x00\x00\x00\x03\x01kZ")),
    ],
)
def test_what_is_not_a_method_is_an_error(payload: bytes) -> None:
    with pytest.raises(wire.WireError):
        wire.decode_method(payload)


def test_octets_behind_the_last_property_are_an_error() -> None:
    with pytest.raises(wire.WireError):
        wire.decode_properties(b"\x00\x00\x00")


def test_strings_that_are_not_utf_8_read_back_as_the_same_octets() -> None:
    payload = wire.method_payload("basic.cancel", consumer_tag=b"\xff\xfe")
    tag = wire.decode_method(payload).arguments["consumer_tag"]
    assert wire.method_payload("basic.cancel", consumer_tag=tag) == payload


@given(st.binary(max_size=64))
def test_any_octets_are_a_method_or_an_error(octets: bytes) -> None:
    try:
        method = wire.decode_method(octets)
    except wire.WireError:
        return
    assert method.ids == wire.ids_of(method.name)


scalars = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.text(max_size=20)
    | st.floats(allow_nan=False)
)
values = st.recursive(
    scalars,
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=10), inner, max_size=4)
    ),
    max_leaves=12,
)


@given(st.dictionaries(st.text(max_size=10), values, max_size=6))
def test_plain_tables_survive_the_way_there_and_back(table: dict[str, wire.Plain]) -> None:
    decoded = wire.decode_table(wire.encode_table(table)[4:])
    assert wire.plain(Typed("F", decoded)) == table
