"""Section DLX 13.3: what a death changes in the message, its history, and cycles."""

from __future__ import annotations

import time
from collections.abc import Iterator
from functools import partial
from typing import Final

from vouchmq.conformance import wire
from vouchmq.conformance.case import case
from vouchmq.conformance.client import Channel
from vouchmq.conformance.dead_letters import (
    NEVER_MS,
    SHORT_MS,
    Death,
    deaths,
    fetch,
    headers,
    history,
    kill,
    mortal,
    reject_head,
)
from vouchmq.conformance.events import Event
from vouchmq.conformance.expect import check, equal
from vouchmq.conformance.stage import Stage
from vouchmq.conformance.wire import Argument, Plain, Table, Typed, plain

# Brokers on other machines may have other clocks.
CLOCKS_S: Final = 3600
TURNED: Final = "C-81: turns the older tables around at every death"


def _lead(exchange: str, key: str | None = None, **more: Plain) -> Table:
    """Queue arguments that dead-letter to an exchange."""
    arguments: dict[str, Plain] = {"x-dead-letter-exchange": exchange, **more}
    if key is not None:
        arguments["x-dead-letter-routing-key"] = key
    return arguments


def _waiting(channel: Channel, queue: str, ttl_ms: int, key: str, stage: Stage) -> None:
    """Declare a queue whose messages go to another queue after their time."""
    arguments = _lead("", key, **{"x-message-ttl": ttl_ms})
    channel.call("queue.declare", queue=stage.doomed(queue), arguments=arguments)


# --- address and properties -----------------------------------------------------------------


@case("DLX-13", says="delivered exchange is the DLX, delivered key the dead-letter key")
def address_with_key(stage: Stage) -> None:
    channel = stage.channel()
    dlx = stage.exchange(channel, "fanout")
    target = stage.bound(channel, dlx)
    kill(stage, channel, stage.queue(channel, arguments=_lead(dlx, "dead")))
    event = fetch(channel, target)
    equal((event.text("exchange"), event.text("routing_key")), (dlx, "dead"), "address")


@case("DLX-13", says="without a dead-letter key the delivered key is unchanged")
def address_without_key(stage: Stage) -> None:
    channel = stage.channel()
    dlx = stage.exchange(channel, "fanout")
    target = stage.bound(channel, dlx)
    source = stage.queue(channel, arguments=_lead(dlx))
    kill(stage, channel, source)
    event = fetch(channel, target)
    equal((event.text("exchange"), event.text("routing_key")), (dlx, source), "address")


@case("DLX-13", says="an empty dead-letter key is a key")
def empty_key(stage: Stage) -> None:
    channel = stage.channel()
    dlx = stage.exchange(channel, "direct")
    target = stage.bound(channel, dlx, "")
    kill(stage, channel, stage.queue(channel, arguments=_lead(dlx, "")))
    equal(fetch(channel, target).text("routing_key"), "", "routing key")


def _copies(key: str | None, stage: Stage) -> None:
    channel = stage.channel()
    dlx = stage.exchange(channel, "fanout")
    target = stage.bound(channel, dlx)
    source = stage.queue(channel, arguments=_lead(dlx, key))
    copies: Table = {"CC": ["nowhere 1"], "BCC": ["nowhere 2"], "mine": 1}
    channel.publish("", source, "x", headers=copies)
    channel.holds(source, 1)
    reject_head(channel, source)
    event = fetch(channel, target)
    got = {name: plain(headers(event)[name]) for name in headers(event) if name[0] != "x"}
    wanted: dict[str, object] = {"mine": 1} if key else {"CC": ["nowhere 1"], "mine": 1}
    equal(got, wanted, "headers beside those of the death")
    equal(deaths(event)[0]["routing-keys"], [source, "nowhere 1"], "routing-keys")


case("DLX-14", says="with a dead-letter key CC is removed, BCC too; other headers stay")(
    partial(_copies, "dead")
)
case("DLX-14", says="without a dead-letter key CC stays, BCC does not")(partial(_copies, None))


