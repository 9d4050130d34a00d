"""Definitions as a file of JSON, in the form in which RabbitMQ exports them.

    text ─▶ entries with their types checked, each with its place in the file ─▶ `importer.py`

A fault is told with its place, as in `queues[3].arguments.x-max-length`. What such a file may hold
and this broker has not got is listed, so that somebody can be told. Must not know what an entry
does, nor files.

Spec: HTTP-40, HTTP-41
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple

from vouchmq.protocol.fields import Table, longstr
from vouchmq.server.broker.names import SERVER_NAMED_PREFIX
from vouchmq.server.broker.policy.policies import ALL, Policy
from vouchmq.server.definitions.entry import DefinitionsError, Entry, kind_of
from vouchmq.server.edge.accounts import QUEUE_TYPES, UNLIMITED, UserAccount

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from vouchmq.server.broker.exchanges.bindings import DestinationKind

MAX_LIMITS: Final = ("max-connections", "max-queues", "max-exchanges")
OPERATOR_POLICY: Final = "operator_policy"
VHOST_LIMITS: Final = "vhost-limits"
# What tells about the broker that wrote the file, and asks for nothing.
TELLING: Final = frozenset(
    {
        *("rabbit_version", "rabbitmq_version", "product_name", "product_version"),
        *("rabbitmq_definition_format", "original_cluster_name", "original_vhost_name"),
        *("explanation", "metadata"),
    }
)
TELLING_PARAMETERS: Final = frozenset(
    {"cluster_name", "internal_cluster_id", "cluster_tags", "cluster_metadata"}
)
# Words of an entry that ask for nothing, or for what is the case anyway.
TELLING_WORDS: Final = frozenset({"metadata", "description", "vhost"})


@dataclass(slots=True, frozen=True)
class VHostEntry:
    """A virtual host; `default_queue_type` is None when the file says nothing of it."""

    where: str
    name: str
    default_queue_type: str | None = None


@dataclass(slots=True, frozen=True)
class LimitsEntry:
    """Limits of a virtual host: names of MAX_LIMITS, negative ones are none."""

    where: str
    vhost: str
    limits: Mapping[str, int]


@dataclass(slots=True, frozen=True)
class UserEntry:
    """A user, who may enter no virtual host by this."""

    where: str
    account: UserAccount


class Patterns(NamedTuple):
    """The three expressions of a permission."""

    configure: str
    write: str
    read: str


@dataclass(slots=True, frozen=True)
class PermissionEntry:
    """What a user may do in a virtual host."""

    where: str
    user: str
    vhost: str
    patterns: Patterns


@dataclass(slots=True, frozen=True)
class TopicEntry:
    """Which keys of a topic exchange a user may publish and bind with (PERM-10)."""

    where: str
    user: str
    vhost: str
    exchange: str
    write: str
    read: str


@dataclass(slots=True, frozen=True)
class PolicyEntry:
    """A policy or operator policy."""

    where: str
    vhost: str
    policy: Policy


@dataclass(slots=True, frozen=True)
class ExchangeEntry:
    """An exchange."""

    where: str
    vhost: str
    name: str
    type: str
    durable: bool
    auto_delete: bool
    internal: bool
    arguments: Table


@dataclass(slots=True, frozen=True)
class QueueEntry:
    """A queue that is nobody's own."""

    where: str
    vhost: str
    name: str
    durable: bool
    auto_delete: bool
    arguments: Table


@dataclass(slots=True, frozen=True)
class BindingEntry:
    """A binding."""

    where: str
    vhost: str
    source: str
    kind: DestinationKind
    destination: str
    routing_key: str
    arguments: Table


@dataclass(slots=True)
class Content:
    """Everything in one file, in the order in which it is to be applied; `skipped` is not."""

    users: list[UserEntry] = field(default_factory=list)
    vhosts: list[VHostEntry] = field(default_factory=list)
    permissions: list[PermissionEntry] = field(default_factory=list)
    topics: list[TopicEntry] = field(default_factory=list)
    limits: list[LimitsEntry] = field(default_factory=list)
    policies: list[PolicyEntry] = field(default_factory=list)
    exchanges: list[ExchangeEntry] = field(default_factory=list)
    queues: list[QueueEntry] = field(default_factory=list)
    bindings: list[BindingEntry] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)


