"""Whatever an application does, in whatever order: each message is dealt with exactly once.

A wrong settlement would show: the broker closes the channel over an unknown tag (ACK-05), and
everything would come once more.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections import Counter

import pytest

from tests.conftest import Names
from vouchmq.kit import Connection, Message, connect

pytestmark = [pytest.mark.asyncio]

COUNT = 400
LIMIT_S = 60.0


async def publish_beside(kit: Connection, queue: str) -> None:
    """Publish in bursts, so that deliveries are on their way at any moment."""
    for first in range(0, COUNT, 20):
        numbers = range(first, first + 20)
        await asyncio.gather(*(kit.publish(str(number), queue) for number in numbers))
        await asyncio.sleep(0.005)


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("prefetch", [1, 2, 7, 50])
async def test_commits_and_rollbacks_at_random(
    url: str, names: Names, caplog: pytest.LogCaptureFixture, prefetch: int, seed: int
) -> None:
    """REDELIVER-36, REDELIVER-39, REDELIVER-51."""
    chance = random.Random(seed)
    done: Counter[bytes] = Counter()
    taken: list[bytes] = []
    caplog.set_level(logging.WARNING, "vouchmq.kit")
    async with await connect(url, prefetch=prefetch, redelivery=None) as kit:
        queue = await kit.declare(names())
        publishing = asyncio.create_task(publish_beside(kit, queue))
        receiver = await kit.receiver("transacted")
        async with asyncio.timeout(LIMIT_S):
            while done.total() < COUNT:
                wanted = chance.randint(1, max(1, prefetch * 3 // 2))
                while len(taken) < wanted:
                    message = await receiver.receive(0.1, queue=queue)
                    if message is None:
                        break
                    taken.append(message.body)
                if chance.random() < 0.3:
                    await receiver.rollback()
                else:
                    await receiver.commit()
                    done.update(taken)
                taken.clear()
        await publishing
        assert await receiver.receive(0.1) is None
    assert set(done.values()) == {1}
    assert len(done) == COUNT
    assert not [record for record in caplog.records if "was lost" in record.message]


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize(
    ("mode", "optimize_ack"),
    [("auto", False), ("auto", True), ("dups_ok", True), ("client", False), ("individual", False)],
)
async def test_listeners_that_fail_at_random(
    url: str,
    names: Names,
    caplog: pytest.LogCaptureFixture,
    mode: str,
    optimize_ack: bool,
    seed: int,
) -> None:
    """REDELIVER-30, REDELIVER-32…35, REDELIVER-51: two queues on one receiver."""
    chance = random.Random(seed)
    done: Counter[bytes] = Counter()
    kept: list[Message] = []
    complete = asyncio.Event()
    caplog.set_level(logging.CRITICAL, "vouchmq.kit")

    async def listener(message: Message) -> None:
        if mode in ("auto", "dups_ok") and chance.random() < 0.2:
            raise RuntimeError("by chance")
        kept.append(message)
        done[message.queue.encode() + message.body] += 1
        if (mode == "individual" and chance.random() < 0.7) or len(kept) > 8:
            chance.shuffle(kept)
            for each in kept:
                if mode == "individual":
                    await each.acknowledge()
            if mode == "client":
                await kept[0].acknowledge()
            kept.clear()
        if done.total() == 2 * COUNT:
            complete.set()

    async with await connect(url, prefetch=12, redelivery=None) as kit:
        queues = [await kit.declare(names()) for _ in range(2)]
        receiver = await kit.receiver(mode, optimize_ack=optimize_ack, optimize_ack_timeout=0.02)
        for queue in queues:
            await receiver.listen(queue, listener)
        async with asyncio.timeout(LIMIT_S):
            await asyncio.gather(*(publish_beside(kit, queue) for queue in queues))
            await complete.wait()
        for each in kept:
            if mode in ("client", "individual"):
                await each.acknowledge()
        await receiver.close()
        check = await kit.receiver("auto", prefetch=0)
        for queue in queues:
            assert await check.receive(0, queue=queue) is None
            await check.stop()
    assert set(done.values()) == {1}
    assert len(done) == 2 * COUNT
