"""Who may log in, and what each user may do where.

Users come from the settings. A login gives a `User`, which the channels ask before they touch a
queue or an exchange; its answers are remembered, because a name is asked for again and again.
Must not know connections, SASL, or what a resource is beyond its name.

Hashes are RabbitMQ's: salt ‖ H(salt ‖ password), base64, so that those of exported definitions
verify here.

Spec: AUTH-01…08, CONN-21, CONN-22, PERM-01, PERM-02
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import ipaddress
from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import Final, Literal, NamedTuple

import regex

from vouchmq.protocol.errors import AccessRefused
from vouchmq.protocol.text import encode_text
from vouchmq.server.auth.failed_logins import FailedLogins
from vouchmq.server.broker.patterns import Pattern
from vouchmq.server.errors import SettingsError
from vouchmq.server.settings.accounts import UserAccount

Permission = Literal["configure", "write", "read"]
ResourceKind = Literal["exchange", "queue"]
TopicPermission = Literal["write", "read"]

SALT_SIZE: Final = 4
DIGESTS: Final[dict[str, str]] = {
    "rabbit_password_hashing_sha256": "sha256",
    "rabbit_password_hashing_sha512": "sha512",
    "rabbit_password_hashing_md5": "md5",
}
CONSTRUCTORS: Final = {"sha256": hashlib.sha256, "sha512": hashlib.sha512, "md5": hashlib.md5}
# Verdicts kept per user; beyond that they are forgotten all at once.
CACHE_SIZE: Final = 4096
# Clients come again from where they came from.
ADDRESSES_KNOWN: Final = 1024


class LoginError(Exception):
    """The true reason for the log; the client never learns it (CONN-22).

    `is_told` is False for what has been logged before and would flood the log (AUTH-10).
    """

    is_told = True


class UncheckedLogin(LoginError):  # noqa: N818 - a login that is refused without a look
    """Too many have failed before; which was logged when it began."""

    is_told = False


class PasswordHash(NamedTuple):
    """A salted hash; `digest` is a name that hashlib knows."""

    salt: bytes
    value: bytes
    digest: str


def hash_password(password: str, salt: bytes, algorithm: str) -> PasswordHash:
    """Hash as RabbitMQ does.

    Spec: AUTH-02
    """
    digest = DIGESTS[algorithm]
    return PasswordHash(salt, _hash(password, salt, digest), digest)


def _hash(password: str, salt: bytes, digest: str) -> bytes:
    # MD5 hashes come from old definitions; they protect what they protected there.
    return CONSTRUCTORS[digest](salt + encode_text(password), usedforsecurity=False).digest()


def decode_hash(text: str, algorithm: str) -> PasswordHash:
    """The hash as RabbitMQ's definitions carry it.

    Raises:
        ValueError: not base64, or not a salt and a digest of the algorithm.
    """
    if algorithm not in DIGESTS:
        raise ValueError(f"unknown hashing_algorithm {algorithm!r}")
    digest = DIGESTS[algorithm]
    try:
        octets = base64.b64decode(text, validate=True)
    except binascii.Error:
        raise ValueError("password_hash is not base64") from None
    if len(octets) != SALT_SIZE + hashlib.new(digest, usedforsecurity=False).digest_size:
        raise ValueError(f"password_hash is not one of {algorithm}")
    return PasswordHash(octets[:SALT_SIZE], octets[SALT_SIZE:], digest)


class Grant(NamedTuple):
    """The three patterns of a user in one virtual host."""

    configure: Pattern
    write: Pattern
    read: Pattern


def compile_pattern(text: str) -> Pattern:
    """A permission pattern; the empty string matches the empty name only.

    Raises:
        ValueError: not a regular expression.

    Spec: PERM-01
    """
    try:
        return Pattern(text or "^$")
    except ValueError as error:
        raise ValueError(f"{text!r} is not a regular expression: {error}") from None


def grant_of(configure: str, write: str, read: str) -> Grant:
    """The three patterns made ready.

    Raises:
        ValueError: one is not a regular expression.
    """
    return Grant(compile_pattern(configure), compile_pattern(write), compile_pattern(read))


class TopicGrant(NamedTuple):
    """Which keys of one exchange may be published with, and bound with (PERM-10)."""

    write: Pattern
    read: Pattern


class User:
    """A user who has logged in, or could: tags, and permissions per virtual host."""

    __slots__ = (
        "_grants",
        "_topics",
        "_verdicts",
        "max_channels",
        "max_connections",
        "name",
        "tags",
    )

    def __init__(
        self,
        name: str,
        *,
        tags: Iterable[str] = (),
        grants: dict[str, Grant] | None = None,
        max_connections: int = -1,
        max_channels: int = -1,
    ) -> None:
        """Limits are numbers of connections and channels; negative: none (AUTH-06)."""
        self.name = name
        self.tags = frozenset(tags)
        self.max_connections = max_connections
        self.max_channels = max_channels
        self._grants = grants or {}
        # By virtual host and exchange.
        self._topics: dict[tuple[str, str], TopicGrant] = {}
        self._verdicts: dict[tuple[str, str, str], bool] = {}

    @property
    def is_impersonator(self) -> bool:
        """True when it may publish under another's user-id (PUB-06)."""
        return "impersonator" in self.tags

    def may_enter(self, vhost_name: str) -> bool:
        """True with patterns for the virtual host, even if they match nothing (CONN-44)."""
        return vhost_name in self._grants

    def may(self, permission: Permission, name: str, vhost_name: str) -> bool:
        """True when the pattern is found in the name; the default exchange's is `amq.default`.

        Spec: PERM-01
        """
        key = (permission, name, vhost_name)
        verdict = self._verdicts.get(key)
        if verdict is None:
            verdict = self._search(permission, name, vhost_name)
            # What took too long to know is refused now, and asked again the next time.
            if verdict is None:
                return False
            if len(self._verdicts) >= CACHE_SIZE:
                self._verdicts.clear()
            self._verdicts[key] = verdict
        return verdict

    def permit(self, vhost_name: str, grant: Grant) -> None:
        """Have these permissions in a virtual host from now on."""
        self._grants[vhost_name] = grant
        self._verdicts.clear()

    def permit_topics(self, vhost_name: str, exchange: str, write: str, read: str) -> None:
        """Have these patterns for the keys of a topic exchange from now on.

        `{username}` and `{vhost}` in them stand for the names, taken literally.

        Raises:
            ValueError: one is not a regular expression, and nothing has changed.

        Spec: PERM-10
        """
        names = {"{username}": regex.escape(self.name), "{vhost}": regex.escape(vhost_name)}
        for word, meaning in names.items():
            write, read = write.replace(word, meaning), read.replace(word, meaning)
        self._topics[vhost_name, exchange] = TopicGrant(
            compile_pattern(write), compile_pattern(read)
        )

    def become(self, other: User) -> None:
        """Have the tags and limits of another, and what that one may where this one may nothing."""
        self.tags = other.tags
        self.max_connections = other.max_connections
        self.max_channels = other.max_channels
        self._grants = other._grants | self._grants
        self._topics = other._topics | self._topics
        self._verdicts.clear()

    def _search(self, permission: Permission, name: str, vhost_name: str) -> bool | None:
        grant = self._grants.get(vhost_name)
        if grant is None:
            return False
        pattern: Pattern = getattr(grant, permission)
        return pattern.is_in(name)

    def require(self, permission: Permission, kind: ResourceKind, name: str, vhost: str) -> None:
        """Pass if the user has this permission on the resource.

        Raises:
            AccessRefused: 403, it has not.

        Spec: PERM-02
        """
        if not self.may(permission, name, vhost):
            raise AccessRefused(
                f"{permission} access to {kind} '{name}' in vhost '{vhost}' "
                f"refused for user '{self.name}'"
            )

    def may_topic(self, permission: TopicPermission, key: str, name: str, vhost: str) -> bool:
        """True when the user may use this key at the topic exchange of that name.

        Spec: PERM-10
        """
        grant = self._topics.get((vhost, name))
        return grant is None or bool(getattr(grant, permission).is_in(key))

    def require_topic(self, permission: TopicPermission, key: str, name: str, vhost: str) -> None:
        """Pass if the user may use this key at the topic exchange of that name.

        Raises:
            AccessRefused: 403, there are topic permissions for it, and none allows the key.

        Spec: PERM-10
        """
        if self.may_topic(permission, key, name, vhost):
            return
        raise AccessRefused(
            f"{permission} access to topic '{key}' in exchange '{name}' in vhost '{vhost}' "
            f"refused for user '{self.name}'"
        )

    def require_any(self, kind: ResourceKind, name: str, vhost: str) -> None:
        """Pass if the user has any of the three permissions on the resource (passive declares).

        Raises:
            AccessRefused: 403, it has none; the text names the one that a declare needs.

        Spec: PERM-03, PERM-04
        """
        if self.may("read", name, vhost) or self.may("write", name, vhost):
            return
        self.require("configure", kind, name, vhost)


