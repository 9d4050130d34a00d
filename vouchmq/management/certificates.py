"""Until when the certificate is valid that a port shows to its clients.

The port is asked as a client asks it, so that what counts is what is served, not what a file says.
Of the certificate only the validity is read: of DER, a sequence in a sequence.

Spec: HTTP-30
"""

from __future__ import annotations

import asyncio
import ssl
from datetime import UTC, datetime
from typing import Final

LIMIT_S: Final = 5.0
SEQUENCE: Final = 0x30
UTC_TIME: Final = 0x17
EXPLICIT: Final = 0xA0  # the version, which is left out where it is the first
BEFORE_VALIDITY: Final = 3  # serial number, signature, issuer


async def expires_at(host: str, port: int) -> datetime | None:
    """Until when; None when the port shows no certificate."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    try:
        async with asyncio.timeout(LIMIT_S):
            _, writer = await asyncio.open_connection(host, port, ssl=context)
    except (OSError, TimeoutError):
        return None
    try:
        encoded = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
    finally:
        writer.close()
    return not_after(encoded) if encoded else None


def not_after(certificate: bytes) -> datetime:
    """The end of the validity of a certificate in DER.

    Raises:
        ValueError: it is none
    """
    _, at, _ = _element(certificate, 0)
    kind, at, _ = _element(certificate, at)
    if kind != SEQUENCE:
        raise ValueError("no certificate")
    kind, inside, end = _element(certificate, at)
    at = end if kind == EXPLICIT else at
    for _ in range(BEFORE_VALIDITY):
        _, _, at = _element(certificate, at)
    _, at, _ = _element(certificate, at)
    _, _, at = _element(certificate, at)
    kind, inside, end = _element(certificate, at)
    text = certificate[inside:end].decode("ascii")
    if kind == UTC_TIME:
        # Two digits of a year: those below 50 are of this century (RFC 5280).
        text = ("20" if text < "50" else "19") + text
    return datetime.strptime(text, "%Y%m%d%H%M%SZ").replace(tzinfo=UTC)


def _element(data: bytes, at: int) -> tuple[int, int, int]:
    """The type of what is there, where its content begins, and where it ends."""
    try:
        kind, size = data[at], data[at + 1]
    except IndexError:
        raise ValueError("no certificate") from None
    at += 2
    if size & 0x80:
        octets = size & 0x7F
        size = int.from_bytes(data[at : at + octets], "big")
        at += octets
    return kind, at, at + size
