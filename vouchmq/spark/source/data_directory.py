"""Which data directory a query reads from, and how far it has looked: kept in its checkpoint.

Places and offsets are numbers that another directory gives to other messages. VouchMQ tells the
identity of its directory when a client connects, and by the declaration of a name how much of it
is on disk; with what a checkpoint has kept it says whether all of that is in its directory still.
The identity is in the journal, so brokers that share a log have the same one, and what is on disk
is committed in the log. Other brokers tell nothing, and nothing is kept. Must not know what is
read.

Spec: DURABLE-26, DURABLE-27, DURABLE-28
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final

from vouchmq.kit.bulk import BulkClosed, BulkError

POSITION: Final = "amq.vouchmq.position"
_SILENT: Final = "it tells of none"

log = logging.getLogger("vouchmq.spark")


class ForeignDirectoryError(Exception):
    """The broker does not hold what the checkpoint has seen; the text says what to do."""


@dataclass(frozen=True)
class Seen:
    """How far somebody has looked.

    Args:
        directory: identity of the data directory
        start: identity of the start of the broker on it
        lsn: that was on disk then
    """

    directory: str
    start: str
    lsn: int

    def as_json(self) -> dict[str, Any]:
        """The position as plain data, its keys in a fixed order."""
        return asdict(self)

    @classmethod
    def of_json(cls, value: Mapping[str, Any] | None) -> Seen | None:
        """What `as_json` gave; None for an offset of a version that did not keep it.

        Raises:
            KeyError, ValueError, TypeError: it did not
        """
        if value is None:
            return None
        return cls(str(value["directory"]), str(value["start"]), int(value["lsn"]))


class DirectoryGuard:
    """Lets a query go on only with the data directory that it has read from. Not thread-safe.

    Args:
        seen: what a checkpoint has kept, if that is known already
        asks_separately: whether to ask over a connection of its own, as answers would come behind
            everything that is being delivered
    """

    def __init__(self, seen: Seen | None = None, *, asks_separately: bool = False) -> None:
        self._seen = seen
        self._asks_separately = asks_separately
        self._is_told = False
        self._identity = self._start = ""
        # The connection that is being read from, and what is asked over.
        self._main: Any = None
        self._separate: Any = None
        self._channel: Any = None

    @property
    def has_identity(self) -> bool:
        """Whether the broker that was connected to last tells its directory."""
        return bool(self._identity)

    def close(self) -> None:
        """Close the connection that is the guard's own; the next question opens another."""
        separate, self._separate, self._channel = self._separate, None, None
        if separate is not None:
            separate.close()

    def connected(self, connection: Any) -> None:
        """There is a new connection; nothing has been consumed on it yet.

        Raises:
            ForeignDirectoryError: it leads to another directory
            BulkError: it is lost
        """
        self.close()
        self._main = connection
        self._identity, self._start = _identities(connection)
        self._is_told = True
        if self._identity:
            self._verify()
        elif self._seen is not None:
            raise ForeignDirectoryError(_refusal(_SILENT))

    def verify_if_new(self, connection: Any) -> None:
        """The same, asking nothing if the broker has not been started since.

        Raises: as connected.
        """
        seen = self._seen
        if seen is not None and _identities(connection) != (seen.directory, seen.start):
            self.connected(connection)

    def require(self, seen: Seen | None) -> None:
        """A checkpoint has kept this; None is one of an earlier version, which is believed.

        Raises:
            ForeignDirectoryError: the connection that there is leads to another directory
        """
        if seen is None:
            return
        self._seen = seen
        if self._is_told and not self._identity:
            raise ForeignDirectoryError(_refusal(_SILENT))
        try:
            if self._identity:
                self._verify()
        except BulkError as error:
            log.debug("lost, so the next connection is asked: %s", error)

    def position(self) -> Seen | None:
        """How far one can be said to have looked: all that has been delivered is on disk now.

        None where the broker tells nothing.

        Raises:
            BulkError: the connection is lost
        """
        if not self._identity:
            return None
        self._seen = self._ask(None)
        return self._seen

    def _verify(self) -> None:
        seen = self._seen
        arguments = None
        if seen is not None:
            arguments = {"data-directory": seen.directory, "start": seen.start, "lsn": seen.lsn}
        try:
            self._seen = self._ask(arguments)
        except BulkClosed as error:
            if error.code == 406:
                raise ForeignDirectoryError(_refusal(error.text)) from None
            raise

    def _ask(self, arguments: dict[str, Any] | None) -> Seen:
        try:
            if self._channel is None:
                self._channel = self._opened().channel()
            low, high = self._channel.declare_passive(POSITION, arguments=arguments)
        except BulkError:
            self.close()
            raise
        return Seen(self._identity, self._start, low | high << 32)

    def _opened(self) -> Any:
        if not self._asks_separately:
            return self._main
        self._separate = self._main.another(name="vouchmq.spark position")
        if _identities(self._separate) != (self._identity, self._start):
            # Its answers would say nothing of what the other connection has delivered.
            raise BulkClosed(0, "the broker has been started again", is_connection=True)
        return self._separate


def _identities(connection: Any) -> tuple[str, str]:
    """Of the data directory and of the broker's start; empty where it tells none."""
    properties = connection.server_properties
    return properties.get("data_directory_id") or "", properties.get("start_id") or ""


def _refusal(why: str) -> str:
    return (
        f"the checkpoint has read from another data directory than that of this broker ({why}): "
        "point option url at the broker that it belongs to, or start with a new "
        "checkpointLocation, and a new spoolLocation if there is one"
    )
