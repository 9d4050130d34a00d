"""The kit's acknowledgement modes, on the wire and by what comes of them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest
import pytest_asyncio
from pamqp.commands import Basic

from tests.conftest import Names
from tests.integration.kit_tap import SETTLED_S, Tap, until
from vouchmq.kit import (
    ChannelLostError,
    Connection,
    IllegalStateError,
    Message,
    RefusedError,
    connect,
)

pytestmark = pytest.mark.asyncio

LIMIT_S = 60.0


@pytest_asyncio.fixture
async def tap(url: str) -> AsyncIterator[Tap]:
    """What the kit's connection goes through."""
    made = await Tap.start(url)
    yield made
    await made.stop()


@pytest_asyncio.fixture
async def kit(tap: Tap) -> AsyncIterator[Connection]:
    """A connection with a prefetch of ten and no policy: what fails comes back at once."""
    async with await connect(tap.url, prefetch=10, redelivery=None) as connection:
        yield connection


Fill = Callable[[int], Awaitable[str]]


@pytest.fixture
def fill(kit: Connection, names: Names, tap: Tap) -> Fill:
    """Makes a queue with so many messages, `0`, `1`, …; what that needed on the wire is forgot."""

    async def made(count: int) -> str:
        queue = await kit.declare(names())
        for number in range(count):
            await kit.publish(str(number), queue)
        tap.clear()
        return queue

    return made


class Collector:
    """A listener that remembers what it got."""

    def __init__(self, wanted: int) -> None:
        self.seen: list[Message] = []
        self._wanted = wanted
        self._complete = asyncio.Event()

    async def __call__(self, message: Message) -> None:
        self.seen.append(message)
        if len(self.seen) >= self._wanted:
            self._complete.set()

    async def complete(self) -> list[str]:
        """The bodies, once there are as many as wanted; their settlements have gone, too."""
        async with asyncio.timeout(LIMIT_S):
            await self._complete.wait()
        await asyncio.sleep(SETTLED_S)
        return bodies(self.seen)


def bodies(messages: list[Message]) -> list[str]:
    return [message.body.decode() for message in messages]


async def rest_of(kit: Connection, queue: str) -> list[tuple[str, bool]]:
    """What is left in a queue, with `redelivered`; taken out."""
    receiver = await kit.receiver("auto", prefetch=0)
    left: list[tuple[str, bool]] = []
    while (message := await receiver.receive(0.1, queue=queue)) is not None:
        left.append((message.body.decode(), message.redelivered))
    await receiver.close()
    return left


# auto


async def test_auto_acks_after_the_listener(kit: Connection, fill: Fill, tap: Tap) -> None:
    """REDELIVER-30."""
    queue = await fill(3)
    at_call: list[list[str]] = []

    async def listener(message: Message) -> None:
        await asyncio.sleep(0.02)
        at_call.append(tap.settlements()[1:])

    receiver = await kit.receiver("auto")
    await receiver.listen(queue, listener)
    await until(lambda: len(tap.settlements()) == 4)
    assert at_call == [[], ["ack 1"], ["ack 1", "ack 2"]]
    assert tap.settlements() == ["qos 10", "ack 1", "ack 2", "ack 3"]


async def test_auto_returns_what_the_listener_raises_on(
    kit: Connection, fill: Fill, tap: Tap
) -> None:
    """REDELIVER-30, REDELIVER-41: and the others are not held up."""
    queue = await fill(3)
    seen: list[tuple[str, bool]] = []

    def listener(message: Message) -> None:
        seen.append((message.body.decode(), message.redelivered))
        if message.body == b"1" and not message.redelivered:
            raise RuntimeError("once")

    receiver = await kit.receiver("auto")
    await receiver.listen(queue, listener)
    await until(lambda: len(seen) == 4)
    assert sorted(seen) == [("0", False), ("1", False), ("1", True), ("2", False)]
    assert "reject 2 requeue" in tap.settlements()
    await receiver.close()
    assert await rest_of(kit, queue) == []


async def test_auto_receive_acks_before_the_caller_has_it(
    kit: Connection, fill: Fill, tap: Tap
) -> None:
    """REDELIVER-31."""
    queue = await fill(2)
    receiver = await kit.receiver("auto")
    message = await receiver.receive(LIMIT_S, queue=queue)
    assert message is not None
    assert message.body == b"0"
    await until(lambda: len(tap.settlements()) == 2)
    assert tap.settlements() == ["qos 10", "ack 1"]
    await receiver.close()
    assert [body for body, _ in await rest_of(kit, queue)] == ["1"]


