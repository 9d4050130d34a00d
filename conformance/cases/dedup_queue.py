"""Section DUP: queues that let each key in once; refusals, transactions, restarts."""

from __future__ import annotations

from collections.abc import Iterator

from vouchmq.conformance.case import case
from vouchmq.conformance.cases.dedup import HEADER, KIND, confirmed, filtering, kept, offer, window
from vouchmq.conformance.cases.redeliver import fetch
from vouchmq.conformance.expect import check, equal
from vouchmq.conformance.stage import Stage
from vouchmq.conformance.wire import Plain, Table


@case("DUP-04", says="without a window a key is blocked while it is ready", mark="+")
def while_ready(stage: Stage) -> None:
    channel = stage.confirming()
    queue = window(stage, channel)
    offer(channel, "", queue, "a", "k")
    offer(channel, "", queue, "b", "k")
    offer(channel, "", queue, "c", "l")
    confirmed(channel, 3)
    kept(channel, queue, "a", "c")
    offer(channel, "", queue, "d", "k")
    confirmed(channel, 4)
    kept(channel, queue, "d")


@case("DUP-04", says="without a window a key is blocked while it is unacked", mark="+")
def while_unacked(stage: Stage) -> None:
    channel = stage.confirming()
    queue = window(stage, channel)
    offer(channel, "", queue, "a", "k")
    confirmed(channel, 1)
    event = channel.get(queue, no_ack=False)
    offer(channel, "", queue, "b", "k")
    confirmed(channel, 2)
    equal(channel.count(queue), 0, "messages beside the unacked one")
    channel.ack(event.tag)
    offer(channel, "", queue, "c", "k")
    confirmed(channel, 3)
    kept(channel, queue, "c")


@case("DUP-04", says="without a window a rejected message frees its key", mark="+")
def after_reject(stage: Stage) -> None:
    channel = stage.confirming()
    queue = window(stage, channel)
    offer(channel, "", queue, "a", "k")
    confirmed(channel, 1)
    channel.reject(channel.get(queue, no_ack=False).tag, requeue=False)
    offer(channel, "", queue, "b", "k")
    confirmed(channel, 2)
    kept(channel, queue, "b")


@case("DUP-04", says="without a window expiry frees the key", mark="+", slow=True)
def after_expiry(stage: Stage) -> None:
    channel = stage.confirming()
    queue = window(stage, channel, message_ttl=300)
    offer(channel, "", queue, "a", "k")
    confirmed(channel, 1)
    channel.holds(queue, 0)
    offer(channel, "", queue, "b", "k")
    confirmed(channel, 2)
    equal(channel.drain(queue), ["b"], "messages")


@case("DUP-04", says="without a window a dropped head frees its key", mark="+")
def after_overflow(stage: Stage) -> None:
    channel = stage.confirming()
    queue = window(stage, channel, max_length=1)
    for body, key in (("a", "k"), ("b", "l"), ("c", "k")):
        offer(channel, "", queue, body, key)
    confirmed(channel, 3)
    kept(channel, queue, "c")


@case("DUP-04", says="with x-cache-size a key is blocked among the last ones", mark="+")
def size_window(stage: Stage) -> None:
    channel = stage.confirming()
    queue = window(stage, channel, cache_size=2)
    offer(channel, "", queue, "a", "k")
    confirmed(channel, 1)
    kept(channel, queue, "a")
    for number, key in enumerate(("k", "l", "k", "m", "k")):
        offer(channel, "", queue, str(number), key)
    confirmed(channel, 6)
    kept(channel, queue, "1", "3", "4")


@case("DUP-04", says="with x-cache-ttl a key is blocked for that long", mark="+", slow=True)
def time_window(stage: Stage) -> None:
    channel = stage.confirming()
    queue = window(stage, channel, cache_ttl=1500)
    offer(channel, "", queue, "a", "k")
    confirmed(channel, 1)
    kept(channel, queue, "a")
    offer(channel, "", queue, "b", "k")
    confirmed(channel, 2)
    kept(channel, queue)
    channel.connection.listen(2.0)
    offer(channel, "", queue, "c", "k")
    confirmed(channel, 3)
    kept(channel, queue, "c")


@case("DUP-04", says="with x-cache-ttl and x-cache-size both hold", mark="+")
def both_windows(stage: Stage) -> None:
    channel = stage.confirming()
    queue = window(stage, channel, cache_ttl=600_000, cache_size=1)
    for number, key in enumerate(("k", "k", "l", "l", "k")):
        offer(channel, "", queue, str(number), key)
    confirmed(channel, 5)
    kept(channel, queue, "0", "2", "4")


