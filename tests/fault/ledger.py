"""What the clients know, written down before they act on it, and the judgement after a restart.

    client ──note──▶ Ledger (append-only file + state) ──▶ judge(found in the queues) ──▶ violations

A *copy* is one message in one queue. Of each copy the ledger knows whether it must be there, may
be there or must not be there. What a judgement has found becomes part of that knowledge: a message
that was there stays until it is acked, one that was not there may never come back. It knows
nothing of how the broker works, only what it has promised.

Spec: CONF-06, CONF-07, CONF-12, ACK-08, TX-08, DURABLE-01, DURABLE-02, DURABLE-10, DURABLE-12,
DURABLE-16
"""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Final, Literal

PADDING: Final = b"."
SHOWN: Final = 5

End = Literal["kill", "power"]
Found = Mapping[str, Sequence[tuple[bytes, bool]]]
Copy = tuple[str, bytes]


@dataclass(slots=True)
class Sent:
    """One publish. `at` is its place in the ledger; `queues` is where it is routed to."""

    at: int
    channel: str
    queues: tuple[str, ...]
    is_persistent: bool
    is_confirmed: bool = False
    is_nacked: bool = False


@dataclass(slots=True)
class Group:
    """One transaction: what it publishes and what it acks, and how far it came."""

    publishes: list[Copy] = field(default_factory=list)
    acks: list[Copy] = field(default_factory=list)
    state: Literal["open", "asked", "committed", "dropped"] = "open"


def name_of(padded: bytes) -> bytes:
    """A body without its padding: who published it, and its number."""
    return padded.rstrip(PADDING)


