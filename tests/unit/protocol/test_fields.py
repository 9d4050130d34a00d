"""Field tables: the octets of every type, look-ups, comparison and the texts in errors."""

from __future__ import annotations

import struct

import pytest

from vouchmq.protocol.errors import FrameError
from vouchmq.protocol.fields import (
    Field,
    Table,
    as_integer,
    as_table,
    as_text,
    boolean,
    decode_shortstr,
    decode_table,
    decode_table_at,
    encode_shortstr,
    encode_table,
    header_equal,
    long_int,
    longstr,
    render,
    same_value,
    timestamp,
    type_name,
)

ONE_OF_EACH: list[tuple[bytes, Field, str]] = [
    (b"t\x01", Field("t", True), "bool"),
    (b"b\xff", Field("b", -1), "byte"),
    (b"B\xff", Field("B", 255), "unsignedbyte"),
    (b"s\xff\xfe", Field("s", -2), "short"),
    (b"u\xff\xfe", Field("u", 65534), "unsignedshort"),
    (b"I\xff\xff\xff\xff", Field("I", -1), "signedint"),
    (b"i\xff\xff\xff\xff", Field("i", 2**32 - 1), "unsignedint"),
    (b"l" + b"\xff" * 8, Field("l", -1), "long"),
    (b"L" + b"\xff" * 8, Field("L", -1), "long"),
    (b"f\x3f\xc0\x00\x00", Field("f", 1.5), "float"),
    (b"d" + struct.pack(">d", 0.1), Field("d", 0.1), "double"),
    (b"D\x02\xff\xff\xff\xff", Field("D", (2, 2**32 - 1)), "decimal"),
    (b"S\x00\x00\x00\x02\xff\xfe", Field("S", b"\xff\xfe"), "longstr"),
    (b"x\x00\x00\x00\x01\x00", Field("x", b"\x00"), "binary"),
    (b"A\x00\x00\x00\x03Vt\x00", Field("A", (Field("V", None), Field("t", False))), "array"),
    (b"T" + b"\xff" * 8, Field("T", 2**64 - 1), "timestamp"),
    (b"F\x00\x00\x00\x03\x01kV", Field("F", {"k": Field("V", None)}), "table"),
    (b"V", Field("V", None), "void"),
]


def nested(levels: int) -> bytes:
    """The body of a table with `levels` tables inside each other."""
    body = b""
    for _ in range(levels):
        body = b"\x01nF" + struct.pack(">I", len(body)) + body
    return body


