"""Group commit: one sync in flight, what arrives meanwhile is the next batch.

Nobody waits for a timer. A lone writer waits for one sync; a thousand writers share the next. A
timer that collects records for a fixed time would cap a lone publisher at a few dozen confirms a
second (decision 0002). What comes back is one integer, the watermark: the highest LSN known to be
durable. It is the only meaning of the word durable outside `store/`.

    request ─▶ Journal.begin_sync ─▶ SyncWorker.submit
    on_readable ─▶ Journal.end_sync ─▶ on_synced
    sync_now ─▶ Journal.begin_sync ─▶ SyncWorker.sync ─▶ Journal.end_sync ─▶ on_synced

What holds:

- The watermark never goes back, and never passes what a finished sync was asked for: a sync speaks
  for what was written before it began, not for what is written while it runs.
- The next sync is started before the new watermark is told, so that the disk works while confirms
  are written.
- Files of `extra_targets` (the ledger) are synced in front of the journal, in the same request.

A failed sync is final. The kernel may have dropped the pages and call the next sync a success, so
nothing is retried: the owner is told once and has to end the process. The simulation has bugs
planted here (a sync tried again, one left out, one that also speaks for what is written while it
runs), and each must be caught.

What was tried: a thread that syncs must take the interpreter's lock back to report, 50 to 340 ms
late under load. So a helper process does it (`worker.py`), unless the caller has nothing else to do
meanwhile (`sync_now`): a lone message then needs half of the system calls and one wake-up less. How
long a sync takes cannot be known before, so the last ones tell: after one that took longer than
`SHORT_S` the helper does them for `REST` times as long as it took; a tighter limit holds where a
consumer is active as well. Before that it yields the processor to clients (decision 0008).

What it costs: a confirm waits for up to two syncs, the one in flight and its own.

Spec: DURABLE-10, DURABLE-21
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

from vouchmq.store.disk import Syncable
from vouchmq.store.histogram import DURATIONS_S, Histogram
from vouchmq.store.journal.journal import Journal, SyncTicket
from vouchmq.store.sync.worker import SyncWorker

# The caller waits for a sync itself while they are shorter than this, which is what one connection
# may keep the loop for in any case (LIMIT-23).
SHORT_S: float = 0.004
# After a longer one it does not, for so many times as long.
REST: float = 20.0
# The same where the next delivery would wait as well: at most a two-hundredth of the time is lost.
SHORT_WITH_CONSUMER_S: float = 0.0005
REST_WITH_CONSUMER: float = 200.0
# The processor is back within this, unless others compute on it. If it takes longer, it is not
# yielded for so many times as long.
LONGEST_YIELD_S: float = 0.0005
REST_FROM_YIELDING: float = 200.0
_MS: Final = 1000.0


@dataclass(slots=True)
class SyncCounters:
    """Plain numbers for whoever publishes metrics."""

    syncs: int = 0
    synced_bytes: int = 0
    # Of the syncs: those that the caller waited for.
    own_syncs: int = 0
    last_sync_ms: float = 0.0
    max_sync_ms: float = 0.0
    # How long they took, in seconds.
    durations: Histogram = field(default_factory=lambda: Histogram(DURATIONS_S))


class ExtraSyncTargets(Protocol):
    """Files of somebody else that have to be on disk no later than the journal."""

    def targets(self) -> Sequence[Syncable]:
        """What to sync before the journal; what is not marked `may_fail` fails for the journal."""

    def synced(self, error: int) -> None:
        """That sync has ended, for them with this errno or 0."""


class GroupCommit:
    """Drives the journal's syncs through a worker.

    `clock` returns seconds that never go back. `on_synced` gets the new watermark;
    `on_failed` gets an errno, once, and after it nothing is ever called again.
    """

    def __init__(
        self,
        journal: Journal,
        worker: SyncWorker,
        *,
        on_synced: Callable[[int], None],
        on_failed: Callable[[int], None],
        clock: Callable[[], float],
        extra_targets: ExtraSyncTargets | None = None,
    ) -> None:
        # What recovery returned is durable already.
        self.watermark = journal.written_lsn
        self.counters = SyncCounters()
        self.has_failed = False
        self.fileno = worker.fileno
        self._journal = journal
        self._worker = worker
        self._on_synced = on_synced
        self._on_failed = on_failed
        self._clock = clock
        self._ticket: SyncTicket | None = None
        self._started_at = 0.0
        self._sequence = 0
        self._is_wanted = False
        self._helped_until = self._helped_with_consumer_until = 0.0
        self._no_yield_until = 0.0
        self._extra_targets = extra_targets

    @property
    def is_idle(self) -> bool:
        """Whether no sync is in flight."""
        return self._ticket is None

    def request(self) -> None:
        """Have everything that was written until now synced: at once, or by the next sync."""
        if self._ticket is None and not self.has_failed:
            self._start()
        else:
            self._is_wanted = True

    def sync_now(self, *, with_consumer: bool = False, has_sent: bool = False) -> None:
        """The same, for who has nothing else to do meanwhile: waits where that is short.

        With its return the new watermark has been told, or the helper is at work.

        Args:
            with_consumer: the next delivery would wait as well, not only the next publish
            has_sent: a client has just been sent something, and may be about to wake up
        """
        now = self._clock()
        if has_sent and self._ticket is None and now >= self._no_yield_until:
            now = self._yield_processor(now)
        until = self._helped_with_consumer_until if with_consumer else self._helped_until
        if self._ticket is not None or self.has_failed or now < until:
            self.request()
            return
        targets = self._begin()
        # A second file is new or has ended, or is somebody else's: that takes longer.
        answer = self._worker.sync(targets) if len(targets) == 1 else None
        if answer is None:
            self._submit(targets)
        else:
            self.counters.own_syncs += 1
            self._end(*answer)

    def _yield_processor(self, now: float) -> float:
        """Let whoever was woken on this processor run first: they would wait for the request.

        Linux wakes a local client where its broker runs, which is about to sleep, and a helper that
        is woken there next would overtake it.

        Returns:
            the time after that
        """
        self._worker.yield_processor()
        after = self._clock()
        if after - now > LONGEST_YIELD_S:
            self._no_yield_until = after + REST_FROM_YIELDING * (after - now)
        return after

    def _start(self) -> None:
        self._submit(self._begin())

    def _begin(self) -> Sequence[Syncable]:
        self._is_wanted = False
        self._ticket = ticket = self._journal.begin_sync()
        self._sequence += 1
        self._started_at = self._clock()
        targets = ticket.targets
        if self._extra_targets is not None:
            targets = (*self._extra_targets.targets(), *targets)
        return targets

    def _submit(self, targets: Sequence[Syncable]) -> None:
        self._worker.submit(self._sequence, targets)
        self._hand_out_file_tasks()

    def on_readable(self) -> None:
        """Take note of a finished sync, start the next one, then tell the new watermark."""
        completion = self._worker.reap()
        if completion is None or self.has_failed:
            return
        if completion.errno or completion.sequence == self._sequence:
            self._end(completion.errno, completion.extra_errno)

    def _end(self, error: int, extra_error: int) -> None:
        """A sync has ended. The next one starts first, so that the disk works meanwhile."""
        ticket = self._ticket
        if error:
            self.has_failed = True
            self._on_failed(error)
            return
        if ticket is None:
            return
        self._ticket = None
        self._count(ticket)
        if self._extra_targets is not None:
            self._extra_targets.synced(extra_error)
        for file in self._journal.end_sync(ticket):
            self._worker.forget(file)
            file.close()
        if self._is_wanted or self._journal.wants_sync:
            self._start()
        else:
            self._hand_out_file_tasks()
        self.watermark = ticket.lsn
        self._on_synced(ticket.lsn)

    def _count(self, ticket: SyncTicket) -> None:
        now = self._clock()
        duration_s = now - self._started_at
        if duration_s > SHORT_S:
            self._helped_until = now + REST * duration_s
        if duration_s > SHORT_WITH_CONSUMER_S:
            self._helped_with_consumer_until = now + REST_WITH_CONSUMER * duration_s
        duration_ms = duration_s * _MS
        counters = self.counters
        counters.syncs += 1
        counters.synced_bytes += ticket.size_bytes
        counters.durations.observe(duration_s)
        counters.last_sync_ms = duration_ms
        counters.max_sync_ms = max(counters.max_sync_ms, duration_ms)

    def _hand_out_file_tasks(self) -> None:
        journal = self._journal
        for file_task in journal.take_file_tasks():
            if file_task.verb == "prepare":
                self._worker.prepare(journal.disk, file_task.name, file_task.size)
            else:
                self._worker.unlink(journal.disk, file_task.name)
