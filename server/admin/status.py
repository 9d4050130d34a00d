"""`status`: which broker this is, since when it runs, where it listens, and what was chosen for it.

Everything else that an operator wants to see on one page are listings. Must not know sockets.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from vouchmq.server.admin.commands import Arguments
from vouchmq.server.settings.settings import Settings, default_of, scalar_fields, show

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from vouchmq.server.admin.commands import ControlCommands, Reply

HIDDEN = "(hidden)"


class StatusCommand:
    """Tells what does not change while a broker runs, and for how long it has been running.

    Args:
        facts: about the process: its version, number, listeners…
        settings: with which it was started
        clock: monotonic seconds; it is read now for the first time
        management: tells of the management processes that are there
    """

    def __init__(
        self,
        facts: Mapping[str, object],
        settings: Settings,
        clock: Callable[[], float],
        management: Callable[[], object],
    ) -> None:
        self._management = management
        self._facts = {**facts, "settings": chosen(settings)}
        self._clock = clock
        self._started_at = clock()

    def register(self, commands: ControlCommands) -> None:
        """Enter the command."""
        commands.register("status", Arguments, self._tell)

    def _tell(self, _: Arguments, reply: Reply) -> None:
        uptime_s = self._clock() - self._started_at
        management = self._management()
        reply({"ok": True, "uptime_s": uptime_s, **self._facts, "management": management})


def chosen(settings: Settings) -> dict[str, str]:
    """The settings that are not their defaults, as they would be typed; no secrets."""
    found = {}
    for field in scalar_fields():
        value = getattr(settings, field.name)
        if value != default_of(field.name):
            found[field.name] = show(value) if field.repr else HIDDEN
    return found
