"""What outlives a restart besides messages, as records for the journal and back.

A record is one JSON document with a version, so that an operator can read it in a hex dump and a
later version can tell it from its own. Argument tables are kept as their octets: types decide
about equivalence (QUEUE-23) and must not be lost on the way.
Must not know the journal, nor what a definition does; `vhost.py`, `accounts.py` and `broker.py`
apply them.

Spec: DURABLE-01, DURABLE-02
"""

from __future__ import annotations

import binascii
import json
from base64 import b64decode, b64encode
from dataclasses import dataclass, field, fields, replace
from typing import Final

from vouchmq.protocol.errors import FrameError
from vouchmq.protocol.fields import Table, decode_table_at, encode_table
from vouchmq.server.broker.delays import X_DELAYED_MESSAGE
from vouchmq.server.broker.exchanges.bindings import Binding, DestinationKind
from vouchmq.server.broker.exchanges.exchange import ROUTERS, Exchange
from vouchmq.server.broker.features.options import Value
from vouchmq.server.broker.policy.policies import Policy
from vouchmq.server.broker.queues.spec import QueueSpec

FORMAT_VERSION: Final = 1
UNLIMITED: Final = -1
# Metadata of a field that a record has only if it has a value: an older broker does not know it.
_LEFT_OUT: Final = "is left out when empty"


class BadDefinition(ValueError):  # noqa: N818 - it is the record that is bad
    """A record that this version cannot have written."""


@dataclass(slots=True, frozen=True)
class QueueIdsReserved:
    """Queue ids below `next_queue_id` have been given and are never given again."""

    next_queue_id: int


@dataclass(slots=True, frozen=True)
class DataDirectoryStarted:
    """The broker has started on this data directory; `starts` are the newest, this one last.

    Of each its identity and the highest LSN that it found (DURABLE-27). `earlier` has as much of
    older ones as tells them apart, in base64; the record is without it while there are none.
    """

    identity: str
    starts: list[tuple[str, int]]
    earlier: str = field(default="", metadata={_LEFT_OUT: True})


@dataclass(slots=True, frozen=True)
class VHostSet:
    """A virtual host was created or changed; negative limits are none (VHOST-03, VHOST-04)."""

    vhost: str
    description: str = ""
    tags: list[str] = field(default_factory=list)
    default_queue_type: str = ""
    is_protected: bool = False
    max_connections: int = UNLIMITED
    max_queues: int = UNLIMITED
    max_exchanges: int = UNLIMITED

    def limited(
        self,
        *,
        max_connections: int | None = None,
        max_queues: int | None = None,
        max_exchanges: int | None = None,
    ) -> VHostSet:
        """The same with other limits; None: as it is."""

        def limit(new: int | None, old: int) -> int:
            return old if new is None else max(UNLIMITED, new)

        return replace(
            self,
            max_connections=limit(max_connections, self.max_connections),
            max_queues=limit(max_queues, self.max_queues),
            max_exchanges=limit(max_exchanges, self.max_exchanges),
        )


@dataclass(slots=True, frozen=True)
class VHostDeleted:
    """A virtual host is gone, and everything in it and about it."""

    vhost: str


@dataclass(slots=True, frozen=True)
class ExchangeDeclared:
    """The record of a durable exchange that was declared."""

    vhost: str
    name: str
    type: str
    auto_delete: bool
    internal: bool
    arguments: Table


@dataclass(slots=True, frozen=True)
class ExchangeDeleted:
    """A durable exchange is gone, and all its bindings with it."""

    vhost: str
    name: str


@dataclass(slots=True, frozen=True)
class QueueDeclared:
    """A durable queue that is nobody's own."""

    vhost: str
    name: str
    queue_id: int
    auto_delete: bool
    arguments: Table


@dataclass(slots=True, frozen=True)
class QueueDeleted:
    """A durable queue is gone, and all its bindings with it."""

    vhost: str
    name: str
    queue_id: int


@dataclass(slots=True, frozen=True)
class QueuePaused:
    """A durable queue hands out nothing from now on, or does again."""

    vhost: str
    name: str
    is_paused: bool


@dataclass(slots=True, frozen=True)
class Bound:
    """A binding whose both ends are durable (EXCH-23)."""

    vhost: str
    source: str
    kind: DestinationKind
    destination: str
    routing_key: str
    arguments: Table


