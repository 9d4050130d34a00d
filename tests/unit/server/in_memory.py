"""A whole broker without loop, socket or disk: octets in, octets out, turns and syncs by hand."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import count
from typing import TYPE_CHECKING, cast

from pamqp import base, commands

from tests import wire
from tests.open_classes import open_journals
from tests.simulation.sim_disk import SimDisk
from vouchmq.protocol.fields import Field, Table, boolean, encode_table
from vouchmq.server.connection.connection import Connection
from vouchmq.server.connection.handshake import Handshake, Offer
from vouchmq.server.runtime.runtime import Host, report_bug, start_broker
from vouchmq.server.settings.accounts import UserAccount
from vouchmq.server.settings.settings import Settings
from vouchmq.store.errors import ReadFailed
from vouchmq.store.journal.journal import Journal
from vouchmq.store.sync.worker import SyncInline, SyncWorker

if TYPE_CHECKING:
    from vouchmq.server.auth.slow_checks import Elsewhere
    from vouchmq.server.broker.broker import Broker
    from vouchmq.server.broker.queues.classic import ClassicQueue
    from vouchmq.store.journal.segments import BlockTap

HEADER = b"AMQP\x00\x00\x09\x01"
ACCOUNTS = (
    UserAccount("guest", password="guest"),
    UserAccount("other", password="other", tags=("impersonator",)),
    UserAccount("poor", password="poor", write="^open", read="^open", configure="^open"),
    UserAccount("few", password="few", max_channels=2),
)
# Whatever is said of time or of the disk is said by the test that needs it.
SETTINGS = Settings(
    node="n@h", segment_size_bytes=65536, disk_free_limit="0", consumer_timeout_ms=0
)
WALL_MS = 1_600_000_000_000
NOTIFIED = ("consumer_cancel_notify", "authentication_failure_close", "publisher_confirms")


@dataclass
class JournalCalls:
    """What the broker has given the journal, in order."""

    runs: list[tuple[tuple[int, ...], bytes, list[bytes]]] = field(default_factory=list)
    settled: list[tuple[int, list[int]]] = field(default_factory=list)
    records: list[bytes] = field(default_factory=list)
    notes: dict[tuple[int, bytes], bytes] = field(default_factory=dict)

    def watch(self, journal: Journal) -> None:
        """Write down from now on what this journal is given."""
        append_run, append_unlike = journal.append_run, journal.append_unlike
        settle, unsettle = journal.settle, journal.unsettle
        define, note, unnote = journal.define, journal.note, journal.unnote

        def watched_run(queue_ids: tuple[int, ...], tail: bytes, raws: list[bytes]) -> int:
            assert queue_ids
            self.runs.append((queue_ids, tail, raws))
            return append_run(queue_ids, tail, raws)

        def watched_unlike(
            queue_ids: tuple[int, ...], tails: Sequence[bytes], raws: list[bytes]
        ) -> int:
            assert queue_ids
            self.runs += ((queue_ids, tail, [raw]) for tail, raw in zip(tails, raws, strict=True))
            return append_unlike(queue_ids, tails, raws)

        def watched_settle(queue_id: int, lsns: Sequence[int]) -> None:
            assert queue_id
            self.settled.append((queue_id, list(lsns)))
            settle(queue_id, lsns)

        def watched_unsettle(queue_id: int, lsns: Sequence[int]) -> None:
            if (queue_id, list(lsns)) in self.settled:
                self.settled.remove((queue_id, list(lsns)))
            unsettle(queue_id, lsns)

        def watched_define(record: bytes) -> int:
            self.records.append(record)
            return define(record)

        def watched_note(scope_id: int, key: bytes, value: bytes) -> int:
            assert scope_id
            self.notes[scope_id, key] = value
            return note(scope_id, key, value)

        def watched_unnote(scope_id: int, key: bytes) -> None:
            self.notes.pop((scope_id, key), None)  # it may be of an earlier life
            unnote(scope_id, key)

        journal.append_run = watched_run  # type: ignore[method-assign]
        journal.append_unlike = watched_unlike  # type: ignore[method-assign]
        journal.settle = watched_settle  # type: ignore[method-assign]
        journal.unsettle = watched_unsettle  # type: ignore[method-assign]
        journal.define = watched_define  # type: ignore[method-assign]
        journal.note = watched_note  # type: ignore[method-assign]
        journal.unnote = watched_unnote  # type: ignore[method-assign]


class World:
    """One broker on a simulated disk, put together as `vouchmq serve` does it.

    Nothing is on disk before `sync`, and time goes by only by hand; `disk.fail` makes what is
    written fail. Timers ring only with `rings`: without them compaction takes a step in every turn.
    """

    def __init__(
        self,
        settings: Settings = SETTINGS,
        offer: Offer | None = None,
        *,
        disk: SimDisk | None = None,
        now: float = 1000.0,
        rings: bool = True,
        elsewhere: Elsewhere | None = None,
        tap: BlockTap | None = None,
        worker: SyncWorker | None = None,
    ) -> None:
        settings = replace(settings, users=settings.users or ACCOUNTS)
        self.settings = settings
        self.disk = SimDisk() if disk is None else disk
        self.now = now
        self.tick_s = 0.0  # by which time moves whenever somebody looks at the clock
        self._rings = rings
        self.scheduled: list[Callable[[], None]] = []
        self.alarms: list[Timer] = []
        self.fatal: list[str] = []
        self.bugs: list[BaseException] = []
        self._numbers = count(1)
        host = Host(
            call_soon=self.scheduled.append,
            call_later=self.call_later if rings else None,
            clock=self._clock,
            wall_ms=lambda: WALL_MS + int(1000 * self.now),
            random_token=lambda: f"token{next(self._numbers):017d}",
            fatal=self.fatal.append,
            report=self._report,
            elsewhere=elsewhere,
        )
        with open_journals():
            self.runtime = start_broker(settings, self.disk, worker or SyncInline(), host, tap=tap)
        self.journal = self.runtime.journal
        self.calls = JournalCalls()
        self.calls.watch(self.journal)
        self.turn = self.runtime.turn
        self.pager = self.runtime.pager
        self.timers = self.runtime.timers
        self.enqueuer = self.runtime.enqueuer
        self.feature_context = self.runtime.feature_context
        self.dead_letter_publisher = self.runtime.dead_letter_publisher
        # Tests look into queues, which are classic ones where they do.
        self.broker = cast("Broker[ClassicQueue]", self.runtime.broker)
        self.context = self.runtime.context
        self.connections = self.runtime.connections
        self.vhost, _ = self.broker.create_vhost("/")
        self.offer = offer or Offer("n@h", "VouchMQ", "1", "test", channel_max=10, heartbeat_s=0)
        self.auth = self.runtime.authenticator
        self.connection_limits = self.runtime.connection_limits
        self.sync()

    def _clock(self) -> float:
        self.now += self.tick_s
        return self.now

    def _report(self, error: BaseException) -> None:
        report_bug(error)
        if not isinstance(error, ReadFailed):
            self.bugs.append(error)

    def run_turn(self) -> None:
        """Run what is scheduled now, and nothing that it causes."""
        scheduled, self.scheduled[:] = list(self.scheduled), []
        for job in scheduled:
            job()
        assert not self.bugs, self.bugs

    def call_later(self, delay_s: float, callback: Callable[[], None]) -> Timer:
        timer = Timer(self.now + delay_s, callback)
        self.alarms.append(timer)
        return timer

    def pass_time(self, seconds: float) -> None:
        """Let the clock go on, and everything happen that is due by then."""
        self.now += seconds
        due = [timer for timer in self.alarms if timer.due <= self.now + 1e-9]
        self.alarms = [timer for timer in self.alarms if timer not in due]
        for timer in due:
            timer.callback()
        self.run_turns()

    def run_turns(self) -> None:
        """Run turns until nothing is scheduled."""
        for _ in range(100):
            if not self.scheduled:
                assert not self.bugs, self.bugs
                return
            scheduled, self.scheduled[:] = list(self.scheduled), []
            for job in scheduled:
                job()
        raise AssertionError("the broker turns for ever")

    def sync(self) -> None:
        """Everything so far is written and synced, as far as the disk lets it be."""
        self.run_turns()
        while not self.runtime.commit.is_idle and not self.runtime.commit.has_failed:
            self.sync_once()

    def sync_once(self) -> None:
        """The sync that is under way ends; what comes of that waits for the next one."""
        self.runtime.commit.on_readable()
        self.run_turns()

    def check(self) -> None:
        """The gauges are read, which also probes a disk that has refused."""
        self.runtime.periodic_check.check(0)
        self.sync()

    def client(self) -> Client:
        """A peer that has said nothing yet."""
        return Client(self)

    def connect(self, user: str = "guest", capabilities: tuple[str, ...] = NOTIFIED) -> Client:
        """A client with an open connection."""
        client = self.client()
        client.send(HEADER)
        client.log_in(user, capabilities)
        client.send(wire.method(0, commands.Connection.TuneOk(10, wire.FRAME_MAX, 0)))
        client.send(wire.method(0, commands.Connection.Open("/")))
        said = client.hear()
        assert isinstance(said[-1][1], commands.Connection.OpenOk), said
        return client


@dataclass
class Timer:
    """Something that will be called, unless it is taken back."""

    due: float
    callback: Callable[[], None]
    is_cancelled: bool = False

    def cancel(self) -> None:
        self.is_cancelled = True


class Client:
    """The other end of the wire, and the wire itself."""

    name = "127.0.0.1:50000 -> 127.0.0.1:5672"

    def __init__(self, world: World) -> None:
        self.world = world
        self.octets = bytearray()
        self.paused: set[int] = set()
        self.ends: list[str] = []
        self.is_orderly_end = False
        self.timers: list[Timer] = []
        self.unsent_octets = 0
        self.unsent_limit = 0
        handshake = Handshake(
            world.offer,
            world.auth,
            world.broker.vhosts.get,
            world.connection_limits,
            peer=self.name,
            is_loopback=True,
        )
        self.connection = Connection(world.context, world.connections, self, handshake)

    # The wire, as the connection sees it

    def write(self, data: bytes | memoryview) -> bool:
        assert "finished" not in self.ends
        if not self.ends:
            self.octets += data
        return True

    def write_parts(self, parts: Sequence[bytes | memoryview]) -> None:
        for part in parts:
            self.write(part)

    @property
    def is_paused(self) -> bool:
        return bool(self.paused)

    @property
    def is_swamped(self) -> bool:
        return False

    def limit_unsent(self, octets: int) -> None:
        self.unsent_limit = octets

    def pause(self, reason: int) -> None:
        self.paused.add(reason)

    def resume(self, reason: int) -> None:
        self.paused.discard(reason)

    def finish(self, *, is_orderly: bool = False) -> None:
        self.ends.append("finished")
        self.is_orderly_end = is_orderly

    def abort(self) -> None:
        self.ends.append("aborted")
        self.world.scheduled.append(lambda: self.connection.lost("aborted"))

    def call_later(self, delay_s: float, callback: Callable[[], None]) -> Timer:
        timer = Timer(self.world.now + delay_s, callback)
        self.timers.append(timer)
        return timer

    # The client

    def log_in(self, user: str, capabilities: tuple[str, ...] = NOTIFIED) -> None:
        """Send start-ok with PLAIN; the password of each test user is its name."""
        can: Table = {name: boolean(True) for name in capabilities}
        properties = encode_table({"capabilities": Field("F", can)})
        response = f"\0{user}\0{user}".encode()
        payload = (
            b"\x00\x0a\x00\x0b"
            + properties
            + b"\x05PLAIN"
            + len(response).to_bytes(4, "big")
            + response
            + b"\x05en_US"
        )
        self.send(wire.frame(1, 0, payload))

    def send(self, *octets: bytes) -> None:
        """Send octets in one piece; no turn is run."""
        self.connection.receive(b"".join(octets))

    def method(self, channel: int, what: base.Frame) -> None:
        """Send a method."""
        self.send(wire.method(channel, what))

    def hear(self) -> list[wire.Heard]:
        """What has been said since the last call, after the turns that are due."""
        self.world.run_turns()
        octets, self.octets = bytes(self.octets), bytearray()
        return wire.hear(octets)

    def names(self) -> list[str]:
        """As `hear`, the names of the methods only."""
        return [name_of(what) for _, what in self.hear()]

    def ask(self, channel: int, what: base.Frame, *, sync: bool = True) -> wire.Heard:
        """Send a method that has one answer, and give that."""
        assert self.hear() == []
        self.method(channel, what)
        if sync:
            self.world.sync()
        said = self.hear()
        assert len(said) == 1, said
        return said[0]

    def open(self, channel: int = 1) -> None:
        """Open a channel."""
        _, what = self.ask(channel, commands.Channel.Open())
        assert isinstance(what, commands.Channel.OpenOk)

    def declare(self, queue: str, channel: int = 1, **more: bool) -> None:
        """Declare a queue."""
        number, what = self.ask(channel, commands.Queue.Declare(queue=queue, **more))  # type: ignore[arg-type]
        assert number == channel
        assert isinstance(what, commands.Queue.DeclareOk), what

    def consume(self, queue: str, tag: str, channel: int = 1, **more: bool) -> list[wire.Heard]:
        """Consume; gives what was heard behind consume-ok."""
        assert self.hear() == []
        self.method(channel, commands.Basic.Consume(queue=queue, consumer_tag=tag, **more))  # type: ignore[arg-type]
        first, *rest = self.hear()
        assert isinstance(first[1], commands.Basic.ConsumeOk), first
        return rest

    def qos(self, count: int, *, size: int = 0, is_global: bool = False, channel: int = 1) -> None:
        """Set a prefetch limit."""
        self.method(channel, commands.Basic.Qos(size, count, is_global))
        assert self.names()[:1] == ["Basic.QosOk"]

    def deliveries(self) -> list[tuple[str, int, bytes, bool]]:
        """As `hear`: deliveries as (consumer tag, delivery tag, body, redelivered)."""
        return [delivery(what) for _, what in self.hear()]

    def message_count(self, queue: str, channel: int = 1) -> int:
        """Ready messages of a queue."""
        _, what = self.ask(channel, commands.Queue.Declare(queue=queue, passive=True))
        assert isinstance(what, commands.Queue.DeclareOk), what
        return what.message_count or 0

    def sleep(self, seconds: float) -> None:
        """Let time pass; timers run when they are due."""
        end = self.world.now + seconds
        self.world.run_turns()
        while due := [timer for timer in self.timers if timer.due <= end]:
            timer = min(due, key=lambda each: each.due)
            self.timers.remove(timer)
            if not timer.is_cancelled:
                self.world.now = max(timer.due, self.world.now)
                timer.callback()
                self.world.run_turns()
        self.world.now = end


def name_of(what: base.Frame | wire.Content | None) -> str:
    """A method's name; a content goes by its method."""
    if what is None:
        return "heartbeat"
    return what.method.name if isinstance(what, wire.Content) else what.name


