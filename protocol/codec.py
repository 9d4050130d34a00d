"""pamqp at the border: method payloads ↔ method objects, and the frames that the broker sends.

Decoding walks the payload argument by argument, by the types that pamqp's generated classes
state. The decoders are ours: pamqp's tables (`fields.py`) lose types, and its scalars cost more
than all else that a method needs.
Encoding is by hand wherever pamqp's constructors judge names that RabbitMQ accepts.

Nothing here looks at a channel's or a connection's state: a method that clients may send at
*some* time is decoded, and whether now is the time is judged by whoever holds the state.

Everything about pamqp that must not be trusted is dealt with in this file:
- its decoders accept truncated strings and trailing octets (FRAME-15: we do not), raise on
  strings that are not UTF-8 or give `bytes` for some of them, and read delivery tags as signed;
- its constructors validate names, and some of them warn;
- it does not know class 30 (CHAN-30).

Spec: FRAME-15, FRAME-16, FRAME-17, FRAME-56
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

from pamqp import base, commands
from pamqp import frame as pamqp_frame

from vouchmq.protocol import constants as c
from vouchmq.protocol.access_request import AccessRequest
from vouchmq.protocol.errors import (
    AmqpError,
    CommandInvalid,
    FrameError,
    NotImplementedByBroker,
    cannot_decode,
)
from vouchmq.protocol.fields import (
    Table,
    decode_shortstr,
    decode_table_at,
    encode_shortstr,
    encode_table,
)
from vouchmq.protocol.text import decode_text, describe_octets, encode_text, is_utf8


class Command(NamedTuple):
    """A decoded method.

    The attributes of `method` are those of pamqp's class, except that its table attribute, if it
    has one, is always empty: the typed table is in `arguments` ({} for a method without one).
    Strings are `str`; those of a longstr, and the names of basic.publish, with surrogate escapes.
    Delivery tags are unsigned.
    Commands are read only: equal ones may be one object.
    """

    method: base.Frame
    ids: c.Ids
    arguments: Table


class _Plan(NamedTuple):
    """How to decode one method: its class and its (attribute, type) pairs in wire order."""

    method_class: type[base.Frame]
    ids: c.Ids
    arguments: tuple[tuple[str, str], ...]


def _plan_of(method_class: type[base.Frame]) -> _Plan:
    pairs = tuple((name, method_class.amqp_type(name)) for name in method_class.__slots__)
    return _Plan(method_class, divmod(method_class.index, 0x10000), pairs)


_METHOD_CLASSES: Final[list[type[base.Frame]]] = [*commands.INDEX_MAPPING.values(), AccessRequest]
_PLANS: Final[dict[int, _Plan]] = {each.index: _plan_of(each) for each in _METHOD_CLASSES}

# Never legal from a client on a channel (FRAME-17). Those of class 10 are not among them: on
# channel 0 they are out of turn (504), on others of the wrong class, which the connection tells.
SERVER_ONLY: Final[frozenset[c.Ids]] = frozenset(
    {
        c.CHANNEL_OPEN_OK,
        c.ACCESS_REQUEST_OK,
        c.EXCHANGE_DECLARE_OK,
        c.EXCHANGE_DELETE_OK,
        c.EXCHANGE_BIND_OK,
        c.EXCHANGE_UNBIND_OK,
        c.QUEUE_DECLARE_OK,
        c.QUEUE_BIND_OK,
        c.QUEUE_PURGE_OK,
        c.QUEUE_DELETE_OK,
        c.QUEUE_UNBIND_OK,
        c.BASIC_QOS_OK,
        c.BASIC_CONSUME_OK,
        c.BASIC_RETURN,
        c.BASIC_DELIVER,
        c.BASIC_GET_OK,
        c.BASIC_GET_EMPTY,
        c.BASIC_RECOVER_OK,
        c.CONFIRM_SELECT_OK,
        c.TX_SELECT_OK,
        c.TX_COMMIT_OK,
        c.TX_ROLLBACK_OK,
    }
)
KNOWN_METHODS: Final[frozenset[c.Ids]] = frozenset(
    {plan.ids for plan in _PLANS.values()} | {c.ACCESS_REQUEST_OK}
)

# Methods that most clients send with the same octets as others, and that hold no secret: decoded
# once, and kept until there are too many of them.
_REPEATED: Final[frozenset[c.Ids]] = frozenset(
    {
        c.CONNECTION_TUNE_OK,
        c.CONNECTION_OPEN,
        c.CONNECTION_CLOSE,
        c.CONNECTION_CLOSE_OK,
        c.CHANNEL_OPEN,
        c.CHANNEL_CLOSE,
        c.CHANNEL_CLOSE_OK,
        c.TX_COMMIT,
        c.TX_ROLLBACK,
    }
)
_REPEATED_OCTETS: Final = 64
_REPEATED_COUNT: Final = 256
_decoded: Final[dict[bytes, Command]] = {}

_IDS: Final = struct.Struct(">HH")
_LONG: Final = struct.Struct(">I")


def method_ids(payload: bytes) -> c.Ids:
    """Class and method id of a method payload, known or not.

    Raises:
        FrameError: 501, ids 0,0, the payload has fewer than 4 octets.

    Spec: FRAME-14
    """
    if len(payload) < c.METHOD_PAYLOAD_MIN_SIZE:
        text = f"type {c.FRAME_METHOD}, {describe_octets(payload)}: unknown_frame"
        raise FrameError(text, c.NO_IDS)
    class_id, method_id = _IDS.unpack_from(payload)
    return class_id, method_id


def decode_method(payload: bytes) -> Command:
    """The method in the payload of a frame of type 1.

    Raises:
        FrameError: 501, arguments too short, too long or undecodable; without ids, a shortstr
            that is no UTF-8.
        NotImplementedByBroker: 540, there is no such method.
        CommandInvalid: 503, only the broker may send it.

    Spec: FRAME-15, FRAME-16, FRAME-17, FRAME-57
    """
    known = _decoded.get(payload) if len(payload) <= _REPEATED_OCTETS else None
    if known is not None:
        return known
    ids = method_ids(payload)
    if ids in SERVER_ONLY:
        raise CommandInvalid("unimplemented method", ids)
    plan = _PLANS.get(ids[0] << 16 | ids[1])
    if plan is None:
        raise NotImplementedByBroker(f"unknown method {ids[0]}.{ids[1]}", ids)
    # Not the constructor: it validates, and those of deprecated methods warn.
    method = plan.method_class.__new__(plan.method_class)
    try:
        arguments = _decode_arguments(method, plan.arguments, payload)
    except (FrameError, ValueError, struct.error) as error:
        raise cannot_decode(payload[c.METHOD_PAYLOAD_MIN_SIZE :], ids) from error
    # Routing keys may be any bytes, as in RabbitMQ; whoever publishes to a name makes none.
    if ids != c.BASIC_PUBLISH:
        _require_utf8(method, plan.arguments)
    command = Command(method, ids, arguments)
    if ids in _REPEATED and len(payload) <= _REPEATED_OCTETS:
        if len(_decoded) >= _REPEATED_COUNT:
            _decoded.clear()
        _decoded[payload] = command
    return command


def _decode_arguments(
    method: base.Frame, arguments: tuple[tuple[str, str], ...], payload: bytes
) -> Table:
    """Set the attributes of `method`; gives its table.

    Raises:
        FrameError, ValueError, struct.error: the octets do not fit the arguments exactly.
    """
    table: Table = {}
    offset = c.METHOD_PAYLOAD_MIN_SIZE
    size = len(payload)
    # Consecutive bits share an octet; no method has more than eight in a row.
    mask = 0
    for name, kind in arguments:
        if kind == "bit":
            if not mask:
                mask = 1
                offset += 1
                if offset > size:
                    raise ValueError(name)
            setattr(method, name, payload[offset - 1] & mask != 0)
            mask <<= 1
            continue
        mask = 0
        if kind == "table":
            table, offset = decode_table_at(payload, offset)
            setattr(method, name, {})
            continue
        value, offset = _SCALARS[kind](payload, offset)
        setattr(method, name, value)
    if offset != size:
        raise ValueError("octets left over")
    return table


def _require_utf8(method: base.Frame, arguments: tuple[tuple[str, str], ...]) -> None:
    """Refuse names, routing keys and tags that are no UTF-8.

    Raises:
        FrameError: 501, without ids: on a channel no method is at fault.

    Spec: FRAME-57
    """
    for name, kind in arguments:
        if kind == "shortstr" and not is_utf8(getattr(method, name)):
            raise FrameError("Malformed UTF-8 in shortstr")


def _number_decoder(form: str) -> Callable[[bytes, int], tuple[int, int]]:
    """A decoder of one unsigned number: payload, offset → number, offset behind it."""
    packed = struct.Struct(form)

    def decode_number(payload: bytes, offset: int) -> tuple[int, int]:
        return packed.unpack_from(payload, offset)[0], offset + packed.size

    return decode_number


def _decode_longstr(payload: bytes, offset: int) -> tuple[str, int]:
    start = offset + _LONG.size
    end = start + int(_LONG.unpack_from(payload, offset)[0])
    if end > len(payload):
        raise ValueError("longstr")
    return decode_text(payload[start:end]), end


_SCALARS: Final[Mapping[str, Callable[[bytes, int], tuple[int, int] | tuple[str, int]]]] = {
    "octet": _number_decoder(">B"),
    "short": _number_decoder(">H"),
    "long": _number_decoder(">I"),
    "longlong": _number_decoder(">Q"),
    "shortstr": decode_shortstr,
    "longstr": _decode_longstr,
}


# --- frames that the broker sends ---

_METHOD_HEAD: Final = struct.Struct(">BHIHH")
_SHORT_LONG_SHORT: Final = struct.Struct(">HIH")
_LONG_LONG: Final = struct.Struct(">II")
_SHORT: Final = struct.Struct(">H")
_CLOSE_IDS: Final = struct.Struct(">HH")
_TAG_BIT: Final = struct.Struct(">QB")
# A whole frame: type, channel, size, class, method, tag, bits, end.
_CONFIRM_FRAME: Final = struct.Struct(">BHIHHQBB")
_CONFIRM_SIZE: Final = 4 + _TAG_BIT.size
# Compiled, to unpack a tuple in a call makes a list and another tuple of it.
_BASIC: Final = c.BASIC_ACK[0]
_ACK: Final = c.BASIC_ACK[1]
_NACK: Final = c.BASIC_NACK[1]
_MAX_COUNT: Final = 0xFFFF_FFFF

HEARTBEAT: Final = b"\x08\x00\x00\x00\x00\x00\x00\xce"


def encode(channel: int, method: base.Frame) -> bytes:
    """A method frame by pamqp's own encoder.

    Only for methods without names and tables; pamqp refuses or changes some of those (FRAME-56).
    """
    return pamqp_frame.marshal(method, channel)


def _method_frame(channel: int, ids: c.Ids, arguments: bytes = b"") -> bytes:
    head = _METHOD_HEAD.pack(c.FRAME_METHOD, channel, 4 + len(arguments), *ids)
    return head + arguments + c.FRAME_END_OCTET


def _longstr(octets: bytes) -> bytes:
    return _LONG.pack(len(octets)) + octets


def _count(number: int) -> int:
    # Counts are 32 bits on the wire; a longer queue is told as the longest tellable.
    return min(number, _MAX_COUNT)


def _fixed_reply(ids: c.Ids, arguments: bytes = b"") -> Callable[[int], bytes]:
    """An encoder for a reply of which only the channel differs: channel → frame."""
    kind, behind = c.FRAME_METHOD.to_bytes(), _method_frame(0, ids, arguments)[3:]

    def encode_reply(channel: int) -> bytes:
        return kind + channel.to_bytes(2) + behind

    return encode_reply


def connection_start(server_properties: Table, mechanisms: str, locales: str = "en_US") -> bytes:
    """connection.start for version 0.9; `mechanisms` is separated by spaces (CONN-10)."""
    arguments = (
        b"\x00\x09"
        + encode_table(server_properties)
        + _longstr(encode_text(mechanisms))
        + _longstr(encode_text(locales))
    )
    return _method_frame(0, c.CONNECTION_START, arguments)


def connection_secure(challenge: bytes) -> bytes:
    """connection.secure with a SASL challenge (CONN-20)."""
    return _method_frame(0, c.CONNECTION_SECURE, _longstr(challenge))


def connection_tune(channel_max: int, frame_max: int, heartbeat: int) -> bytes:
    """connection.tune; `frame_max` in octets, `heartbeat` in seconds (CONN-30)."""
    arguments = _SHORT_LONG_SHORT.pack(channel_max, frame_max, heartbeat)
    return _method_frame(0, c.CONNECTION_TUNE, arguments)


def connection_open_ok() -> bytes:
    """connection.open-ok with empty known-hosts (CONN-46)."""
    return _OPEN_OK


def connection_close(error: AmqpError, ids: c.Ids = c.NO_IDS) -> bytes:
    """connection.close for `error`; `ids` count only when the error does not bring its own."""
    return _method_frame(0, c.CONNECTION_CLOSE, _close_arguments(error, ids))


def connection_close_ok() -> bytes:
    """connection.close-ok."""
    return _CLOSE_OK


def connection_blocked(reason: str) -> bytes:
    """connection.blocked (LIMIT-13)."""
    return _method_frame(0, c.CONNECTION_BLOCKED, encode_shortstr(reason))


def connection_unblocked() -> bytes:
    """connection.unblocked (LIMIT-13)."""
    return _method_frame(0, c.CONNECTION_UNBLOCKED)


def update_secret_ok() -> bytes:
    """connection.update-secret-ok (CONN-70)."""
    return _method_frame(0, c.CONNECTION_UPDATE_SECRET_OK)


def flow_ok(channel: int, active: bool) -> bytes:
    """channel.flow-ok (CHAN-20)."""
    return _method_frame(channel, c.CHANNEL_FLOW_OK, b"\x01" if active else b"\x00")


def channel_close(channel: int, error: AmqpError, ids: c.Ids = c.NO_IDS) -> bytes:
    """channel.close for `error`; `ids` count only when the error does not bring its own."""
    return _method_frame(channel, c.CHANNEL_CLOSE, _close_arguments(error, ids))


def _close_arguments(error: AmqpError, ids: c.Ids) -> bytes:
    at_fault = ids if error.ids is None else error.ids
    text = encode_shortstr(error.reply_text)
    return _SHORT.pack(error.code) + text + _CLOSE_IDS.pack(*at_fault)


def access_request_ok(channel: int) -> bytes:
    """access.request-ok with ticket 1 (CHAN-30)."""
    return _method_frame(channel, c.ACCESS_REQUEST_OK, b"\x00\x01")


def queue_declare_ok(channel: int, name: str, message_count: int, consumer_count: int) -> bytes:
    """queue.declare-ok; `message_count` is of ready messages."""
    counts = _LONG_LONG.pack(_count(message_count), _count(consumer_count))
    return _method_frame(channel, c.QUEUE_DECLARE_OK, encode_shortstr(name) + counts)


def queue_purge_ok(channel: int, message_count: int) -> bytes:
    """queue.purge-ok."""
    return _method_frame(channel, c.QUEUE_PURGE_OK, _LONG.pack(_count(message_count)))


def queue_delete_ok(channel: int, message_count: int) -> bytes:
    """queue.delete-ok."""
    return _method_frame(channel, c.QUEUE_DELETE_OK, _LONG.pack(_count(message_count)))


def consume_ok(channel: int, tag: str) -> bytes:
    """basic.consume-ok."""
    return _method_frame(channel, c.BASIC_CONSUME_OK, encode_shortstr(tag))


def cancel(channel: int, tag: str) -> bytes:
    """basic.cancel as the broker sends it: no-wait, because no answer is looked for (CONS-40)."""
    return _method_frame(channel, c.BASIC_CANCEL, encode_shortstr(tag) + b"\x01")


def cancel_ok(channel: int, tag: str) -> bytes:
    """basic.cancel-ok."""
    return _method_frame(channel, c.BASIC_CANCEL_OK, encode_shortstr(tag))


def basic_return(channel: int, code: int, text: str, exchange: str, routing_key: str) -> bytes:
    """basic.return; the content frames follow it at once (FRAME-39)."""
    arguments = (
        _SHORT.pack(code)
        + encode_shortstr(text)
        + encode_shortstr(exchange)
        + encode_shortstr(routing_key)
    )
    return _method_frame(channel, c.BASIC_RETURN, arguments)


def deliver(
    channel: int, consumer_tag: str, tag: int, redelivered: bool, exchange: str, routing_key: str
) -> bytes:
    """basic.deliver, one at a time; runs of deliveries are packed elsewhere."""
    arguments = (
        encode_shortstr(consumer_tag)
        + _TAG_BIT.pack(tag, redelivered)
        + encode_shortstr(exchange)
        + encode_shortstr(routing_key)
    )
    return _method_frame(channel, c.BASIC_DELIVER, arguments)


def get_ok(
    channel: int, tag: int, redelivered: bool, exchange: str, routing_key: str, message_count: int
) -> bytes:
    """basic.get-ok; `message_count` is what stays ready in the queue."""
    arguments = (
        _TAG_BIT.pack(tag, redelivered)
        + encode_shortstr(exchange)
        + encode_shortstr(routing_key)
        + _LONG.pack(_count(message_count))
    )
    return _method_frame(channel, c.BASIC_GET_OK, arguments)


def get_empty(channel: int) -> bytes:
    """basic.get-empty with an empty cluster-id."""
    return _method_frame(channel, c.BASIC_GET_EMPTY, b"\x00")


def basic_ack(channel: int, tag: int, multiple: bool) -> bytes:
    """basic.ack as a publisher confirm; `tag` is the publish sequence number."""
    return _CONFIRM_FRAME.pack(
        c.FRAME_METHOD, channel, _CONFIRM_SIZE, _BASIC, _ACK, tag, multiple, c.FRAME_END
    )


def basic_nack(channel: int, tag: int, multiple: bool, requeue: bool = False) -> bytes:
    """basic.nack as a negative confirm; `tag` is the publish sequence number."""
    bits = multiple | requeue << 1
    return _CONFIRM_FRAME.pack(
        c.FRAME_METHOD, channel, _CONFIRM_SIZE, _BASIC, _NACK, tag, bits, c.FRAME_END
    )


_OPEN_OK: Final = _method_frame(0, c.CONNECTION_OPEN_OK, b"\x00")
_CLOSE_OK: Final = _method_frame(0, c.CONNECTION_CLOSE_OK)

# With an empty channel-id, which is a longstr (CHAN-01).
channel_open_ok: Final = _fixed_reply(c.CHANNEL_OPEN_OK, b"\x00\x00\x00\x00")
channel_close_ok: Final = _fixed_reply(c.CHANNEL_CLOSE_OK)
exchange_declare_ok: Final = _fixed_reply(c.EXCHANGE_DECLARE_OK)
exchange_delete_ok: Final = _fixed_reply(c.EXCHANGE_DELETE_OK)
exchange_bind_ok: Final = _fixed_reply(c.EXCHANGE_BIND_OK)
exchange_unbind_ok: Final = _fixed_reply(c.EXCHANGE_UNBIND_OK)
queue_bind_ok: Final = _fixed_reply(c.QUEUE_BIND_OK)
queue_unbind_ok: Final = _fixed_reply(c.QUEUE_UNBIND_OK)
qos_ok: Final = _fixed_reply(c.BASIC_QOS_OK)
recover_ok: Final = _fixed_reply(c.BASIC_RECOVER_OK)
confirm_select_ok: Final = _fixed_reply(c.CONFIRM_SELECT_OK)
tx_select_ok: Final = _fixed_reply(c.TX_SELECT_OK)
tx_commit_ok: Final = _fixed_reply(c.TX_COMMIT_OK)
tx_rollback_ok: Final = _fixed_reply(c.TX_ROLLBACK_OK)
