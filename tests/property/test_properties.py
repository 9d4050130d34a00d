"""Property blocks of any content: one walk never disagrees with another, nor with pamqp."""

from __future__ import annotations

import struct

from hypothesis import assume, given
from hypothesis import strategies as st
from pamqp import header as pamqp_header

from tests.both_ways import both_ways
from tests.property.field_tables import tables
from vouchmq.protocol.errors import FrameError, InternalError
from vouchmq.protocol.fields import Table, encode_table
from vouchmq.protocol.properties import (
    EXAMINE,
    HEADERS,
    PERSISTENT,
    Properties,
    classify,
    with_normalized_headers,
    with_reply_to,
    without_headers,
)
from vouchmq.protocol.text import encode_text

TEXTS = [0, 1, 5, 6, 7, 8, 10, 11, 12, 13]
OCTETS = [3, 4]
HEADERS_INDEX = 2
TIMESTAMP_INDEX = 9
NAMES = [
    "content_type",
    "content_encoding",
    "headers",
    "delivery_mode",
    "priority",
    "correlation_id",
    "reply_to",
    "expiration",
    "message_id",
    "timestamp",
    "type",
    "user_id",
    "app_id",
    "cluster_id",
]

copies = st.sets(st.sampled_from(["CC", "BCC", "ACC", "k"]), max_size=3)
headers = st.one_of(tables, st.tuples(tables, copies).map(lambda two: two[0] | renamed(*two)))


def renamed(table: Table, keys: set[str]) -> Table:
    """Fields of the table under the given keys, so that CC and BCC come up."""
    return dict(zip(sorted(keys), table.values(), strict=False))


texts = st.one_of(
    st.binary(max_size=30),
    st.sampled_from([b"", b"amq.rabbitmq.reply-to", b"amq.rabbitmq.reply-to.x", b"x" * 255]),
).map(lambda text: bytes((len(text),)) + text)
values: st.SearchStrategy[dict[int, bytes]] = st.fixed_dictionaries(
    {},
    optional={
        **dict.fromkeys(TEXTS, texts),
        **dict.fromkeys(OCTETS, st.one_of(st.just(b"\x02"), st.binary(min_size=1, max_size=1))),
        HEADERS_INDEX: headers.map(encode_table),
        TIMESTAMP_INDEX: st.binary(min_size=8, max_size=8),
    },
)


def block_of(properties: dict[int, bytes]) -> bytes:
    """The block of the properties given by index."""
    flags = sum(0x8000 >> index for index in properties)
    return struct.pack(">H", flags) + b"".join(properties[index] for index in sorted(properties))


def is_odd(block: bytes) -> bool:
    """Whether there are headers to be normalized; test_normalized.py says which."""
    try:
        return with_normalized_headers(block) is not block
    except InternalError:
        return True


def expected_mode(view: Properties, block: bytes) -> int:
    """The mode by its definition, from the decoded view."""
    table = view.headers
    examined = (
        view.expiration is not None
        or view.user_id is not None
        or view.reply_to == "amq.rabbitmq.reply-to"
        or (table is not None and ("CC" in table or "BCC" in table))
        or is_odd(block)
    )
    return (
        (PERSISTENT if view.delivery_mode == 2 else 0)
        | (EXAMINE if examined else 0)
        | (HEADERS if table is not None else 0)
    )


@given(values)
def test_classify_says_what_the_decoded_properties_say(properties: dict[int, bytes]) -> None:
    block = block_of(properties)
    assert both_ways(classify, block) == expected_mode(Properties(block), block)


@given(values)
def test_the_view_gives_every_value_as_it_was_written(properties: dict[int, bytes]) -> None:
    view = Properties(block_of(properties))
    for index, name in enumerate(NAMES):
        value = getattr(view, name)
        if index not in properties:
            assert value is None
        elif index == HEADERS_INDEX:
            assert encode_table(value) == properties[index]
        elif index in TEXTS:
            assert encode_text(value) == properties[index][1:]
        else:
            assert value == int.from_bytes(properties[index], "big")


