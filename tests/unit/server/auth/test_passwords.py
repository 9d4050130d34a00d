"""Hashes of passwords: RabbitMQ's octet by octet, and the slow one."""

from __future__ import annotations

import base64
import hashlib

import pytest

from vouchmq.server.auth import passwords
from vouchmq.server.auth.passwords import MD5, SCRYPT, SCRYPT_COST, SHA256, SHA512

SALT = bytes.fromhex("908DC60A")


def test_the_hash_of_the_specification_is_made() -> None:
    """AUTH-03."""
    hashed = passwords.hash_password("test12", SHA256, lambda count: SALT[:count])
    assert hashed.encoded() == "kI3GCqW5JLMJa4iX1lo7X4D6XbYqlLgxIs30+P6tENUV2POR"


@pytest.mark.parametrize("algorithm", [SHA256, SHA512, SCRYPT])
@pytest.mark.parametrize("password", ["secret", "p\u00e4ss", "\udcff"])
def test_what_is_made_verifies_as_it_is_stored(algorithm: str, password: str) -> None:
    made = passwords.hash_password(password, algorithm, lambda count: bytes(range(count)))
    again = passwords.decode_hash(made.encoded(), algorithm)
    assert again == made
    assert again.verifies(password)
    assert not again.verifies(f"{password}x")
    assert not again.verifies("")
    assert again.is_slow is (algorithm == SCRYPT)


def test_the_slow_one_is_scrypt() -> None:
    """Stored as its cost, its salt and the hash, so that the cost may grow one day."""
    made = passwords.hash_password("secret", SCRYPT, lambda count: bytes(range(count)))
    salt = bytes(range(16))
    hashed = hashlib.scrypt(b"secret", salt=salt, n=1 << 14, r=8, p=1, dklen=32)
    assert base64.b64decode(made.encoded()) == bytes((14, 8, 1)) + salt + hashed
    cheap = bytes((1, 1, 1)) + salt + hashlib.scrypt(b"x", salt=salt, n=2, r=1, p=1, dklen=32)
    assert passwords.decode_hash(base64.b64encode(cheap).decode(), SCRYPT).verifies("x")


@pytest.mark.parametrize(
    "cost", [(0, 8, 1), (21, 1, 1), (14, 0, 1), (14, 8, 0), (17, 9, 1), (14, 8, 9)]
)
def test_a_hash_that_costs_too_much_is_not_taken(cost: tuple[int, int, int]) -> None:
    text = base64.b64encode(bytes(cost) + bytes(48)).decode()
    with pytest.raises(ValueError, match="costs more than this broker computes"):
        passwords.decode_hash(text, SCRYPT)


@pytest.mark.parametrize(
    ("text", "algorithm", "reason"),
    [
        ("%%%", SHA256, "is not base64"),
        ("AAAA", SHA256, f"is not one of {SHA256}"),
        ("AAAA", SCRYPT, f"is not one of {SCRYPT}"),
        (base64.b64encode(bytes(36)).decode(), SHA512, f"is not one of {SHA512}"),
        (base64.b64encode(bytes(36)).decode(), "rot13", "unknown hashing_algorithm 'rot13'"),
    ],
)
def test_what_is_no_hash_is_refused(text: str, algorithm: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        passwords.decode_hash(text, algorithm)


def test_md5_is_for_existing_hashes() -> None:
    octets = hashlib.md5(SALT + b"old", usedforsecurity=False).digest()
    assert passwords.decode_hash(base64.b64encode(SALT + octets).decode(), MD5).verifies("old")
    with pytest.raises(ValueError, match="md5 is for existing hashes only"):
        passwords.hash_password("new", MD5, bytes)


@pytest.mark.parametrize("algorithm", [SHA256, SHA512, SCRYPT])
def test_the_hash_of_nobody_costs_the_same_and_verifies_nothing(algorithm: str) -> None:
    made = passwords.unknown_hash(algorithm, lambda count: b"\x5a" * count)
    assert made.algorithm == algorithm
    assert made.cost == (SCRYPT_COST if algorithm == SCRYPT else b"")
    assert not made.verifies("")
    assert not made.verifies("secret")
