"""The turn: what one turn of the event loop leaves to do, gathered and done once.

`Turn.run` does, in this order:

    put-off work                        `later`
    the delivery of a message alone     `Queue.mark_ahead`, if it is sure to follow
    the journal, one block              `Writer.write`
    one dispatch per queue that asked   `wants_dispatch`, bounded by `DISPATCH_S`
    confirms that wait for nothing      `wants_release`
    what the deliveries left to log     `Writer.write` again, if a queue was dispatched
    one write per socket                `wants_flush`
    a sync, if somebody waits for one   `Writer.sync`, behind the sockets

The order is the invariant. The journal stands before the deliveries, so that a message which the
disk refuses has gone to nobody (CONF-12), and again before the sockets, so that what a client has
been told is at least with the operating system. A queue may give dead letters or delayed messages
to another one of the same turn: then it stands before that one too. The ledger is flushed before
the journal, so that no settlement is on disk whose evidence is not. Who has to speak within a call,
such as basic.get, has `write_first` note that the journal goes before the socket.

What was tried: dispatching first and writing once, as the cheapest order. Then a message of a
failed write could be on its way to a consumer already. Calling it back would mean searching
outboxes and unacked lists; keeping it, a third kind of message, neither stored nor transient
(decision 0003).

What it costs: a second small block in turns that deliver, which is within the noise of throughput
and latency there. A message that comes alone would notice it most, and needs none: the first block
says that it is delivered, as nothing can come between (`Queue.mark_ahead`). What a turn causes anew
is left to the next one, so one chain of causes can take several turns. A bug in one queue or
channel is reported and stops no other.

The sync comes last, and if something was said, when the sockets have it: waking the helper, or
waiting for the disk, would keep deliveries waiting that need no sync. Of a large block it begins
with the write, beside everything else.

No timer waits for a batch to fill: a turn is as large as what came in meanwhile. `watermark` is
told by `synced`, between turns; queues that wait for it (`waits_for_sync`) are woken then.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable

    from vouchmq.server.broker.queues.api import Queue
    from vouchmq.server.connection.outbox import Outbox
    from vouchmq.server.runtime.flow import FlowControl


# So long queues dispatch in one turn; those that come too late are first in the next (LIMIT-23).
DISPATCH_S: Final = 0.01


class Releases(Protocol):
    """Something that has confirms to say."""

    def release(self, watermark: int) -> bool:
        """Say what is true up to `watermark`; False while more of it has to wait."""


class Flushed(Protocol):
    """Who has evidence of what clients are about to be told."""

    def flush(self) -> None:
        """Hand it to the operating system."""


class Writer(Protocol):
    """Who hands the journal's buffer to the disk, see `journal_writer.py`."""

    @property
    def wants_sync(self) -> bool:
        """Whether a sync should begin."""

    @property
    def has_unwritten(self) -> bool:
        """Whether messages have come that the disk has not been asked to take."""

    def write(self) -> None:
        """Write what is buffered; a turn is to follow, or `sync`."""

    def sync(self, *, has_sent: bool = False) -> None:
        """Begin a sync if one is wanted; it may have ended with the call.

        Args:
            has_sent: clients have just been sent something
        """

    def write_through(self, lsn: int) -> bool:
        """Have the block with this LSN written now; False if the disk refused it."""

    def storage_failed(self, reason: str) -> None:
        """The disk has failed for good."""


