"""Writes the definitions of a broker in the form in which RabbitMQ exports them.

Must not know where they come from or where they go. What a broker keeps of its own accord is not
told: predeclared exchanges, queues of one connection, the hidden queues behind exchanges.

Spec: HTTP-40
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final

from vouchmq.protocol.fields import Field
from vouchmq.protocol.text import decode_text, quoted, shown_values
from vouchmq.server.broker.features.options import queue_type_of
from vouchmq.server.broker.names import SERVER_NAMED_PREFIX
from vouchmq.server.definitions.file import APPLIED_FILE, OPERATOR_POLICY, VHOST_LIMITS
from vouchmq.server.version import VERSION

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from vouchmq.protocol.fields import Table
    from vouchmq.server.broker.broker import Broker
    from vouchmq.server.broker.policy.policies import Policy
    from vouchmq.server.broker.queues.spec import QueueLike
    from vouchmq.server.broker.vhost import VHost

PRODUCT: Final = "VouchMQ"
IN_VHOST: Final = ("parameters", "policies", "queues", "exchanges", "bindings")
KINDS: Final = (
    *("users", "vhosts", "permissions", "topic_permissions", "global_parameters"),
    *IN_VHOST,
)

Row = dict[str, object]


def exported(broker: Broker[QueueLike]) -> tuple[str, list[str]]:
    """A definitions file with everything durable in it.

    Returns:
        its text, and what had to be left out: JSON has no infinite numbers, arguments may have
    """
    left_out: list[str] = []
    rows: dict[str, list[Row]] = {kind: [] for kind in KINDS}
    for kind, row in exporting(broker):
        if _is_json(row):
            rows[kind].append(row)
        else:
            left_out.append(f"{kind}: {quoted(row)}")
    document: Row = {"product_name": PRODUCT, "product_version": VERSION, **rows}
    return json.dumps(shown_values(document), indent=1, allow_nan=False) + "\n", left_out


def exporting(
    broker: Broker[QueueLike], vhost_name: str | None = None
) -> Iterator[tuple[str, Row]]:
    """The kind and the entry of everything that an export holds, one after the other (LIMIT-23).

    With the name of a virtual host: what is in that one, which is not said (HTTP-29).
    """
    names = sorted(broker.vhosts) if vhost_name is None else [vhost_name]
    vhosts = [broker.vhosts[name] for name in names if name in broker.vhosts]
    if vhost_name is None:
        yield from _accounts(broker, vhosts)
    for kind in IN_VHOST:
        for vhost in vhosts:
            for row in _rows(broker, vhost, kind):
                if vhost_name is not None:
                    del row["vhost"]
                yield kind, row


def _accounts(
    broker: Broker[QueueLike], vhosts: list[VHost[QueueLike]]
) -> Iterator[tuple[str, Row]]:
    accounts = broker.accounts
    for user in list(accounts.users.values()):
        limits = {"max-connections": user.max_connections, "max-channels": user.max_channels}
        yield (
            "users",
            {
                "name": user.user,
                "password_hash": user.password_hash,
                "hashing_algorithm": user.hashing_algorithm,
                "tags": user.tags,
                "limits": {name: limit for name, limit in limits.items() if limit >= 0},
            },
        )
    for vhost in vhosts:
        yield "vhosts", _vhost(vhost)
    for held in list(accounts.permissions.values()):
        for each in list(held.values()):
            patterns = {"configure": each.configure, "write": each.write, "read": each.read}
            yield "permissions", {"user": each.user, "vhost": each.vhost, **patterns}
    for topics in list(accounts.topic_permissions.values()):
        for topic in list(topics.values()):
            yield (
                "topic_permissions",
                {
                    "user": topic.user,
                    "vhost": topic.vhost,
                    "exchange": topic.exchange,
                    "write": topic.write,
                    "read": topic.read,
                },
            )
    for parameter in list(accounts.global_parameters.values()):
        if parameter.name == APPLIED_FILE:
            continue  # of this broker's own file
        yield "global_parameters", {"name": parameter.name, "value": parameter.value}


def _vhost(vhost: VHost[QueueLike]) -> Row:
    settings = vhost.settings()
    metadata: Row = {"description": settings.description, "tags": settings.tags}
    if settings.default_queue_type:
        metadata["default_queue_type"] = settings.default_queue_type
    if settings.is_protected:
        metadata["protected_from_deletion"] = True
    # RabbitMQ says them in both places.
    return {"name": vhost.name, **metadata, "metadata": dict(metadata)}


def _parameters(broker: Broker[QueueLike], vhost: VHost[QueueLike]) -> Iterator[Row]:
    settings = vhost.settings()
    limits = {
        "max-connections": settings.max_connections,
        "max-queues": settings.max_queues,
        "max-exchanges": settings.max_exchanges,
    }
    value = {name: limit for name, limit in limits.items() if limit >= 0}
    if value:
        yield _parameter(vhost.name, VHOST_LIMITS, "limits", value)
    for policy in _sorted_policies(vhost):
        if policy.is_operator:
            yield _operator_policy(vhost.name, policy)
    for each in list(broker.accounts.parameters.values()):
        if each.vhost == vhost.name:
            yield _parameter(vhost.name, each.component, each.name, each.value)


def _parameter(vhost: str, component: str, name: str, value: object) -> Row:
    return {"vhost": vhost, "component": component, "name": name, "value": value}


def _rows(broker: Broker[QueueLike], vhost: VHost[QueueLike], kind: str) -> Iterable[Row]:
    if kind == "parameters":
        return _parameters(broker, vhost)
    if kind == "policies":
        policies = _sorted_policies(vhost)
        return [_policy(vhost.name, each) for each in policies if not each.is_operator]
    return {"queues": _queues, "exchanges": _exchanges, "bindings": _bindings}[kind](vhost)


def _is_json(row: Row) -> bool:
    try:
        json.dumps(row, allow_nan=False)
    except ValueError:
        return False
    return True


def _sorted_policies(vhost: VHost[QueueLike]) -> list[Policy]:
    return sorted(vhost.policy_engine.policies, key=lambda each: each.name)


def _policy(vhost: str, policy: Policy) -> Row:
    return {"vhost": vhost, "name": policy.name, **_said(policy)}


def _operator_policy(vhost: str, policy: Policy) -> Row:
    return {
        "vhost": vhost,
        "component": OPERATOR_POLICY,
        "name": policy.name,
        "value": _said(policy),
    }


def _said(policy: Policy) -> Row:
    return {
        "pattern": policy.pattern,
        "apply-to": policy.apply_to,
        "definition": dict(policy.definition),
        "priority": policy.priority,
    }


def _queues(vhost: VHost[QueueLike]) -> Iterator[Row]:
    for name, queue in sorted(vhost.queues.items()):
        if not queue.spec.stored or name.startswith(SERVER_NAMED_PREFIX):
            continue
        yield {
            "vhost": vhost.name,
            "name": name,
            "durable": True,
            "auto_delete": queue.spec.auto_delete,
            # Else the default of the virtual host into which it is imported would count.
            "type": queue_type_of(queue.spec.arguments),
            "arguments": plain_table(queue.spec.arguments),
        }


def _exchanges(vhost: VHost[QueueLike]) -> Iterator[Row]:
    for name, exchange in sorted(vhost.exchanges.items()):
        if not exchange.durable or exchange.is_predeclared:
            continue
        yield {
            "vhost": vhost.name,
            "name": name,
            "type": exchange.type,
            "durable": True,
            "auto_delete": exchange.auto_delete,
            "internal": exchange.internal,
            "arguments": plain_table(exchange.arguments),
        }


def _bindings(vhost: VHost[QueueLike]) -> Iterator[Row]:
    for each in vhost.bindings.each():
        if vhost.is_durable(each) and not each.destination.startswith(SERVER_NAMED_PREFIX):
            yield {
                "vhost": vhost.name,
                "source": each.source,
                "destination": each.destination,
                "destination_type": each.kind,
                "routing_key": each.routing_key,
                "arguments": plain_table(each.arguments),
            }


def plain_table(table: Table) -> Row:
    """A field table as an object of JSON; texts that are no UTF-8 are still to be shown."""
    return {name: _plain(value) for name, value in table.items()}


def _plain(field: Field) -> object:
    """A value as JSON has it: integers of all widths are one, octets become a text."""
    value = field.value
    if isinstance(value, bytes):
        return decode_text(value)
    if isinstance(value, dict):
        return plain_table(value)
    if field.kind == "D" and isinstance(value, tuple):
        scale, number = value
        return float(f"{number}e-{scale}") if isinstance(number, int) else 0.0
    if isinstance(value, tuple):
        return [_plain(each) for each in value if isinstance(each, Field)]
    return value
