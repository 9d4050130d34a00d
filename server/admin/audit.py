"""Who has changed something: the arguments that say it, and the fields of `admin.…` events.

Every command that changes the broker logs one event of that family when the change is made, with
the fields of `who`. Must not know what is changed.
"""

from __future__ import annotations

from vouchmq.server.admin.commands import Arguments


class Changing(Arguments, frozen=True):
    """The arguments that all commands have which change something.

    Args:
        user: whose permissions are needed; None: the owner of the socket may everything
        origin: where the request comes from, for the log
    """

    user: str | None = None
    origin: str = ""


def who(asked: Changing) -> dict[str, str]:
    """The fields of an event that say who has changed something, and from where."""
    return {"user": asked.user or "", "origin": asked.origin}
