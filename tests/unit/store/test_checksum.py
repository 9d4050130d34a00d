"""The checksum is zlib's, whoever computes it."""

from __future__ import annotations

import importlib
import sys
import zlib

import pytest

from vouchmq.store import checksum


@pytest.mark.parametrize("size", [0, 1, 15, 64, 1023, 5121, 70_001])
@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_it_is_that_of_zlib(size: int, kind: type) -> None:
    data = kind(bytes(at * 7 & 255 for at in range(size)))
    assert checksum.crc32(data) == zlib.crc32(data)
    half = size // 2
    assert checksum.crc32(data[half:], checksum.crc32(data[:half])) == zlib.crc32(data)


def test_without_isal_it_is_computed_by_zlib(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "isal.isal_zlib", None)
        assert importlib.reload(checksum).crc32 is zlib.crc32
    importlib.reload(checksum)
