"""Amounts of memory or disk as operators write them: `0.6` of something, `2GB`, `1073741824`.

A number with a decimal point is a share of whatever the setting is about; any other is octets,
with the units that RabbitMQ takes. Must not know what an amount limits.
"""

from __future__ import annotations

import re
from decimal import Decimal
from typing import Final, NamedTuple

EXPECTED: Final = "expected a share like 0.6 or an amount like 2GB or 1048576"
# Not as many digits as int() refuses with words of its own.
_AMOUNT: Final = re.compile(r"([0-9]{1,40})\s*([A-Za-z]*)")
_SHARE: Final = re.compile(r"[0-9]*\.[0-9]+")
_UNITS: Final = {
    "": 1,
    **{
        name: factor
        for power, letter in enumerate("kmgt", 1)
        for name, factor in (
            (letter, 1024**power),
            (f"{letter}ib", 1024**power),
            (f"{letter}b", 1000**power),
        )
    },
}


class Amount(NamedTuple):
    """A share of a total, or octets when `share` is None."""

    share: float | None
    octets: int = 0

    def of(self, total_octets: int) -> int:
        """The amount in octets, given what a share is a share of."""
        return self.octets if self.share is None else int(self.share * total_octets)


def amount_text(number: float) -> str:
    """A number of TOML as text: an integer has no decimal point, and neither has an exponent."""
    text = repr(number)
    if "e" in text:
        text = format(Decimal(text), "f")
        return text if "." in text else f"{text}.0"
    return text


def parse_amount(text: str) -> Amount:
    """The amount that a text names.

    Raises:
        ValueError: it names none
    """
    stripped = text.strip()
    if _SHARE.fullmatch(stripped):
        return Amount(float(stripped))
    match = _AMOUNT.fullmatch(stripped)
    if match is None or match[2].lower() not in _UNITS:
        raise ValueError(f"{EXPECTED}, not {text!r}")
    return Amount(None, int(match[1]) * _UNITS[match[2].lower()])
