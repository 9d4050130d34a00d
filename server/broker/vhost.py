"""A virtual host: its exchanges, queues and bindings, and where a message goes.

    declare, bind, delete ──▶ registries ──▶ definition record ──▶ LSN that the -ok waits for
    route(exchange, keys, headers) ──▶ the set of queues

Every change of a durable thing is logged before the method returns, and the LSN of the record is
the answer: 0 when nothing durable is concerned. What follows from a change (an auto-delete
exchange that loses its last binding) is logged as a record of its own, so that replay never has
to deduce anything from transient things that are no longer there.
Must not know users and permissions, channels, messages or the journal's format.

Spec: EXCH, QUEUE, DURABLE-01, DURABLE-02
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Generic, TypeVar

import structlog

from vouchmq.protocol.errors import NotFound, PreconditionFailed
from vouchmq.protocol.fields import Table, longstr
from vouchmq.server.broker import definitions as d
from vouchmq.server.broker.counters import (
    ChannelCounters,
    ChurnCounters,
    ConnectionCounters,
    DeletedCounters,
)
from vouchmq.server.broker.delays import delay_queue_name
from vouchmq.server.broker.events import EventBus
from vouchmq.server.broker.exchanges.bindings import Binding, DestinationKind
from vouchmq.server.broker.exchanges.exchange import (
    Exchange,
    ExchangeKeys,
    check_type,
    key_scope_name,
)
from vouchmq.server.broker.exchanges.routes import Later, Routes, RouteWalk
from vouchmq.server.broker.features.dedup import ExchangeDedup, KeyWindow
from vouchmq.server.broker.features.options import (
    CLASSIC,
    X_QUEUE_TYPE,
    check_arguments,
    dead_letter_exchange,
    levels_of,
    queue_type_of,
)
from vouchmq.server.broker.names import (
    SERVER_NAMED_PREFIX,
    check_exchange_name,
    exchange_text,
    queue_text,
)
from vouchmq.server.broker.policy.engine import PolicyEngine, keep_features, take_all
from vouchmq.server.broker.policy.policies import PolicyMatch
from vouchmq.server.broker.queues.spec import QueueLike, QueueSpec
from vouchmq.server.broker.queues.types import check_properties, require_same_queue

# Covariant so that a module which needs only the protocol accepts a vhost of the real queues.
Q_co = TypeVar("Q_co", bound=QueueLike, covariant=True)

log = structlog.get_logger()


def permit_all(target: str) -> None:
    """The permission check where no user is at work."""


def remember_nothing(spec: QueueSpec) -> None:
    """Stand-in where no message passes an exchange: none remembers keys."""


def ignore_change(ready_count: int, lsn: int) -> None:
    """Stand-in for the answer to a deletion that nobody asked for."""


class VHost(Generic[Q_co]):
    """One virtual host.

    `generation` grows with every change that may alter a route or a verdict that does not hang on
    permissions; whoever caches routes compares it. `defined_lsn` is the highest LSN logged here.
    The limits are None while there is no limit; 0 allows none; that of connections is negative
    then. `default_queue_type` is "" for classic. Once it `is_deleted` it logs nothing any more:
    its own record says that everything in it is gone.

    Spec: EXCH-14, QUEUE-09, VHOST-03, VHOST-04
    """

    def __init__(
        self,
        name: str,
        *,
        new_queue: Callable[[QueueSpec], Q_co],
        define: Callable[[bytes], int],
        drop_queue: Callable[[int], int],
        next_queue_id: Callable[[int], int],
        random_name: Callable[[], str],
        relaxed_redeclare: bool = False,
        regulate: Callable[[Q_co, PolicyMatch], None] = keep_features,
        new_window: Callable[[QueueSpec], KeyWindow | None] = remember_nothing,
        later: Later | None = None,
        in_slices: Callable[[Iterator[None]], None] = take_all,
        events: EventBus | None = None,
    ) -> None:
        """Make the vhost with its predeclared exchanges, logging nothing.

        `define` logs a record and `drop_queue` that a stored queue's messages are gone; both give
        the LSN. `random_name` gives 22 base64url characters that nobody can guess. `regulate`
        gives a queue what it is to have under its policies. `new_window` makes the keys of a
        de-duplicating exchange, given what the journal knows them by. `later` calls what it is
        given in the next turn, `in_slices` takes steps, the first of them now and the others in
        later turns. `events` is told what comes and goes.

        Spec: EXCH-02, QUEUE-02, QUEUE-25
        """
        self.name = name
        self.events = EventBus() if events is None else events
        self.routes = Routes(name, later)
        self.exchanges = self.routes.exchanges
        self.bindings = self.routes.bindings
        self.queues: dict[str, Q_co] = {}
        # Of exchanges, by their names: the journal may say such a queue before its exchange.
        self.delay_queues: dict[str, Q_co] = {}
        self.generation = 0
        self.deleted_counters = DeletedCounters()
        self.churn = ChurnCounters()
        self.closed_channels = ChannelCounters()
        self.closed_connections = ConnectionCounters()
        self.defined_lsn = 0
        self.exchange_limit: int | None = None
        self.queue_limit: int | None = None
        self.connection_limit = d.UNLIMITED
        self.default_queue_type = ""
        self.description = ""
        self.tags: list[str] = []
        self.is_protected = self.is_deleted = False
        self._new_queue = new_queue
        self._define, self._drop_queue = define, drop_queue
        self._next_queue_id = next_queue_id
        self._random_name = random_name
        self._relaxed_redeclare = relaxed_redeclare
        self._new_window = new_window
        # What the journal knows the keys of exchanges by, also before it says the exchange itself.
        self._key_specs: dict[str, QueueSpec] = {}
        self._owned: dict[object, dict[str, None]] = {}
        self.policy_engine: PolicyEngine[Q_co] = PolicyEngine(
            self, regulate, self._log, self._add_delay_queue, in_slices
        )

    @property
    def topology(self) -> tuple[int, int]:
        """The same as long as a message's way may be interrupted and gone on with."""
        return self.generation, self.routes.removals

    def settings(self) -> d.VHostSet:
        """What makes it again as it is, without anything in it (VHOST-03, VHOST-04)."""
        queues, exchanges = self.queue_limit, self.exchange_limit
        return d.VHostSet(
            self.name,
            self.description,
            self.tags,
            self.default_queue_type,
            self.is_protected,
            self.connection_limit,
            d.UNLIMITED if queues is None else queues,
            d.UNLIMITED if exchanges is None else exchanges,
        )

    def adopt(self, settings: d.VHostSet) -> None:
        """Have these settings from now on, logging nothing."""
        self.description, self.tags = settings.description, settings.tags
        self.default_queue_type = settings.default_queue_type
        self.is_protected = settings.is_protected
        self.connection_limit = max(d.UNLIMITED, settings.max_connections)
        self.queue_limit = settings.max_queues if settings.max_queues >= 0 else None
        self.exchange_limit = settings.max_exchanges if settings.max_exchanges >= 0 else None

    def dismantle(self) -> Iterator[None]:
        """Let everything in a deleted vhost go, a queue or an exchange at each step (VHOST-05)."""
        for queue in list(self.queues.values()):
            self.end_queue(queue)
            yield
        for exchange in list(self.exchanges.values()):
            if self.exchanges.get(exchange.name) is exchange:
                self._unregister_exchange(exchange)
                yield

    def every_queue(self) -> Iterator[Q_co]:
        """All queues, those of delaying exchanges included."""
        yield from self.queues.values()
        yield from self.delay_queues.values()

    # Exchanges

    def find_exchange(self, name: str) -> Exchange:
        """The exchange of that name.

        Raises:
            NotFound: 404, there is none.

        Spec: EXCH-07
        """
        exchange = self.exchanges.get(name)
        if exchange is None:
            raise NotFound(f"no {exchange_text(name, self.name)}")
        return exchange

    def declare_exchange(
        self,
        name: str,
        exchange_type: str,
        *,
        durable: bool,
        auto_delete: bool,
        internal: bool,
        arguments: Table,
        permit_target: Callable[[str], None] = permit_all,
    ) -> int:
        """Make the exchange, or compare with the one there is.

        `permit_target` is asked about the alternate exchange before a new one is made.

        Raises:
            PreconditionFailed: 406, unknown type, inequivalent or bad arguments, limit reached.
            AccessRefused: 403, reserved name, or what `permit_target` raises.

        Spec: EXCH-01, EXCH-04, EXCH-08, EXCH-09, EXCH-14
        """
        check_type(exchange_type)
        declared = Exchange(
            name, self.name, exchange_type, durable, auto_delete, internal, arguments
        )
        existing = self.exchanges.get(name)
        if existing is not None:
            existing.require_equivalent(declared)
            return self.defined_lsn if existing.durable else 0
        check_exchange_name(name)
        declared.require_valid()
        if declared.alternate is not None:
            permit_target(declared.alternate)
        if self.exchange_limit is not None and len(self.exchanges) >= self.exchange_limit:
            raise PreconditionFailed(
                f"cannot declare {declared.text}: exchange limit of "
                f"{self.exchange_limit} is reached"
            )
        self.exchanges[name] = declared
        self.policy_engine.apply_to_exchange(declared)
        self.generation += 1
        if declared.delays:
            self._add_delay_queue(declared)
        if declared.dedup_arguments is not None:
            spec = self._spec_of_exchange(key_scope_name(name), declared, declared.dedup_arguments)
            self.register_keys(name, spec)
            if spec.stored:
                self._log(d.of_queue(spec))
        self.events.tell("exchange.created", vhost=self.name, name=name, type=exchange_type)
        log.debug("exchange.declared", vhost=self.name, exchange=name, type=exchange_type)
        return self._log(d.of_exchange(declared)) if durable else 0

    def delete_exchange(self, name: str, *, if_unused: bool = False) -> int:
        """Delete the exchange, its bindings, and what auto-deletes by that; missing is fine.

        Raises:
            PreconditionFailed: 406, `if_unused` and it is the source of a binding.

        Spec: EXCH-11, EXCH-12, EXCH-13
        """
        exchange = self.exchanges.get(name)
        if exchange is None:
            return self.defined_lsn
        if if_unused and self.bindings.is_source(name):
            raise PreconditionFailed(f"{exchange.text} in use")
        return max(
            self._unregister_exchange(exchange),
            self._detached(self.routes.detach_exchange(exchange)),
        )

    def _add_delay_queue(self, exchange: Exchange) -> None:
        """Make the queue in which an exchange's delayed messages wait (DELAY-17)."""
        spec = self._spec_of_exchange(delay_queue_name(exchange.name), exchange, {})
        self.register_delay_queue(exchange.name, spec)
        if spec.stored:
            self._log(d.of_queue(spec))

    def register_delay_queue(self, exchange_name: str, spec: QueueSpec) -> None:
        """Messages that an exchange of this name delays wait here, logging nothing."""
        self.delay_queues[exchange_name] = self._new_queue(spec)
        self.generation += 1

    def end_delay_queue(self, exchange_name: str) -> int:
        """Delete the queue of an exchange's delayed messages, if it has one."""
        queue = self.delay_queues.pop(exchange_name, None)
        if queue is None:
            return self.defined_lsn
        self.deleted_counters.add(CLASSIC, queue.counters)
        self.generation += 1
        lsn = self._log_queue_gone(queue)
        queue.deleted()
        return lsn

    def _spec_of_exchange(self, name: str, exchange: Exchange, arguments: Table) -> QueueSpec:
        """What the journal knows something by that an exchange keeps there."""
        durable = exchange.durable
        queue_id = self._next_queue_id(1) if durable else 0
        return QueueSpec(name, self.name, queue_id, durable, None, False, arguments)

    def register_keys(self, exchange_name: str, spec: QueueSpec) -> None:
        """An exchange of this name remembers keys (DUP-10), logging nothing."""
        self._key_specs[exchange_name] = spec
        exchange = self.exchanges.get(exchange_name)
        if exchange is not None:
            self.attach_keys(exchange)

    def attach_keys(self, exchange: Exchange) -> None:
        """Have an exchange remember keys, if the journal says that it does."""
        spec = self._key_specs.get(exchange.name)
        window = self._new_window(spec) if spec is not None and exchange.keys is None else None
        if spec is not None and window is not None:
            exchange.keys = ExchangeKeys(spec, window)

    def forget_keys(self, exchange_name: str) -> QueueSpec | None:
        """An exchange of this name remembers nothing; gives what the journal knew its keys by."""
        exchange = self.exchanges.get(exchange_name)
        if exchange is not None:
            exchange.keys = None
        return self._key_specs.pop(exchange_name, None)

    def key_specs(self) -> Iterable[QueueSpec]:
        """What the journal knows the keys of exchanges by."""
        return self._key_specs.values()

    # Bindings

    def bind(
        self,
        source: str,
        kind: DestinationKind,
        destination: str,
        routing_key: str,
        arguments: Table,
        owner: object,
    ) -> int:
        """Bind a queue or an exchange to the exchange `source`; binding twice is a no-op.

        Raises:
            NotFound: 404, an end is missing; the source is named when both are.
            PreconditionFailed: 406, the exchange type has no such binding.
            ResourceLocked: 405, the queue is exclusive to an owner other than `owner`.

        Spec: EXCH-20, EXCH-21, EXCH-41, EXCH-52, QUEUE-30
        """
        # Both missing: RabbitMQ names the source (measured).
        exchange = self.find_exchange(source)
        if kind == "exchange":
            self.find_exchange(destination)
        elif destination not in self.queues:
            raise NotFound(f"no {queue_text(destination, self.name)}")
        binding = Binding(source, kind, destination, routing_key, arguments)
        exchange.router.validate(binding)
        if kind == "queue":
            self.find_queue(destination, owner)
        durable = self.is_durable(binding)
        if not self.routes.add(binding):
            return self.defined_lsn if durable else 0
        self.generation += 1
        self._tell_binding("binding.created", binding)
        return self._log(d.of_binding(self.name, binding)) if durable else 0

    def unbind(
        self,
        source: str,
        kind: DestinationKind,
        destination: str,
        routing_key: str,
        arguments: Table,
        owner: object,
    ) -> int:
        """Remove exactly this binding, and what auto-deletes by that; missing is fine.

        Raises:
            ResourceLocked: 405, it exists and its queue is exclusive to another owner.

        Spec: EXCH-11, EXCH-20, EXCH-21
        """
        sought = Binding(source, kind, destination, routing_key, arguments)
        binding = self.bindings.find(sought.identity)
        if binding is None:
            return self.defined_lsn
        if kind == "queue":
            self.find_queue(destination, owner)
        lsn = 0
        if self.is_durable(binding):
            lsn = self._log(d.of_unbound(self.name, binding))
        self._tell_binding("binding.deleted", binding)
        return max(lsn, self._detached(self.routes.remove([binding])))

    def _tell_binding(self, event: str, binding: Binding) -> None:
        self.events.tell(
            event,
            vhost=self.name,
            source=binding.source,
            destination=binding.destination,
            destination_type=binding.kind,
            routing_key=binding.routing_key,
        )

    # Queues

    def server_named(self) -> str:
        """A fresh name for a queue that was declared without one (QUEUE-02)."""
        return SERVER_NAMED_PREFIX + self._random_name()

    def find_queue(self, name: str, owner: object) -> Q_co:
        """The queue of that name, for a connection `owner` that means to use it.

        Raises:
            NotFound: 404, there is none.
            ResourceLocked: 405, it is exclusive to another connection.

        Spec: QUEUE-30
        """
        queue = self.queues.get(name)
        if queue is None:
            raise NotFound(f"no {queue_text(name, self.name)}")
        queue.spec.require_access(owner)
        return queue

    def typed(
        self, arguments: Table, *, durable: bool, exclusive: bool, auto_delete: bool
    ) -> Table:
        """The arguments of a client's declaration, with the default type where it takes effect.

        Spec: QUORUM-07
        """
        is_compatible = durable and not exclusive and not auto_delete
        if not self.default_queue_type or X_QUEUE_TYPE in arguments or not is_compatible:
            return arguments
        return {**arguments, X_QUEUE_TYPE: longstr(self.default_queue_type)}

    def declare_queue(
        self,
        name: str,
        *,
        durable: bool,
        exclusive_owner: object | None,
        auto_delete: bool,
        arguments: Table,
        permit_target: Callable[[str], None] = permit_all,
    ) -> tuple[Q_co, int]:
        """Make the queue, or compare with the one there is.

        The name is taken as it is: reserved prefixes and permissions are the caller's.
        `permit_target` is asked about the dead letter exchange before a new queue is made.

        Raises:
            ResourceLocked: 405, its exclusive owner differs.
            PreconditionFailed: 406, inequivalent or bad arguments, limit reached.

        Spec: QUEUE-06, QUEUE-09, QUEUE-10, QUEUE-20, QUEUE-21
        """
        durable = durable and exclusive_owner is None
        self.churn.declared += 1
        existing = self.queues.get(name)
        if existing is not None:
            flags = (durable, exclusive_owner, auto_delete)
            relaxed = self._relaxed_redeclare
            require_same_queue(existing.spec, *flags, arguments, relaxed=relaxed)
            return existing, self.defined_lsn if existing.spec.stored else 0
        target = dead_letter_exchange(queue_text(name, self.name), arguments)
        if target is not None:
            permit_target(target)
        check_arguments(queue_text(name, self.name), arguments)
        check_properties(
            queue_text(name, self.name),
            arguments,
            durable=durable,
            exclusive=exclusive_owner is not None,
            auto_delete=auto_delete,
        )
        if self.queue_limit is not None and len(self.queues) >= self.queue_limit:
            raise PreconditionFailed(
                f"cannot declare queue '{name}': queue limit in vhost '{self.name}' "
                f"({self.queue_limit}) is reached"
            )
        queue_id = self._next_queue_id(levels_of(arguments)[0] + 1) if durable else 0
        spec = QueueSpec(
            name, self.name, queue_id, durable, exclusive_owner, auto_delete, arguments
        )
        queue = self.register_queue(spec)
        self.churn.created += 1
        self.events.tell("queue.created", vhost=self.name, name=name, durable=durable)
        log.debug("queue.declared", vhost=self.name, queue=name)
        return queue, self._log(d.of_queue(spec)) if spec.stored else 0

    def delete_queue(
        self,
        name: str,
        owner: object,
        *,
        if_unused: bool = False,
        if_empty: bool = False,
        before_cancel: Callable[[int, int], None] = ignore_change,
    ) -> tuple[int, int]:
        """Delete the queue; gives its number of ready messages and the LSN; missing is fine.

        `before_cancel` is told both before the queue's consumers are, for delete-ok goes first.

        Raises:
            ResourceLocked: 405, exclusive to another connection.
            PreconditionFailed: 406, `if_unused` with consumers or `if_empty` with ready messages.

        Spec: QUEUE-61, QUEUE-62
        """
        if name not in self.queues:
            before_cancel(0, self.defined_lsn)
            return 0, self.defined_lsn
        queue = self.find_queue(name, owner)
        if if_unused and queue.consumer_count:
            raise PreconditionFailed(f"{queue.spec.text} in use")
        if if_empty and queue.ready_count:
            raise PreconditionFailed(f"{queue.spec.text} not empty")
        ready_count, lsn = queue.ready_count, self._remove_queue(queue)
        before_cancel(ready_count, lsn)
        queue.deleted()
        return ready_count, lsn

    def pause_queue(self, queue: QueueLike, *, is_paused: bool) -> int:
        """Have a queue hand out nothing, or go on; the LSN, 0 when there is nothing to store.

        Spec: HTTP-36
        """
        spec = queue.spec
        if queue.is_paused is not is_paused:
            queue.pause(is_paused=is_paused)
            self.events.tell(
                "queue.paused" if is_paused else "queue.resumed", vhost=self.name, name=spec.name
            )
            if spec.stored:
                return self._log(d.QueuePaused(self.name, spec.name, is_paused))
        return self.defined_lsn if spec.stored else 0

    def consumer_gone(self, queue: QueueLike) -> None:
        """The last consumer of `queue` has left: an auto-delete queue goes with it.

        Spec: QUEUE-08
        """
        if queue.spec.auto_delete and not queue.consumer_count:
            self.end_queue(queue)

    def end_queue(self, queue: QueueLike) -> None:
        """Delete a queue that nobody asked to delete, if it is there still."""
        if self.queues.get(queue.spec.name) is queue:
            self._remove_queue(queue)
            queue.deleted()

    def owner_gone(self, owner: object, is_over: Callable[[], bool] = lambda: False) -> bool:
        """A connection ends: its exclusive queues go while there is time; False: there are more.

        Spec: QUEUE-07, CONN-53, LIMIT-23
        """
        for name in list(self._owned.get(owner, ())):
            queue = self.queues[name]
            self._remove_queue(queue)
            queue.deleted()
            if is_over():
                return False
        self._owned.pop(owner, None)
        return True

    # Routing

    def route(
        self,
        exchange: Exchange,
        keys: Sequence[str],
        headers: Table | None,
        passage: ExchangeDedup | None = None,
    ) -> tuple[Q_co, ...]:
        """The queues that get a message published to `exchange`, each once.

        `keys` are the routing key and those of CC and BCC. With a `passage` the message is looked
        at by de-duplicating exchanges on its way.

        Spec: EXCH-24, EXCH-30, EXCH-35, EXCH-60 … EXCH-62
        """
        if passage is None:
            return self.walk(exchange, keys, headers).end()

        def stops(at: Exchange) -> bool:
            window = at.window
            return window is not None and passage.stops_at(window)

        return self.routes.walk(
            exchange, keys, headers, self.queues, self.delay_queues, stops
        ).end()

    def walk(
        self, exchange: Exchange, keys: Sequence[str], headers: Table | None
    ) -> RouteWalk[Q_co]:
        """The same, for who may not have the time to go the whole way at once (LIMIT-23).

        It ends with the present `generation`.
        """
        return self.routes.walk(exchange, keys, headers, self.queues, self.delay_queues)

    # What the verbs share

    def register_queue(self, spec: QueueSpec) -> Q_co:
        """Make a queue and enter it, logging nothing."""
        queue = self.queues[spec.name] = self._new_queue(spec)
        if spec.exclusive_owner is not None:
            self._owned.setdefault(spec.exclusive_owner, {})[spec.name] = None
        self.policy_engine.apply_to_queue(queue)
        self.generation += 1
        return queue

    def _remove_queue(self, queue: QueueLike) -> int:
        """Take a queue and its bindings out of the vhost and log it; the queue is told later."""
        spec = queue.spec
        self.deleted_counters.add(queue_type_of(spec.arguments), queue.counters)
        self.churn.deleted += 1
        del self.queues[spec.name]
        self.policy_engine.forget_queue(spec.name)
        self._owned.get(spec.exclusive_owner, {}).pop(spec.name, None)
        self.generation += 1
        self.events.tell("queue.deleted", vhost=self.name, name=spec.name)
        log.debug("queue.deleted", vhost=self.name, queue=spec.name)
        lsn = self._log_queue_gone(queue)
        return max(lsn, self._detached(self.routes.detach_queue(spec.name)))

    def _log_queue_gone(self, queue: QueueLike) -> int:
        """Log that a queue and its messages are gone; 0 when it is not stored."""
        spec, lsn = queue.spec, 0
        if spec.stored:
            self._log(d.QueueDeleted(self.name, spec.name, spec.queue_id))
            for store_id in queue.store_ids:
                lsn = self.defined_lsn = self._drop_queue(store_id)
        return lsn

    def _unregister_exchange(self, exchange: Exchange) -> int:
        del self.exchanges[exchange.name]
        self.deleted_counters.exchanges.add(exchange.counters)
        self.generation += 1
        self.end_delay_queue(exchange.name)
        spec = self.forget_keys(exchange.name)
        if spec is not None and spec.stored:
            self._log(d.QueueDeleted(self.name, spec.name, spec.queue_id))
            self.defined_lsn = self._drop_queue(spec.queue_id)
        self.events.tell("exchange.deleted", vhost=self.name, name=exchange.name)
        log.debug("exchange.deleted", vhost=self.name, exchange=exchange.name)
        if not exchange.durable:
            return 0
        return self._log(d.ExchangeDeleted(self.name, exchange.name))

    def _detached(self, unbound: list[Exchange]) -> int:
        """Bindings are gone, and so are the auto-delete exchanges that lost their last by that.

        Spec: EXCH-11, EXCH-13
        """
        lsn = 0
        self.generation += 1
        while unbound:
            exchange = unbound.pop()
            if exchange.auto_delete:
                lsn = max(lsn, self._unregister_exchange(exchange))
                unbound += self.routes.detach_exchange(exchange)
        return lsn

    def is_durable(self, binding: Binding) -> bool:
        """Whether both ends survive a restart (EXCH-23)."""
        if not self.exchanges[binding.source].durable:
            return False
        if binding.kind == "queue":
            return self.queues[binding.destination].spec.stored
        return self.exchanges[binding.destination].durable

    def _log(self, definition: d.Definition) -> int:
        if self.is_deleted:
            return self.defined_lsn
        self.defined_lsn = self._define(d.encode(definition))
        return self.defined_lsn