class Ledger:
    """The record of all clients of one broker, over any number of restarts.

    Threads write into it; every note is a line of the file before the state changes.
    """

    def __init__(self, path: Path) -> None:
        self._file = path.open("ab", buffering=1024 * 1024)
        self.path = path
        self._lock = threading.Lock()
        self._clock = 0
        self.sent: dict[bytes, Sent] = {}
        self.received: dict[Copy, int] = {}
        self.acked: dict[Copy, tuple[int, str]] = {}
        self.groups: list[Group] = []
        self.definitions: dict[str, Literal["asked", "there", "leaving", "gone"]] = {}
        # How many deliveries per queue may have left the broker without reaching a client.
        self.on_the_way: dict[str, int] = defaultdict(int)
        self.complaints: list[str] = []
        # A failed sync takes the confirm back, but cannot take the message back (DURABLE-21).
        self.refused_may_stay = False
        # Up to where in the ledger a confirm speaks: per channel, and "" for any.
        self._horizon: dict[str, int] = defaultdict(int)
        # From earlier judgements: what was there, in its order, and all names ever sent.
        self.kept: dict[str, list[bytes]] = {}
        self._ever: set[bytes] = set()
        self.confirmed_count = 0
        self.nacked_count = 0

    def __enter__(self) -> Ledger:
        """For `with`: the file is closed at the end."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close the file."""
        self._file.close()

    def _note(self, *words: object) -> int:
        self._clock += 1
        self._file.write(" ".join(map(str, (self._clock, *words))).encode() + b"\n")
        return self._clock

    # What clients write down. All but `confirmed`, `there` and `committed` come before the act.

    def sending(
        self, body: bytes, queues: tuple[str, ...], channel: str, *, persistent: bool = True
    ) -> None:
        """About to publish `body`, which is routed to `queues`."""
        with self._lock:
            at = self._note("send", body, queues, channel, persistent)
            self.sent[body] = Sent(at, channel, queues, persistent)

    def confirmed(self, bodies: Iterable[bytes]) -> None:
        """These were acked by the broker."""
        with self._lock:
            for body in bodies:
                self._note("confirmed", body)
                sent = self.sent[body]
                if sent.is_confirmed or sent.is_nacked:
                    self.complaints.append(f"{body!r} was settled twice")
                sent.is_confirmed = True
                self.confirmed_count += 1
                if sent.is_persistent and sent.queues:
                    for key in ("", sent.channel):
                        self._horizon[key] = max(self._horizon[key], sent.at)

    def nacked(self, bodies: Iterable[bytes]) -> None:
        """These were refused by the broker."""
        with self._lock:
            for body in bodies:
                self._note("nacked", body)
                if self.sent[body].is_confirmed:
                    self.complaints.append(f"{body!r} was confirmed, then nacked")
                self.sent[body].is_nacked = True
                self.nacked_count += 1

    def receiving(self, queue: str, body: bytes, *, redelivered: bool) -> None:
        """A delivery has come."""
        with self._lock:
            at = self._note("received", queue, body, redelivered)
            copy = (queue, body)
            if body not in self.sent and body not in self._ever:
                self.complaints.append(f"{queue}: {body!r} was delivered, nobody published it")
            if copy in self.received and not redelivered:
                self.complaints.append(f"{queue}: {body!r} came again without redelivered")
            if copy in self.acked:
                self.complaints.append(f"{queue}: {body!r} came again after its ack")
            self.received.setdefault(copy, at)

    def acking(self, queue: str, bodies: Iterable[bytes], channel: str) -> None:
        """About to ack these."""
        with self._lock:
            for body in bodies:
                self.acked[queue, body] = (self._note("ack", queue, body, channel), channel)

    def begin(self) -> Group:
        """A transaction begins; its publishes are noted with `sending` too."""
        with self._lock:
            self._note("begin", len(self.groups))
            self.groups.append(Group())
            return self.groups[-1]

    def ending(self, group: Group, *, commit: bool) -> None:
        """About to commit or roll back."""
        with self._lock:
            self._note("commit" if commit else "rollback", self.groups.index(group))
            group.state = "asked" if commit else "dropped"

    def committed(self, group: Group) -> None:
        """commit-ok has come."""
        with self._lock:
            self._note("committed", self.groups.index(group))
            group.state = "committed"
            self.confirmed_count += len(group.publishes)

    def defining(self, name: str, *, delete: bool = False) -> None:
        """About to declare or delete a durable queue."""
        with self._lock:
            self._note("delete" if delete else "declare", name)
            self.definitions[name] = "leaving" if delete else "asked"

    def defined(self, name: str) -> None:
        """The -ok for the last `defining` has come."""
        with self._lock:
            self._note("ok", name)
            self.definitions[name] = "gone" if self.definitions[name] == "leaving" else "there"

    def flush(self) -> None:
        """Hand the file to the system, so that it can be read as evidence."""
        with self._lock:
            self._file.flush()

    # What follows from it.

    def _surely_marked(self, copy: Copy, end: End) -> bool:
        """It was delivered, and the broker may not have forgotten that."""
        at = self.received.get(copy)
        return at is not None and (end == "kill" or at < self._horizon[""])

    def _surely_gone(self, copy: Copy) -> bool:
        """Its ack was followed on the same channel by a publish that is confirmed."""
        ack = self.acked.get(copy)
        return ack is not None and ack[0] < self._horizon[ack[1]]

    def wanted(self, queue: str) -> tuple[set[bytes], set[bytes]]:
        """What must be in the queue, and what may be there (which includes the former)."""
        must: set[bytes] = set()
        may: set[bytes] = set()
        grouped = {copy for group in self.groups for copy in group.publishes}
        for body in self.kept.get(queue, ()):
            may.add(body)
            must.add(body)
        for body, sent in self.sent.items():
            copy = (queue, body)
            if queue not in sent.queues or not sent.is_persistent or copy in grouped:
                continue
            if not sent.is_nacked or self.refused_may_stay:
                may.add(body)
            if sent.is_confirmed:
                must.add(body)
        for group in self.groups:
            bodies = {body for place, body in group.publishes if place == queue}
            if group.state in {"asked", "committed"}:
                may |= bodies
            if group.state == "committed":
                must |= bodies
        for place, body in self.acked:
            if place == queue:
                must.discard(body)
                if self._surely_gone((place, body)):
                    may.discard(body)
        self._apply_group_acks(queue, must, may)
        return must, may

    def _apply_group_acks(self, queue: str, must: set[bytes], may: set[bytes]) -> None:
        for group in self.groups:
            bodies = {body for place, body in group.acks if place == queue}
            if group.state in {"asked", "committed"}:
                must -= bodies
            if group.state == "committed":
                may -= bodies

    # The judgement.

    def judge(self, found: Found, *, end: End) -> list[str]:
        """Compare what is in the queues after a restart with what is known; one line each."""
        violations = list(self.complaints)
        for queue, messages in found.items():
            violations += self._judge_queue(queue, messages, end)
        violations += self._judge_groups(found)
        self.flush()
        return violations

    def _judge_queue(
        self, queue: str, messages: Sequence[tuple[bytes, bool]], end: End
    ) -> Iterable[str]:
        bodies = [body for body, _ in messages]
        there = set(bodies)
        must, may = self.wanted(queue)
        if len(there) < len(bodies):
            yield f"{queue}: {len(bodies) - len(there)} messages are there twice"
        if lost := must - there:
            yield f"{queue}: {len(lost)} promised messages are gone: {some(lost)}"
        extra = there - may
        if unknown := {body for body in extra if body not in self.sent and body not in self._ever}:
            yield f"{queue}: {len(unknown)} that nobody published: {some(unknown)}"
        if back := extra - unknown:
            yield f"{queue}: {len(back)} that had gone or never were to last: {some(back)}"
        yield from self._judge_order(queue, bodies)
        yield from self._judge_marks(queue, messages, end)

    def _judge_order(self, queue: str, bodies: list[bytes]) -> Iterable[str]:
        before = self.kept.get(queue, [])
        old = set(before)
        there = set(bodies)
        if [body for body in bodies if body in old] != [body for body in before if body in there]:
            yield f"{queue}: what was there before has changed its order"
        by_publisher: dict[bytes, list[int]] = defaultdict(list)
        for body in bodies:
            publisher, _, number = body.rpartition(b":")
            by_publisher[publisher].append(int(number) if number.isdigit() else -1)
        for publisher, numbers in by_publisher.items():
            if numbers != sorted(numbers):
                yield f"{queue}: the order of {publisher!r} is broken"

    def _judge_marks(
        self, queue: str, messages: Sequence[tuple[bytes, bool]], end: End
    ) -> Iterable[str]:
        silent = {
            body
            for body, again in messages
            if not again and self._surely_marked((queue, body), end)
        }
        if silent:
            yield f"{queue}: {len(silent)} were delivered before and not told: {some(silent)}"
        untouched = [
            (body, again) for body, again in messages if (queue, body) not in self.received
        ]
        told = [body for body, again in untouched if again]
        allowed = self.on_the_way[queue]
        if len(told) > allowed:
            yield f"{queue}: {len(told)} told as redelivered, not more than {allowed} can be"

    def _judge_groups(self, found: Found) -> Iterable[str]:
        there = {(queue, body) for queue, messages in found.items() for body, _ in messages}
        for number, group in enumerate(self.groups):
            if group.state != "asked":
                continue
            came = [copy in there for copy in group.publishes if copy[0] in found]
            went = [copy not in there for copy in group.acks if copy[0] in found]
            if len({*came, *went}) > 1:
                yield (
                    f"transaction {number} is there in part: {came.count(True)} of {len(came)} "
                    f"publishes, {went.count(True)} of {len(went)} acks"
                )

    def turn_page(self, found: Found) -> None:
        """Go on from what was found: it has been seen, so it stays; the rest is gone for good."""
        with self._lock:
            self._note("judged")
            self._ever.update(self.sent)
            for queue, messages in found.items():
                self.kept[queue] = [body for body, _ in messages]
                self.received.update(((queue, body), self._clock) for body, _ in messages)
            kept = {(queue, body) for queue, bodies in self.kept.items() for body in bodies}
            self.received = {copy: 0 for copy in self.received if copy in kept}
            self.sent.clear()
            self.acked.clear()
            self.groups.clear()
            self.on_the_way.clear()
            self.complaints.clear()
            self._horizon.clear()


def some(bodies: Iterable[bytes]) -> str:
    """A few of them, for a message to a human."""
    ordered = sorted(bodies)
    dots = ", …" if len(ordered) > SHOWN else ""
    return ", ".join(body.decode(errors="replace") for body in ordered[:SHOWN]) + dots