def content(what: base.Frame | wire.Content | None) -> wire.Content:
    """Something heard that must be a method with its content."""
    assert isinstance(what, wire.Content), what
    return what


def delivery(what: base.Frame | wire.Content | None) -> tuple[str, int, bytes, bool]:
    """Consumer tag, delivery tag, body, redelivered."""
    deliver = content(what).method
    assert isinstance(deliver, commands.Basic.Deliver), deliver
    tag, redelivered = deliver.delivery_tag or 0, bool(deliver.redelivered)
    return deliver.consumer_tag or "", tag, content(what).body, redelivered


@contextmanager
def closes_channel(
    client: Client, code: int, text: str, ids: tuple[int, int], channel: int = 1
) -> Iterator[None]:
    """What is done within ends in this channel.close, said last and once; answers it."""
    assert client.hear() == []
    yield
    client.world.sync()
    said = client.hear()
    closes = [what for _, what in said if isinstance(what, commands.Channel.Close)]
    assert len(closes) == 1, said
    assert said[-1] == (channel, closes[0])
    check_close(closes[0], code, text, ids)
    client.method(channel, commands.Channel.CloseOk())
    assert client.hear() == []


@contextmanager
def closes_connection(client: Client, code: int, text: str, ids: tuple[int, int]) -> Iterator[None]:
    """What is done within ends in this connection.close, said last and once; answers it."""
    yield
    client.world.sync()
    said = client.hear()
    closes = [what for _, what in said if isinstance(what, commands.Connection.Close)]
    assert len(closes) == 1, said
    assert said[-1] == (0, closes[0])
    check_close(closes[0], code, text, ids)
    if not client.ends:
        client.method(0, commands.Connection.CloseOk())
    assert client.ends == ["finished"]


def check_close(
    close: commands.Channel.Close | commands.Connection.Close,
    code: int,
    text: str,
    ids: tuple[int, int],
) -> None:
    """Code, text and ids of a close."""
    assert (close.reply_code, close.reply_text) == (code, text)
    assert (close.class_id, close.method_id) == ids


def confirms(said: list[wire.Heard]) -> list[tuple[str, int, bool]]:
    """Confirms among what was heard, as (name, number, multiple)."""
    return [
        (what.name, what.delivery_tag or 0, bool(what.multiple))
        for _, what in said
        if isinstance(what, commands.Basic.Ack | commands.Basic.Nack)
    ]
