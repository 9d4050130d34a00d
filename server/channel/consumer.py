"""A consumer: its prefetch credit, and how a batch becomes frames in an outbox.

To its queue it is a `ConsumerPort`. It must not know routing, the journal or sockets.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol

from vouchmq.protocol.fields import encode_shortstr
from vouchmq.protocol.runs import DELIVER_METHOD, SIZE, body_size, encode_deliveries
from vouchmq.server.connection.outbox import UNJOINED_OCTETS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from vouchmq.protocol.runs import Piece
    from vouchmq.server.broker.counters import ChannelCounters
    from vouchmq.server.broker.message import Message
    from vouchmq.server.broker.queues.api import Queue
    from vouchmq.server.connection.outbox import Outbox
    from vouchmq.server.ledger.recorder import ConsumerEventRecorder

UNLIMITED: Final = 1 << 30
# Above every seq: all of it was handed out before.
AGAIN: Final = 1 << 63
# Method frame, content header and frame ends around a body, generously.
DELIVER_OVERHEAD_OCTETS: Final = 128


class Credit:
    """One prefetch limit and what is outstanding under it: count and body octets (QOS-02, 20).

    Limits of 0 are none.
    """

    __slots__ = ("limit", "limit_octets", "outstanding", "outstanding_octets")

    def __init__(self, limit: int = 0, limit_octets: int = 0) -> None:
        self.limit = limit
        self.limit_octets = limit_octets
        self.outstanding = 0
        self.outstanding_octets = 0

    def capacity(self, head: bytes) -> int:
        """Messages that may still go out, `head` first (QOS-21: one too large goes alone)."""
        room = self.limit - self.outstanding if self.limit else UNLIMITED
        if room <= 0 or not self.limit_octets:
            return room
        fits = self.outstanding_octets + body_size(head) <= self.limit_octets
        return 1 if fits or not self.outstanding else 0

    def use(self, messages: list[Message]) -> None:
        """These have been delivered. Octets count only under a limit; one that comes late counts
        what is outstanding then (`consume.set_limits`).
        """
        self.outstanding += len(messages)
        if self.limit_octets:
            self.outstanding_octets += sum(body_size(message[0]) for message in messages)

    def give_back(self, messages: list[Message]) -> None:
        """Add the credit of settled deliveries."""
        self.outstanding -= len(messages)
        if self.limit_octets:
            self.outstanding_octets -= sum(body_size(message[0]) for message in messages)


class DeliveryChannel(Protocol):
    """A channel, as those see it that deliver on it.

    `octets` is its number as frames have it, `credit` what all its consumers share.
    """

    octets: bytes
    frame_max: int
    next_tag: int
    flow_active: bool
    credit: Credit
    counters: ChannelCounters
    outbox: Outbox

    @property
    def is_swamped(self) -> bool:
        """True while the client leaves more unread than it may."""

    def delivered(
        self, consumer: Consumer, messages: list[Message], first: int, *, is_dense: bool
    ) -> None:
        """These are outstanding under the tags from `first` on; see `Unacked.add`."""

    def served(self, consumer: Consumer) -> None:
        """It has used of the channel's limit: whatever room comes next is for others (QOS-09)."""

    def send_behind_replies(self, *pieces: Piece) -> None:
        """Send at once, but not before a reply that is being held."""

    def consumer_cancelled(self, consumer: Consumer) -> None:
        """The broker has ended a consumer: tell the client, if it can hear it (CONS-40)."""


