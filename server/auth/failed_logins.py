"""How many logins of a user from an address have failed of late, and when no more are tried.

Each failure fills a bucket of (address, user), which runs empty at a steady rate; while it is full,
that user's logins from there are refused unchecked, right passwords too, for otherwise a
guess would still be told. Other users and other addresses have buckets of their own. All names
that nobody has share one bucket for each address, so that made-up names push nothing out.

Spec: AUTH-10
"""

from __future__ import annotations

import ipaddress
from functools import lru_cache
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

# Buckets kept; the one that has been quiet longest goes first.
MOST_BUCKETS: int = 10_000
ADDRESSES_KNOWN: Final = 1024
# Whoever has one address of IPv6 has all of its network.
IPV6_PREFIX: Final = 64

_Key = tuple[str, str | None]


class FailedLogins:
    """The buckets of one broker.

    Args:
        most: failures that fill a bucket; 0: none does
        window_s: in which a full bucket runs empty
        clock: monotonic seconds
    """

    def __init__(self, most: int, window_s: float, clock: Callable[[], float]) -> None:
        self._most = most
        self._window_s = window_s
        self._clock = clock
        # How full, and when that was; the latest failure last.
        self._buckets: dict[_Key, tuple[float, float]] = {}

    def is_full(self, address: str, user: str | None) -> bool:
        """Whether nothing more is tried for now; `user` is None for names that nobody has."""
        return bool(self._most) and self._level(_key(address, user)) > self._most - 1

    def add(self, address: str, user: str | None) -> bool:
        """Count a failure; True when no more is tried from now on."""
        if not self._most:
            return False
        key = _key(address, user)
        level = self._level(key) + 1
        self._buckets.pop(key, None)
        if len(self._buckets) >= MOST_BUCKETS:
            del self._buckets[next(iter(self._buckets))]
        self._buckets[key] = level, self._clock()
        return level > self._most - 1

    def _level(self, key: _Key) -> float:
        level, at = self._buckets.get(key, (0.0, 0.0))
        return max(0.0, level - (self._clock() - at) * self._most / self._window_s)


def _key(address: str, user: str | None) -> _Key:
    return network_of(address), user


@lru_cache(maxsize=ADDRESSES_KNOWN)
def network_of(address: str) -> str:
    """The address, or of IPv6 its network; an IPv4 address mapped into IPv6 is itself."""
    try:
        parsed = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if isinstance(parsed, ipaddress.IPv4Address):
        return str(parsed)
    if parsed.ipv4_mapped is not None:
        return str(parsed.ipv4_mapped)
    return str(ipaddress.ip_network((parsed, IPV6_PREFIX), strict=False))
