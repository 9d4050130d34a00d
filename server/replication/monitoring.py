"""What a server of the log says of itself at its monitoring address: `http://host:8222/varz`.

A client cannot ask whether a server syncs before it acknowledges, so this is the only way to know.
It blocks for as long as the limit, and runs in a thread, or before there is a loop.
"""

from __future__ import annotations

import ssl
import urllib.request
from typing import Final

import msgspec
from msgspec import DecodeError, ValidationError, json

LIMIT_S: Final = 5.0
# More is no report of a server.
LIMIT_BYTES: Final = 4 * 1024 * 1024


class MonitoringError(Exception):
    """A monitoring address does not answer, or with something else; says so in one line."""


class _JetStreamConfig(msgspec.Struct):
    sync_always: bool = False
    sync_interval: int = 0


class _JetStream(msgspec.Struct):
    config: _JetStreamConfig | None = None


class ServerReport(msgspec.Struct):
    """The part of `/varz` that matters here."""

    version: str
    server_name: str
    max_payload: int = 0
    jetstream: _JetStream = msgspec.field(default_factory=_JetStream)

    @property
    def has_jetstream(self) -> bool:
        """False when JetStream is off."""
        return self.jetstream.config is not None

    @property
    def syncs_always(self) -> bool:
        """True when nothing is acknowledged before it is synced."""
        return self.jetstream.config is not None and self.jetstream.config.sync_always


def parse_report(text: bytes) -> ServerReport:
    """The report that a server has sent.

    Raises:
        MonitoringError: it is none
    """
    try:
        return json.decode(text, type=ServerReport)
    except (DecodeError, ValidationError) as error:
        raise MonitoringError(f"it answers with something else than a report: {error}") from error


def ask(address: str, tls: ssl.SSLContext | None = None) -> ServerReport:
    """What the server at this address says of itself.

    Args:
        address: `http://host:8222` or `https://…`
        tls: whose certificates count

    Raises:
        MonitoringError: it does not
    """
    if not address.startswith(("http://", "https://")):
        raise MonitoringError("it is no address of monitoring: write http://host:8222")
    url = address.rstrip("/") + "/varz"
    # No proxy: these are servers of the same cluster.
    opener = urllib.request.build_opener(
        urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=tls)
    )
    try:
        with opener.open(url, timeout=LIMIT_S) as answer:
            text = answer.read(LIMIT_BYTES)
    # HTTP's own errors are among those; what is no HTTP at all is a ValueError of http.client.
    except (OSError, ValueError) as error:
        reason = getattr(error, "reason", None) or error
        raise MonitoringError(f"it does not answer: {reason}") from error
    return parse_report(text)
