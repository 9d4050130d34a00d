"""How many connections there are, by virtual host and by user, and how many there may be.

Counts connections that have been opened; a login that is under way counts nowhere. Must not know
what a connection is. The order of the checks is the handshake's.

Spec: CONN-40, CONN-42, CONN-43, VHOST-04, AUTH-06
"""

from __future__ import annotations

from typing import Final

from vouchmq.protocol.errors import NotAllowed

UNLIMITED: Final = -1


class ConnectionLimits:
    """The counts of one broker; negative limits are none, 0 allows no connection.

    Args:
        connection_max: connections of the whole broker
    """

    def __init__(self, connection_max: int = UNLIMITED) -> None:
        self._connection_max = connection_max
        # Plain dictionaries: a `Counter` assigns and deletes in Python.
        self._by_vhost: dict[str, int] = {}
        self._by_user: dict[str, int] = {}

    @property
    def connection_count(self) -> int:
        """Connections that have entered and not left."""
        return sum(self._by_vhost.values())

    def check_node(self) -> None:
        """Pass while the broker takes another connection.

        Raises:
            NotAllowed: 530, it does not (CONN-40).
        """
        if 0 <= self._connection_max <= self.connection_count:
            limit = self._connection_max
            raise NotAllowed(f"connection refused: node connection limit ({limit}) is reached")

    def check_vhost(self, vhost: str, user: str, limit: int) -> None:
        """Pass while the virtual host takes another connection.

        Raises:
            NotAllowed: 530, it does not (CONN-42).
        """
        if 0 <= limit <= self._by_vhost.get(vhost, 0):
            raise NotAllowed(
                f"access to vhost '{vhost}' refused for user '{user}': "
                f"connection limit ({limit}) is reached"
            )

    def check_user(self, user: str, limit: int) -> None:
        """Pass while the user may have another connection.

        Raises:
            NotAllowed: 530, no further one (CONN-43).
        """
        if 0 <= limit <= self._by_user.get(user, 0):
            raise NotAllowed(
                f"connection refused for user '{user}': user connection limit ({limit}) is reached"
            )

    def enter(self, vhost: str, user: str) -> None:
        """Count a connection in, after the checks above."""
        self._by_vhost[vhost] = self._by_vhost.get(vhost, 0) + 1
        self._by_user[user] = self._by_user.get(user, 0) + 1

    def leave(self, vhost: str, user: str) -> None:
        """One less; names are forgotten with their last connection."""
        _count_out(self._by_vhost, vhost)
        _count_out(self._by_user, user)


def _count_out(counts: dict[str, int], name: str) -> None:
    count = counts[name] - 1
    if count:
        counts[name] = count
    else:
        del counts[name]
