"""Users, what they may do, and parameters: as records, by name, and nothing else.

    restore, or a change ─▶ apply ─▶ what there is ─▶ records ─▶ the head of the next segment

Whoever changes something logs it with `change`, which gives the LSN that an answer waits for.
What a password or a pattern means is `server/auth/`'s business. Must not know either, nor who is
connected.

Spec: AUTH-02, AUTH-06, PERM-01, PERM-10, HTTP-27
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from vouchmq.server.broker import definitions as d

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


class Accounts:
    """The users and parameters of one broker.

    `is_kept`: users have been kept in this data directory before (AUTH-01). `defined_lsn` is the
    highest LSN logged here.

    Args:
        define: logs a record and gives its LSN
    """

    def __init__(self, define: Callable[[bytes], int]) -> None:
        self._define = define
        self.defined_lsn = 0
        self.is_kept = False
        self.users: dict[str, d.UserSet] = {}
        # By user, then by virtual host.
        self.permissions: dict[str, dict[str, d.PermissionSet]] = {}
        # By user, then by virtual host and exchange.
        self.topic_permissions: dict[str, dict[tuple[str, str], d.TopicPermissionSet]] = {}
        # By virtual host, component and name.
        self.parameters: dict[tuple[str, str, str], d.ParameterSet] = {}
        self.global_parameters: dict[str, d.GlobalParameterSet] = {}

    def change(self, definition: d.AccountDefinition) -> int:
        """Have it so from now on; gives the LSN of the record, which is written if it is news."""
        if not self._holds(definition):
            self.apply(definition)
            self.defined_lsn = self._define(d.encode(definition))
        return self.defined_lsn

    def forget_vhost(self, name: str) -> None:
        """A virtual host is gone, which has a record of its own."""
        for permissions in self.permissions.values():
            permissions.pop(name, None)
        for topics in self.topic_permissions.values():
            for key in [key for key in topics if key[0] == name]:
                del topics[key]
        for parameter in [key for key in self.parameters if key[0] == name]:
            del self.parameters[parameter]

    def records(self) -> list[bytes]:
        """What `apply` makes everything of again."""
        return [d.encode(each) for each in self._definitions()]

    def apply(self, definition: d.AccountDefinition) -> None:  # noqa: C901 - one case each
        """Do what a record says, logging nothing; what is gone already is no error."""
        match definition:
            case d.AccountsKept():
                self.is_kept = True
            case d.UserSet():
                self.users[definition.user] = definition
            case d.UserDeleted():
                for known in (self.users, self.permissions, self.topic_permissions):
                    known.pop(definition.user, None)
            case d.PermissionSet():
                self.permissions.setdefault(definition.user, {})[definition.vhost] = definition
            case d.PermissionCleared():
                self.permissions.get(definition.user, {}).pop(definition.vhost, None)
            case d.TopicPermissionSet():
                key = (definition.vhost, definition.exchange)
                self.topic_permissions.setdefault(definition.user, {})[key] = definition
            case d.TopicPermissionCleared():
                key = (definition.vhost, definition.exchange)
                self.topic_permissions.get(definition.user, {}).pop(key, None)
            case d.ParameterSet():
                self.parameters[_key(definition)] = definition
            case d.ParameterCleared():
                self.parameters.pop(_key(definition), None)
            case d.GlobalParameterSet():
                self.global_parameters[definition.name] = definition
            case d.GlobalParameterCleared():
                self.global_parameters.pop(definition.name, None)

    def _definitions(self) -> Iterator[d.AccountDefinition]:
        if self.is_kept:
            yield d.AccountsKept()
        yield from self.users.values()
        for permissions in self.permissions.values():
            yield from permissions.values()
        for topics in self.topic_permissions.values():
            yield from topics.values()
        yield from self.parameters.values()
        yield from self.global_parameters.values()

    def _holds(self, definition: d.AccountDefinition) -> bool:
        """Whether it is so already."""
        match definition:
            case d.AccountsKept():
                return self.is_kept
            case d.UserSet():
                return self.users.get(definition.user) == definition
            case d.PermissionSet():
                return self._permission(definition) == definition
            case d.TopicPermissionSet():
                return self._topic_permission(definition) == definition
            case d.ParameterSet():
                return _is_same(self.parameters.get(_key(definition)), definition)
            case d.GlobalParameterSet():
                return _is_same(self.global_parameters.get(definition.name), definition)
        return self._lacks(definition)

    def _lacks(self, definition: d.AccountDefinition) -> bool:
        match definition:
            case d.UserDeleted():
                return definition.user not in self.users
            case d.PermissionCleared():
                return self._permission(definition) is None
            case d.TopicPermissionCleared():
                return self._topic_permission(definition) is None
            case d.ParameterCleared():
                return _key(definition) not in self.parameters
            case d.GlobalParameterCleared():
                return definition.name not in self.global_parameters
        return False

    def _permission(self, of: d.PermissionSet | d.PermissionCleared) -> d.PermissionSet | None:
        return self.permissions.get(of.user, {}).get(of.vhost)

    def _topic_permission(
        self, of: d.TopicPermissionSet | d.TopicPermissionCleared
    ) -> d.TopicPermissionSet | None:
        return self.topic_permissions.get(of.user, {}).get((of.vhost, of.exchange))


def _key(parameter: d.ParameterSet | d.ParameterCleared) -> tuple[str, str, str]:
    return parameter.vhost, parameter.component, parameter.name


def _is_same(
    before: d.ParameterSet | d.GlobalParameterSet | None,
    after: d.ParameterSet | d.GlobalParameterSet,
) -> bool:
    """As JSON: 1, 1.0 and true are equal in Python, and not the same value."""
    return before is not None and d.encode(before) == d.encode(after)