@case("DUP-04", says="the other queues of the route get their copies", mark="+")
def other_queues(stage: Stage) -> None:
    channel = stage.confirming()
    exchange = stage.exchange(channel, "fanout")
    strict, loose = window(stage, channel), stage.queue(channel)
    for queue in (strict, loose):
        channel.call("queue.bind", queue=queue, exchange=exchange)
    for body in ("a", "b"):
        offer(channel, exchange, "", body, "k")
    confirmed(channel, 2)
    kept(channel, strict, "a")
    kept(channel, loose, "a", "b")


@case("DUP-05", says="a message's x-cache-ttl beats the queue's window", mark="+", slow=True)
def message_ttl(stage: Stage) -> None:
    channel = stage.confirming()
    queue = window(stage, channel, cache_ttl=600_000)
    channel.publish("", queue, "a", headers={HEADER: "k", "x-cache-ttl": 300})
    offer(channel, "", queue, "b", "l")
    confirmed(channel, 2)
    channel.connection.listen(1.5)
    for key in ("k", "l"):
        offer(channel, "", queue, "again", key)
    confirmed(channel, 4)
    kept(channel, queue, "a", "b", "again")


@case("DUP-08", says="a publish that a full queue refuses records no key", mark="+")
def refused(stage: Stage) -> None:
    channel = stage.confirming()
    queue = window(stage, channel, cache_size=100, max_length=1, overflow="reject-publish")
    offer(channel, "", queue, "a", "k")
    offer(channel, "", queue, "b", "l")
    equal(channel.confirms(2), {1: "ack", 2: "nack"}, "confirms")
    kept(channel, queue, "a")
    offer(channel, "", queue, "c", "l")
    channel.wait("basic.ack")
    kept(channel, queue, "c")


@case("DUP-08", says="a duplicate for a full queue is acked", mark="+")
def duplicate_before_length(stage: Stage) -> None:
    channel = stage.confirming()
    queue = window(stage, channel, max_length=1, overflow="reject-publish")
    offer(channel, "", queue, "a", "k")
    offer(channel, "", queue, "b", "k")
    confirmed(channel, 2)
    kept(channel, queue, "a")


@case("DUP-08", says="of one key on many connections exactly one is stored", mark="+")
def concurrent(stage: Stage) -> None:
    channels = [stage.confirming() for _ in range(5)]
    queue = window(stage, channels[0], cache_size=1000)
    for number in range(20):
        for at, channel in enumerate(channels):
            offer(channel, "", queue, f"{number} {at}", number)
    for channel in channels:
        confirmed(channel, 20)
    bodies = channels[0].drain(queue)
    equal(sorted(int(body.split()[0]) for body in bodies), list(range(20)), "keys stored")


@case("DUP-09", says="a rollback records nothing", mark="+")
def rollback(stage: Stage) -> None:
    channel = stage.transactional()
    queue = window(stage, channel, cache_size=100)
    offer(channel, "", queue, "dropped", "k")
    channel.call("tx.rollback")
    offer(channel, "", queue, "kept", "k")
    channel.call("tx.commit")
    kept(channel, queue, "kept")


@case("DUP-09", says="two equal keys in one transaction: the first wins", mark="+")
def in_one_transaction(stage: Stage) -> None:
    channel = stage.transactional()
    queue = window(stage, channel, cache_size=100)
    exchange = filtering(stage, channel)
    behind = stage.bound(channel, exchange)
    for body in ("a", "b"):
        offer(channel, "", queue, body, "k")
        offer(channel, exchange, "", body, "k")
    channel.call("tx.commit")
    for name in (queue, behind):
        kept(channel, name, "a")


@case("DUP-09", says="the check is made at commit: who commits first wins", mark="+")
def at_commit(stage: Stage) -> None:
    early, late = stage.transactional(), stage.transactional()
    queue = window(stage, early, cache_size=100)
    offer(early, "", queue, "published first", "k")
    early.sync()
    offer(late, "", queue, "committed first", "k")
    late.call("tx.commit")
    early.call("tx.commit")
    kept(early, queue, "committed first")


# --- restart ----------------------------------------------------------------------------------


