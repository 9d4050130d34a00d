"""Header values in the form that every client reads: by their types, and by their octets."""

from __future__ import annotations

import math
import struct
from typing import cast

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from pamqp import commands
from pamqp.common import FieldTable

from tests import wire
from tests.both_ways import both_ways
from tests.property.field_tables import keys, scalars
from tests.unit.server.admin.operating import begun
from tests.unit.server.on_disk import DiskWorld
from vouchmq.protocol.contents import property_block, with_readable_headers
from vouchmq.protocol.errors import InternalError
from vouchmq.protocol.fields import Field, Table, encode_table
from vouchmq.protocol.properties import (
    EXAMINE,
    HEADERS,
    PERSISTENT,
    classify,
    with_normalized_headers,
)
from vouchmq.protocol.reader import PUBLISHES
from vouchmq.server.admin.objects.messages import publish_frame
from vouchmq.server.admin.objects.values import content_of

odd_scalars = st.one_of(
    st.integers(-(2**63), 2**63 - 1).map(lambda value: Field("L", value)),
    st.sampled_from([Field(kind, float(text)) for kind in "fd" for text in ("inf", "-inf", "nan")]),
)
fields: st.SearchStrategy[Field] = st.recursive(
    st.one_of(scalars, odd_scalars),
    lambda inner: st.one_of(
        st.lists(inner, max_size=4).map(lambda items: Field("A", tuple(items))),
        st.dictionaries(keys, inner, max_size=4).map(lambda table: Field("F", table)),
    ),
    max_leaves=8,
)
tables: st.SearchStrategy[Table] = st.dictionaries(keys, fields, max_size=5)
NAN = Field("d", math.nan)


def block_of(table: bytes) -> bytes:
    """A property block with headers and a content type."""
    return b"\xa0\x00\x01t" + table


def as_written(field: Field) -> Field:
    """What it must become, by its type."""
    if isinstance(field.value, dict):
        return Field("F", {key: as_written(each) for key, each in field.value.items()})
    if field.kind == "A":
        items = cast("tuple[Field, ...]", field.value)
        return Field("A", tuple(map(as_written, items)))
    return Field("l", field.value) if field.kind == "L" else field


def is_finite(field: Field) -> bool:
    """False of what no form can be found for."""
    if isinstance(field.value, dict):
        return all(map(is_finite, field.value.values()))
    if field.kind == "A":
        return all(map(is_finite, cast("tuple[Field, ...]", field.value)))
    return field.kind not in "fd" or math.isfinite(cast("float", field.value))


@given(tables)
@example({"a": Field("A", (Field("F", {"b": Field("A", (Field("L", 7),))}),))})
@example({"a": Field("A", (NAN, Field("L", 7)))})
def test_a_table_is_written_as_every_client_reads_it(table: Table) -> None:
    """FRAME-59, FRAME-53."""
    block = block_of(encode_table(table))
    fine = {key: as_written(each) for key, each in table.items()}
    wanted = block_of(encode_table(fine))
    is_hopeless = not all(map(is_finite, table.values()))
    mode = both_ways(classify, block)
    assert mode & HEADERS
    is_examined = mode & EXAMINE != 0
    assert is_examined is (is_hopeless or wanted != block or bool({"CC", "BCC"} & set(table)))
    # What is stored already cannot be refused.
    assert with_normalized_headers(block, refuses=False) == wanted
    if is_hopeless:
        with pytest.raises(InternalError, match="infinite or no number"):
            with_normalized_headers(block)
        return
    made = with_normalized_headers(block)
    assert made == wanted
    assert (made is block) is (wanted == block)


@pytest.mark.parametrize("octet", [2, 0x7F, 0xFF])
@pytest.mark.parametrize(
    ("before", "behind"),
    [(b"\x01h", b""), (b"\x01hA\0\0\0\x04t\1", b""), (b"\x01hF\0\0\0\x04\x01k", b"\x00t\0")],
)
def test_a_bool_is_0_or_1(octet: int, before: bytes, behind: bytes) -> None:
    """FRAME-59."""

    def table(value: int) -> bytes:
        body = before + b"t" + bytes((value,)) + behind
        return block_of(struct.pack(">I", len(body)) + body)

    assert both_ways(classify, table(octet)) == HEADERS | EXAMINE
    assert with_normalized_headers(table(octet)) == table(1)
    for fine in (0, 1):
        assert both_ways(classify, table(fine)) == HEADERS
        assert with_normalized_headers(table(fine)) == table(fine)


def test_what_an_older_version_has_stored_is_read_so() -> None:
    """FRAME-59: only contents with such a header are touched, and their bodies never."""

    def content(block: bytes) -> bytes:
        header = b"\x02\0\1" + struct.pack(">IHHQ", 12 + len(block), 60, 0, 1) + block + b"\xce"
        return header + b"\x03\0\1\0\0\0\1L\xce"

    plain = [content(b"\0\0"), content(block_of(encode_table({"a": Field("l", 1)})))]
    assert with_readable_headers(plain) is plain
    old = content(block_of(encode_table({"a": Field("L", 1), "b": NAN})))
    first, second = with_readable_headers([plain[0], old])
    assert first is plain[0]
    assert property_block(second) == block_of(encode_table({"a": Field("l", 1), "b": NAN}))
    assert second[-9:] == old[-9:]


@pytest.mark.parametrize("queue_type", ["classic", "quorum", "stream"])
def test_a_message_of_an_older_version_leaves_so_after_a_restart(queue_type: str) -> None:
    """FRAME-59: it is stored as it came then."""
    world = DiskWorld(rings=True)
    client = world.connect()
    client.open()
    declare = commands.Queue.Declare(
        queue="q", durable=True, arguments={"x-queue-type": queue_type}
    )
    client.ask(1, declare)
    block = b"\x30\x00" + encode_table({"a": Field("L", 1), "b": NAN}) + b"\x02"
    raw = content_of(block, b"x", 1)
    key = publish_frame("", "q")
    # As if nothing in it were to be looked at.
    client.connection.channels[1].publish((PUBLISHES, 1, key, [raw], PERSISTENT, len(raw)))
    world.turn.wake()
    world.sync()
    later = world.after_power_cut()
    peeked = begun(later, "peek", name="q")
    later.sync()
    assert [row["size"] for row in peeked.lines] == [1]
    reader = later.connect()
    reader.open()
    reader.qos(1)
    offset: FieldTable = {"x-stream-offset": "first"} if queue_type == "stream" else {}
    consume = commands.Basic.Consume(queue="q", consumer_tag="c", arguments=offset)
    reader.send(wire.method(1, consume))
    later.sync()
    octets = bytes(reader.octets)
    assert b"\x01al" + bytes(7) + b"\x01" in octets
    assert b"\x01aL" not in octets
