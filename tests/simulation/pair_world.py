"""A world in which any two features and any two operations meet, within a few seeds.

Queues and exchanges are rows of a covering array (`pair_plans.py`). What clients do is a ring of
operations in which each follows each, itself included: a client does two that stand side by side,
on one channel and with one queue; the next two are from elsewhere in the ring, so that there is
something of everything at any time, and all have had their turn when the ring has come round.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final
from unittest.mock import patch

from tests.simulation import feature_client
from tests.simulation.feature_queues import OpenBooks
from tests.simulation.feature_topology import QUEUES, Topology
from tests.simulation.feature_world import FeatureWorld
from tests.simulation.ledger import Violation
from tests.simulation.pair_deeds import OPERATIONS, SEQUENCE
from tests.simulation.pair_plans import paired_topology, rows_of
from vouchmq.protocol.runs import body_size
from vouchmq.server.broker.features.dedup import Dedup
from vouchmq.server.channel.channel import Channel
from vouchmq.server.channel.consumer import Credit
from vouchmq.server.channel.timeouts import Timeouts
from vouchmq.server.connection import channel_table

if TYPE_CHECKING:
    from tests.simulation.clients import Client
    from vouchmq.server.broker.features.dedup import KeyWindow
    from vouchmq.server.broker.queues.api import Queue
    from vouchmq.server.channel.consumer import Consumer
    from vouchmq.server.channel.unacked import UnackedBatch
    from vouchmq.server.connection.port import ConnectionPort

# Acts of one history, about: the next seed goes on where this one ends.
STRIDE: Final = 400
# From one act to the next; prime, so that the ring comes round.
LEAP: Final = 389
# So many acts of clients are about the same queue.
FOCUS_ACTS: Final = 12
SETTLING: Final = frozenset(
    {"ack", "ack multiple", "requeue", "requeue multiple", "drop", "drop multiple"}
)
# Of a timeout, in which a delivery is looked at once.
LOOK: Final = 1.5


class PairWorld(FeatureWorld):
    """One history of pairs."""

    def __init__(self, seed: int, bugs: list[BaseException], *, crash_rate: float = 0.5) -> None:
        self._seed = seed
        self._acts = 0
        self.focus = QUEUES[0]
        # Deliveries that a transaction gave back: when, by queue and LSN.
        self.returned_ms: dict[tuple[str, int], int] = {}
        self.met: Counter[tuple[str, str]] = Counter()  # operations that stood side by side
        self.used: set[tuple[str, str, Any]] = set()  # operation, factor, level
        self.rows = rows_of(seed)
        super().__init__(seed, bugs, crash_rate=crash_rate)

    def drawn_topology(self) -> Topology:
        """See `FeatureWorld`."""
        return paired_topology(self._seed)

    # Clients

    def act(self, client: Client) -> None:
        """Two operations that stand side by side."""
        assert isinstance(client, feature_client.FeatureClient)
        usable = [ch for ch in client.channels.values() if ch.is_usable]
        if len(usable) < 3 and has_free(client):
            usable.append(client.open_channel(("", "confirm", "tx")[self._acts % 3]))
        if not usable:
            return
        if self._acts % FOCUS_ACTS == 0:
            self.focus = QUEUES[(self._seed + self._acts // FOCUS_ACTS) % len(QUEUES)]
        at = (self._seed * STRIDE + self._acts) * LEAP % len(SEQUENCE)
        self._acts += 1
        names = (SEQUENCE[at], SEQUENCE[(at + 1) % len(SEQUENCE)])
        self.met[names] += 1
        self.used |= {(names[1], *level) for level in self.rows[self.focus].items()}
        ch = self.draw.choice(usable)
        if SETTLING & set(names):
            # Of those that have something to settle, one in a transaction has most to tell.
            able = [each for each in usable if each.tags] or usable
            ch = self.draw.choice([each for each in able if each.mode == "tx"] or able)
        if self.focus not in self.vhost.queues:
            feature_client.declare_queue(client, ch, self.topology.queues[self.focus])
        for name in names:
            if not ch.is_usable and has_free(client):
                ch = client.open_channel(ch.mode)
            if ch.is_usable:
                self.tell(f"{(client.number, ch.number)} {name}: {self.focus}")
                OPERATIONS[name](self, client, ch)

    def existing(self) -> str:
        """A queue that is there, of those with a plan; the one in focus if there is none."""
        names = sorted(name for name in self.vhost.queues if name in self.topology.queues)
        return self.draw.choice(names) if names else self.focus

    # What holds after each turn

    def turn_ended(self) -> None:
        """See `FeatureWorld`; what is counted beside the queues is as true."""
        super().turn_ended()
        if self.model.has_failed:
            return
        for wire in self.clients.values():
            for channel in wire.connection.channels.values():
                check_credits(channel)
        for exchange in self.vhost.exchanges.values():
            if exchange.window is not None:
                self._check_window(exchange.name, exchange.window)
        for queue in self.vhost.every_queue():
            dedup = queue.feature(Dedup)
            if dedup is not None:
                self._check_window(queue.spec.name, dedup.window)
                self._check_once(queue, dedup.window)

    def _check_window(self, name: str, window: KeyWindow) -> None:
        """DUP-08: a key is known by its message."""
        for octets, entry in window._entries.items():
            seq = entry & ((1 << 64) - 1)
            number = self.books.number_of.get(seq)
            key = self.books.messages[number].dedup_key if number in self.books.messages else None
            if seq & 1 and octets != b"s" + (key or "?").encode():
                raise Violation(f"{name} knows {octets!r} by {seq}, which is {key} (DUP-08)")

    def _check_once(self, queue: Queue, window: KeyWindow) -> None:
        """DUP-04; a purge frees all keys (DUP-13)."""
        name = queue.spec.name
        if not window.keys.follows_messages:
            return
        held = Counter(
            key
            for place, copy in self.books.copies.items()
            if place[0] == name
            and place not in self.books.unstored
            and copy.has_key
            and not copy.dying
            and (key := self.books.messages[copy.number].dedup_key)
        )
        twice = [key for key, count in held.items() if count > 1]
        if twice:
            raise Violation(f"{name} has {twice} twice (DUP-04)")

    # Timeouts

    def check_idle(self) -> None:
        """See `FeatureWorld`; nobody keeps a delivery for longer than they may."""
        super().check_idle()
        for wire in self.clients.values():
            for channel in wire.connection.channels.values():
                for entry in channel.unacked.live() if not channel.is_closing else ():
                    timeout_ms = channel.timeouts.effective_ms(entry.consumer, entry.queue)
                    since_ms = self.looked_at_ms(entry)
                    if timeout_ms and since_ms + LOOK * timeout_ms + 1 < self.wall_ms():
                        raise Violation(f"{entry.messages} is kept for too long (CONS-70)")

    def looked_at_ms(self, entry: UnackedBatch) -> int:
        """Since when these are looked at: what is in a transaction is not."""
        name = entry.queue.spec.name
        returned = (self.returned_ms.get((name, message[2]), 0) for message in entry.messages)
        return max(self.oldest_ms(entry) or self.wall_ms(), *returned)

    def oldest_ms(self, entry: UnackedBatch) -> int:
        """When the first of these was handed out; 0 when its queue is gone."""
        places = [(entry.queue.spec.name, message[2]) for message in entry.messages]
        copies = [self.books.copies[place] for place in places if place in self.books.copies]
        return min((copy.handed_ms for copy in copies), default=0)

    def check_timed_out(self, entries: list[UnackedBatch], timeout_ms: int) -> None:
        """CONS-70: one of them at least is too old."""
        now_ms = self.wall_ms()
        is_true = any(self.oldest_ms(entry) + timeout_ms <= now_ms for entry in entries)
        # A consumer is named once for each of its runs.
        if entries and not is_true:
            ages = [now_ms - self.oldest_ms(entry) for entry in entries]
            raise Violation(f"cancelled after {timeout_ms} ms, at {ages} (CONS-70)")

    # What may be there again

    def run_deed(self, deed: Callable[[], object]) -> None:
        """What an operator does, between two turns."""
        deed()
        self.check_bugs()


def has_free(client: feature_client.FeatureClient) -> bool:
    """Whether a client may open one more channel."""
    return len([ch for ch in client.channels.values() if not ch.is_free]) < 6


def check_credits(channel: Channel) -> None:
    """QOS-02, QOS-20: what is outstanding is what is with the client, or in its transaction."""
    if channel.is_closing:
        return
    entries = channel.unacked.live()
    if channel.transaction is not None:
        entries = entries + [e for s in channel.transaction.settlements for e in s.entries]
    credits: dict[int, tuple[Credit, list[UnackedBatch]]] = {}
    for entry in entries:
        if entry.consumer is not None:
            for credit in (entry.consumer.credit, channel.credit):
                credits.setdefault(id(credit), (credit, []))[1].append(entry)
    for credit in (channel.credit, *(each.credit for each in channel.consumers.values())):
        credits.setdefault(id(credit), (credit, []))
    for credit, held in credits.values():
        count = sum(len(entry.messages) for entry in held)
        if credit.outstanding != count:
            raise Violation(f"{credit.outstanding} are outstanding, not {count} (QOS-02)")
        octets = sum(body_size(message[0]) for entry in held for message in entry.messages)
        if credit.limit_octets and credit.outstanding_octets != octets:
            raise Violation(
                f"{credit.outstanding_octets} octets are outstanding, not {octets} (QOS-20)"
            )


@contextmanager
def watched_timeouts(world: Callable[[], PairWorld]) -> Iterator[None]:
    """Whoever is cancelled for being late must be late; who is late is looked at."""

    class WatchedChannel(Channel):
        """A channel whose timeouts are checked."""

        def __init__(self, connection: ConnectionPort, number: int) -> None:
            super().__init__(connection, number)
            self.timeouts = WatchedTimeouts(
                self.unacked,
                self.context.timers,
                self.context.limits.consumer_timeout_ms,
                self.delivery_expired,
            )

        def delivery_expired(self, consumer: Consumer | None, timeout_ms: int) -> bool:
            if OpenBooks.books is not None:
                late = self.unacked.live()
                if consumer and self.connection.has_capability("consumer_cancel_notify"):
                    late = [each for each in late if each.consumer is consumer]
                    timeout_ms = self.timeouts.effective_ms(consumer, consumer.queue)
                world().check_timed_out(late, timeout_ms)
            return super().delivery_expired(consumer, timeout_ms)

    class WatchedTimeouts(Timeouts):
        """They note what comes back."""

        __slots__ = ()

        def watch_again(self, entries: list[UnackedBatch]) -> None:
            if OpenBooks.books is not None:
                now_ms = world().wall_ms()
                for entry in entries:
                    name = entry.queue.spec.name
                    copies = {(name, message[2]): now_ms for message in entry.messages}
                    world().returned_ms |= copies
            super().watch_again(entries)

    with patch.object(channel_table, "Channel", WatchedChannel):
        yield