@dataclass(slots=True, frozen=True)
class Unbound:
    """A durable binding is gone while both its ends stay."""

    vhost: str
    source: str
    kind: DestinationKind
    destination: str
    routing_key: str
    arguments: Table


@dataclass(slots=True, frozen=True)
class PolicySet:
    """A policy or operator policy was created or changed (POLICY-01)."""

    vhost: str
    name: str
    pattern: str
    definition: dict[str, Value]
    apply_to: str
    priority: float
    is_operator: bool
    comes_from_file: bool


@dataclass(slots=True, frozen=True)
class PolicyCleared:
    """A policy or operator policy is gone."""

    vhost: str
    name: str
    is_operator: bool


@dataclass(slots=True, frozen=True)
class AccountsKept:
    """Users are kept from now on: the default user has been made, or is not wanted (AUTH-01)."""


@dataclass(slots=True, frozen=True)
class UserSet:
    """A user was created or changed; an empty hash is no password (AUTH-02, AUTH-06)."""

    user: str
    password_hash: str = field(repr=False)
    hashing_algorithm: str
    tags: list[str]
    max_connections: int = UNLIMITED
    max_channels: int = UNLIMITED


@dataclass(slots=True, frozen=True)
class UserDeleted:
    """A user is gone, with all permissions."""

    user: str


@dataclass(slots=True, frozen=True)
class PermissionSet:
    """What a user may do in a virtual host (PERM-01)."""

    user: str
    vhost: str
    configure: str
    write: str
    read: str


@dataclass(slots=True, frozen=True)
class PermissionCleared:
    """A user may not enter a virtual host any more."""

    user: str
    vhost: str


@dataclass(slots=True, frozen=True)
class TopicPermissionSet:
    """Which keys of a topic exchange a user may publish with and bind with (PERM-10)."""

    user: str
    vhost: str
    exchange: str
    write: str
    read: str


@dataclass(slots=True, frozen=True)
class TopicPermissionCleared:
    """A user may use any key of an exchange again."""

    user: str
    vhost: str
    exchange: str


@dataclass(slots=True, frozen=True)
class ParameterSet:
    """A parameter of a virtual host, which is kept for whoever asks (HTTP-27)."""

    vhost: str
    component: str
    name: str
    value: object


@dataclass(slots=True, frozen=True)
class ParameterCleared:
    """A parameter of a virtual host is gone."""

    vhost: str
    component: str
    name: str


@dataclass(slots=True, frozen=True)
class GlobalParameterSet:
    """A parameter of the whole broker (HTTP-27)."""

    name: str
    value: object


@dataclass(slots=True, frozen=True)
class GlobalParameterCleared:
    """A parameter of the whole broker is gone."""

    name: str


AccountDefinition = (
    AccountsKept
    | UserSet
    | UserDeleted
    | PermissionSet
    | PermissionCleared
    | TopicPermissionSet
    | TopicPermissionCleared
    | ParameterSet
    | ParameterCleared
    | GlobalParameterSet
    | GlobalParameterCleared
)
VHostDefinition = (
    ExchangeDeclared
    | ExchangeDeleted
    | QueueDeclared
    | QueueDeleted
    | QueuePaused
    | Bound
    | Unbound
    | PolicySet
    | PolicyCleared
)
Definition = (
    QueueIdsReserved
    | DataDirectoryStarted
    | VHostSet
    | VHostDeleted
    | VHostDefinition
    | AccountDefinition
)

# Names of operations and of fields are the format; renaming one needs a new version.
_KINDS: Final[dict[str, type[Definition]]] = {
    "queue-ids": QueueIdsReserved,
    "data-directory": DataDirectoryStarted,
    "vhost": VHostSet,
    "vhost-delete": VHostDeleted,
    "exchange": ExchangeDeclared,
    "exchange-delete": ExchangeDeleted,
    "queue": QueueDeclared,
    "queue-delete": QueueDeleted,
    "queue-pause": QueuePaused,
    "bind": Bound,
    "unbind": Unbound,
    "policy": PolicySet,
    "policy-clear": PolicyCleared,
    "accounts": AccountsKept,
    "user": UserSet,
    "user-delete": UserDeleted,
    "permission": PermissionSet,
    "permission-clear": PermissionCleared,
    "topic-permission": TopicPermissionSet,
    "topic-permission-clear": TopicPermissionCleared,
    "parameter": ParameterSet,
    "parameter-clear": ParameterCleared,
    "global-parameter": GlobalParameterSet,
    "global-parameter-clear": GlobalParameterCleared,
}
_OPERATIONS: Final = {kind: operation for operation, kind in _KINDS.items()}


