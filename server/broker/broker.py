"""The registry of virtual hosts, and everything durable in and beside them as one list of records.

Must not know what a user may do, connections, or how the journal keeps the records.

Spec: VHOST-01, VHOST-05, DURABLE-01
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Generic

from vouchmq.server.broker import definitions as d
from vouchmq.server.broker.accounts import Accounts
from vouchmq.server.broker.counters import ChurnCounters, DeletedCounters
from vouchmq.server.broker.data_directory import DataDirectory
from vouchmq.server.broker.definitions_replay import apply_definition, definitions_of
from vouchmq.server.broker.events import EventBus
from vouchmq.server.broker.exchanges.routes import Later
from vouchmq.server.broker.features.dedup import KeyWindow
from vouchmq.server.broker.policy.engine import keep_features, take_all
from vouchmq.server.broker.policy.policies import PolicyMatch
from vouchmq.server.broker.queues.spec import QueueSpec
from vouchmq.server.broker.vhost import Q_co, VHost, remember_nothing


class Broker(Generic[Q_co]):
    """All virtual hosts of this process."""

    def __init__(
        self,
        *,
        new_queue: Callable[[QueueSpec], Q_co],
        define: Callable[[bytes], int],
        drop_queue: Callable[[int], int],
        random_name: Callable[[], str],
        relaxed_redeclare: bool = False,
        regulate: Callable[[Q_co, PolicyMatch], None] = keep_features,
        new_window: Callable[[QueueSpec], KeyWindow | None] = remember_nothing,
        vhosts: dict[str, VHost[Q_co]] | None = None,
        later: Later | None = None,
        in_slices: Callable[[Iterator[None]], None] = take_all,
        events: EventBus | None = None,
    ) -> None:
        """Make a broker without vhosts; the arguments are those of `VHost`.

        Virtual hosts are entered in `vhosts`, if given: an empty dictionary that others read.

        `new_queue` is called during `restore` too, also for queues that a later record deletes,
        so it must do nothing but make the object.
        """
        self.vhosts: dict[str, VHost[Q_co]] = {} if vhosts is None else vhosts
        self.data_directory = DataDirectory()
        self.accounts = Accounts(define)
        self.deleted_counters = DeletedCounters()  # of virtual hosts that are gone
        self.churn = ChurnCounters()  # the same
        self._new_queue = new_queue
        self._define = define
        self._drop_queue = drop_queue
        self._random_name = random_name
        self._relaxed_redeclare = relaxed_redeclare
        self._regulate = regulate
        self._new_window = new_window
        self._later = later
        self._in_slices = in_slices
        self.events = EventBus() if events is None else events
        # 0 stands for "not stored", so ids begin at 1.
        self._free_queue_id = 1

    def create_vhost(self, name: str) -> tuple[VHost[Q_co], int]:
        """The vhost of that name, made when there is none, and the LSN an answer waits for.

        Spec: VHOST-02
        """
        vhost = self.vhosts.get(name)
        if vhost is None:
            return self.put_vhost(d.VHostSet(name))
        return vhost, vhost.defined_lsn

    def put_vhost(self, settings: d.VHostSet) -> tuple[VHost[Q_co], int]:
        """The vhost with these settings, made when there is none, and the LSN of the record.

        Spec: VHOST-02, VHOST-03, VHOST-04
        """
        vhost = self.vhosts.get(settings.vhost)
        if vhost is None or vhost.settings() != settings:
            if vhost is None:
                vhost = self._add_vhost(settings.vhost)
                self.events.tell("vhost.created", name=settings.vhost)
            vhost.adopt(settings)
            vhost.defined_lsn = self._define(d.encode(settings))
        return vhost, vhost.defined_lsn

    def delete_vhost(self, name: str) -> tuple[VHost[Q_co], int] | None:
        """Take a vhost out: nobody finds it any more; None when there is none.

        What is in it goes with `VHost.dismantle`, once nobody is connected to it. The one record
        says that all of it is gone.

        Returns:
            the vhost, and the LSN of its record

        Spec: VHOST-05
        """
        vhost = self.vhosts.pop(name, None)
        if vhost is None:
            return None
        vhost.is_deleted = True
        vhost.generation += 1
        # Queues that go later are counted there, too.
        self.deleted_counters.add_all(vhost.deleted_counters)
        vhost.deleted_counters = self.deleted_counters
        self.churn.add(vhost.churn)
        vhost.churn = self.churn
        self.accounts.forget_vhost(name)
        self.events.tell("vhost.deleted", name=name)
        self.accounts.defined_lsn = vhost.defined_lsn = self._define(d.encode(d.VHostDeleted(name)))
        return vhost, vhost.defined_lsn

    def definitions(self) -> list[bytes]:
        """The records from which `restore` makes everything durable again.

        Spec: DURABLE-01
        """
        records = [d.encode(d.QueueIdsReserved(self._free_queue_id))]
        records += self.data_directory.records()
        records += self.accounts.records()
        for vhost in self.vhosts.values():
            records += definitions_of(vhost)
        return records

    def restore(self, records: Iterable[bytes]) -> None:
        """Do again what the records say, in order: a snapshot and the changes since.

        Raises:
            BadDefinition: a record that no broker of this version wrote.
        """
        for record in records:
            definition = d.decode(record)
            if isinstance(definition, d.QueueIdsReserved):
                self._reserve_queue_ids(definition.next_queue_id)
            elif isinstance(definition, d.DataDirectoryStarted):
                self.data_directory.restore(definition)
            elif isinstance(definition, d.VHostSet):
                self._known_vhost(definition.vhost).adopt(definition)
            elif isinstance(definition, d.VHostDeleted):
                self.vhosts.pop(definition.vhost, None)
                self.accounts.forget_vhost(definition.vhost)
            elif isinstance(definition, d.AccountDefinition):
                self.accounts.apply(definition)
            else:
                # Where damage took the record of a vhost, it exists all the same.
                vhost = self._known_vhost(definition.vhost)
                if isinstance(definition, d.QueueDeclared | d.QueueDeleted):
                    self._reserve_queue_ids(next_id_after(definition))
                apply_definition(vhost, definition)

    def stored_queues(self) -> dict[int, Q_co]:
        """The queues that the journal keeps, by their ids; see `keeper_of` for those of levels."""
        return {
            queue.spec.queue_id: queue
            for vhost in self.vhosts.values()
            for queue in vhost.every_queue()
            if queue.spec.stored
        }

    def stored_windows(self) -> dict[int, KeyWindow]:
        """The keys of exchanges that the journal keeps, by the ids under which it does."""
        return {
            exchange.keys.spec.queue_id: exchange.keys.window
            for vhost in self.vhosts.values()
            for exchange in vhost.exchanges.values()
            if exchange.keys is not None and exchange.keys.spec.stored
        }

    def _known_vhost(self, name: str) -> VHost[Q_co]:
        return self.vhosts.get(name) or self._add_vhost(name)

    def _add_vhost(self, name: str) -> VHost[Q_co]:
        vhost = self.vhosts[name] = VHost(
            name,
            new_queue=self._new_queue,
            define=self._define,
            drop_queue=self._drop_queue,
            next_queue_id=self._next_queue_id,
            random_name=self._random_name,
            relaxed_redeclare=self._relaxed_redeclare,
            regulate=self._regulate,
            new_window=self._new_window,
            later=self._later,
            in_slices=self._in_slices,
            events=self.events,
        )
        return vhost

    def _next_queue_id(self, count: int) -> int:
        queue_id = self._free_queue_id
        self._free_queue_id += count
        return queue_id

    def _reserve_queue_ids(self, next_queue_id: int) -> None:
        self._free_queue_id = max(self._free_queue_id, next_queue_id)


def keeper_of(queues: Mapping[int, Q_co], ids: Sequence[int], store_id: int) -> Q_co | None:
    """The queue that keeps copies under an id, which may be that of one of its levels.

    `ids` are those of the queues, ascending. A queue of 256 levels takes no more than any.
    """
    at = bisect_right(ids, store_id) - 1
    queue = queues[ids[at]] if at >= 0 else None
    return queue if queue is not None and store_id in queue.spec.store_ids else None


def next_id_after(definition: d.QueueDeclared | d.QueueDeleted) -> int:
    """The first number that is not the queue's; with its declaration all of its own are known."""
    if isinstance(definition, d.QueueDeclared):
        return d.to_spec(definition).store_ids.stop
    return definition.queue_id + 1
