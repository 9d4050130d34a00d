"""Gives signs of a leader whose loop is busy; runs in a process beside it.

    what the leader has left (`Vital`), several times a second ─▶ Held: is its loop busy?
    busy ─▶ Sign ─▶ standbys, each half second

A leader whose loop runs says all with its beats, which are records of the log: that it is there,
that the log commits, that its disk syncs. So nothing is said then, and a leader that is cut off or
cannot sync is replaced as if there were no signs. While its loop does one thing, such as a
recovery, or the reading of much that one client has asked for, nobody can append for it: a record
that another process has appended would be none of its own (W1). So a sign is a plain message beside
the log. It says how long ago the leader was seen to get on; whether that is enough, its standbys
judge (`roles.py`). Only here is nothing missed: a standby hears some of the signs, and cannot say
whether what is new to it was done just now.

Must not know processes, nor the network.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final, NamedTuple

from vouchmq.server.replication.reports import Sign, encode

if TYPE_CHECKING:
    from collections.abc import Callable

# Between two looks, and between two signs.
LOOK_S: Final = 0.25
SIGN_S: Final = 0.5
# A loop that has missed so much of the last so many seconds is busy.
HELD_S: Final = 0.5
OF_S: Final = 3.0


class Vital(NamedTuple):
    """What a leader leaves where a process beside it finds it.

    Args:
        epoch: of its claim; 0 when it does not lead
        lived_ms: for how long its loop was alive
        steps: of its recovery that are done
        log_id: of its log
    """

    epoch: int
    lived_ms: int
    steps: int
    log_id: bytes


class Held:
    """Whether a loop is busy, by the time for which it was alive."""

    def __init__(self) -> None:
        self._looks: deque[tuple[float, float]] = deque()

    def look(self, now: float, lived_s: float) -> bool:
        """Take in that time, and say so."""
        looks = self._looks
        looks.append((now, lived_s))
        while len(looks) > 1 and now - looks[0][0] > OF_S:
            looks.popleft()
        since, lived_then_s = looks[0]
        return now - since - (lived_s - lived_then_s) >= HELD_S


class Progress:
    """When a leader was last seen to get on, by what is found at each look.

    Args:
        now: of its claim
        steps: of its recovery that were done before
        work_ns: processor time of its loop's thread; asked for only while that loop is busy
    """

    def __init__(self, now: float, steps: int, work_ns: Callable[[], int]) -> None:
        self.stepped_at = self.worked_at = now
        self._steps = steps
        self._work_ns = work_ns
        # While the loop runs, that is work enough.
        self._known_work_ns: int | None = None

    def look(self, now: float, steps: int, *, is_held: bool) -> None:
        """Take in what is done."""
        if steps != self._steps:
            self._steps, self.stepped_at = steps, now
        if not is_held:
            self.worked_at = now
            self._known_work_ns = None
            return
        work_ns = self._work_ns()
        if self._known_work_ns is not None and work_ns > self._known_work_ns:
            self.worked_at = now
        self._known_work_ns = work_ns


class SignGiver:
    """Gives the signs of one node.

    Args:
        node: its name
        read: what it has left
        work_ns: processor time of its loop's thread
        begin: connect to the log; gives what sends a message to standbys, and what disconnects
    """

    def __init__(
        self,
        node: str,
        read: Callable[[], Vital],
        work_ns: Callable[[], int],
        begin: Callable[[], tuple[Callable[[bytes], object], Callable[[], object]]],
    ) -> None:
        self._node = node
        self._read = read
        self._work_ns = work_ns
        self._begin = begin
        self._held = Held()
        self._progress: Progress | None = None
        self._tell: Callable[[bytes], object] | None = None
        self._end: Callable[[], object] | None = None
        self._told_at = 0.0

    def look(self, now: float) -> None:
        """Look whether a sign is due, and give it; to be called each `LOOK_S`."""
        vital = self._read()
        if not vital.epoch:
            self._rest()
            return
        if self._tell is None or self._progress is None:
            self._tell, self._end = self._begin()
            self._told_at = now - SIGN_S
            self._progress = Progress(now, vital.steps, self._work_ns)
        is_held = self._held.look(now, vital.lived_ms / 1000)
        self._progress.look(now, vital.steps, is_held=is_held)
        if is_held and now - self._told_at >= SIGN_S:
            self._told_at = now
            sign = Sign(
                log=vital.log_id.hex(),
                node=self._node,
                epoch=vital.epoch,
                step_age_s=now - self._progress.stepped_at,
                work_age_s=now - self._progress.worked_at,
            )
            self._tell(encode(sign))

    def _rest(self) -> None:
        """It does not lead: nothing is said, to nobody."""
        if self._end is not None:
            self._end()
            self._tell = self._end = self._progress = None
            self._held = Held()
