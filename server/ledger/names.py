"""What lines refer to by number: queues, routes and consumers, each said once in an epoch.

And again when files that said it may be gone by their age (`again`). Must not know files.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from vouchmq.server.ledger.recorder import QueueEventRecorder
from vouchmq.server.ledger.text import quoted

if TYPE_CHECKING:
    from collections.abc import Callable

    from vouchmq.server.broker.queues.api import Queue
    from vouchmq.server.ledger.recorder import Watch
    from vouchmq.server.ledger.writer import LedgerWriter

# Routes that are remembered: a publisher with ever new keys must not grow it.
ROUTES_KEPT: Final = 65536


class Names:
    """Numbers and names of one epoch.

    Args:
        writer: where they are written
        queue_id: the number of a queue, the same as long as the queue lives
        watch: told by queues of what concerns all of them
        tells_ids: message ids are written down, too
    """

    def __init__(
        self,
        writer: LedgerWriter,
        queue_id: Callable[[Queue], int],
        watch: Watch,
        *,
        tells_ids: bool,
    ) -> None:
        self._writer = writer
        self._queue_id = queue_id
        self._watch = watch
        self._routes: dict[tuple[str, str, str, bool], int] = {}
        self._route_count = 0
        self._consumer_count = 0
        self.oldest_route = 0  # those below have to be said again
        self.tells_ids = tells_ids

    def queue(self, queue: Queue, why: str) -> QueueEventRecorder:
        """Say what a queue is; gives its recorder."""
        recorder = QueueEventRecorder(
            self._writer, self._queue_id(queue), look_of(queue), self._watch
        )
        self._say(queue, recorder, why)
        return recorder

    def queue_again(self, queue: Queue, why: str) -> None:
        """Write the queue's name once more, for readers without older files."""
        recorder = queue.recorder
        if isinstance(recorder, QueueEventRecorder):
            recorder.look = look_of(queue)
            self._say(queue, recorder, why)

    def queue_changed(self, queue: Queue) -> None:
        """Say it again if it is no longer what was said."""
        if isinstance(queue.recorder, QueueEventRecorder) and queue.recorder.look != look_of(queue):
            self.queue_again(queue, "changed")

    def _say(self, queue: Queue, recorder: QueueEventRecorder, why: str) -> None:
        spec = queue.spec
        self._writer.name(
            f'que","qid":{recorder.qid},"v":{quoted(spec.vhost)},"k":{quoted(spec.name)},'
            f'{recorder.look},"w":"{why}"'
        )

    def route(self, vhost: str, exchange: str, key: str, *, mandatory: bool) -> int:
        """The number of a route."""
        name = (vhost, exchange, key, mandatory)
        number = self._routes.get(name, -1)
        if number < self.oldest_route:
            if len(self._routes) >= ROUTES_KEPT:
                self._routes.clear()
            self._route_count += 1
            number = self._routes[name] = self._route_count
            self._writer.name(
                f'rte","id":{number},"v":{quoted(vhost)},"x":{quoted(exchange)},'
                f'"k":{quoted(key)},"m":{mandatory:d}'
            )
        return number

    def routes_again(self) -> None:
        """Say routes again, under new numbers, when they are used."""
        self.oldest_route = self._route_count + 1
        self._routes.clear()

    def new_consumer(self) -> int:
        """A number for a consumer."""
        self._consumer_count += 1
        return self._consumer_count


def look_of(queue: Queue) -> str:
    """Type, durability and order of a queue, as a line says them."""
    stored = 2 if queue.stored and queue.keeps_all else int(queue.stored)
    is_free = not queue.is_ordered
    return f'"ty":"{queue.features.type}","d":{stored},"pri":{is_free:d}'