async def test_optimized_acks_share_one_method(kit: Connection, fill: Fill, tap: Tap) -> None:
    """REDELIVER-32: seven is the first that reaches 0.65 of ten."""
    queue = await fill(16)
    receiver = await kit.receiver("auto", optimize_ack=True, optimize_ack_timeout=60)
    collector = Collector(16)
    await receiver.listen(queue, collector)
    assert await collector.complete() == [str(number) for number in range(16)]
    assert tap.settlements() == ["qos 10", "ack 7 multiple", "ack 14 multiple"]
    await receiver.close()
    assert tap.settlements()[3:] == ["ack 16 multiple", "close"]


async def test_optimized_acks_do_not_wait_long(kit: Connection, fill: Fill, tap: Tap) -> None:
    """REDELIVER-32: some time after the last ack those that wait are sent, however few."""
    queue = await fill(3)
    receiver = await kit.receiver("auto", optimize_ack=True, optimize_ack_timeout=1.0)
    collector = Collector(3)
    await receiver.listen(queue, collector)
    await collector.complete()
    assert tap.settlements() == ["qos 10"]
    await until(lambda: len(tap.settlements()) == 2)
    assert tap.settlements() == ["qos 10", "ack 3 multiple"]
    assert await rest_of(kit, queue) == []


async def test_a_failure_between_optimized_acks(kit: Connection, fill: Fill, tap: Tap) -> None:
    """What failed is rejected by its own tag; the batch speaks for the others only."""
    queue = await fill(7)
    seen: list[str] = []

    def listener(message: Message) -> None:
        seen.append(message.body.decode())
        if message.body == b"3" and not message.redelivered:
            raise RuntimeError("once")

    receiver = await kit.receiver("auto", optimize_ack=True, optimize_ack_timeout=60)
    await receiver.listen(queue, listener)
    await until(lambda: len(tap.settlements()) == 3)
    assert sorted(seen) == ["0", "1", "2", "3", "3", "4", "5", "6"]
    assert tap.settlements() == ["qos 10", "reject 4 requeue", "ack 8 multiple"]


async def test_a_prefetch_of_one_acks_singly(kit: Connection, fill: Fill, tap: Tap) -> None:
    """REDELIVER-32."""
    queue = await fill(3)
    receiver = await kit.receiver("auto", prefetch=1, optimize_ack=True, optimize_ack_timeout=60)
    collector = Collector(3)
    await receiver.listen(queue, collector)
    await collector.complete()
    assert tap.settlements() == ["qos 1", "ack 1", "ack 2", "ack 3"]


# client and individual


async def test_client_acks_all_that_was_handed_out(kit: Connection, fill: Fill, tap: Tap) -> None:
    """REDELIVER-33: by one call on any message, and nothing that nobody has seen."""
    queue = await fill(6)
    receiver = await kit.receiver("client")
    got = [await receiver.receive(LIMIT_S, queue=queue) for _ in range(4)]
    assert got[0] is not None
    assert tap.settlements() == ["qos 10 channel"]
    await got[0].acknowledge()
    await got[3].acknowledge()  # type: ignore[union-attr]
    await until(lambda: len(tap.settlements()) == 2)
    assert tap.settlements() == ["qos 10 channel", "ack 4 multiple"]
    await receiver.close()
    assert await rest_of(kit, queue) == [("4", True), ("5", True)]


async def test_client_leaves_what_failed_unacknowledged(kit: Connection, fill: Fill) -> None:
    """As in JMS: the next message is delivered, and recover() brings the others back."""
    queue = await fill(2)
    receiver = await kit.receiver("client")
    seen: list[tuple[str, bool]] = []

    def listener(message: Message) -> None:
        seen.append((message.body.decode(), message.redelivered))
        raise RuntimeError("always")

    await receiver.listen(queue, listener)
    await until(lambda: len(seen) == 2)
    assert seen == [("0", False), ("1", False)]
    await receiver.recover()
    await until(lambda: len(seen) == 4)
    assert seen[2:] == [("0", True), ("1", True)]


async def test_individual_acks_one(kit: Connection, fill: Fill, tap: Tap) -> None:
    """REDELIVER-34, REDELIVER-42, REDELIVER-51."""
    queue = await fill(4)
    receiver = await kit.receiver("individual")
    got = [await receiver.receive(LIMIT_S, queue=queue) for _ in range(4)]
    second = got[1]
    assert second is not None
    await second.acknowledge()
    await second.acknowledge()
    await second.reject()
    await until(lambda: len(tap.settlements()) == 2)
    assert tap.settlements() == ["qos 10", "ack 2"]
    await receiver.close()
    await second.acknowledge()
    assert [body for body, _ in await rest_of(kit, queue)] == ["0", "2", "3"]


