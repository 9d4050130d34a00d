"""Which deliveries a query has had already.

By the broker's sequence (`DeliveredSet`): a copy has one place in its queue for good, so what comes
again is known by two numbers. By a key of the publisher's (`Keys`): a message-id or a header,
looked up among the last spooled ones, and only for deliveries that the broker calls redelivered.
Must not know connections, files, nor Spark.

Spec: SEQ-01, SEQ-02
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

from vouchmq.spark.rows import Delivery, batch_from
from vouchmq.spark.source.offsets import Place, Places

# Finished ranges are kept while they are so few; with one consumer on a queue there is one.
KEPT_RANGES: Final = 64


class DeliveredSet:
    """Places that a query has handed out: those of finished batches, and of the one under way.

    A place is finished when Spark says so by starting behind it. What comes again of the finished
    is a copy to drop; of the one under way it is the batch itself, to be handed out again.
    """

    def __init__(self) -> None:
        self.finished = Places()
        self.under_way = Places()
        # Of the finished: their acks have certainly arrived at the broker.
        self._certain = Places()

    def begin(self, done: Places | None, missing: Places | None = None) -> None:
        """Go on from a checkpoint.

        Args:
            done: what had been handed out and is finished
            missing: of that, what was to be replayed and did not come; it may come yet
        """
        finished = done if done is not None else Places()
        self.finished = finished.copy() if missing is None else finished.minus(missing)
        self.under_way = Places()
        self._certain = Places()

    def hand_out(self, places: Iterable[Place | None]) -> None:
        """These are in the batch under way."""
        self.under_way.add_all(places)

    def finish(self) -> Places:
        """The batch under way is finished; what was in it."""
        batch, self.under_way = self.under_way, Places()
        self.finished.update(batch)
        return batch

    def acks_arrived(self, places: Places) -> None:
        """The broker has certainly had the acks of these: they will not come again.

        While few ranges tell of them they are remembered all the same, in case that the broker
        forgets acks in a crash.
        """
        self._certain.update(places)
        if self.finished.range_count > KEPT_RANGES:
            self.finished = self.finished.minus(self._certain)
            self._certain = Places()

    def is_copy(self, place: Place | None, redelivered: bool) -> bool:
        """Whether a delivery is a copy of something finished.

        A place that comes as new was given a second time, after a power cut in which the broker
        lost what it had not synced: that is another message.
        """
        return redelivered and place is not None and place in self.finished

    def done(self) -> Places:
        """What the next offset says."""
        done = self.finished.copy()
        done.update(self.under_way)
        return done


class Keys:
    """Keys of what was spooled, by the file they are in.

    Args:
        kind: `messageId` or `header:NAME`, as the option has it
    """

    def __init__(self, kind: str) -> None:
        self._header = kind.partition(":")[2] if kind.startswith("header:") else None
        self._files: dict[int, frozenset[str]] = {}

    @property
    def column(self) -> str:
        """In which column the keys are."""
        return "message_id" if self._header is None else "headers"

    def remember(self, file: int, values: Iterable[Any]) -> None:
        """Keep the keys of a file; `values` are those of the column, from record batches."""
        self._files[file] = frozenset(key for key in map(self._key, values) if key is not None)

    def forget(self, file: int) -> None:
        """Drop the keys of a spool file that was removed."""
        self._files.pop(file, None)

    def copies(self, queue: str, deliveries: Sequence[Delivery]) -> list[bool]:
        """For each delivery, whether it was spooled before."""
        again = [number for number, delivery in enumerate(deliveries) if delivery[1]]
        marks = [False] * len(deliveries)
        if again and self._files:
            batch = batch_from(queue, [deliveries[number] for number in again], (self.column,))
            for number, value in zip(again, batch.column(0).to_pylist(), strict=True):
                key = self._key(value)
                marks[number] = key is not None and any(key in keys for keys in self._known())
        return marks

    def _known(self) -> Iterable[frozenset[str]]:
        return reversed(self._files.values())

    def _key(self, value: Any) -> str | None:
        """A text, or the map of headers as Arrow gives it: a list of pairs."""
        if self._header is None or value is None:
            return None if value is None else str(value)
        return next((text for name, text in value if name == self._header), None)