@given(values)
def test_pamqp_sees_the_same_where_it_can(properties: dict[int, bytes]) -> None:
    block = block_of(properties)
    content = pamqp_header.ContentHeader()
    try:
        content.unmarshal(struct.pack(">HHQ", 60, 0, 0) + block)
    except (ValueError, OverflowError, OSError):
        assume(False)
    theirs = content.properties
    view = Properties(block)
    mode = both_ways(classify, block)
    assert theirs.delivery_mode == view.delivery_mode
    assert (theirs.delivery_mode == 2) == bool(mode & PERSISTENT)
    assert (theirs.headers is not None) == bool(mode & HEADERS)
    examined = (
        theirs.expiration is not None
        or theirs.user_id is not None
        or theirs.reply_to == "amq.rabbitmq.reply-to"
        or bool({"CC", "BCC"} & (theirs.headers or {}).keys())
        or is_odd(block)
    )
    assert examined == bool(mode & EXAMINE)
    for name in ("content_type", "correlation_id", "reply_to", "expiration", "message_id"):
        assert getattr(theirs, name) == getattr(view, name)


def judge(block: bytes) -> None:
    """Whatever the octets are: a mode or a typed error, and both walks of one mind."""
    try:
        mode = both_ways(classify, block)
    except FrameError as error:
        assert error.ids == (60, 40)
        # The view leaves the inside of the headers for later; then it finds the fault, too.
        try:
            table = Properties(block).headers
        except FrameError as late:
            assert late.ids == (60, 40)
        else:
            raise AssertionError(f"only one walk refused {block!r}: {table!r}")
        return
    view = Properties(block)
    try:
        assert mode == expected_mode(view, block)
    except FrameError as error:
        assert mode & HEADERS
        assert error.ids == (60, 40)


@given(values, st.data())
def test_every_truncation_is_refused(properties: dict[int, bytes], data: st.DataObject) -> None:
    """FRAME-36."""
    block = block_of(properties)
    cut = block[: data.draw(st.integers(0, len(block) - 1))]
    try:
        both_ways(classify, cut)
    except FrameError as error:
        assert error.ids == (60, 40)
    else:
        raise AssertionError(f"accepted {cut!r}")
    judge(cut)


@given(values, st.lists(st.tuples(st.integers(0), st.integers(0, 255)), min_size=1, max_size=4))
def test_damage_is_read_otherwise_or_refused(
    properties: dict[int, bytes], damage: list[tuple[int, int]]
) -> None:
    """FRAME-36."""
    block = bytearray(block_of(properties))
    for position, octet in damage:
        block[position % len(block)] = octet
    judge(bytes(block))


@given(st.binary(max_size=100))
def test_any_octets_are_judged(block: bytes) -> None:
    """FRAME-36."""
    judge(block)


@given(values, st.sets(st.sampled_from(["CC", "BCC", "k"])))
def test_removing_headers_leaves_all_else_bit_for_bit(
    properties: dict[int, bytes], keys: set[str]
) -> None:
    """FRAME-53."""
    block = block_of(properties)
    table = Properties(block).headers
    if table is None:
        assert without_headers(block, keys) == block
        return
    left = {key: field for key, field in table.items() if key not in keys}
    assert without_headers(block, keys) == block_of(
        properties | {HEADERS_INDEX: encode_table(left)}
    )


@given(values, st.text(max_size=40))
def test_setting_reply_to_leaves_all_else_bit_for_bit(
    properties: dict[int, bytes], reply_to: str
) -> None:
    """FRAME-53."""
    octets = encode_text(reply_to)
    wanted = properties | {6: bytes((len(octets),)) + octets}
    assert with_reply_to(block_of(properties), reply_to) == block_of(wanted)