def encode(definition: Definition) -> bytes:
    """The record of a definition; names that are no UTF-8 stay what they are."""
    document: dict[str, object] = {"v": FORMAT_VERSION, "op": _OPERATIONS[type(definition)]}
    for each in fields(definition):
        value = getattr(definition, each.name)
        if not value and _LEFT_OUT in each.metadata:
            continue
        document[each.name] = _pack(value) if each.name == "arguments" else value
    return json.dumps(document, separators=(",", ":")).encode("ascii")


def decode(record: bytes) -> Definition:
    """The definition in a record.

    Raises:
        BadDefinition: not a record, or one of a newer version.
    """
    try:
        document = json.loads(record)
        version, kind = document.pop("v"), _KINDS[document.pop("op")]
        if version != FORMAT_VERSION:
            raise BadDefinition(f"definition of version {version}, known is {FORMAT_VERSION}")
        if "arguments" in document:
            document["arguments"] = _unpack(document["arguments"])
        return kind(**document)
    except (ValueError, KeyError, TypeError, AttributeError, FrameError, binascii.Error) as error:
        if isinstance(error, BadDefinition):
            raise
        raise BadDefinition(f"not a definition: {record[:80]!r}") from error


def of_exchange(exchange: Exchange) -> ExchangeDeclared:
    """What declares a durable exchange again."""
    return ExchangeDeclared(
        exchange.vhost,
        exchange.name,
        exchange.type,
        exchange.auto_delete,
        exchange.internal,
        exchange.arguments,
    )


def of_queue(spec: QueueSpec) -> QueueDeclared:
    """What declares a stored queue again."""
    return QueueDeclared(spec.vhost, spec.name, spec.queue_id, spec.auto_delete, spec.arguments)


def of_binding(vhost: str, binding: Binding) -> Bound:
    """What binds the same again."""
    return Bound(vhost, *_tuple_of(binding))


def of_unbound(vhost: str, binding: Binding) -> Unbound:
    """The record that removes the binding at the next start."""
    return Unbound(vhost, *_tuple_of(binding))


def to_exchange(definition: ExchangeDeclared) -> Exchange:
    """The exchange that a record is about.

    Raises:
        BadDefinition: its type is not of this version.
    """
    if definition.type not in ROUTERS and definition.type != X_DELAYED_MESSAGE:
        raise BadDefinition(f"exchange type {definition.type!r} is not of this version")
    return Exchange(
        definition.name,
        definition.vhost,
        definition.type,
        True,
        definition.auto_delete,
        definition.internal,
        definition.arguments,
    )


def to_spec(definition: QueueDeclared) -> QueueSpec:
    """The declaration of the queue that a record is about."""
    return QueueSpec(
        definition.name,
        definition.vhost,
        definition.queue_id,
        True,
        None,
        definition.auto_delete,
        definition.arguments,
    )


def to_binding(definition: Bound | Unbound) -> Binding:
    """The binding that a record is about."""
    return Binding(*_tuple_of(definition))


def of_policy(vhost: str, policy: Policy) -> PolicySet:
    """What sets a policy again."""
    return PolicySet(
        vhost,
        policy.name,
        policy.pattern,
        dict(policy.definition),
        policy.apply_to,
        policy.priority,
        policy.is_operator,
        policy.comes_from_file,
    )


def to_policy(definition: PolicySet) -> Policy:
    """The policy that a record is about."""
    return Policy(
        definition.name,
        definition.pattern,
        definition.definition,
        definition.apply_to,
        definition.priority,
        definition.is_operator,
        definition.comes_from_file,
    )


def _tuple_of(
    binding: Binding | Bound | Unbound,
) -> tuple[str, DestinationKind, str, str, Table]:
    return (
        binding.source,
        binding.kind,
        binding.destination,
        binding.routing_key,
        binding.arguments,
    )


def _pack(arguments: Table) -> str:
    return b64encode(encode_table(arguments)).decode("ascii") if arguments else ""


def _unpack(packed: str) -> Table:
    return decode_table_at(b64decode(packed, validate=True), 0)[0] if packed else {}
