"""One queue's part of a consumer: its channel, what was given back, and which tags are settled.

Tags of a channel are dense from 1. What is acked may be mixed with what is not, so a queue channel
knows all tags it has settled and says with as little as is right what to ack: one tag for all up to
it, and the others singly. Must not know threads, connections, nor Spark.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any, Final

from vouchmq.spark.rows import Delivery
from vouchmq.spark.source.offsets import Ranges

STREAM_HEADER: Final = b"\x0fx-stream-offset"


class QueueChannel:
    """A queue and the channel that consumes from it."""

    __slots__ = (
        "_returned",
        "_returned_bytes",
        "_settled",
        "_through",
        "channel",
        "is_known",
        "queue",
    )

    def __init__(self, queue: str) -> None:
        self.queue = queue
        self.channel: Any = None
        # Taken from the channel and given back: next to be taken.
        self._returned: deque[Delivery] = deque()
        self._returned_bytes = 0
        # Whether a first message has shown that it is a queue and no stream.
        self.is_known = False
        self._settled = Ranges()
        self._through = 0

    def begin(self, channel: Any) -> None:
        """Consume on this channel from now on."""
        self.end()
        self.channel = channel

    def end(self) -> None:
        """The channel is gone, and with it what had arrived."""
        self.channel = None
        self._returned.clear()
        self._returned_bytes = 0
        self._settled = Ranges()
        self._through = 0

    def arrived(self) -> tuple[int, int]:
        """Messages and bytes of bodies and properties that may be taken."""
        if self.channel is None or not self.is_known:
            return 0, 0
        count, size = self.channel.arrived
        return count + len(self._returned), size + self._returned_bytes

    def take(self, max_messages: int, max_bytes: int) -> tuple[list[Delivery], int]:
        """Up to so much of what has arrived, one message at least, and its bytes."""
        taken: list[Delivery] = []
        size = 0
        while self._returned and len(taken) < max_messages and (size < max_bytes or not taken):
            taken.append(self._returned.popleft())
            size += size_of(taken[-1])
        self._returned_bytes -= size
        left = max_messages - len(taken)
        if left and not self._returned and (size < max_bytes or not taken):
            more = self.channel.take(left, max_bytes=max(1, max_bytes - size))
            taken += more
            size += sum(map(size_of, more))
        return taken, size

    def put_back(self, deliveries: Sequence[Delivery]) -> None:
        """Give back what was taken, in the order it came: it is next to be taken."""
        self._returned.extendleft(reversed(deliveries))
        self._returned_bytes += sum(map(size_of, deliveries))

    def first(self) -> Delivery | None:
        """What is next to be taken, which stays."""
        if not self.arrived()[0]:
            return None
        if not self._returned:
            self.put_back(self.channel.take(1))
        return self._returned[0] if self._returned else None

    def is_suspicious(self) -> bool:
        """Whether the first message looks as if it were from a stream; if not, it is known."""
        if not self.channel.arrived[0] or self._returned:
            return bool(self._returned)
        first = self.channel.take(1)
        self.put_back(first)
        self.is_known = STREAM_HEADER not in first[0][4]
        return not self.is_known

    def settle(self, tags: Sequence[int]) -> tuple[int, list[int]]:
        """Note that these tags are acked; how to say so to the broker.

        Args:
            tags: rising

        Returns:
            The tag to ack with all up to it, 0 for none; and those to ack singly.
        """
        if tags[-1] - tags[0] == len(tags) - 1:
            self._settled.add(tags[0], tags[-1])
        else:
            for tag in tags:
                self._settled.add(tag, tag)
        first, last = next(iter(self._settled))
        # One acked singly before must not be named again, so the last of these is.
        through = last if first == 1 else 0
        if through <= self._through:
            return 0, list(tags)
        self._through = through
        within = [tag for tag in tags if tag <= through]
        return within[-1], list(tags[len(within) :])


class Portion:
    """Deliveries of one queue, of one generation of its connection, in the order they came."""

    __slots__ = ("deliveries", "generation", "queue_channel")

    def __init__(
        self, queue_channel: QueueChannel, generation: int, deliveries: list[Delivery]
    ) -> None:
        self.queue_channel = queue_channel
        self.generation = generation
        self.deliveries = deliveries

    @property
    def queue(self) -> str:
        """The name of the queue that the deliveries come from."""
        return self.queue_channel.queue

    def part(self, deliveries: list[Delivery]) -> Portion:
        """A portion with some of the deliveries, of the same channel."""
        return Portion(self.queue_channel, self.generation, deliveries)


def size_of(delivery: Delivery) -> int:
    """Bytes of its properties and body."""
    return len(delivery[4]) + len(delivery[5])
