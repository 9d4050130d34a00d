"""The sockets of one start of the broker: bound before recovery, listening when it can serve.

    Listening.bind ─▶ recovery, definitions ─▶ listen ─▶ the start counts ─▶ `asyncio` accepts

A bound socket refuses clients. A port that is in use is so found out before the journal is opened;
another process that has bound it meanwhile is found out by `listen`. Must not know the journal.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from vouchmq.server.edge.addresses import ListenError, open_sockets
from vouchmq.server.edge.errors import StartupError

if TYPE_CHECKING:
    import socket
    from collections.abc import Sequence
    from contextlib import ExitStack

    from vouchmq.server.edge.settings import Settings

BACKLOG: Final = 1024


class Listening:
    """Sockets for each address; made by `bind` only.

    Args:
        sockets: for clients without TLS
        tls_sockets: for clients with TLS, if there is to be any
    """

    def __init__(
        self, sockets: Sequence[socket.socket], tls_sockets: Sequence[socket.socket]
    ) -> None:
        self.sockets = sockets
        self.tls_sockets = tls_sockets
        # Of all addresses; 0 without TLS.
        self.port = _port_of(sockets)
        self.tls_port = _port_of(tls_sockets)

    @classmethod
    def bind(cls, settings: Settings, undone: ExitStack) -> Listening:
        """Bind every address; nobody can connect yet.

        Args:
            settings: the addresses and ports
            undone: closes the sockets if the start fails

        Raises:
            StartupError: an address cannot be used
        """
        sockets = _bound(settings.host, settings.port, "--port", undone)
        if not settings.tls_port:
            return cls(sockets, ())
        return cls(sockets, _bound(settings.host, settings.tls_port, "--tls-port", undone))

    def listen(self) -> None:
        """Have clients wait in the backlog; nobody is accepted yet.

        Raises:
            StartupError: another process listens there by now
        """
        for sockets, option in ((self.sockets, "--port"), (self.tls_sockets, "--tls-port")):
            for one in sockets:
                try:
                    one.listen(BACKLOG)
                except OSError as error:
                    host, port, *_ = one.getsockname()
                    fault = ListenError(host, port, error)
                    raise StartupError(_text_of(fault, port, option)) from error


def _bound(hosts: Sequence[str], port: int, option: str, undone: ExitStack) -> list[socket.socket]:
    try:
        sockets = open_sockets(hosts, port)
    except ListenError as error:
        raise StartupError(_text_of(error, port, option)) from error
    for one in sockets:
        undone.callback(one.close)
    return sockets


def _text_of(error: ListenError, port: int, option: str) -> str:
    if not error.is_in_use:
        return str(error)
    return (
        f"cannot listen on {error.host}:{port}: address already in use: "
        f"stop what listens there or choose another {option}"
    )


def _port_of(sockets: Sequence[socket.socket]) -> int:
    return int(sockets[0].getsockname()[1]) if sockets else 0