async def test_individual_rejects_one(kit: Connection, fill: Fill, tap: Tap) -> None:
    """REDELIVER-40, REDELIVER-41."""
    queue = await fill(2)
    receiver = await kit.receiver("individual")
    for _ in range(2):
        message = await receiver.receive(LIMIT_S, queue=queue)
        assert message is not None
        await message.reject(requeue=message.body == b"1")
    again = await receiver.receive(LIMIT_S)
    assert again is not None
    assert (again.body, again.redelivered, again.redelivery_count) == (b"1", True, 1)
    assert tap.settlements()[1:] == ["reject 1", "reject 2 requeue"]


async def test_individual_returns_what_failed_unless_it_is_settled(
    kit: Connection, fill: Fill, tap: Tap
) -> None:
    queue = await fill(2)

    async def listener(message: Message) -> None:
        if message.body == b"0":
            await message.acknowledge()
        if not message.redelivered:
            raise RuntimeError("once")
        await message.acknowledge()

    receiver = await kit.receiver("individual")
    await receiver.listen(queue, listener)
    await until(lambda: len(tap.settlements()) == 4)
    assert tap.settlements() == ["qos 10", "ack 1", "reject 2 requeue", "ack 3"]


# dups_ok and topic-like queues


async def test_dups_ok_on_a_work_queue_is_auto(kit: Connection, fill: Fill, tap: Tap) -> None:
    """REDELIVER-35."""
    queue = await fill(2)
    receiver = await kit.receiver("dups_ok")
    collector = Collector(2)
    await receiver.listen(queue, collector)
    await collector.complete()
    assert tap.settlements() == ["qos 10", "ack 1", "ack 2"]


@pytest.mark.parametrize("optimize_ack", [False, True])
async def test_dups_ok_on_a_topic_acks_at_half(
    kit: Connection, tap: Tap, optimize_ack: bool
) -> None:
    """REDELIVER-35: at five of ten, and not before, whatever optimize_ack says."""
    receiver = await kit.receiver("dups_ok", optimize_ack=optimize_ack, optimize_ack_timeout=0.01)
    collector = Collector(12)
    await receiver.subscribe("amq.topic", "kit.half.#", collector)
    for number in range(12):
        await kit.publish(str(number), f"kit.half.{number}", exchange="amq.topic")
    assert await collector.complete() == [str(number) for number in range(12)]
    assert tap.settlements() == ["qos 10", "ack 5 multiple", "ack 10 multiple"]
    assert collector.seen[3].routing_key == "kit.half.3"


async def test_each_subscriber_gets_its_own_copy(kit: Connection) -> None:
    receivers = [await kit.receiver("auto") for _ in range(2)]
    for receiver in receivers:
        await receiver.subscribe("amq.topic", "kit.copies")
    await kit.publish(b"to all", "kit.copies", exchange="amq.topic")
    for receiver in receivers:
        message = await receiver.receive(LIMIT_S)
        assert message is not None
        assert (message.body, message.exchange) == (b"to all", "amq.topic")


async def test_a_subscription_can_be_pulled(kit: Connection) -> None:
    receiver = await kit.receiver("auto", prefetch=0)
    await receiver.subscribe("amq.topic", "kit.pulled")
    assert await receiver.receive(0.1) is None
    await kit.publish(b"one", "kit.pulled", exchange="amq.topic")
    message = await receiver.receive(LIMIT_S)
    assert message is not None


# transacted


async def test_commit_acks_and_publishes_together(
    kit: Connection, fill: Fill, names: Names, tap: Tap
) -> None:
    """REDELIVER-36."""
    queue = await fill(3)
    answers = await kit.declare(names("answers"))
    tap.clear()
    receiver = await kit.receiver("transacted", optimize_ack=True)
    for _ in range(2):
        message = await receiver.receive(LIMIT_S, queue=queue)
        assert message is not None
        await receiver.publish(b"answer to " + message.body, answers)
    await asyncio.sleep(SETTLED_S)
    assert await rest_of(kit, answers) == []
    tap.clear()
    await receiver.commit()
    assert tap.settlements() == ["ack 2 multiple", "commit"]
    assert await rest_of(kit, answers) == [("answer to 0", False), ("answer to 1", False)]
    await receiver.close()
    assert [body for body, _ in await rest_of(kit, queue)] == ["2"]


