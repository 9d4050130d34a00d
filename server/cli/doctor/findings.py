"""What a check finds, and how it is printed."""

from __future__ import annotations

from enum import IntEnum
from typing import Any, NamedTuple


class Level(IntEnum):
    """How bad it is."""

    OK = 0
    NOTE = 1
    WARNING = 2
    ERROR = 3


class Finding(NamedTuple):
    """One thing that was looked at.

    Args:
        level: how bad it is
        subject: what was looked at
        text: what it is like
        mend: what to do; empty where there is nothing to do
    """

    level: Level
    subject: str
    text: str
    mend: str = ""

    def document(self) -> dict[str, Any]:
        """The same for programs."""
        return {**self._asdict(), "level": self.level.name.lower()}

    def lines(self) -> list[str]:
        """The same for people."""
        first = f"{self.level.name.lower():<8}{self.subject}: {self.text}"
        return [first, f"        {self.mend}"] if self.mend else [first]
