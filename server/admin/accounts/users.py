"""`put user`, `put permissions` and the like: who there is, and what each may do.

In force at once, for whoever is connected too. Must not know sockets.

Spec: AUTH-02, AUTH-06, AUTH-07, CONN-56, PERM-01, PERM-10, HTTP-24, HTTP-25, HTTP-28
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Literal, TypeVar

import structlog

from vouchmq.server.admin.audit import Changing, who
from vouchmq.server.admin.commands import INTERNAL_ERROR, CommandRefused, refuse
from vouchmq.server.auth.passwords import SHA256, decode_hash, require_algorithm, require_new
from vouchmq.server.broker import definitions as d
from vouchmq.server.settings.validation import InvalidValueError, check_name

if TYPE_CHECKING:
    from collections.abc import Callable

    from vouchmq.server.admin.accounts.administration import Administration
    from vouchmq.server.admin.commands import ControlCommands, Reply
    from vouchmq.server.auth.passwords import PasswordHash

log = structlog.get_logger(__name__)

T = TypeVar("T")
UserLimit = Literal["max-connections", "max-channels"]


class UserArguments(Changing, frozen=True, kw_only=True):
    """The user that a command is about."""

    name: str


class PutUser(UserArguments, frozen=True, kw_only=True):
    """A user to make or change.

    Args:
        password: new one; None: as it is
        password_hash: of the password, in place of it; empty: none, so only EXTERNAL works
        hashing_algorithm: of the hash (SHA-256 if nothing is said), or for the new password
        tags: None: as they are
    """

    password: str | None = None
    password_hash: str | None = None
    hashing_algorithm: str | None = None
    tags: list[str] | None = None


class UserLimitArguments(UserArguments, frozen=True, kw_only=True):
    """A limit of a user."""

    limit: UserLimit


class PutUserLimit(UserLimitArguments, frozen=True, kw_only=True):
    """A limit and its value; negative: none."""

    value: int


class PermissionArguments(UserArguments, frozen=True, kw_only=True):
    """A user and a virtual host."""

    vhost: str = "/"


class PutPermissions(PermissionArguments, frozen=True, kw_only=True):
    """The three patterns, which are searched in names."""

    configure: str
    write: str
    read: str


class TopicArguments(PermissionArguments, frozen=True, kw_only=True):
    """A user, a virtual host and an exchange; None: all exchanges."""

    exchange: str | None = None


class PutTopicPermissions(PermissionArguments, frozen=True, kw_only=True):
    """The patterns for keys of a topic exchange."""

    exchange: str
    write: str
    read: str


class UserCommands:
    """The commands that change users.

    Args:
        administration: of the broker
    """

    def __init__(self, administration: Administration) -> None:
        self._administration = administration
        self._authenticator = administration.authenticator
        self._accounts = administration.accounts

    def register(self, commands: ControlCommands) -> None:
        """Enter the commands."""
        commands.register("put user", PutUser, self._put)
        commands.register("delete user", UserArguments, self._delete)
        commands.register("put user-limit", PutUserLimit, self._put_limit)
        commands.register("delete user-limit", UserLimitArguments, self._delete_limit)
        commands.register("put permissions", PutPermissions, self._permit)
        commands.register("delete permissions", PermissionArguments, self._forbid)
        commands.register("put topic-permissions", PutTopicPermissions, self._permit_topics)
        commands.register("delete topic-permissions", TopicArguments, self._forbid_topics)

    # Users

    def _put(self, asked: PutUser, reply: Reply) -> None:
        self._administration.begin(asked)
        require_name(asked.name)
        if asked.password is not None and asked.password_hash is not None:
            raise CommandRefused("a password or its hash, not both")
        if asked.password:
            algorithm = asked.hashing_algorithm or self._authenticator.algorithm
            _checked(partial(require_new, algorithm))
            self._authenticator.hash_new(
                asked.password, algorithm, partial(self._hashed, asked, reply)
            )
        elif asked.password is not None:
            # As in RabbitMQ, an empty password is none that anybody can log in with.
            raise CommandRefused("an empty password; an empty password_hash makes a user without")
        else:
            self._set(asked, reply, self._hash_of(asked))

    def _hashed(self, asked: PutUser, reply: Reply, hashed: PasswordHash | None) -> None:
        """The hash of the new password was computed, which may have taken a while."""
        if hashed is None:
            refuse(reply, "the password could not be hashed: memory is low", INTERNAL_ERROR)
            return
        try:
            self._administration.begin(asked)
        except CommandRefused as error:
            refuse(reply, error.text, error.code)
            return
        self._set(asked, reply, (hashed.encoded(), hashed.algorithm))

    def _hash_of(self, asked: PutUser) -> tuple[str, str]:
        before = self._accounts.users.get(asked.name)
        algorithm = asked.hashing_algorithm or SHA256
        if asked.password_hash is None:
            if before is not None:
                return before.password_hash, before.hashing_algorithm
            return "", algorithm
        _checked(partial(require_algorithm, algorithm))
        if asked.password_hash:
            _checked(partial(decode_hash, asked.password_hash, algorithm))
        return asked.password_hash, algorithm

    def _set(self, asked: PutUser, reply: Reply, hashed: tuple[str, str]) -> None:
        name = asked.name
        before = self._accounts.users.get(name)
        tags = asked.tags
        if tags is None:
            tags = before.tags if before is not None else []
        limits = (before.max_connections, before.max_channels) if before is not None else (-1, -1)
        record = d.UserSet(name, *hashed, list(dict.fromkeys(tags)), *limits)
        lsn = self._authenticator.put_record(record)
        self._administration.permissions_changed()
        log.info("admin.user_set", **who(asked), name=name, tags=record.tags)
        self._administration.answer(reply, lsn, created=before is None)

    def _delete(self, asked: UserArguments, reply: Reply) -> None:
        administration, name = self._administration, asked.name
        administration.begin(asked)
        administration.require_user(name)
        deleted = self._authenticator.find(name)
        lsn = self._authenticator.delete(name)
        administration.permissions_changed()
        log.info("admin.user_deleted", **who(asked), name=name)
        # By identity: whoever logs in to a new user of that name meanwhile stays.
        steps = administration.closing(
            lambda connection: connection.user is deleted, f"user '{name}' is deleted"
        )
        administration.in_slices(steps, lambda: administration.answer(reply, lsn))

    def _put_limit(self, asked: PutUserLimit, reply: Reply) -> None:
        self._limit(asked, asked.limit, max(d.UNLIMITED, asked.value), reply)

    def _delete_limit(self, asked: UserLimitArguments, reply: Reply) -> None:
        self._limit(asked, asked.limit, d.UNLIMITED, reply)

    def _limit(self, asked: UserArguments, limit: UserLimit, value: int, reply: Reply) -> None:
        self._administration.begin(asked)
        self._administration.require_user(asked.name)
        before = self._accounts.users[asked.name]
        if limit == "max-connections":
            record = replace(before, max_connections=value)
        else:
            record = replace(before, max_channels=value)
        lsn = self._authenticator.put_record(record)
        log.info("admin.user_limit_set", **who(asked), name=asked.name, limit=limit, value=value)
        self._administration.answer(reply, lsn)

    # Permissions

    def _permit(self, asked: PutPermissions, reply: Reply) -> None:
        self._begin(asked)
        patterns = (asked.configure, asked.write, asked.read)
        before = self._accounts.permissions.get(asked.name, {}).get(asked.vhost)
        lsn = _checked(partial(self._authenticator.permit, asked.name, asked.vhost, *patterns))
        self._administration.permissions_changed(asked.vhost)
        log.info(
            "admin.permissions_set",
            **who(asked),
            name=asked.name,
            vhost=asked.vhost,
            configure=asked.configure,
            write=asked.write,
            read=asked.read,
        )
        self._administration.answer(reply, lsn, created=before is None)

    def _forbid(self, asked: PermissionArguments, reply: Reply) -> None:
        self._begin(asked)
        if asked.vhost not in self._accounts.permissions.get(asked.name, {}):
            raise CommandRefused(f"user {asked.name!r} has none in {asked.vhost!r}", 404)
        lsn = self._authenticator.forbid(asked.name, asked.vhost)
        self._administration.permissions_changed(asked.vhost)
        log.info("admin.permissions_cleared", **who(asked), name=asked.name, vhost=asked.vhost)
        self._administration.answer(reply, lsn)

    def _permit_topics(self, asked: PutTopicPermissions, reply: Reply) -> None:
        self._begin(asked)
        place = (asked.name, asked.vhost, asked.exchange)
        topics = self._accounts.topic_permissions.get(asked.name, {})
        before = topics.get((asked.vhost, asked.exchange))
        change = partial(self._authenticator.permit_topics, *place, asked.write, asked.read)
        lsn = _checked(change)
        self._administration.permissions_changed(asked.vhost)
        log.info(
            "admin.topic_permissions_set",
            **who(asked),
            name=asked.name,
            vhost=asked.vhost,
            exchange=asked.exchange,
            write=asked.write,
            read=asked.read,
        )
        self._administration.answer(reply, lsn, created=before is None)

    def _forbid_topics(self, asked: TopicArguments, reply: Reply) -> None:
        self._begin(asked)
        held = self._accounts.topic_permissions.get(asked.name, {})
        meant = [
            exchange
            for vhost, exchange in held
            if vhost == asked.vhost and asked.exchange in {None, exchange}
        ]
        if not meant:
            raise CommandRefused(f"user {asked.name!r} has none there", 404)
        forbid = self._authenticator.forbid_topics
        lsn = max([forbid(asked.name, asked.vhost, exchange) for exchange in meant])
        self._administration.permissions_changed(asked.vhost)
        log.info(
            "admin.topic_permissions_cleared",
            **who(asked),
            name=asked.name,
            vhost=asked.vhost,
            exchanges=meant,
        )
        self._administration.answer(reply, lsn)

    def _begin(self, asked: PermissionArguments) -> None:
        self._administration.begin(asked)
        self._administration.require_user(asked.name)
        self._administration.vhost(asked.vhost)


def require_name(name: str) -> None:
    """Pass if it can be the name of something.

    Raises:
        CommandRefused: it is empty, too long or has line ends
    """
    try:
        check_name(name)
    except InvalidValueError as error:
        raise CommandRefused(f"name: {error}") from None


def _checked(change: Callable[[], T]) -> T:
    """Make a change whose arguments may have a fault, of which nothing has come then.

    Raises:
        CommandRefused: they have
    """
    try:
        return change()
    except ValueError as error:
        raise CommandRefused(str(error)) from None
