"""What settings may be: the types of values that several settings have, and their checks.

A check passes a value on, or says in a line what was expected instead. Must not know which setting
a value is for.
"""

from __future__ import annotations

import re
import unicodedata
from typing import Annotated, Final, Literal

from msgspec import Meta

from vouchmq.server.ledger.text import file_name_part
from vouchmq.server.settings.sizes import Amount, parse_amount
from vouchmq.server.settings.validation import Check, InvalidValueError

# A file name has room for more, and for the rest of it.
LEDGER_BROKER_OCTETS: Final = 100
# Of memory or disk; less was meant to be something else.
LEAST_OCTETS: Final = 1_000_000
# Of memory, for a limit of the disk.
MOST_SHARE: Final = 1000.0
STREAM_NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,100}")


def check_hosts(hosts: tuple[str, ...]) -> tuple[str, ...]:
    """At least one address, and none that is empty."""
    if not hosts or not all(hosts):
        raise InvalidValueError("expected an address; 0.0.0.0 or :: means all interfaces")
    return hosts


def check_frame_max(size: int) -> int:
    """AMQP has a least size."""
    if 0 < size < 4096:
        raise InvalidValueError("expected 0 or at least 4096")
    return size


def check_ledger_broker(name: str) -> str:
    """It is the first part of file names."""
    if name and (name != file_name_part(name) or len(name) > LEDGER_BROKER_OCTETS):
        raise InvalidValueError(
            f"expected at most {LEDGER_BROKER_OCTETS} of the characters A-Z a-z 0-9 _ . @ -, not "
            f"beginning with . or -, and not {name!r}"
        )
    return name


def check_watermark(text: str) -> str:
    """Amounts that mean no alarm, or always one, were meant to be another."""
    amount = _amount(text)
    if amount.share is not None and not 0 < amount.share <= 1:
        raise InvalidValueError("expected a share of memory above 0.0 and at most 1.0")
    if amount.share is None:
        _require_much(amount.octets, text)
    return text


def check_disk_limit(text: str) -> str:
    """The same of the disk, where 0 is no limit, and a share of RAM may be larger than 1.

    How large the file system is, is known when the data directory is open: `alarm_limits.py`.
    """
    amount = _amount(text)
    if amount.share is not None and amount.share > MOST_SHARE:
        raise InvalidValueError(f"expected a share of memory of at most {MOST_SHARE}")
    if amount.share is None and amount.octets:
        _require_much(amount.octets, text)
    return text


def check_node(name: str) -> str:
    """It stands in lines of the log and in the server properties."""
    if not name:
        raise InvalidValueError("must not be empty")
    if any(unicodedata.category(character) == "Cc" for character in name):
        raise InvalidValueError(f"must not have control characters: {name!r}")
    return name


def check_stream(name: str) -> str:
    """It is a token of the log's subjects."""
    if not STREAM_NAME.fullmatch(name):
        raise InvalidValueError(f"expected up to 100 letters, digits, _ and -, not {name!r}")
    return name


def _amount(text: str) -> Amount:
    try:
        return parse_amount(text)
    except ValueError as error:
        raise InvalidValueError(str(error)) from None


def _require_much(octets: int, text: str) -> None:
    if octets < LEAST_OCTETS:
        raise InvalidValueError(
            f"{text} is {octets} bytes, but the minimum is 1MB; a share has a decimal point, such "
            "as 0.6 or 1.0"
        )


Count = Annotated[int, Meta(ge=0)]
Uint16 = Annotated[int, Meta(ge=0, le=65535)]
Hosts = Annotated[tuple[str, ...], Check(check_hosts)]
Mechanisms = Annotated[tuple[Literal["PLAIN", "AMQPLAIN", "EXTERNAL"], ...], Meta(min_length=1)]
FrameMax = Annotated[int, Meta(ge=0, le=0x7FFF_FFFF), Check(check_frame_max)]
LedgerBroker = Annotated[str, Check(check_ledger_broker)]
Watermark = Annotated[str, Check(check_watermark)]
DiskLimit = Annotated[str, Check(check_disk_limit)]
StreamName = Annotated[str, Check(check_stream)]
NodeName = Annotated[str, Check(check_node)]
# In the file they may be numbers, too.
AMOUNTS: Final = (Watermark, DiskLimit)
