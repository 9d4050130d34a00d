"""The hard cases of mail.py."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import aio_pika
import pytest

from examples.testing.with_aio_pika.mail import (
    FAILED,
    QUEUE,
    MailService,
    connect,
    request_mail,
)
from vouchmq.testing import AsyncVHost, Broker, VHost


class Sent:
    """Mail that was sent; one to `nobody` cannot be."""

    def __init__(self) -> None:
        self.addresses: list[str] = []

    async def send(self, address: str) -> None:
        if address == "nobody":
            raise ValueError(address)
        self.addresses.append(address)


@pytest.fixture
def vhost(vouchmq_vhost: VHost) -> AsyncVHost:
    return vouchmq_vhost.aio


@pytest.fixture
async def connection(
    vhost: AsyncVHost,
) -> AsyncIterator[aio_pika.abc.AbstractRobustConnection]:
    connection = await connect(vhost.url)
    yield connection
    await connection.close()


@pytest.fixture
def sent() -> Sent:
    return Sent()


@pytest.fixture
async def service(vhost: AsyncVHost, sent: Sent) -> AsyncIterator[MailService]:
    service = MailService(vhost.url, sent.send)
    running = asyncio.create_task(service.run())
    await vhost.queue(QUEUE).wait(consumers=1)
    yield service
    service.stop()
    await running


@pytest.mark.usefixtures("service")
async def test_mail_is_sent(
    vhost: AsyncVHost, connection: aio_pika.abc.AbstractRobustConnection, sent: Sent
) -> None:
    for address in ("ann", "bob"):
        await request_mail(connection, address)
    await vhost.queue(QUEUE).wait(acked=2)
    assert sent.addresses == ["ann", "bob"]


@pytest.mark.usefixtures("service")
async def test_what_cannot_be_sent_is_parked(
    vhost: AsyncVHost, connection: aio_pika.abc.AbstractRobustConnection, sent: Sent
) -> None:
    await request_mail(connection, "nobody")
    await request_mail(connection, "ann")
    await vhost.queue(FAILED).wait(messages=1)
    await vhost.queue(QUEUE).wait(acked=1, messages=0)
    assert sent.addresses == ["ann"]


@pytest.mark.usefixtures("service")
async def test_the_service_comes_back_when_its_connection_breaks(
    vhost: AsyncVHost, connection: aio_pika.abc.AbstractRobustConnection, sent: Sent
) -> None:
    await request_mail(connection, "ann")
    await vhost.queue(QUEUE).wait(acked=1)
    assert await vhost.cut_connections() == 2
    await vhost.queue(QUEUE).wait(consumers=1)
    other = await connect(vhost.url)
    await request_mail(other, "bob")
    await other.close()
    await vhost.queue(QUEUE).wait(acked=2)
    assert sent.addresses == ["ann", "bob"]


async def test_a_refusal_reaches_whoever_asked(
    vhost: AsyncVHost, connection: aio_pika.abc.AbstractRobustConnection
) -> None:
    await request_mail(connection, "ann")
    async with vhost.queue(QUEUE).refused_publishes():
        with pytest.raises(aio_pika.exceptions.DeliveryError):
            await request_mail(connection, "bob")
    await vhost.queue(QUEUE).wait(messages=1)


async def test_nobody_is_told_before_the_mail_is_safe(
    vouchmq_broker: Broker,
    vhost: AsyncVHost,
    connection: aio_pika.abc.AbstractRobustConnection,
) -> None:
    await request_mail(connection, "ann")
    async with vouchmq_broker.aio.held_confirms():
        asking = asyncio.create_task(request_mail(connection, "bob"))
        await vhost.queue(QUEUE).wait(messages=2)
        assert not asking.done()
    await asking
