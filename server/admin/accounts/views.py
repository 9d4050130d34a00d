"""Listings of users, permissions, policies and parameters; see `server/admin/views.py`.

Must not know how views are shown, nor change anything.

Spec: HTTP-24…28
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol

from msgspec import Struct

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from vouchmq.server.broker.broker import Broker
    from vouchmq.server.broker.policy.policies import Policy
    from vouchmq.server.broker.queues.spec import QueueLike


class UserView(Struct, frozen=True, array_like=True):
    """A user; negative limits are none. The hash is for administrators (HTTP-24)."""

    name: str
    tags: list[str]
    has_password: bool
    hashing_algorithm: str
    max_connections: int
    max_channels: int
    password_hash: str


class PermissionView(Struct, frozen=True, array_like=True):
    """What a user may do in a virtual host."""

    user: str
    vhost: str
    configure: str
    write: str
    read: str


class TopicPermissionView(Struct, frozen=True, array_like=True):
    """Which keys of a topic exchange a user may publish with, and bind with."""

    user: str
    vhost: str
    exchange: str
    write: str
    read: str


class PolicyView(Struct, frozen=True, array_like=True):
    """A policy or operator policy."""

    vhost: str
    name: str
    pattern: str
    apply_to: str
    priority: float
    definition: dict[str, object]


class ParameterView(Struct, frozen=True, array_like=True):
    """A parameter of a virtual host."""

    vhost: str
    component: str
    name: str
    value: object


class GlobalParameterView(Struct, frozen=True, array_like=True):
    """A parameter of the whole broker."""

    name: str
    value: object


AccountView = (
    UserView
    | PermissionView
    | TopicPermissionView
    | PolicyView
    | ParameterView
    | GlobalParameterView
)

ACCOUNT_KINDS: Final[Mapping[str, type[AccountView]]] = {
    "users": UserView,
    "permissions": PermissionView,
    "topic-permissions": TopicPermissionView,
    "policies": PolicyView,
    "operator-policies": PolicyView,
    "parameters": ParameterView,
    "global-parameters": GlobalParameterView,
}


class Wanted(Protocol):
    """Which rows a listing is to have; None: all. See `Selection`."""

    @property
    def vhost(self) -> str | None:
        """Their virtual host."""

    @property
    def name(self) -> str | None:
        """Their name."""


def _is_meant(wanted: Wanted, vhost: str, name: str) -> bool:
    return wanted.vhost in {None, vhost} and wanted.name in {None, name}


class AccountViews:
    """Listings of what administrators change in one broker.

    Args:
        broker: the broker
    """

    def __init__(self, broker: Broker[QueueLike]) -> None:
        self._broker = broker
        self._accounts = broker.accounts
        self.listings: dict[str, Callable[[Wanted], Iterator[AccountView]]] = {
            "users": self.users,
            "permissions": self.permissions,
            "topic-permissions": self.topic_permissions,
            "policies": lambda wanted: self.policies(wanted, is_operator=False),
            "operator-policies": lambda wanted: self.policies(wanted, is_operator=True),
            "parameters": self.parameters,
            "global-parameters": self.global_parameters,
        }

    def users(self, wanted: Wanted) -> Iterator[UserView]:
        """All users; with a virtual host, those who may enter it."""
        for user in list(self._accounts.users.values()):
            may_enter = wanted.vhost in self._accounts.permissions.get(user.user, {})
            if wanted.name in {None, user.user} and (wanted.vhost is None or may_enter):
                yield UserView(
                    user.user,
                    user.tags,
                    bool(user.password_hash),
                    user.hashing_algorithm,
                    user.max_connections,
                    user.max_channels,
                    user.password_hash,
                )

    def permissions(self, wanted: Wanted) -> Iterator[PermissionView]:
        """By user; `name` is that of the user."""
        for held in list(self._accounts.permissions.values()):
            for each in list(held.values()):
                if _is_meant(wanted, each.vhost, each.user):
                    yield PermissionView(
                        each.user, each.vhost, each.configure, each.write, each.read
                    )

    def topic_permissions(self, wanted: Wanted) -> Iterator[TopicPermissionView]:
        """By user; `name` is that of the user."""
        for held in list(self._accounts.topic_permissions.values()):
            for each in list(held.values()):
                if _is_meant(wanted, each.vhost, each.user):
                    yield TopicPermissionView(
                        each.user, each.vhost, each.exchange, each.write, each.read
                    )

    def policies(self, wanted: Wanted, *, is_operator: bool) -> Iterator[PolicyView]:
        """By virtual host, in the order in which they are asked."""
        for vhost in list(self._broker.vhosts.values()):
            for policy in list(vhost.policy_engine.policies):
                if policy.is_operator is is_operator and _is_meant(wanted, vhost.name, policy.name):
                    yield _of_policy(vhost.name, policy)

    def parameters(self, wanted: Wanted) -> Iterator[ParameterView]:
        """Those of virtual hosts; `name` is that of the parameter."""
        for each in list(self._accounts.parameters.values()):
            if _is_meant(wanted, each.vhost, each.name):
                yield ParameterView(each.vhost, each.component, each.name, each.value)

    def global_parameters(self, wanted: Wanted) -> Iterator[GlobalParameterView]:
        """Those of the whole broker."""
        for each in list(self._accounts.global_parameters.values()):
            if wanted.name in {None, each.name}:
                yield GlobalParameterView(each.name, each.value)


def _of_policy(vhost: str, policy: Policy) -> PolicyView:
    return PolicyView(
        vhost,
        policy.name,
        policy.pattern,
        policy.apply_to,
        policy.priority,
        dict(policy.definition),
    )
