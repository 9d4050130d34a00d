"""Seals: what is handed to a ledger's file at once ends with a hash of it and of the seal before.

    seal N = SHA-256(seal N-1, in hex, and the lines since, as they were before they were sealed)

A seal stands at the end of the last of its lines, as its key `seal`. The first one of a file also
says which seal it follows (`prev_seal`), so that each file can be checked by itself and no two can
change places. Lines that a crash has left without a seal count as if their seal had been written.
Must not know files, nor what lines mean.
"""

from __future__ import annotations

import re
from hashlib import sha256
from typing import Final

SEAL: Final = re.compile(rb',"seal":"([0-9a-f]{64})"\}\n')
END: Final = b"}\n"


def seal_of(before: str, lines: bytes) -> str:
    """The seal of some lines that follow those of another seal, "" for none."""
    made = sha256(before.encode("ascii"))
    made.update(lines)
    return made.hexdigest()


def sealed(before: str, lines: bytes, *, begins_file: bool) -> tuple[bytes, str]:
    """Whole lines with their seal, and the seal."""
    seal = seal_of(before, lines)
    more = f',"prev_seal":"{before}"' if begins_file else ""
    return b'%s%s,"seal":"%s"}\n' % (lines[: -len(END)], more.encode(), seal.encode()), seal


def last_seal(data: bytes) -> tuple[str | None, bytes]:
    """The last seal in the lines of a file, None if there is none, and the lines behind it."""
    at = data.rfind(b',"seal":"')
    found = SEAL.match(data, at) if at >= 0 else None
    return (found[1].decode(), data[found.end() :]) if found is not None else (None, data)
