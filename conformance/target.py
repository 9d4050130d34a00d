"""The broker under test: where it is and who logs in."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote, urlsplit


@dataclass(frozen=True, slots=True)
class Target:
    """The broker under test, as its URL names it."""

    host: str
    port: int
    user: str
    password: str
    vhost: str

    def plain(self) -> bytes:
        """The SASL PLAIN response of the user."""
        return b"\0" + self.user.encode() + b"\0" + self.password.encode()


@dataclass(frozen=True, slots=True)
class Tls:
    """Where the same broker speaks TLS, and the folder with certificates for it."""

    port: int
    files: Path


def parse(url: str) -> Target:
    """The broker a URL names; a URL without a path means the vhost `/`.

    Raises:
        ValueError: not an amqp:// URL with a host.
    """
    parts = urlsplit(url)
    if parts.scheme != "amqp" or not parts.hostname:
        raise ValueError(f"not an amqp:// URL: {url}")
    return Target(
        parts.hostname,
        parts.port or 5672,
        unquote(parts.username or "guest"),
        unquote(parts.password or "guest"),
        unquote(parts.path[1:]) or "/",
    )