@case("DLX-15", says="expiration is removed, all other properties and the body stay")
def properties_stay(stage: Stage) -> None:
    channel = stage.channel()
    source, target = mortal(stage, channel)
    properties: dict[str, Argument] = {
        "content_type": "text/plain",
        "content_encoding": "utf-8",
        "delivery_mode": 1,
        "priority": 7,
        "correlation_id": "c",
        "reply_to": "r",
        "message_id": "m",
        "timestamp": 1_600_000_000,
        "type": "t",
        "user_id": stage.target.user,
        "app_id": "a",
        "cluster_id": "",
    }
    block: dict[str, Argument] = {
        **properties,
        "expiration": str(NEVER_MS),
        "headers": {"n": Typed("s", 5), "deep": {"a": [1, None, True]}},
    }
    _publish_all(channel, source, b"body" * 100, block)
    channel.holds(source, 1)
    reject_head(channel, source)
    event = fetch(channel, target)
    got = {name: value for name, value in event.properties.items() if name != "headers"}
    equal(got, properties, "properties beside the headers")
    kept = [headers(event)["n"], plain(headers(event)["deep"])]
    equal(kept, [Typed("s", 5), {"a": [1, None, True]}], "headers")
    equal(event.body, b"body" * 100, "body")


def _publish_all(
    channel: Channel, queue: str, body: bytes, properties: dict[str, Argument]
) -> None:
    channel.publish("", queue, body, block=wire.encode_properties(**properties))


@case("DLX-15", says="delivery-mode decides over a restart in the target, too", restart=True)
def transient_stays_transient(stage: Stage) -> Iterator[None]:
    channel = stage.confirming()
    source, target = mortal(stage, channel, durable=True)
    for mode in (1, 2):
        channel.publish("", source, str(mode), delivery_mode=mode)
    equal(set(channel.confirms(2).values()), {"ack"}, "confirms")
    for _ in range(2):
        reject_head(channel, source)
    channel.holds(target, 2)
    channel.publish("", target, "clock", delivery_mode=2)
    channel.wait("basic.ack")
    yield
    equal(stage.channel().drain(target), ["2", "clock"], "messages in the target")


@case("DLX-16", says="redelivered begins anew in the target")
def redelivered_anew(stage: Stage) -> None:
    channel = stage.channel()
    source, target = mortal(stage, channel)
    stage.load(channel, source, "x")
    channel.nack(channel.get(source, no_ack=False).tag)
    channel.holds(source, 1)
    event = channel.get(source, no_ack=False)
    equal(event.redelivered, True, "redelivered in the source")
    channel.reject(event.tag, requeue=False)
    equal(fetch(channel, target).redelivered, False, "redelivered in the target")


# --- the header -----------------------------------------------------------------------------

LAYOUT: Final = [
    ("count", "l"),
    ("reason", "S"),
    ("queue", "S"),
    ("time", "T"),
    ("exchange", "S"),
    ("routing-keys", "A"),
]


def _only(event: Event) -> Death:
    found = deaths(event)
    equal(len(found), 1, "tables in x-death")
    return found[0]


def _die(reason: str, stage: Stage, *, expiration: str | None = None) -> tuple[str, str, Event]:
    """Exchange and queue a message was published to, and its dead letter."""
    channel = stage.channel()
    entry = stage.exchange(channel, "direct")
    arguments: dict[str, Plain] = {}
    if reason == "maxlen":
        arguments["x-max-length"] = 0
    elif reason == "expired" and expiration is None:
        arguments["x-message-ttl"] = SHORT_MS
    source, target = mortal(stage, channel, arguments)
    channel.call("queue.bind", queue=source, exchange=entry, routing_key="k")
    more: Table = {"CC": ["copy"], "BCC": ["blind"]}
    if expiration is None:
        channel.publish(entry, "k", "x", headers=more)
    else:
        channel.publish(entry, "k", "x", headers=more, expiration=expiration)
    if reason == "rejected":
        channel.holds(source, 1)
        reject_head(channel, source)
    return entry, source, fetch(channel, target)


def _table(reason: str, stage: Stage) -> None:
    entry, source, event = _die(reason, stage)
    death = _only(event)
    equal(death.layout, LAYOUT, "fields and types")
    wanted = (1, reason, source, entry, ["k", "copy"])
    fields = ("count", "reason", "queue", "exchange", "routing-keys")
    equal(tuple(death[name] for name in fields), wanted, "fields")
    stamp = death["time"]
    check(
        isinstance(stamp, int) and abs(stamp - time.time()) < CLOCKS_S,
        f"time is {stamp!r}, not now in seconds",
    )


