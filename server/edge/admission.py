"""Who is heard next when thousands connect at once: the oldest, and so many that others can work.

    accepted ─┬─▶ heard at once, while few others are on their way to connection.open-ok
              └─▶ held back: not read, but watched ─▶ has spoken ─▶ heard, when its turn has come

The loop takes all sockets in which something has come in one go, whatever that takes: ten thousand
first words would keep heartbeats and consumers waiting for seconds. So those that are held back
are watched in an epoll of its own, which gives as many as are asked for. A turn of the loop hears
the first words of as many of them as it has time for, in the order in which they were accepted,
and of no more while those that were heard before are still being opened. So whoever came first is
open first, instead of all of them just before their patience ends.

Who says nothing holds up nobody: only those are waited for that have spoken, and not for long.
Must not know AMQP or TLS; asyncio and epoll come as arguments.

Spec: LIMIT-23
"""

from __future__ import annotations

import select
from heapq import heappop, heappush
from typing import TYPE_CHECKING, Final, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable

# Read from the start, though they have not spoken yet.
HEARD_AT_ONCE: Final = 8
# Being opened: each of them may send something in the same turn.
MOST_OPENING: Final = 32
# One that takes longer to be opened, being far away, keeps nobody else from it.
OPENING_S: Final = 0.1
# A turn spends so much on first words; those of TLS take most.
TURN_S: Final = 0.0025
# While nobody is heard, for there are too many: until the next look.
PAUSE_S: Final = 0.005
# Asked of the system at a time.
MOST_READY: Final = 256


class Newcomer(Protocol):
    """A connection that is not open yet."""

    @property
    def is_opening(self) -> bool:
        """False when it is open, or over."""

    def hear(self) -> None:
        """Take what it has said by now, and listen from now on."""


class Watch(Protocol):
    """Tells which of many sockets can be read; each once."""

    def add(self, descriptor: int) -> None:
        """Watch this one as well."""

    def ready(self, most: int) -> list[int]:
        """At most so many that can be read, which are watched no more."""


class EpollWatch:
    """A `Watch` of Linux; can itself be watched."""

    def __init__(self) -> None:
        self._epoll = select.epoll()

    def fileno(self) -> int:
        """What a loop watches: readable while there is somebody who is ready."""
        return self._epoll.fileno()

    def add(self, descriptor: int) -> None:
        """See `Watch`."""
        # A socket that is closed leaves by itself.
        self._epoll.register(descriptor, select.EPOLLIN | select.EPOLLONESHOT)

    def ready(self, most: int) -> list[int]:
        """See `Watch`."""
        return [descriptor for descriptor, _ in self._epoll.poll(0, most)]


class Admission:
    """All connections that are not open yet.

    Args:
        watch: of those that are held back
        clock: monotonic seconds
        soon: runs a callable in the next turn of the loop
        later: runs a callable after a delay in seconds
        at_once: how many that have not spoken yet are read
    """

    def __init__(
        self,
        watch: Watch,
        clock: Callable[[], float],
        soon: Callable[[Callable[[], None]], object],
        later: Callable[[float, Callable[[], None]], object],
        *,
        at_once: int = HEARD_AT_ONCE,
    ) -> None:
        self._watch = watch
        self._at_once = at_once
        self._clock = clock
        self._soon = soon
        self._later = later
        self._accepted_count = 0
        self._silent: dict[Newcomer, None] = {}
        self._opening: dict[Newcomer, float] = {}
        self._held: dict[Newcomer, int] = {}
        self._by_descriptor: dict[int, Newcomer] = {}
        self._spoken: list[tuple[int, Newcomer]] = []
        self._unheard: set[Newcomer] = set()
        self._is_scheduled = False

    def is_heard_at_once(self, newcomer: Newcomer) -> bool:
        """Whether this one, accepted now, is to be read; if not, it is held back until `hear`."""
        if len(self._silent) < self._at_once and not self._spoken and self._has_room():
            self._silent[newcomer] = None
            return True
        self._accepted_count += 1
        self._held[newcomer] = self._accepted_count
        return False

    def watch(self, newcomer: Newcomer, descriptor: int) -> None:
        """It is held back, and nothing of it has been read."""
        self._by_descriptor[descriptor] = newcomer
        self._watch.add(descriptor)

    def speaks(self, newcomer: Newcomer) -> None:
        """One that is not held back has said its first words."""
        self._silent.pop(newcomer, None)
        self._opening[newcomer] = self._clock()

    def spoke_early(self, newcomer: Newcomer) -> None:
        """One that is held back was read nevertheless: it need not be watched."""
        self._put(newcomer)
        self._schedule()

    def has_spoken(self, newcomer: Newcomer) -> bool:
        """Whether it is waiting for us: what it has said is not heard yet."""
        return newcomer in self._unheard

    def leaves(self, newcomer: Newcomer, descriptor: int = -1) -> None:
        """Its socket is gone."""
        self._silent.pop(newcomer, None)
        self._opening.pop(newcomer, None)
        self._held.pop(newcomer, None)
        self._unheard.discard(newcomer)
        if self._by_descriptor.get(descriptor) is newcomer:
            del self._by_descriptor[descriptor]

    def on_readable(self) -> None:
        """Some that are held back have spoken."""
        for descriptor in self._watch.ready(MOST_READY):
            newcomer = self._by_descriptor.pop(descriptor, None)
            if newcomer is not None:
                self._put(newcomer)
        self._schedule()

    def _put(self, newcomer: Newcomer) -> None:
        heappush(self._spoken, (self._held[newcomer], newcomer))
        self._unheard.add(newcomer)

    def _schedule(self) -> None:
        if not self._is_scheduled:
            self._is_scheduled = True
            self._soon(self._run)

    def _run(self) -> None:
        """Hear the oldest of those that have spoken, as many as the turn has time for."""
        self._is_scheduled = False
        ends_at = self._clock() + TURN_S
        while self._spoken and self._has_room():
            _, newcomer = heappop(self._spoken)
            if self._held.pop(newcomer, None) is None:
                continue  # It is gone.
            self._unheard.discard(newcomer)
            self._opening[newcomer] = self._clock()
            newcomer.hear()
            if self._clock() >= ends_at:
                break
        if self._spoken and not self._is_scheduled:
            self._is_scheduled = True
            if self._has_room():
                self._soon(self._run)
            else:
                self._later(PAUSE_S, self._run)

    def _has_room(self) -> bool:
        """Whether another one may be opened beside those that are being opened."""
        opening = self._opening
        if len(opening) < MOST_OPENING:
            return True
        late_s = self._clock() - OPENING_S
        for newcomer, since_s in list(opening.items()):
            if since_s <= late_s or not newcomer.is_opening:
                del opening[newcomer]
        return len(opening) < MOST_OPENING
