"""A channel: its deliveries, confirms and transaction.

A channel runs to completion: every method, every run of publishes or acks is one plain call.
Errors are raised and never answered here; the connection turns them into a close, once. What each
method does is in `methods.py`; publishing is in `publish.py`. What the channel owns knows it only
as a narrow protocol, if at all: `DeliveryChannel` to consumers, `PublishingChannel` to publishing.
The channel itself knows its connection as `ChannelHost`.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, cast

from mypy_extensions import mypyc_attr

from vouchmq.protocol.codec import cancel, tx_commit_ok, tx_rollback_ok
from vouchmq.protocol.constants import BASIC_ACK, BASIC_PUBLISH, BASIC_REJECT, TX_COMMIT
from vouchmq.protocol.errors import ChannelError, PreconditionFailed
from vouchmq.protocol.reader import ACKS, PUBLISHES
from vouchmq.server.broker.counters import ChannelCounters
from vouchmq.server.broker.queues.classic import ClassicQueue
from vouchmq.server.broker.queues.settlement import DeadLetterReason, Outcome
from vouchmq.server.channel.consumer import Consumer, Credit
from vouchmq.server.channel.publish import Publisher
from vouchmq.server.channel.stream_settlement import holds_of_streams, refuse_nack
from vouchmq.server.channel.timeouts import DeliveryTimes, Timeouts
from vouchmq.server.channel.unacked import Unacked, octets_of, whole
from vouchmq.server.collector import uncollected

if TYPE_CHECKING:
    from collections.abc import Callable

    from vouchmq.protocol.reader import Event, PublishesEvent, UnlikeEvent
    from vouchmq.protocol.runs import Piece
    from vouchmq.server.auth.users import User
    from vouchmq.server.broker.data_directory import DataDirectory
    from vouchmq.server.broker.message import Message
    from vouchmq.server.broker.queues.api import Queue
    from vouchmq.server.broker.vhost import VHost
    from vouchmq.server.channel.confirms import Confirms
    from vouchmq.server.channel.reply_to import ReplyConsumer, ReplyNames
    from vouchmq.server.channel.tx import HeldSettlement, Transaction
    from vouchmq.server.channel.unacked import Run, UnackedBatch
    from vouchmq.server.connection.outbox import Outbox
    from vouchmq.server.connection.port import ChannelHost
    from vouchmq.server.ledger.channel_recorder import ChannelEventRecorder
    from vouchmq.server.runtime.context import BrokerContext

# More deliveries than these are settled piece by piece (LIMIT-23).
PIECE_MESSAGES: int = 8192


@mypyc_attr(allow_interpreted_subclasses=True)
class Channel:
    """One open channel of a connection.

    Args:
        connection: whose outbox, vhost and user it uses
        number: 1 … 65535
    """

    # Refers back to it and goes with its end; for the compiler, which wants to know.
    __deletable__ = ("_publisher",)

    def __init__(self, connection: ChannelHost, number: int) -> None:
        self.connection = connection
        self.context: BrokerContext = connection.context
        self.number: int = number
        self.octets = number.to_bytes(2, "big")
        self.vhost: VHost[Queue] = connection.vhost
        self.user: User = connection.user
        self.outbox: Outbox = connection.outbox
        self.frame_max = connection.frame_max or 1 << 62
        self.is_closing = False
        self.is_committing = False
        self.flow_active = True
        self.last_queue: str | None = None
        self.barrier_lsn = 0
        self.next_tag = 1
        self.counters = ChannelCounters()
        self.context.closed_counters.channels_opened += 1
        self._tell("channel.created")
        self.unacked = Unacked()
        self._delivery_times: DeliveryTimes | None = None
        self.timeouts = Timeouts(
            self.unacked,
            self.context.timers,
            self.context.limits.consumer_timeout_ms,
            self.delivery_expired,
        )
        self.credit = Credit()
        self.consumer_credit: tuple[int, int] = (self.context.limits.default_consumer_prefetch, 0)
        self.consumers: dict[str, Consumer] = {}
        self.reply_consumer: ReplyConsumer | None = None
        self.confirms: Confirms | None = None
        self.transaction: Transaction | None = None
        self._commit_lsn = 0
        self._committing: list[HeldSettlement] = []
        self.stored_lsn = 0  # of the last publish that nobody waits for
        self._publisher = Publisher(self)
        ledger = self.context.ledger
        self.recorder: ChannelEventRecorder | None = (
            ledger.opened(connection.publish_numbers, self.vhost.name, number)
            if ledger is not None
            else None
        )

    @property
    def owner(self) -> object:
        """Who owns exclusive queues declared here: the connection (QUEUE-07)."""
        return self.connection

    @property
    def reply_names(self) -> ReplyNames:
        """The live names of direct reply-to (CONS-64)."""
        return self.context.replies

    @property
    def data_directory(self) -> DataDirectory:
        """Where the broker keeps everything (DURABLE-26)."""
        return self.context.broker.data_directory

    def barrier(self) -> int:
        """An LSN that is on disk once everything decided so far is."""
        return self.context.journal.barrier()

    def reply(self, frame: bytes, lsn: int = 0) -> None:
        """Answer a method, once everything up to `lsn` is on disk (DURABLE-02).

        An empty frame is the answer to a no-wait method: then whatever is said next on this
        channel waits instead.
        """
        self.barrier_lsn = max(self.barrier_lsn, lsn)
        if not frame:
            return
        if self.barrier_lsn > self.context.watermark:
            self.connection.hold_reply(frame, self.barrier_lsn)
        else:
            self.outbox.send(frame)

    # Publishing

    def publish(self, event: PublishesEvent | UnlikeEvent) -> None:
        """A run of publishes, or some that are unlike, see `Publisher`."""
        if self.is_committing:
            raise ChannelError("unexpected command while processing 'tx.commit'", ids=BASIC_PUBLISH)
        if event[0] == PUBLISHES:
            self._publisher.publish(*event[2:])
        else:
            self._publisher.publish_unlike(*event[2:])

    def refuse_too_large(self, body_octets: int) -> None:
        """Refuse a message too large, known from its header (FRAME-38)."""
        largest = self.context.limits.max_message_size_bytes
        raise PreconditionFailed(
            f"message size {body_octets} is larger than configured max size {largest}",
            ids=BASIC_PUBLISH,
        )

    def confirm(self, count: int, lsn: int) -> None:
        """Number publishes; their confirms leave at the end of the turn or with the watermark."""
        confirms = self.confirms
        if confirms is None:
            self.stored_lsn = lsn or self.stored_lsn
            self.counters.published += count
            return
        context, wanted_lsn = self.context, lsn
        if lsn <= context.watermark:
            lsn = wanted_lsn = 0  # of a duplicate, safe already: the watermark need not move
        if self.barrier_lsn > context.watermark:
            wanted_lsn = max(lsn, self.barrier_lsn)
        confirms.published(count, wanted_lsn, context.budget.began_at)
        if wanted_lsn or confirms.waits:
            context.waits(self)
        if not lsn:
            context.turn.wants_release(self)

    def refuse(self) -> None:
        """A queue refuses the last publish: nack it, if somebody listens (CONF-07, LEN-20)."""
        if self.confirms is not None:
            self.confirms.refused()
            self.context.turn.wants_release(self)
        else:
            self.counters.published += 1

    @property
    def awaits_confirm(self) -> bool:
        """True while a publish waits for the disk to be confirmed."""
        return self.confirms is not None and self.confirms.waits

    @property
    def is_barred(self) -> bool:
        """True while something declared on this channel is not yet on disk."""
        return self.barrier_lsn > self.context.watermark

    def reply_name(self) -> str:
        """The generated name for a publish with reply-to (CONS-62)."""
        if self.reply_consumer is None:
            raise PreconditionFailed("fast reply consumer does not exist", ids=BASIC_PUBLISH)
        return self.reply_consumer.name

    def put_off(self, event: Event) -> None:
        """Publish what is left of a run in a later turn, and do nothing else before (LIMIT-23)."""
        self.connection.put_off(event)

    def publish_refused(self, lsn: int) -> None:
        """The disk has refused what was just published under this LSN (CONF-12)."""
        self.connection.storage_refused(lsn)

    # Deliveries

    @property
    def is_swamped(self) -> bool:
        """See `DeliveryChannel`."""
        return self.connection.wire.is_swamped

    def send_behind_replies(self, *pieces: Piece) -> None:
        """See `DeliveryChannel`."""
        self.connection.send_behind_replies(*pieces)

    def delivered(
        self, consumer: Consumer, messages: list[Message], first: int, *, is_dense: bool
    ) -> None:
        """See `DeliveryChannel`."""
        self.credit.use(messages)
        queue = consumer.queue
        since_ms = self.timeouts.watch(consumer, queue)
        self.unacked.add(first, messages, consumer, queue, since_ms, is_dense=is_dense)

    def note_times(self) -> None:
        """Once a second: note when deliveries were made that are outstanding."""
        unacked = self.unacked
        if not unacked.count:
            self._delivery_times = None
            return
        if self._delivery_times is None:
            self._delivery_times = DeliveryTimes()
        self._delivery_times.look(self.next_tag, unacked.oldest_tag, self.context.timers.now_ms())

    def held_since(self, tag: int, since_ms: int = 0) -> int:
        """When an outstanding delivery was made, or up to a second later; `since_ms`: if known."""
        times = self._delivery_times
        if not since_ms and times is not None:
            since_ms = times.since(tag)
        return since_ms or self.context.timers.now_ms()

    @property
    def oldest_unacked_ms(self) -> int:
        """For how long the oldest delivery is outstanding, or a second longer; 0 without any."""
        tag = self.unacked.oldest_tag
        return self.context.timers.now_ms() - self.held_since(tag) if tag else 0

    def served(self, consumer: Consumer) -> None:
        """See `DeliveryChannel`."""
        if self.consumers.pop(consumer.tag, None) is not None:
            self.consumers[consumer.tag] = consumer

    def delivery_expired(self, consumer: Consumer | None, timeout_ms: int) -> bool:
        """A delivery was not settled in time: its consumer goes, or the channel (CONS-71, 72).

        Returns:
            False when the channel has ended
        """
        if consumer is None or not self.connection.has_capability("consumer_cancel_notify"):
            text = (
                f"delivery acknowledgement on channel {self.number} timed out. Timeout value "
                f"used: {timeout_ms} ms. This timeout value can be configured, see consumers doc "
                "guide to learn more"
            )
            self.connection.fail_channel(self.number, PreconditionFailed(text, ids=(0, 0)))
            return False
        if consumer.is_active:
            # Before the requeue, or it would be given them again.
            consumer.is_active = False
            consumer.queue.remove_consumer(consumer)
            self.consumer_cancelled(consumer)
        self.settle(self.unacked.take_of(consumer), Outcome.TIMED_OUT)
        return True

    # Settling

    def ack(self, event: Event) -> None:
        """A run of acks, with multiple or without (ACK-03)."""
        if self.is_committing:
            raise ChannelError("unexpected command while processing 'tx.commit'", ids=BASIC_ACK)
        if event[0] == ACKS:
            self.ack_ranges(event[2])  # type: ignore[misc, arg-type]
        else:
            self.ack_up_to(event[2])  # type: ignore[misc, arg-type]

    def ack_ranges(self, ranges: list[tuple[int, int]]) -> None:
        """Single acks, as ranges of tags in the order received."""
        for first, last in ranges:
            if first == last and self.transaction is None:
                run = self.unacked.take_oldest(first)
                if run is not None:
                    self._acked(run)
                    continue
            taken, unknown = self.unacked.take_range(first, last)
            if taken:
                self._settle_or_hold(taken, Outcome.ACKED)
            if unknown or not first:
                raise unknown_tag(unknown, BASIC_ACK)

    def ack_up_to(self, tags: list[int]) -> None:
        """Acks with multiple, of growing tags: the last outstanding one says what all do."""
        unacked = self.unacked
        count = 0
        while count < len(tags) and unacked.is_outstanding(tags[count]):
            count += 1
        unknown = tags[count] if count < len(tags) else 0
        if count:
            last = tags[count - 1]
            if unacked.most_up_to(last) > PIECE_MESSAGES:
                self._settle_in_pieces(last, Outcome.ACKED, unknown)
                return
            taken = unacked.take_up_to(last)
            if taken:
                self._settle_or_hold(taken, Outcome.ACKED)
        if unknown:
            raise unknown_tag(unknown, BASIC_ACK)

    def _acked(self, run: Run) -> None:
        """One delivery is settled, as `settle` does it with many."""
        queue, consumer = run.queue, run.consumer
        if (
            consumer is None
            or self.recorder is not None
            or self.credit.limit
            or self.credit.limit_octets
            or not isinstance(queue, ClassicQueue)
        ):
            self.settle([whole(run)], Outcome.ACKED)
            return
        # Nothing in it is None: it is outstanding.
        messages = cast("list[Message]", run.messages)
        consumer.credit.give_back(messages)
        self.credit.outstanding -= 1
        self.counters.acked += 1
        queue.acked(messages, consumer)

    def reject_ranges(self, ranges: list[tuple[int, int]]) -> None:
        """The same for rejects that put nothing back (ACK-06)."""
        if self.is_committing:
            raise ChannelError("unexpected command while processing 'tx.commit'", ids=BASIC_REJECT)
        for first, last in ranges:
            taken, unknown = self.unacked.take_range(first, last)
            if taken:
                refuse_nack(self.unacked, taken, BASIC_REJECT)
                self._settle_or_hold(taken, Outcome.DISCARDED)
            if unknown or not first:
                raise unknown_tag(unknown, BASIC_REJECT)

    def settle_tag(
        self, tag: int, outcome: Outcome, ids: tuple[int, int], *, multiple: bool
    ) -> None:
        """basic.ack, nack or reject of one tag, or of all up to it (ACK-03…06)."""
        if not multiple:
            taken, unknown = self.unacked.take_range(tag, tag)
            if unknown or not tag:
                raise unknown_tag(tag, ids)
        elif self.unacked.count > PIECE_MESSAGES and self._settle_in_pieces(tag, outcome):
            return
        elif tag:
            found = self.unacked.take_up_to(tag)
            if found is None:
                raise unknown_tag(tag, ids)
            taken = found
        else:
            taken = self.unacked.take_all()
        if outcome is not Outcome.ACKED:
            refuse_nack(self.unacked, taken, ids)
        self._settle_or_hold(taken, outcome)

    def _settle_in_pieces(self, tag: int, outcome: Outcome, unknown: int = 0) -> bool:
        """Settle all up to a tag, 0: all, in as many turns as that takes (LIMIT-23).

        `unknown`: a tag that was acked behind it and is not outstanding.

        Returns:
            False when it is to be done, or refused, as a whole
        """
        unacked = self.unacked
        last = tag or unacked.last_tag
        may_refuse = outcome is not Outcome.ACKED and holds_of_streams(self.unacked)
        if may_refuse or not unacked.is_outstanding(last):
            return False

        def step() -> bool:
            taken = unacked.take_first(last, PIECE_MESSAGES)
            if taken:
                self._settle_or_hold(taken, outcome)
            elif unknown:
                raise unknown_tag(unknown, BASIC_ACK)
            return not taken

        self.in_slices(step)
        return True

    def requeue_all(self) -> None:
        """basic.recover: put everything outstanding back, as if nothing held it (ACK-20, TX-13)."""
        unacked = self.unacked
        last = unacked.last_tag

        def step() -> bool:
            taken = unacked.take_first(last, PIECE_MESSAGES)
            if taken:
                self.settle(taken, Outcome.RECOVERED)
            return not taken

        self.in_slices(step)

    def in_slices(self, step: Callable[[], bool]) -> None:
        """Take steps until one is the last: before this client's next method, others in between.

        What a step leaves must be fit to be seen, and to be the end: the channel may be closed, or
        its connection lost, before the next one (LIMIT-23).
        """
        is_over = self.context.budget.is_over
        while not step():
            if is_over():
                self.connection.go_on_later(self.number, partial(self.in_slices, step))
                return

    def _settle_or_hold(self, taken: list[UnackedBatch], outcome: Outcome) -> None:
        if self.transaction is not None:
            self.transaction.settle(taken, outcome)
        else:
            self.settle(taken, outcome)

    def settle(self, taken: list[UnackedBatch], outcome: Outcome) -> None:
        """Give credit back and let the queues know."""
        recorder = self.recorder
        for entry in taken:
            if recorder is not None:
                recorder.settled(entry, outcome)
            if entry.consumer is not None:
                entry.consumer.credit.give_back(entry.messages)
                self.credit.give_back(entry.messages)
            if outcome is Outcome.ACKED:
                count = len(entry.messages)
                self.counters.acked += count
                entry.queue.counters.acked += count
                entry.queue.settle(entry.messages)
                continue
            self._count(entry, outcome, len(entry.messages))
            if outcome is Outcome.DISCARDED:
                entry.queue.discard(entry.messages, DeadLetterReason.REJECTED)
            else:
                entry.queue.requeue(entry.messages, outcome)
        if self.credit.limit or self.credit.limit_octets:
            # First, for the queues are served in the order in which they are woken.
            self.wake_consumers()
        for entry in taken:
            entry.queue.credit_available(entry.consumer)

    def _count(self, entry: UnackedBatch, outcome: Outcome, count: int) -> None:
        if outcome is Outcome.ACKED:
            self.counters.acked += count
            entry.queue.counters.acked += count
        elif outcome not in {Outcome.RECOVERED, Outcome.LOOKED_AT}:
            self.counters.rejected += count
            entry.queue.counters.rejected += count

    @property
    def counted(self) -> ChannelCounters:
        """What this channel has done so far."""
        found = ChannelCounters()
        self._count_in(found)
        return found

    def _count_in(self, totals: ChannelCounters) -> None:
        counters, confirms = self.counters, self.confirms
        totals.add(counters)
        # Both are numbered in any case: nobody counts them again.
        totals.delivered += self.next_tag - 1 + counters.resent
        if confirms is not None:
            totals.published += confirms.last
            totals.published_confirm += confirms.last
            totals.nacked += confirms.nacked
            totals.confirmed += confirms.last - confirms.unconfirmed_count - confirms.nacked

    def wake_consumers(self) -> None:
        """There may be room again: let every queue consumed here try."""
        for consumer in self.consumers.values():
            consumer.queue.credit_available(consumer)

    # Confirms and transactions waiting for the disk

    def release(self, watermark: int) -> bool:
        """See `context.Waiter`: say the confirms and the commit-ok that are true now."""
        if self.is_closing:
            return True
        if self.confirms is not None:
            self.outbox.send(self.confirms.release(watermark))
            return not self.confirms.waits
        if self.is_committing and self._commit_lsn <= watermark:
            self.is_committing = False
            self._committing = []
            if self.recorder is not None:
                self.recorder.commit_answered(watermark, is_ok=True)
            self.outbox.send(tx_commit_ok(self.number))
        return not self.is_committing

    def storage_failed(self) -> None:
        """See `context.Waiter`: nothing that waits can be confirmed any more (CONF-12, TX-09)."""
        if self.is_closing:
            return
        if self.confirms is not None:
            self.outbox.send(self.confirms.refuse(0, self.context.watermark))
        elif self.is_committing:
            if self.recorder is not None:
                self.recorder.commit_answered(self.context.watermark, is_ok=False)
            self.connection.fail_channel(self.number, refused_commit())

    def storage_refused(self, first_lsn: int) -> bool:
        """Nothing from this LSN on was stored: nack it, or take the commit back.

        Returns:
            True when a message was lost that nobody waits for: then the connection must end
            (CONF-12)
        """
        if self.is_closing:
            return False
        if self.confirms is not None:
            self.outbox.send(self.confirms.refuse(first_lsn, self.context.watermark))
        elif self.is_committing and self._commit_lsn >= first_lsn:
            self.is_committing = False
            if self.recorder is not None:
                self.recorder.commit_answered(self.context.watermark, is_ok=False)
            gone_of = self.context.feature_context.dead_letter_sender.gone_of
            for settlement in self._committing:
                if not settlement.outcome.is_requeue:
                    for entry in settlement.entries:
                        self._count(entry, settlement.outcome, -len(entry.messages))
                        if entry.queue.recorder is not None and not entry.queue.is_deleted:
                            entry.queue.recorder.back(gone_of(entry.queue, entry.messages))
                        entry.queue.unsettle(entry.messages)
                        for copies in entry.queue.stored_copies(entry.messages):
                            self.context.journal.unsettle(*copies)
                    self.unacked.restore(settlement.entries)
            self.connection.fail_channel(self.number, refused_commit())
        return self.stored_lsn >= first_lsn

    def commit(self) -> None:
        """tx.commit: apply, then wait for the disk where anything durable changed (TX-08)."""
        transaction = self._needs_transaction()
        settlements = transaction.settlements
        enqueuer = self.context.enqueuer
        if enqueuer.refuses_any(map(self._publisher.target_of, transaction.publishes)):
            raise refused_commit()
        enqueuer.is_gathering = True
        recorder = self.recorder
        numbered = recorder.last if recorder is not None else 0
        try:
            with uncollected(transaction.message_count):
                durable = transaction.commit(self._publisher.store_held, self.settle)
        finally:
            enqueuer.is_gathering = False
        if recorder is not None:
            recorder.commits(numbered)
        if not durable and not self.is_barred:
            if recorder is not None:
                recorder.commit_answered(self.context.watermark, is_ok=True)
            self.outbox.send(tx_commit_ok(self.number))
            return
        self._commit_lsn = self.context.journal.barrier()
        self.is_committing = True
        self._committing = settlements
        self.context.turn.wake()
        self.context.waits(self)

    def rollback(self) -> None:
        """Answer tx.rollback: drop publishes, restore acked tags (TX-10)."""
        entries = self._needs_transaction().rollback()
        self.unacked.restore(entries)
        self.timeouts.watch_again(entries)
        self.reply(tx_rollback_ok(self.number))

    def serve_first(self, queue_name: str) -> bool:
        """Let consumers have what is theirs before a command looks at their queue (CONS-52).

        Returns:
            False when the disk has refused it, and the channel is gone by that (CONF-12)
        """
        queue = self.vhost.queues.get(queue_name)
        if queue is None or not queue.owes:
            return True
        self.context.feature_context.serve(queue)
        return not self.is_closing and not self.context.has_failed

    def _needs_transaction(self) -> Transaction:
        if self.transaction is None:
            raise PreconditionFailed("channel is not transactional")
        return self.transaction

    def outstanding(self) -> list[UnackedBatch]:
        """Deliveries not settled yet, nor by a transaction that is not committed yet."""
        found = self.unacked.live()
        if self.transaction is not None:
            found += [entry for held in self.transaction.settlements for entry in held.entries]
        return found

    @property
    def unacked_octets(self) -> int:
        """About what deliveries take in memory that are not settled, nor by a commit."""
        octets = self.unacked.octets
        if self.transaction is not None:
            held = (each for one in self.transaction.settlements for each in one.entries)
            octets += sum(octets_of(entry.messages) for entry in held)
        return octets

    def _tell(self, event: str, **facts: object) -> None:
        events = self.context.events
        if events.is_heard:
            events.tell(
                event,
                connection=self.connection.wire.name,
                channel=self.number,
                user=self.user.name,
                vhost=self.vhost.name,
                **facts,
            )

    def tell_consumer(self, event: str, consumer: Consumer) -> None:
        """Tell whoever watches the broker that a consumer has come or gone."""
        self._tell(event, queue=consumer.queue.spec.name, tag=consumer.tag)

    # Ends

    def consumer_cancelled(self, consumer: Consumer) -> None:
        """The broker has ended a consumer: tell the client, if it can hear it (CONS-40).

        A deletion on this very channel has been answered before (QUEUE-61); that answer may be
        waiting for the disk, and this waits behind it.
        """
        self.consumers.pop(consumer.tag, None)
        self.tell_consumer("consumer.deleted", consumer)
        if consumer.recorder is not None:
            consumer.recorder.introduce("stop")
        if not self.is_closing and self.connection.has_capability("consumer_cancel_notify"):
            self.connection.send_behind_replies(cancel(self.number, consumer.tag))

    def close(self, why: str = "channel") -> None:
        """The channel ends: no consumers, no transaction, no confirms; requeue (CHAN-10).

        `why` is for the ledger: it or its connection was closed.
        """
        self.is_closing = True
        self._count_in(self.context.closed_counters.channels)
        self._count_in(self.vhost.closed_channels)
        self._tell("channel.closed")
        self.context.forget(self)
        self.context.channel_closed(self.user)
        if self.reply_consumer is not None:
            self.context.replies.close(self.reply_consumer)
            self.reply_consumer = None
        # Consumers go before the requeue, or they would be given their own messages back.
        consumers, self.consumers = self.consumers, {}
        outstanding = self.unacked.take_all()
        if self.transaction is not None:
            outstanding += self.transaction.rollback()
            self.transaction = None
        for consumer in consumers.values():
            consumer.is_active = False
            self.tell_consumer("consumer.deleted", consumer)
            if consumer.recorder is not None:
                consumer.recorder.introduce("stop")
        for entry in outstanding:
            if self.recorder is not None:
                self.recorder.settled(entry, Outcome.LOST, why)
            entry.queue.requeue(entry.messages, Outcome.LOST)
        for consumer in consumers.values():
            consumer.queue.remove_consumer(consumer)
        if self.recorder is not None:
            self.recorder.close()
        self._publisher.forget_staged()
        # These refer back; without the ring all of this goes at once (see `Connection.lost`).
        self.timeouts.end()
        del self._publisher


def refused_commit() -> PreconditionFailed:
    """A transaction could not be stored: its channel ends without commit-ok (TX-09)."""
    return PreconditionFailed("partial tx completion", ids=TX_COMMIT)


def unknown_tag(tag: int, ids: tuple[int, int]) -> PreconditionFailed:
    """406 for a delivery tag that is not outstanding (ACK-05)."""
    return PreconditionFailed(f"unknown delivery tag {tag}", ids=ids)
