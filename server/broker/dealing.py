"""How a batch is dealt out among several consumers of a queue: round robin, to the message.

Must not know where messages lie, nor what a consumer is beyond `outlet.py`.

Spec: CONS-10
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections import deque

    from server.broker.line import Line
    from server.broker.outlet import Outlet
    from server.broker.queue import Queue


def serve_group(queue: Queue, group: deque[Outlet], limit: int) -> int:
    """Give consumers of one priority what they have room for; gives how many messages that were."""
    served = 0
    while served < limit and (line := queue.next_line()) is not None:
        head = line.ready[0]
        rooms = [(outlet, outlet.room(head)) for outlet in group]
        able = [outlet for outlet, room in rooms if room > 0]
        if not able:
            break
        if any(outlet.shares_room for outlet in able):
            served += _serve_singly(queue, group, able, limit - served)
            continue
        smallest = min(room for _, room in rooms if room > 0)
        rounds = min(smallest, len(line.ready) // len(able), (limit - served) // len(able) + 1)
        rounds = min(rounds, max(1, line.batch_limit // len(able)))
        if rounds < 1:
            if queue.hand_out(able[0], line, queue.take(line, 1)):
                group.remove(able[0])
                group.append(able[0])
            served += 1
            continue
        served += _deal(queue, group, able, line, rounds)
    return served


def _serve_singly(queue: Queue, group: deque[Outlet], able: list[Outlet], limit: int) -> int:
    """One message each to those who had room a moment ago.

    Room that is shared over a channel, or judged against the size of one head, can be
    promised for one message only.
    """
    served = 0
    for outlet in able:
        line = queue.next_line()
        if served >= limit or line is None:
            break
        if outlet.room(line.ready[0]) > 0:
            if queue.hand_out(outlet, line, queue.take(line, 1)):
                group.remove(outlet)
                group.append(outlet)
            served += 1
    return served


def _deal(queue: Queue, group: deque[Outlet], able: list[Outlet], line: Line, rounds: int) -> int:
    """Give each of `able` every n-th message of a batch, which is exact round robin."""
    if len(able) != len(group):
        waiting = [outlet for outlet in group if outlet not in able]
        group.clear()
        group.extend(waiting)
        group.extend(able)
    count = rounds * len(able)
    batch = queue.take(line, count)
    mark = line.mark
    pen = queue.pen
    if pen is not None:
        pen.dealing()
    for index, outlet in enumerate(able):
        queue.hand_out(outlet, line, batch[index :: len(able)], mark)
    if pen is not None:
        pen.dealt()
    return count
