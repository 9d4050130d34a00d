"""Writes the definitions of a broker in the form in which RabbitMQ exports them.

Must not know where they come from or where they go. What a broker keeps of its own accord is not
told: predeclared exchanges, queues of one connection, the hidden queues behind exchanges.

Spec: HTTP-40
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final

from vouchmq.protocol.fields import Field, as_text
from vouchmq.protocol.text import decode_text
from vouchmq.server.broker.names import SERVER_NAMED_PREFIX
from vouchmq.server.definitions.file import OPERATOR_POLICY
from vouchmq.server.version import VERSION

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from vouchmq.protocol.fields import Table
    from vouchmq.server.broker.broker import Broker
    from vouchmq.server.broker.policy.policies import Policy
    from vouchmq.server.broker.queues.spec import QueueLike
    from vouchmq.server.broker.vhost import VHost

PRODUCT: Final = "VouchMQ"

Row = dict[str, object]


def exported(broker: Broker[QueueLike]) -> tuple[str, list[str]]:
    """A definitions file with everything durable in it but users and limits.

    Returns:
        its text, and what had to be left out: JSON has no infinite numbers, arguments may have
    """
    left_out: list[str] = []
    vhosts = sorted(broker.vhosts.values(), key=lambda each: each.name)
    policies = [(vhost.name, each) for vhost in vhosts for each in _sorted_policies(vhost)]
    document: Row = {
        "product_name": PRODUCT,
        "product_version": VERSION,
        "vhosts": [{"name": vhost.name} for vhost in vhosts],
        "parameters": [_operator_policy(*each) for each in policies if each[1].is_operator],
        "policies": [_policy(*each) for each in policies if not each[1].is_operator],
    }
    for kind, rows_of in (("queues", _queues), ("exchanges", _exchanges), ("bindings", _bindings)):
        rows: list[Row] = []
        for row in (row for vhost in vhosts for row in rows_of(vhost)):
            if _is_json(row):
                rows.append(row)
            else:
                left_out.append(f"{kind}: {row}")
        document[kind] = rows
    return json.dumps(document, indent=1, allow_nan=False) + "\n", left_out


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


def _bindings(vhost: VHost[QueueLike]) -> Iterable[Row]:
    for each in vhost.bindings:
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
    """A field table as an object of JSON."""
    return {name: _plain(value) for name, value in table.items()}


def _plain(field: Field) -> object:
    """A value as JSON has it: integers of all widths are one, octets become a text."""
    value = field.value
    if isinstance(value, bytes):
        return as_text(field) or decode_text(value)
    if isinstance(value, dict):
        return plain_table(value)
    if field.kind == "D" and isinstance(value, tuple):
        scale, number = value
        return float(f"{number}e-{scale}") if isinstance(number, int) else 0.0
    if isinstance(value, tuple):
        return [_plain(each) for each in value if isinstance(each, Field)]
    return value
