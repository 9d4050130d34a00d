"""A transaction: publishes and settlements held back until commit, then applied as one.

All effects of one commit happen inside one call, so the journal buffers them next to each other
and writes them in one checksummed block: after a crash all of them exist or none (TX-08).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol

from vouchmq.protocol.errors import PreconditionFailed
from vouchmq.server.channel.plans import StorePlan

if TYPE_CHECKING:
    from collections.abc import Callable

    from vouchmq.server.broker.queues.api import Queue
    from vouchmq.server.broker.queues.settlement import Outcome
    from vouchmq.server.channel.plans import Plan
    from vouchmq.server.channel.unacked import UnackedBatch
    from vouchmq.server.ledger.channel_recorder import ChannelEventRecorder


# What a held publish costs in memory beside its octets; counted, so that empty ones have a limit.
HELD_OCTETS: Final = 100


class HeldPublish:
    """A run of publishes, checked and routed when they came (TX-04)."""

    __slots__ = ("mode", "plan", "raws")

    def __init__(self, plan: Plan, raws: list[bytes], mode: int) -> None:
        self.plan = plan
        self.raws = raws
        self.mode = mode


class HeldSettlement:
    """Deliveries whose tags have left the outstanding set, settled at commit (TX-06)."""

    __slots__ = ("entries", "outcome")

    def __init__(self, entries: list[UnackedBatch], outcome: Outcome) -> None:
        self.entries = entries
        self.outcome = outcome


class Holder(Protocol):
    """A connection, which is answerable for what all its transactions hold (LIMIT-27)."""

    uncommitted_bytes: int


class Author(Protocol):
    """The channel.

    `recorder` is there while the ledger is on, which numbers publishes in the order in which they
    are stored: so that must be the one in which they came.
    """

    recorder: ChannelEventRecorder | None


class Transaction:
    """What one transactional channel has done since its last commit or rollback.

    Args:
        max_bytes: bound of the held contents in octets (TX-15)
        holder: is told of all that is held
        author: whose publishes are held
    """

    __slots__ = (
        *("_author", "_bytes", "_groups", "_holder", "_max_bytes"),
        *("publishes", "settlements"),
    )

    def __init__(self, max_bytes: int, holder: Holder, author: Author) -> None:
        self._max_bytes = max_bytes
        self._author = author
        self._groups = PublishGroups()
        self._bytes = 0
        self._holder = holder
        self.publishes: list[HeldPublish] = []
        self.settlements: list[HeldSettlement] = []

    def publish(self, plan: Plan, raw: bytes, mode: int) -> None:
        """Hold a publish.

        Raises:
            PreconditionFailed: the transaction has grown too large (TX-15)
        """
        size = len(raw) + HELD_OCTETS
        if self._bytes + size > self._max_bytes:
            raise PreconditionFailed("transaction too large")
        self._bytes += size
        self._holder.uncommitted_bytes += size
        last = self.publishes[-1] if self.publishes else None
        if last is None or last.plan is not plan or last.mode != mode:
            last = self._groups.find(plan, mode) if self._author.recorder is None else None
        if last is not None:
            last.raws.append(raw)
            return
        held = HeldPublish(plan, [raw], mode)
        self.publishes.append(held)
        self._groups.add(held)

    def settle(self, entries: list[UnackedBatch], outcome: Outcome) -> None:
        """Keep a settlement until the commit."""
        self.settlements.append(HeldSettlement(entries, outcome))

    @property
    def message_count(self) -> int:
        """How many messages a commit publishes, and deliveries it settles."""
        settled = sum(len(entry.messages) for s in self.settlements for entry in s.entries)
        return settled + sum(len(held.raws) for held in self.publishes)

    def commit(
        self,
        store: Callable[[Plan, list[bytes], int], int],
        settle: Callable[[list[UnackedBatch], Outcome], None],
    ) -> bool:
        """Apply publishes, then settlements, each in order (TX-07), and begin anew.

        Returns:
            True when something of it has to be on disk before commit-ok.
        """
        durable = False
        publishes, settlements = self.publishes, self.settlements
        self.clear()
        for held in publishes:
            # Queues deleted since the publish was routed are skipped silently (TX-04).
            durable |= store(held.plan.still_there(), held.raws, held.mode) > 0
        for settlement in settlements:
            durable |= any(entry.queue.holds_stored for entry in settlement.entries)
            settle(settlement.entries, settlement.outcome)
        return durable

    def rollback(self) -> list[UnackedBatch]:
        """Drop the publishes; give back the deliveries that become outstanding again (TX-10)."""
        entries = [entry for held in self.settlements for entry in held.entries]
        self.clear()
        return entries

    def clear(self) -> None:
        """Begin the next transaction (TX-11)."""
        self.publishes = []
        self.settlements = []
        self._groups.clear()
        self._holder.uncommitted_bytes -= self._bytes
        self._bytes = 0


class PublishGroups:
    """Puts publishes of one plan together, unless others for its queues lie between.

    A commit is one step, so what it costs must be little (LIMIT-23). What looks at messages singly,
    or may send them back to their publisher, stays where it is, and nothing passes it.
    """

    __slots__ = ("_last_to", "_newest")

    def __init__(self) -> None:
        self._newest: dict[tuple[Plan, int], HeldPublish] = {}
        self._last_to: dict[Queue, HeldPublish] = {}

    def find(self, plan: Plan, mode: int) -> HeldPublish | None:
        """The held publish that another one of this plan may join."""
        found = self._newest.get((plan, mode))
        if found is not None:
            for queue in plan.route.queues:
                if self._last_to[queue] is not found:
                    return None
        return found

    def add(self, held: HeldPublish) -> None:
        """A publish is held behind all others."""
        route = held.plan.route
        if type(held.plan) is not StorePlan or route.mandatory:
            self.clear()
            return
        self._newest[held.plan, held.mode] = held
        for queue in route.queues:
            self._last_to[queue] = held

    def clear(self) -> None:
        """Nothing that is held may be joined any more."""
        self._newest.clear()
        self._last_to.clear()