async def test_rollback_redelivers(kit: Connection, fill: Fill, names: Names, tap: Tap) -> None:
    """REDELIVER-36: rollback, then recover(requeue=1); the order is kept, nothing is twice."""
    queue = await fill(40)
    answers = await kit.declare(names("answers"))
    receiver = await kit.receiver("transacted")
    for count in (3, 1, 7, 4):
        tap.clear()
        for number in range(count):
            message = await receiver.receive(LIMIT_S, queue=queue)
            assert message is not None
            assert message.body == b"%d" % number
        await receiver.publish(b"never", answers)
        await receiver.rollback()
        undone = [text for text in tap.settlements() if not text.startswith("qos")]
        assert undone == ["rollback", "recover requeue"]
    seen: list[tuple[str, bool]] = []
    while (message := await receiver.receive(0.3)) is not None:
        seen.append((message.body.decode(), message.redelivered))
        await receiver.commit()
    assert [body for body, _ in seen] == [str(number) for number in range(40)]
    assert all(redelivered for _, redelivered in seen[:7])
    assert await rest_of(kit, answers) == []


async def test_a_listener_that_fails_rolls_back(kit: Connection, fill: Fill, names: Names) -> None:
    """REDELIVER-36."""
    queue = await fill(3)
    answers = await kit.declare(names("answers"))
    receiver = await kit.receiver("transacted")
    seen: list[str] = []

    async def listener(message: Message) -> None:
        seen.append(message.body.decode())
        await receiver.publish(message.body, answers)
        if message.body == b"1" and seen.count("1") == 1:
            raise RuntimeError("once")
        await receiver.commit()

    await receiver.listen(queue, listener)
    await until(lambda: seen[-1:] == ["2"])
    assert seen == ["0", "1", "1", "2"]
    assert [body for body, _ in await rest_of(kit, answers)] == ["0", "1", "2"]
    assert await rest_of(kit, queue) == []


async def test_a_rollback_of_nothing_recovers_nothing(kit: Connection, tap: Tap) -> None:
    receiver = await kit.receiver("transacted")
    await receiver.rollback()
    await receiver.commit()
    assert tap.settlements() == ["select", "qos 10 channel", "rollback", "commit"]


async def test_closing_rolls_back(kit: Connection, fill: Fill, names: Names) -> None:
    """TX-12."""
    queue = await fill(1)
    answers = await kit.declare(names("answers"))
    receiver = await kit.receiver("transacted")
    assert await receiver.receive(LIMIT_S, queue=queue) is not None
    await receiver.publish(b"never", answers)
    await receiver.close()
    assert await rest_of(kit, answers) == []
    assert await rest_of(kit, queue) == [("0", True)]


# prefetch


@pytest.mark.parametrize("mode", ["client", "transacted"])
async def test_the_prefetch_is_extended_by_half(
    kit: Connection, fill: Fill, tap: Tap, mode: str
) -> None:
    """REDELIVER-39: ten become fifteen once five are handled; then nothing more comes."""
    queue = await fill(40)
    receiver = await kit.receiver(mode)
    last: Message | None = None
    for number in range(15):
        last = await receiver.receive(LIMIT_S, queue=queue)
        assert last is not None, number
        if number == 3:
            await asyncio.sleep(SETTLED_S)
            assert tap.settlements()[-1] == "qos 10 channel"
    assert tap.settlements()[-1] == "qos 15 channel"
    assert await receiver.receive(0.3) is None
    assert last is not None
    if mode == "client":
        await last.acknowledge()
    else:
        await receiver.commit()
    assert tap.settlements()[-1] == "qos 10 channel"
    for number in range(15, 30):
        message = await receiver.receive(LIMIT_S)
        assert message is not None
        assert message.body == b"%d" % number
    assert await receiver.receive(0.3) is None


QUORUM = {"x-queue-type": "quorum"}


