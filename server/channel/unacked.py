"""The outstanding deliveries of one channel, by delivery tag.

They are kept as they came: in runs of consecutive tags to one consumer. An ack run that meets a
delivery run is then a slice, so acking in ranges costs no work per message here (decision 0001). A
dict from tag to message, the obvious choice, would cost an insertion for each delivery and a
removal for each ack.

What holds:

- Runs are in the order of their tags and do not overlap. `Run.live` counts what is not None in it;
  a run without live entries goes at once.
- Acks in order cut the front of the first run. Acks out of order leave holes (None), and only then
  does anybody look for holes.
- A tag is taken once. `take_range` returns what it took, and the first tag that is not outstanding:
  what stood before that tag has been taken, as single acks would have done it.
- All messages of a run came from one queue, and at one time where there is a consumer timeout: so a
  run is settled, given back and timed as a whole.
- `is_dense` says that LSNs follow each other as the tags do. The ledger can then write a range
  instead of numbers; who does not know says no.

A refused commit puts deliveries back under their old tags (`restore`, TX-10), as old as they were.

What it costs: cutting the front of a list moves what is behind it, so a run has at most
`RUN_MESSAGES`. Finding a tag in the middle is a bisection over runs. Settling very many runs at
once is cut by `take_first`, where a run itself counts for `RUN_WORK` messages (LIMIT-23).
"""

from __future__ import annotations

from bisect import bisect_right
from typing import TYPE_CHECKING, Final

from vouchmq.server.broker.paging.pager import MESSAGE_OVERHEAD_OCTETS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from vouchmq.server.broker.message import Message
    from vouchmq.server.broker.queues.api import Queue
    from vouchmq.server.channel.consumer import Consumer

# A run stays short enough that cutting its front is a small move.
RUN_MESSAGES: Final = 512
# What a run costs beside its messages, when it is settled.
RUN_WORK: Final = 16
# So many messages of a run are looked at to tell about how large all are.
SAMPLE_MESSAGES: Final = 8


class Run:
    """Deliveries `first`, `first + 1`, … to one consumer (None: got by basic.get)."""

    __slots__ = ("consumer", "first", "is_dense", "live", "messages", "queue", "since_ms")

    def __init__(
        self,
        first: int,
        messages: list[Message | None],
        consumer: Consumer | None,
        queue: Queue,
        since_ms: int = 0,
        *,
        is_dense: bool = False,
    ) -> None:
        self.first = first
        self.is_dense = is_dense  # their LSNs are known to follow each other
        self.since_ms = since_ms  # when they were written, 0: that does not matter (CONS-70)
        self.messages = messages
        self.live = len(messages)
        self.consumer = consumer
        self.queue = queue


class UnackedBatch:
    """Deliveries taken out together: the messages of one run, with their tags."""

    __slots__ = ("consumer", "is_dense", "messages", "queue", "since_ms", "tags")

    def __init__(
        self, run: Run | UnackedBatch, tags: range | list[int], messages: list[Message]
    ) -> None:
        self.tags = tags
        self.since_ms: int = run.since_ms
        self.messages = messages
        self.consumer: Consumer | None = run.consumer
        self.queue: Queue = run.queue
        self.is_dense: bool = (
            run.is_dense and len(messages) == len(tags) and not isinstance(tags, list)
        )

    def split_behind(self, tag: int) -> tuple[UnackedBatch, UnackedBatch]:
        """Those up to a tag, and the others; either may be empty."""
        at = bisect_right(self.tags, tag)
        front = UnackedBatch(self, self.tags[:at], self.messages[:at])
        return front, UnackedBatch(self, self.tags[at:], self.messages[at:])


