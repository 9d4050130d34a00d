"""A virtual host as a list of records, and made again from them.

Must not know the journal's format, nor what a record looks like in it.

Spec: DURABLE-01
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from vouchmq.server.broker import definitions as d
from vouchmq.server.broker.delays import delaying_exchange
from vouchmq.server.broker.exchanges.exchange import keys_are_of
from vouchmq.server.broker.features.options import InvalidPolicy

if TYPE_CHECKING:
    from vouchmq.server.broker.queues.spec import QueueLike
    from vouchmq.server.broker.vhost import VHost


def definitions_of(vhost: VHost[QueueLike]) -> list[bytes]:
    """The records from which `apply_definition` makes everything durable here again."""
    records: list[d.Definition] = [vhost.settings()]
    # Before those that they apply to: no features are built twice.
    records += (d.of_policy(vhost.name, each) for each in vhost.policy_engine.policies)
    records += (
        d.of_exchange(each)
        for each in vhost.exchanges.values()
        if each.durable and not each.is_predeclared
    )
    records += (d.of_queue(queue.spec) for queue in vhost.every_queue() if queue.spec.stored)
    records += (
        d.QueuePaused(vhost.name, queue.spec.name, is_paused=True)
        for queue in vhost.queues.values()
        if queue.spec.stored and queue.is_paused
    )
    records += (d.of_queue(spec) for spec in vhost.key_specs() if spec.stored)
    records += (d.of_binding(vhost.name, each) for each in vhost.bindings if vhost.is_durable(each))
    return [d.encode(record) for record in records]


def apply_definition(vhost: VHost[QueueLike], definition: d.VHostDefinition) -> None:
    """Do again what a record says, logging nothing and deducing nothing.

    A snapshot may already hold what the records behind it do, so doing something twice,
    deleting what is gone and binding what is gone are no errors. They end in the right state
    as long as all of them come, in order.
    """
    vhost.generation += 1
    match definition:
        case d.ExchangeDeclared() | d.ExchangeDeleted():
            _apply_exchange(vhost, definition)
        case d.QueueDeclared() | d.QueueDeleted():
            _apply_queue(vhost, definition)
        case d.QueuePaused():
            queue = vhost.queues.get(definition.name)
            if queue is not None:
                queue.pause(is_paused=definition.is_paused)
        case d.Bound() | d.Unbound():
            _apply_binding(vhost, definition)
        case d.PolicySet() | d.PolicyCleared():
            _apply_policy(vhost, definition)


def _apply_exchange(
    vhost: VHost[QueueLike], definition: d.ExchangeDeclared | d.ExchangeDeleted
) -> None:
    existing = vhost.exchanges.get(definition.name)
    if isinstance(definition, d.ExchangeDeleted):
        if existing is not None:
            del vhost.exchanges[definition.name]
            vhost.routes.detach_exchange(existing)
    elif existing is None:
        exchange = vhost.exchanges[definition.name] = d.to_exchange(definition)
        vhost.policy_engine.apply_to_exchange(exchange)
        vhost.attach_keys(exchange)


def _apply_queue(vhost: VHost[QueueLike], definition: d.QueueDeclared | d.QueueDeleted) -> None:
    exchange_name = keys_are_of(definition.name)
    if exchange_name is not None:
        if isinstance(definition, d.QueueDeleted):
            vhost.forget_keys(exchange_name)
        else:
            vhost.register_keys(exchange_name, d.to_spec(definition))
        return
    exchange_name = delaying_exchange(definition.name)
    if exchange_name is not None:
        if isinstance(definition, d.QueueDeleted):
            vhost.delay_queues.pop(exchange_name, None)
        elif exchange_name not in vhost.delay_queues:
            vhost.register_delay_queue(exchange_name, d.to_spec(definition))
        return
    existing = vhost.queues.get(definition.name)
    if isinstance(definition, d.QueueDeleted):
        if existing is not None:
            del vhost.queues[definition.name]
            vhost.policy_engine.forget_queue(definition.name)
            vhost.routes.detach_queue(definition.name)
    elif existing is None:
        vhost.register_queue(d.to_spec(definition))


def _apply_policy(vhost: VHost[QueueLike], definition: d.PolicySet | d.PolicyCleared) -> None:
    policy_engine = vhost.policy_engine
    if isinstance(definition, d.PolicyCleared):
        policy_engine.policies.remove(definition.name, is_operator=definition.is_operator)
    else:
        try:
            policy_engine.policies.put(d.to_policy(definition))
        except InvalidPolicy as error:
            raise d.BadDefinition(f"policy {definition.name!r}: {error}") from error
    policy_engine.enforce()


def _apply_binding(vhost: VHost[QueueLike], definition: d.Bound | d.Unbound) -> None:
    binding = d.to_binding(definition)
    existing = vhost.bindings.find(binding.identity)
    if isinstance(definition, d.Unbound):
        if existing is not None:
            vhost.routes.remove([existing])
        return
    ends = vhost.queues if binding.kind == "queue" else vhost.exchanges
    if binding.source in vhost.exchanges and binding.destination in ends:
        vhost.routes.add(binding)
