"""The servers of the log as the operator writes them: `nats://host:port`, `tls://…`, in a list."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final
from urllib.parse import unquote, urlsplit

from vouchmq.server.replication.credentials import Credentials

DEFAULT_PORT: Final = 4222


class AddressError(ValueError):
    """An address that names no server; says why in one line."""


@dataclass(frozen=True)
class Server:
    """One server; `needs_tls`: it is not spoken to without."""

    host: str
    port: int
    needs_tls: bool

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"


def parse_servers(text: str) -> tuple[tuple[Server, ...], Credentials]:
    """The servers of a list with commas, and the credentials that stand in front of a host.

    Raises:
        AddressError: it is no such list, or names two different users
    """
    servers: list[Server] = []
    found: set[Credentials] = set()
    for each in filter(None, (part.strip() for part in text.split(","))):
        try:
            url = urlsplit(each)
            port = url.port
        except ValueError as error:
            raise AddressError(f"{_public(each)} is no address: {error}") from None
        if url.scheme not in ("nats", "tls") or not url.hostname:
            raise AddressError(f"{_public(each)} is no address: write nats://host:4222 or tls://…")
        if url.path.strip("/") or url.query or url.fragment:
            raise AddressError(f"{_public(each)} has something behind its port")
        servers.append(Server(url.hostname, port or DEFAULT_PORT, url.scheme == "tls"))
        if url.password is not None:
            found.add(Credentials(user=unquote(url.username or ""), password=unquote(url.password)))
        elif url.username:
            found.add(Credentials(token=unquote(url.username)))
    if not servers:
        raise AddressError("no server is named")
    if len(set(servers)) < len(servers):
        raise AddressError("a server is named twice")
    if len(found) > 1:
        raise AddressError("all servers must be given the same user and password, or token")
    return tuple(servers), found.pop() if found else Credentials()


def _public(address: str) -> str:
    """Without what may be a secret."""
    scheme, mark, rest = address.rpartition("://")
    return scheme + mark + rest.rpartition("@")[2]
