"""Where properties stand in a block, judged by pamqp, which has a table of its own."""

from __future__ import annotations

import struct

import pytest
from pamqp import commands
from pamqp.header import ContentHeader

from vouchmq.protocol.property_layout import FLAG_OF, PROPERTIES, properties_of, walk

ALL = commands.Basic.Properties(
    content_type="text/plain",
    content_encoding="gzip",
    headers={"tenant": "north"},
    delivery_mode=2,
    priority=7,
    correlation_id="c",
    reply_to="replies",
    expiration="1000",
    message_id="",
    message_type="kind",
    user_id="guest",
    app_id="app",
)


def _block(properties: commands.Basic.Properties) -> bytes:
    """What stands behind class, weight and body size, without the frame's head and end."""
    return bytes(ContentHeader(properties=properties).marshal())[12:]


def _name(theirs: str) -> str:
    return "type" if theirs == "message_type" else theirs


def test_names_and_flags_are_those_of_amqp() -> None:
    theirs = {_name(name): flag for name, flag in commands.Basic.Properties.flags.items()}
    assert theirs == FLAG_OF
    assert [name for name, _ in PROPERTIES] == sorted(FLAG_OF, key=lambda name: -FLAG_OF[name])


def test_every_property_is_found_where_it_stands() -> None:
    block = _block(ALL)
    flags, spans, end = walk(block)
    assert end == len(block)
    assert flags == sum(spans)
    found = {name: block[slice(*spans[FLAG_OF[name]])] for name in ("priority", "reply_to", "type")}
    assert found == {"priority": b"\x07", "reply_to": b"\x07replies", "type": b"\x04kind"}
    assert block[slice(*spans[FLAG_OF["headers"]])].endswith(b"\x05north")


@pytest.mark.parametrize("name", [name for name, _ in PROPERTIES])
def test_a_property_alone_begins_behind_the_flags(name: str) -> None:
    flag = FLAG_OF[name]
    value = {"headers": b"\0\0\0\0", "timestamp": bytes(8)}.get(name, b"\0")
    assert walk(struct.pack(">H", flag) + value) == (
        flag,
        {flag: (2, 2 + len(value))},
        2 + len(value),
    )


def test_a_length_that_is_missing_is_said() -> None:
    with pytest.raises(IndexError):
        walk(struct.pack(">H", FLAG_OF["reply_to"]))
    with pytest.raises(struct.error):
        walk(struct.pack(">H", FLAG_OF["headers"]) + b"\0\0")
    with pytest.raises(struct.error):
        walk(b"\x80")


def test_an_end_behind_the_block_is_for_the_caller() -> None:
    assert walk(struct.pack(">H", FLAG_OF["timestamp"]))[2] == 10


def test_flags_without_a_property_are_no_property() -> None:
    assert properties_of(0x0003) == ()
