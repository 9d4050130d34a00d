"""Who this client is to a NATS server: a user and password, a token, a key, a signed user.

A key or a signed user never sends its secret: the server sends a nonce, and the answer is its
signature (Ed25519, of the library `cryptography`). Must not know sockets.
"""

from __future__ import annotations

import re
from base64 import b32decode, b32encode, urlsafe_b64encode
from binascii import Error as Base32Error
from binascii import crc_hqx
from dataclasses import dataclass, field
from typing import Final

# The first byte of an encoded seed, and of a user's public key; five bits of each are the kind.
SEED_PREFIX: Final = 18 << 3
USER_PREFIX: Final = 20 << 3
SECTION: Final = re.compile(r"-+BEGIN ([A-Z ]+?)-+\s+(\S+?)\s+-+END \1-+")
JWT_SECTION: Final = "NATS USER JWT"
SEED_SECTION: Final = "USER NKEY SEED"


class CredentialsError(ValueError):
    """The credentials cannot be used; says why in one line."""


@dataclass(frozen=True)
class Credentials:
    """At most one of: user and password, token, seed alone, seed with JWT."""

    user: str = ""
    password: str = field(default="", repr=False)
    token: str = field(default="", repr=False)
    seed: str = field(default="", repr=False)
    jwt: str = field(default="", repr=False)

    def connect_fields(self, nonce: str) -> dict[str, str]:
        """What CONNECT says of them, as an answer to the nonce of this server.

        Raises:
            CredentialsError: the server sends no nonce, or the seed is none
        """
        if self.seed:
            if not nonce:
                raise CredentialsError(
                    "the server asks for no signature: it has no users with keys"
                )
            public_key, signature = sign(self.seed, nonce.encode())
            if self.jwt:
                return {"jwt": self.jwt, "sig": signature}
            return {"nkey": public_key, "sig": signature}
        if self.token:
            return {"auth_token": self.token}
        if self.user:
            return {"user": self.user, "pass": self.password}
        return {}


def parse_credentials(text: str) -> Credentials:
    """The contents of a credentials file: a JWT with its seed as `nsc` writes them, or a seed.

    Raises:
        CredentialsError: it is neither
    """
    sections: dict[str, str] = {match[1]: match[2] for match in SECTION.finditer(text)}
    if sections:
        if not {JWT_SECTION, SEED_SECTION} <= sections.keys():
            raise CredentialsError(
                f"the file needs the sections {JWT_SECTION!r} and {SEED_SECTION!r}"
            )
        made = Credentials(seed=sections[SEED_SECTION], jwt=sections[JWT_SECTION])
    else:
        lines = [line.strip() for line in text.splitlines()]
        seeds = [line for line in lines if line and not line.startswith("#")]
        if len(seeds) != 1:
            raise CredentialsError("the file has neither the sections of a user nor one seed")
        made = Credentials(seed=seeds[0])
    _decode_seed(made.seed)
    return made


def sign(seed: str, nonce: bytes) -> tuple[str, str]:
    """The user's public key, and the signature of the nonce, both as NATS writes them.

    Raises:
        CredentialsError: the seed is none, or the library is not installed
    """
    try:
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
        from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
    except ImportError:
        raise CredentialsError(
            "credentials with a key need the library cryptography: "
            "pip install 'vouchmq[replication]'"
        ) from None
    key = Ed25519PrivateKey.from_private_bytes(_decode_seed(seed))
    public = bytes([USER_PREFIX]) + key.public_key().public_bytes(Encoding.Raw, PublicFormat.Raw)
    checked = public + _checksum(public)
    signature = urlsafe_b64encode(key.sign(nonce)).rstrip(b"=")
    return b32encode(checked).rstrip(b"=").decode(), signature.decode()


def _decode_seed(seed: str) -> bytes:
    """The 32 secret bytes behind the two of the prefix, before the two of the checksum."""
    try:
        raw = b32decode(seed + "=" * (-len(seed) % 8))
    except Base32Error:
        raise CredentialsError("the seed is not written in base 32") from None
    if len(raw) != 36 or raw[0] & 0xF8 != SEED_PREFIX:
        raise CredentialsError("the seed is not one of an Ed25519 key: it begins with SU")
    if ((raw[0] & 7) << 5 | raw[1] >> 3) != USER_PREFIX:
        raise CredentialsError("the seed is not that of a user: it begins with SU")
    if _checksum(raw[:-2]) != raw[-2:]:
        raise CredentialsError("the seed has a wrong checksum: part of it is missing or changed")
    return raw[2:-2]


def _checksum(data: bytes) -> bytes:
    """CRC-16 with the polynomial 0x1021, which NATS puts behind keys."""
    return crc_hqx(data, 0).to_bytes(2, "little")
