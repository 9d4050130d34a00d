"""What Prometheus is told beyond the listings that people see: how long things take, who logs in.

    list histograms       durations of syncs, confirms, the loop's delays; sizes of blocks
    list login-attempts   by protocol
    list store-details    the journal, and what queues have in memory

As in `views.py` nobody counts anything for it, but for the loop's delays (`loop_lag.py`).
Must not know who publishes it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from msgspec import Struct

from vouchmq.server.admin.details import extended
from vouchmq.server.admin.views import Selection, StoreView

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from vouchmq.server.admin.views import Views
    from vouchmq.server.auth.attempts import LoginAttempts
    from vouchmq.server.broker.paging.pager import Pager
    from vouchmq.server.runtime.compaction_scheduler import CompactionScheduler
    from vouchmq.server.runtime.runtime import BrokerRuntime
    from vouchmq.store.histogram import Histogram
    from vouchmq.store.journal.segment import Segment
    from vouchmq.store.journal.segments import SegmentChain


class HistogramView(Struct, frozen=True, array_like=True):
    """A histogram: upper bounds of its buckets, their counts and that above all; their sum."""

    name: str
    bounds: tuple[float, ...]
    counts: tuple[int, ...]
    total: float


class LoginAttemptsView(Struct, frozen=True, array_like=True):
    """Logins over one protocol since the broker started."""

    protocol: str
    succeeded: int
    failed: int


class StoreDetails(StoreView, frozen=True, array_like=True):
    """The journal, and the memory of queues.

    `dead_bytes` is about what compaction or the end of a segment will free, guessed from counts;
    nothing is known of segments that were there before the start. `moved_bytes` were written again
    by compaction. `queued_bytes` are in memory; pages that a disk refused stayed there.
    """

    journal_bytes: int
    dead_bytes: int
    live_messages: int
    moved_bytes: int
    queued_bytes: int
    pages_refused: int


KINDS: Final[Mapping[str, type[Struct]]] = {
    "histograms": HistogramView,
    "login-attempts": LoginAttemptsView,
    "store-details": StoreDetails,
}


class Measures:
    """The listings.

    Args:
        histograms: by name
        attempts: logins so far
        views: the listings that people see
        chain: the segments of the journal
        pager: watches the memory of queues
        compaction: frees segments
    """

    def __init__(
        self,
        histograms: Mapping[str, Histogram],
        attempts: LoginAttempts,
        views: Views,
        *,
        chain: SegmentChain,
        pager: Pager,
        compaction: CompactionScheduler,
    ) -> None:
        self._histograms = histograms
        self._attempts = attempts
        self._views = views
        self._chain = chain
        self._pager = pager
        self._compaction = compaction
        self.listings: dict[str, Callable[[Selection], Iterator[Struct]]] = {
            "histograms": self.histograms,
            "login-attempts": self.login_attempts,
            "store-details": self.store_details,
        }

    def histograms(self, wanted: Selection) -> Iterator[HistogramView]:
        """All of them, or the one of a name."""
        for name, each in self._histograms.items():
            if wanted.name in {None, name}:
                yield HistogramView(name, tuple(each.bounds), tuple(each.counts), each.total)

    def login_attempts(self, wanted: Selection) -> Iterator[LoginAttemptsView]:
        """A view for each protocol over which anybody can log in."""
        for protocol, counts in self._attempts.by_protocol.items():
            if wanted.name in {None, protocol}:
                yield LoginAttemptsView(protocol, counts.succeeded, counts.failed)

    def store_details(self, wanted: Selection) -> Iterator[StoreDetails]:
        """One view."""
        del wanted
        segments = [*self._chain.resting, self._chain.active]
        [store] = self._views.store()
        yield extended(
            StoreDetails,
            store,
            journal_bytes=sum(each.offset for each in segments),
            dead_bytes=sum(dead_bytes(segments)),
            live_messages=sum(each.live_count for each in segments),
            moved_bytes=self._compaction.moved_bytes,
            queued_bytes=self._pager.total,
            pages_refused=self._pager.refused_count,
        )


def dead_bytes(segments: Iterable[Segment]) -> Iterator[int]:
    """About how much of each segment is needed by nobody."""
    for segment in segments:
        if segment.arrived_count:
            share = 1 - segment.live_count / segment.arrived_count
            yield int(share * max(0, segment.offset - segment.head_bytes))


def measures_of(runtime: BrokerRuntime, views: Views, loop_lag: Histogram) -> Measures:
    """What is measured in a broker, and how late its loop is."""
    histograms = {
        "sync_seconds": runtime.commit.counters.durations,
        "confirm_seconds": runtime.context.confirm_times.histogram,
        "loop_lag_seconds": loop_lag,
        "block_bytes": runtime.journal.block_sizes,
    }
    return Measures(
        histograms,
        runtime.authenticator.attempts,
        views,
        chain=runtime.journal.chain,
        pager=runtime.pager,
        compaction=runtime.compaction_scheduler,
    )
