"""Redelivery policies: by the broker's own means on VouchMQ, by retry queues elsewhere."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator

import aio_pika
import pytest
import pytest_asyncio

from tests.conftest import Names
from tests.integration.broker_process import BrokerProcess
from tests.integration.kit_tap import until
from vouchmq.kit import Connection, Message, RedeliveryPolicy, RefusedError, connect

pytestmark = [pytest.mark.asyncio]

LIMIT_S = 60.0
# A delay may be that much longer on a busy machine; one that nothing bounds is longer still.
LATE_S = 30.0
# A clock may be read that much too early.
EARLY_S = 0.02
SHORT = RedeliveryPolicy(2, initial_delay=0.3, delay=0.6, collision_avoidance=0)
# The broker cannot express a first delay that is longer than the others.
LONG_FIRST = RedeliveryPolicy(2, initial_delay=0.6, delay=0.3, collision_avoidance=0)
POLICIES = pytest.mark.parametrize("policy", [SHORT, LONG_FIRST], ids=["native", "retry-queues"])


@pytest_asyncio.fixture
async def kit(url: str) -> AsyncIterator[Connection]:
    """A connection with a prefetch of ten and the policy SHORT."""
    async with await connect(url, prefetch=10, redelivery=SHORT) as connection:
        yield connection


@pytest_asyncio.fixture
async def queue_name(kit: Connection, names: Names) -> str:
    """A name whose dead letters and retry queues are deleted too."""
    name = names()
    for suffix in ("dlq", "retry.300", "retry.600", "retry.200", "retry.400", "retry.1000"):
        names.also(f"{name}.{suffix}")
    return name


class Failing:
    """A listener that fails for ever, and remembers when it was called and with what."""

    def __init__(self) -> None:
        self.at: list[float] = []
        self.seen: list[Message] = []

    def __call__(self, message: Message) -> None:
        self.at.append(time.monotonic())
        self.seen.append(message)
        raise RuntimeError("always")

    def gaps(self) -> list[float]:
        return [later - earlier for earlier, later in zip(self.at, self.at[1:], strict=False)]


async def dead_letter(kit: Connection, queue: str, limit_s: float = LIMIT_S) -> Message:
    receiver = await kit.receiver("auto", prefetch=0)
    message = await receiver.receive(limit_s, queue=f"{queue}.dlq")
    assert message is not None
    return message


@POLICIES
async def test_a_poison_message_ends_among_the_dead_letters(
    kit: Connection, queue_name: str, policy: RedeliveryPolicy
) -> None:
    """REDELIVER-45, REDELIVER-46: delivered once and twice again, each time after its delay."""
    queue = await kit.declare(queue_name, redelivery=policy)
    receiver = await kit.receiver("auto")
    listener = Failing()
    await receiver.listen(queue, listener)
    await kit.publish(b"poison", queue)
    dead = await dead_letter(kit, queue)
    assert dead.body == b"poison"
    assert [message.redelivery_count for message in listener.seen] == [0, 1, 2]
    assert [message.redelivered for message in listener.seen] == [False, True, True]
    wanted = (policy.initial_delay, policy.delay)
    for gap, delay_s in zip(listener.gaps(), wanted, strict=True):
        assert delay_s - EARLY_S <= gap <= delay_s + LATE_S
    await asyncio.sleep(0.8)
    assert len(listener.seen) == 3


async def test_delays_grow(kit: Connection, queue_name: str) -> None:
    """REDELIVER-21, REDELIVER-46."""
    policy = RedeliveryPolicy(
        3, 0.2, exponential=True, multiplier=5, max_delay=0.4, collision_avoidance=0
    )
    queue = await kit.declare(queue_name, redelivery=policy)
    receiver = await kit.receiver("individual")
    listener = Failing()
    await receiver.listen(queue, listener)
    await kit.publish(b"poison", queue)
    await dead_letter(kit, queue)
    for gap, delay_s in zip(listener.gaps(), (0.2, 0.4, 0.4), strict=True):
        assert delay_s - EARLY_S <= gap <= delay_s + LATE_S


@POLICIES
async def test_others_are_not_held_up(
    kit: Connection, queue_name: str, policy: RedeliveryPolicy
) -> None:
    queue = await kit.declare(queue_name, redelivery=policy)
    done: list[str] = []

    def listener(message: Message) -> None:
        if message.body == b"0" and not message.redelivered:
            raise RuntimeError("once")
        done.append(message.body.decode())

    receiver = await kit.receiver("auto")
    for number in range(4):
        await kit.publish(str(number), queue)
    await receiver.listen(queue, listener)
    await until(lambda: len(done) == 4)
    assert done == ["1", "2", "3", "0"]


@POLICIES
@pytest.mark.parametrize("prefetch", [0, 10])
async def test_rollback_is_delayed_and_limited(
    kit: Connection, queue_name: str, policy: RedeliveryPolicy, prefetch: int
) -> None:
    """REDELIVER-36 under a policy."""
    queue = await kit.declare(queue_name, redelivery=policy)
    for number in range(2):
        await kit.publish(str(number), queue)
    receiver = await kit.receiver("transacted", prefetch=prefetch)
    rolled_back_at, delay_s = 0.0, 0.0
    for count in range(3):
        for number in range(2):
            message = await receiver.receive(LIMIT_S, queue=queue)
            assert message is not None
            assert time.monotonic() - rolled_back_at >= delay_s - EARLY_S
            assert (message.body, message.redelivery_count) == (b"%d" % number, count)
        assert await receiver.receive(0.1) is None
        rolled_back_at = time.monotonic()
        delay_s = policy.delay if count else policy.initial_delay
        await receiver.rollback()
    assert await receiver.receive(0.8) is None
    assert (await dead_letter(kit, queue)).body == b"0"
    assert (await dead_letter(kit, queue)).body == b"1"


async def test_client_recovers_under_the_policy(kit: Connection, queue_name: str) -> None:
    queue = await kit.declare(queue_name)
    await kit.publish(b"again", queue)
    receiver = await kit.receiver("client")
    assert await receiver.receive(LIMIT_S, queue=queue) is not None
    began = time.monotonic()
    await receiver.recover()
    message = await receiver.receive(LIMIT_S)
    assert time.monotonic() - began >= SHORT.initial_delay - EARLY_S
    assert message is not None
    assert message.redelivery_count == 1
    await message.acknowledge()


async def test_a_rejected_message_is_dead_at_once(kit: Connection, queue_name: str) -> None:
    """REDELIVER-40."""
    queue = await kit.declare(queue_name)
    await kit.publish(b"poison", queue)
    receiver = await kit.receiver("individual")
    message = await receiver.receive(LIMIT_S, queue=queue)
    assert message is not None
    await message.reject(requeue=False)
    assert (await dead_letter(kit, queue)).body == b"poison"


@POLICIES
async def test_a_message_comes_back_as_it_was(
    kit: Connection, queue_name: str, policy: RedeliveryPolicy
) -> None:
    queue = await kit.declare(queue_name, redelivery=policy)
    sent = aio_pika.Message(
        b"body",
        headers={"colour": "red", "number": 7},
        content_type="text/plain",
        content_encoding="utf-8",
        delivery_mode=aio_pika.DeliveryMode.PERSISTENT,
        priority=3,
        correlation_id="c1",
        reply_to="answers",
        message_id="m1",
        timestamp=1_700_000_000,
        type="greeting",
        app_id="kit",
    )
    await kit.publish(sent, queue)
    receiver = await kit.receiver("individual", prefetch=0)
    views: list[tuple[object, ...]] = []
    for _ in range(2):
        message = await receiver.receive(LIMIT_S, queue=queue)
        assert message is not None
        views.append(
            (
                *(message.body, message.content_type, message.incoming.content_encoding),
                *(message.is_persistent, message.priority, message.correlation_id),
                *(message.reply_to, message.message_id, message.timestamp, message.type),
                *(message.incoming.app_id, message.exchange, message.routing_key),
                *(message.headers["colour"], message.headers["number"]),
            )
        )
        await message.reject()
    assert views[0] == views[1]
    assert views[0][:2] == (b"body", "text/plain")


async def test_copies_go_nowhere_else(kit: Connection, queue_name: str, names: Names) -> None:
    """A CC header has been obeyed once and is not obeyed again by a redelivery (PUB-10)."""
    queue = await kit.declare(queue_name, redelivery=LONG_FIRST)
    carbon = await kit.declare(names("cc"), redelivery=None)
    await kit.publish(aio_pika.Message(b"once", headers={"CC": [carbon]}), queue)
    receiver = await kit.receiver("individual", prefetch=0)
    message = await receiver.receive(LIMIT_S, queue=queue)
    assert message is not None
    await message.reject()
    other = await kit.receiver("auto", prefetch=0)
    assert await other.receive(LIMIT_S, queue=carbon) is not None
    assert await other.receive(0.2) is None
    again = await receiver.receive(LIMIT_S)
    assert again is not None
    assert "CC" not in again.headers
    await again.acknowledge()


async def test_without_dead_letters_the_last_failure_drops(
    kit: Connection, queue_name: str
) -> None:
    policy = RedeliveryPolicy(0)
    queue = await kit.declare(queue_name, redelivery=policy, dead_letter_queue=None)
    await kit.publish(b"poison", queue)
    receiver = await kit.receiver("auto")
    listener = Failing()
    await receiver.listen(queue, listener)
    await until(lambda: len(listener.seen) == 1)
    assert len(listener.seen) == 1
    with pytest.raises(RefusedError, match="NOT_FOUND"):
        await (await kit.receiver("auto")).receive(0, queue=f"{queue}.dlq")


async def test_a_topic_has_the_connections_policy(kit: Connection) -> None:
    receiver = await kit.receiver("auto")
    listener = Failing()
    await receiver.subscribe("amq.topic", "kit.policy", listener)
    await kit.publish(b"poison", "kit.policy", exchange="amq.topic")
    await until(lambda: len(listener.seen) == 3)
    assert [message.redelivery_count for message in listener.seen] == [0, 1, 2]
    assert listener.seen[2].routing_key == "kit.policy"


async def test_declaring_again_is_the_same(kit: Connection, queue_name: str, url: str) -> None:
    """The policy is in the queue, so programs must agree on it."""
    assert await kit.declare(queue_name) == await kit.declare(queue_name)
    async with await connect(url, redelivery=RedeliveryPolicy(2, 0.3, 0.6)) as other:
        if other.holds_back:
            await other.declare(queue_name)
            with pytest.raises(RefusedError, match="PRECONDITION_FAILED"):
                await other.declare(queue_name, redelivery=RedeliveryPolicy(3))


async def test_arguments_of_the_caller_win(kit: Connection, queue_name: str, names: Names) -> None:
    """REDELIVER-47: one queue for all dead letters, if one wants that."""
    shared = await kit.declare(names("dead"), redelivery=None)
    queue = await kit.declare(
        queue_name,
        redelivery=RedeliveryPolicy(0),
        arguments={"x-dead-letter-exchange": "", "x-dead-letter-routing-key": shared},
    )
    await kit.publish(b"poison", queue)
    receiver = await kit.receiver("auto")
    await receiver.listen(queue, Failing())
    graves = await kit.receiver("auto", prefetch=0)
    message = await graves.receive(LIMIT_S, queue=shared)
    assert message is not None
    assert message.body == b"poison"


@pytest.mark.parametrize("own_broker", [("--compat-product", "RabbitMQ")], indirect=True)
async def test_a_broker_that_poses_as_another_is_known_by_what_it_can(
    own_broker: BrokerProcess,
) -> None:
    """CONN-12, CONN-13: it announces delayed retries whatever it calls itself."""
    async with await connect(own_broker.url, redelivery=SHORT) as kit:
        assert kit.holds_back
        queue = await kit.declare("poisoned")
        receiver = await kit.receiver("auto")
        listener = Failing()
        await receiver.listen(queue, listener)
        await kit.publish(b"poison", queue)
        dead = await dead_letter(kit, queue)
        assert dead.body == b"poison"
        assert [message.redelivery_count for message in listener.seen] == [0, 1, 2]
        for gap, delay_s in zip(listener.gaps(), (0.3, 0.6), strict=True):
            assert delay_s - EARLY_S <= gap <= delay_s + LATE_S


@POLICIES
async def test_quorum_queues_have_policies_too(
    kit: Connection, queue_name: str, policy: RedeliveryPolicy
) -> None:
    """Where the kit keeps the delays, the broker's limit still catches consumers that crash."""
    queue = await kit.declare(queue_name, redelivery=policy, arguments={"x-queue-type": "quorum"})
    receiver = await kit.receiver("auto")
    listener = Failing()
    await receiver.listen(queue, listener)
    await kit.publish(b"poison", queue)
    assert (await dead_letter(kit, queue)).body == b"poison"
    assert [message.redelivery_count for message in listener.seen] == [0, 1, 2]
    await receiver.close()
    await kit.publish(b"crash", queue)
    for _ in range(3):
        async with await kit.receiver("individual") as crashing:
            assert await crashing.receive(LIMIT_S, queue=queue) is not None
    assert (await dead_letter(kit, queue)).body == b"crash"
