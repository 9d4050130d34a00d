"""Property blocks: what is judged on arrival, what is decoded later, what may be edited."""

from __future__ import annotations

import struct
from types import GetSetDescriptorType

import pytest
from pamqp import commands

from tests.both_ways import both_ways
from vouchmq.protocol.errors import FrameError
from vouchmq.protocol.fields import Field, Table, encode_table, longstr
from vouchmq.protocol.properties import (
    EXAMINE,
    HEADERS,
    PERSISTENT,
    Properties,
    classify,
    with_reply_to,
    without_headers,
)


def short(text: bytes) -> bytes:
    """A shortstr."""
    return bytes((len(text),)) + text


ALL_VALUES = [
    short(b"text/plain"),
    short(b"gzip"),
    encode_table({"k": Field("l", 1)}),
    b"\x02",
    b"\x09",
    short(b"corr"),
    short(b"reply"),
    short(b"60000"),
    short(b"id"),
    b"\xff" * 8,
    short(b"type"),
    short(b"guest"),
    short(b"app"),
    short(b"cluster"),
]


def block_of(values: dict[int, bytes], extra_flags: int = 0) -> bytes:
    """A block of the properties whose index, 0 (content-type) to 13 (cluster-id), is given."""
    flags = sum(0x8000 >> index for index in values) | extra_flags
    return struct.pack(">H", flags) + b"".join(values[index] for index in sorted(values))


def with_headers(table: Table) -> bytes:
    """A block with headers and a message-id behind them."""
    return block_of({2: encode_table(table), 8: short(b"id")})


FULL = block_of(dict(enumerate(ALL_VALUES)))


class TestClassify:
    @pytest.mark.parametrize(
        ("properties", "mode"),
        [
            (commands.Basic.Properties(), 0),
            (commands.Basic.Properties(delivery_mode=1), 0),
            (commands.Basic.Properties(delivery_mode=2), PERSISTENT),
            (commands.Basic.Properties(content_type="a", delivery_mode=2), PERSISTENT),
            (commands.Basic.Properties(headers={"a": 1}), HEADERS),
            (commands.Basic.Properties(headers={"a": 1}, delivery_mode=2), HEADERS | PERSISTENT),
            (commands.Basic.Properties(headers={"CC": ["a"]}), HEADERS | EXAMINE),
            (commands.Basic.Properties(headers={"z": 1, "BCC": ["a"]}), HEADERS | EXAMINE),
            (commands.Basic.Properties(headers={"a": "CC", "xBCC": 1, "CCx": 1}), HEADERS),
            (commands.Basic.Properties(headers={"nested": {"CC": ["a"]}}), HEADERS),
            (commands.Basic.Properties(expiration="100"), EXAMINE),
            (commands.Basic.Properties(user_id="guest"), EXAMINE),
            (commands.Basic.Properties(reply_to="amq.rabbitmq.reply-to"), EXAMINE),
            (commands.Basic.Properties(reply_to="amq.rabbitmq.reply-to.g1h2"), 0),
            (commands.Basic.Properties(reply_to="queue", correlation_id="c", priority=4), 0),
            (commands.Basic.Properties(message_id="m", app_id="a", message_type="t"), 0),
        ],
    )
    def test_the_mode_says_what_needs_thought(
        self, properties: commands.Basic.Properties, mode: int
    ) -> None:
        assert both_ways(classify, properties.marshal()) == mode

    def test_all_fourteen_properties_are_walked(self) -> None:
        assert both_ways(classify, FULL) == PERSISTENT | HEADERS | EXAMINE

    def test_delivery_modes_other_than_2_are_transient(self) -> None:
        """FRAME-56: pamqp refuses them."""
        assert both_ways(classify, b"\x10\x00\x03") == 0
        assert both_ways(classify, b"\x18\x00\xff\x02") == 0

    def test_the_reserved_flag_is_ignored(self) -> None:
        """FRAME-40."""
        assert both_ways(classify, b"\x10\x02\x02") == PERSISTENT

    @pytest.mark.parametrize("block", [b"\x00\x01", b"\x10\x01\x02", FULL[:1] + b"\xfd" + FULL[2:]])
    def test_the_continuation_flag_is_refused(self, block: bytes) -> None:
        """FRAME-40."""
        with pytest.raises(FrameError):
            both_ways(classify, block)
        with pytest.raises(FrameError):
            Properties(block)

    @pytest.mark.parametrize("index", range(14))
    def test_each_property_must_have_all_its_octets(self, index: int) -> None:
        """FRAME-36: alone, so that no later length can hide it."""
        whole = block_of({index: ALL_VALUES[index]})
        both_ways(classify, whole)
        for size in range(2, len(whole)):
            with pytest.raises(FrameError, match="cannot decode <<") as raised:
                both_ways(classify, whole[:size])
            assert raised.value.ids == (60, 40)
            with pytest.raises(FrameError):
                Properties(whole[:size])

    def test_octets_left_over_are_refused(self) -> None:
        """FRAME-36."""
        for block in (b"\x00\x00\x00", b"\x10\x00\x02\x00", FULL + b"\x00"):
            with pytest.raises(FrameError):
                both_ways(classify, block)
            with pytest.raises(FrameError):
                Properties(block)

    def test_every_truncation_is_refused(self) -> None:
        """FRAME-36."""
        for size in range(len(FULL)):
            with pytest.raises(FrameError) as raised:
                both_ways(classify, FULL[:size])
            assert raised.value.ids == (60, 40)

    def test_headers_that_may_hold_copies_must_be_a_table(self) -> None:
        """FRAME-36."""
        for body in (b"\x02CC?", b"\x02CCS\x00\x00\x00\xff", b"CC"):
            with pytest.raises(FrameError) as raised:
                both_ways(classify, block_of({2: struct.pack(">I", len(body)) + body}))
            assert raised.value.ids == (60, 40)
        with pytest.raises(FrameError) as raised:
            both_ways(classify, b"\x20\x00\x00\x00\x00\xff\x02CCV")
        assert raised.value.ids == (60, 40)