for _reason in ("expired", "rejected", "maxlen"):
    case("DLX-17", says=f"the table of a message that is {_reason}: fields, order, types")(
        partial(_table, _reason)
    )


def _with_expiration(reason: str, ttl_ms: int, stage: Stage) -> None:
    _, _, event = _die(reason, stage, expiration=str(ttl_ms))
    death = _only(event)
    check("original-expiration" in death.fields, "original-expiration is missing")
    got = death.fields["original-expiration"]
    equal(got, Typed("S", str(ttl_ms).encode()), "original-expiration")
    rest = [field for field in death.layout if field[0] != "original-expiration"]
    equal(rest, LAYOUT, "the other fields")
    check("expiration" not in event.properties, "expiration is still there")


for _reason, _ttl in (("expired", SHORT_MS), ("rejected", NEVER_MS), ("maxlen", NEVER_MS)):
    case("DLX-17", says=f"original-expiration if there was one, {_reason}")(
        partial(_with_expiration, _reason, _ttl)
    )


@case("DLX-17", says="original-expiration is the first field", mark="≡4")
def expiration_is_first(stage: Stage) -> None:
    _, _, event = _die("rejected", stage, expiration=str(NEVER_MS))
    equal(_only(event).layout, [("original-expiration", "S"), *LAYOUT], "fields")


@case("DLX-17", says="the default exchange is shown by its empty name")
def from_default_exchange(stage: Stage) -> None:
    channel = stage.channel()
    source, target = mortal(stage, channel)
    kill(stage, channel, source)
    death = _only(fetch(channel, target))
    equal((death["exchange"], death["routing-keys"]), ("", [source]), "where it had been sent")


@case("DLX-17", says="two queues: the table of the newer death comes first, with its own address")
def newest_first(stage: Stage) -> None:
    channel = stage.channel()
    middle, target = mortal(stage, channel)
    source = stage.queue(channel, arguments=_lead("amq.direct", "to the middle"))
    channel.call("queue.bind", queue=middle, exchange="amq.direct", routing_key="to the middle")
    kill(stage, channel, source)
    channel.holds(middle, 1)
    reject_head(channel, middle)
    newer, older = deaths(fetch(channel, target))
    equal((newer.short, older.short), ((middle, "rejected", 1), (source, "rejected", 1)), "tables")
    equal((newer["exchange"], newer["routing-keys"]), ("amq.direct", ["to the middle"]), "newer")
    equal((older["exchange"], older["routing-keys"]), ("", [source]), "older")


@case("DLX-17", says="two reasons in one queue are two tables")
def two_reasons(stage: Stage) -> None:
    channel = stage.channel()
    work = stage.name("work")
    channel.call("queue.declare", queue=work, arguments=_lead("", work))
    kill(stage, channel, work)
    channel.holds(work, 1)
    event = channel.get(work, no_ack=False)
    equal(history(event), [(work, "rejected", 1)], "x-death")
    channel.call("queue.delete", queue=work)
    target = stage.queue(channel)
    arguments = _lead("", target, **{"x-message-ttl": SHORT_MS})
    channel.call("queue.declare", queue=work, arguments=arguments)
    channel.publish("", work, "x", block=wire.Raw(event.block))
    wanted = [(work, "expired", 1), (work, "rejected", 1)]
    equal(history(fetch(channel, target)), wanted, "x-death")


def _retry_loop(stage: Stage) -> tuple[Channel, str, str]:
    """A work queue whose rejects come back from a waiting queue; it holds one message."""
    channel = stage.channel()
    work, wait = stage.name("work"), stage.name("wait")
    channel.call("queue.declare", queue=work, arguments=_lead("", wait))
    _waiting(channel, wait, SHORT_MS, work, stage)
    channel.publish("", work, "x")
    channel.holds(work, 1)
    return channel, work, wait


@case("DLX-18", says="a further death of the same kind counts on and moves to the front")
def counting(stage: Stage) -> None:
    channel, work, wait = _retry_loop(stage)
    for count in (1, 2, 3):
        reject_head(channel, work)
        channel.holds(work, 1)
        event = channel.get(work, no_ack=False)
        wanted = [(wait, "expired", count), (work, "rejected", count)]
        equal(history(event), wanted, "x-death")
        channel.nack(event.tag)
        channel.holds(work, 1)


