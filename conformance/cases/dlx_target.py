"""Section DLX 13.2: where dead letters go, and what happens when they cannot."""

from __future__ import annotations

import time
from collections.abc import Iterator
from functools import partial
from typing import Final

from vouchmq.conformance.case import case
from vouchmq.conformance.client import Channel
from vouchmq.conformance.dead_letters import (
    NEVER_MS,
    SHORT_MS,
    fetch,
    history,
    kill,
    mortal,
    reject_head,
)
from vouchmq.conformance.expect import equal, eventually
from vouchmq.conformance.stage import Stage
from vouchmq.conformance.wire import Plain, Table

# Rule DLX-09: at once, where the next retry would be ten seconds away.
ROOM_S: Final = 0.5


def _dies_of(channel: Channel, source: str, target: str, reason: str) -> None:
    equal(history(fetch(channel, target)), [(source, reason, 1)], "x-death")


# --- where it goes --------------------------------------------------------------------------


@case("DLX-06", says="with a dead-letter key only that key is used, CC and BCC are not")
def with_key(stage: Stage) -> None:
    channel = stage.channel()
    dlx = stage.exchange(channel, "direct")
    chosen, primary, copy = (stage.bound(channel, dlx, key) for key in ("chosen", "k", "copy"))
    source = stage.queue(
        channel,
        arguments={"x-dead-letter-exchange": dlx, "x-dead-letter-routing-key": "chosen"},
    )
    channel.call("queue.bind", queue=source, exchange="amq.direct", routing_key=source)
    headers: Table = {"CC": ["copy"], "BCC": ["k"]}
    channel.publish("amq.direct", source, "x", headers=headers)
    channel.holds(source, 1)
    reject_head(channel, source)
    channel.holds(chosen, 1)
    equal((channel.count(primary), channel.count(copy)), (0, 0), "messages by the other keys")


@case("DLX-06", says="without one all keys are used: primary, CC and BCC")
def without_key(stage: Stage) -> None:
    channel = stage.channel()
    entry, dlx = stage.exchange(channel, "fanout"), stage.exchange(channel, "direct")
    targets = [stage.bound(channel, dlx, key) for key in ("k", "copy 1", "copy 2", "blind")]
    other = stage.bound(channel, dlx, "other")
    source = stage.queue(channel, arguments={"x-dead-letter-exchange": dlx})
    channel.call("queue.bind", queue=source, exchange=entry)
    headers: Table = {"CC": ["copy 1", "copy 2"], "BCC": ["blind"]}
    channel.publish(entry, "k", "x", headers=headers)
    channel.holds(source, 1)
    reject_head(channel, source)
    for target in targets:
        equal(fetch(channel, target).text("routing_key"), "k", "routing key of the dead letter")
    equal(channel.count(other), 0, "messages by another key")


@case("DLX-06", says="a target that several of the keys reach gets one copy")
def one_copy(stage: Stage) -> None:
    channel = stage.channel()
    entry, dlx = stage.exchange(channel, "fanout"), stage.exchange(channel, "direct")
    target = stage.bound(channel, dlx, "k")
    channel.call("queue.bind", queue=target, exchange=dlx, routing_key="copy")
    source = stage.queue(channel, arguments={"x-dead-letter-exchange": dlx})
    channel.call("queue.bind", queue=source, exchange=entry)
    headers: Table = {"CC": ["copy", "k"], "BCC": ["copy"]}
    channel.publish(entry, "k", "x", headers=headers)
    channel.holds(source, 1)
    reject_head(channel, source)
    channel.holds(target, 1)
    channel.consume(target, no_ack=True)
    channel.deliver()
    channel.quiet("basic.deliver", seconds=0.1)


@case("DLX-06", says="a message in two queues dies in each for itself")
def two_sources(stage: Stage) -> None:
    channel = stage.channel()
    entry = stage.exchange(channel, "fanout")
    first, second = mortal(stage, channel), mortal(stage, channel)
    for source, _ in (first, second):
        channel.call("queue.bind", queue=source, exchange=entry)
    channel.publish(entry, "k", "x")
    channel.holds(first[0], 1)
    channel.holds(second[0], 1)
    reject_head(channel, first[0])
    _dies_of(channel, *first, "rejected")
    equal((channel.count(second[0]), channel.count(second[1])), (1, 0), "the other queue")
    reject_head(channel, second[0])
    _dies_of(channel, *second, "rejected")


