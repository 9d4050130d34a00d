"""Text on the wire: strings that need not be UTF-8, and how they are shown.

Names come in as any octets. Those that are no UTF-8 become surrogate escapes, so that a name is a
`str` everywhere in the broker and still leaves it octet for octet as it came. No JSON, metric, log
or terminal can hold such a `str`: whatever a client has said and somebody else reads goes through
`shown`, or `shown_values`, first.
"""

from __future__ import annotations

from typing import Final

from vouchmq.protocol.constants import MAX_SHORTSTR_SIZE

SNIPPET_SIZE: Final = 16


def decode_text(octets: bytes) -> str:
    """Any octets as `str`; the exact inverse of `encode_text`."""
    return octets.decode("utf-8", "surrogateescape")


def encode_text(text: str) -> bytes:
    """The octets of a name; never raises.

    Surrogates that came from no octet (a JSON document can hold them) become question marks.
    """
    try:
        return text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        return text.encode("utf-8", "replace")


def is_utf8(text: str) -> bool:
    """Whether a decoded text came from octets that are UTF-8."""
    if text.isascii():
        return True
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def shown(text: str) -> str:
    r"""A text as it can be written everywhere: octets that are no UTF-8 become `\xff`.

    Spec: FRAME-58
    """
    return text if is_utf8(text) else encode_text(text).decode("utf-8", "backslashreplace")


def shown_values(value: object) -> object:
    """Plain data of any depth, keys included, with each text as `shown` gives it.

    Spec: FRAME-58
    """
    if isinstance(value, str):
        return shown(value)
    if isinstance(value, dict):
        return {shown_values(key): shown_values(each) for key, each in value.items()}
    if isinstance(value, list):
        return [shown_values(each) for each in value]
    if isinstance(value, tuple):
        return tuple(shown_values(each) for each in value)
    return value


def quoted(value: object) -> str:
    r"""Plain data within a sentence: as Python writes it, but octets that are no UTF-8 as `\xff`.

    Spec: FRAME-58
    """
    return repr(shown_values(value)).replace("\\\\", "\\")


def cut_octets(octets: bytes) -> bytes:
    """`octets` cut to the 255 of a shortstr, at a UTF-8 character boundary.

    Spec: GEN-03
    """
    if len(octets) <= MAX_SHORTSTR_SIZE:
        return octets
    end = MAX_SHORTSTR_SIZE
    # A character has at most three continuation octets; more of them are no UTF-8 anyway.
    while octets[end] & 0xC0 == 0x80 and end > MAX_SHORTSTR_SIZE - 3:
        end -= 1
    return octets[:end]


def cut_to_shortstr(text: str) -> str:
    """`text`, or as many of its leading characters as fit into a shortstr.

    Spec: GEN-03
    """
    # A character takes at most 4 octets, so short texts need no encoding to be judged.
    if len(text) * 4 <= MAX_SHORTSTR_SIZE:
        return text
    return decode_text(cut_octets(encode_text(text)))


def snippet(octets: bytes) -> str:
    """The first 16 octets in RabbitMQ's notation, `<<1,2,3>>`.

    Spec: FRAME-18
    """
    return "<<" + ",".join(map(str, octets[:SNIPPET_SIZE])) + ">>"


def describe_octets(octets: bytes) -> str:
    """`all octets = <<…>>`, or `first 16 octets = <<…>>` when there are more.

    Spec: FRAME-11, FRAME-18
    """
    extent = "all" if len(octets) <= SNIPPET_SIZE else f"first {SNIPPET_SIZE}"
    return f"{extent} octets = {snippet(octets)}"
