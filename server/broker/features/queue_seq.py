"""The position of each copy in its queue, for queues that somebody has asked for it.

Copies that were never handed out leave the head in the order in which they came, so their numbers
need not be kept: how many ever came, less those still waiting, is the number of the last one to
leave. Kept are the numbers of what was handed out and may come back, as rows in which LSN and
number grow together. The journal has a note for each row and one for where the others begin.

A queue with priorities numbers its copies in the order of their first leaving. Of a queue that
nobody had asked before, copies that were out already are numbered as they come by. Must not know
consumers.

Spec: SEQ-01, SEQ-02
"""

from __future__ import annotations

from bisect import bisect_right, insort
from struct import Struct
from typing import TYPE_CHECKING, Final

from vouchmq.server.broker.features.feature import Feature
from vouchmq.server.broker.message import lsn_of, seq_of

if TYPE_CHECKING:
    from typing import Self

    from vouchmq.server.broker.features.feature import FeatureContext
    from vouchmq.server.broker.message import Message
    from vouchmq.server.broker.queues.api import HostQueue, NoteLog

# Notes: a letter alone for where fresh copies begin, with an LSN behind it for a row.
SEQUENCE_NOTES: Final = b"s"
_BEGINNING: Final = Struct(">QQQ")
_ROW_KEY: Final = Struct(">cQ")
_ROW: Final = Struct(">QQ")


class Row:
    """Copies with LSNs from `first_lsn` on, of which the first has the number `number`.

    `live` of them are still in the queue. A row of one that `is_alone` never grows.
    """

    __slots__ = ("count", "first_lsn", "is_alone", "live", "number")

    def __init__(self, first_lsn: int, number: int, *, is_alone: bool) -> None:
        self.first_lsn = first_lsn
        self.number = number
        self.count = 0
        self.live = 0
        self.is_alone = is_alone

    @property
    def key(self) -> bytes:
        """The key of its note: the first LSN."""
        return _ROW_KEY.pack(SEQUENCE_NOTES, self.first_lsn)

    @property
    def value(self) -> bytes:
        """The value of its note: the number, and whether it stands for a single message."""
        return _ROW.pack(self.number, self.is_alone)


