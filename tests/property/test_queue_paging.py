"""The queue's model again, with so little memory that most of what is ready lies on the disk."""

from __future__ import annotations

from hypothesis import settings
from hypothesis.stateful import invariant, rule

from tests.property.queue_machine import QueueMachine
from tests.unit.server.broker.paging.paged_worlds import FakePagedStore
from tests.unit.server.queues import Stage
from vouchmq.server.broker.paging.pager import LEAST_OCTETS, ScratchSpan
from vouchmq.server.broker.queues.classic import ClassicQueue

MESSAGE_OCTETS = LEAST_OCTETS // 3


def ready_seqs(queue: ClassicQueue, store: FakePagedStore) -> list[int]:
    """All ready messages in order, wherever they are."""
    queue.take_in(at_once=True)
    seqs = [message[2] for message in queue.ready.in_memory()]
    backlog = queue.ready.backlog
    if backlog is None:
        return seqs
    for span in backlog._spans:
        if isinstance(span, ScratchSpan):
            seqs += [message[2] for message in store.pages[span.page]]
        else:
            seqs += [lsn * 2 + 1 for lsn in span.lsns]
    return seqs + [message[2] for message in backlog.tail]


class PagingQueueMachine(QueueMachine):
    """Every run may page out; the order, the marks and the journal must not show it."""

    def __init__(self) -> None:
        super().__init__()
        self.stage = Stage(
            budget=(4 * LEAST_OCTETS, 2 * LEAST_OCTETS), message_octets=MESSAGE_OCTETS
        )

    @rule()
    def page(self) -> None:
        self.stage.pager.run()

    @rule()
    def page_hard(self) -> None:
        self.stage.queue.ready.page_out(0)

    def ready_seqs(self) -> list[int]:
        return ready_seqs(self.stage.queue, self.stage.store)

    @invariant()
    def contents_agree(self) -> None:
        queue = self.stage.queue
        assert queue.ready_count == len(self.ready)
        assert queue.unacked_count == len(self.unacked)

    @invariant()
    def memory_is_accounted_for(self) -> None:
        queue = self.stage.queue
        assert queue.ready.octets == self.stage.pager.total
        assert queue.ready.octets >= 0
        backlog = queue.ready.backlog
        held = len(queue.ready.in_memory()) + (len(backlog.tail) if backlog is not None else 0)
        assert (queue.ready.octets > 0) == (held > 0)

    @invariant()
    def no_page_is_left_behind(self) -> None:
        backlog = self.stage.queue.ready.backlog
        spans = backlog._spans if backlog is not None else ()
        pages = {span.page for span in spans if isinstance(span, ScratchSpan)}
        assert set(self.stage.store.pages) == pages


PagingQueueMachine.TestCase.settings = settings(
    max_examples=150, stateful_step_count=40, deadline=None
)
TestPagingQueue = PagingQueueMachine.TestCase