class Consumer:
    """One `basic.consume` on a channel.

    Args:
        channel: where the deliveries go
        queue: where they come from
        tag: the consumer tag
        no_ack: deliveries are settled when written (ACK-02)
        priority: higher is served first (CONS-20)
        credit: prefetch per consumer; unused with no_ack (QOS-08)
        timeout_ms: within which deliveries are to be settled, 0: any; None: the queue says
    """

    __slots__ = (
        "_before_tag",
        "_behind_tag",
        "_frame_max",
        "_outbox",
        "_own_header",
        "_shared",
        "_shortstr",
        "_tail",
        "channel",
        "credit",
        "is_active",
        "no_ack",
        "priority",
        "queue",
        "recorder",
        "tag",
        "timeout_ms",
    )

    def __init__(
        self,
        channel: DeliveryChannel,
        queue: Queue,
        tag: str,
        *,
        no_ack: bool,
        priority: int,
        credit: Credit,
        timeout_ms: int | None = None,
    ) -> None:
        self.timeout_ms = timeout_ms
        self.channel = channel
        self.queue = queue
        self.tag = tag
        self.no_ack = no_ack
        self.priority = priority
        self.credit = credit
        self.is_active = True
        self.recorder: ConsumerEventRecorder | None = None  # while the ledger is on
        self._shortstr = encode_shortstr(tag)
        # What stays the channel's own as long as there is a consumer.
        self._outbox = channel.outbox
        self._shared = channel.credit
        self._frame_max = channel.frame_max
        # How contents begin that need no other channel number; of the last message delivered
        # alone, what stands in the deliver frame before the tag and behind it.
        self._own_header = b"\x02" + channel.octets
        self._tail = self._before_tag = self._behind_tag = b""

    @property
    def shares_room(self) -> bool:
        """See `ConsumerPort`; other deliveries fill a channel's limit, also for no-ack (QOS-08)."""
        return self._shared.limit > 0 or self.judges_size

    @property
    def judges_size(self) -> bool:
        """See `ConsumerPort`."""
        octets = self._shared.limit_octets or self.credit.limit_octets
        return not self.no_ack and octets > 0

    @property
    def has_outstanding(self) -> bool:
        """See `ConsumerPort`."""
        return self.credit.outstanding > 0

    def capacity(self, head: bytes) -> int:
        """See `ConsumerPort`; 0 also while the socket is full (CONS-11) or flow is off (CHAN-20).

        While a reply waits for the disk, too: it may be the consume-ok of this very consumer,
        which no delivery may overtake (CONS-01).
        """
        outbox = self._outbox
        if outbox.blocked or outbox.waits_for_reply or not self.channel.flow_active:
            return 0
        shared = self._shared
        if self.no_ack:
            return 0 if 0 < shared.limit <= shared.outstanding else UNLIMITED
        if shared.limit or shared.limit_octets:
            return min(self.credit.capacity(head), shared.capacity(head))
        return self.credit.capacity(head)

    def deliver(
        self, messages: list[Message], mark: int, shown: list[Message] | None = None
    ) -> None:
        """Write deliveries with fresh tags to the channel's outbox (CONS-09)."""
        channel = self.channel
        count = len(messages)
        first = channel.next_tag
        channel.next_tag = first + count
        raw, tail, seq, _ = messages[0]
        if (
            count == 1
            and seq > mark
            and shown is None
            and len(raw) <= self._frame_max
            and raw.startswith(self._own_header)
        ):
            self._write_alone(raw, tail, first)
        else:
            limits = (self._frame_max, mark)
            own = channel.octets
            parts = encode_deliveries(shown or messages, first, own, self._shortstr, limits)
            if seq <= mark:
                self._count_again(sum(message[2] <= mark for message in messages))
            octets = max(self.queue.largest_octets, 64) + DELIVER_OVERHEAD_OCTETS
            self._outbox.add(parts, octets * count)
            if octets > UNJOINED_OCTETS:
                self._outbox.has_large = True
        recorder = self.recorder
        is_dense = recorder is not None and recorder.delivered(
            messages, first, mark, no_ack=self.no_ack
        )
        if self._shared.limit:
            channel.served(self)
        if self.no_ack:
            self.queue.counters.delivered_no_ack += count
            channel.counters.delivered_no_ack += count
            self.queue.settle(messages)
            return
        self.credit.use(messages)
        channel.delivered(self, messages, first, is_dense=is_dense)

    def _write_alone(self, raw: bytes, tail: bytes, tag: int) -> None:
        """Write one delivery of what is sent as it came, for the first time.

        A worker that takes one message at a time gets most of them by the same route as the last.
        """
        if tail is not self._tail and tail != self._tail:
            self._tail = tail
            size = SIZE.pack(len(DELIVER_METHOD) + len(self._shortstr) + 9 + len(tail))
            number = self._own_header[1:]
            self._before_tag = b"".join((b"\x01", number, size, DELIVER_METHOD, self._shortstr))
            self._behind_tag = b"\x00" + tail + b"\xce"
        parts = [self._before_tag, tag.to_bytes(8, "big"), self._behind_tag, raw]
        octets = len(raw) + len(tail) + DELIVER_OVERHEAD_OCTETS
        self._outbox.add(parts, octets)
        if octets > UNJOINED_OCTETS:
            self._outbox.has_large = True

    def _count_again(self, count: int) -> None:
        """Some of a batch have been handed out before."""
        self.queue.counters.redelivered += count
        self.channel.counters.redelivered += count

    def deliver_again(self, tags: Sequence[int], messages: list[Message]) -> None:
        """Send outstanding deliveries again under their old tags, redelivered (ACK-22)."""
        channel = self.channel
        self._count_again(len(messages))
        self.queue.counters.resent += len(messages)
        channel.counters.resent += len(messages)
        if self.recorder is not None and messages:
            self.recorder.delivered(messages, tags[0], AGAIN, no_ack=False)
        for tag, message in zip(tags, self.shown_again(messages), strict=True):
            limits = (channel.frame_max, message[2])
            parts = encode_deliveries([message], tag, channel.octets, self._shortstr, limits)
            channel.send_behind_replies(*parts)

    def shown_again(self, messages: list[Message]) -> list[Message]:
        """Outstanding deliveries as the client is to see them."""
        return messages

    def queue_deleted(self) -> None:
        """See `ConsumerPort`: the client hears of it if it can (CONS-40)."""
        self.is_active = False
        self.channel.consumer_cancelled(self)
