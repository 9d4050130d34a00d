"""Copies get their verdict: one state each, from the numbers that `copies` has gathered.

A copy that was confirmed, has no end and is in no later inventory of its queue is LOST, unless
something is missing that could tell otherwise. `docs/guides/audit.md` has the states in order.
Must not know where rows come from or where they are written.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Final

from vouchmq.spark.audit import copies as c
from vouchmq.spark.ledger.facts import LINE_BITS, Broker, Facts

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

STATES: Final = (
    *("orphan", "resurrected", "double_end", "acked", "dead_lettered", "dropped"),
    *("delivered_no_ack", "queued", "known", "open", "unproven", "transient_gone"),
    *("unconfirmed_gone", "LOST"),
)
PHRASES: Final[dict[str, tuple[str, str]]] = {
    "tampered": (
        "the ledger was changed in one place after it was sealed",
        "the ledger was changed in {} places after it was sealed",
    ),
    "LOST": ("1 confirmed message is missing", "{} confirmed messages are missing"),
    "early_confirm": (
        "1 message was confirmed before it was on disk",
        "{} messages were confirmed before they were on disk",
    ),
    "double_end": ("1 message ended more than once", "{} messages ended more than once"),
    "acked_undelivered": (
        "1 message was acked that had not been delivered",
        "{} messages were acked that had not been delivered",
    ),
    "unanswered": ("1 publish was never answered", "{} publishes were never answered"),
    "resurrected": (
        "1 message was in its queue again after its end",
        "{} messages were in their queue again after their end",
    ),
    "orphan": ("1 message was never published", "{} messages were never published"),
    "order": ("1 message was delivered out of order", "{} messages were delivered out of order"),
    "redelivered_flag": (
        "1 message was redelivered without the redelivered flag",
        "{} messages were redelivered without the redelivered flag",
    ),
    "confirm_twice": ("1 publish was confirmed twice", "{} publishes were confirmed twice"),
    "over_prefetch": (
        "1 consumer had more than its prefetch",
        "{} consumers had more than their prefetch",
    ),
    "unknown_consumer": ("1 consumer was never started", "{} consumers were never started"),
    "nack_lost_in_returns": (
        "1 mandatory publish reached no queue and was not returned",
        "{} mandatory publishes reached no queue and were not returned",
    ),
    "clock": (
        "the clock of the ledger went back once",
        "the clock of the ledger went back {} times",
    ),
}
"""What findings of a kind say as a sentence: of one, of many. The worst kinds come first."""
FINDINGS: Final = tuple(PHRASES)
OF_LEDGER: Final = ("tampered", "clock")
"""Those about the ledger itself, whatever queues and times are looked at."""


def sentence(counts: Mapping[str, int]) -> str:
    """What findings say, the worst first."""
    told = [
        (one if counts[kind] == 1 else many).format(f"{counts[kind]:,}")
        for kind, (one, many) in PHRASES.items()
        if counts.get(kind)
    ]
    return "; ".join(told)


QUEUE_COLUMNS: Final = ("bk", "qid", "v", "queue", "is_stream", "d", "pri", "newest")
"""What `judge` wants to know of a queue; `newest` is the line of its newest whole inventory."""


def _numbers(values: Iterable[int]) -> str:
    listed = ", ".join(f"{value}L" for value in values)
    return f"array({listed})" if listed else "CAST(array() AS array<bigint>)"


def _of_broker(facts: Facts, told: Callable[[Broker], Iterable[int]]) -> str:
    """SQL: an array of numbers that depends on the broker."""
    cases = " ".join(
        f"WHEN {code} THEN {_numbers(told(broker))}"
        for code, broker in enumerate(facts.brokers.values())
    )
    return f"CASE bk {cases} END" if cases else _numbers(())


def _of_epoch(values: dict[tuple[int, int], int], broker: str, epoch: str) -> str:
    """SQL: a number that depends on the broker's epoch, 0 where none is given."""
    given = {place: value for place, value in values.items() if value}
    if not given:
        return "0L"
    pairs = ", ".join(
        f"{code << 16 | number}L, {value}L" for (code, number), value in sorted(given.items())
    )
    return f"coalesce(map({pairs})[CAST({broker} AS bigint) * {1 << 16} + {epoch}], 0L)"


