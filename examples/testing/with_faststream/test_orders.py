"""The hard cases of orders.py, with a real broker instead of FastStream's `TestRabbitBroker`."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from faststream.rabbit import RabbitBroker

from examples.testing.with_faststream.orders import (
    QUEUE,
    REJECTED,
    Order,
    application,
    declare_rejected,
)
from vouchmq.testing import AsyncVHost, VHost


class Charges:
    """What was charged; nobody pays more than 100."""

    def __init__(self) -> None:
        self.numbers: list[int] = []

    def charge(self, order: Order) -> None:
        if order.amount > 100:
            raise ValueError(order.amount)
        self.numbers.append(order.number)


@pytest.fixture
def vhost(vouchmq_vhost: VHost) -> AsyncVHost:
    return vouchmq_vhost.aio


@pytest.fixture
def charges() -> Charges:
    return Charges()


@pytest.fixture
async def service(vhost: AsyncVHost, charges: Charges) -> AsyncIterator[RabbitBroker]:
    async with application(vhost.url, charges.charge) as service:
        await declare_rejected(service)
        await service.start()
        await vhost.queue(QUEUE).wait(consumers=1)
        yield service


async def test_orders_are_charged(
    vhost: AsyncVHost, service: RabbitBroker, charges: Charges
) -> None:
    for number in (1, 2):
        await service.publish(Order(number=number, amount=10), QUEUE, persist=True)
    await vhost.queue(QUEUE).wait(acked=2)
    assert charges.numbers == [1, 2]


async def test_what_cannot_be_charged_is_kept(
    vhost: AsyncVHost, service: RabbitBroker, charges: Charges
) -> None:
    await service.publish(Order(number=1, amount=101), QUEUE, persist=True)
    await service.publish("no order", QUEUE, persist=True)
    await vhost.queue(REJECTED).wait(messages=2)
    assert charges.numbers == []


async def test_orders_are_charged_after_a_broken_connection(
    vhost: AsyncVHost, service: RabbitBroker, charges: Charges
) -> None:
    await service.publish(Order(number=1, amount=10), QUEUE, persist=True)
    await vhost.queue(QUEUE).wait(acked=1)
    assert await vhost.cut_connections() == 1
    await vhost.queue(QUEUE).wait(consumers=1)
    await service.publish(Order(number=2, amount=10), QUEUE, persist=True)
    await vhost.queue(QUEUE).wait(acked=2)
    assert charges.numbers == [1, 2]
