"""What clients of dead letters, delays, de-duplication and streams know, and what must follow.

The same idea as in `ledger`, for promises that are not about one queue alone: each record is
written by one client at a time, before it acts, and is judged after a restart from what is found.
It knows nothing of how the broker works.

Spec: DLX-08, REDELIVER-10, DELAY-16, DELAY-17, DUP-08, DUP-10, STREAM-02, STREAM-03, DURABLE-16
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from tests.fault.ledger import some

# The broker counts in whole milliseconds, and so may round what we have measured.
EARLY_TOLERANCE_S: Final = 0.005


class Record:
    """Publishes and their confirms; the file is the evidence."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("ab", buffering=1024 * 1024)
        self._clock = 0
        # Up to where a confirm of this life speaks.
        self._horizon = 0
        self.sent: dict[bytes, int] = {}
        self.promised: set[bytes] = set()
        self.complaints: list[str] = []

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def note(self, *words: object) -> int:
        """Write a line; returns its number."""
        self._clock += 1
        self._file.write(" ".join(map(str, (self._clock, *words))).encode() + b"\n")
        return self._clock

    def sending(self, name: bytes) -> None:
        """About to publish, perhaps again."""
        self.sent[name] = self.note("send", name)

    def confirmed(self, names: Iterable[bytes]) -> None:
        """These were acked by the broker."""
        for name in names:
            self.note("confirmed", name)
            self.promised.add(name)
            self._horizon = max(self._horizon, self.sent[name])

    def refused(self, names: Iterable[bytes]) -> None:
        """These were nacked, for which there is no reason on a healthy disk."""
        self.complaints += [f"{name!r} was nacked" for name in names]

    def next_life(self) -> None:
        """The broker is another process now; whatever a channel said is over."""
        self.note("judged")
        self._file.flush()
        self._horizon = 0
        self.complaints.clear()

    def _general(self, place: str, found: Sequence[bytes]) -> Iterator[str]:
        if twice := [name for name, count in Counter(found).items() if count > 1]:
            yield f"{place}: {len(twice)} messages are there twice: {some(twice)}"
        if unknown := set(found) - self.sent.keys():
            yield f"{place}: {len(unknown)} that nobody published: {some(unknown)}"


class DeadLetters(Record):
    """A work queue with a delivery limit, and the queue of its dead letters."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.settled: dict[bytes, tuple[int, str]] = {}
        self.ever_rejected: set[bytes] = set()
        self.ever_received: set[bytes] = set()
        self.dead: set[bytes] = set()
        self.gone: set[bytes] = set()
        self.died = 0

    def received(self, name: bytes) -> None:
        """A delivery from the work queue."""
        self.note("received", name)
        self.ever_received.add(name)
        if name in self.settled or name in self.gone:
            self.complaints.append(f"{name!r} came again after it was settled")
        if name in self.dead:
            self.complaints.append(f"{name!r} was dead and came again")

    def settling(self, name: bytes, how: str) -> None:
        """About to "ack" or "reject" without requeue."""
        self.settled[name] = (self.note(how, name), how)
        if how == "reject":
            self.ever_rejected.add(name)

    def judge(
        self, work: Sequence[bytes], dead: Mapping[bytes, str] | Sequence[bytes]
    ) -> list[str]:
        """What is wrong with what is in the two queues; `dead` with the reasons of death."""
        alive, dead_lettered = set(work), set(dead)
        found = list(self.complaints)
        found += self._general("the work queue", work)
        found += self._general("the dead letters", list(dead))
        surely = {
            kind: {n for n, (at, how) in self.settled.items() if how == kind and at < self._horizon}
            for kind in ("ack", "reject")
        }
        perhaps = {n for n, (_, how) in self.settled.items() if how == "ack"}
        gone = surely["ack"] | self.gone
        wrong = {
            "are in both queues": alive & dead_lettered,
            "are in neither queue": (self.promised | self.dead)
            - perhaps
            - gone
            - alive
            - dead_lettered,
            "had gone and are there": gone & (alive | dead_lettered),
            "were dead and are not any more": (self.dead - gone) - dead_lettered,
            "were rejected and are not dead": surely["reject"] - dead_lettered,
            "are dead and were never delivered": dead_lettered - self.ever_received,
        }
        if isinstance(dead, Mapping):
            expired = {name for name, reason in dead.items() if reason == "expired"}
            wrong["are dead and were never delivered"] -= expired
            blamed = {name for name, reason in dead.items() if reason == "rejected"}
            wrong["are said to be rejected"] = blamed - self.ever_rejected
        found += [f"dead letters: {len(n)} {what}: {some(n)}" for what, n in wrong.items() if n]
        return found

    def turn_page(self, work: Iterable[bytes], dead: Iterable[bytes], *, drained: bool) -> None:
        """Go on from what was found; `drained`: the dead letters were acked for sure."""
        alive, dead_lettered = set(work), set(dead)
        # The judge has seen all of it, and what it has seen is a promise.
        self.ever_received |= alive
        self.promised |= alive | dead_lettered
        self.gone |= self.sent.keys() - alive - dead_lettered
        self.promised -= self.gone
        self.died += len(dead_lettered - self.dead)
        self.dead = set() if drained else dead_lettered
        if drained:
            self.gone |= dead_lettered
            self.promised -= dead_lettered
        self.settled.clear()
        self.next_life()


class Delays(Record):
    """A delaying exchange, and the queue behind it; times are seconds since the epoch."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.due: dict[bytes, float] = {}
        self.acked: dict[bytes, int] = {}
        self.seen: set[bytes] = set()
        self.gone: set[bytes] = set()

    def delaying(self, name: bytes, due: float) -> None:
        """About to publish what may not arrive before `due`."""
        self.note("due", name, due)
        self.due[name] = due
        self.sending(name)

    def received(self, name: bytes, now: float, *, redelivered: bool) -> None:
        """A delivery."""
        self.note("received", name, now, redelivered)
        due = self.due.get(name)
        if due is None:
            self.complaints.append(f"delayed: {name!r} was never published")
        elif now < due - EARLY_TOLERANCE_S:
            self.complaints.append(f"delayed: {name!r} came {due - now:.3f} s early")
        if name in self.seen and not redelivered:
            self.complaints.append(f"delayed: {name!r} came twice")
        if name in self.acked or name in self.gone:
            self.complaints.append(f"delayed: {name!r} came again after its ack")
        self.seen.add(name)

    def acking(self, name: bytes) -> None:
        """About to ack."""
        self.acked[name] = self.note("ack", name)

    def crashed(self) -> None:
        """The broker is up again. What was acked for sure stays away, the rest may come again."""
        self.gone |= {name for name, at in self.acked.items() if at < self._horizon}
        self.promised -= self.acked.keys()
        self.acked.clear()
        self.seen.clear()

    def awaited(self, now: float) -> set[bytes]:
        """What must have arrived by `now`."""
        return {name for name in self.promised if self.due[name] <= now}

    def judge(self, found: Sequence[bytes], now: float) -> list[str]:
        """What is wrong when `found` is all that has come by `now`."""
        violations = [*self.complaints, *self._general("delayed", found)]
        if lost := self.awaited(now) - set(found):
            violations.append(f"delayed: {len(lost)} have not arrived: {some(lost)}")
        return violations

    def turn_page(self, found: Iterable[bytes]) -> None:
        """What was found has been acked for sure; what is not due yet goes on."""
        self.gone |= set(found)
        self.promised -= self.gone
        self.acked.clear()
        self.seen.clear()
        self.next_life()


