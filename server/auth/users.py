"""What each user may do where.

A login gives a `User`, which the channels ask before they touch a queue or an exchange; its
answers are remembered, because a name is asked for again and again. There is one for each name,
whoever has logged in as that, so that a change is in force for all of them at once (AUTH-07).
Must not know connections, passwords, or what a resource is beyond its name.

Spec: AUTH-05, AUTH-06, AUTH-07, PERM-01, PERM-02, PERM-10
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, Literal, NamedTuple

import regex

from vouchmq.protocol.errors import AccessRefused
from vouchmq.server.broker.patterns import Pattern

Permission = Literal["configure", "write", "read"]
ResourceKind = Literal["exchange", "queue"]
TopicPermission = Literal["write", "read"]

# Verdicts kept per user; beyond that they are forgotten all at once.
CACHE_SIZE: Final = 4096


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

    def forbid(self, vhost_name: str) -> None:
        """Have no permissions in a virtual host any more."""
        self._grants.pop(vhost_name, None)
        self._verdicts.clear()

    def forbid_topics(self, vhost_name: str, exchange: str) -> None:
        """Have no patterns for the keys of an exchange any more: all are allowed (PERM-10)."""
        self._topics.pop((vhost_name, exchange), None)

    def forget_vhost(self, vhost_name: str) -> None:
        """A virtual host is gone."""
        self.forbid(vhost_name)
        for key in [key for key in self._topics if key[0] == vhost_name]:
            del self._topics[key]

    def forbid_everything(self) -> None:
        """The user is deleted: whoever is connected yet may do nothing any more."""
        self.tags = frozenset()
        self._grants.clear()
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
