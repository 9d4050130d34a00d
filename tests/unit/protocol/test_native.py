"""Numbers read octet by octet, and the build that does so."""

from __future__ import annotations

import struct

import pytest

from vouchmq.protocol import native
from vouchmq.protocol.native import long_at, short_at
from vouchmq.server.version import build_kind

NUMBERS = [0, 1, 0x7F, 0x80, 0xFF, 0x100, 0x1234, 0x7FFF, 0x8000, 0xFFFF]
LONG_NUMBERS = [*NUMBERS, 0x10000, 0x123456, 0x12345678, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF]


@pytest.mark.parametrize("number", NUMBERS)
def test_a_short_is_what_struct_packs(number: int) -> None:
    assert short_at(b"\xaa\xbb" + struct.pack(">H", number) + b"\xcc", 2) == number


@pytest.mark.parametrize("number", LONG_NUMBERS)
def test_a_long_is_what_struct_packs(number: int) -> None:
    assert long_at(b"\xaa" + struct.pack(">I", number) + b"\xcc", 1) == number


@pytest.mark.parametrize("size", range(4))
def test_nothing_is_read_past_the_end(size: int) -> None:
    with pytest.raises(IndexError):
        long_at(bytes(size), 0)
    with pytest.raises(IndexError):
        short_at(bytes(size), size - 1)


def test_only_the_compiled_build_reads_natively() -> None:
    assert native.IS_NATIVE is (build_kind() == "compiled")
