"""Who may log in: the users of a broker, their passwords, and changes of both.

    accounts (records) ─▶ User, Password, made when somebody asks ─▶ log_in
    put, permit, delete … ─▶ checked ─▶ the record ─▶ the User that is connected ─▶ LSN

Every change is in force when the call returns, and gives the LSN that whoever asked waits for.
A password whose hash takes long to check is checked elsewhere; that it was right is remembered
as a keyed digest in memory until the hash changes or the broker stops, so that a client that
connects again costs what others cost.
Must not know connections, SASL or threads.

Spec: AUTH-01…10, CONN-21, CONN-22
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, ClassVar, Final

from vouchmq.protocol.text import encode_text, quoted
from vouchmq.server.auth.attempts import LoginAttempts
from vouchmq.server.auth.failed_logins import FailedLogins, network_of
from vouchmq.server.auth.passwords import (
    SCRYPT,
    SHA256,
    PasswordHash,
    decode_hash,
    hash_password,
    require_algorithm,
    require_new,
    salt_size,
    unknown_hash,
)
from vouchmq.server.auth.users import User, grant_of
from vouchmq.server.broker import definitions as d
from vouchmq.server.errors import SettingsError

if TYPE_CHECKING:
    from vouchmq.server.auth.slow_checks import SlowChecks
    from vouchmq.server.broker.accounts import Accounts
    from vouchmq.server.settings.accounts import UserAccount

# Clients come again from where they came from.
ADDRESSES_KNOWN: Final = 1024
KEY_SIZE: Final = 32


class LoginError(Exception):
    """The true reason for the log; the client never learns it (CONN-22).

    `is_told` is False for what has been logged before and would flood the log (AUTH-10).
    """

    is_told: ClassVar[bool] = True


class UncheckedLogin(LoginError):  # noqa: N818 - a login that is refused without a look
    """Too many have failed before; which was logged when it began."""

    is_told: ClassVar[bool] = False


Outcome = User | LoginError


def ignore_outcome(outcome: Outcome) -> None:
    """Stand-in for who does not wait for a check."""


class Authenticator:
    """All users, and the one question whether somebody is who they say.

    Args:
        accounts: the records of the users
        loopback_users: names that may log in from this machine only (AUTH-08)
        random_bytes: n → n random bytes, for salts and a key
        failures: counts them, and says when no more are tried; None: all are tried
        checks: computes hashes that take long; None: they are computed at once
        algorithm: of new passwords; a failed login costs one of its hashes
    """

    def __init__(
        self,
        accounts: Accounts,
        loopback_users: Iterable[str],
        random_bytes: Callable[[int], bytes],
        failures: FailedLogins | None = None,
        *,
        checks: SlowChecks | None = None,
        algorithm: str = SHA256,
    ) -> None:
        self.accounts = accounts
        self.algorithm = algorithm
        self.attempts = LoginAttempts()  # counted by those who hear of their outcome
        self._loopback_users = frozenset(loopback_users)
        self._random_bytes = random_bytes
        self._failures = failures
        self._checks = checks
        # Of users that somebody has asked for.
        self._users: dict[str, User] = {}
        self._hashes: dict[str, PasswordHash] = {}
        self._key = random_bytes(KEY_SIZE)
        self._verified: dict[str, bytes] = {}
        self._nobody = unknown_hash(algorithm, random_bytes)

    # Users and what they may

    def find(self, name: str) -> User | None:
        """The user of that name, whoever asks."""
        user = self._users.get(name)
        record = self.accounts.users.get(name)
        if user is None and record is not None:
            user = self._users[name] = self._made(record)
        return user

    def put(self, account: UserAccount) -> int:
        """Make a user, or change what proves them; permissions stay.

        Tags and limits of the account that are None stay as they are, too.

        Raises:
            ValueError: as `check_account`

        Spec: AUTH-02, HTTP-41
        """
        before = self.accounts.users.get(account.name)
        return self.put_record(record_of(account, before, self._random_bytes))

    def put_record(self, record: d.UserSet) -> int:
        """The same, of a record; its hash has been checked."""
        before = self.accounts.users.get(record.user)
        lsn = self.accounts.change(record)
        if before is None or before.password_hash != record.password_hash:
            self._hashes.pop(record.user, None)
            self._verified.pop(record.user, None)
        user = self._users.get(record.user)
        if user is not None:
            _adopt(user, record)
        return lsn

    def seed(self, account: UserAccount) -> None:
        """Have what the configuration says of a user, permissions included.

        Raises:
            ValueError: as `check_account`
        """
        self.put(account)
        for vhost in account.vhosts:
            self.permit(account.name, vhost, account.configure, account.write, account.read)
        for topic in account.topic_permissions:
            self.permit_topics(account.name, topic.vhost, topic.exchange, topic.write, topic.read)

    def delete(self, name: str) -> int:
        """Delete a user, who may do nothing any more, connected or not; missing is fine."""
        lsn = self.accounts.change(d.UserDeleted(name))
        self._hashes.pop(name, None)
        self._verified.pop(name, None)
        user = self._users.pop(name, None)
        if user is not None:
            user.forbid_everything()
        return lsn

    def permit(self, name: str, vhost: str, configure: str, write: str, read: str) -> int:
        """Give a user these permissions in a virtual host, in place of what there was (AUTH-07).

        Raises:
            ValueError: one is not a regular expression, and nothing has changed.
        """
        grant = grant_of(configure, write, read)
        lsn = self.accounts.change(d.PermissionSet(name, vhost, configure, write, read))
        user = self._users.get(name)
        if user is not None:
            user.permit(vhost, grant)
        return lsn

    def forbid(self, name: str, vhost: str) -> int:
        """Take a user's permissions in a virtual host; none is fine."""
        lsn = self.accounts.change(d.PermissionCleared(name, vhost))
        user = self._users.get(name)
        if user is not None:
            user.forbid(vhost)
        return lsn

    def permit_topics(self, name: str, vhost: str, exchange: str, write: str, read: str) -> int:
        """Give a user these patterns for the keys of an exchange (PERM-10).

        Raises:
            ValueError: one is not a regular expression, and nothing has changed.
        """
        (self._users.get(name) or User(name)).permit_topics(vhost, exchange, write, read)
        return self.accounts.change(d.TopicPermissionSet(name, vhost, exchange, write, read))

    def forbid_topics(self, name: str, vhost: str, exchange: str) -> int:
        """Take a user's patterns for the keys of an exchange; none is fine."""
        lsn = self.accounts.change(d.TopicPermissionCleared(name, vhost, exchange))
        user = self._users.get(name)
        if user is not None:
            user.forbid_topics(vhost, exchange)
        return lsn

    def forget_vhost(self, vhost: str) -> None:
        """A virtual host is gone: nobody may anything in one of that name, which may come again."""
        for user in self._users.values():
            user.forget_vhost(vhost)

    def _made(self, record: d.UserSet) -> User:
        name, accounts = record.user, self.accounts
        user = User(name)
        _adopt(user, record)
        for each in accounts.permissions.get(name, {}).values():
            user.permit(each.vhost, grant_of(each.configure, each.write, each.read))
        for topic in accounts.topic_permissions.get(name, {}).values():
            user.permit_topics(topic.vhost, topic.exchange, topic.write, topic.read)
        return user

    def hash_new(
        self, password: str, algorithm: str, done: Callable[[PasswordHash | None], None]
    ) -> None:
        """Hash a new password; `done` gets the hash, at once or later, or None without memory.

        The algorithm was checked.
        """

        def hashed() -> PasswordHash | None:
            try:
                return hash_password(password, algorithm, lambda _: salt)
            except (MemoryError, ValueError):
                return None

        salt = self._random_bytes(salt_size(algorithm))
        if self._checks is None or algorithm != SCRYPT:
            done(hashed())
        else:
            self._checks.compute(hashed, done)

    # Logins

    def log_in(
        self,
        name: str,
        password: str,
        *,
        is_loopback: bool,
        address: str = "",
        done: Callable[[Outcome], None] = ignore_outcome,
        is_wanted: Callable[[], bool] = lambda: True,
    ) -> User | None:
        """The user, if the password is theirs and they may come from where they come.

        Costs one hash whatever is wrong, and compares in constant time. From an `address` from
        which too many logins of this user have failed none is tried. None when it is not known
        yet: then `done` is called with what came of it, in a later turn of the loop, unless it
        is not `is_wanted` by then.

        Raises:
            LoginError: with the reason for the log.

        Spec: CONN-21, CONN-22, AUTH-08, AUTH-10
        """
        attempt = _Attempt(self, name, password, is_loopback, address, done, is_wanted)
        self.require_tried(name, address)
        target = self.hash_of(name) or self._nobody
        is_known = self.knows(attempt, target)
        if is_known is None and self._nobody.is_slow and not target.is_slow:
            # As long as a failed login of somebody whose hash takes long.
            target = self._nobody
        if is_known is None and target.is_slow:
            attempt.target = target
            if self._checks is None:
                return self.conclude(attempt, target.verifies(password))
            if self._checks.is_full:
                raise UncheckedLogin("too many logins wait to be checked")
            self._checks.ask(network_of(address), self._who(name), attempt)
            return None
        return self.conclude(attempt, bool(is_known))

    def require_tried(self, name: str, address: str) -> None:
        """Pass while logins of that user from that address are tried.

        Raises:
            UncheckedLogin: too many have failed (AUTH-10)
        """
        if self._failures is not None and self._failures.is_full(address, self._who(name)):
            raise UncheckedLogin(f"too many failed logins of {quoted(name)}")

    def hash_of(self, name: str) -> PasswordHash | None:
        """What proves a user; None without a password, and of nobody."""
        known = self._hashes.get(name)
        record = self.accounts.users.get(name)
        if known is None and record is not None and record.password_hash:
            known = decode_hash(record.password_hash, record.hashing_algorithm)
            self._hashes[name] = known
        return known

    def knows(self, attempt: _Attempt, target: PasswordHash) -> bool | None:
        """Whether it is the right password; None when that takes long to know.

        A fast hash that does not match is None, too, where others are slow.
        """
        if target.is_slow:
            seen = self._verified.get(attempt.name, b"")
            is_same = hmac.compare_digest(seen, self._digest(attempt.password, target))
            return True if is_same and target is not self._nobody else None
        matches = target.verifies(attempt.password)
        return True if matches else None if self._nobody.is_slow else False

    def conclude(self, attempt: _Attempt, matches: bool) -> User:
        """The user of a login of which it is known now whether the password is right.

        Raises:
            LoginError: with the reason for the log; it is counted.
        """
        try:
            return self._admitted(attempt, matches)
        except LoginError as error:
            who = self._who(attempt.name)
            if self._failures is not None and self._failures.add(attempt.address, who):
                raise LoginError(
                    f"{error}; too many have failed from this address, so that further ones of "
                    f"{'this user' if who else 'unknown users'} are refused unchecked for a while"
                ) from None
            raise

    def _admitted(self, attempt: _Attempt, matches: bool) -> User:
        name, password = attempt.name, attempt.password
        user, hashed = self.find(name), self.hash_of(name)
        if user is None:
            raise LoginError(f"no user {quoted(name)}")
        if hashed is None:
            raise LoginError(f"user {quoted(name)} has no password")
        # Another one by now: what was computed says nothing of it.
        is_stale = attempt.target is not None and attempt.target is not hashed
        if not password or not matches or is_stale:
            raise LoginError(f"wrong password for user {quoted(name)}")
        if hashed.is_slow:
            self._verified[name] = self._digest(password, hashed)
        self._check_place(name, attempt.is_loopback)
        return user

    def admit(self, name: str, *, is_loopback: bool) -> User:
        """The user of that name, who has been proven by a certificate; a password counts not.

        Raises:
            LoginError: with the reason for the log.

        Spec: CONN-18, TLS-20, AUTH-08
        """
        if not name:
            raise LoginError("the certificate has no name of the type that tls_login_from selects")
        user = self.find(name)
        if user is None:
            raise LoginError(f"no user {quoted(name)} for the name in the certificate")
        self._check_place(name, is_loopback)
        return user

    def _check_place(self, name: str, is_loopback: bool) -> None:
        if name in self._loopback_users and not is_loopback:
            raise LoginError(
                f"user {quoted(name)} may log in only from the broker's machine (loopback_users)"
            )

    def _who(self, name: str) -> str | None:
        return name if name in self.accounts.users else None

    def _digest(self, password: str, hashed: PasswordHash) -> bytes:
        return hmac.digest(self._key, hashed.value + encode_text(password), hashlib.sha256)


