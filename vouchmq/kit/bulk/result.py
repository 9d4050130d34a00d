"""What became of the rows of one `publish_many`."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeAlias

# row (-1: it could not be told which), reply code, reply text, exchange, routing key
ReturnedRow: TypeAlias = tuple[int, int, str, str, str]


@dataclass(slots=True)
class PublishResult:
    """Rows are counted from 0.

    A returned row is confirmed too: the broker has done with it what it could.
    """

    confirmed: int = 0
    nacked: list[int] = field(default_factory=list)
    returned: list[ReturnedRow] = field(default_factory=list)
