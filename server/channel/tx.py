"""A transaction: publishes and settlements held back until commit, then applied as one.

All effects of one commit happen inside one call, so the journal buffers them next to each other
and writes them in one checksummed block: after a crash all of them exist or none (TX-08).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from vouchmq.protocol.errors import PreconditionFailed

if TYPE_CHECKING:
    from collections.abc import Callable

    from vouchmq.server.broker.queues.settlement import Outcome
    from vouchmq.server.channel.plans import Plan
    from vouchmq.server.channel.unacked import UnackedBatch


# What a held publish costs in memory beside its octets; counted, so that empty ones have a limit.
HELD_OCTETS: Final = 100


class HeldPublish(NamedTuple):
    """A run of publishes, checked and routed when they came (TX-04)."""

    plan: Plan
    raws: list[bytes]
    mode: int


class HeldSettlement(NamedTuple):
    """Deliveries whose tags have left the outstanding set, settled at commit (TX-06)."""

    entries: list[UnackedBatch]
    outcome: Outcome


class Holder(Protocol):
    """A connection, which is answerable for what all its transactions hold (LIMIT-27)."""

    uncommitted_bytes: int


class Transaction:
    """What one transactional channel has done since its last commit or rollback.

    Args:
        max_bytes: bound of the held contents in octets (TX-15)
        holder: is told of all that is held
    """

    __slots__ = ("_bytes", "_holder", "_max_bytes", "publishes", "settlements")

    def __init__(self, max_bytes: int, holder: Holder) -> None:
        self._max_bytes = max_bytes
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
        if last is not None and last.plan is plan and last.mode == mode:
            last.raws.append(raw)
        else:
            self.publishes.append(HeldPublish(plan, [raw], mode))

    def settle(self, entries: list[UnackedBatch], outcome: Outcome) -> None:
        """Keep a settlement until the commit."""
        self.settlements.append(HeldSettlement(entries, outcome))

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
        self._holder.uncommitted_bytes -= self._bytes
        self._bytes = 0