class _Attempt:
    """A login whose check takes long; see `slow_checks.Check`."""

    __slots__ = (
        "_authenticator",
        "_done",
        "_is_wanted",
        "address",
        "is_loopback",
        "name",
        "password",
        "target",
    )

    def __init__(
        self,
        authenticator: Authenticator,
        name: str,
        password: str,
        is_loopback: bool,
        address: str,
        done: Callable[[Outcome], None],
        is_wanted: Callable[[], bool],
    ) -> None:
        self.name = name
        self.password = password
        self.is_loopback = is_loopback
        self.address = address
        self.target: PasswordHash | None = None
        self._authenticator = authenticator
        self._done = done
        self._is_wanted = is_wanted

    def settle(self) -> bool:
        """See `Check`."""
        if not self._is_wanted():
            return True
        authenticator = self._authenticator
        try:
            authenticator.require_tried(self.name, self.address)
        except LoginError as error:
            self._done(error)
            return True
        target = authenticator.hash_of(self.name)
        if target is None or target is not self.target or not authenticator.knows(self, target):
            return False
        self.decide(True)
        return True

    def compute(self) -> bool:
        """See `Check`."""
        try:
            return self.target is not None and self.target.verifies(self.password)
        except (MemoryError, ValueError):
            # There is no memory for it: nobody is let in, and the next one has its turn.
            return False

    def decide(self, matches: bool, /) -> None:
        """See `Check`."""
        if not self._is_wanted():
            return
        outcome: Outcome
        try:
            outcome = self._authenticator.conclude(self, matches)
        except LoginError as error:
            outcome = error
        self._done(outcome)