def read_content(text: str) -> Content:
    """The entries of a definitions file.

    Raises:
        DefinitionsError: it is no JSON, or an entry has not the form that it should have
    """
    content = Content()
    for _ in reading(text, content):
        pass
    return content


def reading(text: str, content: Content) -> Iterator[None]:
    """Read the entries into `content` step by step, see `read_content` (LIMIT-23).

    Raises:
        DefinitionsError: as there
    """
    try:
        document = json.loads(text, parse_constant=_refuse)
    except RecursionError:
        raise DefinitionsError("nested too deeply") from None
    except ValueError as error:
        raise DefinitionsError(f"not JSON: {error}") from None
    if not isinstance(document, dict):
        raise DefinitionsError(f"expected an object, not {kind_of(document)}")
    readers = {
        "users": _user,
        "vhosts": _vhost,
        "permissions": _permission,
        "topic_permissions": _topic_permission,
        "parameters": _parameter,
        "operator_policies": _operator_policy,
        "policies": _policy,
        "exchanges": _exchange,
        "queues": _queue,
        "bindings": _binding,
        "global_parameters": _global_parameter,
    }
    for key in document.keys() - readers.keys() - TELLING:
        # An empty list of what this broker has not got is nothing to skip.
        if document[key]:
            content.skipped.append(key)
    for key, reader in readers.items():
        for entry in _entries(document, key):
            reader(entry, content)
            told = (word for word in entry.unread if word not in TELLING_WORDS)
            content.skipped.extend(entry.at(word) for word in told if entry.values[word])
            yield
    content.skipped.sort()


def _refuse(word: str) -> None:
    raise ValueError(f"{word} is not a JSON number")


def _entries(document: Mapping[str, object], key: str) -> Iterator[Entry]:
    rows = document.get(key, [])
    if not isinstance(rows, list):
        raise DefinitionsError(f"{key}: expected a list, not {kind_of(rows)}")
    for number, row in enumerate(rows):
        yield Entry(row, f"{key}[{number}]")


def _user(entry: Entry, content: Content) -> None:
    tags = entry.value("tags") or []
    if isinstance(tags, str):  # before 3.9
        tags = [tag.strip() for tag in tags.split(",") if tag.strip()]
    if not isinstance(tags, list) or not all(isinstance(tag, str) for tag in tags):
        raise DefinitionsError(f"{entry.at('tags')}: expected a list of strings")
    limits = _limits(entry, "limits", ("max-connections", "max-channels"), content)
    account = UserAccount(
        name=entry.name(),
        password=entry.text("password", ""),
        password_hash=entry.text("password_hash", ""),
        hashing_algorithm=entry.text("hashing_algorithm", "rabbit_password_hashing_sha256"),
        tags=tuple(tags),
        vhosts=(),
        max_connections=limits.get("max-connections", UNLIMITED),
        max_channels=limits.get("max-channels", UNLIMITED),
    )
    content.users.append(UserEntry(entry.where, account))


def _vhost(entry: Entry, content: Content) -> None:
    entry.value("default_queue_type")
    default_type: str | None = None
    # RabbitMQ writes it in both places, and `undefined` for none.
    tables = (entry.object("metadata"), entry.at("metadata")), (entry.values, entry.where)
    for table, where in tables:
        word = table.get("default_queue_type", "undefined")
        if isinstance(word, str) and word in QUEUE_TYPES:
            default_type = word
        elif word not in (None, "undefined"):
            kinds = ", ".join(QUEUE_TYPES)
            raise DefinitionsError(f"{where}.default_queue_type: expected one of {kinds}")
    vhost = VHostEntry(entry.where, entry.name(), default_type)
    content.vhosts.append(vhost)
    limits = _limits(entry, "limits", MAX_LIMITS, content)
    if limits:
        content.limits.append(LimitsEntry(entry.at("limits"), vhost.name, limits))


def _permission(entry: Entry, content: Content) -> None:
    patterns = Patterns(entry.text("configure"), entry.text("write"), entry.text("read"))
    where, user, vhost = entry.where, entry.name("user"), entry.name("vhost")
    content.permissions.append(PermissionEntry(where, user, vhost, patterns))


def _topic_permission(entry: Entry, content: Content) -> None:
    where, user, vhost = entry.where, entry.name("user"), entry.name("vhost")
    words = (entry.text(name) for name in ("exchange", "write", "read"))
    content.topics.append(TopicEntry(where, user, vhost, *words))


