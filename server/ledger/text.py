"""LSNs as the ledger writes them: ranges `[[first,last],…]` of JSON, in the order given.

A run that is without a hole, which most are, is seen to be so by one comparison. Must not know
events, queues or files.
"""

from __future__ import annotations

import re
from json import dumps
from operator import itemgetter
from typing import TYPE_CHECKING, Final

from vouchmq.protocol.text import shown

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from vouchmq.protocol.runs import Message

seq_of: Final = itemgetter(2)


def lsns_in(messages: Sequence[Message]) -> list[int]:
    """The LSNs of messages, stored or not, in their order."""
    return [message[2] >> 1 for message in messages]


def lsns_text(messages: Sequence[Message]) -> str:
    """The LSNs of messages, of which there is at least one, as ranges in their order."""
    first, last = messages[0][2], messages[-1][2]
    if last - first == 2 * (len(messages) - 1) and (
        # Most often they follow each other, and are all stored or all not.
        len(messages) < 3 or list(map(seq_of, messages)) == list(range(first, last + 1, 2))
    ):
        return f"[[{first >> 1},{last >> 1}]]"
    return ranges_text(lsns_in(messages))


def is_run(numbers: list[int]) -> bool:
    """Whether these, of which there is at least one, follow each other without a hole."""
    first, count = numbers[0], len(numbers)
    if numbers[-1] - first != count - 1:
        return False
    return count < 3 or numbers == list(range(first, first + count))


def ranges_text(numbers: list[int]) -> str:
    """Numbers as ranges, in the order given; none is `[]`."""
    if not numbers:
        return "[]"
    if is_run(numbers):
        return f"[[{numbers[0]},{numbers[-1]}]]"
    return pairs_text(ranges_in(numbers))


def ranges_in(numbers: Iterable[int]) -> Iterator[tuple[int, int]]:
    """First and last of each stretch of numbers in which each is one more than the one before."""
    first = last = -2
    for number in numbers:
        if number == last + 1 and last >= first >= 0:
            last = number
            continue
        if first >= 0:
            yield first, last
        first = last = number
    if first >= 0:
        yield first, last


def pairs_text(pairs: Iterable[tuple[int, int]]) -> str:
    """Ranges as the JSON that lines contain."""
    return "[" + ",".join([f"[{first},{last}]" for first, last in pairs]) + "]"


def quoted(text: str) -> str:
    """A text as JSON, in ASCII: a line has as many octets as characters."""
    return dumps(shown(text))


def file_name_part(text: str) -> str:
    """A name that can be part of a file's name."""
    return re.sub(r"[^A-Za-z0-9_.@-]", "_", text).lstrip(".-") or "vouchmq"
