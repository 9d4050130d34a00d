"""A world whose broker has every feature in use, judged by books and by snapshots.

Like `world.py`, but replies are not predicted: see `feature_books.py` for what a running broker
may do with messages, and `feature_states.py` for what it must have after a crash.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from itertools import count
from typing import TYPE_CHECKING, Final, Literal, cast

from tests.open_classes import open_journals
from tests.simulation import crashes, feature_client
from tests.simulation.feature_books import Books
from tests.simulation.feature_client import FeatureClient
from tests.simulation.feature_listing import (
    Listing,
    Snapshot,
    label_of,
    line_seqs,
    lines_of,
    listing_of,
    messages_of,
    parked_of,
    snapshot_of,
)
from tests.simulation.feature_queues import OpenBooks
from tests.simulation.feature_states import States
from tests.simulation.feature_topology import Topology
from tests.simulation.ledger import Violation
from tests.simulation.sim_disk import PowerCut, SimDisk
from tests.simulation.world import (
    SETTINGS,
    WALL_MS,
    Loop,
    SimWorker,
    World,
    WorldDisk,
    ignore,
)
from vouchmq.server.broker.dead_letter.dead_letters import is_at_least_once
from vouchmq.server.broker.delays import DelayQueue
from vouchmq.server.broker.features.expiry import Expiry
from vouchmq.server.broker.features.length import LengthLimit
from vouchmq.server.broker.queues.classic import ClassicQueue
from vouchmq.server.runtime.journal_writer import DISK_FULL
from vouchmq.server.runtime.runtime import BrokerRuntime, Host, start_broker
from vouchmq.store.errors import StoreError, WriteFailed
from vouchmq.store.sync.worker import SyncInline

if TYPE_CHECKING:
    from tests.simulation.clients import Client
    from vouchmq.server.broker.vhost import VHost
    from vouchmq.server.connection.connection import Connection
    from vouchmq.server.runtime.context import BrokerContext

SETTLE_S = 0.02
MODES: Final[tuple[Literal["returns", "failures"], ...]] = ("returns", "failures")
LAST_S = 3.0


class Judge:
    """What `World` and its worker ask of a model, without predictions."""

    def __init__(self, world: FeatureWorld, states: States) -> None:
        self._world = world
        self.ledger = states
        self.has_failed = False

    def turn_ended(self) -> None:
        self._world.turn_ended()


class FeatureWorld(World):
    """One history of a broker with every feature."""

    model: Judge  # type: ignore[assignment]
    draw: random.Random
    has_timeouts = False  # whatever the queues' arguments say
    new_books: type[Books] = Books

    def __init__(self, seed: int, bugs: list[BaseException], *, crash_rate: float = 0.5) -> None:
        self.draw = random.Random(seed)
        self.settings = replace(
            self.draw.choice(SETTINGS),
            dlx_retry_interval_ms=self.draw.choice((5, 30, 200)),
            delivery_count_mode=self.draw.choice(MODES),
        )
        self.topology = self.drawn_topology()
        self.disk = WorldDisk(seed, is_strict=True)
        self.loop = Loop()
        self.base_ms = WALL_MS
        self.books = self.new_books(self)
        self.clients = {}
        self.trace: Callable[[str], None] | None = None
        self.states = self.crashes = self.deliveries = self.confirms = 0
        self.bugs = bugs
        self._crash_rate = crash_rate
        self._messages = 0
        self._numbers = 0
        self.start()

    def drawn_topology(self) -> Topology:
        """What may be there in this history."""
        return Topology.drawn(self.draw)

    @property
    def vhost(self) -> VHost[ClassicQueue]:
        # But for those of delayed messages, which are asked first.
        return cast("VHost[ClassicQueue]", self.runtime.broker.vhosts["/"])

    @property
    def states_of(self) -> States:
        return self.model.ledger

    def wall_ms(self) -> int:
        return self.base_ms + int(1000 * self.loop.now)

    def wall_of(self, loop_ms: int) -> int:
        return self.base_ms + loop_ms

    # The broker

    def start(self) -> None:
        """Recover what is there and open new books."""
        self.disk.watcher = None
        OpenBooks.books = None
        self.base_ms = self.wall_ms() + self.draw.choice((0, 0, 5, 100))
        self.loop = Loop()
        self.clients = {}
        # Nothing is synced by a start that the books would have to know of.
        self.worker = SimWorker(self)
        self.model = Judge(self, States(Snapshot(frozenset(), frozenset())))
        self.runtime = self.assemble(self.disk, self.worker, self.loop)
        listing = self.listing()
        self.model.ledger = States(snapshot_of(self.runtime, listing, None))
        old, self.books = self.books, self.new_books(self)
        books = self.books
        books.messages, books.acks = old.messages, old.acks
        books.rejections, books.no_ack = old.rejections, old.no_ack
        books._came, books.taken_back = old._came, old.taken_back
        books.turned_away, books.number_of = old.turned_away, old.number_of
        books.has_timeouts = self.has_timeouts or any(
            "x-consumer-timeout" in plan.arguments for plan in self.topology.queues.values()
        )
        for queue in self.vhost.every_queue():
            handed = {
                seq for line in lines_of(queue) for seq in line_seqs(line)[0] if seq <= line.mark
            }
            handed |= set(parked_of(queue))
            for message in sorted(messages_of(queue), key=lambda one: one[2]):
                books.recovered(old, queue, message, message[2] in handed)
        OpenBooks.books = books
        self._watch_dead_letters()
        self._watch_journal()
        self.disk.watcher = self._look

    def assemble(self, disk: SimDisk, worker: SyncInline, loop: Loop) -> BrokerRuntime:
        tokens = count()
        base_ms = self.base_ms if disk is self.disk else self.wall_ms()
        host = Host(
            call_soon=loop.call_soon,
            call_later=loop.call_later,
            clock=lambda: loop.now,
            wall_ms=lambda: base_ms + int(1000 * loop.now),
            random_token=lambda: f"{next(tokens):022}",
            fatal=self._fatal if disk is self.disk else ignore,
        )
        with open_journals():
            return start_broker(self.settings, disk, worker, host)

    @property
    def connections(self) -> list[Connection]:
        """Those of clients, and lost ones that the broker cleans up in a later turn (LIMIT-23)."""
        there = [wire.connection for wire in self.clients.values()]
        return there + [each for each in self.runtime.connections if each not in there]

    def listing(self) -> Listing:
        return listing_of(self.runtime, self.connections)

    def ready_in(self, name: str) -> int:
        """How many messages a queue has ready, by the books."""
        listing = self.listing()
        if name not in listing.ready:
            return 0
        away = {*listing.parked[name], *listing.unacked[name], *listing.kept[name]}
        return sum(place[0] == name and place[1] not in away for place in self.books.copies)

    def snapshot(self) -> Snapshot:
        """What a crash must leave if it comes now; it is in balance."""
        listing = self.listing()
        if not self.books.is_open:
            self.books.balance(listing)
        else:
            raise Violation("a block is written while messages are being moved (DLX-08)")
        handed = {place for place, copy in self.books.copies.items() if copy.handed}
        found = snapshot_of(self.runtime, listing, handed)
        for queue in self.vhost.every_queue():
            for name, seq in self.books.unstored:
                if name == queue.spec.name:
                    found.copies.pop((label_of(queue), seq >> 1), None)
        return found

    def _watch_journal(self) -> None:
        journal, write = self.runtime.journal, self.runtime.journal.write

        def watched() -> int:
            states, calls = self.states_of, self.disk.calls
            snapshot = self.snapshot()
            states.candidate = snapshot
            files = calls["create"] + calls["rename"]
            try:
                lsn = write()
            except WriteFailed as error:
                states.failed.append((states.written, snapshot))
                states.candidate = None
                self.model.has_failed |= error.errno not in DISK_FULL
                raise
            states.candidate = None
            snapshot.begins_segment = calls["create"] + calls["rename"] > files
            states.records.append(snapshot)
            self.books.written()
            return lsn

        storage, refused = self.runtime.write_rejection, self.runtime.write_rejection.refused

        def watched_refusal(context: BrokerContext, first_lsn: int, last_lsn: int) -> None:
            refused(context, first_lsn, last_lsn)
            for client, wire in list(self.clients.items()):
                client.see_closes(wire.connection)

        journal.write = watched  # type: ignore[method-assign]
        storage.refused = watched_refusal  # type: ignore[method-assign]

    def _watch_dead_letters(self) -> None:
        dead_letter_publisher = self.runtime.dead_letter_publisher
        written, refused = dead_letter_publisher.written, dead_letter_publisher.refused

        def watched_written() -> None:
            with self.books.sending_again():
                written()

        def watched_refused(*what: int) -> None:
            refused(*what)
            self.books.kept()

        dead_letter_publisher.written = watched_written  # type: ignore[method-assign]
        dead_letter_publisher.refused = watched_refused  # type: ignore[method-assign,assignment]
        new_queue = self.vhost.register_queue

        def watched_register(spec: object) -> ClassicQueue:
            queue = new_queue(spec)  # type: ignore[arg-type]
            if queue.stored:
                self.books.born[queue.spec.name] = self.states_of.pending
            return queue

        self.vhost.register_queue = watched_register  # type: ignore[method-assign]

    def _fatal(self, reason: str) -> None:
        del reason
        self.model.has_failed = True

    # Clients

    def connect(self) -> FeatureClient:
        self._numbers += 1
        client = FeatureClient(self, self._numbers)
        wire = self.plug_in(client)
        dispatch = client.watch(wire.connection._dispatch, lambda: False)
        wire.connection._dispatch = dispatch  # type: ignore[method-assign,assignment]
        return client

    def set_up(self, client: Client) -> None:
        """See `World`."""
        feature_client.set_up(cast(FeatureClient, client), self.draw)

    def act(self, client: Client) -> None:
        """See `World`."""
        feature_client.act(cast(FeatureClient, client), self.draw)

    def count(self) -> None:
        """Clients have counted already."""

    # Time

    def pass_time(self) -> None:
        """Some of it, or none: much is timed here."""
        self.loop.advance(self.draw.choice((0.0, 0.0, 0.001, 0.003, 0.02)))

    # What holds after each turn

    def turn_ended(self) -> None:
        """The books are in balance, and no queue is over its limit."""
        if self.model.has_failed:
            return
        self.books.balance(self.listing())
        unacked: dict[int, int] = {}
        for connection in self.connections:
            for channel in connection.channels.values():
                entries = channel.unacked.live()
                if channel.transaction is not None:
                    entries = entries + [
                        e for s in channel.transaction.settlements for e in s.entries
                    ]
                for entry in entries:
                    key = id(entry.queue)
                    unacked[key] = unacked.get(key, 0) + len(entry.messages)
        for queue in self.vhost.every_queue():
            if not isinstance(queue, DelayQueue):
                self._check_queue(queue, unacked.get(id(queue), 0))

    def _check_queue(self, queue: ClassicQueue, unacked: int) -> None:
        name, features = queue.spec.name, queue.features
        if queue.unacked_count != unacked:
            raise Violation(f"{name} counts {queue.unacked_count} unacked, not {unacked}")
        there = {queue.spec.name: {place for place in self.books.copies if place[0] == name}}[name]
        ready = {(name, seq) for line in queue.lines for seq in line_seqs(line)[0]}
        if queue.ready_bytes is not None and all(
            line.backlog is None or not line_seqs(line)[1] for line in queue.lines
        ):
            octets = sum(self.books.copies[place].octets for place in ready & there)
            if queue.ready_bytes.octets != octets:
                raise Violation(
                    f"{name} counts {queue.ready_bytes.octets} octets, not {octets} (LEN-01)"
                )
        if queue.is_dirty or (queue.hooks is not None and queue.hooks.dead_letters.is_paused):
            return
        limit = queue.feature(LengthLimit)
        if limit is None or limit.rejects:
            return
        # What at-least-once keeps has been dropped, and cannot be dropped again.
        kept = len(parked_of(queue)) if is_at_least_once(features) else 0
        most_count = features.number("max-length")
        if most_count is not None and queue.held_count - kept > max(
            most_count, len(parked_of(queue)) - kept
        ):
            raise Violation(f"{name} has {queue.held_count}, more than {most_count}")
        most = features.number("max-length-bytes")
        if most is not None and queue.ready_count and queue.held_octets > most:
            raise Violation(f"{name} has {queue.held_octets} octets, more than {most}")

    # Rest

    def check_idle(self) -> None:
        """Nobody waits, and everything that is counted is there."""
        for client in self.clients:
            for ch in client.channels.values() if not client.is_leaving else ():
                talk = cast(FeatureClient, client).talks[ch.number]
                if not ch.is_closed and (talk.unconfirmed or talk.committing or talk.gets):
                    raise Violation(f"channel {ch.number} of {client.number} waits for {talk}")
        if len(self.connections) > len(self.clients):
            raise Violation("a lost connection was never cleaned up (CONN-55)")
        dead_letter_publisher = self.runtime.dead_letter_publisher
        if dead_letter_publisher._unwritten or dead_letter_publisher._kept:
            raise Violation("dead letters were never written")
        if sum(line.octets for q in self.vhost.every_queue() for line in lines_of(q)) != (
            self.runtime.pager.total
        ):
            raise Violation("the pager counts what is not there")
        now_ms = self.wall_ms()
        for queue in self.vhost.every_queue():
            if isinstance(queue, DelayQueue):
                continue
            for line in queue.lines:
                head = line_seqs(line)[0][:1]
                copy = self.books.copies.get((queue.spec.name, head[0])) if head else None
                deadline = self.books.deadline_ms(queue, copy) if copy is not None else None
                expiry = queue.feature(Expiry)
                # One that is the head only since a moment goes with the next tick.
                is_armed = expiry is not None and self.wall_of(expiry._armed_ms) >= now_ms
                if deadline is not None and deadline + 1 < now_ms and not is_armed:
                    raise Violation(f"{copy} expired, and stays (TTL-04)")

    def end(self) -> None:
        """Come to rest, crash once more, and let clients fetch what is there."""
        self.disk.crash_after = None
        self.settle_down()
        self.crash()
        self.drain()

    def drain(self) -> None:
        """Time passes, clients take everything: then nothing may be left or counted."""
        client = self.connect()
        ch = client.open_channel("")
        for name, queue in sorted(self.vhost.queues.items()):
            if queue.spec.exclusive_owner is None and name in self.topology.queues:
                client.consume_from(ch, name, no_ack=True, priority=0)
        passed = 0.0
        while passed < LAST_S and not self.model.has_failed:
            self.settle_down()
            if not self.books.copies:
                break
            step = SETTLE_S if passed < 0.5 else 0.3
            self.loop.advance(step)
            passed += step
        if self.model.has_failed:
            return
        for queue in self.vhost.every_queue():
            name = queue.spec.name
            pending = len(queue.held_lsns())
            left = [copy for place, copy in self.books.copies.items() if place[0] == name]
            # A retry may be farther away than this looks.
            idle = [copy for copy in left if copy.not_before_ms <= self.wall_ms()]
            if queue.ready_count or len(left) != pending or any(not copy.dying for copy in idle):
                raise Violation(f"{name} keeps {queue.ready_count}, {pending} aside: {left[:2]}")
            octets = 0 if isinstance(queue, DelayQueue) else queue.held_octets
            if queue.unacked_count or octets:
                raise Violation(f"{name} counts {queue.unacked_count}, {octets} octets")
        if self.runtime.pager.total:
            raise Violation(f"{self.runtime.pager.total} octets are counted, and none is there")

    # Crashes

    def look_at_crash(self) -> None:
        """Crash a copy of the disk and judge what is recovered from it."""
        books, OpenBooks.books = OpenBooks.books, None
        try:
            self._judge(crashes.fork(self.disk), is_kill=self.draw.random() < 0.15)
        finally:
            OpenBooks.books = books

    def crash(self, *, is_cut: bool = False) -> None:
        """The broker is no more; then start again from what is left."""
        is_kill = not is_cut and self.draw.random() < 0.3
        self.disk.watcher = None
        OpenBooks.books = None
        self.crashes += 1
        self.tell("the process is killed" if is_kill else "the power is cut")
        self._judge(self.disk, is_kill=is_kill)
        self.start()

    def _judge(self, disk: SimDisk, *, is_kill: bool) -> None:
        draw = self.draw
        disk.kill() if is_kill else disk.crash(draw.getrandbits(32))
        if draw.random() < 0.2:
            self._interrupt(disk, is_kill=is_kill)
        found = self._recover(disk)
        self.states_of.judge(found, is_killed=is_kill)
        self.states += 1
        if draw.random() < 0.2:
            disk.kill() if draw.random() < 0.5 else disk.crash(draw.getrandbits(32))
            again = self._recover(disk)
            self.states += 1
            if (again.copies, again.definitions) != (found.copies, found.definitions):
                raise Violation(f"recovered twice, to different states: {found} and {again}")

    def _interrupt(self, disk: SimDisk, *, is_kill: bool) -> None:
        if self.draw.random() < 0.7:
            disk.crash_after = self.draw.randrange(14)
        else:
            verb = self.draw.choice(("write", "sync", "create", "unlink", "truncate", "read"))
            disk.fail_next(verb)
        with suppress(PowerCut, OSError, StoreError):
            self.assemble(disk, SyncInline(), self.new_loop())
        disk.kill() if is_kill else disk.crash(self.draw.getrandbits(32))

    def _recover(self, disk: SimDisk) -> Snapshot:
        runtime = self.assemble(disk, SyncInline(), self.new_loop())
        report = runtime.report
        if report.damaged or report.unroutable_messages:
            raise Violation(f"a crash was taken for damage: {report}")
        for queue in runtime.broker.vhosts["/"].every_queue():
            if not queue.spec.durable:
                raise Violation(f"{queue.spec.name} was not durable, but is back")
        found = snapshot_of(runtime, listing_of(runtime, ()), None)
        for queue in runtime.broker.vhosts["/"].every_queue():
            found.handed |= {(label_of(queue), seq >> 1) for seq in parked_of(queue)}
            if isinstance(queue, DelayQueue):
                found.handed |= {place for place in found.copies if place[0] == label_of(queue)}
        self.check_bugs()
        return found
