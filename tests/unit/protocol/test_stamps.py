"""Headers put into contents: the rest stays to the octet, whatever the properties are."""

from __future__ import annotations

import random

import pytest
from pamqp import commands

from tests import wire
from vouchmq.protocol.contents import property_block, with_properties
from vouchmq.protocol.errors import FrameError
from vouchmq.protocol.fields import long_int
from vouchmq.protocol.properties import with_headers
from vouchmq.protocol.stamps import Stamp

NAMES = ("x-stream-offset", "x-queue-seq")


def content(body: bytes, **properties: object) -> bytes:
    block = commands.Basic.Properties(**properties)  # type: ignore[arg-type]
    return wire.header(3, len(body), block) + wire.bodies(3, body, ())


CONTENTS = [
    content(b"x"),
    content(b"y"),
    content(b"xx"),
    content(b""),
    content(b"x", delivery_mode=2, content_type="a/b", content_encoding="gzip"),
    content(b"x", delivery_mode=2, message_id="m"),
    content(b"x", headers={}),
    content(b"x", headers={"a": 1, "t": {"k": ["v"]}}, priority=3),
    content(b"x", headers={"x-stream-offset": "mine", "b": True}),
    content(b"x", headers={"b": 7, "x-queue-seq": 1, "x-stream-offset": 2, "c": 8}),
    content(b"x", headers={"text": "\x0fx-stream-offset"}, correlation_id="c"),
]


def expected(raw: bytes, names: tuple[str, ...], values: tuple[int, ...]) -> bytes:
    table = {name: long_int(value) for name, value in zip(names, values, strict=True)}
    return with_properties(raw, with_headers(property_block(raw), table, without=set(names)))


@pytest.mark.parametrize("count", [1, 2])
def test_each_by_itself(count: int) -> None:
    names = NAMES[:count]
    for raw in CONTENTS:
        values = (1 << 40, -1)[:count]
        assert Stamp(*names).on(raw, *values) == expected(raw, names, values)


@pytest.mark.parametrize("seed", range(5))
def test_in_a_row(seed: int) -> None:
    """What was worked out for one content is not taken for another that begins like it."""
    draw = random.Random(seed)
    stamp = Stamp(*NAMES)
    for number in range(200):
        raw = draw.choice(CONTENTS)
        assert stamp.on(raw, number, 7) == expected(raw, NAMES, (number, 7))


def test_properties_that_are_none() -> None:
    broken = bytearray(content(b"x", headers={"a": 1}))
    broken[20] |= 1  # more flags are announced
    with pytest.raises(FrameError):
        Stamp("n").on(bytes(broken), 1)
