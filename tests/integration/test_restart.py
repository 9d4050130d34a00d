"""Restarts, most of them by `kill -9` in the middle of work, as clients see them.

The clients keep the record: what they attempted, what was confirmed, what they received and
what they acked. Afterwards the broker must agree with it. Spec: DURABLE-01, 02, 10, 12, 16.
"""

from __future__ import annotations

import asyncio
import random
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Literal

import pika
import pika.exceptions
import pytest
from pika.adapters.blocking_connection import BlockingChannel

from tests.integration.broker_process import BrokerProcess
from tests.integration.moving import blocking, drain, fill, judge, moving
from tests.integration.pika_async import PERSISTENT
from tests.integration.restart_record import (
    LEAST_CONFIRMED,
    QUEUES,
    Plan,
    Record,
    check,
    load,
    take_all,
)
from tests.waiting import LIMIT_S, wait_until

SMALL_SEGMENT = 1024 * 1024
LEAST_ANSWERED = 6
How = Literal["kill9", "stop"]


def end(broker: BrokerProcess, how: How) -> None:
    """End the broker one way or the other."""
    if how == "kill9":
        broker.kill9()
    else:
        assert broker.stop() == 0, broker.output()


@pytest.fixture
def channel(own_broker: BrokerProcess) -> Iterator[BlockingChannel]:
    """A channel to the broker before its restart."""
    with blocking(own_broker) as connection:
        yield connection.channel()


def exists(connection: pika.BlockingConnection, kind: str, name: str) -> bool:
    """True when the queue or exchange is there."""
    channel = connection.channel()
    try:
        if kind == "queue":
            channel.queue_declare(name, passive=True)
        else:
            channel.exchange_declare(name, passive=True)
    except pika.exceptions.ChannelClosedByBroker as error:
        assert error.reply_code == 404
        return False
    channel.close()
    return True


def honest() -> tuple[Record, list[tuple[bytes, bool]]]:
    """A record and a queue that agree with it: p:1 was acked, p:2 and p:3 were delivered."""
    record = Record(
        attempted={b"p:%d" % number for number in range(1, 8)},
        confirmed={b"p:%d" % number for number in range(1, 7)},
        received={b"p:1", b"p:2", b"p:3"},
        acked={b"p:1"},
        on_the_way=1,
    )
    return record, [(b"p:2", True), (b"p:3", True), *((b"p:%d" % n, False) for n in (4, 5, 6))]


def test_checker_accepts_what_may_be() -> None:
    record, found = honest()
    check("q", record, found)
    check("q", record, [(b"p:1", True), *found])
    check("q", record, [*found, (b"p:7", False)])
    # One message may have been on its way to the client.
    check("q", record, [*found[:2], (b"p:4", True), *found[3:]])


@pytest.mark.parametrize(
    ("fault", "text"),
    [
        (lambda found: found[:-1], "are gone"),
        (lambda found: [found[0], *found], "there twice"),
        (lambda found: [*found[:3], found[4], found[3]], "order"),
        (lambda found: [*found, (b"p:9", False)], "nobody published"),
        (lambda found: [(b"p:2", False), *found[1:]], "not told"),
        (lambda found: [(b"p:1", False), *found], "not told"),
        (lambda found: [(body, True) for body, _ in found], "never delivered"),
        (lambda found: [*found[:4], (b"p:6", True)], "behind one that is not"),
    ],
)
def test_checker_finds_planted_faults(
    fault: Callable[[list[tuple[bytes, bool]]], list[tuple[bytes, bool]]], text: str
) -> None:
    record, found = honest()
    with pytest.raises(AssertionError, match=text):
        check("q", record, fault(found))


@pytest.mark.parametrize(
    ("own_broker", "seed"),
    [(("--segment-size-bytes", str(SMALL_SEGMENT)) if seed % 2 else (), seed) for seed in range(8)],
    indirect=["own_broker"],
    ids=lambda value: str(value) if isinstance(value, int) else "",
)
def test_kill_in_the_middle_of_publishing_and_consuming(
    own_broker: BrokerProcess, seed: int
) -> None:
    plan = Plan.of(seed)
    records: dict[str, Record] = defaultdict(Record)
    for generation in range(len(plan.spans_s)):
        asyncio.run(load(own_broker, plan, generation, records))
        own_broker.restart()
    found = asyncio.run(take_all(own_broker))
    confirmed = sum(len(record.confirmed) for record in records.values())
    assert confirmed >= LEAST_CONFIRMED, "too little load"
    assert any(record.received for record in records.values())
    for queue in QUEUES:
        check(queue, records[queue], found[queue])


