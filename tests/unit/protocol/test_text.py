"""Strings on the wire: any octets in, the same octets out; cuts at character boundaries."""

from __future__ import annotations

import pytest

from vouchmq.protocol.text import (
    cut_octets,
    cut_to_shortstr,
    decode_text,
    describe_octets,
    encode_text,
    quoted,
    shown,
    shown_values,
)


def test_octets_that_are_not_utf8_survive_as_text() -> None:
    octets = bytes(range(256))
    assert encode_text(decode_text(octets)) == octets


def test_a_surrogate_that_came_from_no_octet_becomes_a_question_mark() -> None:
    assert encode_text("a\ud800b") == b"a?b"


def test_what_is_shown_can_be_written_and_read_everywhere() -> None:
    """FRAME-58: also a name that holds what no UTF-8 can, wherever it stands in an answer."""
    octets = bytes(range(256))
    name = decode_text(octets)
    text = shown(name)
    assert text == octets[:128].decode() + "".join(f"\\x{each:02x}" for each in range(128, 256))
    assert shown("ü€\\xff") == "ü€\\xff"
    value = {name: [name, 1, (name, {"k": name}), octets, None]}
    assert shown_values(value) == {text: [text, 1, (text, {"k": text}), octets, None]}


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("a" * 255, 255),
        ("a" * 256, 255),
        ("é" * 200, 254),
        ("€" * 100, 255),
        ("a€" * 100, 252 + 1),
        ("😀" * 70, 252),
        ("a" + "😀" * 70, 253),
    ],
)
def test_a_cut_text_ends_with_a_whole_character(text: str, size: int) -> None:
    """GEN-03."""
    cut = cut_to_shortstr(text)
    assert len(cut.encode()) == size
    assert text.startswith(cut)


def test_short_texts_are_not_touched() -> None:
    assert cut_to_shortstr("queue 'ü'") == "queue 'ü'"


def test_octets_that_are_no_utf8_are_cut_at_most_three_short_of_the_limit() -> None:
    assert cut_octets(b"\x80" * 300) == b"\x80" * 252


def test_a_snippet_shows_sixteen_octets_at_most() -> None:
    """FRAME-18."""
    assert describe_octets(b"\x01\x02\xff") == "all octets = <<1,2,255>>"
    assert describe_octets(b"") == "all octets = <<>>"
    assert describe_octets(bytes(17)) == "first 16 octets = <<" + ",".join("0" * 16) + ">>"


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("ann", "'ann'"),
        (b"\xff\xfe".decode("utf-8", "surrogateescape"), r"'\xff\xfe'"),
        ("a\n\x1b", r"'a\n\x1b'"),
        ({"k": [b"\xff".decode("utf-8", "surrogateescape"), 1.5]}, r"{'k': ['\xff', 1.5]}"),
    ],
)
def test_quoted_texts_obey_no_terminal_and_show_bytes(value: object, expected: str) -> None:
    assert quoted(value) == expected
