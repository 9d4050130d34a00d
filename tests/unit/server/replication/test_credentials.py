"""Who a client is: what goes into CONNECT, and files that cannot be used."""

from __future__ import annotations

import sys

import pytest

from tests.unit.server.replication.keys import public_of, seed_of, verify
from vouchmq.server.replication.credentials import (
    Credentials,
    CredentialsError,
    parse_credentials,
)

SECRET = bytes(range(32))
SEED = seed_of(SECRET)
FILE = f"""-----BEGIN NATS USER JWT-----
eyJ0eXAi.eyJqdGki.c2ln
------END NATS USER JWT------

************************* IMPORTANT *************************
NKEY Seed printed below can be used to sign and prove identity.

-----BEGIN USER NKEY SEED-----
{SEED}
------END USER NKEY SEED------

*************************************************************
"""


def test_how_keys_begin() -> None:
    assert SEED.startswith("SU")
    assert public_of(SECRET).startswith("U")


def test_nobody() -> None:
    assert Credentials().connect_fields("nonce") == {}


def test_user_and_password() -> None:
    fields = Credentials(user="me", password="it").connect_fields("")
    assert fields == {"user": "me", "pass": "it"}


def test_token() -> None:
    assert Credentials(token="it").connect_fields("") == {"auth_token": "it"}


def test_seed() -> None:
    fields = parse_credentials(f"# a comment\n{SEED}\n").connect_fields("a nonce")
    assert fields.keys() == {"nkey", "sig"}
    assert fields["nkey"] == public_of(SECRET)
    verify(SECRET, fields["sig"], b"a nonce")
    assert "=" not in fields["sig"]


def test_signed_user() -> None:
    fields = parse_credentials(FILE).connect_fields("a nonce")
    assert fields.keys() == {"jwt", "sig"}
    assert fields["jwt"] == "eyJ0eXAi.eyJqdGki.c2ln"
    verify(SECRET, fields["sig"], b"a nonce")


def test_a_server_without_nonce() -> None:
    with pytest.raises(CredentialsError, match="asks for no signature"):
        parse_credentials(SEED).connect_fields("")


def test_secrets_are_not_shown() -> None:
    shown = repr(Credentials(user="me", password="secret-1", token="secret-2", seed=SEED))
    assert "secret" not in shown
    assert SEED not in shown


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "neither"),
        ("one\ntwo\n", "neither"),
        (FILE.replace("NATS USER JWT", "SOMETHING"), "sections"),
        ("SU1!", "base 32"),
        (SEED[:-8], "an Ed25519 key"),
        (public_of(SECRET), "an Ed25519 key"),
        (seed_of(SECRET, "A"), "of a user"),
        (SEED[:20] + ("A" if SEED[20] != "A" else "B") + SEED[21:], "checksum"),
    ],
)
def test_what_cannot_be_used(text: str, reason: str) -> None:
    with pytest.raises(CredentialsError, match=reason) as raised:
        parse_credentials(text)
    assert "\n" not in str(raised.value)


def test_without_the_library(monkeypatch: pytest.MonkeyPatch) -> None:
    name = "cryptography.hazmat.primitives.asymmetric.ed25519"
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(CredentialsError, match=r"pip install 'vouchmq\[replication\]'"):
        parse_credentials(SEED).connect_fields("nonce")
