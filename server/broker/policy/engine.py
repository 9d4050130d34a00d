"""Keeps the queues and exchanges of a vhost under its policies, whatever changes.

    policy set or cleared ─▶ to whom does another apply now? ─▶ features rebuilt,
    queue or exchange made ─▶ what applies to it?                exchange told

Must not know what a definition means: queues learn it through a callback, exchanges know it.

Spec: POLICY-02, POLICY-04, DELAY-11, EXCH-63
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

import structlog

from vouchmq.server.broker import definitions as d
from vouchmq.server.broker.features.options import queue_type_of
from vouchmq.server.broker.names import DEFAULT_EXCHANGE
from vouchmq.server.broker.policy.policies import NO_POLICY, Policies, Policy, PolicyMatch
from vouchmq.server.broker.queues.spec import QueueLike

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

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


class PolicyEngine(Generic[Q]):
    """The policies of one vhost, in force.

    Args:
        vhost: whose
        regulate: gives a queue what it is to have under a policy match
        define: logs a definition; its LSN
        delay_queue_for: makes the queue in which an exchange's delayed messages wait
    """

    __slots__ = ("_define", "_delay_queue_for", "_matches", "_regulate", "_vhost", "policies")

    def __init__(
        self,
        vhost: GovernedVHost[Q],
        regulate: Callable[[Q, PolicyMatch], None],
        define: Callable[[d.Definition], int],
        delay_queue_for: Callable[[Exchange], None],
    ) -> None:
        self._vhost = vhost
        self._regulate = regulate
        self._define = define
        self._delay_queue_for = delay_queue_for
        self.policies = Policies()
        # Of the queues that a policy applies to; a vhost without policies keeps nothing here.
        self._matches: dict[str, PolicyMatch] = {}

    # What operators do

    def set_policy(self, policy: Policy) -> int:
        """Create or change a policy or operator policy; it is in force when this returns.

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
        self.enforce()
        # First, so that after a restart no exchange delays that has not where to.
        self._make_delay_queues()
        self._vhost.events.tell("policy.set", vhost=self._vhost.name, name=policy.name)
        log.info("policy.set", vhost=self._vhost.name, policy=policy.name)
        lsn = self._define(d.of_policy(self._vhost.name, policy))
        return max(lsn, self._end_delay_queues())

    def delete_policy(self, name: str, *, is_operator: bool = False) -> int | None:
        """Delete a policy or operator policy; the LSN of the record, None when there was none.

        Spec: POLICY-04
        """
        if not self.policies.remove(name, is_operator=is_operator):
            return None
        self.enforce()
        self._vhost.events.tell("policy.cleared", vhost=self._vhost.name, name=name)
        log.info("policy.cleared", vhost=self._vhost.name, policy=name)
        lsn = self._define(d.PolicyCleared(self._vhost.name, name, is_operator))
        return max(lsn, self._end_delay_queues())

    # What applies to whom

    def policy_of_queue(self, queue: QueueLike) -> PolicyMatch:
        """The policies that apply to a queue (POLICY-09)."""
        return self._matches.get(queue.spec.name, NO_POLICY)

    def policy_of_exchange(self, exchange: Exchange) -> PolicyMatch:
        """The policy that applies to an exchange (POLICY-09)."""
        return self.policies.of_exchange(exchange.name)

    def apply_to_queue(self, queue: Q) -> None:
        """A queue has been made, or the policies have changed."""
        spec = queue.spec
        if not (self.policies or self._matches):
            return
        policy_match = self.policies.of_queue(spec.name, queue_type_of(spec.arguments))
        before = self._matches.get(spec.name, NO_POLICY)
        if policy_match == before:
            return
        if policy_match == NO_POLICY:
            del self._matches[spec.name]
        else:
            self._matches[spec.name] = policy_match
        self._regulate(queue, policy_match)

    def forget_queue(self, name: str) -> None:
        """No policy applies to a queue that is gone."""
        self._matches.pop(name, None)

    def apply_to_exchange(self, exchange: Exchange) -> None:
        """An exchange has been made, or the policies have changed."""
        if exchange.name != DEFAULT_EXCHANGE:
            exchange.apply_policy(self.policies.of_exchange(exchange.name).policy_definition)

    def enforce(self) -> None:
        """See to it that everybody has what the policies say, logging nothing."""
        self._vhost.generation += 1
        for exchange in self._vhost.exchanges.values():
            self.apply_to_exchange(exchange)
        for queue in list(self._vhost.queues.values()):
            self.apply_to_queue(queue)

    # Exchanges that begin and cease to delay

    def _make_delay_queues(self) -> None:
        for exchange in list(self._vhost.exchanges.values()):
            if exchange.delays and exchange.name not in self._vhost.delay_queues:
                self._delay_queue_for(exchange)

    def _end_delay_queues(self) -> int:
        """Delete those of exchanges that delay no more; in others messages wait for their time."""
        vhost = self._vhost
        for name, delay_queue in list(vhost.delay_queues.items()):
            exchange = vhost.exchanges.get(name)
            if exchange is not None and not exchange.delays and not delay_queue.ready_count:
                vhost.end_delay_queue(name)
        return vhost.defined_lsn