@pytest.mark.parametrize("mode", ["client", "transacted"])
async def test_without_extension_each_consumer_has_its_limit(
    kit: Connection,
    names: Names,
    tap: Tap,
    mode: str,
) -> None:
    """QOS-13: RabbitMQ's quorum queues refuse the channel's; rollback goes one by one then."""
    queue = await kit.declare(names(), arguments=QUORUM)
    for number in range(8):
        await kit.publish(str(number), queue)
    tap.clear()
    receiver = await kit.receiver(mode, prefetch=4, prefetch_extension=False)
    for _ in range(3):
        assert await receiver.receive(LIMIT_S, queue=queue) is not None
    await (receiver.recover() if mode == "client" else receiver.rollback())
    seen: list[tuple[str, bool]] = []
    while (message := await receiver.receive(0.3)) is not None:
        seen.append((message.body.decode(), message.redelivered))
        if mode == "client":
            await message.acknowledge()
        else:
            await receiver.commit()
    assert sorted(seen) == [(str(number), number < 3) for number in range(8)]
    texts = tap.settlements()
    assert "qos 4" in texts
    assert not [text for text in texts if text.endswith("channel") or text.startswith("recover")]


async def test_the_limit_of_a_channel_and_a_quorum_queue(kit: Connection, names: Names) -> None:
    """QOS-13: RabbitMQ's refusal is told in its own words; VouchMQ just does it."""
    queue = await kit.declare(names(), arguments=QUORUM)
    receiver = await kit.receiver("client")
    if kit.holds_back:
        assert await receiver.receive(0.1, queue=queue) is None
    else:
        with pytest.raises(ChannelLostError, match="does not support global qos"):
            await receiver.receive(0.1, queue=queue)


async def test_prefetch_bounds_what_a_receiver_holds(kit: Connection, fill: Fill) -> None:
    """REDELIVER-48: the others get the rest."""
    queue = await fill(8)
    slow = await kit.receiver("individual", prefetch=3)
    assert await slow.receive(LIMIT_S, queue=queue) is not None
    await asyncio.sleep(SETTLED_S)
    assert [body for body, _ in await rest_of(kit, queue)] == ["3", "4", "5", "6", "7"]


async def test_prefetch_zero_pulls(kit: Connection, fill: Fill, tap: Tap) -> None:
    """REDELIVER-37."""
    queue = await fill(3)
    receiver = await kit.receiver("client", prefetch=0)
    message = await receiver.receive(LIMIT_S, queue=queue)
    assert message is not None
    kinds = {type(method) for method in tap.methods()}
    assert Basic.Get in kinds
    assert Basic.Consume not in kinds
    assert [body for body, _ in await rest_of(kit, queue)] == ["1", "2"]
    await message.acknowledge()
    assert await receiver.receive(0) is None
    await kit.publish(b"late", queue)
    late = await receiver.receive(LIMIT_S)
    assert late is not None
    assert late.body == b"late"


async def test_pulled_messages_roll_back(kit: Connection, fill: Fill) -> None:
    queue = await fill(3)
    receiver = await kit.receiver("transacted", prefetch=0)
    for _ in range(2):
        await receiver.receive(LIMIT_S, queue=queue)
    await receiver.rollback()
    assert await rest_of(kit, queue) == [("0", True), ("1", True), ("2", False)]


async def test_a_listener_needs_a_prefetch(kit: Connection, fill: Fill) -> None:
    """REDELIVER-37."""
    receiver = await kit.receiver("auto", prefetch=0)
    with pytest.raises(ValueError, match="a listener needs prefetch > 0"):
        await receiver.listen(await fill(0), print)


# states


async def test_receive_and_a_listener_do_not_mix(kit: Connection, fill: Fill) -> None:
    """REDELIVER-53: until the one is stopped."""
    queue = await fill(2)
    receiver = await kit.receiver("auto", prefetch=1)
    assert await receiver.receive(LIMIT_S, queue=queue) is not None
    with pytest.raises(IllegalStateError, match=r"a listener does not go with receive\(\)"):
        await receiver.listen(queue, print)
    await receiver.stop()
    collector = Collector(1)
    await receiver.listen(queue, collector)
    with pytest.raises(IllegalStateError, match=r"receive\(\) does not go with a listener"):
        await receiver.receive(0)
    assert await collector.complete() == ["1"]
    await receiver.stop()
    assert await receiver.receive(0, queue=queue) is None


async def test_stopping_returns_what_nobody_has_seen(kit: Connection, fill: Fill) -> None:
    queue = await fill(5)
    receiver = await kit.receiver("client")
    first = await receiver.receive(LIMIT_S, queue=queue)
    assert first is not None
    await asyncio.sleep(SETTLED_S)
    await receiver.stop()
    assert [body for body, _ in await rest_of(kit, queue)] == ["1", "2", "3", "4"]
    await first.acknowledge()
    await receiver.close()
    assert await rest_of(kit, queue) == []


