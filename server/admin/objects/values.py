"""What commands are given, made into what the protocol knows: names, and tables of arguments.

Must not know any command.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from vouchmq.protocol.text import encode_text
from vouchmq.server.admin.commands import CommandRefused
from vouchmq.server.definitions.arguments import arguments_of
from vouchmq.server.settings.validation import InvalidValueError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from vouchmq.protocol.fields import Table

LONGEST_BYTES: Final = 255


def short(**texts: str) -> None:
    """Refuse names and keys that no method can carry.

    Raises:
        CommandRefused: one is longer than 255 bytes
    """
    for name, text in texts.items():
        if len(encode_text(text)) > LONGEST_BYTES:
            raise CommandRefused(f"{name}: more than {LONGEST_BYTES} bytes")


def table_of(given: Mapping[str, object], name: str = "arguments") -> Table:
    """A field table of plain values, as in a definitions file; integers get 64 bits.

    Raises:
        CommandRefused: a value that no table can hold
    """
    try:
        return arguments_of(dict(given))
    except InvalidValueError as error:
        raise CommandRefused(f"{name}{error.at}: {error}") from None