@case("DLX-07", says="the DLX routes by its type, here topic, over bound exchanges")
def topic_dlx(stage: Stage) -> None:
    channel = stage.channel()
    dlx, behind = stage.exchange(channel, "topic"), stage.exchange(channel, "fanout")
    channel.call("exchange.bind", source=dlx, destination=behind, routing_key="dead.#")
    matching, through = stage.bound(channel, dlx, "*.letter"), stage.bound(channel, behind)
    other = stage.bound(channel, dlx, "live.#")
    arguments: Table = {
        "x-dead-letter-exchange": dlx,
        "x-dead-letter-routing-key": "dead.letter",
    }
    kill(stage, channel, stage.queue(channel, arguments=arguments))
    for queue in (matching, through):
        event = fetch(channel, queue)
        equal((event.text("exchange"), event.text("routing_key")), (dlx, "dead.letter"), "address")
    equal(channel.count(other), 0, "messages in a queue that does not match")


@case("DLX-07", says="an internal exchange may be the DLX")
def internal_dlx(stage: Stage) -> None:
    channel = stage.channel()
    dlx = stage.exchange(channel, "fanout", internal=True)
    target = stage.bound(channel, dlx)
    source = stage.queue(channel, arguments={"x-dead-letter-exchange": dlx})
    kill(stage, channel, source)
    _dies_of(channel, source, target, "rejected")


@case("DLX-07", says="the alternate exchange of the DLX applies")
def alternate_of_dlx(stage: Stage) -> None:
    channel = stage.channel()
    alternate = stage.exchange(channel, "fanout")
    target = stage.bound(channel, alternate)
    dlx = stage.exchange(channel, "direct", arguments={"alternate-exchange": alternate})
    source = stage.queue(channel, arguments={"x-dead-letter-exchange": dlx})
    kill(stage, channel, source)
    _dies_of(channel, source, target, "rejected")


@case("DLX-07", says="a DLX that is declared after the queue is found when it is needed")
def later_dlx(stage: Stage) -> None:
    channel = stage.channel()
    dlx = stage.name("later")
    source = stage.queue(channel, arguments={"x-dead-letter-exchange": dlx})
    kill(stage, channel, source, "lost")
    channel.sync()
    channel.call("exchange.declare", exchange=dlx, type="fanout")
    target = stage.bound(channel, dlx)
    kill(stage, channel, source, "kept")
    equal(fetch(channel, target).body, b"kept", "dead letter")


# --- when it cannot be stored ---------------------------------------------------------------


def _dropped(where: str, stage: Stage) -> None:
    channel = stage.channel()
    is_missing = where == "a missing DLX"
    dlx = stage.name("missing") if is_missing else stage.exchange(channel, "direct")
    source = stage.queue(
        channel, arguments={"x-dead-letter-exchange": dlx, "x-max-length": 2, "x-message-ttl": 500}
    )
    kill(stage, channel, source, "rejected")
    for number in range(4):
        channel.publish("", source, str(number))
    channel.sync()
    time.sleep(0.6)
    channel.holds(source, 0)


for _where in ("a missing DLX", "a DLX without a route"):
    case("DLX-09", says=f"{_where}: dropped, whatever the cause")(partial(_dropped, _where))


@case("DLX-09", says="a dead letter without a route is not returned, mandatory or not")
def not_returned(stage: Stage) -> None:
    channel = stage.confirming()
    dlx = stage.exchange(channel, "direct")
    source = stage.queue(channel, arguments={"x-dead-letter-exchange": dlx, "x-max-length": 0})
    channel.publish("", source, "x", mandatory=True)
    equal(channel.confirms(1), {1: "ack"}, "confirm")
    channel.quiet(seconds=0.1)


@case("DLX-09", says="at-most-once: what the target refuses is dropped")
def target_refuses(stage: Stage) -> None:
    channel = stage.channel()
    target = stage.queue(channel, arguments={"x-max-length": 1, "x-overflow": "reject-publish"})
    lead: Table = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": target}
    source = stage.queue(channel, arguments=lead)
    stage.load(channel, source, "a", "b")
    reject_head(channel, source)
    channel.holds(target, 1)
    reject_head(channel, source)
    channel.sync()
    equal(channel.drain(target), ["a"], "the target")
    equal(channel.count(source), 0, "ready messages in the source")


@case("DLX-10", says="at-most-once: one target accepts, another refuses, the one has it")
def one_of_two_refuses(stage: Stage) -> None:
    channel = stage.channel()
    dlx = stage.exchange(channel, "fanout")
    roomy = stage.bound(channel, dlx)
    full = stage.queue(channel, arguments={"x-max-length": 0, "x-overflow": "reject-publish"})
    channel.call("queue.bind", queue=full, exchange=dlx)
    source = stage.queue(channel, arguments={"x-dead-letter-exchange": dlx})
    kill(stage, channel, source)
    _dies_of(channel, source, roomy, "rejected")
    equal(channel.count(full), 0, "messages in the full one")


