"""Amounts as operators write them."""

from __future__ import annotations

import pytest

from vouchmq.server.settings.sizes import parse_amount

GIB = 1024**3


@pytest.mark.parametrize(
    ("text", "octets"),
    [
        ("0.5", GIB // 2),
        ("1.0", GIB),
        (".25", GIB // 4),
        ("0", 0),
        ("1", 1),
        ("50MB", 50_000_000),
        ("50 MiB", 50 * 1024**2),
        ("2g", 2 * GIB),
        ("2GB", 2_000_000_000),
        ("1tib", 1024**4),
        (" 4k ", 4096),
    ],
)
def test_share_or_octets(text: str, octets: int) -> None:
    assert parse_amount(text).of(GIB) == octets


@pytest.mark.parametrize("text", ["", "-1", "half", "2 apples", "0.5GB", "1e9", "1,5"])
def test_what_is_no_amount(text: str) -> None:
    with pytest.raises(ValueError, match="expected a share"):
        parse_amount(text)