class _Login(NamedTuple):
    user: User
    hashed: PasswordHash | None


class Authenticator:
    """All users, and the one question whether somebody is who they say.

    Args:
        accounts: the users there are
        loopback_users: names that may log in from this machine only (AUTH-08)
        random_octets: n → n random octets, for salts
        failures: counts them, and says when no more are tried; None: all are tried

    Raises:
        SettingsError: a pattern or a hash of an account cannot be used.
    """

    def __init__(
        self,
        accounts: Iterable[UserAccount],
        loopback_users: Iterable[str],
        random_octets: Callable[[int], bytes],
        failures: FailedLogins | None = None,
    ) -> None:
        self._failures = failures
        self._loopback_users = frozenset(loopback_users)
        self._random_octets = random_octets
        self._logins: dict[str, _Login] = {}
        for account in accounts:
            try:
                self._logins[account.name] = _login_of(account, random_octets)
            except ValueError as error:
                raise SettingsError(f"users: {account.name!r}: {error}") from error
        self._nobody = hash_password("", random_octets(SALT_SIZE), "rabbit_password_hashing_sha256")

    def check(self, account: UserAccount) -> None:
        """Pass if `put` takes the account.

        Raises:
            ValueError: a pattern, a hash or the name of an algorithm is none.
        """
        _login_of(account, lambda count: bytes(count))

    def put(self, account: UserAccount) -> None:
        """Make a user, or change what proves them, their tags and limits; permissions stay.

        Raises:
            ValueError: as `check`

        Spec: AUTH-02, HTTP-41
        """
        login = _login_of(account, self._random_octets)
        before = self._logins.get(account.name)
        if before is not None:
            before.user.become(login.user)
            login = _Login(before.user, login.hashed)
        self._logins[account.name] = login

    def remove(self, name: str) -> None:
        """Forget a user; who has logged in as that one stays."""
        self._logins.pop(name, None)

    def permit(self, name: str, vhost: str, grant: Grant) -> None:
        """Give a user these permissions in a virtual host, in place of what there was (AUTH-07)."""
        self._logins[name].user.permit(vhost, grant)

    def permit_topics(self, name: str, vhost: str, exchange: str, write: str, read: str) -> None:
        """Give a user these patterns for the keys of an exchange (PERM-10)."""
        self._logins[name].user.permit_topics(vhost, exchange, write, read)

    def find(self, name: str) -> User | None:
        """The user of that name, whoever asks."""
        login = self._logins.get(name)
        return login.user if login else None

    def log_in(self, name: str, password: str, *, is_loopback: bool, address: str = "") -> User:
        """The user, if the password is theirs and they may come from where they come.

        Costs one hash whatever is wrong, and compares in constant time. From an `address` from
        which too many logins of this user have failed none is tried.

        Raises:
            LoginError: with the reason for the log.

        Spec: CONN-21, CONN-22, AUTH-08, AUTH-10
        """
        who = name if name in self._logins else None
        if self._failures is not None and self._failures.is_full(address, who):
            raise UncheckedLogin(f"too many failed logins of {name!r}")
        try:
            return self._checked(name, password, is_loopback=is_loopback)
        except LoginError as error:
            if self._failures is not None and self._failures.add(address, who):
                raise LoginError(
                    f"{error}; too many have failed from this address, so that further ones of "
                    f"{'this user' if who else 'unknown users'} are refused unchecked for a while"
                ) from None
            raise

    def _checked(self, name: str, password: str, *, is_loopback: bool) -> User:
        login = self._logins.get(name)
        hashed = login.hashed if login else None
        target = hashed or self._nobody
        matches = hmac.compare_digest(_hash(password, target.salt, target.digest), target.value)
        if login is None:
            raise LoginError(f"no user {name!r}")
        if hashed is None:
            raise LoginError(f"user {name!r} has no password")
        if not password or not matches:
            raise LoginError(f"wrong password for user {name!r}")
        self._check_place(name, is_loopback)
        return login.user

    def admit(self, name: str, *, is_loopback: bool) -> User:
        """The user of that name, who has been proven by a certificate; a password counts not.

        Raises:
            LoginError: with the reason for the log.

        Spec: CONN-18, TLS-20, AUTH-08
        """
        if not name:
            raise LoginError("the certificate has no name of the type that tls_login_from selects")
        login = self._logins.get(name)
        if login is None:
            raise LoginError(f"no user {name!r} for the name in the certificate")
        self._check_place(name, is_loopback)
        return login.user

    def _check_place(self, name: str, is_loopback: bool) -> None:
        if name in self._loopback_users and not is_loopback:
            raise LoginError(
                f"user {name!r} may log in only from the broker's machine (loopback_users)"
            )


def _login_of(account: UserAccount, random_octets: Callable[[int], bytes]) -> _Login:
    """The account made ready to be checked.

    Raises:
        ValueError: a pattern, a hash or the name of an algorithm is none.
    """
    grant = grant_of(account.configure, account.write, account.read)
    user = User(
        account.name,
        tags=account.tags,
        grants=dict.fromkeys(account.vhosts, grant),
        max_connections=account.max_connections,
        max_channels=account.max_channels,
    )
    for topic in account.topic_permissions:
        user.permit_topics(topic.vhost, topic.exchange, topic.write, topic.read)
    if account.password_hash:
        return _Login(user, decode_hash(account.password_hash, account.hashing_algorithm))
    if account.hashing_algorithm not in DIGESTS:
        raise ValueError(f"unknown hashing_algorithm {account.hashing_algorithm!r}")
    if not account.password:
        return _Login(user, None)
    if DIGESTS[account.hashing_algorithm] == "md5":
        raise ValueError("hashing_algorithm md5 is for existing hashes only")
    salt = random_octets(SALT_SIZE)
    return _Login(user, hash_password(account.password, salt, account.hashing_algorithm))


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