def _between(numbers: str, low: str, high: str, *, closed: bool = False) -> str:
    return f"exists({numbers}, x -> x > {low} AND x {'<=' if closed else '<'} {high})"


def judge(rows: DataFrame, queues: DataFrame, facts: Facts) -> DataFrame:
    """Rows of copies with `state`, `known`, `persists`, and a flag for each finding of a copy.

    Args:
        rows: of `vouchmq.spark.audit.copies`
        queues: with QUEUE_COLUMNS; a queue that is not in it stores nothing
        facts: of the brokers and epochs
    """
    from pyspark.sql import functions as f

    told = rows.join(f.broadcast(queues), ["bk", "qid"], "left").fillna(
        0, ["is_stream", "d", "pri", "flags", "n_dlv", "n_req", "n_ends", "n_more"]
    )
    staged = told.selectExpr(
        "*",
        f"{c.line_of('o_pub')} AS l_pub",
        f"{c.line_of('o_invn')} AS l_inv",
        f"{c.line_of('end1')} AS l_end1",
        f"{c.line_of('endn')} AS l_endn",
        f"{c.line_of('o_dlv1', c.PLACE_BITS + 1)} AS l_dlv1",
        f"{c.third('n_ends')} AS n_uns",
        f"CASE WHEN is_stream = 1 THEN 0 ELSE {c.first('n_ends')} + {c.second('n_ends')} END + "
        f"{c.second('n_more')} + {c.third('n_more')} - {c.third('n_ends')} AS net_ends",
        f"least({c.line_of('o_dlv1', c.PLACE_BITS + 1)}, {c.line_of('end1')}, o_req1, "
        f"{c.line_of('o_inv1')}) AS l_seen",
        f"(d = 2 OR (d = 1 AND (flags & {c.PERSISTENT}) != 0)) AS persists",
    )
    begin = c.line_of("o_begin")
    beginnings = _of_broker(facts, Broker.beginnings)
    horizons = {(code, 0): each.horizon for code, each in enumerate(facts.brokers.values())}
    known = (
        f"(o_pub IS NULL AND l_seen IS NOT NULL AND (lsn < {_of_epoch(horizons, 'bk', '0')} OR "
        f"(o_begin IS NOT NULL AND {begin} <= l_seen AND "
        f"array_contains({beginnings}, shiftright({begin}, {LINE_BITS})))))"
    )
    # Which end was taken back is not known: the first, it is assumed, but where a crash may have
    # undone that one. So nobody is blamed for ends that a crash and a full disk have undone.
    undone = f"((net_ends >= 2 OR l_inv > l_endn) AND {_crashed(facts, 'l_end1')})"
    placed = staged.selectExpr(
        "*",
        f"{known} AS known",
        f"CASE WHEN n_uns = 0 OR {undone} THEN l_end1 ELSE l_endn END AS l_over",
        f"shiftright(coalesce(l_pub, l_seen), {LINE_BITS}) AS ep_pub",
    )
    return placed.selectExpr("*", f"{_state(facts)} AS state", *_findings(facts))


def _state(facts: Facts) -> str:
    holes = _of_broker(facts, Broker.holes)
    restarts = _of_broker(facts, Broker.restarts)
    synced = _of_epoch({(b, o): e.synced_lsn for b, _, o, e in facts.epochs()}, "bk", "ep_pub")
    moved = f"(flags & {c.MOVED}) != 0 AND {synced} >= lsn"
    newest_epoch = f"shiftright(newest, {LINE_BITS})"
    restarted = _between(restarts, "ep_pub", newest_epoch, closed=True)
    cases = (
        (f"o_pub IS NULL AND NOT known AND {_between(holes, '-1', 'l_seen')}", "unproven"),
        ("o_pub IS NULL AND NOT known", "orphan"),
        ("net_ends >= 1 AND l_inv > l_over", "resurrected"),
        ("net_ends >= 2", "double_end"),
        (f"net_ends >= 1 AND (endn & 3) = {c.END_ACK}", "acked"),
        (f"net_ends >= 1 AND (endn & 3) = {c.END_DEAD_LETTER}", "dead_lettered"),
        (f"net_ends >= 1 AND (endn & 3) = {c.END_DROP}", "dropped"),
        ("net_ends >= 1", "delivered_no_ack"),
        # Of a queue that stores nothing nobody says after a restart that it is not there.
        (f"d = 0 AND exists({restarts}, x -> x > ep_pub)", "transient_gone"),
        ("l_inv = newest AND known", "known"),
        ("l_inv = newest", "queued"),
        ("newest IS NULL OR coalesce(l_pub, l_seen) >= newest", "open"),
        (f"known OR {_between(holes, 'l_pub', 'newest')}", "unproven"),
        (f"NOT persists AND {restarted}", "transient_gone"),
        (f"(flags & {c.ACKED}) = 0 AND NOT ({moved})", "unconfirmed_gone"),
    )
    return f"CASE {' '.join(f'WHEN {when} THEN {then!r}' for when, then in cases)} ELSE 'LOST' END"


