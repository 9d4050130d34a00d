"""Users and virtual hosts as the configuration file names them.

Reads `[[users]]` and `[[vhosts]]` into values. Whether a password fits and what a permission
means is `server/auth/users.py`'s business; a virtual host's life is the broker's.

Spec: AUTH-02, AUTH-06, VHOST-04
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from vouchmq.server.edge.errors import SettingsError

NAME_MAX_SIZE: Final = 255
UNLIMITED: Final = -1
QUEUE_TYPES: Final = ("classic", "quorum", "stream")


@dataclass(slots=True, frozen=True)
class VHostAccount:
    """A virtual host and its limits; negative: no limit, 0: none allowed.

    `default_queue_type`: of queues that are declared without one; empty: classic.

    Spec: VHOST-03, VHOST-04
    """

    name: str
    max_connections: int = UNLIMITED
    max_queues: int = UNLIMITED
    max_exchanges: int = UNLIMITED
    default_queue_type: str = ""


@dataclass(slots=True, frozen=True)
class TopicAccount:
    """Which keys of one topic exchange a user may publish with (write) and bind with (read).

    In the patterns `{username}` and `{vhost}` stand for the names.

    Spec: PERM-10
    """

    exchange: str = ""
    vhost: str = "/"
    write: str = ".*"
    read: str = ".*"


@dataclass(slots=True, frozen=True, repr=False)
class UserAccount:
    """A user: how to prove it, and what it may do in each of its virtual hosts.

    Exactly one of `password` and `password_hash` counts: a hash, if there is one. The three
    patterns are searched in names of queues and exchanges (PERM-01). Limits as in `VHostAccount`.

    Spec: AUTH-02, AUTH-05, AUTH-06
    """

    name: str
    password: str = ""
    password_hash: str = ""
    hashing_algorithm: str = "rabbit_password_hashing_sha256"
    tags: tuple[str, ...] = ()
    vhosts: tuple[str, ...] = ("/",)
    configure: str = ".*"
    write: str = ".*"
    read: str = ".*"
    max_connections: int = UNLIMITED
    max_channels: int = UNLIMITED
    topic_permissions: tuple[TopicAccount, ...] = ()

    def __repr__(self) -> str:
        """Without secrets: a traceback or a log line may show it."""
        return f"UserAccount({self.name!r})"


def read_users(rows: object, where: str) -> tuple[UserAccount, ...]:
    """The accounts of `[[users]]`.

    Raises:
        SettingsError: an unknown key, a wrong type, a missing or doubled name, two passwords.
    """
    tables = _tables(rows, where)
    plain = [{key: row[key] for key in row if key != "topic_permissions"} for row in tables]
    users = tuple(
        UserAccount(**checked, topic_permissions=_topics(row, f"{where}: {row['name']!r}"))
        for checked, row in zip(_rows(plain, UserAccount, where), tables, strict=True)
    )
    for row in tables:
        if "password" in row and "password_hash" in row:
            name = row.get("name")
            raise SettingsError(f"{where}: {name!r} has both a password and a password_hash")
    _require_distinct((user.name for user in users), where)
    return users


def read_vhosts(rows: object, where: str) -> tuple[VHostAccount, ...]:
    """The virtual hosts of `[[vhosts]]`.

    Raises:
        SettingsError: an unknown key, a wrong type, a missing or doubled name, no type of queue.
    """
    vhosts = tuple(VHostAccount(**row) for row in _rows(rows, VHostAccount, where))
    for vhost in vhosts:
        if vhost.default_queue_type not in {"", *QUEUE_TYPES}:
            raise SettingsError(
                f"{where}: {vhost.name!r}: default_queue_type: expected one of "
                f"{', '.join(QUEUE_TYPES)}, not {vhost.default_queue_type!r}"
            )
    _require_distinct((vhost.name for vhost in vhosts), where)
    return vhosts


def require_known_vhosts(users: Iterable[UserAccount], vhosts: Iterable[VHostAccount]) -> None:
    """Every virtual host that a user may enter exists.

    Raises:
        SettingsError: one does not.
    """
    names = {vhost.name for vhost in vhosts}
    for user in users:
        for name in user.vhosts:
            if name not in names:
                raise SettingsError(f"users: {user.name!r} names an unknown vhost: {name!r}")
        for topic in user.topic_permissions:
            if topic.vhost not in user.vhosts:
                raise SettingsError(
                    f"users: {user.name!r}: topic_permissions: {topic.vhost!r} is not in its vhosts"
                )


def _tables(rows: object, where: str) -> list[dict[str, Any]]:
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise SettingsError(f"{where}: expected tables, [[{where.rsplit(': ', 1)[-1]}]]")
    return rows


def _rows(
    rows: object, kind: type[UserAccount] | type[VHostAccount], where: str
) -> list[dict[str, Any]]:
    """The tables with every value checked against the type of its field."""
    known = {name: each.default for name, each in kind.__dataclass_fields__.items()}
    checked = []
    for row in _tables(rows, where):
        name = row.get("name")
        if not isinstance(name, str) or not 0 < len(name.encode()) <= NAME_MAX_SIZE:
            raise SettingsError(f"{where}: each needs a name of 1 to {NAME_MAX_SIZE} bytes")
        for key in row:
            if key not in known:
                raise SettingsError(f"{where}: {name!r}: {key}: no such key")
        checked.append({key: _value(row, key, known, f"{where}: {name!r}") for key in row})
    return checked


def _topics(user: Mapping[str, Any], where: str) -> tuple[TopicAccount, ...]:
    """`[[users.topic_permissions]]` of one user."""
    rows, where = user.get("topic_permissions", []), f"{where}: topic_permissions"
    known = {name: each.default for name, each in TopicAccount.__dataclass_fields__.items()}
    topics = []
    for row in _tables(rows, where):
        for key in row:
            if key not in known:
                raise SettingsError(f"{where}: {key}: no such key")
        values: dict[str, Any] = {key: _value(row, key, known, where) for key in row}
        topic = TopicAccount(**values)
        if not topic.exchange:
            raise SettingsError(f"{where}: each needs an exchange")
        topics.append(topic)
    _require_distinct((f"{each.exchange} in {each.vhost}" for each in topics), where)
    return tuple(topics)


def _value(row: Mapping[str, Any], key: str, known: Mapping[str, object], where: str) -> object:
    """A value of the type that the field's default has; lists become tuples."""
    value, default = row[key], known[key]
    if isinstance(default, tuple):
        if isinstance(value, list) and all(isinstance(each, str) for each in value):
            return tuple(value)
        raise SettingsError(f"{where}: {key}: expected a list of strings")
    if isinstance(default, int):
        if type(value) is int:
            return value
        raise SettingsError(f"{where}: {key}: expected an integer, not {value!r}")
    # The value is not shown: it may be a password.
    if not isinstance(value, str):
        raise SettingsError(f"{where}: {key}: expected a string")
    return value


def _require_distinct(names: Iterable[str], where: str) -> None:
    seen = set()
    for name in names:
        if name in seen:
            raise SettingsError(f"{where}: {name!r} is listed twice")
        seen.add(name)