class Unacked:
    """Outstanding deliveries in the order of their tags."""

    __slots__ = ("_runs", "count")

    def __init__(self) -> None:
        self._runs: list[Run] = []
        self.count = 0

    def add(
        self,
        first: int,
        messages: list[Message],
        consumer: Consumer | None,
        queue: Queue,
        since_ms: int = 0,
        *,
        is_dense: bool = False,
    ) -> None:
        """Enter deliveries with the tags `first`, `first + 1`, …

        `is_dense`: their LSNs follow each other, too; who does not know says no.
        """
        self.count += len(messages)
        if self._runs:
            last = self._runs[-1]
            if (
                last.consumer is consumer
                and last.queue is queue
                and last.since_ms == since_ms
                and last.first + len(last.messages) == first
                and len(last.messages) + len(messages) <= RUN_MESSAGES
            ):
                if last.is_dense:
                    before = last.messages[-1]
                    last.is_dense = (
                        is_dense
                        and before is not None
                        and before[2] >> 1 == (messages[0][2] >> 1) - 1
                    )
                last.messages += messages
                last.live += len(messages)
                return
        entries: list[Message | None] = [*messages]
        self._runs.append(Run(first, entries, consumer, queue, since_ms, is_dense=is_dense))

    @property
    def oldest_tag(self) -> int:
        """The lowest tag that is outstanding; 0 when none is."""
        return first_live(self._runs[0]) if self._runs else 0

    def firsts(self) -> list[tuple[Consumer | None, int, int]]:
        """Whose the outstanding deliveries are, the first tag and when written, run by run."""
        return [(run.consumer, first_live(run), run.since_ms) for run in self._runs]

    def times(self) -> list[tuple[Consumer | None, Queue, int]]:
        """Whose the outstanding deliveries are and when they were written, run by run."""
        return [(run.consumer, run.queue, run.since_ms) for run in self._runs]

    def take_oldest(self, tag: int) -> Run | None:
        """Take the oldest run if it is this delivery alone, as of a consumer that takes one."""
        runs = self._runs
        if not runs:
            return None
        run = runs[0]
        if run.first != tag or len(run.messages) != 1:
            return None
        self.count -= 1
        del runs[0]
        return run

    def take_range(self, first: int, last: int) -> tuple[list[UnackedBatch], int]:
        """Take the deliveries `first` … `last`.

        Returns:
            what was taken, and the first tag that is not outstanding (0: all were). What stood
            before that tag has been taken.
        """
        taken: list[UnackedBatch] = []
        while first <= last:
            index = self._index(first)
            if index < 0:
                return taken, first
            run = self._runs[index]
            at = first - run.first
            count = min(last - first + 1, len(run.messages) - at)
            messages = run.messages[at : at + count]
            if run.live != len(run.messages) and None in messages:
                count = messages.index(None)
                if not count:
                    return taken, first
                messages = messages[:count]
            self._cut(index, at, count)
            # Holes were excluded just above.
            taken.append(UnackedBatch(run, range(first, first + count), messages))  # type: ignore[arg-type]
            first += count
        return taken, 0

    def take_up_to(self, tag: int) -> list[UnackedBatch] | None:
        """Take everything with a tag up to `tag`, which must itself be outstanding (ACK-05)."""
        index = self._index(tag)
        if index < 0:
            return None
        run = self._runs[index]
        at = tag - run.first
        if run.messages[at] is None:
            return None
        taken = [whole(before) for before in self._runs[:index]]
        upto = run.messages[: at + 1]
        part = Run(run.first, upto, run.consumer, run.queue, run.since_ms, is_dense=run.is_dense)
        if run.live != len(run.messages):
            part.live -= part.messages.count(None)
        taken.append(whole(part))
        self.count -= sum(len(entry.messages) for entry in taken)
        del run.messages[: at + 1]
        run.first += at + 1
        run.live -= part.live
        del self._runs[: index if run.live else index + 1]
        return taken

    def most_up_to(self, tag: int) -> int:
        """Not more deliveries than so many have a tag up to this one."""
        return min(self.count, tag - self._runs[0].first + 1) if self._runs else 0

    def take_first(self, last: int, work: int) -> list[UnackedBatch]:
        """Take some of the oldest, whole runs as a rule, none with a tag beyond `last`.

        Args:
            last: an outstanding tag
            work: how many, when a run counts for some itself (LIMIT-23)

        Returns:
            nothing when no such tag is outstanding any more
        """
        count = 0
        for run in self._runs:
            if work <= 0 or run.first + len(run.messages) - 1 > last:
                break
            work -= run.live + RUN_WORK
            count += 1
        if not count:
            has_more = self._runs and self._runs[0].first <= last
            return (has_more and self.take_up_to(last)) or []
        taken = [whole(run) for run in self._runs[:count]]
        del self._runs[:count]
        self.count -= sum(len(entry.messages) for entry in taken)
        return taken

    def take_next(self, tag: int, last: int, work: int) -> list[UnackedBatch]:
        """Take whole runs that begin behind a tag and not behind another, oldest first.

        Args:
            tag: behind which they begin
            last: the highest tag with which one may begin
            work: how many, when a run counts for some itself (LIMIT-23)
        """
        runs = self._runs
        start = end = bisect_right(runs, tag, key=first_tag)
        while work > 0 and end < len(runs) and runs[end].first <= last:
            work -= runs[end].live + RUN_WORK
            end += 1
        taken = [whole(run) for run in runs[start:end]]
        del runs[start:end]
        self.count -= sum(len(entry.messages) for entry in taken)
        return taken

    @property
    def last_tag(self) -> int:
        """The highest outstanding tag, 0 for none."""
        if not self._runs:
            return 0
        run = self._runs[-1]
        return max(at for at, message in enumerate(run.messages, run.first) if message is not None)

    def is_outstanding(self, tag: int) -> bool:
        """Whether this tag is outstanding."""
        index = self._index(tag)
        return index >= 0 and self._runs[index].messages[tag - self._runs[index].first] is not None

    def take_all(self) -> list[UnackedBatch]:
        """Take everything, oldest first."""
        taken = [whole(run) for run in self._runs]
        self._runs.clear()
        self.count = 0
        return taken

    def take_of(self, consumer: Consumer) -> list[UnackedBatch]:
        """Take everything delivered to one consumer."""
        mine = [run for run in self._runs if run.consumer is consumer]
        self._runs = [run for run in self._runs if run.consumer is not consumer]
        taken = [whole(run) for run in mine]
        self.count -= sum(len(entry.messages) for entry in taken)
        return taken

    def restore(self, entries: list[UnackedBatch]) -> None:
        """Enter taken deliveries again under their old tags, as old as they were (TX-10)."""
        for entry in entries:
            self.count += len(entry.messages)
            if self._restore_whole(entry):
                continue
            for tag, message in zip(entry.tags, entry.messages, strict=True):
                index = bisect_right(self._runs, tag, key=first_tag)
                run = self._runs[index - 1] if index else None
                if run is not None and tag < run.first + len(run.messages):
                    run.messages[tag - run.first] = message
                    run.live += 1
                elif run is not None and continues(run, entry, tag):
                    run.messages.append(message)
                    run.live += 1
                    run.is_dense = False
                else:
                    new = Run(tag, [message], entry.consumer, entry.queue, entry.since_ms)
                    self._runs.insert(index, new)

    def _restore_whole(self, entry: UnackedBatch) -> bool:
        """Enter deliveries as a run of their own, unless their place is between those of a run.

        A rollback of a million acks costs thus as much as their runs, not their messages.
        """
        tags = entry.tags
        if not isinstance(tags, range):
            return False
        index = bisect_right(self._runs, tags.start, key=first_tag)
        before = self._runs[index - 1] if index else None
        if before is not None and tags.start < before.first + len(before.messages):
            return False
        if index < len(self._runs) and self._runs[index].first < tags.stop:
            return False
        if (
            before is not None
            and continues(before, entry, tags.start)
            and len(before.messages) + len(tags) <= RUN_MESSAGES
        ):
            before.messages += entry.messages
            before.live += len(tags)
            before.is_dense = False
            return True
        messages: list[Message | None] = [*entry.messages]
        new = Run(
            tags.start,
            messages,
            entry.consumer,
            entry.queue,
            entry.since_ms,
            is_dense=entry.is_dense,
        )
        self._runs.insert(index, new)
        return True

    @property
    def octets(self) -> int:
        """About what it takes in memory; a few messages of each run are looked at."""
        return sum(octets_of(run.messages) * run.live // len(run.messages) for run in self._runs)

    def runs(self) -> list[Run]:
        """The runs of deliveries; only to be looked at."""
        return list(self._runs)

    def live(self) -> list[UnackedBatch]:
        """Everything outstanding, without taking it."""
        return [whole(run) for run in self._runs]

    def _index(self, tag: int) -> int:
        runs = self._runs
        if not runs:
            return -1
        run = runs[0]
        index = 0
        if tag >= run.first + len(run.messages):
            index = bisect_right(runs, tag, key=first_tag) - 1
            run = runs[index]
        return index if run.first <= tag < run.first + len(run.messages) else -1

    def _cut(self, index: int, at: int, count: int) -> None:
        run = self._runs[index]
        run.live -= count
        self.count -= count
        if not run.live:
            del self._runs[index]
        elif at:
            run.messages[at : at + count] = [None] * count
        else:
            del run.messages[:count]
            run.first += count


def octets_of(messages: Sequence[Message | None]) -> int:
    """About what messages take in memory, by a few of them."""
    sample = messages[:: len(messages) // SAMPLE_MESSAGES or 1]
    sizes = [len(one[0]) + MESSAGE_OVERHEAD_OCTETS for one in sample if one is not None]
    return sum(sizes) * len(messages) // len(sizes) if sizes else 0


def first_tag(run: Run) -> int:
    """Sort key of the runs."""
    return run.first


def continues(run: Run, entry: UnackedBatch, tag: int) -> bool:
    """Whether a delivery that was taken out can stand in this run, behind its last one."""
    return (
        run.first + len(run.messages) == tag
        and len(run.messages) < RUN_MESSAGES
        and run.consumer is entry.consumer
        and run.queue is entry.queue
        and run.since_ms == entry.since_ms
    )


def first_live(run: Run) -> int:
    """The lowest outstanding tag of a run."""
    return next(tag for tag, message in enumerate(run.messages, run.first) if message is not None)


def whole(run: Run) -> UnackedBatch:
    """All live entries of a run."""
    if run.live == len(run.messages):
        tags: range | list[int] = range(run.first, run.first + run.live)
        return UnackedBatch(run, tags, run.messages)  # type: ignore[arg-type]
    pairs = [
        (run.first + at, message) for at, message in enumerate(run.messages) if message is not None
    ]
    return UnackedBatch(run, [tag for tag, _ in pairs], [message for _, message in pairs])
