"""The sockets of one start of the broker: bound before recovery, listening when it can serve.

    addresses and a port ─▶ Listening.bind ─▶ recovery, definitions ─▶ listen ─▶ the start counts
                                                               `asyncio` accepts ◀─┘

There is one for each address, all on one port. A bound socket refuses clients. A port that is in
use is so found out before the journal is opened; another process that has bound it meanwhile is
found out by `listen`. Must not know the journal, nor what is done with a connection.

Spec: GEN-09
"""

from __future__ import annotations

import errno
import socket
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, Final

from vouchmq.server.errors import StartupError

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Sequence

    from vouchmq.server.settings.settings import Settings

# As many as Linux keeps for a socket as it comes: who connects while it is full tries again after
# a second, behind those that came later.
BACKLOG: Final = 4096
EVERY_ADDRESS: Final = "::"
LOOPBACK_6: Final = "::1"
# What a machine without IPv6 says, at `socket` or at `bind`.
NO_IPV6: Final = frozenset({errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL, errno.EPROTONOSUPPORT})
# A free port of one address may be taken at another.
MOST_PORTS_TRIED: Final = 50
# What the kernel may hold of one connection beyond what its client's window takes. Left alone it
# takes up to 4 MiB from a consumer that does not read: tens of thousands of small deliveries,
# each of which the broker has to remember as unacknowledged (CONS-11).
UNSENT_BYTES: Final = 512 * 1024


class Listening:
    """Sockets for each address; made by `bind` only.

    Args:
        hosts: the addresses
        sockets: for clients without TLS
        tls_sockets: for clients with TLS, if there is to be any
    """

    def __init__(
        self,
        hosts: Sequence[str],
        sockets: Sequence[socket.socket],
        tls_sockets: Sequence[socket.socket],
    ) -> None:
        self._hosts = hosts
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
            return cls(settings.host, sockets, ())
        return cls(
            settings.host, sockets, _bound(settings.host, settings.tls_port, "--tls-port", undone)
        )

    @property
    def facts(self) -> dict[str, object]:
        """Where clients find the broker, for programs; `tls_port` only if there is one."""
        found = {"host": self._hosts[0], "hosts": list(self._hosts), "port": self.port}
        return found | {"tls_port": self.tls_port} if self.tls_port else found

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


class ListenError(Exception):
    """An address cannot be used; the text says which and why."""

    def __init__(self, host: str, port: int, error: OSError) -> None:
        super().__init__(f"cannot listen on {host}:{port}: {error.strerror or error}")
        self.is_in_use = error.errno == errno.EADDRINUSE
        self.host = host


def open_sockets(hosts: Sequence[str], port: int) -> list[socket.socket]:
    """Bind a socket to each address; all have the same port.

    Args:
        hosts: addresses or names; `::` is both families unless an IPv4 address is given too,
            and `::1` beside other addresses is left out by a machine that has no IPv6
        port: 0 for a free one

    Raises:
        ListenError: an address cannot be used
    """
    for _ in range(MOST_PORTS_TRIED - 1):
        try:
            return _bind_all(hosts, port)
        except ListenError as error:
            if port or not error.is_in_use:
                raise
    return _bind_all(hosts, port)


def _bind_all(hosts: Sequence[str], port: int) -> list[socket.socket]:
    with ExitStack() as opened:
        sockets: list[socket.socket] = []
        for host, family, address in _resolved(hosts, port):
            # The first one has found the port of all.
            actual = sockets[0].getsockname()[1] if sockets else port
            is_both = host == EVERY_ADDRESS and not _has_ipv4(hosts)
            try:
                one = _bind(family, (address[0], actual, *address[2:]), is_both=is_both)
            except OSError as error:
                if host == LOOPBACK_6 and len(hosts) > 1 and error.errno in NO_IPV6:
                    continue
                raise ListenError(host, actual, error) from error
            sockets.append(opened.enter_context(one))
        opened.pop_all()
        return sockets


def _resolved(
    hosts: Sequence[str], port: int
) -> list[tuple[str, socket.AddressFamily, tuple[str | int, ...]]]:
    """Each given address with its family, in order; those that are the same once."""
    found: dict[tuple[str | int, ...], tuple[str, socket.AddressFamily]] = {}
    for host in hosts:
        try:
            entries: list[Any] = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        except OSError as error:
            if host == LOOPBACK_6 and len(hosts) > 1:
                continue
            raise ListenError(host, port, error) from error
        for family, _, _, _, address in entries:
            found.setdefault(address, (host, family))
    return [(host, family, address) for address, (host, family) in found.items()]


def _has_ipv4(hosts: Sequence[str]) -> bool:
    return any(":" not in host for host in hosts)


def _bind(
    family: socket.AddressFamily, address: tuple[str | int, ...], *, is_both: bool
) -> socket.socket:
    one = socket.socket(family, socket.SOCK_STREAM)
    try:
        one.setblocking(False)
        one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        # Those that are accepted inherit it.
        one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, UNSENT_BYTES)
        if family == socket.AF_INET6:
            one.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, not is_both)
        one.bind(address)
    except OSError:
        one.close()
        raise
    return one


async def servers_of(
    loop: asyncio.AbstractEventLoop,
    sockets: Sequence[socket.socket],
    protocol: Callable[[], asyncio.BaseProtocol],
) -> list[asyncio.Server]:
    """Servers on these sockets; none accepts yet."""
    return [
        await loop.create_server(protocol, sock=one, backlog=BACKLOG, start_serving=False)
        for one in sockets
    ]


def close_all(servers: Sequence[asyncio.Server]) -> None:
    """Accept nobody any more."""
    for server in servers:
        server.close()
