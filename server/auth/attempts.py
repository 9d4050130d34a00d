"""How many logins there were, by protocol. Must not know who tried."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

AMQP: Final = "amqp091"
HTTP: Final = "http"


@dataclass(slots=True)
class AttemptCounts:
    """Logins that were let in, and those that were not."""

    succeeded: int = 0
    failed: int = 0


class LoginAttempts:
    """The logins of one broker since it started, or since somebody had it count anew (HTTP-32)."""

    def __init__(self) -> None:
        self.by_protocol = {protocol: AttemptCounts() for protocol in (AMQP, HTTP)}

    def count(self, protocol: str, *, is_ok: bool) -> None:
        """Somebody has tried."""
        counts = self.by_protocol[protocol]
        if is_ok:
            counts.succeeded += 1
        else:
            counts.failed += 1

    def reset(self) -> None:
        """Count from 0 again."""
        for counts in self.by_protocol.values():
            counts.succeeded = counts.failed = 0
