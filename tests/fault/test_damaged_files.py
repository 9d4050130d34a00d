"""Bytes rot in the files of a stopped broker; the next start says so and serves the rest.

Damage in the middle of what was durable is set aside and reported with what it may have cost; a
torn tail is cut and reported. Nothing is ever made up. Spec: DURABLE-14, DURABLE-15
"""

from __future__ import annotations

import json
import random
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import pamqp.commands as amqp
import pytest
from pamqp.common import FieldTable

from tests.integration.broker_process import BrokerProcess
from tests.integration.raw_client import PeerClosedError, RawClient, content, method

QUEUES: Final = ("rot.a", "rot.b")
COUNT: Final = 4000
SEGMENT: Final = 1024 * 1024
IN_SMALL_SEGMENTS: Final = ("--segment-size-bytes", str(SEGMENT))
BODY: Final = 1000
PADDING: Final = b"."
SECTOR: Final = 512
HEADER: Final = 80
MAGIC: Final = b"VQJRNL"
MORE_SEEDS: Final = [pytest.param(seed, marks=pytest.mark.campaign) for seed in range(1, 20)]


@pytest.fixture
def start(
    referee_url: str | None, tmp_path: Path, request: pytest.FixtureRequest
) -> Callable[..., BrokerProcess]:
    """Starts a broker with these flags, which ends with the test."""
    if referee_url is not None:
        pytest.skip("damages VouchMQ's own files")

    def started(*flags: str) -> BrokerProcess:
        broker = BrokerProcess(tmp_path, flags=flags)
        request.addfinalizer(broker.kill9)
        broker.start()
        return broker

    return started


@pytest.fixture(scope="module")
def filled(referee_url: str | None, module_path: Path) -> Path:
    """The data directory of a stopped broker with COUNT messages, for tests to copy."""
    if referee_url is not None:
        pytest.skip("damages VouchMQ's own files")
    broker = BrokerProcess(module_path, flags=IN_SMALL_SEGMENTS)
    try:
        broker.start()
        fill(broker)
        assert broker.stop() == 0
    finally:
        broker.kill9()
    return broker.data_dir


@pytest.fixture
def stopped(filled: Path, tmp_path: Path) -> Iterator[BrokerProcess]:
    """A stopped broker with COUNT messages, the even ones in one queue, the odd in the other."""
    broker = BrokerProcess(tmp_path, flags=IN_SMALL_SEGMENTS)
    shutil.copytree(filled, broker.data_dir)
    yield broker
    broker.kill9()


def fill(broker: BrokerProcess, arguments: FieldTable | None = None) -> None:
    """Declare both queues and publish COUNT messages to them."""
    with RawClient(broker.url).handshake() as client:
        client.open_channel()
        for queue in QUEUES:
            declare = amqp.Queue.Declare(queue=queue, durable=True, arguments=arguments)
            client.call(1, declare, amqp.Queue.DeclareOk)
        client.call(1, amqp.Confirm.Select(), amqp.Confirm.SelectOk)
        for first in range(1, COUNT, 50):
            batch = range(first, first + 50)
            client.send(b"".join(message(number) for number in batch))
            client.confirmed_up_to(batch[-1])


def message(number: int) -> bytes:
    """A publish that carries its number."""
    return content(1, "", QUEUES[number % 2], b"%d" % number + PADDING * BODY, persistent=True)


def segments(broker: BrokerProcess) -> list[Path]:
    """The segments, oldest first."""
    return sorted(broker.data_dir.glob("*.journal"))


def contents(broker: BrokerProcess) -> list[list[int]]:
    """The numbers in each queue, in order, left unacked."""
    with RawClient(broker.url).handshake() as client:
        client.open_channel()
        found = []
        for queue in QUEUES:
            count = client.ready_count(queue)
            client.send(method(1, amqp.Basic.Consume(queue=queue)))
            found.append([int(body.rstrip(PADDING)) for _, body in client.deliveries(count)])
        return found