class Keys(Record):
    """A queue that knows the keys of the past; the name of a message is its key."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.drained: set[bytes] = set()
        self.repeats = 0

    def sending(self, name: bytes) -> None:
        """About to publish, perhaps again."""
        self.repeats += name in self.sent
        super().sending(name)

    def unsettled(self) -> list[bytes]:
        """What a publisher that comes back has to publish again."""
        return [name for name in self.sent if name not in self.promised]

    def judge(self, found: Sequence[bytes]) -> list[str]:
        """What is wrong with what is in the queue."""
        violations = [*self.complaints, *self._general("keys", found)]
        there = set(found)
        if lost := self.promised - self.drained - there:
            violations.append(f"keys: {len(lost)} promised messages are gone: {some(lost)}")
        if again := self.drained & there:
            violations.append(f"keys: {len(again)} passed a second time: {some(again)}")
        return violations

    def turn_page(self, found: Iterable[bytes], *, drained: bool) -> None:
        """Go on from what was found."""
        if drained:
            self.drained |= set(found)
        self.next_life()


class Offsets(Record):
    """A stream without retention: everything it ever had, by its offset."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.names: list[bytes] = []
        self.live: dict[int, bytes] = {}
        self._last_live = -1

    def received(self, offset: int, name: bytes) -> None:
        """A delivery to a consumer that reads on from where it began."""
        self.note("received", offset, name)
        if self.live and offset != self._last_live + 1:
            self.complaints.append(f"stream: {offset} came after {self._last_live}")
        self._last_live = offset
        self.live[offset] = name

    def judge(self, start: int, found: Sequence[tuple[int, bytes]]) -> list[str]:
        """What is wrong when the stream has `found` from offset `start` to its end."""
        names = [name for _, name in found]
        violations = [*self.complaints, *self._general("stream", names)]
        if [offset for offset, _ in found] != list(range(start, start + len(found))):
            violations.append(f"stream: the offsets from {start} on have gaps or doubles")
        known = self.names[start:]
        if names[: len(known)] != known:
            violations.append(f"stream: it has changed behind offset {start}")
        whole = [*self.names[:start], *names]
        if twice := set(self.names[:start]) & set(names):
            violations.append(f"stream: {len(twice)} have two offsets: {some(twice)}")
        if lost := self.promised - set(whole):
            violations.append(f"stream: {len(lost)} promised messages are gone: {some(lost)}")
        moved = {
            name
            for offset, name in self.live.items()
            if name in self.promised and (offset >= len(whole) or whole[offset] != name)
        }
        if moved:
            violations.append(f"stream: {len(moved)} have another offset now: {some(moved)}")
        violations += self._order(names)
        return violations

    @staticmethod
    def _order(names: Iterable[bytes]) -> Iterator[str]:
        last: dict[bytes, int] = {}
        for name in names:
            publisher, _, number = name.rpartition(b":")
            if int(number) <= last.get(publisher, 0):
                yield f"stream: the order of {publisher!r} is broken at {number!r}"
            last[publisher] = int(number)

    def turn_page(self, start: int, found: Iterable[tuple[int, bytes]]) -> None:
        """Go on from what was found: a stream loses nothing of it any more."""
        self.names[start:] = [name for _, name in found]
        self.live.clear()
        self._last_live = -1
        self.next_life()
