"""The world around a simulated broker: a clock, a loop, a network and a disk, all from one seed.

Everything above them is production code: `BrokerRuntime` and `Connection`.
The disk is `SimDisk`; before any of its operations the world may look what a crash at this very
point would leave (`Crashes`), without disturbing the broker.
"""

from __future__ import annotations

import errno
import random
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from heapq import heappop, heappush
from itertools import count
from typing import TYPE_CHECKING

from tests.open_classes import OpenConnection, open_journals
from tests.simulation import actions, crashes
from tests.simulation.clients import Client
from tests.simulation.ledger import Violation
from tests.simulation.model import MConsumer, Model
from tests.simulation.sim_disk import SimDisk
from vouchmq.server.connection.handshake import Handshake, Offer
from vouchmq.server.runtime.flow import LOOK_S, FlowControl
from vouchmq.server.runtime.journal_writer import DISK_FULL
from vouchmq.server.runtime.runtime import BrokerRuntime, Host, start_broker
from vouchmq.server.settings.settings import Settings
from vouchmq.store.errors import WriteFailed
from vouchmq.store.sync.worker import Completion, SyncInline, sync_all

if TYPE_CHECKING:
    from vouchmq.server.broker.queues.api import Queue
    from vouchmq.server.runtime.context import BrokerContext
    from vouchmq.store.disk import Disk, Syncable

SETTINGS = tuple(
    Settings(
        segment_size_bytes=size,
        deliver_high_water_bytes=4096,
        unsynced_limit_bytes=16384,
        publisher_flow_messages=1,
        recovery_read_bytes=read,
    )
    # Room for every definition there may be, many times, as in any real segment.
    for size in (4096, 16384, 65536)
    for read in (0, 1 << 28)
)
OFFER = Offer(node="sim", product="VouchMQ", version="0", platform="simulation")
ROOM_STEPS = 20000
WALL_MS = 1_700_000_000_000  # when simulated time begins


def ignore(reason: str) -> None:
    """Nobody is told."""


class Timer:
    """A `call_later` that can be taken back."""

    def __init__(self, callback: Callable[[], None]) -> None:
        self.callback = callback
        self.is_cancelled = False

    def cancel(self) -> None:
        self.is_cancelled = True


class Loop:
    """Virtual time: what is due now in order, what is due later by its time."""

    def __init__(self) -> None:
        self.now = 0.0
        self.ready: deque[Callable[[], None]] = deque()
        self._later: list[tuple[float, int, Timer]] = []
        self._count = count()

    def call_soon(self, callback: Callable[[], None]) -> None:
        self.ready.append(callback)

    def call_later(self, delay_s: float, callback: Callable[[], None]) -> Timer:
        timer = Timer(callback)
        heappush(self._later, (self.now + delay_s, next(self._count), timer))
        return timer

    def advance(self, seconds: float) -> None:
        self.now += seconds
        while self._later and self._later[0][0] <= self.now:
            timer = heappop(self._later)[2]
            if not timer.is_cancelled:
                self.ready.append(timer.callback)


