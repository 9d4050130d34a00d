"""The names that the definitions of a data directory give to what is in it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from vouchmq.protocol.fields import encode_table
from vouchmq.protocol.text import shown
from vouchmq.server.broker import definitions as d

if TYPE_CHECKING:
    from collections.abc import Iterable

    from vouchmq.server.broker.definitions import Definition


@dataclass(slots=True)
class Names:
    """What the definitions add up to.

    `owners` has the queue of each number under which the journal keeps copies: a queue has one for
    each of its priority levels.
    """

    vhosts: list[str] = field(default_factory=list)
    exchanges: dict[tuple[str, str], str] = field(default_factory=dict)
    queues: dict[int, tuple[str, str]] = field(default_factory=dict)
    owners: dict[int, int] = field(default_factory=dict)
    bindings: set[tuple[str, str, str, str, str, bytes]] = field(default_factory=set)
    unreadable: int = 0

    def owner(self, store_id: int) -> int:
        """The queue that a number of the journal belongs to."""
        return self.owners.get(store_id, store_id)

    def of_queues(self, store_ids: Iterable[int]) -> list[str]:
        """What to call some queues, each once."""
        return list(dict.fromkeys(map(self.of_queue, store_ids)))

    def of_queue(self, store_id: int) -> str:
        """What to call a queue."""
        queue_id = self.owner(store_id)
        vhost, name = self.queues.get(queue_id, ("", ""))
        if not vhost:
            return f"(no queue, id {queue_id})"
        return clean(name) if vhost == "/" else f"{clean(name)} in {clean(vhost)}"

    def add(self, definition: Definition) -> None:
        """Apply one definition; the same twice is as good as once."""
        if isinstance(definition, d.VHostSet):
            if definition.vhost not in self.vhosts:
                self.vhosts.append(definition.vhost)
        elif isinstance(definition, d.VHostDeleted):
            self._forget_vhost(definition.vhost)
        elif isinstance(definition, d.ExchangeDeclared):
            self.exchanges[definition.vhost, definition.name] = definition.type
        elif isinstance(definition, d.ExchangeDeleted):
            self.exchanges.pop((definition.vhost, definition.name), None)
            self._unbind(definition.vhost, "exchange", definition.name)
        elif isinstance(definition, d.QueueDeclared):
            self.queues[definition.queue_id] = (definition.vhost, definition.name)
            for store_id in d.to_spec(definition).store_ids:
                self.owners[store_id] = definition.queue_id
        elif isinstance(definition, d.QueueDeleted):
            self.queues.pop(definition.queue_id, None)
            self._unbind(definition.vhost, "queue", definition.name)
        elif isinstance(definition, d.Bound):
            self.bindings.add(_key(definition))
        elif isinstance(definition, d.Unbound):
            self.bindings.discard(_key(definition))

    def _forget_vhost(self, name: str) -> None:
        self.vhosts = [each for each in self.vhosts if each != name]
        self.exchanges = {key: kind for key, kind in self.exchanges.items() if key[0] != name}
        self.queues = {key: place for key, place in self.queues.items() if place[0] != name}
        self.bindings = {each for each in self.bindings if each[0] != name}

    def _unbind(self, vhost: str, kind: str, name: str) -> None:
        self.bindings = {
            each
            for each in self.bindings
            if not (
                each[0] == vhost
                and ((each[2], each[3]) == (kind, name) or (kind == "exchange" and each[1] == name))
            )
        }


def _key(binding: d.Bound | d.Unbound) -> tuple[str, str, str, str, str, bytes]:
    return (
        binding.vhost,
        binding.source,
        str(binding.kind),
        binding.destination,
        binding.routing_key,
        encode_table(binding.arguments),
    )


def clean(text: str) -> str:
    """Text that may go to any terminal: no control characters, no lone surrogates."""
    text = shown(text)
    return text if text.isprintable() else repr(text)[1:-1]
