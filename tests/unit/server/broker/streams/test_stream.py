"""Streams on a whole broker: offsets that outlive everything, retention, positions, memory."""

from __future__ import annotations

import errno
from random import Random
from typing import TYPE_CHECKING

import pytest
from pamqp import commands

from tests import wire
from tests.simulation.sim_disk import SimDisk
from tests.unit.server.in_memory import World, closes_connection, confirms, content
from tests.unit.server.on_disk import DiskWorld
from vouchmq.server.broker.streams.index import CHUNK_OCTETS
from vouchmq.server.broker.streams.reader import RECENT_OCTETS
from vouchmq.server.broker.streams.stream import Stream

if TYPE_CHECKING:
    from tests.unit.server.in_memory import Client


@pytest.fixture
def world() -> DiskWorld:
    """A broker with a journal."""
    return DiskWorld()


@pytest.fixture
def client(world: DiskWorld) -> Client:
    """A client that publishes with confirms on channel 1."""
    return publisher(world)


def publisher(world: DiskWorld) -> Client:
    client = world.connect()
    client.open()
    client.method(1, commands.Confirm.Select())
    assert client.names() == ["Confirm.SelectOk"]
    return client


def declare(client: Client, **arguments: object) -> None:
    """The stream s; argument names without x- and with underscores."""
    table = {"x-" + key.replace("_", "-"): value for key, value in arguments.items()}
    table["x-queue-type"] = "stream"
    client.ask(1, commands.Queue.Declare(queue="s", durable=True, arguments=table))  # type: ignore[arg-type]


def stream_of(world: World) -> Stream:
    stream = world.vhost.queues["s"]
    assert isinstance(stream, Stream)
    return stream


def append(client: Client, *bodies: bytes, mode: int = 1, **properties: object) -> None:
    """Publish in one go and wait until all are confirmed."""
    block = commands.Basic.Properties(delivery_mode=mode, **properties)  # type: ignore[arg-type]
    before = stream_of(client.world).index.next_offset
    client.send(*(wire.publish(1, "s", body, block) for body in bodies))
    client.world.sync()
    assert {name for name, _, _ in confirms(client.hear())} == {"Basic.Ack"}
    assert stream_of(client.world).index.next_offset == before + len(bodies)


class Reader:
    """A consumer of the stream on a connection of its own."""

    def __init__(
        self,
        world: DiskWorld,
        start: object = "first",
        more: dict[str, object] | None = None,
        *,
        prefetch: int = 1000,
    ) -> None:
        self.client = world.connect()
        self.client.open()
        self.client.qos(prefetch)
        table = {"x-stream-offset": start, **(more or {})}
        consume = commands.Basic.Consume(queue="s", consumer_tag="c", arguments=table)  # type: ignore[arg-type]
        self.client.method(1, consume)
        world.run_turns()
        self.seen: list[tuple[int, bytes]] = []
        self.tag = 0
        self.look()

    def look(self) -> list[tuple[int, bytes]]:
        """Offsets and bodies that have come since the last look."""
        self.client.world.run_turns()
        fresh: list[tuple[int, bytes]] = []
        for _, what in self.client.hear():
            if isinstance(what, wire.Content):
                deliver = content(what).method
                assert isinstance(deliver, commands.Basic.Deliver)
                assert not deliver.redelivered
                self.tag = deliver.delivery_tag or 0
                headers = what.properties.headers or {}
                fresh.append((headers["x-stream-offset"], what.body))  # type: ignore[arg-type]
        self.seen += fresh
        return fresh

    def ack_all(self) -> list[tuple[int, bytes]]:
        """Settle what came, and look at what comes then."""
        self.client.send(wire.ack(1, self.tag, multiple=True))
        return self.look()


def numbered(first: int, count: int) -> list[tuple[int, bytes]]:
    return [(number, b"%d" % number) for number in range(first, first + count)]


def bodies(first: int, count: int, size: int = 0) -> list[bytes]:
    return [(b"%d" % number).ljust(size) for number in range(first, first + count)]


