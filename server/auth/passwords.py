"""Salted hashes of passwords: RabbitMQ's, which its definitions carry, and a memory-hard one.

    rabbit_password_hashing_sha256, …_sha512, …_md5   salt ‖ H(salt ‖ password)
    rabbit_password_hashing_scrypt                    cost ‖ salt ‖ scrypt(password)

RabbitMQ knows the first three; they take microseconds. scrypt takes about 50 ms and 16 MiB on
purpose, so nobody may compute it where clients are served: see `slow_checks.py`.

Spec: AUTH-02, AUTH-03
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
from typing import TYPE_CHECKING, Final, NamedTuple

from vouchmq.protocol.text import encode_text

if TYPE_CHECKING:
    from collections.abc import Callable

SHA256: Final = "rabbit_password_hashing_sha256"
SHA512: Final = "rabbit_password_hashing_sha512"
MD5: Final = "rabbit_password_hashing_md5"
SCRYPT: Final = "rabbit_password_hashing_scrypt"
SALT_SIZE: Final = 4
DIGESTS: Final[dict[str, str]] = {SHA256: "sha256", SHA512: "sha512", MD5: "md5"}
CONSTRUCTORS: Final = {"sha256": hashlib.sha256, "sha512": hashlib.sha512, "md5": hashlib.md5}
ALGORITHMS: Final = (*DIGESTS, SCRYPT)

SCRYPT_SALT_SIZE: Final = 16
SCRYPT_HASH_SIZE: Final = 32
# The exponent of N, r and p, a byte each: what scrypt's author proposes for interactive logins.
# More would keep clients waiting that come all at once; imported hashes may cost more.
SCRYPT_COST: Final = bytes((14, 8, 1))
# What an imported hash may cost: 128 MiB.
SCRYPT_MOST_BYTES: Final = 128 * 1024 * 1024


class PasswordHash(NamedTuple):
    """A salted hash; `cost` is that of scrypt, and empty for the others."""

    salt: bytes
    value: bytes
    algorithm: str = SHA256
    cost: bytes = b""

    @property
    def is_slow(self) -> bool:
        """Whether a check takes so long that nobody may wait for it."""
        return self.algorithm == SCRYPT

    def verifies(self, password: str) -> bool:
        """Whether this is the password; compares in constant time."""
        if self.is_slow:
            made = _scrypt(password, self.salt, self.cost)
        else:
            made = _digest(password, self.salt, self.algorithm)
        return hmac.compare_digest(made, self.value)

    def encoded(self) -> str:
        """As definitions carry it."""
        return base64.b64encode(self.cost + self.salt + self.value).decode("ascii")


def hash_password(
    password: str, algorithm: str, random_bytes: Callable[[int], bytes]
) -> PasswordHash:
    """Hash a new password, as RabbitMQ does unless the algorithm is scrypt.

    Raises:
        ValueError: no such algorithm, or one that is for existing hashes only

    Spec: AUTH-02
    """
    require_new(algorithm)
    if algorithm == SCRYPT:
        salt = random_bytes(SCRYPT_SALT_SIZE)
        return PasswordHash(salt, _scrypt(password, salt, SCRYPT_COST), SCRYPT, SCRYPT_COST)
    salt = random_bytes(SALT_SIZE)
    return PasswordHash(salt, _digest(password, salt, algorithm), algorithm)


def require_new(algorithm: str) -> None:
    """Pass if new passwords may be hashed with this algorithm.

    Raises:
        ValueError: it is none, or for existing hashes only
    """
    require_algorithm(algorithm)
    if algorithm == MD5:
        raise ValueError("hashing_algorithm md5 is for existing hashes only")


def salt_size(algorithm: str) -> int:
    """The number of random bytes in a hash of this algorithm."""
    return SCRYPT_SALT_SIZE if algorithm == SCRYPT else SALT_SIZE


def unknown_hash(algorithm: str, random_bytes: Callable[[int], bytes]) -> PasswordHash:
    """A hash of no password at all, which costs as much to check as any of the algorithm."""
    if algorithm == SCRYPT:
        salt, value = random_bytes(SCRYPT_SALT_SIZE), random_bytes(SCRYPT_HASH_SIZE)
        return PasswordHash(salt, value, SCRYPT, SCRYPT_COST)
    digest_size = hashlib.new(DIGESTS[algorithm], usedforsecurity=False).digest_size
    return PasswordHash(random_bytes(SALT_SIZE), random_bytes(digest_size), algorithm)


def require_algorithm(algorithm: str) -> None:
    """Pass if this is the name of an algorithm.

    Raises:
        ValueError: it is none
    """
    if algorithm not in ALGORITHMS:
        raise ValueError(f"unknown hashing_algorithm {algorithm!r}")


def decode_hash(text: str, algorithm: str) -> PasswordHash:
    """The hash as definitions carry it.

    Raises:
        ValueError: not base64, or not a salt and a hash of the algorithm.
    """
    require_algorithm(algorithm)
    try:
        decoded = base64.b64decode(text, validate=True)
    except binascii.Error:
        raise ValueError("password_hash is not base64") from None
    if algorithm == SCRYPT:
        return _decode_scrypt(decoded)
    digest_size = hashlib.new(DIGESTS[algorithm], usedforsecurity=False).digest_size
    if len(decoded) != SALT_SIZE + digest_size:
        raise ValueError(f"password_hash is not one of {algorithm}")
    return PasswordHash(decoded[:SALT_SIZE], decoded[SALT_SIZE:], algorithm)


def _decode_scrypt(decoded: bytes) -> PasswordHash:
    at = len(SCRYPT_COST)
    cost, salt = decoded[:at], decoded[at : at + SCRYPT_SALT_SIZE]
    value = decoded[at + SCRYPT_SALT_SIZE :]
    if len(value) != SCRYPT_HASH_SIZE:
        raise ValueError(f"password_hash is not one of {SCRYPT}")
    exponent, r, p = cost
    if not (1 <= exponent <= 20 and r and p) or (r << exponent) * p * 128 > SCRYPT_MOST_BYTES:
        raise ValueError(f"password_hash of {SCRYPT} costs more than this broker computes")
    return PasswordHash(salt, value, SCRYPT, cost)


def _digest(password: str, salt: bytes, algorithm: str) -> bytes:
    # MD5 hashes come from old definitions; they protect what they protected there.
    make = CONSTRUCTORS[DIGESTS[algorithm]]
    return make(salt + encode_text(password), usedforsecurity=False).digest()


def _scrypt(password: str, salt: bytes, cost: bytes) -> bytes:
    exponent, r, p = cost
    return hashlib.scrypt(
        encode_text(password),
        salt=salt,
        n=1 << exponent,
        r=r,
        p=p,
        maxmem=2 * SCRYPT_MOST_BYTES,
        dklen=SCRYPT_HASH_SIZE,
    )