def _crashed(facts: Facts, end: str) -> str:
    """SQL: whether the broker has crashed after this end, and before the copy was seen again."""
    crashes = _of_broker(facts, lambda broker: broker.restarts(("crash",)))
    return _between(
        crashes, f"shiftright({end}, {LINE_BITS})", f"shiftright(l_inv, {LINE_BITS})", closed=True
    )


def _findings(facts: Facts) -> list[str]:
    """SQL: whether a copy is a finding of a kind, named `is_<kind>`."""
    holes = _of_broker(facts, Broker.holes)
    first_epoch = f"shiftright(l_dlv1, {LINE_BITS})"
    in_order = {
        (code, number): int(facts.brokers[name].ended(number) in ("stop", "off"))
        for code, name, number, _ in facts.epochs()
    }
    # After a crash a mark may be gone with its page.
    over_an_end = f"{_of_epoch(in_order, 'bk', first_epoch)} = 1"
    return [
        f"(persists AND (flags & {c.ACKED}) != 0 AND "
        f"(wm < lsn OR (flags & {c.CLAIMED}) != 0)) AS early_confirm",
        f"({c.first('n_more')} >= 2) AS confirm_twice",
        # A crash may undo what was not synced, ends too (DURABLE-13).
        f"(net_ends >= 1 AND (o_pub IS NOT NULL OR known) AND l_inv > l_over "
        f"AND NOT {_crashed(facts, 'l_over')} "
        f"AND NOT {_between(holes, 'l_over', 'l_inv')}) AS resurrected",
        f"coalesce({_undelivered(facts)}, false) AS acked_undelivered",
        f"(is_stream = 0 AND n_dlv >= 2 AND o_dlv0 > l_dlv1 AND "
        f"(shiftright(o_dlv0, {LINE_BITS}) = {first_epoch} OR "
        f"(persists AND {over_an_end}))) AS redelivered_flag",
    ]


def _undelivered(facts: Facts) -> str:
    """SQL: whether the last end of a copy is an ack, and nobody had been given it then."""
    epoch = f"shiftright(l_endn, {LINE_BITS})"
    first = f"shiftleft({epoch}, {LINE_BITS})"
    # With files that are gone, and with a ledger that was switched on, deliveries may be unseen.
    begin = f"CASE WHEN l_pub >= {first} THEN l_pub ELSE {first} - 1 END"
    holes = _between(_of_broker(facts, Broker.holes), f"({begin})", "l_endn")
    switched_on = _of_broker(facts, lambda broker: broker.restarts(("on",)))
    unseen = f"(coalesce(l_pub, -1) < {first} AND array_contains({switched_on}, {epoch}))"
    had = (
        "CASE WHEN o_dlvn IS NULL THEN false WHEN o_dlvn > l_endn THEN l_dlv1 < l_endn "
        f"ELSE shiftright(o_dlvn, {LINE_BITS}) = {epoch} AND "
        "(o_reqn IS NULL OR o_reqn < o_dlvn OR o_reqn > l_endn) END"
    )
    return (
        f"(is_stream = 0 AND net_ends >= 1 AND (endn & 3) = {c.END_ACK} AND "
        f"(o_pub IS NOT NULL OR known) AND NOT ({had}) AND NOT {holes} AND NOT {unseen})"
    )
