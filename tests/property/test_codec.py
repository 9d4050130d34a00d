"""Methods of any content survive the wire, and no octets raise anything untyped."""

from __future__ import annotations

import struct

from hypothesis import given
from hypothesis import strategies as st
from pamqp import base, commands
from pamqp import frame as pamqp_frame

from tests.property.field_tables import tables
from vouchmq.protocol import codec
from vouchmq.protocol.access_request import AccessRequest
from vouchmq.protocol.errors import AmqpError
from vouchmq.protocol.fields import Table, encode_table
from vouchmq.protocol.text import encode_text

METHOD_CLASSES: list[type[base.Frame]] = [*commands.INDEX_MAPPING.values(), AccessRequest]
FROM_CLIENTS = [
    each for each in METHOD_CLASSES if divmod(each.index, 0x10000) not in codec.SERVER_ONLY
]

anything = st.binary(max_size=255).map(lambda octets: octets.decode("utf-8", "surrogateescape"))
shortstr = st.one_of(
    st.text(max_size=63),
    st.sampled_from(["", "amq.topic", "€", "a/b c%"]),
)
SCALARS: dict[str, st.SearchStrategy[object]] = {
    "octet": st.integers(0, 255),
    "short": st.integers(0, 2**16 - 1),
    "long": st.integers(0, 2**32 - 1),
    "longlong": st.integers(0, 2**64 - 1),
    "shortstr": shortstr,
    "longstr": anything,
    "bit": st.booleans(),
    "table": tables,
}
FORMATS = {"octet": ">B", "short": ">H", "long": ">I", "longlong": ">Q"}


def marshal(types: list[str], arguments: list[object]) -> bytes:
    """An encoder of its own, so that no fault of the decoder's is mirrored."""
    parts: list[bytes] = []
    bits: list[bool] = []
    for kind, value in zip([*types, ""], [*arguments, None], strict=True):
        if kind == "bit":
            bits.append(bool(value))
            continue
        if bits:
            parts.append(bytes((sum(bit << place for place, bit in enumerate(bits)),)))
            bits = []
        if isinstance(value, dict):
            parts.append(encode_table(value))
        elif isinstance(value, str):
            octets = encode_text(value)
            parts.append(struct.pack(">B" if kind == "shortstr" else ">I", len(octets)) + octets)
        elif kind:
            parts.append(struct.pack(FORMATS[kind], value))
    return b"".join(parts)


@st.composite
def methods(draw: st.DrawFn) -> tuple[bytes, dict[str, object], Table]:
    """A payload, the attributes it should give (tables empty), and its typed table."""
    method_class = draw(st.sampled_from(FROM_CLIENTS))
    names = method_class.attributes()
    types = [method_class.amqp_type(name) for name in names]
    arguments = [draw(SCALARS[kind]) for kind in types]
    payload = struct.pack(">I", method_class.index) + marshal(types, arguments)
    table: Table = {}
    for value in arguments:
        if isinstance(value, dict):
            table = value
    shown = [{} if isinstance(value, dict) else value for value in arguments]
    return payload, dict(zip(names, shown, strict=True)), table


@given(methods())
def test_every_client_method_is_decoded(
    method: tuple[bytes, dict[str, object], Table],
) -> None:
    payload, attributes, table = method
    command = codec.decode_method(payload)
    assert dict(command.method) == attributes
    assert command.arguments == table
    assert command.ids == struct.unpack_from(">HH", payload)


@given(methods(), st.data())
def test_a_truncated_or_lengthened_method_is_a_frame_error(
    method: tuple[bytes, dict[str, object], Table], data: st.DataObject
) -> None:
    """FRAME-15."""
    payload = method[0]
    cut = data.draw(st.integers(4, len(payload)))
    damaged = payload[:cut] if cut < len(payload) else payload + b"\x00"
    try:
        codec.decode_method(damaged)
    except AmqpError as error:
        assert error.code == 501
        assert error.ids == struct.unpack_from(">HH", payload)
    else:
        raise AssertionError(f"accepted {damaged!r}")


@given(methods(), st.lists(st.tuples(st.integers(0), st.integers(0, 255)), min_size=1, max_size=4))
def test_a_damaged_method_is_another_method_or_a_typed_error(
    method: tuple[bytes, dict[str, object], Table], damage: list[tuple[int, int]]
) -> None:
    """FRAME-15, FRAME-16, FRAME-17."""
    payload = bytearray(method[0])
    for position, octet in damage:
        payload[position % len(payload)] = octet
    decode_or_refuse(bytes(payload))


@given(
    st.one_of(
        st.binary(max_size=60),
        st.tuples(st.sampled_from(sorted(codec.KNOWN_METHODS)), st.binary(max_size=60)).map(
            lambda two: struct.pack(">HH", *two[0]) + two[1]
        ),
    )
)
def test_any_octets_are_a_method_or_a_typed_error(payload: bytes) -> None:
    """FRAME-14, FRAME-15, FRAME-16, FRAME-17."""
    decode_or_refuse(payload)


def decode_or_refuse(payload: bytes) -> None:
    """A command with the ids of the payload, or one of the errors of the FRAME tables."""
    try:
        command = codec.decode_method(payload)
    except AmqpError as error:
        assert error.code in {501, 503, 540}
        if error.text != "Malformed UTF-8 in shortstr":
            ids = struct.unpack_from(">HH", payload) if len(payload) >= 4 else (0, 0)
            assert error.ids == ids
    else:
        assert command.ids == struct.unpack_from(">HH", payload)


plain = st.text(st.characters(codec="ascii", exclude_categories=["Cc"]), max_size=100)


@given(
    channel=st.integers(0, 65535),
    text=plain,
    tag=st.integers(0, 2**63 - 1),
    redelivered=st.booleans(),
    count=st.integers(0, 2**32 - 1),
)
def test_pamqp_reads_our_replies(
    channel: int, text: str, tag: int, redelivered: bool, count: int
) -> None:
    replies: list[tuple[bytes, dict[str, object]]] = [
        (codec.queue_declare_ok(channel, text, count, 1),
         {"queue": text, "message_count": count, "consumer_count": 1}),
        (codec.deliver(channel, "c", tag, redelivered, text, text),
         {"consumer_tag": "c", "delivery_tag": tag, "redelivered": redelivered,
          "exchange": text, "routing_key": text}),
        (codec.get_ok(channel, tag, redelivered, text, text, count),
         {"delivery_tag": tag, "redelivered": redelivered, "exchange": text,
          "routing_key": text, "message_count": count}),
        (codec.basic_return(channel, 312, text, text, text),
         {"reply_code": 312, "reply_text": text, "exchange": text, "routing_key": text}),
        (codec.basic_nack(channel, tag, redelivered),
         {"delivery_tag": tag, "multiple": redelivered, "requeue": False}),
    ]  # fmt: skip
    for octets, attributes in replies:
        consumed, number, method = pamqp_frame.unmarshal(octets)
        assert (consumed, number) == (len(octets), channel)
        assert isinstance(method, base.Frame)
        assert dict(method) == attributes
