"""Definitions as a file of JSON, in the form in which RabbitMQ exports them.

    text ─▶ entries with their types checked, each with its place in the file ─▶ `importer.py`

Each kind of entry is a record whose types say what its keys may hold; all faults are told at once,
each with its place, as in `queues[3].arguments.x-max-length`. What such a file may hold and this
broker has not got is listed, so that somebody can be told, and no word is passed over in silence.
Must not know what an entry does, nor files.

Spec: HTTP-40, HTTP-41
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, NamedTuple, TypeVar

from msgspec import Struct

from vouchmq.protocol.fields import as_text, longstr
from vouchmq.server.broker.definitions import UNLIMITED
from vouchmq.server.broker.delays import X_DELAYED_MESSAGE, X_DELAYED_TYPE
from vouchmq.server.broker.exchanges.exchange import PREDECLARED_NAMES, is_type_of_plugin
from vouchmq.server.broker.names import DEFAULT_EXCHANGE, SERVER_NAMED_PREFIX
from vouchmq.server.broker.policy.policies import ALL, Policy
from vouchmq.server.definitions.arguments import Arguments, Object, require_storable
from vouchmq.server.definitions.document import DefinitionsError, Repeated, parsing, places_of
from vouchmq.server.settings.accounts import QUEUE_TYPES, UserAccount
from vouchmq.server.settings.validation import (
    Check,
    Faults,
    InvalidValueError,
    Name,
    check_shortstr,
    converted,
    kind_of,
    read_record,
    unknown_keys,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

MAX_LIMITS: Final = ("max-connections", "max-queues", "max-exchanges")
USER_LIMITS: Final = ("max-connections", "max-channels")
# What LavinMQ calls the type `x-delayed-message` in its exports.
LAVINMQ_DELAYED: Final = "x-delayed-exchange"
# Of what another broker makes itself: exchanges to which RabbitMQ writes its log and its events,
# queues in which LavinMQ keeps delayed messages.
FOREIGN_PREFIXES: Final = ("amq.rabbitmq.", "amq.delayed-")
OPERATOR_POLICY: Final = "operator_policy"
VHOST_LIMITS: Final = "vhost-limits"
# What tells about the broker that wrote the file, and asks for nothing.
TELLING: Final = frozenset(
    {
        *("rabbit_version", "rabbitmq_version", "product_name", "product_version"),
        "lavinmq_version",
        *("rabbitmq_definition_format", "original_cluster_name", "original_vhost_name"),
        *("explanation", "metadata"),
    }
)
# The global parameter that says which file was applied last, as RabbitMQ calls it.
APPLIED_FILE: Final = "imported_definition_hash_value"
TELLING_PARAMETERS: Final = frozenset(
    {"cluster_name", "internal_cluster_id", "cluster_tags", "cluster_metadata", APPLIED_FILE}
)
# Words of an entry that ask for nothing, or for what is the case anyway.
TELLING_WORDS: Final = frozenset({"metadata", "description", "vhost", "properties_key"})
# Components of parameters that only plugins of RabbitMQ know what to do with.
OF_PLUGINS: Final = ("shovel", "federation-", "mqtt", "replication-", "hash-ring-")
# Keys of policies that only plugins of RabbitMQ know: sharding.
PLUGIN_KEYS: Final = frozenset({"shards-per-node", "routing-key"})
# What the definitions of one virtual host have, and the whole broker's beside it has not.
OF_VHOST: Final = frozenset(
    {"parameters", "operator_policies", "policies", "exchanges", "queues", "bindings"}
)

E = TypeVar("E", bound="Entry")


def is_of_another_broker(name: str) -> bool:
    """Whether only another broker makes a queue or exchange of this name."""
    return name.startswith(FOREIGN_PREFIXES)


def is_of_plugin(component: str) -> bool:
    """Whether parameters of a component would do nothing here (HTTP-27)."""
    return component.startswith(OF_PLUGINS)


def _tags_of(value: object) -> tuple[str, ...]:
    if isinstance(value, str):  # before 3.9
        return tuple(tag.strip() for tag in value.split(",") if tag.strip())
    strings: tuple[str, ...] = converted(tuple[str, ...], value or [])
    return strings


def _queue_type_of(value: object) -> str | None:
    """None for none, which RabbitMQ writes as `undefined`."""
    if value in (None, "undefined"):
        return None
    if value not in QUEUE_TYPES:
        raise InvalidValueError(f"expected one of {', '.join(QUEUE_TYPES)}")
    return str(value)


def _finite(number: float) -> float:
    if not math.isfinite(number):
        raise InvalidValueError("too large")
    return number


QueueType = Annotated[Any, Check(_queue_type_of)]


class Entry(Struct, frozen=True, kw_only=True):
    """One object of the file, and where it stands."""

    where: str


class VHostEntry(Entry, frozen=True, kw_only=True):
    """A virtual host; what the file says nothing of is None."""

    name: Name
    default_queue_type: QueueType = None
    description: str | None = None
    tags: Annotated[Any, Check(_tags_of)] = None
    protected_from_deletion: bool | None = None
    # RabbitMQ writes it in both places.
    metadata: Object = {}
    limits: Object = {}


class LimitsEntry(Entry, frozen=True, kw_only=True):
    """Limits of a virtual host: names of MAX_LIMITS, negative ones are none."""

    vhost: Name
    limits: Mapping[str, int]


class UserEntry(Entry, frozen=True, kw_only=True):
    """A user, who may enter no virtual host by this."""

    account: UserAccount


class UserKeys(Entry, frozen=True, kw_only=True):
    """The keys of a user."""

    name: Name
    password: str = ""
    password_hash: str = ""
    hashing_algorithm: str = "rabbit_password_hashing_sha256"
    # What is not given stays as it is.
    tags: Annotated[Any, Check(_tags_of)] = None
    limits: Object = None


class Patterns(NamedTuple):
    """The three expressions of a permission."""

    configure: str
    write: str
    read: str


class PermissionEntry(Entry, frozen=True, kw_only=True):
    """What a user may do in a virtual host."""

    user: Name
    vhost: Name
    configure: str
    write: str
    read: str

    @property
    def patterns(self) -> Patterns:
        """The patterns for configure, write and read."""
        return Patterns(self.configure, self.write, self.read)


class TopicEntry(Entry, frozen=True, kw_only=True):
    """Which keys of a topic exchange a user may publish and bind with (PERM-10)."""

    user: Name
    vhost: Name
    exchange: str
    write: str
    read: str


class PolicyEntry(Entry, frozen=True, kw_only=True):
    """A policy or operator policy."""

    vhost: str
    policy: Policy


class PolicyKeys(Entry, frozen=True, kw_only=True, rename={"apply_to": "apply-to"}):
    """The keys of a policy, and those of an operator policy below `value`."""

    pattern: str
    definition: Object
    apply_to: str = ALL
    priority: Annotated[int | float, Check(_finite)] = 0


class NamedPolicyKeys(PolicyKeys, frozen=True, kw_only=True):
    """The keys of a policy with a name."""

    vhost: Name
    name: Name


class ParameterKeys(Entry, frozen=True, kw_only=True):
    """The keys of any parameter."""

    component: str


class OperatorPolicyKeys(ParameterKeys, frozen=True, kw_only=True):
    """The keys of the parameter that is an operator policy."""

    vhost: Name
    name: Name
    value: dict[str, Any]


class LimitsKeys(ParameterKeys, frozen=True, kw_only=True):
    """The keys of the parameter that limits a virtual host; what it is called is of no matter."""

    vhost: Name
    name: Any = None
    value: Object = {}


class ParameterEntry(ParameterKeys, frozen=True, kw_only=True):
    """A parameter that is kept for whoever asks."""

    vhost: Name
    name: Name
    value: Any


class GlobalParameterEntry(Entry, frozen=True, kw_only=True):
    """The same of the whole broker."""

    name: Name
    value: Any = None


class ExchangeEntry(Entry, frozen=True, kw_only=True):
    """An entry of `exchanges`: what a client would declare."""

    vhost: Name
    name: Name
    type: str
    durable: bool = True
    auto_delete: bool = False
    internal: bool = False
    arguments: Arguments = {}


class QueueEntry(Entry, frozen=True, kw_only=True):
    """A queue that is nobody's own."""

    vhost: Name
    name: Name
    durable: bool = True
    auto_delete: bool = False
    arguments: Arguments = {}
    # Newer exports say it beside the arguments, too; None: the virtual host's default counts.
    type: str | None = None