@case("DLX-18", says="the other fields stay those of the first death", slow=True)
def first_fields_stay(stage: Stage) -> None:
    channel = stage.channel()
    work, wait = stage.name("work"), stage.name("wait")
    channel.call("queue.declare", queue=work, arguments=_lead("", wait))
    _waiting(channel, wait, 1200, work, stage)
    channel.call("queue.bind", queue=work, exchange="amq.direct", routing_key=work)
    channel.publish("amq.direct", work, "x", expiration=str(NEVER_MS))
    channel.holds(work, 1)
    seen: list[dict[str, object]] = []
    for _ in range(2):
        reject_head(channel, work)
        channel.holds(work, 1)
        event = channel.get(work, no_ack=False)
        rejected = next(death for death in deaths(event) if death["reason"] == "rejected")
        seen.append({name: rejected[name] for name in rejected.fields if name != "count"})
        channel.nack(event.tag)
        channel.holds(work, 1)
    equal(seen[1], seen[0], "fields of the first death, after the second")
    equal(seen[1]["exchange"], "amq.direct", "exchange of the first death")


@case(
    "DLX-17",
    says="three queues: the tables stand in the order of the deaths",
    referee_reason=TURNED,
)
def order_of_three(stage: Stage) -> None:
    channel = stage.channel()
    names = [stage.name(label) for label in "abcd"]
    for name, lead in zip(names, [*names[1:], ""], strict=True):
        channel.call("queue.declare", queue=name, arguments=_lead("", lead))
    stage.load(channel, names[0], "x")
    for name in names[:3]:
        channel.holds(name, 1)
        reject_head(channel, name)
    wanted = [(name, "rejected", 1) for name in reversed(names[:3])]
    equal(history(fetch(channel, names[3])), wanted, "x-death")


@case(
    "DLX-18",
    says="deaths elsewhere in between: the repeated one comes to the front",
    referee_reason=TURNED,
)
def moved_to_front(stage: Stage) -> None:
    channel = stage.channel()
    names = [stage.name(label) for label in "abc"]
    for at, name in enumerate(names):
        channel.call("queue.declare", queue=name, arguments=_lead("", names[(at + 1) % 3]))
    stage.load(channel, names[0], "x")
    for at in range(4):
        channel.holds(names[at % 3], 1)
        reject_head(channel, names[at % 3])
    one, two, three = names
    wanted = [(one, "rejected", 2), (three, "rejected", 1), (two, "rejected", 1)]
    equal(history(fetch(channel, two)), wanted, "x-death")


@case("DLX-19", says="x-first-death-* are set by the first death and never changed")
def first_death(stage: Stage) -> None:
    channel = stage.channel()
    entry = stage.exchange(channel, "fanout")
    second, target = mortal(stage, channel)
    arguments = _lead("", second, **{"x-message-ttl": SHORT_MS})
    first = stage.queue(channel, arguments=arguments)
    channel.call("queue.bind", queue=first, exchange=entry)
    channel.publish(entry, "k", "x")
    channel.holds(second, 1)
    reject_head(channel, second)
    event = fetch(channel, target)
    for name, wanted in (("queue", first), ("reason", "expired"), ("exchange", entry)):
        got = headers(event).get(f"x-first-death-{name}")
        equal(got, Typed("S", wanted.encode()), f"x-first-death-{name}")


@case("DLX-19", says="x-last-death-* tell of the newest death", mark="≡4")
def last_death(stage: Stage) -> None:
    channel = stage.channel()
    second, target = mortal(stage, channel)
    arguments = _lead("amq.direct", "k", **{"x-message-ttl": SHORT_MS})
    first = stage.queue(channel, arguments=arguments)
    channel.call("queue.bind", queue=second, exchange="amq.direct", routing_key="k")
    channel.publish("", first, "x")
    channel.holds(second, 1)
    event = channel.get(second, no_ack=False)
    for name, wanted in (("queue", first), ("reason", "expired"), ("exchange", "")):
        got = headers(event).get(f"x-last-death-{name}")
        equal(got, Typed("S", wanted.encode()), f"x-last-death-{name} after the first")
    channel.reject(event.tag, requeue=False)
    event = fetch(channel, target)
    for name, wanted in (("queue", second), ("reason", "rejected"), ("exchange", "amq.direct")):
        got = headers(event).get(f"x-last-death-{name}")
        equal(got, Typed("S", wanted.encode()), f"x-last-death-{name} after the second")
