"""Section LEN: queues that refuse, and what the publishers of it are told."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Final

from vouchmq.conformance.case import case
from vouchmq.conformance.client import Channel
from vouchmq.conformance.dead_letters import SHORT_MS, fetch, history, mortal, reject_head
from vouchmq.conformance.expect import check, equal
from vouchmq.conformance.stage import Stage
from vouchmq.conformance.wire import Table

FULL_TEXT: Final = "PRECONDITION_FAILED - partial tx completion"


def _closed(limit: int = 1, *, limit_name: str = "x-max-length", dlx: bool = False) -> Table:
    """Arguments of a queue that refuses beyond its limit."""
    return {limit_name: limit, "x-overflow": "reject-publish-dlx" if dlx else "reject-publish"}


def _full(stage: Stage, channel: Channel, *, durable: bool = False) -> str:
    """A queue that refuses every publish: it holds one message, `in the way`."""
    queue = stage.queue(channel, arguments=_closed(), durable=durable)
    stage.load(channel, queue, "in the way")
    return queue


# --- reject-publish -------------------------------------------------------------------------


@case("LEN-20", says="refused on a confirm channel: nack, and the queue stays as it is")
def nack(stage: Stage) -> None:
    channel = stage.confirming()
    queue = stage.queue(channel, arguments=_closed(2))
    for body in ("a", "b", "c", "d"):
        channel.publish("", queue, body)
    wanted = {1: "ack", 2: "ack", 3: "nack", 4: "nack"}
    equal(channel.confirms(4), wanted, "confirms")
    equal(channel.drain(queue), ["a", "b"], "what is in the queue")


@case("LEN-20", says="refused without confirms: dropped silently, the channel stays open")
def silent(stage: Stage) -> None:
    channel = stage.channel()
    queue = _full(stage, channel)
    channel.publish("", queue, "lost")
    channel.quiet(seconds=0.1)
    equal(channel.drain(queue), ["in the way"], "what is in the queue")


@case("LEN-20", says="room again: accepted again")
def room_again(stage: Stage) -> None:
    channel = stage.confirming()
    queue = stage.queue(channel, arguments=_closed())
    for body in ("a", "b"):
        channel.publish("", queue, body)
    equal(channel.confirms(2), {1: "ack", 2: "nack"}, "confirms")
    channel.get(queue, no_ack=False)
    channel.publish("", queue, "c")
    equal(channel.wait("basic.ack", "basic.nack").name, "basic.ack", "confirm with an unacked one")
    equal(channel.drain(queue), ["c"], "what is in the queue")


@case("LEN-20", says="a persistent message to a durable queue is refused like any other")
def persistent(stage: Stage) -> None:
    channel = stage.confirming()
    queue = stage.queue(channel, arguments=_closed(3), durable=True)
    for number in range(10):
        channel.publish("", queue, str(number), delivery_mode=2)
    got = channel.confirms(10)
    wanted = {number: "ack" if number <= 3 else "nack" for number in range(1, 11)}
    equal(got, wanted, "confirms")


@case("LEN-20", says="a full priority queue refuses the highest level like the lowest")
def whatever_level(stage: Stage) -> None:
    channel = stage.confirming()
    queue = stage.queue(channel, arguments={**_closed(2), "x-max-priority": 5})
    for level in (1, 0, 5, 0):
        channel.publish("", queue, str(level), priority=level)
    wanted = {1: "ack", 2: "ack", 3: "nack", 4: "nack"}
    equal(channel.confirms(4), wanted, "confirms")
    equal(channel.drain(queue), ["1", "0"], "what is in the queue")


@case("PUB-23", says="refused: no return with mandatory, a nack on a confirm channel")
def no_return(stage: Stage) -> None:
    channel = stage.confirming()
    queue = stage.queue(channel, arguments=_closed(0))
    channel.publish("", queue, "x", mandatory=True)
    first = channel.wait("basic.return", "basic.nack", "basic.ack")
    equal(first.name, "basic.nack", "first event")
    channel.quiet(seconds=0.1)


@case("PUB-23", says="refused: no return with mandatory, silence without confirms")
def no_return_no_nack(stage: Stage) -> None:
    channel = stage.channel()
    channel.publish("", _full(stage, channel), "x", mandatory=True)
    channel.quiet(seconds=0.2)


@case("LEN-21", says="limit of 10 octets, messages of 4: two accepted, the third refused")
def bytes_are_never_exceeded(stage: Stage) -> None:
    channel = stage.confirming()
    queue = stage.queue(channel, arguments=_closed(10, limit_name="x-max-length-bytes"))
    for body in ("a" * 4, "b" * 4, "c" * 4, "dd"):
        channel.publish("", queue, body)
    wanted = {1: "ack", 2: "ack", 3: "nack", 4: "ack"}
    equal(channel.confirms(4), wanted, "confirms")
    equal(channel.drain(queue), ["a" * 4, "b" * 4, "dd"], "what is in the queue")


@case("LEN-21", says="one message larger than the limit is refused by an empty queue")
def too_large_alone(stage: Stage) -> None:
    channel = stage.confirming()
    queue = stage.queue(channel, arguments=_closed(10, limit_name="x-max-length-bytes"))
    channel.publish("", queue, "a" * 11)
    channel.publish("", queue, "b" * 10)
    equal(channel.confirms(2), {1: "nack", 2: "ack"}, "confirms")


@case("LEN-22", says="x-max-length 0 refuses everything, beside a waiting consumer, too")
def refuses_everything(stage: Stage) -> None:
    channel, reader = stage.confirming(), stage.channel()
    queue = stage.queue(channel, arguments=_closed(0))
    channel.publish("", queue, "nobody waits")
    reader.consume(queue)
    channel.publish("", queue, "somebody waits")
    equal(channel.confirms(2), {1: "nack", 2: "nack"}, "confirms")
    reader.quiet("basic.deliver", seconds=0.1)


@case("LEN-23", says="a requeue is never refused, publishes then are")
def requeue_is_accepted(stage: Stage) -> None:
    channel = stage.confirming()
    source, target = mortal(stage, channel, _closed())
    channel.publish("", source, "a")
    channel.holds(source, 1)
    tag = channel.get(source, no_ack=False).tag
    channel.publish("", source, "b")
    channel.holds(source, 1)
    channel.nack(tag)
    channel.holds(source, 2)
    channel.publish("", source, "c")
    equal(channel.confirms(3), {1: "ack", 2: "ack", 3: "nack"}, "confirms")
    equal(channel.drain(source), ["a", "b"], "what is in the queue")
    equal(channel.count(target), 0, "dead letters")


@case("LEN-23", says="expired ones make room before their successors are refused")
def expired_make_room(stage: Stage) -> None:
    channel = stage.confirming()
    queue = stage.queue(channel, arguments={**_closed(), "x-message-ttl": SHORT_MS})
    channel.publish("", queue, "a")
    equal(channel.wait("basic.ack", "basic.nack").name, "basic.ack", "first confirm")
    channel.holds(queue, 0)
    channel.publish("", queue, "b")
    equal(channel.wait("basic.ack", "basic.nack").name, "basic.ack", "second confirm")


# --- reject-publish-dlx ---------------------------------------------------------------------


@case("LEN-24", says="reject-publish-dlx: nack, and the refused one is dead-lettered")
def refused_and_dead(stage: Stage) -> None:
    channel = stage.confirming()
    source, target = mortal(stage, channel, _closed(dlx=True))
    for body in ("a", "b", "c"):
        channel.publish("", source, body)
    equal(channel.confirms(3), {1: "ack", 2: "nack", 3: "nack"}, "confirms")
    channel.holds(target, 2)
    dead = [channel.get(target) for _ in range(2)]
    equal([event.body for event in dead], [b"b", b"c"], "dead letters")
    equal(history(dead[0]), [(source, "maxlen", 1)], "x-death")
    equal(channel.drain(source), ["a"], "what is in the queue")


@case("LEN-24", says="reject-publish-dlx without confirms: dead-lettered without a word")
def dead_without_confirms(stage: Stage) -> None:
    channel = stage.channel()
    source, target = mortal(stage, channel, _closed(dlx=True))
    stage.load(channel, source, "a")
    channel.publish("", source, "b", mandatory=True)
    equal(fetch(channel, target).body, b"b", "dead letter")
    channel.quiet(seconds=0.1)


@case("LEN-24", says="reject-publish-dlx without a DLX is reject-publish")
def without_dlx(stage: Stage) -> None:
    channel = stage.confirming()
    queue = stage.queue(channel, arguments=_closed(dlx=True))
    for body in ("a", "b"):
        channel.publish("", queue, body)
    equal(channel.confirms(2), {1: "ack", 2: "nack"}, "confirms")
    equal(channel.drain(queue), ["a"], "what is in the queue")


@case(
    "LEN-24",
    says="reject-publish-dlx on a quorum-type queue: nack, nothing is dead",
    referee_reason="C-83: takes the value and drops heads",
)
def quorum_refusal(stage: Stage) -> None:
    channel = stage.confirming()
    arguments: Table = {"x-queue-type": "quorum", **_closed(dlx=True)}
    source, target = mortal(stage, channel, arguments, durable=True)
    # Its limit is a soft one there: some more may slip in before it says no.
    for _ in range(50):
        channel.publish("", source, "x")
        if channel.wait("basic.ack", "basic.nack").name == "basic.nack":
            break
    else:
        check(False, "fifty publishes were accepted")
    channel.consume(target, no_ack=True)
    channel.quiet("basic.deliver")


# --- several queues -------------------------------------------------------------------------


@case("CONF-07", says="one of several queues refuses: one nack, the others keep their copy")
def one_refuses(stage: Stage) -> None:
    channel, watcher = stage.confirming(), stage.channel()
    exchange = stage.exchange(channel, "fanout")
    roomy, durable = stage.bound(channel, exchange), stage.queue(channel, durable=True)
    full = _full(stage, watcher)
    for queue in (durable, full):
        channel.call("queue.bind", queue=queue, exchange=exchange)
    channel.publish(exchange, "", "x", delivery_mode=2)
    event = channel.wait("basic.ack", "basic.nack")
    equal((event.name, event.tag), ("basic.nack", 1), "confirm")
    equal(event.arguments["requeue"], True, "requeue bit of the nack")
    channel.quiet("basic.ack", "basic.nack", seconds=0.2)
    for queue, wanted in ((roomy, ["x"]), (durable, ["x"]), (full, ["in the way"])):
        channel.holds(queue, 1)
        equal(channel.drain(queue), wanted, "what is in the queue")


@case("CONF-07", says="acks and nacks of one run: each number once, none speaks for another")
def mixed(stage: Stage) -> None:
    channel, watcher = stage.confirming(), stage.channel()
    roomy, full = stage.queue(channel, durable=True), _full(stage, watcher)
    wanted: dict[int, str] = {}
    for number in range(1, 301):
        is_refused = number % 7 in (1, 2, 5)
        wanted[number] = "nack" if is_refused else "ack"
        channel.publish("", full if is_refused else roomy, "x", delivery_mode=1 + number % 2)
    got: dict[int, str] = {}
    while len(got) < 300:
        event = channel.wait("basic.ack", "basic.nack")
        is_multiple = bool(event.arguments["multiple"])
        for number in range(1 if is_multiple else event.tag, event.tag + 1):
            check(is_multiple or number not in got, f"{number} settled twice")
            got.setdefault(number, event.name.removeprefix("basic."))
    equal(got, wanted, "confirms")


# --- transactions ---------------------------------------------------------------------------


def _fails(channel: Channel) -> None:
    with channel.soft(406, FULL_TEXT, "tx.commit"):
        channel.call("tx.commit")


@case("TX-09", says="a queue refuses at commit: soft 406 partial tx completion, ids of commit")
def commit_fails(stage: Stage) -> None:
    channel, watcher = stage.transactional(), stage.channel()
    full = _full(stage, watcher)
    channel.publish("", full, "too much")
    channel.sync()
    _fails(channel)
    equal(watcher.drain(full), ["in the way"], "what is in the queue")


@case("TX-09", says="nothing of a failed commit is applied: no publish, no ack", mark="≠")
def nothing_is_applied(stage: Stage) -> None:
    channel, watcher = stage.transactional(), stage.channel()
    full, roomy = _full(stage, watcher), stage.queue(watcher, durable=True)
    source, target = mortal(stage, watcher)
    stage.load(watcher, source, "acked", "rejected")
    acked, rejected = (channel.get(source, no_ack=False).tag for _ in range(2))
    channel.publish("", roomy, "before", delivery_mode=2)
    channel.publish("", full, "too much")
    channel.publish("", roomy, "after", delivery_mode=2)
    channel.ack(acked)
    channel.reject(rejected, requeue=False)
    _fails(channel)
    watcher.holds(source, 2)
    counts = [watcher.count(queue) for queue in (roomy, target, full)]
    equal(counts, [0, 0, 1], "ready messages in the roomy, the dead and the full queue")
    equal(watcher.drain(source), ["acked", "rejected"], "what had been settled")


@case("TX-09", says="a transaction that fills the queue itself is refused as a whole", mark="≠")
def fills_itself(stage: Stage) -> None:
    channel, watcher = stage.transactional(), stage.channel()
    queue = stage.queue(watcher, arguments=_closed(2))
    for body in ("a", "b", "c"):
        channel.publish("", queue, body)
    _fails(channel)
    equal(watcher.count(queue), 0, "ready messages")


@case("TX-09", says="exactly what fits is committed")
def what_fits(stage: Stage) -> None:
    channel, watcher = stage.transactional(), stage.channel()
    queue = stage.queue(watcher, arguments=_closed(2))
    for body in ("a", "b"):
        channel.publish("", queue, body)
    channel.call("tx.commit")
    watcher.holds(queue, 2)
    channel.publish("", queue, "c")
    _fails(channel)
    equal(watcher.drain(queue), ["a", "b"], "what is in the queue")


# --- immediate ------------------------------------------------------------------------------


def _nobody_now(channel: Channel, queue: str) -> None:
    channel.publish("", queue, "now", immediate=True)
    event = channel.wait("basic.return", "basic.deliver")
    equal((event.name, event.arguments.get("reply_code")), ("basic.return", 313), "answer")


@case("PUB-30", says="immediate: a waiting consumer that is not the active one is nobody", mark="+")
def not_active(stage: Stage) -> None:
    channel, active, waiting = (stage.channel() for _ in range(3))
    queue = stage.queue(channel, arguments={"x-single-active-consumer": True})
    active.call("basic.qos", prefetch_count=1)
    active.consume(queue)
    waiting.consume(queue)
    channel.publish("", queue, "now", immediate=True)
    tag = active.deliver().tag
    _nobody_now(channel, queue)
    active.ack(tag)
    active.sync()
    channel.publish("", queue, "again", immediate=True)
    equal(active.bodies(1), ["again"], "delivery to the active one")
    waiting.quiet("basic.deliver", seconds=0.1)


@case("PUB-30", says="immediate: a low consumer takes it when higher ones cannot", mark="+")
def lower_takes_it(stage: Stage) -> None:
    channel, high, low = (stage.channel() for _ in range(3))
    queue = stage.queue(channel)
    for one, level in ((high, 5), (low, -5)):
        one.call("basic.qos", prefetch_count=1)
        one.consume(queue, arguments={"x-priority": level})
    for one in (high, low):
        channel.publish("", queue, "now", immediate=True)
        one.deliver()
    _nobody_now(channel, queue)


@case("PUB-30", says="immediate: prefetch size left counts, too", mark="+")
def prefetch_size(stage: Stage) -> None:
    channel, reader = stage.channel(), stage.channel()
    queue = stage.queue(channel)
    reader.call("basic.qos", prefetch_size=10)
    reader.consume(queue)
    channel.publish("", queue, b"x" * 8, immediate=True)
    reader.deliver()
    _nobody_now(channel, queue)


@case("PUB-30", says="immediate: a queue that is full refuses, beside a consumer", mark="+")
def over_limit(stage: Stage) -> None:
    channel, reader = stage.confirming(), stage.channel()
    queue = stage.queue(channel, arguments=_closed(0))
    reader.consume(queue)
    channel.publish("", queue, "now", immediate=True)
    channel.wait("basic.return", "basic.nack")
    reader.quiet("basic.deliver", seconds=0.1)


@case("PUB-30", says="immediate: a stream never can", mark="+")
def stream(stage: Stage) -> None:
    channel, reader = stage.channel(), stage.channel()
    queue = stage.queue(channel, durable=True, arguments={"x-queue-type": "stream"})
    reader.call("basic.qos", prefetch_count=10)
    reader.consume(queue)
    _nobody_now(channel, queue)


# --- over a restart -------------------------------------------------------------------------


@case("LEN-01", says="limits and what counts against them survive a restart", restart=True)
def limits_survive(stage: Stage) -> Iterator[None]:
    channel = stage.confirming()
    refusing = stage.queue(channel, arguments=_closed(2), durable=True)
    dropping = stage.queue(channel, arguments={"x-max-length-bytes": 8}, durable=True)
    for body in ("aaaa", "bbbb"):
        channel.publish("", refusing, body, delivery_mode=2)
        channel.publish("", dropping, body, delivery_mode=2)
    equal(set(channel.confirms(4).values()), {"ack"}, "confirms")
    yield
    channel = stage.confirming()
    channel.publish("", refusing, "cccc", delivery_mode=2)
    channel.publish("", dropping, "cccc", delivery_mode=2)
    equal(channel.confirms(2), {1: "nack", 2: "ack"}, "confirms")
    equal(channel.drain(refusing), ["aaaa", "bbbb"], "the refusing queue")
    equal(channel.drain(dropping), ["bbbb", "cccc"], "the dropping queue")


@case("LEN-23", says="a reject into a full target leaves no trace of it there")
def refused_dead_letter(stage: Stage) -> None:
    channel = stage.channel()
    full = _full(stage, channel)
    lead: Table = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": full}
    source = stage.queue(channel, arguments=lead)
    stage.load(channel, source, "x")
    reject_head(channel, source)
    channel.sync()
    equal(channel.drain(full), ["in the way"], "what is in the target")


def _refused_by_target(stage: Stage) -> None:
    """A queue that dead-letters what it refuses gets refused letters into its own target."""
    channel = stage.confirming()
    end = stage.queue(channel, label="end")
    middle = stage.queue(
        channel,
        arguments={
            **_closed(dlx=True),
            "x-dead-letter-exchange": "",
            "x-dead-letter-routing-key": end,
        },
    )
    lead: Table = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": middle}
    source = stage.queue(channel, arguments={**_closed(dlx=True), **lead})
    for body in ("a", "b", "c"):
        channel.publish("", source, body)
    equal(channel.confirms(3), {1: "ack", 2: "nack", 3: "nack"}, "confirms")
    event = fetch(channel, end)
    wanted = [(middle, "maxlen", 1), (source, "maxlen", 1)]
    equal((event.body, history(event)), (b"c", wanted), "dead letter of both")


case("LEN-24", says="a refused dead letter is dead-lettered on by reject-publish-dlx")(
    partial(_refused_by_target)
)
