"""Users and virtual hosts as the configuration file names them.

Reads `[[users]]` and `[[vhosts]]` into values. Whether a password fits and what a permission
means is `server/auth/users.py`'s business; a virtual host's life is the broker's.

Spec: AUTH-02, AUTH-06, VHOST-04
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final, Literal, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from vouchmq.server.settings.validation import Faults, Name, read_record, unknown_keys

T = TypeVar("T", bound=Struct)
HashingAlgorithm = Literal[
    "rabbit_password_hashing_scrypt",
    "rabbit_password_hashing_sha512",
    "rabbit_password_hashing_sha256",
]
QUEUE_TYPES: Final = ("classic", "quorum", "stream")


class VHostAccount(Struct, frozen=True):
    """A virtual host and its limits; negative: no limit, 0: none allowed.

    `default_queue_type`: of queues that are declared without one; empty: classic. What is not
    given stays as it is in the data directory.

    Spec: VHOST-03, VHOST-04
    """

    name: Name
    max_connections: int | None = None
    max_queues: int | None = None
    max_exchanges: int | None = None
    default_queue_type: Literal["", "classic", "quorum", "stream"] | None = None


class TopicAccount(Struct, frozen=True):
    """Which keys of one topic exchange a user may publish with (write) and bind with (read).

    In the patterns `{username}` and `{vhost}` stand for the names.

    Spec: PERM-10
    """

    exchange: Name
    vhost: str = "/"
    write: str = ".*"
    read: str = ".*"


class UserAccount(Struct, frozen=True):
    """A user: how to prove it, and what it may do in each of its virtual hosts.

    Exactly one of `password` and `password_hash` counts: a hash, if there is one. The three
    patterns are searched in names of queues and exchanges (PERM-01). Limits as in `VHostAccount`;
    they and the tags stay as they are when they are not given.

    Spec: AUTH-02, AUTH-05, AUTH-06
    """

    name: Name
    password: str = ""
    password_hash: str = ""
    hashing_algorithm: str = "rabbit_password_hashing_sha256"
    tags: tuple[str, ...] | None = None
    vhosts: tuple[str, ...] = ("/",)
    configure: str = ".*"
    write: str = ".*"
    read: str = ".*"
    max_connections: int | None = None
    max_channels: int | None = None
    topic_permissions: tuple[TopicAccount, ...] = ()

    def __repr__(self) -> str:
        """Without secrets: a traceback or a log line may show it."""
        return f"UserAccount({self.name!r})"


def default_account(name: str, password: str, vhost: str) -> UserAccount:
    """The user of a first start (AUTH-01)."""
    return UserAccount(name=name, password=password, tags=("administrator",), vhosts=(vhost,))


def read_users(rows: object, where: str, faults: Faults) -> tuple[UserAccount, ...]:
    """The accounts of `[[users]]` that have no fault."""
    users: list[UserAccount] = []
    for place, row in _tables(rows, where, faults):
        topics = row.pop("topic_permissions", [])
        at = f"{place}.topic_permissions"
        if "password" in row and "password_hash" in row:
            faults.add(place, "has both a password and a password_hash")
        user = _read(UserAccount, row, place, faults)
        allowed = _read_all(TopicAccount, topics, at, faults)
        _require_distinct([(each.vhost, each.exchange) for each in allowed], at, faults)
        if user is not None:
            users.append(replace(user, topic_permissions=allowed))
    _require_distinct([user.name for user in users], where, faults)
    return tuple(users)


def read_vhosts(rows: object, where: str, faults: Faults) -> tuple[VHostAccount, ...]:
    """The virtual hosts of `[[vhosts]]` that have no fault."""
    vhosts = _read_all(VHostAccount, rows, where, faults)
    _require_distinct([vhost.name for vhost in vhosts], where, faults)
    return vhosts


def require_known_vhosts(
    users: Iterable[UserAccount], vhosts: Iterable[VHostAccount], faults: Faults
) -> None:
    """Every virtual host that a user may enter exists."""
    names = {vhost.name for vhost in vhosts}
    for user in users:
        for name in user.vhosts:
            if name not in names:
                faults.add(f"users: {user.name!r}", f"names an unknown vhost: {name!r}")
        for topic in user.topic_permissions:
            if topic.vhost not in user.vhosts:
                faults.add(
                    f"users: {user.name!r}",
                    f"topic_permissions: {topic.vhost!r} is not in its vhosts",
                )


def _tables(rows: object, where: str, faults: Faults) -> Iterable[tuple[str, dict[str, Any]]]:
    """The tables of a list, each with its place in the file; a fault if it is no list of tables."""
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        faults.add(where, f"expected tables, [[{where.replace('.', ': ').rsplit(': ', 1)[-1]}]]")
        return []
    return [(f"{where}[{at}]", row) for at, row in enumerate(rows)]


def _read_all(kind: type[T], rows: object, where: str, faults: Faults) -> tuple[T, ...]:
    found = (_read(kind, row, place, faults) for place, row in _tables(rows, where, faults))
    return tuple(each for each in found if each is not None)


def _read(kind: type[T], row: dict[str, Any], place: str, faults: Faults) -> T | None:
    for key in unknown_keys(kind, row):
        faults.add(f"{place}.{key}", "no such key")
    return read_record(kind, row, place, faults)


def _require_distinct(names: list[Any], where: str, faults: Faults) -> None:
    for at, name in enumerate(names):
        if name in names[:at]:
            shown = " in ".join(reversed(name)) if isinstance(name, tuple) else name
            faults.add(where, f"{shown!r} is listed twice")
