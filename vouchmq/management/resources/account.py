"""Who asks, and what they may use.

Spec: HTTP-12
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from vouchmq.management.api.call import Call


async def whoami(call: Call) -> object:
    """The user who asks."""
    visitor = call.visitor
    return {"name": visitor.user, "tags": list(visitor.tags), "is_internal_user": True}


async def auth_settings(call: Call) -> object:
    """How to log in: by Basic authentication only."""
    del call
    return {"oauth_enabled": False}


async def extensions(call: Call) -> object:
    """Plugins of the page: there are none."""
    del call
    return []
