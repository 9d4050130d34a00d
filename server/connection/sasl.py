"""The ways in which a client may say who it is: octets of a SASL response → name and password.

A mechanism is a callable that is fed the client's responses one after the other. It gives
credentials, or a challenge when it wants to hear more (CONN-20), or a name that is proven already.
Must not know whether the credentials are right.

Spec: CONN-16, CONN-17, CONN-18, CONN-20
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

from vouchmq.protocol.errors import FrameError
from vouchmq.protocol.fields import Field, decode_table
from vouchmq.protocol.text import decode_text

NUL: Final = b"\x00"


class Credentials(NamedTuple):
    """The user name and password that a client has sent."""

    name: str
    password: str


class Proven(NamedTuple):
    """Who a client is, beyond doubt; "" when what proves it holds no name."""

    name: str


class Challenge(NamedTuple):
    """What the client shall answer next, by secure-ok."""

    octets: bytes


class MalformedResponse(ValueError):  # noqa: N818 - named for what it is
    """The response is not in the form of its mechanism (CONN-24)."""


Mechanism = Callable[[bytes], Credentials | Challenge | Proven]
# Name → a fresh mechanism for one login, in the order in which they are offered (CONN-10).
Mechanisms = Mapping[str, Callable[[], Mechanism]]


def plain(response: bytes) -> Credentials:
    """`NUL user NUL password`; no authorization id, because nobody may act for another.

    Raises:
        MalformedResponse: any other form.

    Spec: CONN-16
    """
    parts = response.split(NUL)
    if len(parts) != 3 or parts[0]:
        raise MalformedResponse
    return Credentials(decode_text(parts[1]), decode_text(parts[2]))


def amqplain(response: bytes) -> Credentials:
    """A field table without its length, with LOGIN and PASSWORD as long strings.

    Raises:
        MalformedResponse: any other form.

    Spec: CONN-17
    """
    try:
        table = decode_table(response)
    except FrameError:
        raise MalformedResponse from None
    return Credentials(_text(table.get("LOGIN")), _text(table.get("PASSWORD")))


def _text(field: Field | None) -> str:
    if field is None or field.kind != "S" or not isinstance(field.value, bytes):
        raise MalformedResponse
    return decode_text(field.value)


def external(name: str) -> Callable[[], Mechanism]:
    """The mechanism of a client whose certificate holds this name, whatever it sends.

    Spec: CONN-18, TLS-20
    """
    return lambda: lambda _: Proven(name)


MECHANISMS: Final[Mechanisms] = {
    "PLAIN": lambda: plain,
    "AMQPLAIN": lambda: amqplain,
}
EXTERNAL: Final = "EXTERNAL"


def mechanisms_for(allowed: Mechanisms, certified: str | None) -> Mechanisms:
    """What a client may use that has a valid certificate with this name: EXTERNAL first.

    Spec: CONN-10, TLS-20
    """
    return allowed if certified is None else {EXTERNAL: external(certified), **allowed}