def _careful(stage: Stage, channel: Channel, dlx: str, **more: Plain) -> str:
    """A durable queue that dead-letters at least once."""
    arguments: Table = {
        "x-dead-letter-exchange": dlx,
        "x-dead-letter-strategy": "at-least-once",
        **more,
    }
    return stage.queue(channel, arguments=arguments, durable=True)


@case("DLX-09", says="at-least-once: kept unseen in the source until there is a route", mark="+")
def kept_until_routed(stage: Stage) -> None:
    channel = stage.channel()
    dlx = stage.exchange(channel, "direct")
    source = _careful(stage, channel, dlx, **{"x-dead-letter-routing-key": "k"})
    kill(stage, channel, source)
    channel.sync()
    equal(channel.get(source).name, "basic.get_empty", "get from the source")
    _dies_of(channel, source, stage.bound(channel, dlx, "k"), "rejected")


@case("DLX-09", says="at-least-once: kept while the DLX is missing", mark="+")
def kept_until_declared(stage: Stage) -> None:
    channel = stage.channel()
    dlx = stage.name("later")
    source = _careful(stage, channel, dlx)
    channel.publish("", source, "x", expiration=str(SHORT_MS))
    channel.sync()
    time.sleep(SHORT_MS / 1000 + 0.1)
    channel.holds(source, 0)
    channel.call("exchange.declare", exchange=dlx, type="fanout")
    _dies_of(channel, source, stage.bound(channel, dlx), "expired")


@case("DLX-09", says="at-least-once: kept until a full target has room, and no longer", mark="+")
def kept_until_there_is_room(stage: Stage) -> None:
    channel = stage.confirming()
    dlx = stage.exchange(channel, "fanout")
    full = stage.queue(channel, arguments={"x-max-length": 1, "x-overflow": "reject-publish"})
    channel.call("queue.bind", queue=full, exchange=dlx)
    channel.publish("", full, "in the way")
    channel.holds(full, 1)
    source = _careful(stage, channel, dlx)
    kill(stage, channel, source)
    channel.sync()
    began = time.monotonic()
    equal(fetch(channel, full).body, b"in the way", "message of the full queue")
    _dies_of(channel, source, full, "rejected")
    stage.in_time(time.monotonic(), began, ROOM_S, "the dead letter")


@case("DLX-09", says="at-least-once: one without a route holds back no other", mark="+")
def holds_back_nobody(stage: Stage) -> None:
    channel = stage.channel()
    entry, dlx = stage.exchange(channel, "fanout"), stage.exchange(channel, "direct")
    source = _careful(stage, channel, dlx)
    channel.call("queue.bind", queue=source, exchange=entry)
    target = stage.bound(channel, dlx, "routed")
    for key in ("stuck", "routed"):
        channel.publish(entry, key, key)
    channel.holds(source, 2)
    for _ in range(2):
        reject_head(channel, source)
    equal(fetch(channel, target).body, b"routed", "dead letter")
    later = stage.bound(channel, dlx, "stuck")
    equal(fetch(channel, later).body, b"stuck", "dead letter")


@case("DLX-09", says="at-least-once: what is kept counts against the source's limit", mark="+")
def counts_against_limit(stage: Stage) -> None:
    channel = stage.confirming()
    dlx = stage.exchange(channel, "direct")
    limit: Table = {"x-max-length": 1, "x-overflow": "reject-publish"}
    source = _careful(stage, channel, dlx, **limit)
    channel.publish("", source, "kept")
    channel.holds(source, 1)
    reject_head(channel, source)
    channel.sync()
    channel.publish("", source, "too much")
    equal(channel.confirms(2), {1: "ack", 2: "nack"}, "confirms")


@case("DLX-09", says="at-least-once: what is kept survives a restart", mark="+", restart=True)
def kept_over_restart(stage: Stage) -> Iterator[None]:
    channel = stage.confirming()
    dlx = stage.exchange(channel, "fanout", durable=True)
    source = _careful(stage, channel, dlx)
    channel.publish("", source, "x", delivery_mode=2)
    channel.wait("basic.ack")
    reject_head(channel, source)
    channel.publish("", stage.queue(channel, durable=True), "clock", delivery_mode=2)
    channel.wait("basic.ack")
    yield
    channel = stage.channel()
    equal(channel.get(source).name, "basic.get_empty", "get from the source")
    _dies_of(channel, source, stage.bound(channel, dlx), "rejected")