class QueueSequence(Feature):
    """The numbers of one queue, from when somebody first asked for them.

    Args:
        queue: whose copies they are of
        queue_id: of this incarnation of it
        log: the journal, None when it does not keep the queue
    """

    NOTES = SEQUENCE_NOTES

    __slots__ = (
        *("_dead", "_fresh", "_log", "_mark", "_newest", "_next", "_queue", "_rows"),
        "queue_id",
    )

    def __init__(self, queue: HostQueue, queue_id: int, log: NoteLog | None) -> None:
        self.queue_id = queue_id
        self._queue = queue
        self._log = log
        self._rows: list[Row] = []
        self._dead: list[Row] = []
        self._newest: Row | None = None
        self._mark = queue.ready.mark
        # For copies of which nobody knows when they came: those that are out already.
        self._next = queue.came_count - queue.ready_count - queue.unacked_count + 1
        # Of the first copy above the mark, as far as that has been looked at.
        self._fresh = queue.came_count - self._fresh_count() + 1
        self._note_beginning()

    @classmethod
    def started(cls, queue: HostQueue, context: FeatureContext) -> Self:
        log = context.log if queue.stored else None
        return cls(queue, queue.spec.queue_id or context.unstored_id(queue), log)

    @classmethod
    def is_noted(cls, notes: dict[bytes, bytes]) -> bool:
        return SEQUENCE_NOTES in notes

    # Coming and going

    def on_take(self, batch: list[Message]) -> list[Message]:
        """A batch was taken from the head; all of it may be handed out."""
        queue = self._queue
        at = 0
        if queue.levels is None:
            at = bisect_right(batch, self._mark, key=seq_of)
            if at < len(batch):
                last = queue.came_count - queue.ready_count
                self._remember(batch[at:], last - (len(batch) - at) + 1)
                self._mark = batch[-1][2]
                self._fresh = last + 1
            olds = batch[:at]
        else:
            olds = batch
        has_news = at < len(olds) or at < len(batch)
        for message in olds:
            if self._row_of(lsn_of(message[2])) is None:
                has_news = True
                self._remember([message], self._next, is_alone=True)
                self._next += 1
        if has_news:
            self._note_beginning()
        return batch

    def on_removed(self, messages: list[Message]) -> None:
        """These have left the queue for good."""
        for message in messages:
            row = self._row_of(lsn_of(message[2]))
            if row is not None:
                row.live -= 1
                if not row.live:
                    self._dead.append(row)

    def on_removal_undone(self, messages: list[Message]) -> None:
        """These had gone, which was refused (TX-09)."""
        for message in messages:
            row = self._row_of(lsn_of(message[2]))
            if row is not None:
                row.live += 1

    def on_written(self) -> None:
        """What has gone is on disk, and does not come back."""
        dead, self._dead = self._dead, []
        for row in dead:
            if row is self._newest:
                self._dead.append(row)
            elif not row.live:
                self._forget(row)

    def on_write_refused(self, first_lsn: int) -> None:
        """A block was refused, and the notes in it."""
        del first_lsn
        self._note_beginning()
        for row in self._rows:
            self._note(row)

    def on_purged(self) -> None:
        """Nothing is ready any more."""
        if not self._queue.unacked_count:
            for row in list(self._rows):
                self._forget(row)
            self._newest = None
            self._dead = []
        self._fresh = self._queue.came_count + 1
        self._note_beginning()

    def numbers_of(self, messages: list[Message]) -> list[int]:
        """The numbers of copies that have been handed out."""
        numbers: list[int] = []
        row: Row | None = None
        for message in messages:
            lsn = lsn_of(message[2])
            if row is None or not 0 <= lsn - row.first_lsn < row.count:
                row = self._row_of(lsn)
            numbers.append(row.number + lsn - row.first_lsn if row is not None else 0)
        return numbers

    def _row_of(self, lsn: int) -> Row | None:
        at = bisect_right(self._rows, lsn, key=first_lsn_of) - 1
        if at < 0:
            return None
        row = self._rows[at]
        return row if lsn - row.first_lsn < row.count else None

    def _remember(self, messages: list[Message], number: int, *, is_alone: bool = False) -> None:
        row = self._newest
        for message in messages:
            lsn = lsn_of(message[2])
            if (
                row is None
                or row.is_alone
                or is_alone
                or lsn != row.first_lsn + row.count
                or number != row.number + row.count
            ):
                row = self._begin_row(lsn, number, is_alone=is_alone)
            row.count += 1
            row.live += 1
            number += 1

    def _begin_row(self, lsn: int, number: int, *, is_alone: bool) -> Row:
        row = self._newest = Row(lsn, number, is_alone=is_alone)
        insort(self._rows, row, key=first_lsn_of)
        self._note(row)
        return row

    def _forget(self, row: Row) -> None:
        at = bisect_right(self._rows, row.first_lsn, key=first_lsn_of) - 1
        if at >= 0 and self._rows[at] is row:
            del self._rows[at]
            if self._log is not None:
                self._log.unnote(self.queue_id, row.key)

    # Restart

    def recall(self, key: bytes) -> bytes | None:
        """The value of a note by now; None: it is not wanted any more."""
        if key == SEQUENCE_NOTES:
            return self._beginning()
        if len(key) != _ROW_KEY.size:
            return None
        at = bisect_right(self._rows, _ROW_KEY.unpack(key)[1], key=first_lsn_of) - 1
        return self._rows[at].value if at >= 0 and self._rows[at].key == key else None

    def restore(self, notes: dict[bytes, bytes]) -> None:
        """What had been noted before a restart; the messages are in place."""
        lsn, self._fresh, self._next = _BEGINNING.unpack(notes[SEQUENCE_NOTES])
        queue = self._queue
        self._mark = lsn * 2 + 1
        self._rows = []
        for key, value in sorted(notes.items()):
            if key.startswith(SEQUENCE_NOTES) and len(key) == _ROW_KEY.size:
                number, is_alone = _ROW.unpack(value)
                row = Row(_ROW_KEY.unpack(key)[1], number, is_alone=bool(is_alone))
                self._rows.append(row)
        ends = [row.first_lsn for row in self._rows[1:]] + [lsn + 1]
        for row, end in zip(self._rows, ends, strict=False):
            # Up to the next row; how many of them are left is not known.
            row.count = row.live = 1 if row.is_alone else max(1, end - row.first_lsn)
        if queue.levels is None:
            queue.came_count = self._fresh - 1 + self._fresh_count()
        self._note_beginning()

    def _fresh_count(self) -> int:
        """Copies that are ready and above the mark."""
        line = self._queue.ready
        olds = sum(1 for message in line.in_memory() if message[2] <= self._mark)
        if line.backlog is not None:
            olds += len(line.backlog.stored_up_to(lsn_of(self._mark)))
        return line.count - olds

    def _beginning(self) -> bytes:
        """Copies above the LSN are fresh, and the first of them has the number behind it."""
        return _BEGINNING.pack(lsn_of(self._mark), self._fresh, self._next)

    def _note_beginning(self) -> None:
        if self._log is not None:
            self._log.note(self.queue_id, SEQUENCE_NOTES, self._beginning())

    def _note(self, row: Row) -> None:
        if self._log is not None:
            self._log.note(self.queue_id, row.key, row.value)


def first_lsn_of(row: Row) -> int:
    """The first LSN of a row, to sort rows by."""
    return row.first_lsn
