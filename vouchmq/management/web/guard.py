"""Requests at one time: what is too much is refused at once, instead of having all others wait.

    too many from one address: 429          too many in all: 503

A stream of events is under way for as long as it is read; it has a limit of its own.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final

from msgspec import json
from starlette.responses import Response

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send

MOST_REQUESTS: Final = 64
MOST_PER_ADDRESS: Final = 16
STREAM: Final = "/api/events"


class Guard:
    """Lets so many requests through to an application.

    Args:
        app: answers them
        most: in all
        per_address: of one client; a reverse proxy has one address
    """

    def __init__(
        self, app: ASGIApp, most: int = MOST_REQUESTS, per_address: int = MOST_PER_ADDRESS
    ) -> None:
        self._app = app
        self._most = most
        self._per_address = per_address
        self._under_way: Counter[str] = Counter()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """See ASGI."""
        if scope["type"] != "http" or scope["path"].endswith(STREAM):
            await self._app(scope, receive, send)
            return
        client = scope.get("client")
        address = client[0] if client else ""
        if self._under_way[address] >= self._per_address:
            reason = f"{self._per_address} requests from this address are under way"
            await _refusal(429, "too_many_requests", reason)(scope, receive, send)
            return
        if self._under_way.total() >= self._most:
            reason = f"{self._most} requests are under way"
            await _refusal(503, "service_unavailable", reason)(scope, receive, send)
            return
        self._under_way[address] += 1
        try:
            await self._app(scope, receive, send)
        finally:
            self._under_way[address] -= 1
            if not self._under_way[address]:
                del self._under_way[address]


def _refusal(status: int, error: str, reason: str) -> Response:
    content = json.encode({"error": error, "reason": reason})
    return Response(content, status, {"retry-after": "1"}, "application/json")
