"""How much a trigger takes and how long it waits for it, and when `Trigger.AvailableNow` is done.

Must not know what becomes of the messages.
"""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Any, Final

from vouchmq.spark.properties import MICROSECONDS, PropertyReader
from vouchmq.spark.source.queue_channel import size_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from vouchmq.spark.options import SourceOptions
    from vouchmq.spark.source.consumer import QueueConsumer
    from vouchmq.spark.source.queue_channel import Portion

# A queue from which nothing comes for so long is empty, as far as AvailableNow is concerned ...
SILENCE_S: Final = 1.0
# ... unless the broker says that there is more; then it is given so many times that long.
PATIENCE: Final = 5
# A question for each queue: it is asked so often at most, and takes so little of the time.
COUNT_EVERY_S: Final = 1.0
COUNT_SHARE: Final = 20

log = logging.getLogger("vouchmq.spark")


def measured(batch: Iterable[Portion]) -> tuple[int, int]:
    """How many messages a batch has, and their bytes."""
    sizes = [size_of(delivery) for portion in batch for delivery in portion.deliveries]
    return len(sizes), sum(sizes)


class Intake:
    """Takes batches from a feed, within the limits of the options and of the trigger."""

    def __init__(
        self,
        options: SourceOptions,
        consumer: QueueConsumer,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._options = options
        self._consumer = consumer
        self._is_started = False
        # With AvailableNow: how many more this run takes.
        self._left: int | None = None
        self._clock = clock
        self._ready: int | None = None
        self._count_after = clock()

    def start(self) -> None:
        """Start the consumer, once.

        Raises:
            ConsumerError: no broker, no queue, no permission, or somebody else has it exclusively
        """
        if not self._is_started:
            self._consumer.start()
            self._is_started = True

    def prepare_available_now(self) -> None:
        """This run takes what is there now, and then ends.

        Others may take some of it, and what a dead process held may come back late: so the number
        is where to stop at the latest, and never waited for.

        Raises:
            ConsumerError: the consumer has ended
        """
        if self._left is not None:
            return
        self.start()
        consumer = self._consumer
        self._left = max(consumer.ready_at_connect, consumer.ready_count() + consumer.arrived()[0])

    def rows(self, limit: Any) -> int:
        """Messages of one batch at most; `limit` is Spark's, of which only rows mean anything."""
        rows = self._options.max_messages_per_trigger
        return max(1, min(rows, getattr(limit, "max_rows", rows)))

    def batch(self, limit: Any) -> list[Portion]:
        """Wait for messages and take them; nothing when none came, or the run has had its share.

        Raises:
            ConsumerError: the consumer has ended
        """
        consumer, options = self._consumer, self._options
        rows = self.rows(limit)
        if self._left is not None:
            rows = min(rows, self._left)
            if rows <= 0 or not self._is_there_more():
                self._left = 0
                return []

        # More does not come before something is acked.
        window = min(rows, options.prefetch * len(options.queues))

        def is_full() -> bool:
            count, size = consumer.arrived()
            return count >= window or size >= options.max_bytes_per_trigger

        consumer.wait(is_full, options.fetch_max_wait_ms / 1000)
        portions = consumer.take(rows, options.max_bytes_per_trigger)
        self.took(sum(len(portion.deliveries) for portion in portions))
        return portions

    def took(self, count: int) -> None:
        """So many messages have left the queues for this run."""
        if self._left is not None:
            self._left -= count

    def backlog(self, rows: int, size: int) -> dict[str, int]:
        """How much is not handed out, from when the oldest of it is, and what a batch has.

        Args:
            rows: in the batch that was handed out last
            size: of them, in bytes
        """
        consumer = self._consumer
        began = self._clock()
        if self._is_started and began >= self._count_after:
            self._ready = consumer.waiting_count()
            ended = self._clock()
            self._count_after = ended + max(COUNT_EVERY_S, COUNT_SHARE * (ended - began))
        told = {"buffered": consumer.arrived()[0], "rows": rows, "bytes": size}
        if self._ready is not None:
            told["ready"] = self._ready
        columns, _ = PropertyReader(("timestamp",)).read(consumer.next_properties())
        times = [time_us for time_us in columns.get("timestamp", ()) if time_us is not None]
        return {**told, "oldest_s": min(times) // MICROSECONDS} if times else told

    def _is_there_more(self) -> bool:
        """Whether a message comes before the queue has been silent for long enough."""
        consumer = self._consumer
        patience = PATIENCE
        while True:
            generation = consumer.generation
            if consumer.wait(lambda: consumer.arrived()[0] > 0, SILENCE_S):
                return True
            if not consumer.is_connected or consumer.generation != generation:
                continue
            waiting = consumer.ready_count()
            if not waiting:
                return False
            patience -= 1
            if patience <= 0:
                consumer.refuse_streams()
                log.warning(
                    "vouchmq source: %d messages are ready, but the broker delivers none to this "
                    "consumer; the run ends without them",
                    waiting,
                )
                return False
