"""Orders with FastStream: each is charged, and what cannot be charged is rejected."""

from __future__ import annotations

from collections.abc import Callable

from faststream import AckPolicy
from faststream.rabbit import Channel, RabbitBroker, RabbitQueue
from pydantic import BaseModel

QUEUE = "orders"
REJECTED = "orders.rejected"


class Order(BaseModel):
    """What comes in."""

    number: int
    amount: int


def application(url: str, charge: Callable[[Order], None]) -> RabbitBroker:
    """The service, not started.

    Args:
        url: of the broker
        charge: charges an order, or raises
    """
    broker = RabbitBroker(
        url,
        default_channel=Channel(prefetch_count=10, publisher_confirms=True),
        reconnect_interval=0.05,
    )
    orders = RabbitQueue(
        QUEUE,
        durable=True,
        arguments={"x-dead-letter-exchange": "", "x-dead-letter-routing-key": REJECTED},
    )

    @broker.subscriber(orders, ack_policy=AckPolicy.REJECT_ON_ERROR)
    async def handle(order: Order) -> None:
        charge(order)

    return broker


async def declare_rejected(broker: RabbitBroker) -> None:
    """The queue for what cannot be charged."""
    await broker.declare_queue(RabbitQueue(REJECTED, durable=True))
