"""The load generator counts what it gets: a broker that miscounts cannot have a good figure.

The test plays the broker on the other end of a socket pair.
"""

from __future__ import annotations

import json
import shutil
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from bench import frames, generator
from bench.client import Address
from bench.generator import Result
from bench.shape import Consumer, Message, Mode, Publisher, Shape

pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(shutil.which("gcc") is None, reason="the generator is compiled with gcc"),
]

ROOT = Path(__file__).resolve().parent.parent.parent
BODY = bytes(16)
Broker = Callable[[socket.socket, socket.socket], None]


def ack(tag: int, *, multiple: bool = False) -> bytes:
    """Encode a confirm."""
    return frames.method(1, (60, 80), struct.pack(">QB", tag, multiple))


def delivery(tag: int, *, body: bytes = BODY, redelivered: bool = False) -> bytes:
    """Encode a delivery with its content."""
    head = frames.shortstr("bench") + struct.pack(">QB", tag, redelivered)
    method = frames.method(1, (60, 60), head + frames.shortstr("") + frames.shortstr("q"))
    publish = frames.publish("", "q", body, persistent=False)
    (first, *_), _ = frames.split(publish)
    return method + publish[len(first.payload) + frames.FRAME_OVERHEAD :]


def drive(count: int, broker: Broker, *, mode: Mode, ack_every: int = 1) -> Result:
    """Run one publisher and one consumer against a scripted broker."""
    shape = Shape(
        publishers=(Publisher(("q",), len(BODY), count, mode=mode, window=count),),
        consumers=(Consumer("q", len(BODY), ack_every),),
        duration_ms=1_000,
    )
    return play(shape, broker)


def play(shape: Shape, broker: Broker) -> Result:
    """Run at most one publisher and one consumer against a scripted broker."""
    pairs = [socket.socketpair() for _ in range(2)]
    ours, theirs = [pair[0] for pair in pairs], [pair[1] for pair in pairs]
    player = threading.Thread(target=broker, args=theirs)
    player.start()
    try:
        numbers = [end.fileno() for end in ours]
        publishers, consumers = numbers[: len(shape.publishers)], numbers[1:]
        plan = generator.plan_for(
            shape, Address("127.0.0.1", 1), publishers, consumers[: len(shape.consumers)]
        )
        return generator.run(plan, numbers, limit_s=60)
    finally:
        for end in ours:
            end.close()
        player.join()
        for end in theirs:
            end.close()


def published(producer: socket.socket, count: int) -> None:
    """Take that many publishes off the socket."""
    missing = len(frames.publish("", "q", BODY, persistent=False)) * count
    while missing:
        missing -= len(producer.recv(missing))


def test_an_honest_broker_is_counted_exactly() -> None:
    acked: list[tuple[int, int]] = []

    def broker(producer: socket.socket, consumer: socket.socket) -> None:
        published(producer, 5)
        # Confirms may leave out of order, and one may speak for many.
        producer.sendall(ack(2) + ack(1) + ack(5, multiple=True))
        consumer.sendall(b"".join(delivery(tag) for tag in range(1, 6)))
        buffer = b""
        while len(acked) < 5 and (octets := consumer.recv(4096)):
            found, buffer = frames.split(buffer + octets)
            acked.extend(struct.unpack_from(">QB", frame.payload, 4) for frame in found)

    result = drive(5, broker, mode=Mode.WINDOW)
    assert result["error"] == ""
    assert result["publishers"][0]["sent"] == result["publishers"][0]["confirmed"] == 5
    assert result["consumers"][0]["received"] == result["consumers"][0]["acked"] == 5
    assert result["confirm"]["count"] == 5
    assert acked == [(tag, 0) for tag in range(1, 6)]


def test_the_last_acks_of_a_batch_are_not_forgotten() -> None:
    acked: list[tuple[int, int]] = []

    def broker(producer: socket.socket, consumer: socket.socket) -> None:
        published(producer, 5)
        consumer.sendall(b"".join(delivery(tag) for tag in range(1, 6)))
        buffer = b""
        while (not acked or acked[-1][0] < 5) and (octets := consumer.recv(4096)):
            found, buffer = frames.split(buffer + octets)
            acked.extend(struct.unpack_from(">QB", frame.payload, 4) for frame in found)

    result = drive(5, broker, mode=Mode.NONE, ack_every=2)
    assert result["error"] == ""
    assert acked == [(2, 1), (4, 1), (5, 1)]


@pytest.mark.parametrize(
    ("to_producer", "to_consumer", "expected"),
    [
        (ack(1) + ack(1), b"", "confirm for 1"),
        (ack(2) + ack(2), b"", "confirmed twice"),
        (ack(4), b"", "confirm for 4, sent 3"),
        (frames.method(1, (60, 120), struct.pack(">QB", 1, 0)), b"", "method 60.120"),
        (b"", delivery(1) + delivery(3), "delivery tag 3 where 2 was due"),
        (b"", delivery(1) + delivery(1), "delivery tag 1 where 2 was due"),
        (b"", delivery(1, redelivered=True), "marked redelivered"),
        (b"", delivery(1, body=b"short"), "a body of 5 bytes, sent were 16 to 16"),
        (b"", delivery(1)[:-1] + b"\0", "what is no frame"),
        (
            frames.method(1, (20, 40), struct.pack(">H", 404) + frames.shortstr("NOT_FOUND - x")),
            b"",
            "channel closed by the server: 404 NOT_FOUND - x",
        ),
    ],
    ids=lambda value: value.replace(" ", "-") if isinstance(value, str) else "",
)
def test_a_dishonest_broker_is_found_out(
    to_producer: bytes, to_consumer: bytes, expected: str
) -> None:
    def broker(producer: socket.socket, consumer: socket.socket) -> None:
        published(producer, 3)
        producer.sendall(to_producer)
        consumer.sendall(to_consumer)

    assert expected in drive(3, broker, mode=Mode.WINDOW)["error"]


