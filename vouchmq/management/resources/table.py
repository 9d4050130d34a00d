"""All routes of the HTTP API.

Spec: HTTP-10 … HTTP-32
"""

from __future__ import annotations

from typing import Final

from vouchmq.management.api.call import Route
from vouchmq.management.resources import account

ROUTES: Final[tuple[Route, ...]] = (
    Route("/whoami", {"GET": account.whoami}, "the user who asks"),
    Route("/auth", {"GET": account.auth_settings}, "how to log in"),
    Route("/extensions", {"GET": account.extensions}, "extensions of the page"),
)
