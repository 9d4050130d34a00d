"""The order of what goes to the broker, where a test on the wire would need luck to see it."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, cast

import pytest

from tests.waiting import until
from vouchmq.kit.message import Message, MessageChannel
from vouchmq.kit.modes import Mode, Options
from vouchmq.kit.retry import Retries
from vouchmq.kit.settling import Settling
from vouchmq.kit.unsettled import UnsettledDeliveries


class FakeChannel:
    """Writes down what it is asked for; a limit takes its time."""

    is_open = True

    def __init__(self) -> None:
        self.ledger: UnsettledDeliveries[object] = UnsettledDeliveries()
        self.newest_tag = 0
        self.calls: list[str] = []

    async def limit(self, count: int, *, of_channel: bool) -> None:
        assert of_channel
        await asyncio.sleep(0)
        self.calls.append(f"limit {count}")

    async def ack_through(self, tag: int) -> None:
        if self.ledger.settle_through(tag):
            self.calls.append(f"ack {tag} multiple")

    async def ack(self, tag: int) -> None:
        if self.ledger.settle(tag):
            self.calls.append(f"ack {tag}")

    async def reject(self, tag: int, *, requeue: bool) -> None:
        if self.ledger.settle(tag):
            self.calls.append(f"reject {tag} {requeue}")

    async def rollback(self) -> None:
        self.calls.append("rollback")

    async def commit(self) -> None:
        self.calls.append("commit")

    async def recover(self) -> None:
        self.calls.append("recover")
        self.ledger.forget_all()


class FakeMessage:
    """A delivery of the queue `q`."""

    queue = "q"
    is_topic_like = False

    def __init__(self, channel: FakeChannel, tag: int) -> None:
        self.channel = channel
        self.tag = tag


class FakeRetries:
    """Settles with an ack, as if a copy had been published."""

    async def settle(self, message: FakeMessage, publisher: object) -> None:
        await message.channel.ack(message.tag)


class FakeOwner:
    """A connection on which queues have, or have not, retries of the kit's."""

    def __init__(self, retries: FakeRetries | None = None) -> None:
        self.retries = retries

    def retries_of(self, queue: str) -> Retries | None:
        return cast("Retries | None", self.retries)

    async def publish(self, *_: object, **__: object) -> None:
        raise AssertionError("nothing is published here")


class Bench:
    """A settling with its channel, and what was dropped."""

    def __init__(self, options: Options, retries: FakeRetries | None = None) -> None:
        self.fake = FakeChannel()
        self.channel = cast("MessageChannel", self.fake)
        self.dropped: list[int] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self.settling = Settling(FakeOwner(retries), options, self._spawn, self.dropped.append)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        return task

    def hand_out(self, count: int) -> list[Message]:
        """The next so many deliveries."""
        made: list[Message] = []
        for _ in range(count):
            self.fake.newest_tag += 1
            message = FakeMessage(self.fake, self.fake.newest_tag)
            self.fake.ledger.hand_out(message.tag, message)
            made.append(cast(Message, message))
        return made


async def test_a_rollback_right_after_the_extension_ends_with_the_plain_limit() -> None:
    """The raised limit must not come after the lowered one: deliveries would mix (ACK-20)."""
    bench = Bench(Options(Mode.TRANSACTED, 10))
    bench.hand_out(5)
    bench.settling.extend(bench.channel)
    await bench.settling.take_back(bench.channel)
    assert bench.fake.calls == ["limit 15", "limit 1", "rollback", "recover", "limit 10"]
    assert bench.dropped == [5]


async def test_an_acknowledgement_right_after_the_extension_ends_it() -> None:
    """REDELIVER-39."""
    bench = Bench(Options(Mode.CLIENT, 10))
    messages = bench.hand_out(5)
    bench.settling.extend(bench.channel)
    await bench.settling.acknowledge(messages[0])
    assert bench.fake.calls == ["ack 5 multiple", "limit 15", "limit 10"]
    await bench.settling.acknowledge(messages[1])
    assert len(bench.fake.calls) == 3


async def test_the_extension_comes_once() -> None:
    """REDELIVER-39."""
    bench = Bench(Options(Mode.CLIENT, 10))
    for _ in range(12):
        bench.hand_out(1)
        bench.settling.extend(bench.channel)
    await asyncio.sleep(0.01)
    assert bench.fake.calls == ["limit 15"]


async def test_the_end_of_the_extension_is_told(caplog: pytest.LogCaptureFixture) -> None:
    """REDELIVER-39: the application must acknowledge now."""
    bench = Bench(Options(Mode.TRANSACTED, 4))
    for _ in range(6):
        assert not caplog.records
        bench.hand_out(1)
        bench.settling.extend(bench.channel)
    assert "6 messages in hand: nothing more comes before commit()" in caplog.text


async def test_what_the_kit_returns_needs_no_recovery() -> None:
    """What is still on its way to the application is not touched."""
    bench = Bench(Options(Mode.TRANSACTED, 10), FakeRetries())
    bench.hand_out(2)
    bench.fake.newest_tag = 7
    await bench.settling.take_back(bench.channel)
    assert bench.fake.calls == ["rollback", "ack 1", "ack 2", "commit"]
    assert bench.dropped == []


async def test_a_late_batch_is_sent_by_the_clock() -> None:
    """REDELIVER-32."""
    bench = Bench(Options(Mode.AUTO, 100, True, 0.05))
    for message in bench.hand_out(3):
        await bench.settling.dealt_with(message)
    assert bench.fake.calls == []
    await until(lambda: bench.fake.calls)
    assert bench.fake.calls == ["ack 3 multiple"]


async def test_a_batch_of_a_lost_channel_is_forgotten() -> None:
    """REDELIVER-51."""
    bench = Bench(Options(Mode.AUTO, 100, True, 0.05))
    for message in bench.hand_out(3):
        await bench.settling.dealt_with(message)
    bench.settling.begin()
    await asyncio.sleep(0.1)
    assert bench.fake.calls == []