@case("DLX-10", says="at-least-once: retried until all targets have it, none twice", mark="+")
def until_all_accept(stage: Stage) -> None:
    channel = stage.channel()
    dlx = stage.exchange(channel, "fanout")
    roomy = stage.bound(channel, dlx)
    full = stage.queue(channel, arguments={"x-max-length": 1, "x-overflow": "reject-publish"})
    channel.call("queue.bind", queue=full, exchange=dlx)
    stage.load(channel, full, "in the way")
    source = _careful(stage, channel, dlx)
    kill(stage, channel, source, "letter")
    channel.holds(roomy, 1)
    # One get: the letter may come as soon as there is room.
    equal(channel.get(full).body, b"in the way", "the full one")
    look = partial(channel.drain, full)
    eventually(look, ["letter"], "the one that was full", 20 + stage.slack_s)
    equal(channel.drain(roomy), ["letter"], "the roomy one")


# --- part of what caused it -----------------------------------------------------------------


@case("DLX-11", says="a reject in a transaction dead-letters at commit, after rollback not")
def in_transaction(stage: Stage) -> None:
    channel, watcher = stage.transactional(), stage.channel()
    source, target = mortal(stage, watcher)
    stage.load(watcher, source, "a")
    tag = channel.get(source, no_ack=False).tag
    channel.reject(tag, requeue=False)
    channel.call("tx.rollback")
    channel.nack(tag, requeue=False)
    channel.sync()
    equal(watcher.count(target), 0, "dead letters before commit")
    channel.call("tx.commit")
    _dies_of(watcher, source, target, "rejected")


@case("DLX-11", says="a dead letter its target refuses does not fail the commit")
def refused_in_transaction(stage: Stage) -> None:
    channel, watcher = stage.transactional(), stage.channel()
    full = stage.queue(watcher, arguments={"x-max-length": 0, "x-overflow": "reject-publish"})
    lead: Table = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": full}
    source = stage.queue(watcher, arguments=lead)
    stage.load(watcher, source, "x")
    channel.reject(channel.get(source, no_ack=False).tag, requeue=False)
    channel.publish("", source, "y")
    channel.call("tx.commit")
    watcher.holds(source, 1)
    equal(watcher.drain(source), ["y"], "what was committed")


@case(
    "DLX-08", says="a dead letter is in its target after a restart, not in the source", restart=True
)
def durable_dead_letters(stage: Stage) -> Iterator[None]:
    channel = stage.confirming()
    source, target = mortal(stage, channel, durable=True)
    for body in ("a", "b", "c"):
        channel.publish("", source, body, delivery_mode=2)
    equal(set(channel.confirms(3).values()), {"ack"}, "confirms")
    for _ in range(2):
        reject_head(channel, source)
    channel.holds(target, 2)
    channel.publish("", source, "d", delivery_mode=2)
    channel.wait("basic.ack")
    yield
    channel = stage.channel()
    dead = [channel.get(target) for _ in range(2)]
    equal([event.body for event in dead], [b"a", b"b"], "dead letters")
    equal(history(dead[0]), [(source, "rejected", 1)], "x-death")
    reject_head(channel, source)
    equal(fetch(channel, target).body, b"c", "a dead letter from after the restart")
    equal(channel.drain(source), ["d"], "the source")


@case("DLX-12", says="thousands that die at once all arrive, in order")
def many_at_once(stage: Stage) -> None:
    channel = stage.channel()
    source, target = mortal(stage, channel)
    bodies = [str(number) for number in range(3000)]
    for body in bodies:
        channel.publish("", source, body)
    channel.consume(source)
    channel.deliveries(3000)
    channel.nack(0, multiple=True, requeue=False)
    channel.holds(target, 3000)
    channel.consume(target, no_ack=True)
    equal(channel.bodies(3000), bodies, "dead letters")


@case("DLX-12", says="a chain of thirty queues is gone through to its end")
def long_chain(stage: Stage) -> None:
    channel = stage.channel()
    end = next_one = stage.queue(channel, label="end")
    names: list[str] = []
    for _ in range(30):
        next_one = stage.queue(
            channel,
            arguments={
                "x-message-ttl": 1,
                "x-dead-letter-exchange": "",
                "x-dead-letter-routing-key": next_one,
            },
        )
        names.append(next_one)
    channel.publish("", next_one, "x", expiration=str(NEVER_MS))
    got = history(fetch(channel, end))
    equal(got[0], (names[0], "expired", 1), "the newest death")
    equal(sorted(map(str, got)), sorted(str((name, "expired", 1)) for name in names), "deaths")