class Turn:
    """Gathers what one loop turn leaves to do.

    Everybody asks the turn for something, also who the writer needs: so the writer comes with
    `start`, when all of the broker is there. What is asked for before waits until then.

    Args:
        call_soon: runs a callable in the next loop turn
        report: told of exceptions that nobody expected, so that one queue's bug stops no other
        clock: monotonic seconds
        flow: told when the loop is idle
        watermark: everything up to this LSN is on disk
    """

    __slots__ = (
        "_awaiting",
        "_call_soon",
        "_clock",
        "_confirming",
        "_is_scheduled",
        "_is_to_flush",
        "_outboxes",
        "_owes_write",
        "_queues",
        "_report",
        "_work",
        "_writer",
        "count",
        "delivers",
        "flow",
        "ledger",
        "observers",
        "watermark",
    )

    def __init__(
        self,
        call_soon: Callable[[Callable[[], None]], object],
        report: Callable[[BaseException], None],
        clock: Callable[[], float],
        flow: FlowControl,
        watermark: int = 0,
    ) -> None:
        self.flow = flow
        self._call_soon = call_soon
        self._clock = clock
        self._writer: Writer | None = None
        self._report = report
        self._is_scheduled = True  # by `start`
        self._is_to_flush = False  # somebody is at work who will `flush` at the end
        self.delivers = True
        self._owes_write = False
        self._work: list[Callable[[], None]] = []
        self._queues: list[Queue] = []
        self._awaiting: dict[Queue, None] = {}
        self._confirming: dict[Releases, None] = {}
        self._outboxes: list[Outbox] = []
        self.ledger: Flushed | None = None  # while it is on
        self.watermark = watermark
        self.observers: dict[Callable[[], None], None] = {}  # called when a turn is over
        self.count = 0  # of turns so far

    def start(self, writer: Writer) -> None:
        """Everything is there: begin to turn."""
        self._writer = writer
        self._is_scheduled = False
        self.wake()

    def wants_dispatch(self, queue: Queue) -> None:
        """Dispatch this queue in the turn; it asks only once."""
        self._queues.append(queue)
        if not self._is_scheduled:
            self.wake()

    def waits_for_sync(self, queue: Queue) -> None:
        """Wake this queue when the watermark moves, once: what came to it is not on disk yet."""
        self._awaiting[queue] = None

    def synced(self, watermark: int) -> None:
        """Everything up to this LSN is on disk; a `flush` is to follow."""
        self.watermark = watermark
        self._is_to_flush = True
        if self._awaiting:
            awaiting, self._awaiting = self._awaiting, {}
            for queue in awaiting:
                queue.wake()

    def wants_flush(self, outbox: Outbox) -> None:
        """Write this outbox at the end of the turn; it asks only once."""
        self._outboxes.append(outbox)
        if not (self._is_to_flush or self._is_scheduled):
            self.wake()

    def wants_release(self, confirming: Releases) -> None:
        """Send confirms that wait for nothing in this turn."""
        self._confirming[confirming] = None
        if not self._is_scheduled:
            self.wake()

    def later(self, work: Callable[[], None]) -> None:
        """Put work off to the turn: whatever may not happen inside the present call."""
        self._work.append(work)
        if not self._is_scheduled:
            self.wake()

    def stop_delivering(self) -> None:
        """The journal takes nothing any more: what is handed out now would be forgotten.

        Spec: DURABLE-12
        """
        self.delivers = False

    def write_first(self) -> None:
        """What is about to be said rests on what the journal has only buffered.

        A sync that ends before the turn would let it out too early.
        """
        self._owes_write = True

    def write_owed(self) -> None:
        """Write the journal if something that is about to leave rests on it; the ledger first."""
        if self.ledger is not None:
            self.ledger.flush()
        if self._owes_write:
            self._owes_write = False
            self._write()
            if self._writer is not None and self._writer.wants_sync:
                self.wake()

    def write_through(self, lsn: int) -> bool:
        """Have the block with this LSN written now; False if the disk refused it."""
        return self._writer is not None and self._writer.write_through(lsn)

    def storage_failed(self, reason: str) -> None:
        """What is stored cannot be read back; before the start that ends the start."""
        if self._writer is not None:
            self._writer.storage_failed(reason)

    def _write(self) -> None:
        if self._writer is not None:
            self._writer.write()

    def wake(self) -> None:
        """See to it that a turn is run."""
        if not self._is_scheduled:
            self._is_scheduled = True
            self._call_soon(self.run)

    def run(self) -> None:
        """The turn. What it causes anew is left to the next one."""
        self._is_scheduled = False
        self._is_to_flush = True
        self.count += 1
        flow = self.flow
        if flow.idle_since:
            flow.woke()
        try:
            self._run()
        finally:
            self._is_to_flush = False
        has_sent = bool(self._outboxes)
        is_out = self.flush()
        if self.observers:
            # Before the sync, which may be waited for here: a shared log takes as long again.
            for observer in list(self.observers):
                self._guard(observer)
        if self._writer is not None and self._writer.wants_sync:
            if is_out:
                self._writer.sync(has_sent=has_sent)
            else:
                # The loop hands to the sockets what it was given only when all callbacks have run.
                self._call_soon(self._writer.sync)
        if flow.waiting:
            flow.rests()

    def _run(self) -> None:
        """Everything before the sockets."""
        if self._work:
            work, self._work = self._work, []
            for job in work:
                self._guard(job)
        self._owes_write = False
        if len(self._queues) == 1 and self.delivers:
            self._guard(self._queues[0].mark_ahead)
        self._write()
        queues, self._queues = self._queues, []
        if queues and self.delivers:
            self._dispatch(queues)
        if self._confirming:
            confirming, self._confirming = self._confirming, {}
            for channel in confirming:
                self._guard(partial(channel.release, self.watermark))
        if queues:
            self._write()

    def _dispatch(self, queues: list[Queue]) -> None:
        if len(queues) == 1:
            # The usual turn: whatever it takes, there is nobody to put off.
            self._guard(queues[0].dispatch)
            return
        clock = self._clock
        ends_at = clock() + DISPATCH_S
        for at, queue in enumerate(queues, 1):
            self._guard(queue.dispatch)
            if at == len(queues):
                return
            if clock() >= ends_at:
                self._queues = queues[at:] + self._queues
                self.wake()
                return
            if self._writer is not None and self._writer.has_unwritten:
                # One queue gave another its dead letters: that one may be next.
                self._write()
                if not self.delivers:
                    return

    def flush(self) -> bool:
        """One write per socket that has something to say; whether the sockets have all of it."""
        self._is_to_flush = False
        self.write_owed()
        is_out = True
        if self._outboxes:
            outboxes, self._outboxes = self._outboxes, []
            for outbox in outboxes:
                try:
                    is_out &= outbox.flush()
                except Exception as error:  # noqa: BLE001 - as in `_guard`
                    self._report(error)
        return is_out

    def _guard(self, job: Callable[[], object]) -> None:
        try:
            job()
        except Exception as error:  # noqa: BLE001 - a bug in one queue must not stop the others
            self._report(error)