async def test_a_receiver_receives_from_one_queue(kit: Connection, fill: Fill) -> None:
    first, second = await fill(0), await fill(0)
    receiver = await kit.receiver("auto")
    with pytest.raises(ValueError, match="has no queue yet"):
        await receiver.receive(0)
    assert await receiver.receive(0, queue=first) is None
    with pytest.raises(IllegalStateError, match="create another one"):
        await receiver.receive(0, queue=second)


async def test_listeners_share_a_receiver(kit: Connection, fill: Fill, tap: Tap) -> None:
    """REDELIVER-54: one acknowledge() covers them all."""
    first, second = await fill(2), await fill(2)
    receiver = await kit.receiver("client")
    collector = Collector(4)
    await receiver.listen(first, collector)
    await receiver.listen(second, collector)
    assert sorted(await collector.complete()) == ["0", "0", "1", "1"]
    await collector.seen[0].acknowledge()
    await until(lambda: tap.settlements()[-1] == "ack 4 multiple")
    assert tap.settlements()[-1] == "ack 4 multiple"


@pytest.mark.parametrize("mode", ["auto", "dups_ok", "transacted"])
async def test_modes_that_acknowledge_themselves_say_so(
    kit: Connection, fill: Fill, mode: str
) -> None:
    receiver = await kit.receiver(mode)
    message = await receiver.receive(LIMIT_S, queue=await fill(1))
    assert message is not None
    with pytest.raises(IllegalStateError, match="acknowledges by itself"):
        await message.acknowledge()
    with pytest.raises(IllegalStateError, match="gives messages back by itself"):
        await message.reject()


async def test_commit_belongs_to_its_mode(kit: Connection) -> None:
    receiver = await kit.receiver("auto")
    for call in (receiver.commit, receiver.rollback):
        with pytest.raises(IllegalStateError, match="belongs to mode transacted"):
            await call()
    with pytest.raises(IllegalStateError, match="belongs to mode client"):
        await receiver.recover()


async def test_a_missing_queue_is_told_in_the_brokers_words(kit: Connection, fill: Fill) -> None:
    receiver = await kit.receiver("auto")
    with pytest.raises(RefusedError, match="NOT_FOUND - no queue 'nowhere'"):
        await receiver.listen("nowhere", print)
    message = await receiver.receive(LIMIT_S, queue=await fill(1))
    assert message is not None


async def test_a_closed_receiver_says_so(kit: Connection, fill: Fill) -> None:
    queue = await fill(0)
    async with await kit.receiver("auto") as receiver:
        pass
    with pytest.raises(IllegalStateError, match="closed"):
        await receiver.listen(queue, print)
    await receiver.close()
    await receiver.wait_closed()


async def test_closing_waits_for_the_listener(kit: Connection, fill: Fill) -> None:
    queue = await fill(2)
    started, ended = asyncio.Event(), asyncio.Event()

    async def listener(message: Message) -> None:
        started.set()
        await asyncio.sleep(0.2)
        ended.set()

    receiver = await kit.receiver("auto")
    await receiver.listen(queue, listener)
    await started.wait()
    await receiver.close()
    assert ended.is_set()
    assert [body for body, _ in await rest_of(kit, queue)] == ["1"]


async def test_a_listener_may_close_its_receiver(kit: Connection, fill: Fill) -> None:
    queue = await fill(3)
    receiver = await kit.receiver("auto")

    async def listener(message: Message) -> None:
        await receiver.close()

    await receiver.listen(queue, listener)
    async with asyncio.timeout(LIMIT_S):
        await receiver.wait_closed()
    assert [body for body, _ in await rest_of(kit, queue)] == ["1", "2"]


async def test_giving_up_a_receive_loses_nothing(kit: Connection, fill: Fill) -> None:
    for prefetch in (0, 10):
        queue = await fill(0)
        receiver = await kit.receiver("client", prefetch=prefetch)
        for _ in range(20):
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(receiver.receive(queue=queue), 0.005)
        await kit.publish(b"late", queue)
        message = await receiver.receive(LIMIT_S)
        assert message is not None
        assert (message.body, message.redelivered) == (b"late", False)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"mode": "session"}, "no mode 'session'"),
        ({"mode": "auto", "prefetch": -1}, "prefetch must be 0 to 65535"),
        ({"mode": "client", "optimize_ack": True}, "optimize_ack goes with"),
    ],
)
async def test_wrong_options_are_told(
    kit: Connection, options: dict[str, object], text: str
) -> None:
    with pytest.raises(ValueError, match=text):
        await kit.receiver(**options)  # type: ignore[arg-type]