@case(
    "DUP-10",
    says="a queue's window survives when the message was persistent",
    mark="≠",
    restart=True,
)
def window_survives(stage: Stage) -> Iterator[None]:
    channel = stage.confirming()
    queue = window(stage, channel, cache_size=100)
    offer(channel, "", queue, "a", "k")
    channel.publish("", queue, "b", headers={HEADER: "fleeting"}, delivery_mode=1)
    confirmed(channel, 2)
    kept(channel, queue, "a", "b")
    yield
    channel = stage.confirming()
    for key in ("k", "fleeting", "new"):
        offer(channel, "", queue, key, key)
    confirmed(channel, 3)
    kept(channel, queue, "fleeting", "new")


@case("DUP-10", says="keys of messages in a queue survive with them", mark="≠", restart=True)
def keys_of_messages_survive(stage: Stage) -> Iterator[None]:
    channel = stage.confirming()
    queue = window(stage, channel)
    offer(channel, "", queue, "a", "k")
    confirmed(channel, 1)
    yield
    channel = stage.confirming()
    offer(channel, "", queue, "b", "k")
    confirmed(channel, 1)
    kept(channel, queue, "a")
    offer(channel, "", queue, "c", "k")
    confirmed(channel, 2)
    kept(channel, queue, "c")


@case("DUP-10", says="an exchange's cache survives, unless it is memory", mark="≠", restart=True)
def exchange_cache_survives(stage: Stage) -> Iterator[None]:
    channel = stage.confirming()
    default = filtering(stage, channel)
    disk = filtering(stage, channel, cache_persistence="disk")
    memory = filtering(stage, channel, cache_persistence="memory")
    queues = []
    for exchange in (default, disk, memory):
        queue = stage.queue(channel, durable=True)
        channel.call("queue.bind", queue=queue, exchange=exchange)
        offer(channel, exchange, "", "a", "k")
        queues.append(queue)
    confirmed(channel, 3)
    yield
    channel = stage.confirming()
    for exchange in (default, disk, memory):
        offer(channel, exchange, "", "b", "k")
    confirmed(channel, 3)
    kept(channel, queues[0], "a")
    kept(channel, queues[1], "a")
    kept(channel, queues[2], "a", "b")


@case("DUP-10", says="times to live go on over a restart", mark="≠", restart=True)
def ttl_goes_on(stage: Stage) -> Iterator[None]:
    channel = stage.confirming()
    queue = window(stage, channel, cache_ttl=600_000)
    channel.publish("", queue, "a", headers={HEADER: "short", "x-cache-ttl": 200}, delivery_mode=2)
    offer(channel, "", queue, "b", "long")
    confirmed(channel, 2)
    kept(channel, queue, "a", "b")
    channel.connection.listen(0.5)
    yield
    channel = stage.confirming()
    for key in ("short", "long"):
        offer(channel, "", queue, key, key)
    confirmed(channel, 2)
    kept(channel, queue, "short")


# --- what is no publish -----------------------------------------------------------------------


@case("DUP-12", says="returned and redelivered messages are no duplicates", mark="+")
def returned(stage: Stage) -> None:
    channel = stage.confirming()
    queue = window(stage, channel, cache_size=100)
    offer(channel, "", queue, "a", "k")
    confirmed(channel, 1)
    channel.nack(channel.get(queue, no_ack=False).tag)
    channel.holds(queue, 1)
    channel.get(queue, no_ack=False)
    channel.call("basic.recover", requeue=True)
    channel.holds(queue, 1)
    event = channel.get(queue)
    check(event.redelivered, "redelivered is 0")
    equal(event.body, b"a", "message")


@case("DUP-12", says="dead-letter arrivals are checked by the target's window", mark="+")
def dead_letters(stage: Stage) -> None:
    channel = stage.confirming()
    target = window(stage, channel, cache_size=100)
    source = stage.queue(
        channel,
        arguments={"x-dead-letter-exchange": "", "x-dead-letter-routing-key": target},
    )
    for body in ("a", "b"):
        offer(channel, "", source, body, "k")
    offer(channel, "", source, "c", "l")
    confirmed(channel, 3)
    for _ in range(3):
        channel.reject(channel.get(source, no_ack=False).tag, requeue=False)
    channel.holds(target, 2)
    kept(channel, target, "a", "c")


@case("DUP-12", says="back in the queue of its last death it is no duplicate", mark="+")
def back_from_death(stage: Stage) -> None:
    channel = stage.confirming()
    queue = stage.name("loop")
    arguments: Table = {
        KIND: True,
        "x-cache-size": 100,
        "x-dead-letter-exchange": "",
        "x-dead-letter-routing-key": queue,
    }
    channel.call("queue.declare", queue=queue, durable=True, arguments=arguments)
    offer(channel, "", queue, "a", "k")
    confirmed(channel, 1)
    channel.reject(channel.get(queue, no_ack=False).tag, requeue=False)
    channel.holds(queue, 1)
    kept(channel, queue, "a")


