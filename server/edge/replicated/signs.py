"""Gives signs of a leader whose loop is busy; runs in a process beside it.

    what the leader has left (`Vital`), several times a second ─▶ Held: is its loop busy?
    busy ─▶ Sign ─▶ standbys, each half second

A leader whose loop runs says all with its beats, which are records of the log: that it is there,
that the log commits, that its disk syncs. So nothing is said then, and a leader that is cut off or
cannot sync is replaced as if there were no signs. While its loop does one thing, such as a
recovery, or the reading of much that one client has asked for, nobody can append for it: a record
that another process has appended would be none of its own (W1). So a sign is a plain message beside
the log. It says how far the leader is; whether that is enough, its standbys judge (`roles.py`).

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
        self._tell: Callable[[bytes], object] | None = None
        self._end: Callable[[], object] | None = None
        self._told_at = 0.0

    def look(self, now: float) -> None:
        """Look whether a sign is due, and give it; to be called each `LOOK_S`."""
        vital = self._read()
        if not vital.epoch:
            self._rest()
            return
        if self._tell is None:
            self._tell, self._end = self._begin()
            self._told_at = now - SIGN_S
        is_held = self._held.look(now, vital.lived_ms / 1000)
        if is_held and now - self._told_at >= SIGN_S:
            self._told_at = now
            sign = Sign(
                log=vital.log_id.hex(),
                node=self._node,
                epoch=vital.epoch,
                steps=vital.steps,
                work_ns=self._work_ns(),
            )
            self._tell(encode(sign))

    def _rest(self) -> None:
        """It does not lead: nothing is said, to nobody."""
        if self._end is not None:
            self._end()
            self._tell = self._end = None
            self._held = Held()
