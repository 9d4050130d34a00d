"""The tree of errors: codes, names, scope, and a text that fits its shortstr."""

from __future__ import annotations

import pytest

from vouchmq.protocol import errors
from vouchmq.protocol.errors import AmqpError, HardError, NotFound, SoftError

SOFT = {
    errors.AccessRefused: (403, "ACCESS_REFUSED"),
    errors.NotFound: (404, "NOT_FOUND"),
    errors.ResourceLocked: (405, "RESOURCE_LOCKED"),
    errors.PreconditionFailed: (406, "PRECONDITION_FAILED"),
}
HARD = {
    errors.ConnectionForced: (320, "CONNECTION_FORCED"),
    errors.LoginRefused: (403, "ACCESS_REFUSED"),
    errors.FrameError: (501, "FRAME_ERROR"),
    errors.SyntaxRefused: (502, "SYNTAX_ERROR"),
    errors.CommandInvalid: (503, "COMMAND_INVALID"),
    errors.ChannelError: (504, "CHANNEL_ERROR"),
    errors.UnexpectedFrame: (505, "UNEXPECTED_FRAME"),
    errors.ResourceError: (506, "RESOURCE_ERROR"),
    errors.NotAllowed: (530, "NOT_ALLOWED"),
    errors.NotImplementedByBroker: (540, "NOT_IMPLEMENTED"),
    errors.InternalError: (541, "INTERNAL_ERROR"),
}


def test_every_error_has_the_code_name_and_scope_of_the_table() -> None:
    """Spec section 2.4."""
    for table, base in ((SOFT, SoftError), (HARD, HardError)):
        # Rooms above may refine the tree; the table is about what stands in this module.
        mine = [each for each in base.__subclasses__() if each.__module__ == errors.__name__]
        assert {each: (each.code, each.name) for each in mine} == table
        assert all(issubclass(each, AmqpError) for each in table)


def test_reply_text_is_the_name_a_dash_and_the_explanation() -> None:
    """GEN-03."""
    error = NotFound("no queue 'q' in vhost '/'", (50, 10))
    assert error.reply_text == "NOT_FOUND - no queue 'q' in vhost '/'"
    assert str(error) == error.reply_text
    assert error.text == "no queue 'q' in vhost '/'"
    assert error.ids == (50, 10)


def test_an_error_without_ids_leaves_them_to_whoever_converts_it() -> None:
    """GEN-05."""
    assert NotFound("x").ids is None


@pytest.mark.parametrize("character", ["a", "é", "€", "😀"])
def test_reply_text_is_cut_to_255_octets_within_no_character(character: str) -> None:
    """GEN-03."""
    text = NotFound(character * 300).reply_text
    octets = text.encode("utf-8", "surrogateescape")
    assert 252 <= len(octets) <= 255
    assert text == "NOT_FOUND - " + character * (len(text) - 12)


def test_reply_text_shows_bytes_that_are_no_utf8() -> None:
    """FRAME-58: clients read the text as UTF-8."""
    assert NotFound("no queue 'a\udcff'").reply_text == "NOT_FOUND - no queue 'a\\xff'"


def test_cannot_decode_shows_the_first_octets() -> None:
    """FRAME-15, FRAME-18."""
    error = errors.cannot_decode(bytes(range(20)), (50, 10))
    assert error.ids == (50, 10)
    assert error.text == "cannot decode <<0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15>>"
