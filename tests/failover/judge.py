"""What is wrong with what the clients of one queue have seen, over any number of take-overs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from tests.failover.clients import Delivered, Gone, History
from tests.fault.ledger import some


def judge(
    history: History, left: Sequence[tuple[bytes, bool]], *, is_single: bool = False
) -> list[str]:
    """Everything that breaks a promise; one line each.

    Args:
        history: of clients that have ended
        left: what was in the queue afterwards, in its order, and whether it is marked
        is_single: one consumer is active at a time
    """
    wrong = list(history.complaints)
    seen = [each.name for each in history.events if isinstance(each, Delivered)]
    there = [name for name, _ in left]
    if lost := history.confirmed - {*seen, *there}:
        wrong.append(f"{len(lost)} confirmed messages are lost: {some(lost)}")
    if unknown := {*seen, *there} - {*history.published}:
        wrong.append(f"{len(unknown)} that nobody published: {some(unknown)}")
    if len(set(there)) < len(there):
        wrong.append(f"{len(there) - len(set(there))} are in the queue twice")
    wrong += _back(history.events, there)
    wrong += _marks(history, left)
    if is_single:
        wrong += _interleaved(history)
        wrong += _order(history.events)
    return wrong


def _back(events: Iterable[Delivered | Gone], there: Sequence[bytes]) -> Iterator[str]:
    """What was acked, and the ack was committed, and it came again."""
    gone: set[bytes] = set()
    back: set[bytes] = set()
    for each in events:
        if isinstance(each, Gone):
            gone.update(each.names)
        elif each.name in gone:
            back.add(each.name)
    back |= gone & set(there)
    if back:
        yield f"{len(back)} came again after a committed ack: {some(back)}"


def _marks(history: History, left: Sequence[tuple[bytes, bool]]) -> Iterator[str]:
    """What was delivered before is marked; what was not may be if it was on its way."""
    known: set[bytes] = set()
    silent: set[bytes] = set()
    told: set[bytes] = set()
    found = [(e.name, e.redelivered) for e in history.events if isinstance(e, Delivered)]
    for name, is_marked in (*found, *left):
        if is_marked and name not in known:
            told.add(name)
        if not is_marked and name in known:
            silent.add(name)
        known.add(name)
    if silent:
        yield f"{len(silent)} were delivered before and are not marked: {some(silent)}"
    allowed = len(history.connections) * history.prefetch
    if len(told) > allowed:
        yield f"{len(told)} are marked and were never seen, {allowed} can be: {some(told)}"


def _interleaved(history: History) -> Iterator[str]:
    """A connection that goes on to deliver when a later one has begun."""
    order: list[int] = []
    late: dict[int, list[bytes]] = {}
    for each in history.events:
        if isinstance(each, Gone):
            continue
        if each.connection not in order:
            order.append(each.connection)
        if each.connection != order[-1]:
            late.setdefault(each.connection, []).append(each.name)
    for connection, names in late.items():
        after = order[order.index(connection) + 1]
        yield (
            f"{history.connections[connection]} delivered {len(names)} to connection {connection} "
            f"when {history.connections[after]} delivered to connection {after}: {some(names)}"
        )


def _order(events: Iterable[Delivered | Gone]) -> Iterator[str]:
    """First deliveries are in the order of publishing; what comes again is older than they are."""
    last = -1
    for each in events:
        if isinstance(each, Gone) or each.redelivered:
            continue
        number = int(each.name.partition(b":")[2])
        if number <= last:
            yield f"{each.name!r} came after m:{last}"
        last = max(last, number)
