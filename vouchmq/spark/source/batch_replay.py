"""A batch of an earlier process, got together again: exactly its messages, by their places.

They were not acked, so the broker gives them back, at the head of their queues. What arrives
between them and is finished is acked; what is new is given back, in its order, for the next batch.
Whatever does not come back was settled by somebody else: it expired, or another consumer has it.

Spec: SEQ-02
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from vouchmq.spark.source.consumer import ConsumerError
from vouchmq.spark.source.dedupe import DeliveredSet
from vouchmq.spark.source.offsets import Place, Places
from vouchmq.spark.source.places import places_of
from vouchmq.spark.source.queue_channel import Portion

if TYPE_CHECKING:
    from vouchmq.spark.options import SourceOptions
    from vouchmq.spark.rows import Delivery
    from vouchmq.spark.source.consumer import QueueConsumer

_ALL = 1 << 40

log = logging.getLogger("vouchmq.spark")


class Replay:
    """One such wait.

    Args:
        options: as the user gave them
        consumer: started
        handed: knows what is finished
        wanted: the places of the batch
    """

    def __init__(
        self, options: SourceOptions, consumer: QueueConsumer, handed: DeliveredSet, wanted: Places
    ) -> None:
        self._options = options
        self._consumer = consumer
        self._handed = handed
        self._wanted = wanted
        self._found: dict[str, tuple[Portion, list[Place]]] = {}
        self._later: dict[str, Portion] = {}
        self._generation = consumer.generation
        self.missing = wanted.copy()
        self.dropped_count = 0

    def run(self) -> tuple[list[Portion], list[Place]]:
        """The messages that came, and their places.

        Raises:
            ConsumerError: the consumer has ended, or the batch exceeds the prefetch window
        """
        self._check_window()
        consumer = self._consumer
        silence_s = self._options.read_timeout_ms / 1000
        consumer.unlimited(True)
        try:
            while len(self.missing):
                has_news = consumer.wait(lambda: consumer.arrived()[0] > 0, silence_s)
                if (
                    not has_news
                    and consumer.is_connected
                    and consumer.generation == self._generation
                ):
                    self._tell_missing(silence_s)
                    break
                self._sort(consumer.take(_ALL, _ALL))
        finally:
            consumer.unlimited(False)
        for portion in self._later.values():
            consumer.untake(portion)
        found = list(self._found.values())
        return [portion for portion, _ in found], [place for _, places in found for place in places]

    def _check_window(self) -> None:
        largest = max(self._wanted.per_queue().values(), default=0)
        if largest > self._options.prefetch:
            raise ConsumerError(
                f"option prefetch: the batch to be replayed has {largest} messages of one queue, "
                f"which can never all arrive with a prefetch of {self._options.prefetch}: run it "
                f"once with a prefetch of at least {largest}"
            )

    def _sort(self, portions: list[Portion]) -> None:
        if self._consumer.generation != self._generation:
            # They all come again, on the new connection.
            self._generation = self._consumer.generation
            self._found.clear()
            self._later.clear()
            self.missing = self._wanted.copy()
        for portion in portions:
            if portion.generation == self._generation:
                self._sort_one(portion)

    def _sort_one(self, portion: Portion) -> None:
        places = places_of([delivery[4] for delivery in portion.deliveries])
        copies: list[Delivery] = []
        later: list[Delivery] = []
        mine, my_places = self._found.setdefault(portion.queue, (portion.part([]), []))
        for delivery, place in zip(portion.deliveries, places, strict=True):
            # One that comes as new is another message, see `DeliveredSet.is_copy`.
            if place is not None and delivery[1] and place in self._wanted:
                mine.deliveries.append(delivery)
                my_places.append(place)
            elif self._handed.is_copy(place, delivery[1]):
                copies.append(delivery)
            else:
                later.append(delivery)
        found = Places()
        found.add_all(my_places)
        self.missing = self.missing.minus(found)
        if copies:
            self.dropped_count += len(copies)
            self._consumer.ack([portion.part(copies)])
        if later:
            kept = self._later.setdefault(portion.queue, portion.part([]))
            kept.deliveries.extend(later)

    def _tell_missing(self, silence_s: float) -> None:
        log.warning(
            "vouchmq source: of the %d messages of a replayed batch, %d were not redelivered, and "
            "for %.0f s no other message was: they expired, or another consumer settled them. "
            "Those that are redelivered later are in a later batch",
            len(self._wanted),
            len(self.missing),
            silence_s,
        )