class TestRestart:
    """STREAM-02, STREAM-03: what was confirmed is there, under its offset."""

    def test_everything_survives_a_power_cut(self, world: DiskWorld, client: Client) -> None:
        declare(client)
        append(client, *bodies(0, 3), mode=1)
        append(client, *bodies(3, 2), mode=2)
        for turn in range(3):
            world = world.after_power_cut(turn)
            client = publisher(world)
            assert client.message_count("s") == 5 + turn
            append(client, *bodies(5 + turn, 1))
            assert Reader(world).seen == numbered(0, 6 + turn)

    def test_offsets_go_on_behind_what_retention_took(
        self, world: DiskWorld, client: Client
    ) -> None:
        """Also when nothing but the segment being written is left."""
        declare(client, stream_max_segment_size_bytes=1000, max_length=5)
        for batch in range(6):
            append(client, *bodies(10 * batch, 10, 100))
        oldest = stream_of(world).index.first_offset
        assert oldest == 50
        append(client, b"60")  # syncs what the journal was told of what is gone
        oldest = stream_of(world).index.first_offset
        for _ in range(2):
            world = world.after_power_cut()
            index = stream_of(world).index
            assert (index.first_offset, index.next_offset) == (oldest, 61)
            assert Reader(world, 0).seen[0][0] == oldest
        append(publisher(world), b"61")
        assert Reader(world, "last").seen[-1] == (61, b"61")

    def test_sizes_and_times_are_known_again(self, world: DiskWorld, client: Client) -> None:
        declare(client, stream_max_segment_size_bytes=1000)
        world.now -= 40  # a broker that is started begins where this one will be
        for batch in range(4):
            append(client, *bodies(10 * batch, 10, 100))
            world.now += 10
        append(client, *bodies(40, 2, 100))
        before = stream_of(world).index
        world = world.after_power_cut()
        reader = Reader(world, "15s")
        after = stream_of(world).index
        assert after.octets == before.octets
        assert after.segment_count == before.segment_count == 5
        assert reader.seen[0][0] == 30
        assert Reader(world, "25s").seen[0][0] == 20
        assert Reader(world, "1h").seen[0][0] == 0

    def test_segments_of_the_journal_come_and_go(self, world: DiskWorld, client: Client) -> None:
        """Notes are written again, messages are moved, and the files of the others go."""
        declare(client, stream_max_segment_size_bytes=20_000, max_length_bytes=60_000)
        client.declare("plain", durable=True)
        client.declare("kept", durable=True)
        client.send(wire.publish(1, "kept", b"k", wire.persistent()))
        for batch in range(60):
            append(client, *bodies(10 * batch, 10, 1000))
            client.send(wire.publish(1, "plain", b"p" * 3000, wire.persistent()))
            client.method(1, commands.Basic.Get(queue="plain", no_ack=True))
            world.sync()
            client.hear()
        assert len(world.disk.listdir()) < 12
        oldest = stream_of(world).index.first_offset
        assert oldest > 500
        world = world.after_power_cut()
        seen = Reader(world).seen
        assert [offset for offset, _ in seen] == list(range(seen[0][0], 600))
        assert all(int(body) == offset for offset, body in seen)
        assert oldest - 20 <= seen[0][0] <= oldest


