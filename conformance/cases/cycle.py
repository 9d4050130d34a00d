"""Section DLX 13.3: cycles of dead letters, and histories that clients publish themselves."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Final

from vouchmq.conformance.case import case
from vouchmq.conformance.cases.death import TURNED
from vouchmq.conformance.client import Channel
from vouchmq.conformance.dead_letters import (
    SHORT_MS,
    deaths,
    fetch,
    headers,
    history,
    mortal,
    reject_head,
)
from vouchmq.conformance.expect import check, equal
from vouchmq.conformance.stage import Stage
from vouchmq.conformance.wire import Plain, Table, Typed


def _chain(
    stage: Stage, channel: Channel, *labels: str, arguments: Table | None = None
) -> list[str]:
    """Queues with names of their own; each dead-letters to the next, the last to the first."""
    names = [stage.name(label) for label in labels]
    for at, name in enumerate(names):
        lead: Table = {
            "x-dead-letter-exchange": "",
            "x-dead-letter-routing-key": names[(at + 1) % len(names)],
        }
        channel.call("queue.declare", queue=name, arguments={**(arguments or {}), **lead})
    return names


# --- cycles ---------------------------------------------------------------------------------


@case("DLX-20", says="a queue whose expired messages come back to it: dropped")
def loop_of_one(stage: Stage) -> None:
    channel = stage.channel()
    (queue,) = _chain(stage, channel, "loop", arguments={"x-message-ttl": 300})
    stage.load(channel, queue, "a", "b")
    channel.holds(queue, 0)
    channel.consume(queue, no_ack=True)
    channel.quiet("basic.deliver")


@case("DLX-20", says="a queue whose expired messages come back by its own name: dropped")
def loop_by_own_key(stage: Stage) -> None:
    channel = stage.channel()
    queue = stage.queue(channel, arguments={"x-message-ttl": 300, "x-dead-letter-exchange": ""})
    stage.load(channel, queue, "a")
    channel.holds(queue, 0)
    channel.consume(queue, no_ack=True)
    channel.quiet("basic.deliver")


@case("DLX-20", says="two queues with TTL: dropped on its second arrival, other targets get it")
def loop_of_two(stage: Stage) -> None:
    channel = stage.channel()
    dlx = stage.exchange(channel, "fanout")
    first, second = stage.name("first"), stage.name("second")
    for name, lead in (
        (first, {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": second}),
        (second, {"x-dead-letter-exchange": dlx}),
    ):
        arguments: Table = {"x-message-ttl": SHORT_MS, **lead}
        channel.call("queue.declare", queue=name, arguments=arguments)
    channel.call("queue.bind", queue=first, exchange=dlx)
    witness = stage.bound(channel, dlx)
    channel.publish("", first, "x")
    wanted = [(second, "expired", 1), (first, "expired", 1)]
    equal(history(fetch(channel, witness)), wanted, "x-death at another target")
    channel.consume(first, no_ack=True)
    channel.quiet("basic.deliver")


@case("DLX-20", says="a queue whose overflow comes back to it: dropped, it keeps its newest")
def loop_of_overflow(stage: Stage) -> None:
    channel = stage.confirming()
    (queue,) = _chain(stage, channel, "loop", arguments={"x-max-length": 1})
    for number in range(5):
        channel.publish("", queue, str(number))
    equal(set(channel.confirms(5).values()), {"ack"}, "confirms")
    channel.holds(queue, 1)
    equal(channel.drain(queue), ["4"], "what is left")


@case("DLX-20", says="rejecting is no cycle: a queue that gets its own rejects back counts on")
def reject_loop_of_one(stage: Stage) -> None:
    channel = stage.channel()
    (queue,) = _chain(stage, channel, "loop")
    stage.load(channel, queue, "x")
    for count in (1, 2, 3):
        reject_head(channel, queue)
        channel.holds(queue, 1)
        event = channel.get(queue, no_ack=False)
        equal(history(event), [(queue, "rejected", count)], "x-death")
        channel.nack(event.tag)
        channel.holds(queue, 1)


@case("DLX-20", says="work and retry: a reject in between lets the expired come back")
def retry_loop(stage: Stage) -> None:
    channel = stage.channel()
    work, wait = stage.name("work"), stage.name("wait")
    for name, lead, more in ((work, wait, {}), (wait, work, {"x-message-ttl": SHORT_MS})):
        arguments: Table = {
            "x-dead-letter-exchange": "",
            "x-dead-letter-routing-key": lead,
            **more,
        }
        channel.call("queue.declare", queue=name, arguments=arguments)
    channel.consume(work)
    channel.publish("", work, "x")
    for count in range(4):
        event = channel.deliver()
        wanted = [(wait, "expired", count), (work, "rejected", count)] if count else None
        equal(history(event) if count else None, wanted, f"x-death after {count} rounds")
        channel.reject(event.tag, requeue=False)


@case(
    "DLX-20",
    says="a reject before the cycle does not excuse it",
    referee_reason=TURNED,
)
def reject_before_cycle(stage: Stage) -> None:
    channel = stage.channel()
    dlx = stage.exchange(channel, "fanout")
    first, second = stage.name("first"), stage.name("second")
    for name, lead in (
        (first, {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": second}),
        (second, {"x-dead-letter-exchange": dlx}),
    ):
        arguments: Table = {"x-message-ttl": SHORT_MS, **lead}
        channel.call("queue.declare", queue=name, arguments=arguments)
    channel.call("queue.bind", queue=first, exchange=dlx)
    witness = stage.bound(channel, dlx)
    entry = stage.queue(
        channel, arguments={"x-dead-letter-exchange": "", "x-dead-letter-routing-key": first}
    )
    stage.load(channel, entry, "x")
    reject_head(channel, entry)
    channel.holds(witness, 1)
    channel.consume(first, no_ack=True)
    channel.quiet("basic.deliver")


@case("DLX-20", says="a cycle is noticed after a restart, too", restart=True)
def cycle_over_restart(stage: Stage) -> Iterator[None]:
    channel = stage.confirming()
    first, second = stage.name("first"), stage.name("second")
    for name, lead, more in (
        (first, second, {"x-message-ttl": SHORT_MS}),
        (second, first, {"x-max-length": 1}),
    ):
        arguments: Table = {
            "x-dead-letter-exchange": "",
            "x-dead-letter-routing-key": lead,
            **more,
        }
        channel.call("queue.declare", queue=name, arguments=arguments, durable=True)
    channel.publish("", first, "x", delivery_mode=2)
    channel.holds(second, 1)
    channel.publish("", stage.queue(channel, durable=True), "clock", delivery_mode=2)
    equal(set(channel.confirms(2).values()), {"ack"}, "confirms")
    yield
    channel = stage.channel()
    channel.consume(first, no_ack=True)
    channel.publish("", second, "pushes it out")
    channel.quiet("basic.deliver")
    equal(channel.drain(second), ["pushes it out"], "what is left")


# --- histories of the client's own ----------------------------------------------------------


def _table(queue: str, reason: str, count: Plain, **more: Plain) -> Table:
    return {"queue": queue, "reason": reason, "count": count, **more}


def _with_history(
    stage: Stage, channel: Channel, history_: Plain, source: str, **more: Plain
) -> None:
    """Publish a message with an x-death of its own and reject it."""
    channel.publish("", source, "x", headers={"x-death": history_, **more})
    channel.holds(source, 1)
    reject_head(channel, source)


def _continues(count: Plain, stage: Stage) -> None:
    channel = stage.channel()
    source, target = mortal(stage, channel)
    _with_history(stage, channel, [_table(source, "rejected", count)], source)
    death = deaths(fetch(channel, target))[0]
    equal(death.short, (source, "rejected", 8), "newest death")
    equal(death.fields["count"], Typed("l", 8), "count")


for _kind in "lIsb":
    case("DLX-22", says=f"counts continue from an x-death of the client's, count of type {_kind}")(
        partial(_continues, Typed(_kind, 7))
    )


@case("DLX-22", says="a client's x-death for another queue or reason stays behind the new table")
def others_stay(stage: Stage) -> None:
    channel = stage.channel()
    source, target = mortal(stage, channel)
    theirs = [_table("elsewhere", "rejected", Typed("l", 3)), _table(source, "expired", 2)]
    _with_history(stage, channel, theirs, source)
    got = history(fetch(channel, target))
    equal(got[0], (source, "rejected", 1), "newest death")
    older = [("elsewhere", "rejected", 3), (source, "expired", 2)]
    equal(sorted(map(str, got[1:])), sorted(map(str, older)), "older deaths")


@case("DLX-22", says="entries of one queue and reason without counts are counted, and made one")
def old_entries_are_counted(stage: Stage) -> None:
    channel = stage.channel()
    source, target = mortal(stage, channel)
    mine: Table = {"queue": source, "reason": "rejected"}
    other: Table = {"queue": "elsewhere", "reason": "expired"}
    _with_history(stage, channel, [mine, other, mine, other, mine], source)
    wanted = [(source, "rejected", 4), ("elsewhere", "expired", 2)]
    equal(history(fetch(channel, target)), wanted, "x-death")


@case("DLX-22", says="of entries of one queue and reason the first counts, the others go")
def first_entry_counts(stage: Stage) -> None:
    channel = stage.channel()
    source, target = mortal(stage, channel)
    theirs = [_table(source, "rejected", 4), _table(source, "rejected", 2)]
    _with_history(stage, channel, theirs, source)
    equal(history(fetch(channel, target)), [(source, "rejected", 5)], "x-death")


MALFORMED: Final[tuple[tuple[str, Plain], ...]] = (
    ("text", "nonsense"),
    ("an integer", 5),
    ("a table", {"queue": "q"}),
)


def _replaced(value: Plain, stage: Stage) -> None:
    channel = stage.channel()
    source, target = mortal(stage, channel)
    _with_history(stage, channel, value, source, mine=1)
    event = fetch(channel, target)
    equal(history(event), [(source, "rejected", 1)], "x-death")
    check("mine" in headers(event), "the other headers are gone")


for _what, _value in MALFORMED:
    case("DLX-22", says=f"an x-death that is {_what} is replaced at the first death")(
        partial(_replaced, _value)
    )
case("DLX-22", says="an x-death of anything but tables is replaced at the first death", mark="≡4")(
    partial(_replaced, ["text", 5])
)


@case("DLX-22", says="a client's x-death is delivered as it is while the message lives")
def untouched_before_death(stage: Stage) -> None:
    channel = stage.channel()
    queue = stage.queue(channel)
    channel.publish("", queue, "x", headers={"x-death": "nonsense", "x-first-death-queue": "q"})
    wanted = {"x-death": "nonsense", "x-first-death-queue": "q"}
    equal(fetch(channel, queue).headers, wanted, "headers")


@case("DLX-22", says="a client's x-first-death-* are kept")
def first_death_is_kept(stage: Stage) -> None:
    channel = stage.channel()
    source, target = mortal(stage, channel)
    mine: Table = {
        "x-first-death-queue": "mine",
        "x-first-death-reason": "boredom",
        "x-first-death-exchange": "nowhere",
    }
    _with_history(stage, channel, [_table("mine", "rejected", 1)], source, **mine)
    got = headers(fetch(channel, target))
    for name, value in mine.items():
        equal(got.get(name), Typed("S", str(value).encode()), name)


@case("DLX-22", says="a dead letter republished by a client with its headers counts on")
def republished(stage: Stage) -> None:
    channel = stage.channel()
    source, target = mortal(stage, channel)
    stage.load(channel, source, "x")
    for count in (1, 2, 3):
        reject_head(channel, source)
        event = fetch(channel, target)
        equal(history(event), [(source, "rejected", count)], "x-death")
        channel.publish("", source, "x", headers=headers(event))
        channel.holds(source, 1)


@case("DLX-21", says="a history from the client makes no cycle", mark="≡4")
def no_cycle(stage: Stage) -> None:
    channel = stage.channel()
    source, target = mortal(stage, channel, {"x-message-ttl": SHORT_MS})
    theirs = [_table(target, "expired", 1)]
    channel.publish("", source, "x", headers={"x-death": theirs})
    wanted = [(source, "expired", 1), (target, "expired", 1)]
    equal(history(fetch(channel, target)), wanted, "x-death")


@case("DLX-21", says="published again by a client, a message may go round once more")
def again_by_client(stage: Stage) -> None:
    channel = stage.channel()
    names = _chain(stage, channel, "first", "second", arguments={"x-message-ttl": 400})
    first, second = names
    channel.publish("", first, "x")
    event = fetch(channel, second)
    equal(history(event), [(first, "expired", 1)], "x-death")
    channel.publish("", first, "x", headers=headers(event))
    equal(history(fetch(channel, second))[0], (first, "expired", 2), "x-death, second round")