def check_account(account: UserAccount) -> None:
    """Pass if `Authenticator.seed` takes the account.

    Raises:
        ValueError: a pattern, a hash or the name of an algorithm is none.
    """
    grant_of(account.configure, account.write, account.read)
    for topic in account.topic_permissions:
        User(account.name).permit_topics(topic.vhost, topic.exchange, topic.write, topic.read)
    if account.password_hash:
        decode_hash(account.password_hash, account.hashing_algorithm)
    else:
        require_algorithm(account.hashing_algorithm)
        if account.password:
            require_new(account.hashing_algorithm)


def check_accounts(accounts: Sequence[UserAccount]) -> None:
    """The same of all accounts of the configuration.

    Raises:
        SettingsError: one of them cannot be used.
    """
    for account in accounts:
        try:
            check_account(account)
        except ValueError as error:
            raise SettingsError(f"users: {account.name!r}: {error}") from error


def record_of(
    account: UserAccount, before: d.UserSet | None, random_bytes: Callable[[int], bytes]
) -> d.UserSet:
    """The record of an account; what the account does not say stays as it was.

    Raises:
        ValueError: a hash or the name of an algorithm is none.
    """
    known = before or d.UserSet(account.name, "", account.hashing_algorithm, [])
    limits = (account.max_connections, account.max_channels)
    max_connections, max_channels = (
        old if new is None else max(d.UNLIMITED, new)
        for new, old in zip(limits, (known.max_connections, known.max_channels), strict=True)
    )
    return d.UserSet(
        account.name,
        _hash_of(account, before, random_bytes),
        account.hashing_algorithm,
        known.tags if account.tags is None else list(account.tags),
        max_connections,
        max_channels,
    )


def _hash_of(
    account: UserAccount, before: d.UserSet | None, random_bytes: Callable[[int], bytes]
) -> str:
    algorithm = account.hashing_algorithm
    if account.password_hash:
        decode_hash(account.password_hash, algorithm)
        return account.password_hash
    require_algorithm(algorithm)
    if not account.password:
        return ""
    # Another salt at each start would be a change each time.
    if before is not None and before.password_hash and before.hashing_algorithm == algorithm:
        known = decode_hash(before.password_hash, algorithm)
        if known.verifies(account.password):
            return before.password_hash
    return hash_password(account.password, algorithm, random_bytes).encoded()


def _adopt(user: User, record: d.UserSet) -> None:
    user.tags = frozenset(record.tags)
    user.max_connections = record.max_connections
    user.max_channels = record.max_channels


@lru_cache(maxsize=ADDRESSES_KNOWN)
def is_loopback(host: str) -> bool:
    """True for an address of this machine alone; an empty host is a Unix socket.

    Spec: AUTH-08
    """
    if not host:
        return True
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return False
    mapped = getattr(address, "ipv4_mapped", None)
    return bool((mapped or address).is_loopback)
