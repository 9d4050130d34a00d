"""Keeps the queues and exchanges of a vhost under its policies, whatever changes.

    policy set or cleared ─▶ to whom does another apply now? ─▶ features rebuilt,
    queue or exchange made ─▶ what applies to it?                exchange told

A policy that is set applies at once to what is made from then on. What there is already is gone
through in steps, so that nobody waits for ten thousand queues (LIMIT-23); if policies change again
meanwhile, all of it is gone through once more. Whoever asked is answered when that is done
(`settling`). After a crash in between, the start does all of it.

Must not know what a definition means: queues learn it through a callback, exchanges know it.

Spec: POLICY-02, POLICY-04, DELAY-11, EXCH-63, LIMIT-23
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

import structlog

from vouchmq.server.broker import definitions as d
from vouchmq.server.broker.features.options import queue_type_of
from vouchmq.server.broker.names import DEFAULT_EXCHANGE
from vouchmq.server.broker.policy.policies import NO_POLICY, Policies, Policy, PolicyMatch
from vouchmq.server.broker.queues.spec import QueueLike

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from vouchmq.server.broker.events import EventBus
    from vouchmq.server.broker.exchanges.exchange import Exchange

Q = TypeVar("Q", bound=QueueLike)
Q_co = TypeVar("Q_co", bound=QueueLike, covariant=True)

log = structlog.get_logger(__name__)


class GovernedVHost(Protocol[Q_co]):
    """A virtual host, as far as policies go."""

    name: str
    generation: int
    defined_lsn: int
    exchanges: dict[str, Exchange]
    events: EventBus

    @property
    def queues(self) -> Mapping[str, Q_co]:
        """The queues of the virtual host, by name."""

    @property
    def delay_queues(self) -> Mapping[str, Q_co]:
        """The queues of delayed messages, by the names of their exchanges."""

    def end_delay_queue(self, exchange_name: str, /) -> int:
        """Delete the queue of delayed messages that an exchange needs no more; its LSN."""


def keep_features(queue: object, policy_match: PolicyMatch) -> None:
    """The callback where queues have no features."""


def take_all(steps: Iterator[None]) -> None:
    """Take all steps at once, where nobody waits."""
    deque(steps, maxlen=0)


class PolicyEngine(Generic[Q]):
    """The policies of one vhost, in force.

    Args:
        vhost: whose
        regulate: gives a queue what it is to have under a policy match
        define: logs a definition; its LSN
        delay_queue_for: makes the queue in which an exchange's delayed messages wait
        in_slices: takes steps, at least one of them now, the others in later turns
    """

    __slots__ = (
        *("_define", "_delay_queue_for", "_in_slices", "_is_outdated", "_matches", "_regulate"),
        *("_sweep", "_vhost", "policies"),
    )

    def __init__(
        self,
        vhost: GovernedVHost[Q],
        regulate: Callable[[Q, PolicyMatch], None],
        define: Callable[[d.Definition], int],
        delay_queue_for: Callable[[Exchange], None],
        in_slices: Callable[[Iterator[None]], None] = take_all,
    ) -> None:
        self._vhost = vhost
        self._regulate = regulate
        self._define = define
        self._delay_queue_for = delay_queue_for
        self._in_slices = in_slices
        # What is being gone through, None: nothing; whether policies have changed meanwhile.
        self._sweep: Iterator[None] | None = None
        self._is_outdated = False
        self.policies = Policies()
        # Of the queues that a policy applies to; a vhost without policies keeps nothing here.
        self._matches: dict[str, PolicyMatch] = {}

    # What operators do

    def set_policy(self, policy: Policy) -> int:
        """Create or change a policy or operator policy; it is in force after `settling`.

        Returns:
            the LSN of its record

        Raises:
            InvalidPolicy: with the reason, and nothing has changed

        Spec: POLICY-04, POLICY-07, POLICY-08
        """
        policy.require_valid()
        if self.policies.find(policy.name, is_operator=policy.is_operator) == policy:
            return self._vhost.defined_lsn
        self.policies.put(policy)
        self._vhost.events.tell("policy.set", vhost=self._vhost.name, name=policy.name)
        log.info("policy.set", vhost=self._vhost.name, policy=policy.name)
        lsn = self._define(d.of_policy(self._vhost.name, policy))
        self._changed()
        return max(lsn, self._vhost.defined_lsn)

    def delete_policy(self, name: str, *, is_operator: bool = False) -> int | None:
        """Delete a policy or operator policy; the LSN of the record, None when there was none.

        It is in force nowhere after `settling`.

        Spec: POLICY-04
        """
        if not self.policies.remove(name, is_operator=is_operator):
            return None
        self._vhost.events.tell("policy.cleared", vhost=self._vhost.name, name=name)
        log.info("policy.cleared", vhost=self._vhost.name, policy=name)
        lsn = self._define(d.PolicyCleared(self._vhost.name, name, is_operator))
        self._changed()
        return max(lsn, self._vhost.defined_lsn)

    def settling(self) -> Iterator[None]:
        """Steps at whose end the policies are in force everywhere, and what follows is logged."""
        while self._sweep is not None:
            next(self._sweep, None)
            yield

    # What applies to whom

    def policy_of_queue(self, queue: QueueLike) -> PolicyMatch:
        """The policies that apply to a queue (POLICY-09)."""
        return self._matches.get(queue.spec.name, NO_POLICY)

    def policy_of_exchange(self, exchange: Exchange) -> PolicyMatch:
        """The policy that applies to an exchange (POLICY-09)."""
        return self.policies.of_exchange(exchange.name)

    def apply_to_queue(self, queue: Q) -> bool:
        """A queue has been made, or the policies have changed; whether others apply to it now."""
        spec = queue.spec
        if not (self.policies or self._matches):
            return False
        policy_match = self.policies.of_queue(spec.name, queue_type_of(spec.arguments))
        before = self._matches.get(spec.name, NO_POLICY)
        if policy_match == before:
            return False
        if policy_match == NO_POLICY:
            del self._matches[spec.name]
        else:
            self._matches[spec.name] = policy_match
        self._regulate(queue, policy_match)
        return True

    def forget_queue(self, name: str) -> None:
        """No policy applies to a queue that is gone."""
        self._matches.pop(name, None)

    def apply_to_exchange(self, exchange: Exchange) -> bool:
        """An exchange has been made, or the policies have changed; whether it is another now."""
        if exchange.name == DEFAULT_EXCHANGE:
            return False
        before = exchange.alternate, exchange.delays
        exchange.apply_policy(self.policies.of_exchange(exchange.name).policy_definition)
        return (exchange.alternate, exchange.delays) != before

    def enforce(self) -> None:
        """See to it that everybody has what the policies say, logging nothing."""
        self._vhost.generation += 1
        for exchange in self._vhost.exchanges.values():
            self.apply_to_exchange(exchange)
        for queue in list(self._vhost.queues.values()):
            self.apply_to_queue(queue)

    def _changed(self) -> None:
        """Policies have: go through everything that they may apply to."""
        self._is_outdated = True
        if self._sweep is None:
            self._sweep = self._sweeping()
            self._in_slices(self._sweep)

    def _sweeping(self) -> Iterator[None]:
        """Routes are looked up again with each change, as far as there are any."""
        vhost = self._vhost
        try:
            while self._is_outdated:
                # Who changes policies again and again must not keep the last queues from theirs.
                self._is_outdated = False
                for exchange in list(vhost.exchanges.values()):
                    if vhost.exchanges.get(exchange.name) is exchange:
                        vhost.generation += self.apply_to_exchange(exchange)
                        self._give_delay_queue(exchange)
                    yield
                for queue in list(vhost.queues.values()):
                    if vhost.queues.get(queue.spec.name) is queue:
                        vhost.generation += self.apply_to_queue(queue)
                    yield
                yield from self._ending_delay_queues()
        finally:
            self._sweep = None

    # Exchanges that begin and cease to delay

    def complete(self) -> None:
        """After a restart: what a crash has kept from following a policy follows now."""
        for exchange in list(self._vhost.exchanges.values()):
            self._give_delay_queue(exchange)

    def _give_delay_queue(self, exchange: Exchange) -> None:
        if exchange.delays and exchange.name not in self._vhost.delay_queues:
            self._delay_queue_for(exchange)

    def _ending_delay_queues(self) -> Iterator[None]:
        """Delete those of exchanges that delay no more; in others messages wait for their time."""
        vhost = self._vhost
        for name in list(vhost.delay_queues):
            exchange, delay_queue = vhost.exchanges.get(name), vhost.delay_queues.get(name)
            if (
                exchange is not None
                and not exchange.delays
                and delay_queue is not None
                and not delay_queue.ready_count
            ):
                vhost.end_delay_queue(name)
            yield
