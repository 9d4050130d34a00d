"""Method frames of everything that is not hot, in pamqp's types.

pamqp checks names more strictly than brokers do (a queue may be called `my orders`), so the
fields are encoded with its functions and without its opinions.
"""

from __future__ import annotations

import struct
from typing import Final, TypeVar

from pamqp import base, encode, frame
from pamqp import exceptions as pamqp_errors

from vouchmq.protocol.constants import (
    BASIC_RECOVER_ASYNC,
    FRAME_END_OCTET,
    FRAME_METHOD,
    index_of,
)

# What RabbitMQ proposes; this client takes less, never more.
FRAME_MAX_BYTES: Final = 131072
HEARTBEAT: Final = b"\x08\x00\x00\x00\x00\x00\x00\xce"

Method = TypeVar("Method", bound=base.Frame)

_FRAME: Final = struct.Struct(">BHI")
_INDEX: Final = struct.Struct(">I")
_RECOVER_ASYNC: Final = _INDEX.pack(index_of(BASIC_RECOVER_ASYNC))


def named(method: Method, **names: str) -> Method:
    """The method with these names in it, whatever they are made of.

    Raises:
        TypeError: a name is no string
    """
    for field, name in names.items():
        if not isinstance(name, str):
            raise TypeError(f"{method.name}: {field} must be a string, not {name!r}")
        setattr(method, field, name)
    return method


def method_frame(channel: int, method: base.Frame) -> bytes:
    """The frame of a method.

    Raises:
        ValueError, TypeError: a field does not fit into its type; the text names it
    """
    payload = _INDEX.pack(method.index) + _arguments(method)
    return _FRAME.pack(FRAME_METHOD, channel, len(payload)) + payload + FRAME_END_OCTET


def method_of(payload: bytes) -> base.Frame:
    """The method in the payload of a frame.

    Raises:
        ValueError: it is none that AMQP 0-9-1's brokers send, or is cut short
    """
    # Reading it is a DeprecationWarning of pamqp's, which may have been made an error.
    if payload.startswith(_RECOVER_ASYNC):
        raise ValueError("basic.recover-async, which only clients send")
    whole = _FRAME.pack(FRAME_METHOD, 0, len(payload)) + payload + FRAME_END_OCTET
    try:
        method = frame.unmarshal(whole)[2]
    except (pamqp_errors.PAMQPException, ValueError, IndexError, struct.error) as error:
        raise ValueError(f"a method that cannot be read: {error!r}") from error
    assert isinstance(method, base.Frame)  # noqa: S101 - what a method frame holds
    return method


def _arguments(method: base.Frame) -> bytes:
    parts: list[bytes] = []
    bits = 0
    offset = 0
    for name in method.attributes():
        kind = method.amqp_type(name)
        value = getattr(method, name)
        if kind == "bit":
            bits |= bool(value) << offset
            offset += 1
            continue
        if offset:
            parts.append(bytes((bits,)))
            bits = offset = 0
        try:
            parts.append(encode.by_type(value, kind))
        except (TypeError, ValueError, struct.error, OverflowError) as error:
            raise ValueError(f"{method.name}: {name}: {error}") from error
    if offset:
        parts.append(bytes((bits,)))
    return b"".join(parts)
