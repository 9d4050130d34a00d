"""Who asks, and what they may use.

Spec: HTTP-12, HTTP-32
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from vouchmq.management.api.call import NO_CONTENT
from vouchmq.management.api.errors import not_found
from vouchmq.management.api.paging import Page
from vouchmq.management.resources.connections import node_of

if TYPE_CHECKING:
    from vouchmq.management.api.call import Call


async def whoami(call: Call) -> object:
    """The user who asks."""
    visitor = call.visitor
    return {"name": visitor.user, "tags": list(visitor.tags), "is_internal_user": True}


async def auth_settings(call: Call) -> object:
    """How to log in: by Basic authentication only."""
    del call
    return {
        "oauth_enabled": False,
        # As clients of RabbitMQ before 3.11 know it.
        "enable_uaa": False,
        "uaa_client_id": "",
        "uaa_location": "",
    }


async def extensions(call: Call) -> object:
    """Plugins of the page: there are none."""
    del call
    return []


async def login_attempts(call: Call) -> object:
    """How many logins there have been, by protocol."""
    await _require_node(call)
    rows = await call.broker.rows("login-attempts")
    found = [
        {
            "protocol": each["protocol"],
            "auth_attempts": each["succeeded"] + each["failed"],
            "auth_attempts_failed": each["failed"],
            "auth_attempts_succeeded": each["succeeded"],
        }
        for each in rows
    ]
    return Page(call.query).of(found)


async def login_sources(call: Call) -> object:
    """Logins by address: RabbitMQ does not count them either, unless it is told to."""
    await _require_node(call)
    return Page(call.query).of([])


async def reset_login_attempts(call: Call) -> object:
    """Count from 0 again."""
    await _require_node(call)
    await call.broker.ask("reset login attempts")
    return NO_CONTENT


async def _require_node(call: Call) -> None:
    if call.names["node"] != await node_of(call):
        raise not_found()
