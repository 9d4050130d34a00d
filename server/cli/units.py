"""Numbers as people read them."""

from __future__ import annotations

from typing import Final

KIB: Final = 1024
MINUTE_S: Final = 60
HOUR_S: Final = 3600
DAY_S: Final = 86400


def amount(size_bytes: float) -> str:
    """A number of bytes: `512 B`, `1.5 MiB`."""
    size = float(size_bytes)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < KIB:
            return f"{size:.0f} B" if unit == "B" else f"{size:.1f} {unit}"
        size /= KIB
    return f"{size:.1f} TiB"


def duration(seconds: float) -> str:
    """A time: `12 s`, `3 min`, `5 h 12 min`, `3 d 4 h`."""
    whole = int(seconds)
    if whole < MINUTE_S:
        return f"{whole} s"
    if whole < HOUR_S:
        return f"{whole // MINUTE_S} min"
    if whole < DAY_S:
        return f"{whole // HOUR_S} h {whole % HOUR_S // MINUTE_S} min"
    return f"{whole // DAY_S} d {whole % DAY_S // HOUR_S} h"


def count(number: float) -> str:
    """A number or rate in few characters: `999`, `12.3k`, `4.5M`."""
    for limit, divisor, unit in ((1e4, 1.0, ""), (1e7, 1e3, "k"), (1e10, 1e6, "M")):
        if abs(number) < limit:
            value = number / divisor
            return f"{value:.0f}{unit}" if not unit or value >= 100 else f"{value:.1f}{unit}"
    return f"{number / 1e9:.1f}G"


def plural(number: int, noun: str) -> str:
    """`1 queue`, `1,200 queues`."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"