def _parameter(entry: Entry, content: Content) -> None:
    component = entry.text("component")
    if component == OPERATOR_POLICY:
        value = Entry(entry.value("value"), entry.at("value"))
        policy = _policy_of(value, entry.name(), is_operator=True)
        content.skipped.extend(value.at(word) for word in value.unread)
        content.policies.append(PolicyEntry(entry.where, entry.name("vhost"), policy))
    elif component == VHOST_LIMITS:
        entry.value("name")  # there is one set of limits, whatever it is called
        limits = _limits(entry, "value", MAX_LIMITS, content)
        content.limits.append(LimitsEntry(entry.where, entry.name("vhost"), limits))
    else:
        content.skipped.append(f"{entry.where} of component {component!r}")
        entry.pass_over()


def _limits(entry: Entry, key: str, known: tuple[str, ...], content: Content) -> dict[str, int]:
    found: dict[str, int] = {}
    for name, value in entry.object(key).items():
        where = f"{entry.at(key)}.{name}"
        if name not in known:
            content.skipped.append(where)
        elif isinstance(value, bool) or not isinstance(value, int):
            raise DefinitionsError(f"{where}: expected an integer, not {kind_of(value)}")
        else:
            found[name] = value
    return found


def _operator_policy(entry: Entry, content: Content) -> None:
    policy = _policy_of(entry, entry.name(), is_operator=True)
    content.policies.append(PolicyEntry(entry.where, entry.name("vhost"), policy))


def _policy(entry: Entry, content: Content) -> None:
    policy = _policy_of(entry, entry.name(), is_operator=False)
    content.policies.append(PolicyEntry(entry.where, entry.name("vhost"), policy))


def _policy_of(entry: Entry, name: str, *, is_operator: bool) -> Policy:
    if "definition" not in entry.values:
        raise DefinitionsError(f"{entry.at('definition')}: missing")
    definition = entry.object("definition")
    return Policy(
        name,
        entry.text("pattern"),
        definition,
        entry.text("apply-to", ALL),
        entry.number("priority", 0),
        is_operator,
        comes_from_file=True,
    )


def _exchange(entry: Entry, content: Content) -> None:
    content.exchanges.append(
        ExchangeEntry(
            entry.where,
            entry.name("vhost"),
            entry.name(),
            entry.text("type"),
            entry.flag("durable", True),
            entry.flag("auto_delete"),
            entry.flag("internal"),
            entry.table(),
        )
    )


def _queue(entry: Entry, content: Content) -> None:
    if _is_server_named(entry, "name", content):
        return
    arguments = entry.table()
    # Newer exports say the type beside the arguments, too.
    queue_type = entry.text("type", "classic")
    if queue_type != "classic":
        arguments.setdefault("x-queue-type", longstr(queue_type))
    content.queues.append(
        QueueEntry(
            entry.where,
            entry.name("vhost"),
            entry.name(),
            entry.flag("durable", True),
            entry.flag("auto_delete"),
            arguments,
        )
    )


def _binding(entry: Entry, content: Content) -> None:
    kind = entry.text("destination_type")
    if kind not in {"queue", "exchange"}:
        where = entry.at("destination_type")
        raise DefinitionsError(f"{where}: expected queue or exchange, not {kind!r}")
    if kind == "queue" and _is_server_named(entry, "destination", content):
        return
    content.bindings.append(
        BindingEntry(
            entry.where,
            entry.name("vhost"),
            entry.name("source"),
            "queue" if kind == "queue" else "exchange",
            entry.name("destination"),
            entry.name("routing_key", may_be_empty=True),
            entry.table(),
        )
    )


def _is_server_named(entry: Entry, key: str, content: Content) -> bool:
    """Whether it is about a queue of some client: RabbitMQ exports them, and passes them over."""
    if not entry.name(key).startswith(SERVER_NAMED_PREFIX):
        return False
    content.skipped.append(f"{entry.where} {entry.name(key)!r}")
    entry.pass_over()
    return True


def _global_parameter(entry: Entry, content: Content) -> None:
    if entry.text("name") not in TELLING_PARAMETERS:
        content.skipped.append(f"{entry.where} {entry.text('name')!r}")
    entry.pass_over()
