"""`announce management`: a management process says where it listens, for as long as it does.

The command is not answered to the end: a process that ends, however it does, closes its connection,
and is forgotten. Must not know sockets.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from vouchmq.server.admin.commands import Arguments

if TYPE_CHECKING:
    from vouchmq.server.admin.commands import ControlCommands, Reply


class Announcement(Arguments, frozen=True):
    """A management process.

    Args:
        pid: of the process
        hosts: addresses on which it listens
        port: of the HTTP API
        metrics_port: of the Prometheus endpoint
        is_tls: whether both use TLS
    """

    pid: int
    hosts: tuple[str, ...]
    port: int
    metrics_port: int
    is_tls: bool = False


class Announcements:
    """The management processes that are there."""

    def __init__(self) -> None:
        self._there: list[Announcement] = []

    def register(self, commands: ControlCommands) -> None:
        """Enter the command."""
        commands.register("announce management", Announcement, self._announce)

    def facts(self) -> list[dict[str, object]]:
        """What there is to say of them."""
        return [
            {
                "pid": each.pid,
                "hosts": list(each.hosts),
                "port": each.port,
                "metrics_port": each.metrics_port,
                "tls": each.is_tls,
            }
            for each in self._there
        ]

    def _announce(self, announcement: Announcement, reply: Reply) -> None:
        self._there.append(announcement)
        # Another process may be the same but for its place in the list.
        reply.when_gone(lambda: self._there.remove(announcement))
        reply.send({"columns": []})
