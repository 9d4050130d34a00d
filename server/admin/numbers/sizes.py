"""`list queue-sizes`: the bytes of queues, and other facts that cost a look at messages.

Nobody counts bytes while messages pass: they are added up when somebody asks. Of a queue with more
than `LOOKED_AT` ready messages in memory so many are looked at, and the others taken to be of their
average size; the same of what is on disk. Whoever wants names and counts asks `list queues`.

Must not know how views are shown, nor change anything.

Spec: HTTP-19
"""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Final

from msgspec import Struct

from vouchmq.protocol.contents import property_block
from vouchmq.protocol.properties import Properties
from vouchmq.protocol.runs import body_size
from vouchmq.server.admin.views import ALL
from vouchmq.server.broker.queues.classic import ClassicQueue
from vouchmq.server.broker.streams.stream import Stream

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from vouchmq.server.admin.views import Selection, Views
    from vouchmq.server.broker.message import Message
    from vouchmq.server.broker.queues.api import Queue
    from vouchmq.server.broker.queues.ready_list import ReadyList

LOOKED_AT: Final = 1024
# The raw content of a message that asks for no more room than any other.
SMALLEST: Final = bytes(20)


class QueueSizes(Struct, frozen=True, array_like=True):
    """How many bytes the bodies of a queue's messages have.

    `persistent` messages are those that the disk has or is to have. `…_in_memory` are of ready
    messages. `has_room` says whether a consumer could be served now; `head_timestamp` is the
    property of the next message, in seconds.
    """

    vhost: str
    name: str
    ready_bytes: int
    unacknowledged_bytes: int
    persistent: int
    persistent_bytes: int
    ready_in_memory: int
    ready_bytes_in_memory: int
    memory_bytes: int
    has_room: bool
    head_timestamp: int | None


class Sum:
    """Messages and their bytes; of those, the persistent ones."""

    __slots__ = ("bytes", "count", "persistent", "persistent_bytes")

    def __init__(self) -> None:
        self.count = self.bytes = self.persistent = self.persistent_bytes = 0

    def add(self, messages: Iterable[Message | None]) -> None:
        """Look at these."""
        for message in messages:
            if message is not None:
                octets, is_stored = body_size(message[0]), message[2] & 1
                self.count += 1
                self.bytes += octets
                self.persistent += is_stored
                self.persistent_bytes += octets * is_stored

    def scaled(self, count: int) -> Sum:
        """What so many such messages are."""
        found = Sum()
        found.count = count
        if self.count:
            found.bytes = self.bytes * count // self.count
            found.persistent = self.persistent * count // self.count
            found.persistent_bytes = self.persistent_bytes * count // self.count
        return found


class Sizes:
    """The listing.

    Args:
        views: the listings of queues and channels
    """

    def __init__(self, views: Views) -> None:
        self._views = views

    def queues(self, wanted: Selection) -> Iterator[QueueSizes | None]:
        """A view for each queue; before, None for each run of deliveries that was added up."""
        unacked: dict[int, Sum] = {}
        for found in self._views.each_channel(ALL):
            if found is None:
                continue
            for run in found[1].unacked.runs():
                unacked.setdefault(id(run.queue), Sum()).add(run.messages)
                yield None
        for queue, _ in self._views.each_queue(wanted):
            yield _sizes(queue, unacked)


def _sizes(queue: Queue, unacked: Mapping[int, Sum]) -> QueueSizes:
    lines: Sequence[ReadyList] = queue.lines if isinstance(queue, ClassicQueue) else ()
    in_memory, on_disk, memory_bytes = Sum(), 0, 0
    looked_at = Sum()
    for line in lines:
        count = _look_at(line, looked_at)
        backlog = line.backlog
        paged = backlog.paged_count if backlog is not None else 0
        in_memory.count += count
        on_disk += paged
        memory_bytes += line.octets
        if not looked_at.count and paged and backlog is not None:
            # Nothing of it is in memory: the first of them say how large they are.
            looked_at.add(backlog.peek(0, LOOKED_AT))
    in_memory = looked_at.scaled(in_memory.count)
    paged_out = looked_at.scaled(on_disk)
    held = unacked.get(id(queue), Sum()).scaled(queue.unacked_count)
    ready_bytes = in_memory.bytes + paged_out.bytes
    if isinstance(queue, Stream):
        ready_bytes = queue.index.octets
    elif isinstance(queue, ClassicQueue) and queue.ready_bytes is not None:
        ready_bytes = queue.ready_bytes.octets
    parts = (in_memory, paged_out, held)
    return QueueSizes(
        vhost=queue.spec.vhost,
        name=queue.spec.name,
        ready_bytes=ready_bytes,
        unacknowledged_bytes=held.bytes,
        persistent=sum(each.persistent for each in parts),
        persistent_bytes=sum(each.persistent_bytes for each in parts),
        ready_in_memory=in_memory.count,
        ready_bytes_in_memory=in_memory.bytes,
        memory_bytes=memory_bytes + held.bytes,
        has_room=_has_room(queue),
        head_timestamp=_head_timestamp(lines),
    )


def _look_at(line: ReadyList, seen: Sum) -> int:
    """Look at the first and last messages of a line in memory; gives how many there are."""
    tail = line.backlog.tail if line.backlog is not None else ()
    count = len(line.ready) + len(tail)
    if count <= LOOKED_AT:
        seen.add(line.ready)
        seen.add(tail)
    else:
        seen.add(islice(line.ready, LOOKED_AT // 2))
        seen.add(islice(reversed(tail or line.ready), LOOKED_AT // 2))
    if line.requeued is not None:
        count += len(line.requeued)
        seen.add(islice(line.requeued, LOOKED_AT))
    return count


def _has_room(queue: Queue) -> bool:
    """Whether a consumer could take the next message, or would if there were one."""
    if not isinstance(queue, ClassicQueue):
        return queue.has_consumers
    head = next((line.ready[0][0] for line in queue.lines if line.ready), SMALLEST)
    return any(each.capacity(head) > 0 for group in queue.subscribers.groups for each in group)


def _head_timestamp(lines: Iterable[ReadyList]) -> int | None:
    for line in lines:
        if line.ready:
            return Properties(property_block(line.ready[0][0])).timestamp
    return None
