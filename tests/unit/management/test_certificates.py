"""The validity of certificates is read as openssl tells it (HTTP-30)."""

from __future__ import annotations

import ssl
import subprocess
from datetime import UTC, datetime
from pathlib import Path

import pytest

from vouchmq.management.certificates import not_after


def test_the_end_of_a_certificate(certificates: Path) -> None:
    path = certificates / "server.pem"
    told = subprocess.run(
        ["openssl", "x509", "-in", path, "-noout", "-enddate"],
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    text = told.strip().removeprefix("notAfter=")
    wanted = datetime.strptime(text, "%b %d %H:%M:%S %Y %Z").replace(tzinfo=UTC)
    pem = path.read_text()
    pem = pem[pem.index("-----BEGIN CERTIFICATE") :]
    end = pem.index("-----END CERTIFICATE-----") + len("-----END CERTIFICATE-----")
    assert not_after(ssl.PEM_cert_to_DER_cert(pem[:end])) == wanted


@pytest.mark.parametrize("text, year", [(b"491231235959Z", 2049), (b"500101000000Z", 1950)])
def test_years_of_two_digits(text: bytes, year: int) -> None:
    times = b"\x30\x1e" + (b"\x17\x0d" + text) * 2
    inner = b"\xa0\x03\x02\x01\x02" + b"\x02\x01\x01" + b"\x30\x00" * 2 + times
    signed = b"\x30" + bytes([len(inner)]) + inner
    assert not_after(b"\x30" + bytes([len(signed)]) + signed).year == year


def test_years_of_four_digits() -> None:
    time = b"\x18\x0f20990101000000Z"
    times = b"\x30" + bytes([2 * len(time)]) + time * 2
    inner = b"\x02\x01\x01" + b"\x30\x00" * 2 + times
    signed = b"\x30" + bytes([len(inner)]) + inner
    assert not_after(b"\x30" + bytes([len(signed)]) + signed).year == 2099


@pytest.mark.parametrize("data", [b"", b"\x30", b"\x30\x02\x02\x00"])
def test_what_is_no_certificate(data: bytes) -> None:
    with pytest.raises(ValueError):
        not_after(data)
