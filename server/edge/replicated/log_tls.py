"""TLS of the connections to the log's servers: files to a context, read again when they change.

Certificates of clients are often short-lived and renewed by a program that tells nobody. So before
each connection the files are looked at, and a pair that cannot be used (half of it is new) leaves
the one that was read before in use.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

import structlog

from vouchmq.server.edge.tls import client_context
from vouchmq.server.errors import SettingsError

if TYPE_CHECKING:
    import ssl

log = structlog.get_logger(__name__)

PREFIX: Final = "ha_"


class LogTls:
    """Gives the context for a connection that begins.

    Args:
        ca_file: `ha_tls_ca_file`
        cert_file: `ha_tls_cert_file`
        key_file: `ha_tls_key_file`

    Raises:
        SettingsError: a file is missing or is not what it should be, or one of the pair is not set
    """

    def __init__(self, ca_file: str, cert_file: str, key_file: str) -> None:
        self._files = (ca_file, cert_file, key_file)
        # Looked at before they are read: what changes meanwhile is seen the next time.
        self._seen = self._look()
        self._context = client_context(*self._files, PREFIX)

    def __call__(self) -> ssl.SSLContext:
        """A context of the files as they are, or as they last were when they could be used."""
        seen = self._look()
        if seen != self._seen:
            self._seen = seen
            try:
                self._context = client_context(*self._files, PREFIX)
            except SettingsError as error:
                log.error(
                    "replication.tls_reload_failed",
                    reason=str(error),
                    meaning="the certificates in use are kept",
                )
            else:
                log.info("replication.tls_reloaded")
        return self._context

    def _look(self) -> tuple[tuple[int, int, int] | None, ...]:
        return tuple(_version(each) for each in self._files if each)


def _version(path: str) -> tuple[int, int, int] | None:
    """What differs when a file has been written or replaced; None if there is none."""
    try:
        found = Path(path).expanduser().stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_ino, found.st_size