class TestOnlyWhatIsOnDisk:
    """STREAM-02, STREAM-03: an offset that somebody has seen is never another message's."""

    def test_consumer_waits_for_the_sync(self, world: DiskWorld) -> None:
        client = world.connect()
        client.open()
        declare(client)
        world.sync()
        reader = Reader(world)
        client.send(*(wire.publish(1, "s", body) for body in bodies(0, 3)))
        assert reader.look() == [], "not synced, and nobody has asked for a confirm"
        world.sync()
        assert reader.look() == numbered(0, 3)

    @pytest.mark.parametrize("seed", range(30))
    def test_offset_keeps_its_message_over_power_cuts(self, seed: int) -> None:
        draw = Random(seed)
        world = DiskWorld(SimDisk(seed))
        seen: dict[int, bytes] = {}
        published = 0
        for life in range(4):
            client = world.connect()
            client.open()
            declare(client)
            world.sync()
            readers = [Reader(world, draw.choice(["first", "last", "next"])) for _ in range(2)]
            for _ in range(draw.randrange(1, 12)):
                count = draw.randrange(1, 5)
                client.send(*(wire.publish(1, "s", body) for body in bodies(published, count)))
                published += count
                world.run_turns()
                if draw.random() < 0.4 and not world.runtime.commit.is_idle:
                    world.runtime.commit.on_readable()
                for reader in readers:
                    reader.look()
            for reader in readers:
                for offset, body in reader.seen:
                    assert seen.setdefault(offset, body) == body
            world = world.after_power_cut(10 * seed + life)
        left = dict(Reader(world).seen)
        assert seen.items() <= left.items()


class TestRetention:
    """STREAM-21, STREAM-23."""

    def test_age(self, world: DiskWorld, client: Client) -> None:
        declare(client, stream_max_segment_size_bytes=1000, max_age="10s")
        append(client, *bodies(0, 10, 100))
        world.now += 6
        append(client, *bodies(10, 10, 100))
        world.now += 6
        append(client, *bodies(20, 1, 100))
        assert stream_of(world).index.first_offset == 10
        world.now += 3600
        Reader(world, "last")
        assert stream_of(world).index.first_offset == 20

    def test_what_is_dropped_leaves_the_journal(self, world: DiskWorld, client: Client) -> None:
        declare(client, stream_max_segment_size_bytes=1000, max_length=10)
        for batch in range(5):
            append(client, *bodies(10 * batch, 10, 100))
        append(client, b"50")
        stream_id = stream_of(world).spec.queue_id
        chain = world.runtime.journal.chain
        live = sum(
            segment.live_by_queue.get(stream_id, 0) for segment in [*chain.resting, chain.active]
        )
        assert live == stream_of(world).ready_count == client.message_count("s")

    def test_slow_reader_goes_on_at_the_oldest(self, world: DiskWorld, client: Client) -> None:
        declare(client, stream_max_segment_size_bytes=1000, max_length=20)
        append(client, *bodies(0, 10, 100))
        reader = Reader(world, prefetch=3)
        assert [offset for offset, _ in reader.seen] == [0, 1, 2]
        for batch in range(1, 6):
            append(client, *bodies(10 * batch, 10, 100))
        oldest = stream_of(world).index.first_offset
        assert [offset for offset, _ in reader.ack_all()] == [oldest, oldest + 1, oldest + 2]