class TestDecoding:
    @pytest.mark.parametrize(("octets", "field", "name"), ONE_OF_EACH)
    def test_every_type_is_read_as_rabbitmq_reads_it(
        self, octets: bytes, field: Field, name: str
    ) -> None:
        """FRAME-50, FRAME-51."""
        assert decode_table(b"\x01k" + octets) == {"k": field}
        assert encode_table({"k": field})[4:] == b"\x01k" + octets
        assert type_name(field) == name

    def test_any_octet_but_zero_is_true(self) -> None:
        assert decode_table(b"\x01kt\x07") == {"k": Field("t", True)}

    @pytest.mark.parametrize("kind", sorted(set(map(chr, range(256))) - set("tbBsuIilLfdDSxATFV")))
    def test_any_other_type_is_refused(self, kind: str) -> None:
        """FRAME-50."""
        with pytest.raises(FrameError, match="cannot decode <<"):
            decode_table(b"\x01k" + kind.encode("latin-1") + bytes(16))

    def test_order_of_keys_is_kept_and_the_first_duplicate_found(self) -> None:
        """FRAME-54."""
        table = decode_table(b"\x01bb\x01" + b"\x01ab\x02" + b"\x01bb\x03")
        assert list(table.items()) == [("b", Field("b", 1)), ("a", Field("b", 2))]

    def test_keys_need_not_be_utf8(self) -> None:
        """FRAME-54."""
        body = b"\x02\xff\xfeV"
        table = decode_table(body)
        assert list(table) == ["\udcff\udcfe"]
        assert encode_table(table)[4:] == body

    @pytest.mark.parametrize("body", [b"\x01", b"\x01k", b"\x02kV", b"\x01kS\x00\x00\x00\x02a"])
    def test_a_table_that_ends_too_early_is_refused(self, body: bytes) -> None:
        """FRAME-15."""
        with pytest.raises(FrameError):
            decode_table(body)

    def test_a_nested_length_may_not_reach_past_its_table(self) -> None:
        """FRAME-15."""
        inner = b"\x01kS\x00\x00\x00\x05abcde"
        cut = b"\x01tF" + struct.pack(">I", len(inner) - 1) + inner
        with pytest.raises(FrameError):
            decode_table(cut)

    def test_a_table_nests_64_deep_and_no_deeper(self) -> None:
        """FRAME-54."""
        table: Table | None = decode_table(nested(64))
        depth = 0
        while table:
            table = as_table(table["n"])
            depth += 1
        assert depth == 64
        with pytest.raises(FrameError):
            decode_table(nested(65))

    def test_arrays_count_as_nesting(self) -> None:
        """FRAME-54: or a peer could exhaust the stack with them."""
        body = b""
        for _ in range(5000):
            body = b"A" + struct.pack(">I", len(body)) + body
        with pytest.raises(FrameError):
            decode_table(b"\x01a" + body)

    def test_a_table_is_found_at_its_offset(self) -> None:
        data = b"??" + encode_table({"k": long_int(5)}) + b"!"
        table, offset = decode_table_at(data, 2)
        assert table == {"k": Field("l", 5)}
        assert data[offset:] == b"!"

    @pytest.mark.parametrize("data", [b"", b"\x00\x00\x00", b"\x00\x00\x00\x01"])
    def test_a_length_past_the_end_is_refused(self, data: bytes) -> None:
        with pytest.raises(FrameError):
            decode_table_at(data, 0)


class TestShortstr:
    def test_round_trip(self) -> None:
        octets = encode_shortstr("a/ü")
        assert octets == b"\x04a/\xc3\xbc"
        assert decode_shortstr(b"_" + octets + b"_", 1) == ("a/ü", 6)

    def test_over_255_octets_it_is_cut(self) -> None:
        """GEN-03, FRAME-56."""
        octets = encode_shortstr("€" * 100)
        assert octets[0] == 255
        assert octets[1:].decode() == "€" * 85

    @pytest.mark.parametrize("data", [b"", b"\x02a"])
    def test_a_truncated_one_is_refused(self, data: bytes) -> None:
        with pytest.raises(FrameError):
            decode_shortstr(data, 0)


class TestWriting:
    def test_what_the_broker_writes_has_the_types_of_the_specification(self) -> None:
        """FRAME-55."""
        assert longstr("ü") == Field("S", b"\xc3\xbc")
        assert longstr(b"\xff") == Field("S", b"\xff")
        assert long_int(3) == Field("l", 3)
        assert boolean(False) == Field("t", False)
        assert timestamp(9) == Field("T", 9)

    def test_a_field_of_two_minds_is_a_bug(self) -> None:
        with pytest.raises(TypeError):
            encode_table({"k": Field("S", 5)})


class TestReading:
    def test_text_is_that_of_a_longstr_only(self) -> None:
        assert as_text(longstr("a\udcff")) == "a\udcff"
        assert as_text(Field("x", b"a")) is None
        assert as_text(None) is None

    def test_integer_is_that_of_the_integer_types_only(self) -> None:
        assert [as_integer(Field(kind, 7)) for kind in "bBsuIilL"] == [7] * 8
        assert as_integer(Field("t", True)) is None
        assert as_integer(Field("T", 7)) is None
        assert as_integer(Field("d", 7.0)) is None
        assert as_integer(None) is None

    def test_table_is_that_of_a_table_only(self) -> None:
        assert as_table(Field("F", {})) == {}
        assert as_table(longstr("F")) is None
        assert as_table(None) is None