def test_more_deliveries_than_messages_are_an_error() -> None:
    def broker(producer: socket.socket, consumer: socket.socket) -> None:
        published(producer, 3)
        consumer.sendall(b"".join(delivery(tag) for tag in range(1, 5)))

    assert drive(3, broker, mode=Mode.NONE)["error"] == "4 deliveries of 3"


def test_messages_of_different_lengths_leave_in_turn_and_whole() -> None:
    block = frames.properties(message_id=frames.NUMBER.decode())
    messages = tuple(Message(f"k{size}", block, size) for size in (16, 900, 33, 301))
    publisher = Publisher(
        (), 900, 10_001, messages=messages, stamped=True, has_numbers=True, mode=Mode.WINDOW
    )
    publisher = replace(publisher, window=publisher.limit_count)
    seen: list[tuple[str, int]] = []
    stamps: list[int] = []

    def broker(producer: socket.socket, _consumer: socket.socket) -> None:
        buffer = b""
        while len(seen) < publisher.limit_count and (octets := producer.recv(65536)):
            found, buffer = frames.split(buffer + octets)
            waiting = [*rest, *found]
            for index in range(0, len(waiting) - 2, 3):
                method, header, body = waiting[index : index + 3]
                assert f"k{len(body.payload)}".encode() in method.payload
                seen.append((header.payload[-16:].decode(), len(body.payload)))
                stamps.append(int.from_bytes(body.payload[:8], sys.byteorder))
            rest[:] = waiting[len(waiting) // 3 * 3 :]
        producer.sendall(ack(publisher.limit_count, multiple=True))

    rest: list[frames.Frame] = []
    result = play(Shape(publishers=(publisher,), duration_ms=10_000), broker)
    assert result["error"] == ""
    expected = [messages[index % 4].body_size for index in range(publisher.limit_count)]
    assert [size for _, size in seen] == expected
    assert [number for number, _ in seen] == [f"{index:016x}" for index in range(len(expected))]
    assert min(stamps) > 0
    assert stamps == sorted(stamps)


def test_bodies_between_the_smallest_and_the_largest_are_added_up() -> None:
    shape = Shape(
        consumers=(Consumer("q", 20, ack_every=1, smallest_size=10),),
        fill=(Publisher(("q",), 16, 3),),
        duration_ms=1_000,
    )
    asked: list[bytes] = []

    def broker(bodies: list[int]) -> Broker:
        def answer(_producer: socket.socket, consumer: socket.socket) -> None:
            (subscription,), _ = frames.split(consumer.recv(4096))
            asked.append(subscription.payload)
            tags = enumerate(bodies, 1)
            consumer.sendall(frames.method(1, (60, 21), frames.shortstr("bench-0")))
            consumer.sendall(b"".join(delivery(tag, body=bytes(size)) for tag, size in tags))

        return answer

    result = play(shape, broker([10, 20, 13]))
    assert result["error"] == ""
    assert result["consumers"][0]["received"] == 3
    assert result["consumers"][0]["body_bytes"] == 43
    assert asked[0][:4] == struct.pack(">HH", 60, 20)
    assert "a body of 9 bytes, sent were 10 to 20" in play(shape, broker([10, 9, 20]))["error"]


def test_a_stamp_that_a_body_is_too_short_for_is_an_error() -> None:
    shape = Shape(
        consumers=(Consumer("q", 16, stamped=True, smallest_size=0),),
        fill=(Publisher(("q",), 16, 1),),
        duration_ms=1_000,
    )

    def broker(_producer: socket.socket, consumer: socket.socket) -> None:
        consumer.recv(4096)
        consumer.sendall(frames.method(1, (60, 21), frames.shortstr("bench-0")))
        consumer.sendall(delivery(1, body=b"7 bytes"))

    assert "too short for its time of sending" in play(shape, broker)["error"]


def test_a_whole_run_against_the_sink(tmp_path: Path) -> None:
    out = tmp_path / "sink.json"
    names = [
        *("confirm_batch_100", "tx_commit_2k", "fanout_10", "p8c8q8", "unlike_persistent"),
        *("unlike_transient_autoack", "work_queue_prefetch1", "drain_transient_100b"),
        *("connection_churn", "queues_500_consumers_50"),
    ]
    command = [sys.executable, "-m", "bench", "--only", "sink", "--quick", "--rounds", "1"]
    done = subprocess.run(
        [*command, "--out", str(out), "--scenario", *names],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    results = json.loads(out.read_text())
    # Its 128 KiB for reading are touched as far as something is read.
    assert 4 < results["servers"]["sink"]["connection_kb"] < 200
    assert [row["name"] for row in results["scenarios"]] == names
    for row in results["scenarios"]:
        (played,) = row["rounds"]
        assert played["error"] == ""
        assert played["values"]["rate_per_s"] > 0
        assert played["values"]["cpu_us"] > 0
        assert played["values"]["machine_cpu_us"] > 0