class SimWorker(SyncInline):
    """Another process that syncs: one target at a time, whenever the world lets it."""

    def __init__(self, world: World) -> None:
        super().__init__()
        self._world = world
        self._sequence = 0
        self._targets: deque[Syncable] | None = None
        self._number = 0
        self._answer: Completion | None = None
        self._file_tasks: deque[tuple[str, Disk, str, int]] = deque()

    @property
    def has_work(self) -> bool:
        return self._targets is not None or bool(self._file_tasks)

    def submit(self, sequence: int, targets: Sequence[Syncable]) -> None:
        self._sequence = sequence
        self._targets = deque(targets)
        self._number = self._world.model.ledger.sync_submitted()
        self._world.tell(f"  a sync up to record {self._number} begins")

    def sync(self, targets: Sequence[Syncable]) -> tuple[int, int] | None:
        if self._world.draw.random() < 0.5:
            return None
        number = self._world.model.ledger.sync_submitted()
        error = next((error for target in targets if (error := self.sync_one(target))), 0)
        self._world.tell(f"  a sync of the loop's own up to record {number} ends with {error}")
        self._world.model.has_failed |= error != 0
        if not error:
            self._world.model.ledger.sync_done(number)
        return error, 0

    def prepare(self, disk: Disk, name: str, size: int) -> None:
        self._file_tasks.append(("prepare", disk, name, size))

    def unlink(self, disk: Disk, name: str) -> None:
        self._file_tasks.append(("unlink", disk, name, 0))

    def reap(self) -> Completion | None:
        answer, self._answer = self._answer, None
        return answer

    def work(self, draw: random.Random) -> None:
        """Do a little: a chore, or one file of a sync, or say that a sync is done."""
        if self._file_tasks and (self._targets is None or draw.random() < 0.3):
            verb, disk, name, size = self._file_tasks.popleft()
            with suppress(OSError):
                if verb == "prepare":
                    disk.prepare(name, size)
                else:
                    disk.unlink(name)
            return
        if self._targets is None:
            return
        if self._targets:
            error = self.sync_one(self._targets.popleft())
            if not error:
                return
        else:
            error = 0
        self._targets = None
        self._answer = Completion(self._sequence, error)
        self._world.tell(f"  the sync up to record {self._number} ends with {error}")
        if not error:
            self._world.model.ledger.sync_done(self._number)
        self._world.loop.call_soon(lambda: self._tell(error))

    def _tell(self, error: int) -> None:
        """The descriptor is readable."""
        self._world.model.has_failed |= error != 0
        self._world.runtime.commit.on_readable()

    def sync_one(self, target: Syncable) -> int:
        return sync_all([target])


class WorldDisk(SimDisk):
    """Tells the world before anything happens to it."""

    watcher: Callable[[], None] | None = None
    has_refused = False
    is_blind = False  # between a turn's last block and its sockets: what it did is not yet known

    def count(self, verb: str) -> OSError | None:
        if self.watcher is not None and verb != "read" and not self.is_blind:
            self.watcher()
        crash_after = self.crash_after
        if self.is_blind:
            self.crash_after = None
        error = super().count(verb)
        if self.is_blind:
            self.crash_after = crash_after
        if error is not None:
            # One thing at a time: what a block that failed held is only known a little later.
            self.has_refused = True
            self.crash_after = None
        return error


class FakeWire:
    """A socket of the simulated network; the `Wire` of one connection."""

    def __init__(self, world: World, client: Client) -> None:
        self.name = f"client {client.number}"
        self.paused = 0
        self.is_finished = False
        self.connection: OpenConnection
        self._world = world
        self._client = client

    def write(self, data: bytes | memoryview) -> bool:
        if self.is_finished:
            raise Violation(f"{self.name}: a write after the end")
        if not self._world.disk.is_cut:  # else PowerCut passes through, and the broker is no more
            self._client.hear(bytes(data))
        return True

    def write_parts(self, parts: Sequence[bytes | memoryview]) -> None:
        self.write(b"".join(parts))

    @property
    def is_paused(self) -> bool:
        return self.paused != 0

    @property
    def is_swamped(self) -> bool:
        return False

    @property
    def unsent_octets(self) -> int:
        return 0

    def limit_unsent(self, octets: int) -> None:
        """The simulated network takes everything at once."""

    def pause(self, reason: int) -> None:
        self.paused |= reason

    def resume(self, reason: int) -> None:
        self.paused &= ~reason

    def finish(self, *, is_orderly: bool = False) -> None:
        self.abort()

    def abort(self) -> None:
        if not self.is_finished:
            self.is_finished = True
            self._world.loop.call_soon(lambda: self._world.lose(self._client))

    def call_later(self, delay_s: float, callback: Callable[[], None]) -> Timer:
        return self._world.loop.call_later(delay_s, callback)


