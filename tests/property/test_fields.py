"""Tables of any shape survive the wire, and no octets make the decoder raise anything untyped."""

from __future__ import annotations

import struct

from hypothesis import given
from hypothesis import strategies as st
from pamqp import decode as pamqp_decode

from tests.property.field_tables import fields, integers, tables
from vouchmq.protocol.errors import FrameError
from vouchmq.protocol.fields import (
    Field,
    Table,
    decode_table,
    encode_table,
    header_equal,
    render,
    same_value,
    type_name,
)


@given(tables)
def test_tables_round_trip_with_types_and_order(table: Table) -> None:
    """FRAME-50, FRAME-53."""
    octets = encode_table(table)
    decoded = decode_table(octets[4:])
    assert struct.unpack_from(">I", octets)[0] == len(octets) - 4
    assert list(decoded.items()) == list(table.items())
    assert encode_table(decoded) == octets


@given(tables, st.data())
def test_a_truncated_table_is_a_shorter_table_or_a_frame_error(
    table: Table, data: st.DataObject
) -> None:
    """FRAME-15."""
    body = encode_table(table)[4:]
    cut = body[: data.draw(st.integers(0, len(body)))]
    try:
        decoded = decode_table(cut)
    except FrameError as error:
        assert error.text.startswith("cannot decode <<")
    else:
        assert list(decoded.items()) == list(table.items())[: len(decoded)]


@given(tables, st.lists(st.tuples(st.integers(0), st.integers(0, 255)), min_size=1, max_size=4))
def test_a_damaged_table_is_another_table_or_a_frame_error(
    table: Table, damage: list[tuple[int, int]]
) -> None:
    """FRAME-15."""
    body = bytearray(encode_table(table)[4:])
    for position, octet in damage:
        if body:
            body[position % len(body)] = octet
    decode_or_refuse(bytes(body))


@given(st.binary(max_size=200))
def test_any_octets_are_a_table_or_a_frame_error(body: bytes) -> None:
    """FRAME-15."""
    decode_or_refuse(body)


def decode_or_refuse(body: bytes) -> None:
    """Decode, and do with the result all that the broker would do with it."""
    try:
        table = decode_table(body)
    except FrameError:
        return
    for field in table.values():
        assert type_name(field)
        render(field)
    # A key that is relayed keeps its octets; a NaN is equal to nothing, so octets are compared.
    octets = encode_table(table)
    assert encode_table(decode_table(octets[4:])) == octets


@given(fields)
def test_a_value_is_equivalent_to_itself(field: Field) -> None:
    """QUEUE-23, EXCH-51."""
    assert same_value(field, field)
    assert header_equal(field, field)


@given(fields, fields)
def test_equivalence_has_no_direction(a: Field, b: Field) -> None:
    """QUEUE-23, EXCH-51."""
    assert same_value(a, b) == same_value(b, a)
    assert header_equal(a, b) == header_equal(b, a)
    # A header comparison is the stricter of the two.
    assert same_value(a, b) or not header_equal(a, b)


def as_pamqp(field: Field) -> object:
    """The value that pamqp gives for a field, as far as it keeps it."""
    value = field.value
    if field.kind == "F" and isinstance(value, dict):
        return {key: as_pamqp(each) for key, each in value.items()}
    if field.kind == "S" and isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError:
            return value
    return value


plain = st.one_of(
    integers("b", 8, signed=True),
    integers("s", 16, signed=True),
    integers("u", 16, signed=False),
    integers("I", 32, signed=True),
    integers("i", 32, signed=False),
    integers("l", 64, signed=True),
    st.booleans().map(lambda value: Field("t", value)),
    st.floats(allow_nan=False).map(lambda value: Field("d", value)),
    st.binary(max_size=20).map(lambda value: Field("S", value)),
    st.just(Field("V", None)),
)
names = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)


@given(st.dictionaries(names, st.one_of(plain, st.dictionaries(names, plain, max_size=3).map(
    lambda table: Field("F", table))), max_size=5))  # fmt: skip
def test_pamqp_reads_the_same_values_where_it_can(table: Table) -> None:
    octets = encode_table(table)
    consumed, theirs = pamqp_decode.field_table(octets)
    assert consumed == len(octets)
    assert theirs == as_pamqp(Field("F", table))
