"""The hard cases of orders.py: each would pass unnoticed with a broker that never fails."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from examples.testing.with_pika.orders import QUEUE, Shop, Warehouse
from vouchmq.testing import Broker, VHost


@pytest.fixture
def shop(vouchmq_vhost: VHost) -> Iterator[Shop]:
    shop = Shop(vouchmq_vhost.url)
    yield shop
    shop.close()


def test_an_order_is_stored(vouchmq_vhost: VHost, shop: Shop) -> None:
    assert shop.place("book") == 1
    vouchmq_vhost.queue(QUEUE).wait(messages=1)


def test_a_refused_order_is_placed_again(vouchmq_vhost: VHost, shop: Shop) -> None:
    shop.place("book")
    with vouchmq_vhost.queue(QUEUE).refused_publishes(count=2):
        assert shop.place("pen") == 3
    vouchmq_vhost.queue(QUEUE).wait(messages=2)


def test_orders_survive_a_crash(vouchmq_broker: Broker, vouchmq_vhost: VHost, shop: Shop) -> None:
    shop.place("book")
    vouchmq_broker.restart()
    shop.place("pen")
    vouchmq_vhost.queue(QUEUE).wait(messages=2)


def test_an_order_without_an_answer_is_booked_once(
    vouchmq_broker: Broker, vouchmq_vhost: VHost, shop: Shop
) -> None:
    """The broker has stored it and dies before it confirms."""
    shop.place("book")
    with vouchmq_broker.held_confirms():
        placing = threading.Thread(target=shop.place, args=("pen",))
        placing.start()
        vouchmq_vhost.queue(QUEUE).wait(messages=2)
        vouchmq_broker.kill()
    vouchmq_broker.start()
    placing.join()
    assert vouchmq_vhost.queue(QUEUE).info()["messages"] == 3
    warehouse = Warehouse(vouchmq_vhost.url)
    warehouse.book(2)
    assert sorted(warehouse.items()) == ["book", "pen"]


def test_orders_wait_while_the_disk_is_full(
    vouchmq_broker: Broker, vouchmq_vhost: VHost, shop: Shop
) -> None:
    shop.place("book")
    with vouchmq_broker.disk_alarm():
        placing = threading.Thread(target=shop.place, args=("pen",))
        placing.start()
        vouchmq_vhost.wait_for_connections(blocked=1)
    placing.join()
    vouchmq_vhost.queue(QUEUE).wait(messages=2)


def test_a_warehouse_that_loses_its_connection_books_everything(
    vouchmq_vhost: VHost, shop: Shop
) -> None:
    shop.place("book")
    warehouse = Warehouse(vouchmq_vhost.url)
    booking = threading.Thread(target=warehouse.book, args=(2,))
    booking.start()
    vouchmq_vhost.queue(QUEUE).wait(acked=1)
    vouchmq_vhost.cut_connections()
    shop.place("pen")
    booking.join()
    assert sorted(warehouse.items()) == ["book", "pen"]
    vouchmq_vhost.queue(QUEUE).wait(messages=0)
