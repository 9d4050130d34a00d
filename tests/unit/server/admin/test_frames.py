"""Frames of the control socket, however their bytes arrive."""

from __future__ import annotations

import pytest

from vouchmq.server.admin.frames import MOST_BYTES, BadFrame, FrameReader, frame

CONTENTS: list[dict[str, object]] = [
    {"command": "a"},
    {"rows": [["x", 1, None, b"\x00", {"k": 1.5}]]},
    {"ok": True},
]


@pytest.mark.parametrize("size", [1, 2, 3, 5, 7, 1000])
def test_frames_come_in_pieces(size: int) -> None:
    data = b"".join(frame(content) for content in CONTENTS)
    reader = FrameReader()
    got = []
    for at in range(0, len(data), size):
        reader.add(data[at : at + size])
        got += list(reader)
    assert got == CONTENTS
    assert not reader.has_frame


@pytest.mark.parametrize(
    "data",
    [
        (MOST_BYTES + 1).to_bytes(4, "big"),
        b"GET / HTTP/1.1\r\n\r\n",
        b"\x00\x00\x00\x01\xc1",
        b"\x00\x00\x00\x01\x07",
        b"\x00\x00\x00\x00",
    ],
)
def test_what_is_no_frame_is_refused(data: bytes) -> None:
    reader = FrameReader()
    reader.add(data)
    assert reader.has_frame
    with pytest.raises(BadFrame):
        reader.next()