class BindingEntry(Entry, frozen=True, kw_only=True, rename={"kind": "destination_type"}):
    """An entry of `bindings`: from an exchange to a queue or an exchange."""

    vhost: Name
    source: Name
    kind: Literal["queue", "exchange"]
    destination: Name
    routing_key: Annotated[str, Check(check_shortstr)]
    arguments: Arguments = {}


@dataclass(slots=True)
class Content:
    """Everything in one file, in the order in which it is to be applied; `skipped` is not.

    `fingerprint` is that of the text. `skipped_queues` are virtual hosts and names: bindings to
    these are skipped as well.
    """

    fingerprint: str = ""
    users: list[UserEntry] = field(default_factory=list)
    vhosts: list[VHostEntry] = field(default_factory=list)
    permissions: list[PermissionEntry] = field(default_factory=list)
    topics: list[TopicEntry] = field(default_factory=list)
    limits: list[LimitsEntry] = field(default_factory=list)
    parameters: list[ParameterEntry] = field(default_factory=list)
    global_parameters: list[GlobalParameterEntry] = field(default_factory=list)
    policies: list[PolicyEntry] = field(default_factory=list)
    exchanges: list[ExchangeEntry] = field(default_factory=list)
    queues: list[QueueEntry] = field(default_factory=list)
    bindings: list[BindingEntry] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)
    skipped_queues: set[tuple[str, str]] = field(default_factory=set)