class World:
    """One history: a broker, its clients, and everything that befalls them.

    Args:
        seed: decides everything
        bugs: where errors come that the broker has caught and logged
        crash_rate: how often a crash is looked at before an operation of the disk
    """

    def __init__(self, seed: int, bugs: list[BaseException], *, crash_rate: float = 0.5) -> None:
        self.draw = random.Random(seed)
        self.settings = self.draw.choice(SETTINGS)
        self.disk = WorldDisk(seed, is_strict=True)
        self.model = Model()
        self.loop = Loop()
        self.clients: dict[Client, FakeWire] = {}
        self.runtime: BrokerRuntime
        self.worker: SimWorker
        self.trace: Callable[[str], None] | None = None
        self.states = 0  # crash states that were recovered and judged
        self.crashes = 0
        self.bugs = bugs
        self.deliveries = self.confirms = 0
        self._crash_rate = crash_rate
        self._messages = 0
        self._numbers = 0
        self.start()

    def tell(self, what: str) -> None:
        """For those who look at one history."""
        if self.trace is not None:
            self.trace(what)

    # The broker

    def start(self) -> None:
        """Recover and begin to serve; what a process has left is gone."""
        self.disk.watcher = None
        self.loop = Loop()
        self.clients = {}
        self.worker = SimWorker(self)
        self.runtime = self.assemble(self.disk, self.worker, self.loop)
        self._watch_journal()
        self._watch_serving()
        self.disk.watcher = self._look

    def assemble(self, disk: SimDisk, worker: SyncInline, loop: Loop) -> BrokerRuntime:
        tokens = count()
        host = Host(
            call_soon=loop.call_soon,
            clock=lambda: loop.now,
            wall_ms=lambda: WALL_MS + int(1000 * loop.now),
            random_token=lambda: f"{next(tokens):022}",
            fatal=self._fatal if disk is self.disk else ignore,
        )
        with open_journals():
            runtime = start_broker(self.settings, disk, worker, host)
        # Without `Host.call_later`, so that compaction takes a step in every turn.
        least = self.settings.publisher_flow_messages
        runtime.turn.flow = FlowControl(lambda: loop.now, loop.call_later, least)
        chain = runtime.journal.chain
        chain.whole_bytes, chain.piece_bytes = 2000, 500
        staging = chain.staging
        staging.room_bytes, staging.piece_bytes, staging.ahead_bytes = 1000, 128, 400
        return runtime

    def _watch_journal(self) -> None:
        journal, write = self.runtime.journal, self.runtime.journal.write

        def watched() -> int:
            self.disk.is_blind = False
            ledger, calls = self.model.ledger, self.disk.calls
            ledger.is_writing = True
            files = calls["create"] + calls["rename"]
            try:
                lsn = write()
            except WriteFailed as error:
                ledger.is_writing = False
                self.model.has_failed |= error.errno not in DISK_FULL
                self.model.write_refused()
                raise
            # Not so after a power cut, which is judged as what it is: in the middle of a write.
            ledger.is_writing = False
            ledger.wrote()
            self.disk.is_blind = ledger.writes_now > 1
            if self.trace is not None and not ledger.latest.is_empty():
                self.trace(f"  record {ledger.written}: {ledger.latest}")
            ledger.latest.begins_segment |= calls["create"] + calls["rename"] > files
            return lsn

        storage, refused = self.runtime.write_rejection, self.runtime.write_rejection.refused

        def watched_refusal(context: BrokerContext, first_lsn: int, last_lsn: int) -> None:
            refused(context, first_lsn, last_lsn)
            for client, wire in list(self.clients.items()):
                client.see_closes(wire.connection)

        journal.write = watched  # type: ignore[method-assign]
        storage.refused = watched_refusal  # type: ignore[method-assign]

    def _watch_serving(self) -> None:
        """Who is served before a command looks hears it before the model does (CONS-52)."""
        feature_context, turn = self.runtime.feature_context, self.runtime.turn
        serve = feature_context.serve

        def watched(queue: Queue) -> bool:
            is_served = serve(queue)
            # The block of the flush says what was handed out, which is heard only behind it.
            self.model.ledger.writes_now += 1
            turn.flush()
            self.disk.is_blind = False
            self.model.check_deliveries()
            return is_served

        feature_context.serve = watched

    def _fatal(self, reason: str) -> None:
        del reason
        self.model.has_failed = True
        self.model.ledger.is_broken = True

    # Clients

    def connect(self) -> Client:
        self._numbers += 1
        client = Client(self, self._numbers)
        wire = self.plug_in(client)
        block = wire.connection._publisher_block
        dispatch = client.watch(wire.connection._dispatch, lambda: block.is_blocking)
        wire.connection._dispatch = dispatch  # type: ignore[method-assign,assignment]
        failed = wire.connection.storage_failed

        def storage_failed() -> None:
            failed()
            client.see_end(wire.connection)

        wire.connection.storage_failed = storage_failed  # type: ignore[method-assign]
        return client

    def plug_in(self, client: Client) -> FakeWire:
        """Give a client a connection that has yet to shake hands."""
        wire = self.clients[client] = FakeWire(self, client)
        handshake = Handshake(
            OFFER,
            self.runtime.authenticator,
            self.runtime.broker.vhosts.get,
            self.runtime.connection_limits,
            peer=wire.name,
            is_loopback=True,
        )
        wire.connection = client.connection = OpenConnection(
            self.runtime.context, self.runtime.connections, wire, handshake
        )
        return wire

    def lose(self, client: Client) -> None:
        """The socket is gone, from whichever side."""
        wire = self.clients.pop(client, None)
        if wire is not None:
            self.tell(f"connection {client.number} is lost")
            wire.is_finished = True
            client.lost()
            wire.connection.lost("closed by the client")

    def set_up(self, client: Client) -> None:
        """A new client shakes hands and makes itself at home."""
        actions.set_up(client, self.draw)

    def act(self, client: Client) -> None:
        """A client does something."""
        actions.act(client, self.draw)

    def next_message(self) -> int:
        self._messages += 1
        return self._messages

    @staticmethod
    def message_of(body: bytes) -> int:
        if not body[:10].isdigit() or body[10:].strip(b"."):
            raise Violation(f"a body that nobody published: {body[:40]!r}")
        return int(body[:10])

    # Steps

    def carry(self) -> None:
        """The network: some client's octets reach the broker, in a piece of any size."""
        able = [c for c, wire in self.clients.items() if c.out and not wire.paused]
        if not able:
            return
        client = self.draw.choice(able)
        size = len(client.out)
        if self.draw.random() < 0.5:
            size = min(size, self.draw.choice((1, 7, 20, 100, 700)))
        octets = bytes(client.out[:size])
        del client.out[:size]
        self.clients[client].connection.receive(octets)
        self.check_bugs()

    def turn(self) -> None:
        """One callback of the loop."""
        if self.loop.ready:
            self.loop.ready.popleft()()
            self.model.turn_ended()
            self.disk.has_refused = self.disk.is_blind = False
            self.check_bugs()

    def pass_time(self) -> None:
        """A little of it."""
        self.loop.advance(self.draw.random() / 1000)

    @staticmethod
    def new_loop() -> Loop:
        return Loop()

    def check_bugs(self) -> None:
        if self.bugs:
            error = self.bugs[0]
            if isinstance(error, Violation):
                raise error
            raise Violation(f"an error in the broker: {error!r}") from error

    def settle_down(self) -> None:
        """Let everything happen that is under way; then nothing may be left undone."""
        for wire in self.clients.values():
            wire.connection.outbox.release()
        for _ in range(ROOM_STEPS):
            if self.model.has_failed:
                return
            able = any(c.out and not wire.paused for c, wire in self.clients.items())
            is_busy = self.loop.ready or self.worker.has_work or self.runtime.turn.flow.waiting
            if not (able or is_busy):
                if not self.runtime.alarms.is_raised:
                    break
                self.check()
            if not able and self.runtime.turn.flow.waiting:
                # Publishers wait for consumers, who need not acknowledge anything (LIMIT-29).
                self.loop.advance(LOOK_S)
            self.carry()
            self.turn()
            self.worker.work(self.draw)
        else:
            raise Violation("the broker never comes to rest")
        if any(client.out for client in self.clients):
            raise Violation("a connection is never read again")
        self.check_idle()

    def check_idle(self) -> None:
        """What holds when nothing is under way."""
        self.model.check_idle(self._can_take)

    def _can_take(self, consumer: MConsumer) -> bool:
        del consumer
        return True

    # Crashes

    def _look(self) -> None:
        """Before an operation of the disk: what would a crash leave here?"""
        # What a turn hands out is not known yet when its block has failed.
        if not self.disk.has_refused and self.draw.random() < self._crash_rate:
            self.disk.watcher = None
            try:
                self.look_at_crash()
            except Exception as error:
                # The broker below may take it for a failure of the disk.
                self.bugs.append(error)
                raise
            finally:
                self.disk.watcher = self._look

    def look_at_crash(self) -> None:
        """Crash a copy of the disk and judge what is recovered from it."""
        is_kill = self.draw.random() < 0.15
        crashes.judge(self, crashes.fork(self.disk), is_kill=is_kill)

    def crash(self, *, is_cut: bool = False) -> None:
        """The broker is no more: the power is cut, or the process killed. Then start again."""
        is_kill = not is_cut and self.draw.random() < 0.3
        self.disk.watcher = None
        self.crashes += 1
        self.tell("the process is killed" if is_kill else "the power is cut")
        self.count()
        state, found = crashes.judge(self, self.disk, is_kill=is_kill)
        self.model = Model.recovered(self.model, state, found)
        self.start()

    def count(self) -> None:
        """Take over what the present process has counted."""
        self.deliveries += self.model.deliveries
        self.confirms += self.model.confirms
        self.model.deliveries = self.model.confirms = 0

    def end(self) -> None:
        """Come to rest, crash once more, and let clients fetch what is there."""
        self.disk.crash_after = None
        self.settle_down()
        self.crash()
        actions.fetch_all(self.connect(), self.draw)
        self.settle_down()
        for each in self.model.queues.values():
            if each.ready:
                raise Violation(f"{each.name} keeps {each.ready[0].number}, and nobody gets it")

    def cut_soon(self) -> None:
        """The power will be cut in the middle of something."""
        self.disk.crash_after = self.draw.randrange(12)
        self.tell(f"the power is cut after {self.disk.crash_after} operations of the disk")

    def fault(self) -> None:
        """The disk will refuse something soon."""
        verb = self.draw.choice(("write", "sync", "sync", "create", "rename", "unlink"))
        number = self.draw.choice((errno.EIO, errno.ENOSPC, errno.ENOSPC))
        self.tell(f"the next {verb} will fail with {number}")
        self.disk.fail_next(verb, number)

    def strain(self) -> None:
        """Now and then the disk of a rough history has no room, or its power goes."""
        chance = self.draw.random()
        if self.model.has_failed:
            return
        if chance < 0.04:
            verb = self.draw.choice(("write", "write", "write", "create", "rename"))
            self.tell(f"no room for the next {verb}")
            self.disk.fail_next(verb, errno.ENOSPC)
        elif chance < 0.055:
            self.cut_soon()

    def check(self) -> None:
        """What the app does every second: read the gauges, probe a disk that was full."""
        self.runtime.periodic_check.check(0)
        self.check_bugs()
