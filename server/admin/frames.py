"""What goes over the control socket: frames of MessagePack, and what they say.

    length (4 bytes, big-endian) │ a map in MessagePack

    request   {"command": "list queues", "vhost": "/", …}       a name and its arguments
    answer    {"columns": ["vhost", "name", …]}                 of a listing: first its columns,
              {"rows": [["/", "orders", …], …]}                 then rows, in any number of frames
              {"ok": true, …}                                   last; what the command tells
              {"ok": false, "error": "no queue 'x'", "code": 404}

A connection carries any number of requests, one after the other; each is answered to the end before
the next one is looked at. Rows are arrays: naming every column in every row would cost the broker
three times as much. Numbers, text, bytes and maps arrive as what they were.

A name may hold bytes that are no UTF-8, which no text of MessagePack can. An answer has it as it is
shown, so that whoever gets answers can write them anywhere; a request has its bytes, as an
extension, so that what has such a name can be named.

Must not know sockets, nor any command.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from msgspec import msgpack, to_builtins

from vouchmq.protocol.text import decode_text, encode_text, is_utf8, shown, shown_values

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

LENGTH_BYTES: Final = 4
MOST_BYTES: Final = 160 * 1024 * 1024
"""Of one frame: more than the largest message (128 MiB) that may be published over it."""

_TEXT: Final = 1
"""The extension: the bytes of a text that is no UTF-8."""


def _extension(code: int, data: memoryview) -> str:
    if code != _TEXT:
        raise ValueError(f"an extension {code}")
    return decode_text(bytes(data))


_encode: Final = msgpack.Encoder().encode
_decode: Final = msgpack.Decoder(dict[str, Any], ext_hook=_extension).decode


class BadFrame(ValueError):  # noqa: N818 - the frame is what is bad
    """Bytes that are no frame; nothing behind them can be read."""


def frame(content: Mapping[str, object]) -> bytes:
    """One frame of an answer. Structs are encoded as their fields, array-like ones as arrays.

    Spec: FRAME-58
    """
    try:
        body = _encode(content)
    except UnicodeEncodeError:
        body = _encode(shown_values(to_builtins(content, builtin_types=(bytes,))))
    return len(body).to_bytes(LENGTH_BYTES, "big") + body


def request_frame(content: Mapping[str, object]) -> bytes:
    """One frame of a request, in which texts may be any bytes; see `decode_text`."""
    try:
        body = _encode(content)
    except UnicodeEncodeError:
        body = _encode(_exact(content))
    return len(body).to_bytes(LENGTH_BYTES, "big") + body


def _exact(value: object) -> object:
    if isinstance(value, str):
        return value if is_utf8(value) else msgpack.Ext(_TEXT, encode_text(value))
    if isinstance(value, dict):
        # Of an object only the values: no name of an argument can be an extension.
        return {shown(key): _exact(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_exact(each) for each in value]
    return value


class FrameReader:
    """Takes bytes as they come and gives the frames that are whole."""

    def __init__(self) -> None:
        self._bytes = bytearray()

    def add(self, data: bytes) -> None:
        """Take what has come."""
        self._bytes += data

    @property
    def has_frame(self) -> bool:
        """Whether a frame is whole, or known to be bad."""
        size = self._size()
        return size is not None and (size > MOST_BYTES or len(self._bytes) >= LENGTH_BYTES + size)

    def next(self) -> dict[str, Any] | None:
        """The next frame; None until it is whole.

        Raises:
            BadFrame: too long, or no map in MessagePack
        """
        size = self._size()
        if size is None:
            return None
        if size > MOST_BYTES:
            raise BadFrame(f"a frame of {size} bytes, and {MOST_BYTES} is the most")
        end = LENGTH_BYTES + size
        if len(self._bytes) < end:
            return None
        body = bytes(self._bytes[LENGTH_BYTES:end])
        del self._bytes[:end]
        try:
            return _decode(body)
        except ValueError as error:
            raise BadFrame(str(error)) from None

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """All frames that are whole by now."""
        while (found := self.next()) is not None:
            yield found

    def _size(self) -> int | None:
        if len(self._bytes) < LENGTH_BYTES:
            return None
        return int.from_bytes(self._bytes[:LENGTH_BYTES], "big")
