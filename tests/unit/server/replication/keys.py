"""Keys as NATS writes them, made for tests."""

from __future__ import annotations

import json
from base64 import b32encode, urlsafe_b64decode, urlsafe_b64encode
from binascii import crc_hqx

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

# The five bits that are written as the first letter of a public key.
KINDS = {"O": 14, "A": 0, "U": 20}


def seed_of(secret: bytes, kind: str = "U") -> str:
    """The seed of a key of this kind, of its 32 secret bytes."""
    prefix = KINDS[kind] << 3
    raw = bytes([18 << 3 | prefix >> 5, (prefix & 31) << 3]) + secret
    return _written(raw)


def public_of(secret: bytes, kind: str = "U") -> str:
    """The public key."""
    key = Ed25519PrivateKey.from_private_bytes(secret).public_key()
    return _written(bytes([KINDS[kind] << 3]) + key.public_bytes(Encoding.Raw, PublicFormat.Raw))


def verify(secret: bytes, signature: str, signed: bytes) -> None:
    """Raises an error if this is no signature of that key."""
    padded = signature + "=" * (-len(signature) % 4)
    public: Ed25519PublicKey = Ed25519PrivateKey.from_private_bytes(secret).public_key()
    public.verify(urlsafe_b64decode(padded), signed)


def _written(raw: bytes) -> str:
    return b32encode(raw + crc_hqx(raw, 0).to_bytes(2, "little")).rstrip(b"=").decode()


def signed(secret: bytes, kind: str, claims: dict[str, object]) -> str:
    """A JWT with these claims, issued by the key of this kind."""
    header = {"typ": "JWT", "alg": "ed25519-nkey"}
    issued = {"jti": "TEST", "iat": 1, "iss": public_of(secret, kind), **claims}
    content = ".".join(_part(json.dumps(each).encode()) for each in (header, issued))
    signature = Ed25519PrivateKey.from_private_bytes(secret).sign(content.encode())
    return f"{content}.{_part(signature)}"


def _part(data: bytes) -> str:
    return urlsafe_b64encode(data).rstrip(b"=").decode()
