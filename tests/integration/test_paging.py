"""Backlogs far beyond what memory is allowed: all of it comes back, in order, after a kill too.

Spec: LIMIT-21, DURABLE-01, DURABLE-12, ACK-10
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest
from pika.adapters.blocking_connection import BlockingChannel

from tests.integration.broker_process import BrokerProcess
from tests.integration.moving import blocking
from tests.integration.pika_async import PERSISTENT
from tests.waiting import LIMIT_S
from vouchmq.kit.bulk import BulkConnection

MIB = 1024 * 1024
SMALL = (
    *("--queue-memory-bytes", str(MIB // 4), "--queues-memory-bytes", str(MIB)),
    *("--segment-size-bytes", str(MIB)),
)


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    """A broker that may keep a mebibyte of messages in memory."""
    process = BrokerProcess(tmp_path, flags=SMALL)
    process.start()
    yield process
    process.kill9()
    assert process.complaints() == []


def publish(
    broker: BrokerProcess, queues: list[str], count: int, size: int, transient: int = 0
) -> None:
    """Publish numbered messages to the queues in turn; every n-th is transient if asked for."""
    rows = (
        (
            "",
            queues[number % len(queues)],
            {"delivery_mode": 2 if not transient or number % transient else 1},
            b"%d|" % number + b"." * size,
        )
        for number in range(count)
    )
    with BulkConnection.open(broker.url) as connection, connection.channel() as channel:
        for queue in queues:
            channel.declare(queue, durable=True)
        channel.confirm_select()
        assert channel.publish_many(rows).confirmed == count


def take(channel: BlockingChannel, queue: str, count: int) -> list[tuple[int, int, bool]]:
    """Get so many messages of a queue: delivery tag, number, redelivered. Acks nothing."""
    taken: list[tuple[int, int, bool]] = []
    for _ in range(count):
        method, _, body = channel.basic_get(queue)
        assert method is not None, f"only {len(taken)} of {count} came"
        taken.append((method.delivery_tag, int(body.split(b"|")[0]), method.redelivered))
    return taken


def take_and_ack(broker: BrokerProcess, queues: list[str], count: int) -> dict[str, list[int]]:
    """Consume everything from all queues side by side; the numbers of each queue, in order."""
    found: dict[str, list[int]] = defaultdict(list)
    total = 0
    with BulkConnection.open(broker.url) as connection, connection.channel() as channel:
        channel.qos(50)
        for queue in queues:
            channel.consume(queue)
        while total < count:
            # However long all of them take, something comes.
            came = channel.wait(1, LIMIT_S) + channel.take(count)
            assert came, f"only {total} of {count} came"
            for _, _, _, queue, _, body in came:
                found[queue].append(int(body.split(b"|")[0]))
            channel.ack_many(tag for tag, *_ in came)
            total += len(came)
        channel.fence()
    return dict(found)


def ready_count(broker: BrokerProcess, queue: str) -> int:
    with blocking(broker) as connection:
        declared = connection.channel().queue_declare(queue, passive=True)
        count: int = declared.method.message_count
        return count


def test_one_queue_far_beyond_its_memory(broker: BrokerProcess) -> None:
    before = broker.resident_bytes()
    publish(broker, ["big"], 30_000, 2000)
    assert ready_count(broker, "big") == 30_000
    # 60 MB wait; what the broker has grown by is its budget and its buffers.
    assert broker.resident_bytes() - before < 40 * MIB
    assert take_and_ack(broker, ["big"], 30_000) == {"big": list(range(30_000))}
    assert ready_count(broker, "big") == 0
    assert broker.resident_bytes() - before < 60 * MIB


def test_many_queues_together_beyond_memory(broker: BrokerProcess) -> None:
    queues = [f"many.{number}" for number in range(100)]
    before = broker.resident_bytes()
    publish(broker, queues, 20_000, 2000, transient=3)
    assert broker.resident_bytes() - before < 40 * MIB
    found = take_and_ack(broker, queues, 20_000)
    assert found == {queue: list(range(at, 20_000, 100)) for at, queue in enumerate(queues)}


def test_transient_messages_wait_in_files_that_go_with_them(broker: BrokerProcess) -> None:
    before = broker.resident_bytes()
    publish(broker, ["t"], 20_000, 2000, transient=1)
    assert broker.resident_bytes() - before < 40 * MIB
    assert list(broker.data_dir.glob("scratch-*"))
    assert take_and_ack(broker, ["t"], 20_000) == {"t": list(range(20_000))}
    assert broker.stop() == 0
    assert not list(broker.data_dir.glob("scratch-*"))


def test_a_kill_in_the_middle_of_a_paged_backlog(broker: BrokerProcess) -> None:
    """Requeued and redelivered ones first, transient ones gone, the rest in order."""
    count = 12_000
    publish(broker, ["q"], count, 2000, transient=4)
    with blocking(broker) as connection:
        channel = connection.channel()
        taken = take(channel, "q", 3000)
        assert [number for _, number, _ in taken] == list(range(3000))
        channel.basic_ack(taken[999][0], multiple=True)
        # Every other one of the next thousand goes back where it was, and comes again first.
        for tag, _, _ in taken[1000:2000:2]:
            channel.basic_nack(tag, requeue=True)
        again = take(channel, "q", 10)
        assert [number for _, number, _ in again] == list(range(1000, 1020, 2))
        assert all(is_again for _, _, is_again in again)
        # A commit behind the acks makes them durable with it.
        other = connection.channel()
        other.tx_select()
        other.basic_publish("", "q", b"%d|" % count, PERSISTENT)
        other.tx_commit()
        broker.kill9()
    assert list(broker.data_dir.glob("scratch-*"))
    broker.start()
    assert not list(broker.data_dir.glob("scratch-*")), "files of an earlier life"
    left = [n for n in range(1000, count) if n % 4] + [count]
    assert ready_count(broker, "q") == len(left)
    with blocking(broker) as connection:
        channel = connection.channel()
        taken = take(channel, "q", 2500)
        assert [number for _, number, _ in taken] == left[:2500]
        flags = [again for _, _, again in taken]
        told = sum(number < 3000 for number in left)
        # What was delivered before the kill says so; what never was may not.
        assert all(flags[:told])
        assert not any(flags[told + 1000 :])
        channel.basic_nack(taken[-1][0], multiple=True, requeue=True)
    assert take_and_ack(broker, ["q"], len(left)) == {"q": left}
    assert ready_count(broker, "q") == 0


def test_a_purge_and_a_deletion_reach_what_is_on_disk(broker: BrokerProcess) -> None:
    publish(broker, ["p", "d"], 10_000, 2000, transient=3)
    with blocking(broker) as connection:
        channel = connection.channel()
        assert channel.queue_purge("p").method.message_count == 5000
        assert channel.queue_delete("d").method.message_count == 5000
        channel.tx_select()
        channel.basic_publish("", "p", b"7|", PERSISTENT)
        channel.tx_commit()
    broker.restart()
    assert take_and_ack(broker, ["p"], 1) == {"p": [7]}
    assert ready_count(broker, "p") == 0
