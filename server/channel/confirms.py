"""Publisher confirms of one channel: what waits for the watermark, and what may be said now.

Numbers are given in publish order. Those whose message must be on disk first wait in ranges,
oldest first, each with the LSN that has to be synced; the others are due at once (CONF-05/06).
A multiple ack speaks for every number up to its own, so it may only be used below the oldest
number still waiting (CONF-08); what is due above that goes out singly.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from vouchmq.protocol.codec import basic_ack, basic_nack

if TYPE_CHECKING:
    from vouchmq.server.broker.counters import ConfirmTimes
    from vouchmq.server.ledger.channel_recorder import ChannelEventRecorder


class Confirms:
    """The confirm state of a channel.

    Args:
        channel: its number, for the frames
        times: of all channels
    """

    __slots__ = (
        "_channel",
        "_due",
        "_refused",
        "_settled",
        "_times",
        "_waiting",
        "last",
        "nacked",
        "recorder",
    )

    def __init__(self, channel: int, times: ConfirmTimes) -> None:
        self._channel = channel
        self._times = times
        self.last = 0
        self.nacked = 0  # so far
        self._settled = 0  # every number up to here has been settled
        # (first, last, lsn, since)
        self._waiting: deque[tuple[int, int, int, float]] = deque()
        self._due: list[tuple[int, int]] = []
        self._refused: list[int] = []
        self.recorder: ChannelEventRecorder | None = None  # while the ledger is on

    @property
    def waits(self) -> bool:
        """True while any number waits for the disk."""
        return bool(self._waiting)

    @property
    def unconfirmed_count(self) -> int:
        """The number of publishes neither acked nor nacked yet."""
        waiting = sum(last - first + 1 for first, last, _, _ in self._waiting)
        due = sum(last - first + 1 for first, last in self._due)
        return waiting + due + len(self._refused)

    def published(self, count: int, lsn: int, since: float = 0.0) -> None:
        """Number `count` publishes; `lsn` is what must be synced first, 0 for nothing.

        They were received at the time `since`.

        Spec: CONF-03, CONF-06
        """
        first = self.last + 1
        self.last += count
        if not lsn:
            self._due.append((first, self.last))
        else:
            # Never joined to the range before it: a steady publisher would then push the LSN of
            # one range ahead of the watermark for ever, and nothing of it could be confirmed.
            self._waiting.append((first, self.last, lsn, since))

    def refused(self) -> None:
        """Number a publish that a queue refuses; its nack leaves with the next release."""
        self.last += 1
        self._refused.append(self.last)

    def release(self, watermark: int) -> bytes:
        """Give the frames of all confirms that are true now.

        Spec: CONF-08, CONF-09
        """
        waiting, times = self._waiting, self._times
        released: list[tuple[int, int]] = []
        while waiting and waiting[0][2] <= watermark:
            first, last, _, since = waiting.popleft()
            released.append((first, last))
            times.histogram.observe(times.synced_at - since, last - first + 1)
        if not (released or self._due or self._refused):
            return b""
        if not (waiting or self._due or self._refused) and self.recorder is None:
            # The usual confirm of who waits for each: there is nothing to sort.
            self._settled = newest = released[-1][1]
            return basic_ack(self._channel, newest, newest != released[0][0])
        due = sorted(released + self._due)
        self._due.clear()
        if self.recorder is not None:
            self._tell(due, watermark)
        below = waiting[0][0] if waiting else self.last + 1
        frames: list[bytes] = []
        upto = 0
        for first, last in due:
            if last < below:
                upto = last
                continue
            frames += [basic_ack(self._channel, number, False) for number in range(first, last + 1)]
        if upto > self._settled:
            single = len(due) == 1 and due[0][0] == due[0][1]
            frames.insert(0, basic_ack(self._channel, upto, not single))
            self._settled = upto
        if self._refused:
            # In front of every ack: a multiple one must not speak for them (CONF-08).
            refused, self._refused = self._refused, []
            self.nacked += len(refused)
            nacks = [basic_nack(self._channel, number, False, True) for number in refused]
            frames[:0] = nacks
        return b"".join(frames)

    def _tell(self, due: list[tuple[int, int]], watermark: int) -> None:
        """Have the ledger know what is said now."""
        recorder = self.recorder
        if recorder is not None and self._refused:
            refused = [(number, number) for number in self._refused]
            recorder.confirmed(refused, watermark, is_ok=False)
        if recorder is not None and due:
            recorder.confirmed(due, watermark, is_ok=True)

    def refuse(self, first_lsn: int = 0, watermark: int = 0) -> bytes:
        """Nack what waits for this LSN or a later one: storing has failed (CONF-07, CONF-12)."""
        refused = [entry for entry in self._waiting if entry[2] >= first_lsn]
        if not refused:
            return b""
        self.nacked += sum(last - first + 1 for first, last, _, _ in refused)
        self._waiting = deque(entry for entry in self._waiting if entry[2] < first_lsn)
        if self.recorder is not None:
            ranges = [(first, last) for first, last, _, _ in refused]
            self.recorder.confirmed(ranges, watermark, is_ok=False)
        if not self._waiting and not self._due and not self._refused:
            newest = refused[-1][1]
            multiple = newest != refused[0][0]
            self._settled = newest
            return basic_nack(self._channel, newest, multiple, True)
        return b"".join(
            basic_nack(self._channel, number, False, True)
            for first, last, _, _ in refused
            for number in range(first, last + 1)
        )