def read_content(text: str) -> Content:
    """The entries of a definitions file.

    Raises:
        DefinitionsError: it is no JSON, or an entry has not the form that it should have
    """
    content = Content()
    for _ in reading(text, content):
        pass
    return content


def reading(text: str, content: Content, vhost: str | None = None) -> Iterator[None]:
    """Read the entries into `content` step by step, see `read_content` (LIMIT-23).

    With the name of a virtual host all of them are in that one, whatever they say (HTTP-29).

    Raises:
        DefinitionsError: as there
    """
    content.fingerprint = hashlib.sha256(text.encode()).hexdigest()
    repeated: list[Repeated] = []
    document = yield from parsing(text, repeated)
    reader = Reader(content, vhost)
    if repeated:
        for place in places_of(repeated, document):
            reader.faults.add(place, "given twice")
        # Which of the values was meant is not known, so the rest cannot be judged.
        reader.faults.refuse(DefinitionsError)
    for key in document.keys() - READERS.keys() - TELLING:
        # An empty list of what this broker has not got is nothing to skip.
        if document[key]:
            content.skipped.append(key)
    for key, read in READERS.items():
        rows = document.get(key, [])
        if vhost is not None and key not in OF_VHOST:
            content.skipped += [key] * bool(rows)
            continue
        if not isinstance(rows, list):
            reader.faults.add(key, f"expected a list, not {kind_of(rows)}")
            continue
        for number, row in enumerate(rows):
            where = f"{key}[{number}]"
            try:
                require_storable(row)
            except InvalidValueError as error:
                reader.faults.add(f"{where}{error.at}", str(error))
                continue
            if isinstance(row, dict):
                read(reader, row, where)
            else:
                reader.faults.add(where, f"expected an object, not {kind_of(row)}")
            yield
    reader.faults.refuse(DefinitionsError)
    content.skipped.sort()


Row = dict[str, object]