class TestEquivalence:
    """QUEUE-23, FRAME-52."""

    def test_integers_of_all_widths_are_one_class(self) -> None:
        kinds = "bBsuIilL"
        assert all(same_value(Field(a, 5), Field(b, 5)) for a in kinds for b in kinds)
        assert not same_value(Field("s", 5), Field("l", 6))

    def test_float_and_double_are_one_class(self) -> None:
        assert same_value(Field("f", 1.5), Field("d", 1.5))
        assert not same_value(Field("d", 1.0), Field("l", 1))

    def test_a_bool_is_no_integer(self) -> None:
        assert not same_value(Field("t", True), Field("b", 1))

    def test_a_longstr_is_no_byte_array(self) -> None:
        assert not same_value(Field("S", b"1"), Field("x", b"1"))

    def test_a_timestamp_is_no_integer(self) -> None:
        assert not same_value(Field("T", 1), Field("l", 1))

    def test_present_never_equals_missing(self) -> None:
        assert same_value(None, None)
        assert not same_value(Field("V", None), None)
        assert not same_value(None, Field("V", None))

    def test_what_is_nested_is_compared_deeply(self) -> None:
        a = Field("F", {"x": Field("A", (Field("b", 1), Field("f", 0.5))), "y": longstr("s")})
        b = Field("F", {"y": longstr("s"), "x": Field("A", (Field("l", 1), Field("d", 0.5)))})
        assert same_value(a, b)
        assert not same_value(a, Field("F", {"y": longstr("s")}))
        assert not same_value(Field("A", ()), Field("A", (Field("V", None),)))
        assert not same_value(Field("A", (Field("t", True),)), Field("A", (Field("b", 1),)))


class TestHeaderEquality:
    """EXCH-51."""

    def test_integers_are_equal_by_value_over_all_widths(self) -> None:
        assert header_equal(Field("b", 1), Field("l", 1))

    def test_an_integer_never_equals_a_float_nor_a_string_a_number(self) -> None:
        assert not header_equal(Field("l", 1), Field("d", 1.0))
        assert not header_equal(longstr("1"), Field("l", 1))
        assert not header_equal(Field("t", True), Field("l", 1))

    def test_tables_and_arrays_are_compared_deeply(self) -> None:
        a = Field("F", {"a": Field("A", (Field("b", 1), longstr("x")))})
        assert header_equal(a, Field("F", {"a": Field("A", (Field("I", 1), longstr("x")))}))
        assert not header_equal(a, Field("F", {"a": Field("A", (Field("I", 1), longstr("y")))}))

    def test_strings_are_compared_octet_by_octet(self) -> None:
        assert header_equal(longstr(b"\xff"), longstr(b"\xff"))
        assert not header_equal(longstr("A"), longstr("a"))


@pytest.mark.parametrize(
    ("field", "text"),
    [
        (longstr("dlx"), "dlx"),
        (longstr(b"\xff"), "\udcff"),
        (Field("x", b"raw"), "raw"),
        (Field("t", True), "true"),
        (Field("t", False), "false"),
        (Field("s", 5000), "5000"),
        (Field("T", 7), "7"),
        (Field("d", 1.5), "1.5"),
        (Field("d", 1e22), "1.0e22"),
        (Field("d", 1.5e-9), "1.5e-9"),
        (Field("D", (2, 314)), "{2,314}"),
        (Field("V", None), "undefined"),
        (Field("F", {"k": longstr("v"), "é": long_int(1)}),
         '[{<<"k">>,longstr,<<"v">>},{<<195,169>>,long,1}]'),
        (Field("A", (boolean(True), Field("F", {}))), "[{bool,true},{table,[]}]"),
    ],
)  # fmt: skip
def test_values_are_shown_as_error_texts_show_them(field: Field, text: str) -> None:
    """QUEUE-22."""
    assert render(field) == text
