"""A whole broker without loop, socket or disk: octets in, octets out, turns and syncs by hand."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count

from pamqp import base, commands

from tests import wire
from tests.unit.server.broker.paging.paged_worlds import unpaged
from vouchmq.protocol.fields import Field, Table, boolean, encode_table
from vouchmq.server.auth.connection_limits import ConnectionLimits
from vouchmq.server.auth.users import Authenticator
from vouchmq.server.broker.broker import Broker
from vouchmq.server.broker.dead_letter.pace import DeadLetterPace
from vouchmq.server.broker.dead_letter.publisher import DeadLetterPublisher
from vouchmq.server.broker.delays.delay import held_for
from vouchmq.server.broker.delays.delay_queue import DelayQueue
from vouchmq.server.broker.enqueue import Enqueuer
from vouchmq.server.broker.features.apply import FeatureBuilder
from vouchmq.server.broker.features.effective import features_of
from vouchmq.server.broker.message import Message
from vouchmq.server.broker.paging.paged_store import JournalClock
from vouchmq.server.broker.paging.pager import Pager
from vouchmq.server.broker.policy.policies import PolicyMatch
from vouchmq.server.broker.queues.classic import Queue
from vouchmq.server.broker.queues.spec import QueueSpec
from vouchmq.server.broker.timers import Timers
from vouchmq.server.connection.connection import Connection
from vouchmq.server.connection.handshake import Handshake, Offer
from vouchmq.server.edge.accounts import UserAccount
from vouchmq.server.runtime.context import BrokerContext, Limits
from vouchmq.server.runtime.turn import Turn

HEADER = b"AMQP\x00\x00\x09\x01"
ACCOUNTS = (
    UserAccount("guest", password="guest"),
    UserAccount("other", password="other", tags=("impersonator",)),
    UserAccount("poor", password="poor", write="^open", read="^open", configure="^open"),
    UserAccount("few", password="few", max_channels=2),
)
NOTIFIED = ("consumer_cancel_notify", "authentication_failure_close", "publisher_confirms")


@dataclass
class FakeJournal:
    """Hands out LSNs and remembers what it was told; syncs when it is told to."""

    last_lsn: int = 0
    unsynced_bytes: int = 0
    runs: list[tuple[tuple[int, ...], bytes, list[bytes]]] = field(default_factory=list)
    settled: list[tuple[int, list[int]]] = field(default_factory=list)
    marks: dict[int, int] = field(default_factory=dict)
    dropped: list[int] = field(default_factory=list)
    records: list[bytes] = field(default_factory=list)
    contents: dict[int, tuple[bytes, bytes]] = field(default_factory=dict)
    notes: dict[tuple[int, bytes], bytes] = field(default_factory=dict)
    pages: dict[int, list[Message]] = field(default_factory=dict)

    def take(self, count: int) -> int:
        first = self.last_lsn + 1
        self.last_lsn += count
        return first

    def append_run(self, queue_ids: tuple[int, ...], tail: bytes, raws: list[bytes]) -> int:
        assert queue_ids
        self.runs.append((queue_ids, tail, raws))
        self.unsynced_bytes += sum(map(len, raws))
        first = self.take(len(raws))
        self.contents |= {first + at: (raw, tail) for at, raw in enumerate(raws)}
        return first

    def barrier(self) -> int:
        return self.take(1)

    def unsettle(self, queue_id: int, lsns: Sequence[int]) -> None:
        self.settled.remove((queue_id, list(lsns)))

    def note(self, scope_id: int, key: bytes, value: bytes) -> int:
        assert scope_id
        self.notes[scope_id, key] = value
        return self.take(1)

    def unnote(self, scope_id: int, key: bytes) -> None:
        del self.notes[scope_id, key]

    def settle(self, queue_id: int, lsns: Sequence[int]) -> None:
        assert queue_id
        self.settled.append((queue_id, list(lsns)))

    def delivered(self, queue_id: int, lsn: int) -> None:
        assert queue_id
        self.marks[queue_id] = lsn

    def define(self, record: bytes) -> int:
        self.records.append(record)
        return self.take(1)

    def drop_queue(self, queue_id: int) -> int:
        self.dropped.append(queue_id)
        return self.take(1)

    # What does not fit into memory

    def fetch_runs(
        self, lsns: Sequence[int], limit_octets: int
    ) -> list[tuple[int, bytes, Sequence[bytes], int]]:
        assert limit_octets > 0
        return [(lsn, self.contents[lsn][1], [self.contents[lsn][0]], 0) for lsn in lsns]

    def page_out(self, messages: list[Message]) -> int:
        self.pages[self.take(1)] = list(messages)
        return self.last_lsn

    def page_in(self, page: int) -> list[Message]:
        return self.pages.pop(page)

    def drop_page(self, page: int) -> None:
        del self.pages[page]


class World:
    """One broker, its clock, its turns and its journal."""

    def __init__(
        self,
        limits: Limits | None = None,
        offer: Offer | None = None,
        *,
        memory_octets: int = 1 << 40,
    ) -> None:
        self.now = 1000.0
        self.tick_s = 0.0  # by which time moves whenever somebody looks at the clock
        self.pace_clock: Callable[[], float] = lambda: self.now
        self.journal = FakeJournal()
        self.scheduled: list[Callable[[], None]] = []
        self.bugs: list[BaseException] = []
        self.pager = Pager(self.journal, memory_octets, memory_octets)
        self.turn = Turn(self.scheduled.append, self.pager.run, self.bugs.append, self._clock)
        now_ms = lambda: int(self.now * 1000)  # noqa: E731
        self.alarms: list[Timer] = []
        self.timers = Timers(now_ms, self.call_later)
        self.enqueuer = Enqueuer(lambda: self.journal, now_ms)
        self.dead_letter_publisher = DeadLetterPublisher(
            lambda name: self.broker.vhosts.get(name),
            self.enqueuer,
            lambda: self.journal,
            lambda: 1_600_000_000_000 + int(self.now * 1000),
            self.turn.wake,
            DeadLetterPace(
                lambda: self.pace_clock(),
                lambda: self.turn.count,
                lambda: self.context.alarms.is_disk_low,
                self.turn.later,
            ),
        )
        self.feature_builder = FeatureBuilder(
            self.timers,
            self.dead_letter_publisher,
            self.pager,
            lambda: self.journal,
            JournalClock(now_ms, now_ms),
        )
        self.feature_builder.serve = self._serve
        self.feature_builder.expire = lambda queue: self.vhost.end_queue(queue)
        self.broker: Broker[Queue] = Broker(
            new_queue=self._new_queue,
            define=self.journal.define,
            drop_queue=self.journal.drop_queue,
            random_name=lambda: f"random{next(self._numbers):016d}",
            regulate=self._regulate,
        )
        self._numbers = count(1)
        self.connections: dict[Connection, None] = {}
        self.context = BrokerContext(
            self.broker,
            self.journal,
            self.turn,
            limits or Limits(),
            connections=self.connections,
            enqueuer=self.enqueuer,
            feature_builder=self.feature_builder,
            clock=self._clock,
            random_token=lambda: f"token{next(self._numbers):017d}",
            name="n@h",
        )
        self.vhost, _ = self.broker.create_vhost("/")
        self.offer = offer or Offer("n@h", "VouchMQ", "1", "test", channel_max=10, heartbeat_s=0)
        self.auth = Authenticator(ACCOUNTS, (), bytes)
        self.connection_limits = ConnectionLimits()
        self.sync()

    def _new_queue(self, spec: QueueSpec) -> Queue:
        if held_for(spec.name) is not None:
            around = (self.turn, self.journal, unpaged(), self._unused)
            return DelayQueue(
                spec,
                *around,
                timers=self.timers,
                release=self.dead_letter_publisher.release,
                most=0,
            )
        queue = Queue(spec, self.turn, self.journal, unpaged(), self._unused)
        self.feature_builder.apply_options(queue, features_of(spec.arguments))
        return queue

    def _regulate(self, queue: Queue, policy_match: PolicyMatch) -> None:
        self.feature_builder.apply_options(queue, features_of(queue.spec.arguments, policy_match))

    def _serve(self, queue: Queue) -> bool:
        if queue.has_consumers and not self.enqueuer.is_gathering:
            queue.dispatch()
            return True
        return False

    def _clock(self) -> float:
        self.now += self.tick_s
        return self.now

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

    def _unused(self, queue: Queue) -> None:
        self.vhost.consumer_gone(queue)

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
        """Everything so far is on disk."""
        self.run_turns()
        self.journal.unsynced_bytes = 0
        self.context.synced(self.journal.last_lsn)
        self.run_turns()

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

    def write(self, data: bytes | memoryview) -> None:
        assert "finished" not in self.ends
        if not self.ends:
            self.octets += data

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