@case(
    "DUP-12",
    says="a work and retry loop goes on through a queue without window",
    mark="+",
    slow=True,
)
def retry_loop(stage: Stage) -> None:
    channel = stage.confirming()
    work, retry = stage.name("work"), stage.name("retry")
    differences: tuple[dict[str, Plain], ...] = ({KIND: True}, {"x-message-ttl": 200})
    for name, target, more in zip((work, retry), (retry, work), differences, strict=True):
        arguments: Table = {
            "x-dead-letter-exchange": "",
            "x-dead-letter-routing-key": target,
            **more,
        }
        channel.call("queue.declare", queue=name, durable=True, arguments=arguments)
    offer(channel, "", work, "a", "k")
    for _ in range(3):
        event = fetch(channel, work)
        equal(event.body, b"a", "message")
        channel.reject(event.tag, requeue=False)
    channel.ack(fetch(channel, work).tag)
    channel.sync()


@case("DUP-13", says="a purge frees the keys of a queue without window", mark="+")
def purge(stage: Stage) -> None:
    channel = stage.confirming()
    queue = window(stage, channel)
    offer(channel, "", queue, "a", "k")
    confirmed(channel, 1)
    channel.call("queue.purge", queue=queue)
    offer(channel, "", queue, "b", "k")
    confirmed(channel, 2)
    kept(channel, queue, "b")


@case("DUP-13", says="a purge leaves a window as it is", mark="+")
def purge_of_window(stage: Stage) -> None:
    channel = stage.confirming()
    queue = window(stage, channel, cache_size=100)
    offer(channel, "", queue, "a", "k")
    confirmed(channel, 1)
    channel.call("queue.purge", queue=queue)
    offer(channel, "", queue, "b", "k")
    confirmed(channel, 2)
    kept(channel, queue)


@case("DUP-13", says="deleting a queue or an exchange frees all keys", mark="+")
def delete(stage: Stage) -> None:
    channel = stage.confirming()
    queue = window(stage, channel, cache_size=100)
    exchange = filtering(stage, channel)
    behind = stage.bound(channel, exchange)
    offer(channel, "", queue, "a", "k")
    offer(channel, exchange, "", "a", "k")
    confirmed(channel, 2)
    channel.call("queue.delete", queue=queue)
    channel.call("exchange.delete", exchange=exchange)
    arguments = {KIND: True, "x-cache-size": 100}
    channel.call("queue.declare", queue=queue, durable=True, arguments=arguments)
    channel.call(
        "exchange.declare",
        exchange=exchange,
        type=KIND,
        durable=True,
        arguments={"x-cache-size": 100},
    )
    channel.call("queue.bind", queue=behind, exchange=exchange)
    offer(channel, "", queue, "b", "k")
    offer(channel, exchange, "", "b", "k")
    confirmed(channel, 4)
    kept(channel, queue, "b")
    kept(channel, behind, "a", "b")


@case(
    "DUP-16", says="x-deduplication-dead-letter sends duplicates to the DLX as rejected", mark="+"
)
def to_the_dlx(stage: Stage) -> None:
    channel = stage.confirming()
    graveyard = stage.queue(channel, label="dead")
    queue = window(
        stage,
        channel,
        deduplication_dead_letter=True,
        dead_letter_exchange="",
        dead_letter_routing_key=graveyard,
    )
    for body in ("a", "b"):
        offer(channel, "", queue, body, "k")
    confirmed(channel, 2)
    kept(channel, queue, "a")
    event = fetch(channel, graveyard)
    headers = event.headers if isinstance(event.headers, dict) else {}
    deaths = headers.get("x-death") or [{}]
    equal(
        (event.body, deaths[0].get("reason"), deaths[0].get("queue")),
        (b"b", "rejected", queue),
        "dead-lettered duplicate",
    )
    channel.ack(event.tag)
    channel.sync()


@case("PUB-24", says="mandatory to a queue that drops the duplicate: no return, an ack", mark="+")
def dropped_is_routed(stage: Stage) -> None:
    channel = stage.confirming()
    queue = window(stage, channel)
    for _ in range(2):
        channel.publish("", queue, "x", mandatory=True, headers={HEADER: "k"})
    confirmed(channel, 2)
    channel.quiet("basic.return", seconds=0.1)
