"""Rows become publish frames, many in one piece of bytes.

Knows no socket and no confirms. The method frame of a pair of exchange and routing key is made
once; a row costs two packed heads and one step of a list.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Final, TypeAlias

from pamqp import base

from vouchmq.kit.bulk.errors import BulkError
from vouchmq.kit.bulk.properties import Properties, encode_properties
from vouchmq.protocol.constants import BASIC_PUBLISH, FRAME_END_OCTET, FRAME_METHOD

if TYPE_CHECKING:
    from vouchmq.kit.bulk.confirms import Row

# A row as callers may give it: its properties as on the wire, or to be encoded.
AnyRow: TypeAlias = "tuple[str, str, bytes | Properties | base.BasicProperties | None, bytes]"

# One write takes this many rows, or fewer when they are big.
CHUNK_ROWS: Final = 500
CHUNK_BYTES: Final = 1 << 20

_PUBLISH: Final = struct.Struct(">BHIHHH")
_HEADER: Final = struct.Struct(">BHIHHQ")
_BODY: Final = struct.Struct(">BBHI")
_FRAME: Final = struct.Struct(">BHI")
_METHODS_KEPT: Final = 10_000
_NO_PROPERTIES: Final = b"\x00\x00"
_BODIES: Final = (bytes, bytearray, memoryview)


class RowError(BulkError, ValueError):
    """A row that cannot be sent; the text says which and why. Nothing of its chunk was sent.

    `row` is its number among the rows that were given, from 0; `reason` is the text without it.
    """

    def __init__(self, row: int, reason: str) -> None:
        super().__init__(f"row {row}: {reason}")
        self.row = row
        self.reason = reason


class Encoder:
    """Makes the frames of the publishes on one channel."""

    def __init__(self, channel: int, frame_max: int, *, is_mandatory: bool) -> None:
        self._channel = channel
        self._body_max = frame_max - 8
        self._bits = b"\x01" if is_mandatory else b"\x00"
        self._methods: dict[tuple[str, str], bytes] = {}

    def chunk(
        self, rows: Iterator[AnyRow], count: int, first: int, taken: list[Row]
    ) -> list[bytes]:
        """The frames of up to `count` rows, to be joined; the rows go into `taken`.

        `first` is the number of the first row, for error texts.

        Raises:
            RowError: a row has not four values, or one of them does not fit
        """
        parts: list[bytes] = []
        channel = self._channel
        body_max = self._body_max
        header = _HEADER.pack
        body_head = _BODY.pack
        methods = self._methods
        room = CHUNK_BYTES
        while count > 0 and room > 0:
            row = next(rows, None)
            if row is None:
                break
            try:
                exchange, routing_key, properties, body = row
                if not isinstance(properties, bytes):
                    properties = encode_properties(properties)
                if len(properties) < 2:
                    properties = _NO_PROPERTIES
                method = methods.get((exchange, routing_key))
                if method is None:
                    method = self._method(exchange, routing_key)
                if not isinstance(body, _BODIES):
                    raise TypeError(f"body must be bytes, not {type(body).__name__}")
                size = len(body)
                inner = 12 + len(properties)
                if inner > body_max:
                    raise ValueError(f"properties of {len(properties)} bytes: over frame_max")
            except (ValueError, TypeError) as error:
                raise RowError(first + len(taken), _reason(row, error)) from error
            head = header(2, channel, inner, 60, 0, size)
            if 0 < size <= body_max:
                parts += (
                    *(method, head, properties),
                    *(body_head(206, 3, channel, size), body, FRAME_END_OCTET),
                )
            else:
                parts += (method, head, properties, FRAME_END_OCTET, *self._split(body))
            taken.append((exchange, routing_key, properties, body))
            count -= 1
            room -= size + inner
        return parts

    def _split(self, body: bytes) -> Iterable[bytes]:
        """The body frames of a body that is empty, or too big for one."""
        for start in range(0, len(body), self._body_max):
            piece = body[start : start + self._body_max]
            yield _FRAME.pack(3, self._channel, len(piece))
            yield piece
            yield FRAME_END_OCTET

    def _method(self, exchange: str, routing_key: str) -> bytes:
        if len(self._methods) >= _METHODS_KEPT:
            self._methods.clear()
        names = _short(exchange, "exchange") + _short(routing_key, "routing_key") + self._bits
        head = _PUBLISH.pack(FRAME_METHOD, self._channel, 6 + len(names), *BASIC_PUBLISH, 0)
        method = head + names + FRAME_END_OCTET
        self._methods[exchange, routing_key] = method
        return method


def _reason(row: object, error: Exception) -> str:
    if isinstance(row, (tuple, list)) and len(row) == 4:
        return str(error)
    what = f"{len(row)} values" if isinstance(row, (tuple, list)) else type(row).__name__
    return f"must be (exchange, routing_key, properties, body), not {what}"


def _short(name: str, what: str) -> bytes:
    """A name as short string; lone surrogates stand for the bytes they came from."""
    if not isinstance(name, str):
        raise TypeError(f"{what} must be a string, not {name!r}")
    encoded = name.encode("utf-8", "surrogateescape")
    if len(encoded) > 255:
        raise ValueError(f"{what} is longer than 255 bytes")
    return bytes((len(encoded),)) + encoded
