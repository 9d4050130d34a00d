"""From received octets to events, one at a time and in order, with stops in between.

An event may make it necessary to stop: a reply waits for the disk, an alarm is up, the end has
come. So does the time that the events take together (LIMIT-23). What was read by then waits here,
and the socket is not read; when the last reason to stop has gone, everything goes on where it
stopped (GEN-08, LIMIT-12). Must not know what an event means, nor what a reason is but a bit.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeAlias

from vouchmq.protocol.errors import AmqpError
from vouchmq.protocol.reader import NO_MORE
from vouchmq.server.connection.wire import PUT_OFF

if TYPE_CHECKING:
    from collections.abc import Callable

    from vouchmq.protocol.reader import Event, Reader
    from vouchmq.server.connection.wire import Wire
    from vouchmq.server.runtime.flow import FlowControl, Publisher
    from vouchmq.server.runtime.work_budget import WorkBudget

if TYPE_CHECKING:
    # What the reader has found, or what is left of a method: (kind, channel, its rest).
    Task: TypeAlias = Event | tuple[int, int, Callable[[], None]]

# A kind of event beside those of the reader: the rest of a method that takes long.
GOES_ON: Final = -1
# No reason of the socket's (`wire.py`): nothing is taken any more, what is still read goes nowhere.
ENDED: Final = 1 << 30


class InboundQueue:
    """What one connection has received and not yet done.

    Args:
        reader: turns octets into events
        wire: paused while there is a reason to stop
        take: does one event
        gave_up: told when the reader cannot understand anything more
        budget: how long it may go on
        flow: told who has published what is read
        publisher: the connection, for `flow`
        wake: has a turn run
    """

    __slots__ = (
        "_budget",
        "_events",
        "_flow",
        "_gave_up",
        "_is_walking",
        "_kept",
        "_late",
        "_publisher",
        "_reader",
        "_take",
        "_wake",
        "_wire",
        "stops",
    )

    def __init__(
        self,
        reader: Reader,
        wire: Wire,
        take: Callable[[Task], None],
        gave_up: Callable[[AmqpError], None],
        budget: WorkBudget,
        flow: FlowControl,
        publisher: Publisher,
        wake: Callable[[], None],
    ) -> None:
        self._wake = wake
        self._reader = reader
        self._wire = wire
        self._take = take
        self._gave_up = gave_up
        self._budget = budget
        self._flow = flow
        self._publisher = publisher
        self._events = NO_MORE
        self._is_walking = False
        self._kept: Task | None = None
        self._late: list[bytes] = []
        self.stops = 0  # the reasons, as bits

    def receive_data(self, data: bytes, *, is_late: bool = False) -> None:
        """Do what these octets complete, now or when nothing stands in the way.

        Args:
            data: what has come
            is_late: other sockets have taken the time of this turn
        """
        if self._flow.idle_since:
            self._flow.woke()
        if self.stops or self._is_walking:
            self._late.append(data)
            return
        if is_late:
            self._late.append(data)
            self.put_off()
            return
        self._begin(data)
        self._walk()

    def _begin(self, data: bytes) -> None:
        reader = self._reader
        self._kept = reader.begin(data)
        self._events = reader.rest()

    def pause(self, reason: int) -> None:
        """Take no further event, and read no further octets, for this reason."""
        if not self.stops & reason:
            self.stops |= reason
            self._wire.pause(reason)

    def pause_before(self, event: Task, reason: int) -> None:
        """As `pause`, and take this event, which is being taken now, once more when going on."""
        self._kept = event
        self.pause(reason)

    def put_off(self, event: Task | None = None) -> None:
        """Go on in a later turn of the loop, with what is left of this event if there is any."""
        if event is not None:
            self._kept = event
        if not self.stops & PUT_OFF:
            self.pause(PUT_OFF)
            self._budget.put_off(self._resume)

    def _resume(self) -> None:
        self.resume(PUT_OFF)

    def resume(self, reason: int) -> None:
        """Read again unless another reason to pause is left."""
        if not self.stops & reason:
            return
        self.stops &= ~reason
        self._wire.resume(reason)
        if self.stops or self._is_walking:
            return
        is_busy = self._walk()
        while self._late and not self.stops:
            late, self._late = self._late, []
            self._begin(b"".join(late))
            is_busy |= self._walk()
        if is_busy:
            # Nobody else may have asked for a turn, and what was done to the journal waits for one.
            self._wake()

    @property
    def held_octets(self) -> int:
        """What has come and is not done yet."""
        return self._reader.held_octets + sum(map(len, self._late))

    def end(self) -> None:
        """Nothing is taken any more, and nothing kept."""
        self.stops |= ENDED
        self._kept = None
        self._late.clear()
        if not self._is_walking:
            self._events = NO_MORE

    def _walk(self) -> bool:
        """Take events until they are used up or there is a reason to stop: whether any came."""
        is_busy = False
        self._is_walking = True
        budget, flow = self._budget, self._flow
        budget.begin()
        if flow.charged:
            flow.forget()
        try:
            kept, self._kept = self._kept, None
            if kept is not None:
                is_busy = True
                self._take(kept)
                if self.stops or self._events is NO_MORE:
                    return True
                if budget.is_over():
                    self.put_off()
                    return True
            for event in self._events:
                is_busy = True
                self._take(event)
                if self.stops:
                    break
                if budget.is_over():
                    self.put_off()
                    break
        except AmqpError as error:
            self._gave_up(error)
        finally:
            self._is_walking = False
            if flow.charged:
                flow.charge(self._publisher)
        return is_busy
