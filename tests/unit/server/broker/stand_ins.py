"""What stands in for the queue, the journal and the channel where the vhost alone is tested."""

from __future__ import annotations

from dataclasses import dataclass, field

from vouchmq.protocol.fields import Field, Table, longstr
from vouchmq.server.broker.broker import Broker
from vouchmq.server.broker.counters import QueueCounters
from vouchmq.server.broker.queues.spec import QueueSpec
from vouchmq.server.broker.vhost import VHost


class QueueStandIn:
    """A queue of which only the counts matter; it remembers that it was deleted."""

    def __init__(self, spec: QueueSpec) -> None:
        self.spec = spec
        self.ready_count = 0
        self.consumer_count = 0
        self.is_deleted = self.is_paused = False
        self.used_count = 0
        self.counters = QueueCounters()

    def pause(self, *, is_paused: bool) -> None:
        self.is_paused = is_paused

    def __repr__(self) -> str:
        return f"<queue {self.spec.name}>"

    @property
    def window(self) -> None:
        return None

    @property
    def store_ids(self) -> list[int]:
        return [self.spec.queue_id] if self.spec.queue_id else []

    def used(self) -> None:
        self.used_count += 1

    def purge_some(self, most: int) -> int:
        some = min(most, max(self.ready_count - most, 0))
        self.ready_count -= some
        return some

    def purge(self) -> int:
        count, self.ready_count = self.ready_count, 0
        return count

    def deleted(self) -> None:
        self.is_deleted = True


@dataclass
class JournalStandIn:
    """Keeps what was logged; the LSN of an entry is its place from 1 on."""

    records: list[bytes] = field(default_factory=list)
    dropped: list[int] = field(default_factory=list)
    lsn: int = 0

    def define(self, record: bytes) -> int:
        self.records.append(record)
        self.lsn += 1
        return self.lsn

    def drop_queue(self, queue_id: int) -> int:
        self.dropped.append(queue_id)
        self.lsn += 1
        return self.lsn


class Names:
    """Random names that are not random."""

    def __init__(self) -> None:
        self._count = 0

    def __call__(self) -> str:
        self._count += 1
        return f"{self._count:022}"


def new_broker(
    journal: JournalStandIn | None = None, *, relaxed_redeclare: bool = False
) -> Broker[QueueStandIn]:
    journal = journal or JournalStandIn()
    return Broker(
        new_queue=QueueStandIn,
        define=journal.define,
        drop_queue=journal.drop_queue,
        random_name=Names(),
        relaxed_redeclare=relaxed_redeclare,
    )


def new_vhost(journal: JournalStandIn | None = None) -> VHost[QueueStandIn]:
    return new_broker(journal).create_vhost("/")[0]


def queue(
    vhost: VHost[QueueStandIn],
    name: str,
    *,
    durable: bool = False,
    owner: object | None = None,
    auto_delete: bool = False,
    arguments: Table | None = None,
) -> QueueStandIn:
    """Declare a queue, exclusive when it has an owner."""
    return vhost.declare_queue(
        name,
        durable=durable,
        exclusive_owner=owner,
        auto_delete=auto_delete,
        arguments=arguments or {},
    )[0]


def exchange(
    vhost: VHost[QueueStandIn],
    name: str,
    exchange_type: str = "direct",
    *,
    durable: bool = False,
    auto_delete: bool = False,
    internal: bool = False,
    alternate: str | None = None,
    arguments: Table | None = None,
) -> int:
    """Declare an exchange."""
    table = dict(arguments or {})
    if alternate is not None:
        table["alternate-exchange"] = longstr(alternate)
    return vhost.declare_exchange(
        name,
        exchange_type,
        durable=durable,
        auto_delete=auto_delete,
        internal=internal,
        arguments=table,
    )


def routed(
    vhost: VHost[QueueStandIn], exchange_name: str, *keys: str, headers: Table | None = None
) -> list[str]:
    """Names of the queues that a publish reaches, sorted; fails when one comes twice."""
    queues = vhost.route(vhost.exchanges[exchange_name], keys, headers)
    names = sorted(each.spec.name for each in queues)
    assert len(names) == len(set(names))
    return names


def integer(value: int, kind: str = "I") -> Field:
    return Field(kind, value)
