"""Limits of alarms against the machine: those that could never be kept are refused at start.

What a limit may be anywhere is checked in `settings.py`; only here is known how much memory and
disk there is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from vouchmq.server.errors import StartupError
from vouchmq.server.settings.sizes import parse_amount

if TYPE_CHECKING:
    from vouchmq.server.settings.settings import Settings


def require_memory(settings: Settings, total_octets: int) -> None:
    """Refuse a watermark that memory ends before (LIMIT-01).

    Raises:
        StartupError: it would never be reached
    """
    text = settings.vm_memory_high_watermark
    if 0 < total_octets < parse_amount(text).of(total_octets):
        raise StartupError(
            f"vm_memory_high_watermark: {text} is more than the {total_octets} bytes of memory "
            "available"
        )


def require_disk(settings: Settings, memory_octets: int, size_octets: int) -> None:
    """Refuse a limit that no free space of this file system can reach (LIMIT-01).

    Raises:
        StartupError: publishers would be blocked from the start, and for ever
    """
    text = settings.disk_free_limit
    if 0 < size_octets < parse_amount(text).of(memory_octets):
        raise StartupError(
            f"disk_free_limit: {text} is more than the {size_octets} bytes of the file system of "
            f"data directory {settings.data_dir}"
        )