@pytest.mark.parametrize("how", ["kill9", "stop"])
def test_redelivered_is_told_truly_after_a_restart(
    own_broker: BrokerProcess, channel: BlockingChannel, how: How
) -> None:
    channel.queue_declare("told", durable=True)
    channel.confirm_delivery()
    for number in range(1, 11):
        channel.basic_publish("", "told", b"%d" % number, PERSISTENT)
    channel.basic_qos(prefetch_count=4)
    seen = []
    for method, _, body in channel.consume("told", inactivity_timeout=60):
        assert method is not None
        seen.append(body)
        if len(seen) == 4:
            break
    assert seen == [b"1", b"2", b"3", b"4"]
    channel.basic_ack(2)
    # A reply after the ack: the broker has processed it.
    assert channel.queue_declare("told", passive=True).method.message_count <= 6
    time.sleep(0.05)
    end(own_broker, how)
    own_broker.restart()
    with blocking(own_broker) as again:
        found = drain(again.channel(), "told")
    if (b"2", True) in found:
        assert how == "kill9", "a clean stop must not bring an acked message back"
        found.remove((b"2", True))
    redelivered = [(b"%d" % number, True) for number in (1, 3, 4)]
    # Acking 2 made room for one more delivery, which this client may not have looked at.
    assert found[:3] == redelivered
    assert [body for body, _ in found[3:]] == [b"5", b"6", b"7", b"8", b"9", b"10"]
    assert [again for _, again in found[4:]] == [False] * 5


@pytest.mark.parametrize("how", ["kill9", "stop"])
def test_durable_things_survive_and_transient_ones_do_not(
    own_broker: BrokerProcess, channel: BlockingChannel, how: How
) -> None:
    channel.exchange_declare("ex.spare", "fanout", durable=True)
    channel.exchange_declare(
        "ex.durable", "topic", durable=True, arguments={"alternate-exchange": "ex.spare"}
    )
    channel.exchange_declare("ex.headers", "headers", durable=True)
    channel.exchange_declare("ex.passing", "direct", durable=False)
    channel.queue_declare("q.durable", durable=True)
    channel.queue_declare("q.spare", durable=True)
    channel.queue_declare("q.auto", durable=True, auto_delete=True)
    channel.queue_declare("q.passing")
    channel.queue_declare("q.exclusive", durable=True, exclusive=True)
    channel.queue_bind("q.durable", "ex.durable", "a.#")
    channel.queue_bind("q.durable", "ex.headers", "", {"x-match": "any", "n": 1, "s": "x"})
    channel.queue_bind("q.spare", "ex.spare")
    channel.queue_bind("q.durable", "ex.passing", "k")
    channel.exchange_bind("ex.headers", "ex.durable", "to.headers")
    channel.confirm_delivery()
    for body, properties in ((b"persistent", PERSISTENT), (b"transient", None)):
        for queue in ("q.durable", "q.passing", "q.auto", "q.exclusive"):
            channel.basic_publish("", queue, body, properties, mandatory=True)
    end(own_broker, how)
    own_broker.restart()
    with blocking(own_broker) as again:
        there = {
            name: exists(again, kind, name)
            for kind, names in (
                ("exchange", ("ex.durable", "ex.headers", "ex.spare", "ex.passing")),
                ("queue", ("q.durable", "q.spare", "q.auto", "q.passing", "q.exclusive")),
            )
            for name in names
        }
        gone = {"ex.passing", "q.passing", "q.exclusive"}
        assert there == {name: name not in gone for name in there}
        channel = again.channel()
        assert drain(channel, "q.durable") == [(b"persistent", False)]
        assert drain(channel, "q.auto") == [(b"persistent", False)]
        channel.confirm_delivery()
        channel.basic_publish("ex.durable", "a.b.c", b"topic", mandatory=True)
        headers = pika.BasicProperties(headers={"s": "x"})
        channel.basic_publish("ex.headers", "", b"headers", headers, mandatory=True)
        channel.basic_publish("ex.durable", "to.headers", b"through", headers, mandatory=True)
        channel.basic_publish("ex.durable", "none", b"alternate", mandatory=True)
        assert [body for body, _ in drain(channel, "q.durable")] == [
            b"topic",
            b"headers",
            b"through",
        ]
        assert drain(channel, "q.spare") == [(b"alternate", False)]
        # Equivalence is checked against the recovered arguments.
        channel.exchange_declare(
            "ex.durable", "topic", durable=True, arguments={"alternate-exchange": "ex.spare"}
        )
        with pytest.raises(pika.exceptions.ChannelClosedByBroker) as caught:
            channel.exchange_declare("ex.durable", "topic", durable=True)
        assert caught.value.reply_code == 406


def test_what_was_deleted_stays_deleted(
    own_broker: BrokerProcess, channel: BlockingChannel
) -> None:
    channel.confirm_delivery()
    channel.exchange_declare("ex.gone", "fanout", durable=True)
    channel.exchange_declare("ex.kept", "direct", durable=True)
    for queue in ("gone", "reborn", "purged", "kept"):
        channel.queue_declare(queue, durable=True)
        channel.queue_bind(queue, "ex.kept", "key")
        channel.basic_publish("", queue, b"old", PERSISTENT)
    channel.exchange_delete("ex.gone")
    channel.queue_delete("gone")
    channel.queue_delete("reborn")
    channel.queue_declare("reborn", durable=True)
    channel.queue_purge("purged")
    channel.queue_unbind("kept", "ex.kept", "key")
    channel.basic_publish("", "reborn", b"new", PERSISTENT)
    own_broker.kill9()
    own_broker.restart()
    with blocking(own_broker) as again:
        assert not exists(again, "exchange", "ex.gone")
        assert not exists(again, "queue", "gone")
        channel = again.channel()
        assert drain(channel, "reborn") == [(b"new", False)]
        assert drain(channel, "kept") == [(b"old", False)]
        assert drain(channel, "purged") == []
        channel.basic_publish("ex.kept", "key", b"bound")
        assert drain(channel, "purged") == [(b"bound", False)]
        assert drain(channel, "kept") == []
        assert drain(channel, "reborn") == []