class TestReading:
    """STREAM-15, STREAM-20, STREAM-22."""

    def test_window_is_exact_from_memory_and_from_disk(
        self, world: DiskWorld, client: Client
    ) -> None:
        declare(client)
        append(client, *bodies(0, 100))
        old, new = Reader(world, prefetch=5), Reader(world, "next", prefetch=5)
        append(client, *bodies(100, 100))
        assert old.seen == numbered(0, 5)
        assert new.look() == numbered(100, 5)
        for reader, first in ((old, 5), (new, 105)):
            reader.client.send(wire.ack(1, 2))
            assert reader.look() == numbered(first, 1)
            reader.client.send(wire.ack(1, 4, multiple=True))
            assert reader.look() == numbered(first + 1, 3)

    def test_two_readers_each_get_all_in_order(self, world: DiskWorld, client: Client) -> None:
        declare(client)
        append(client, *bodies(0, 50))
        readers = [Reader(world, prefetch=7), Reader(world, prefetch=60)]
        append(client, *bodies(50, 50))
        for reader in readers:
            while reader.ack_all():
                pass
            assert reader.seen == numbered(0, 100)

    def test_time_finds_the_message_within_a_chunk(self, world: DiskWorld, client: Client) -> None:
        declare(client)
        for number in range(20):
            append(client, b"%d" % number)
            world.now += 10
        assert Reader(world, "45s").seen[0][0] == 16
        assert stream_of(world).index.segment_count == 1

    def test_filter_is_exact_over_memory_and_disk(self, world: DiskWorld, client: Client) -> None:
        declare(client)
        more: dict[str, object] = {"x-stream-filter": ["a", "b"]}
        early = Reader(world, "next", more)
        for number in range(40):
            value = "abcd"[number % 4]
            append(client, b"%d" % number, headers={"x-stream-filter-value": value})
        append(client, b"40")
        late = Reader(world, "first", more)
        wanted = [(n, b"%d" % n) for n in range(40) if n % 4 < 2]
        early.look()
        assert early.seen == late.seen == wanted
        more = {"x-stream-filter": "d", "x-stream-match-unfiltered": True}
        unfiltered = Reader(world, "first", more)
        assert unfiltered.seen[-1] == (40, b"40")
        assert [offset for offset, _ in unfiltered.seen[:-1]] == list(range(3, 40, 4))

    def test_filtered_window_counts_what_is_delivered(
        self, world: DiskWorld, client: Client
    ) -> None:
        declare(client)
        for number in range(300):
            value = "a" if number % 10 == 9 else "b"
            append(client, b"%d" % number, headers={"x-stream-filter-value": value})
        reader = Reader(world, "first", {"x-stream-filter": "a"}, prefetch=2)
        assert [offset for offset, _ in reader.seen] == [9, 19]
        assert [offset for offset, _ in reader.ack_all()] == [29, 39]

    def test_published_offset_header_is_replaced(self, world: DiskWorld, client: Client) -> None:
        declare(client)
        append(client, b"0", headers={"x-stream-offset": "mine", "z": 1})
        append(client, b"1", content_type="text/plain", headers={"a": ["x-stream-offset"]})
        reader = world.connect()
        reader.open()
        reader.qos(10)
        arguments = {"x-stream-offset": "first"}
        reader.method(1, commands.Basic.Consume(queue="s", arguments=arguments))  # type: ignore[arg-type]
        _, first, second = (what for _, what in reader.hear())
        assert content(first).properties.headers == {"z": 1, "x-stream-offset": 0}
        shown = content(second).properties
        assert (shown.content_type, shown.headers) == (
            "text/plain",
            {"a": ["x-stream-offset"], "x-stream-offset": 1},
        )

    def test_numbers_are_one_more_than_offsets(self, world: DiskWorld, client: Client) -> None:
        """SEQ-01."""
        declare(client)
        append(client, *bodies(0, 3))
        reader = world.connect()
        reader.open()
        reader.qos(10)
        arguments = {"x-stream-offset": 1, "x-queue-seq": True}
        reader.method(1, commands.Basic.Consume(queue="s", arguments=arguments))  # type: ignore[arg-type]
        _, *said = (what for _, what in reader.hear())
        headers = [content(what).properties.headers or {} for what in said]
        assert [(each["x-stream-offset"], each["x-queue-seq"]) for each in headers] == [
            (1, 2),
            (2, 3),
        ]

    def test_a_large_message_slows_down_none_behind_it(
        self, world: DiskWorld, client: Client
    ) -> None:
        declare(client)
        large = b"x" * 1_500_000
        client.send(wire.publish(1, "s", large, sizes=[4000] * (len(large) // 4000)))
        append(client, *bodies(1, 300))
        reader = world.connect()
        reader.open()
        reader.qos(1000)
        arguments = {"x-stream-offset": 1}
        reader.method(1, commands.Basic.Consume(queue="s", arguments=arguments))  # type: ignore[arg-type]
        world.turn.run()
        said = wire.hear(bytes(reader.octets))
        assert [content(what).body for _, what in said[1:]] == bodies(1, 300)
        assert [len(body) for _, body in Reader(world).seen] == [
            len(large),
            *(len(body) for body in bodies(1, 300)),
        ]


class TestOtherQueues:
    """A stream beside queues of other kinds."""

    def test_transient_message_is_stored_for_the_stream_alone(
        self, world: DiskWorld, client: Client
    ) -> None:
        declare(client)
        client.declare("d", durable=True)
        for queue in "sd":
            client.ask(1, commands.Queue.Bind(queue=queue, exchange="amq.fanout"))
        client.send(wire.publish(1, "", b"0", exchange="amq.fanout"))
        client.send(wire.publish(1, "", b"1", wire.persistent(), exchange="amq.fanout"))
        world.turn.run()
        # The transient one waits for the disk as well.
        assert confirms(wire.hear(bytes(client.octets))) == []
        world.sync()
        assert confirms(client.hear()) == [("Basic.Ack", 2, True)]
        assert client.message_count("d") == 2
        taker = world.connect()
        taker.open()
        taker.method(1, commands.Basic.Get(queue="d", no_ack=True))  # settles nothing stored
        world.sync()
        assert [content(what).body for _, what in taker.hear()] == [b"0"]
        assert not world.fatal
        world = world.after_power_cut()
        client = publisher(world)
        assert client.message_count("d") == 1
        assert Reader(world).seen == numbered(0, 2)

    def test_commit_of_transient_messages_waits_for_the_disk(
        self, world: DiskWorld, client: Client
    ) -> None:
        """STREAM-18, TX-08."""
        declare(client)
        writer = world.connect()
        writer.open()
        writer.method(1, commands.Tx.Select())
        writer.send(wire.publish(1, "s", b"0"), wire.publish(1, "s", b"1"))
        assert writer.names() == ["Tx.SelectOk"]
        assert stream_of(world).ready_count == 0
        writer.method(1, commands.Tx.Commit())
        world.turn.run()
        assert bytes(writer.octets) == b""
        world.sync()
        assert writer.names() == ["Tx.CommitOk"]
        assert Reader(world.after_power_cut()).seen == numbered(0, 2)

    def test_nack_of_several_puts_the_others_back(self, world: DiskWorld, client: Client) -> None:
        """STREAM-13: nothing of a plain queue is lost with the connection."""
        declare(client)
        client.declare("d", durable=True)
        append(client, b"0")
        client.send(wire.publish(1, "d", b"plain", wire.persistent()))
        world.sync()
        client.hear()
        both = world.connect()
        both.open()
        both.qos(10)
        both.consume("d", "d")
        arguments = {"x-stream-offset": "first"}
        both.method(1, commands.Basic.Consume(queue="s", arguments=arguments))  # type: ignore[arg-type]
        both.hear()
        text = (
            "NOT_IMPLEMENTED - basic.nack and basic.reject not supported by stream queues "
            "queue 's' in vhost '/'"
        )
        with closes_connection(both, 540, text, (60, 120)):
            both.send(wire.nack(1, 0, multiple=True, requeue=False))
        assert client.message_count("d") == 1


class TestFullDisk:
    """CONF-12: what the disk refused has never been."""

    def refuse(self, world: DiskWorld) -> None:
        world.disk.fail[("write", world.disk.calls["write"] + 1)] = errno.ENOSPC

    def test_refused_messages_leave_no_gap(self, world: DiskWorld, client: Client) -> None:
        declare(client)
        append(client, *bodies(0, 2))
        reader = Reader(world)
        self.refuse(world)
        client.send(*(wire.publish(1, "s", b"lost") for _ in range(3)))
        assert [name for name, _, _ in confirms(client.hear())] == ["Basic.Nack"]
        assert client.message_count("s") == 2
        world.check()
        append(client, *bodies(2, 2))
        reader.look()
        assert reader.seen == numbered(0, 4)
        assert Reader(world.after_power_cut()).seen == numbered(0, 4)

    def test_who_waits_for_the_next_one_gets_it(self, world: DiskWorld, client: Client) -> None:
        """Where it starts was found behind messages that were refused afterwards."""
        declare(client)
        append(client, b"0")
        reader = world.connect()
        reader.open()
        reader.qos(10)
        client.send(wire.publish(1, "s", b"lost"), wire.publish(1, "s", b"lost"))
        reader.method(1, commands.Basic.Consume(queue="s"))
        self.refuse(world)
        assert [name for name, _, _ in confirms(client.hear())] == ["Basic.Nack"]
        world.check()
        append(client, b"1")
        _, said = (what for _, what in reader.hear())
        assert content(said).body == b"1"

    def test_notes_are_made_again(self, world: DiskWorld, client: Client) -> None:
        """A chunk that was begun or filled by what was refused is known after a restart."""
        declare(client, stream_max_segment_size_bytes=500, max_length=10)
        for number in range(30):
            append(client, *bodies(number, 1, 100))
            if number % 3 == 2:
                self.refuse(world)
                client.send(*(wire.publish(1, "s", b"lost" * 100) for _ in range(number % 4 + 1)))
                assert [name for name, _, _ in confirms(client.hear())] == ["Basic.Nack"]
                world.check()
        append(client, b"30")
        index = stream_of(world).index
        expected = (index.first_offset, index.next_offset)
        assert expected[0] > 10
        world = world.after_power_cut()
        index = stream_of(world).index
        assert index.next_offset == expected[1] == 31
        assert expected[0] - 10 <= index.first_offset <= expected[0]
        assert all(int(body) == offset for offset, body in Reader(world).seen)


class TestMemory:
    """LIMIT-21: however far consumers lag, and however many messages there are."""

    def test_nothing_is_kept_where_nobody_reads(self, world: DiskWorld, client: Client) -> None:
        declare(client)
        before = world.runtime.pager.total
        append(client, *bodies(0, 200, 1000))
        assert world.runtime.pager.total == before

    def test_slow_reader_costs_a_bounded_part(self, world: DiskWorld, client: Client) -> None:
        declare(client)
        reader = Reader(world, "next", prefetch=1)
        for _ in range(24):
            append(client, *(b"x" * 4000 for _ in range(128)))
        assert stream_of(world).index.octets > 2.9 * RECENT_OCTETS
        assert world.runtime.pager.total <= 2 * RECENT_OCTETS + CHUNK_OCTETS
        seen = list(reader.look())
        for _ in range(20):
            seen += reader.ack_all()
        assert [offset for offset, _ in seen] == list(range(21))

    def test_what_all_have_read_is_let_go(self, world: DiskWorld, client: Client) -> None:
        declare(client)
        readers = [Reader(world, "next") for _ in range(2)]
        append(client, *bodies(0, 100, 1000))
        assert [len(reader.look()) for reader in readers] == [100, 100]
        assert world.runtime.pager.total == 0

    def test_reader_that_leaves_takes_its_memory_along(
        self, world: DiskWorld, client: Client
    ) -> None:
        declare(client)
        append(client, *bodies(0, 100, 1000))
        reader = Reader(world, prefetch=2)
        assert world.runtime.pager.total > 0
        reader.client.method(1, commands.Basic.Cancel(consumer_tag="c"))
        assert world.runtime.pager.total == 0

    def test_index_is_small(self, world: DiskWorld, client: Client) -> None:
        declare(client)
        for batch in range(50):
            append(client, *bodies(100 * batch, 100))
        chunks = stream_of(world).index.chunks
        assert len(chunks) == 1
        assert len(chunks[0].rows) <= 51

    def test_deleted_stream_holds_nothing(self, world: DiskWorld, client: Client) -> None:
        declare(client)
        reader = Reader(world, "next", prefetch=1)
        append(client, *bodies(0, 100, 1000))
        client.method(1, commands.Queue.Delete(queue="s", if_empty=True))
        world.sync()
        assert world.runtime.pager.total == 0
        assert "Basic.Cancel" in reader.client.names()
        assert "s" not in world.after_power_cut().vhost.queues