def events(broker: BrokerProcess, name: str, since: int = 0) -> list[dict[str, Any]]:
    """The lines of the log with this event, behind the first `since` characters."""
    lines = [line for line in broker.output()[since:].splitlines() if line.startswith("{")]
    return [event for event in map(json.loads, lines) if event["event"] == name]


def flip(data: bytearray, offset: int) -> None:
    """One bit is another."""
    data[offset] ^= 0x10


def zero_sectors(data: bytearray, offset: int) -> None:
    """Eight sectors read as zeros."""
    start = offset - offset % SECTOR
    data[start : start + 8 * SECTOR] = bytes(8 * SECTOR)


def swap_sectors(data: bytearray, offset: int) -> None:
    """Two sectors have changed places."""
    start = offset - offset % SECTOR
    one, two = data[start : start + SECTOR], data[start + SECTOR : start + 2 * SECTOR]
    data[start : start + 2 * SECTOR] = two + one


@pytest.mark.parametrize("damage", [flip, zero_sectors, swap_sectors])
@pytest.mark.parametrize("seed", [0, *MORE_SEEDS])
def test_damage_in_the_middle_is_quarantined_and_the_rest_served(
    stopped: BrokerProcess, damage: Callable[[bytearray, int], None], seed: int
) -> None:
    chance = random.Random(seed)
    files = segments(stopped)
    assert len(files) >= 4
    target = files[chance.randrange(1, len(files) - 2)]
    data = bytearray(target.read_bytes())
    damage(data, chance.randrange(SEGMENT // 4, SEGMENT // 2))
    target.write_bytes(data)
    before = len(stopped.output())
    stopped.start()
    found = contents(stopped)
    lost = set(range(1, COUNT + 1)) - {*found[0], *found[1]}
    # One block was hit, or two when it was between them; a block is what came in one turn.
    assert 0 < len(lost) <= 200
    assert max(lost) - min(lost) < 200
    for parity, numbers in enumerate(found):
        assert numbers == [n for n in range(1, COUNT + 1) if n % 2 == parity and n not in lost]
    (told,) = events(stopped, "journal.damaged", before)
    assert told["level"] == "error"
    assert target.name in told["damage"]
    assert "first_lsn" in told["damage"]
    assert (stopped.data_dir / f"{target.name}.damaged").read_bytes() == bytes(data)
    assert not target.exists()
    assert_it_works_on(stopped, found)


def assert_it_works_on(broker: BrokerProcess, found: list[list[int]]) -> None:
    """It takes new messages, and another start finds the same without another report."""
    with RawClient(broker.url).handshake() as client:
        client.open_channel()
        client.call(1, amqp.Confirm.Select(), amqp.Confirm.SelectOk)
        client.send(message(COUNT + 1) + message(COUNT + 2))
        client.confirmed_up_to(2)
    broker.kill9()
    before = len(broker.output())
    broker.start()
    assert events(broker, "journal.damaged", before) == []
    assert contents(broker) == [[*found[0], COUNT + 2], [*found[1], COUNT + 1]]


def end_of_blocks(data: bytearray) -> int:
    """Where the last block ends; blocks stand one behind the other."""
    at = 0
    while data[at : at + len(MAGIC)] == MAGIC:
        at += HEADER + int.from_bytes(data[at + 16 : at + 24], "little")
    return at


def last_block(data: bytearray) -> int:
    """Where the last block begins."""
    at = end = 0
    while data[end : end + len(MAGIC)] == MAGIC:
        at, end = end, end + HEADER + int.from_bytes(data[end + 16 : end + 24], "little")
    return at


def tear_half(data: bytearray, at: int, end: int) -> None:
    """The second half of the last block never came."""
    data[(at + end) // 2 : end] = bytes(end - (at + end) // 2)


def tear_hole(data: bytearray, at: int, end: int) -> None:
    """The last block has a hole; what is behind it is whole."""
    middle = (at + end) // 2
    data[middle : middle + 64] = bytes(64)


def tear_file(data: bytearray, at: int, end: int) -> None:
    """The file is shorter than it was."""
    del data[(at + end) // 2 :]


@pytest.mark.parametrize("tear", [tear_half, tear_hole, tear_file])
def test_a_torn_tail_is_cut_and_reported(
    stopped: BrokerProcess, tear: Callable[[bytearray, int, int], None]
) -> None:
    # A message that no later block speaks for, as when the power went before its sync.
    stopped.start()
    with RawClient(stopped.url).handshake() as client:
        client.open_channel()
        client.send(message(COUNT + 1) + message(COUNT + 2))
        assert client.ready_count(QUEUES[0]) == COUNT // 2 + 1
    stopped.kill9()
    target = segments(stopped)[-1]
    data = bytearray(target.read_bytes())
    at, end = last_block(data), end_of_blocks(data)
    assert at > 0
    assert b"%d" % (COUNT + 2) in data[at:end]
    tear(data, at, end)
    target.write_bytes(data)
    before = len(stopped.output())
    stopped.start()
    (told,) = events(stopped, "journal.truncated", before)
    assert told["level"] == "warning"
    assert told["size_bytes"] > 0
    (kept,) = told["kept"]
    assert len((stopped.data_dir / kept).read_bytes()) <= told["size_bytes"]
    assert events(stopped, "journal.damaged", before) == []
    assert list(stopped.data_dir.glob("*.damaged")) == []
    found = contents(stopped)
    # Both came in one turn, which is one block: they go together.
    assert found == [[*range(2, COUNT + 1, 2)], [*range(1, COUNT + 1, 2)]]
    assert_it_works_on(stopped, found)


@pytest.mark.parametrize("harm", ["flipped", "cut", "removed"])
def test_the_end_of_a_sealed_journal_is_no_torn_tail(stopped: BrokerProcess, harm: str) -> None:
    """After a clean stop it is known where the journal ends."""
    target = segments(stopped)[-1]
    data = bytearray(target.read_bytes())
    at = data.rindex(PADDING * BODY)
    first = 1 + max(int(text) for text in numbers_in(data[: last_block(data)]))
    data[at : at + 64] = bytes(octet ^ 0xFF for octet in data[at : at + 64])
    if harm == "removed":
        target.unlink()
        first = 1 + max(int(text) for text in numbers_in(segments(stopped)[-1].read_bytes()))
    else:
        target.write_bytes(data[:at] if harm == "cut" else data)
    before = len(stopped.output())
    stopped.start()
    (told,) = events(stopped, "journal.damaged", before)
    assert target.name in told["damage"]
    assert events(stopped, "journal.truncated", before) == []
    if harm == "flipped":
        assert (stopped.data_dir / f"{target.name}.damaged").read_bytes() == bytes(data)
    found = contents(stopped)
    assert found == [[*range(2, first, 2)], [*range(1, first, 2)]]
    assert_it_works_on(stopped, found)


def numbers_in(data: bytes | bytearray) -> list[bytes]:
    """Of all messages in a file."""
    return re.findall(rb"(\d+)\.{%d}" % BODY, data)


def test_the_newest_segment_is_missed_after_a_kill(stopped: BrokerProcess) -> None:
    stopped.start()
    # Of a segment that was just begun another sync has to say so.
    for number in (COUNT + 1, COUNT + 3):
        with RawClient(stopped.url).handshake() as client:
            client.open_channel()
            client.call(1, amqp.Confirm.Select(), amqp.Confirm.SelectOk)
            client.send(message(number))
            client.confirmed_up_to(1)
    stopped.kill9()
    target = segments(stopped)[-1]
    target.unlink()
    before = len(stopped.output())
    stopped.start()
    (told,) = events(stopped, "journal.damaged", before)
    assert target.name in told["damage"]
    assert_it_works_on(stopped, contents(stopped))


def test_damage_that_no_start_has_read_ends_the_broker_and_is_quarantined_by_the_next(
    stopped: BrokerProcess, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    flags = ("--segment-size-bytes", str(SEGMENT), "--recovery-read-bytes", "0")
    broker = BrokerProcess(tmp_path, flags=flags)
    request.addfinalizer(broker.kill9)
    target = segments(stopped)[1]
    summary = Path(f"{target}.summary")
    assert summary.exists()
    data = bytearray(target.read_bytes())
    flip(data, SEGMENT // 2)
    target.write_bytes(data)
    before = len(broker.output())
    broker.start()
    assert events(broker, "journal.damaged", before) == [], "its summary is believed"
    with pytest.raises((PeerClosedError, OSError, AssertionError)):
        contents(broker)
    assert broker.wait() == 1
    assert not summary.exists()
    before = len(broker.output())
    broker.start()
    (told,) = events(broker, "journal.damaged", before)
    assert target.name in told["damage"]
    found = contents(broker)
    lost = set(range(1, COUNT + 1)) - {*found[0], *found[1]}
    assert 0 < len(lost) <= 100
    assert max(lost) - min(lost) < 100
    assert_it_works_on(broker, found)


def test_damage_that_a_start_comes_upon_makes_it_begin_again(
    start: Callable[..., BrokerProcess],
) -> None:
    """How many octets a queue with a limit has is counted at start, in segments nobody has read."""
    broker = start("--segment-size-bytes", str(SEGMENT), "--recovery-read-bytes", "0")
    fill(broker, {"x-max-length-bytes": 1 << 30})
    assert broker.stop() == 0
    target = segments(broker)[1]
    data = bytearray(target.read_bytes())
    flip(data, SEGMENT // 2)
    target.write_bytes(data)
    before = len(broker.output())
    broker.start()
    (told,) = events(broker, "journal.reopened", before)
    assert "is not in the journal where it should be" in told["reason"]
    (told,) = events(broker, "journal.damaged", before)
    assert target.name in told["damage"]
    found = contents(broker)
    assert 0 < COUNT - len({*found[0], *found[1]}) <= 100
    assert_it_works_on(broker, found)


def test_acks_behind_a_damaged_block_keep_nobody_from_what_follows(
    start: Callable[..., BrokerProcess],
) -> None:
    broker = start()
    with RawClient(broker.url).handshake() as client:
        client.open_channel()
        client.call(1, amqp.Queue.Declare(queue=QUEUES[0], durable=True), amqp.Queue.DeclareOk)
        client.call(1, amqp.Confirm.Select(), amqp.Confirm.SelectOk)
        client.send(content(1, "", QUEUES[0], b"first", persistent=True))
        client.confirmed_up_to(1)
        client.call(1, amqp.Basic.Get(queue=QUEUES[0]), amqp.Basic.GetOk)
        assert client.body() == b"first"
        client.send(content(1, "", QUEUES[0], b"spoilt", persistent=True))
        client.confirmed_up_to(2)
        # A block that brings no message, and then another message.
        client.send(method(1, amqp.Basic.Ack(delivery_tag=1)))
        assert client.ready_count(QUEUES[0]) == 1
        client.send(content(1, "", QUEUES[0], b"third", persistent=True))
        client.confirmed_up_to(3)
    broker.kill9()
    (target,) = segments(broker)
    data = bytearray(target.read_bytes())
    flip(data, data.index(b"spoilt"))
    target.write_bytes(data)
    broker.start()
    with RawClient(broker.url).handshake() as client:
        client.open_channel()
        assert client.ready_count(QUEUES[0]) == 1
        client.send(method(1, amqp.Basic.Consume(queue=QUEUES[0])))
        assert [body for _, body in client.deliveries(1)] == [b"third"]


def test_a_segment_that_is_gone_is_reported(stopped: BrokerProcess) -> None:
    before_it, target = segments(stopped)[1:3]
    target.unlink()
    before = len(stopped.output())
    stopped.start()
    # What is missing lies behind the last block of the segment before it.
    (told,) = events(stopped, "journal.damaged", before)
    assert before_it.name in told["damage"]
    found = contents(stopped)
    lost = set(range(1, COUNT + 1)) - {*found[0], *found[1]}
    assert 500 < len(lost) < 1500
    assert max(lost) - min(lost) == len(lost) - 1
    assert all(numbers == sorted(numbers) for numbers in found)
    assert_it_works_on(stopped, found)