def test_every_declare_that_was_answered_survives_a_kill(own_broker: BrokerProcess) -> None:
    answered: list[str] = []

    def declare() -> None:
        with suppress(pika.exceptions.AMQPError), blocking(own_broker) as connection:
            channel = connection.channel()
            channel.exchange_declare("ex.many", "direct", durable=True)
            for number in range(100_000):
                name = f"many.{number}"
                channel.queue_declare(name, durable=True)
                channel.queue_bind(name, "ex.many", "all")
                answered.append(name)

    thread = threading.Thread(target=declare)
    thread.start()
    wait_until(lambda: len(answered) >= LEAST_ANSWERED or not thread.is_alive())
    time.sleep(0.4)
    own_broker.kill9()
    thread.join(LIMIT_S)
    own_broker.restart()
    assert len(answered) >= LEAST_ANSWERED
    with blocking(own_broker) as again:
        channel = again.channel()
        channel.confirm_delivery()
        channel.basic_publish("ex.many", "all", b"x", mandatory=True)
        for name in answered:
            assert channel.queue_declare(name, passive=True).method.message_count == 1, name


@pytest.mark.parametrize("seed", range(4))
def test_a_transaction_is_there_as_a_whole_or_not_at_all(
    own_broker: BrokerProcess, seed: int
) -> None:
    fill(own_broker)
    with moving(own_broker) as committed:
        wait_until(lambda: committed, between=lambda: time.sleep(0.001))
        time.sleep(random.Random(seed).uniform(0.0, 0.12))
        own_broker.kill9()
    own_broker.restart()
    judge(own_broker, len(committed))
    assert committed, "the broker was killed before anything happened"


def test_uncommitted_work_is_rolled_back_by_a_kill(
    own_broker: BrokerProcess, channel: BlockingChannel
) -> None:
    channel.queue_declare("tx", durable=True)
    channel.tx_select()
    channel.basic_publish("", "tx", b"first", PERSISTENT)
    channel.tx_commit()
    method, _, _ = channel.basic_get("tx")
    channel.basic_ack(method.delivery_tag)
    channel.basic_publish("", "tx", b"uncommitted", PERSISTENT)
    channel.queue_declare("tx", passive=True)
    own_broker.kill9()
    own_broker.restart()
    with blocking(own_broker) as again:
        assert drain(again.channel(), "tx") == [(b"first", True)]


def test_large_and_empty_bodies_and_properties_survive_a_kill(
    own_broker: BrokerProcess, channel: BlockingChannel
) -> None:
    channel.queue_declare("bodies", durable=True)
    channel.confirm_delivery()
    sizes = (0, 1, 131_064, 131_065, 3_000_000)
    sent = pika.BasicProperties(
        delivery_mode=2,
        headers={"n": 1, "deep": {"list": [1, "x", None]}},
        message_id="m",
        priority=3,
    )
    for size in sizes:
        channel.basic_publish("", "bodies", bytes(size), sent)
    own_broker.kill9()
    own_broker.restart()
    with blocking(own_broker) as again:
        channel = again.channel()
        for size in sizes:
            method, got, body = channel.basic_get("bodies", auto_ack=True)
            assert body == bytes(size)
            assert got == sent
            assert (method.exchange, method.routing_key) == ("", "bodies")


def test_a_restart_of_a_restart_adds_and_loses_nothing(own_broker: BrokerProcess) -> None:
    for generation in range(4):
        with blocking(own_broker) as connection:
            channel = connection.channel()
            channel.queue_declare("again", durable=True)
            channel.confirm_delivery()
            for number in range(50):
                channel.basic_publish("", "again", b"%d.%d" % (generation, number), PERSISTENT)
        own_broker.kill9()
        own_broker.restart()
    expected = [(b"%d.%d" % (g, n), False) for g in range(4) for n in range(50)]
    with blocking(own_broker) as connection:
        assert drain(connection.channel(), "again") == expected


def test_starts_without_traffic_do_not_accumulate_files(own_broker: BrokerProcess) -> None:
    with blocking(own_broker) as connection:
        connection.channel().queue_declare("kept", durable=True)
    for _ in range(4):
        assert own_broker.stop() == 0, own_broker.output()
        own_broker.start()
    files = [path.name for path in own_broker.data_dir.iterdir() if path.suffix == ".journal"]
    # One that takes new blocks, and the one before while its removal is being synced.
    assert len(files) <= 2
    with blocking(own_broker) as connection:
        assert exists(connection, "queue", "kept")