class TestView:
    def test_every_property_is_found(self) -> None:
        view = Properties(FULL)
        assert view.content_type == "text/plain"
        assert view.content_encoding == "gzip"
        assert view.headers == {"k": Field("l", 1)}
        assert view.delivery_mode == 2
        assert view.priority == 9
        assert view.correlation_id == "corr"
        assert view.reply_to == "reply"
        assert view.expiration == "60000"
        assert view.message_id == "id"
        assert view.timestamp == 2**64 - 1
        assert view.type == "type"
        assert view.user_id == "guest"
        assert view.app_id == "app"
        assert view.cluster_id == "cluster"

    def test_what_is_not_there_is_none(self) -> None:
        view = Properties(b"\x00\x00")
        found = {
            name: getattr(view, name)
            for name, attribute in vars(Properties).items()
            # One that is compiled has the latter, for its other attributes as well.
            if isinstance(attribute, property | GetSetDescriptorType) and name[0] != "_"
        }
        assert len(found) == 14
        assert set(found.values()) == {None}

    def test_an_empty_text_is_there(self) -> None:
        """FRAME-56: pamqp loses it."""
        assert Properties(block_of({7: b"\x00"})).expiration == ""

    def test_headers_are_decoded_once(self) -> None:
        view = Properties(FULL)
        assert view.headers is view.headers

    def test_headers_that_cannot_be_read_are_refused_before_they_are_stored(self) -> None:
        """FRAME-36, FRAME-50."""
        block = block_of({2: b"\x00\x00\x00\x03\x01k?"})
        for _ in range(2):
            with pytest.raises(FrameError) as raised:
                both_ways(classify, block)
            assert raised.value.ids == (60, 40)


class TestEditing:
    def test_named_headers_go_and_the_rest_stays_bit_for_bit(self) -> None:
        """FRAME-53."""
        kept_a = b"\x01at\x07"
        kept_b = b"\x02\xff\xfeT" + b"\xff" * 8
        gone = b"\x03BCCA\x00\x00\x00\x06S\x00\x00\x00\x01q"
        body = kept_a + gone + kept_b + gone + kept_a
        left = kept_a + kept_b + kept_a
        before = {0: short(b"t"), 2: struct.pack(">I", len(body)) + body, 9: b"\xff" * 8}
        after = before | {2: struct.pack(">I", len(left)) + left}
        assert without_headers(block_of(before, 2), {"BCC"}) == block_of(after, 2)

    def test_a_table_without_its_last_header_stays_as_an_empty_one(self) -> None:
        assert without_headers(with_headers({"BCC": longstr("x")}), {"BCC"}) == with_headers({})

    def test_a_block_without_such_headers_is_the_same(self) -> None:
        assert without_headers(FULL, {"BCC"}) == FULL
        assert without_headers(b"\x10\x00\x02", {"BCC"}) == b"\x10\x00\x02"

    @pytest.mark.parametrize("body", [b"\x09k", b"\x01k", b"\x01k?", b"\x01"])
    def test_headers_that_are_no_table_are_refused(self, body: bytes) -> None:
        block = block_of({2: struct.pack(">I", len(body)) + body})
        with pytest.raises(FrameError) as raised:
            without_headers(block, {"BCC"})
        assert raised.value.ids == (60, 40)

    def test_reply_to_is_replaced_in_its_place(self) -> None:
        values = dict(enumerate(ALL_VALUES))
        assert with_reply_to(FULL, "new") == block_of(values | {6: short(b"new")})

    @pytest.mark.parametrize("others", [[], [0], [5], [7], [13], [2, 3], [5, 7], [0, 2, 8]])
    def test_reply_to_is_put_where_it_belongs(self, others: list[int]) -> None:
        values = {index: ALL_VALUES[index] for index in others}
        assert with_reply_to(block_of(values), "q") == block_of(values | {6: short(b"q")})
