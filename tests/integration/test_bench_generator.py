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
from pathlib import Path

import pytest

from bench import frames, generator
from bench.client import Address
from bench.generator import Result
from bench.shape import Consumer, Mode, Publisher, Shape

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
    pairs = [socket.socketpair() for _ in range(2)]
    ours, theirs = [pair[0] for pair in pairs], [pair[1] for pair in pairs]
    player = threading.Thread(target=broker, args=theirs)
    player.start()
    try:
        numbers = [end.fileno() for end in ours]
        plan = generator.plan_for(shape, Address("127.0.0.1", 1), numbers[:1], numbers[1:])
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
        (b"", delivery(1, body=b"short"), "a body of 5 octets, sent were 16"),
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


def test_a_whole_run_against_the_sink(tmp_path: Path) -> None:
    out = tmp_path / "sink.json"
    names = ["confirm_batch_100", "tx_commit_each", "fanout_10", "p8c8q8", "connection_churn"]
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
    assert [row["name"] for row in results["scenarios"]] == names
    for row in results["scenarios"]:
        (played,) = row["rounds"]
        assert played["error"] == ""
        assert played["values"]["rate_per_s"] > 0
        assert played["values"]["cpu_us"] > 0