class Reader:
    """Puts the objects of a file into the content, and notes what is wrong with them."""

    def __init__(self, content: Content, vhost: str | None = None) -> None:
        self.content = content
        self.faults = Faults()
        self._in_vhost: Row = {} if vhost is None else {"vhost": vhost}

    def read(self, kind: type[E], row: Row, where: str) -> E | None:
        """An entry of the object; what it says that nobody knows is listed."""
        row = row | self._in_vhost
        for word in unknown_keys(kind, row):
            if row[word] and word not in TELLING_WORDS:
                self.content.skipped.append(f"{where}.{word}")
        return read_record(kind, row, where, self.faults, where=where)

    def user(self, row: Row, where: str) -> None:
        """Read an entry of `users`, with limits and tags."""
        keys = self.read(UserKeys, row, where)
        if keys is None:
            return
        limits: Mapping[str, int | None] = {}
        if keys.limits is not None:
            found = self.limits(keys.limits, f"{where}.limits", USER_LIMITS)
            limits = dict.fromkeys(USER_LIMITS, UNLIMITED) | found
        account = UserAccount(
            name=keys.name,
            password=keys.password,
            password_hash=keys.password_hash,
            hashing_algorithm=keys.hashing_algorithm,
            tags=keys.tags,
            vhosts=(),
            max_connections=limits.get("max-connections"),
            max_channels=limits.get("max-channels"),
        )
        self.content.users.append(UserEntry(where=where, account=account))

    def vhost(self, row: Row, where: str) -> None:
        """Read an entry of `vhosts`; what is said of it may be in its metadata."""
        entry = self.read(VHostEntry, row, where)
        if entry is None:
            return
        known = ("description", "tags", "default_queue_type", "protected_from_deletion")
        inner = {key: entry.metadata[key] for key in known if key in entry.metadata}
        at = f"{where}.metadata"
        metadata = read_record(
            VHostEntry, inner, at, self.faults, where=at, name=entry.name, metadata={}, limits={}
        )
        if metadata is None:
            return
        said = {
            key: getattr(metadata, key) if getattr(entry, key) is None else getattr(entry, key)
            for key in known
        }
        self.content.vhosts.append(VHostEntry(where=where, name=entry.name, **said))
        limits = self.limits(entry.limits, f"{where}.limits", MAX_LIMITS)
        if limits:
            at = f"{where}.limits"
            self.content.limits.append(LimitsEntry(where=at, vhost=entry.name, limits=limits))

    def permission(self, row: Row, where: str) -> None:
        """Read an entry of `permissions`."""
        self.keep(self.content.permissions, self.read(PermissionEntry, row, where))

    def topic_permission(self, row: Row, where: str) -> None:
        """Read an entry of `topic_permissions`."""
        self.keep(self.content.topics, self.read(TopicEntry, row, where))

    def exchange(self, row: Row, where: str) -> None:
        """Read an entry of `exchanges`; what only another broker can have is skipped."""
        if row.get("name") == DEFAULT_EXCHANGE:
            return  # LavinMQ exports it; every virtual host has it
        if row.get("type") == LAVINMQ_DELAYED:
            row = row | {"type": X_DELAYED_MESSAGE}
        entry = self.read(ExchangeEntry, row, where)
        if entry is None:
            return
        inner = as_text(entry.arguments.get(X_DELAYED_TYPE))
        unknown = [kind for kind in (entry.type, inner) if kind and is_type_of_plugin(kind)]
        if unknown:
            self.content.skipped.append(f"{where} {entry.name!r} of type {unknown[0]!r}")
        elif is_of_another_broker(entry.name) and entry.name not in PREDECLARED_NAMES:
            self.content.skipped.append(f"{where} {entry.name!r}")
        else:
            self.content.exchanges.append(entry)

    def queue(self, row: Row, where: str) -> None:
        """Read an entry of `queues`; those of a broker, and of types of plugins, are skipped."""
        if self.is_server_named(row, "name", where):
            return
        entry = self.read(QueueEntry, row, where)
        if entry is None:
            return
        is_known = entry.type is None or entry.type in QUEUE_TYPES
        if is_of_another_broker(entry.name) or not is_known:
            of_type = "" if is_known else f" of type {entry.type!r}"
            self.content.skipped.append(f"{where} {entry.name!r}{of_type}")
            self.content.skipped_queues.add((entry.vhost, entry.name))
            return
        if entry.type not in {None, "classic"}:
            entry.arguments.setdefault("x-queue-type", longstr(str(entry.type)))
        self.content.queues.append(entry)

    def binding(self, row: Row, where: str) -> None:
        """Read an entry of `bindings`; those to server-named queues are skipped."""
        is_to_queue = row.get("destination_type") == "queue"
        is_own_name = row.get("routing_key") == row.get("destination")
        if is_to_queue and row.get("source") == DEFAULT_EXCHANGE and is_own_name:
            return  # every queue has this one
        if not (is_to_queue and self.is_server_named(row, "destination", where)):
            self.keep(self.content.bindings, self.read(BindingEntry, row, where))

    def keep(self, entries: list[E], entry: E | None) -> None:
        """Put an entry to the others, unless it has faults."""
        if entry is not None:
            entries.append(entry)

    def is_server_named(self, row: Row, key: str, where: str) -> bool:
        """Whether it is about a client's own queue: RabbitMQ exports them, and skips them."""
        name = row.get(key)
        if not isinstance(name, str) or not name.startswith(SERVER_NAMED_PREFIX):
            return False
        self.content.skipped.append(f"{where} {name!r}")
        return True

    def policy(self, row: Row, where: str) -> None:
        """Read an entry of `policies`."""
        self.named_policy(row, where, is_operator=False)

    def operator_policy(self, row: Row, where: str) -> None:
        """Read an entry of `operator_policies`."""
        self.named_policy(row, where, is_operator=True)

    def named_policy(self, row: Row, where: str, *, is_operator: bool) -> None:
        """A policy with its name beside its other keys."""
        keys = self.read(NamedPolicyKeys, row, where)
        if keys is not None and self.has_own_keys(keys.definition, where):
            policy = _policy_of(keys, keys.name, is_operator=is_operator)
            self.content.policies.append(PolicyEntry(where=where, vhost=keys.vhost, policy=policy))

    def has_own_keys(self, definition: Row, where: str) -> bool:
        """Take the keys of plugins out of a policy, and list them; whether that leaves it any."""
        of_plugins = [key for key in definition if key in PLUGIN_KEYS]
        for key in of_plugins:
            del definition[key]
            self.content.skipped.append(f"{where}.definition.{key}")
        return bool(definition) or not of_plugins

    def parameter(self, row: Row, where: str) -> None:
        """One of `parameters`: an operator policy, limits, or something of a plugin."""
        component = row.get("component")
        if component == OPERATOR_POLICY:
            outer = self.read(OperatorPolicyKeys, row, where)
            if outer is None:
                return
            keys = self.read(PolicyKeys, outer.value, f"{where}.value")
            if keys is not None and self.has_own_keys(keys.definition, f"{where}.value"):
                policy = _policy_of(keys, outer.name, is_operator=True)
                self.content.policies.append(
                    PolicyEntry(where=where, vhost=outer.vhost, policy=policy)
                )
        elif component == VHOST_LIMITS:
            found = self.read(LimitsKeys, row, where)
            if found is not None:
                limits = self.limits(found.value, f"{where}.value", MAX_LIMITS)
                self.content.limits.append(
                    LimitsEntry(where=where, vhost=found.vhost, limits=limits)
                )
        elif isinstance(component, str) and is_of_plugin(component):
            self.content.skipped.append(f"{where} of component {component!r}")
        else:
            self.keep(self.content.parameters, self.read(ParameterEntry, row, where))

    def global_parameter(self, row: Row, where: str) -> None:
        """Read an entry of `global_parameters`, which is kept for whoever asks."""
        entry = self.read(GlobalParameterEntry, row, where)
        if entry is not None and entry.name not in TELLING_PARAMETERS:
            self.content.global_parameters.append(entry)

    def limits(self, values: Row, where: str, known: tuple[str, ...]) -> dict[str, int]:
        """Those that are known; others are listed."""
        found: dict[str, int] = {}
        for name, value in values.items():
            if name not in known:
                self.content.skipped.append(f"{where}.{name}")
                continue
            try:
                found[name] = converted(int, value)
            except InvalidValueError as error:
                self.faults.add(f"{where}.{name}", f"{error}, not {kind_of(value)}")
        return found


def _policy_of(keys: PolicyKeys, name: str, *, is_operator: bool) -> Policy:
    return Policy(
        name,
        keys.pattern,
        keys.definition,
        keys.apply_to,
        keys.priority,
        is_operator,
        comes_from_file=True,
    )


READERS: Final[Mapping[str, Callable[[Reader, Row, str], None]]] = {
    "users": Reader.user,
    "vhosts": Reader.vhost,
    "permissions": Reader.permission,
    "topic_permissions": Reader.topic_permission,
    "parameters": Reader.parameter,
    "operator_policies": Reader.operator_policy,
    "policies": Reader.policy,
    "exchanges": Reader.exchange,
    "queues": Reader.queue,
    "bindings": Reader.binding,
    "global_parameters": Reader.global_parameter,
}
