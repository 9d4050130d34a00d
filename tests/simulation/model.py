"""What a broker has to do, said a second time and as plainly as possible.

The model is told of every command at the moment the broker takes it, and of every frame at the
moment the broker writes it. It predicts replies, checks deliveries (each queue first in, first
out; redelivered told truly; prefetch kept; tags in order), counts confirms, and keeps the
`Ledger` of what may be on the disk.
"""

from __future__ import annotations

from bisect import insort
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from tests.simulation.ledger import Found, Item, Ledger, Record, State, Violation

PREDECLARED = {"": "direct", "amq.direct": "direct", "amq.fanout": "fanout", "amq.topic": "topic"}


class Refused(Exception):  # noqa: N818 - an answer of the broker that the model expects
    """The broker must answer with this reply code."""

    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code


@dataclass(slots=True, eq=False)
class Held:
    """One message in one queue."""

    number: int
    seq: int
    is_stored: bool
    was_handed: bool = False
    flag: bool | None = None  # what recovery must show at the first delivery after it


@dataclass(slots=True, eq=False)
class MQueue:
    """A queue and its ready messages, in the order of publishing."""

    name: str
    is_durable: bool
    auto_delete: bool = False
    ready: list[Held] = field(default_factory=list)
    consumers: list[MConsumer] = field(default_factory=list)
    is_deleted: bool = False

    def put_back(self, held: Held) -> None:
        insort(self.ready, held, key=seq_of)


@dataclass(slots=True, eq=False)
class MConsumer:
    """A consumer: what it holds counts against its prefetch."""

    tag: str
    channel: MChannel
    queue: MQueue
    no_ack: bool
    prefetch: int
    count: int = 0
    is_active: bool = True


@dataclass(slots=True, eq=False)
class Outstanding:
    """A delivery that is not settled."""

    held: Held
    queue: MQueue
    consumer: MConsumer | None


@dataclass(slots=True)
class Published:
    """A numbered publish: it may be confirmed once record `need` is written."""

    number: int
    need: int
    latest: int = 0  # so long the broker may wait, for definitions that others have made meanwhile
    is_refused: bool = False  # the disk took no block with it: a nack is due
    may_be_refused: bool = False


@dataclass(slots=True, eq=False)
class MChannel:
    """A channel as the broker must see it."""

    key: tuple[int, int]
    mode: str = ""  # "confirm" or "tx"
    next_tag: int = 1
    published: int = 0
    unconfirmed: dict[int, Published] = field(default_factory=dict)
    returns: deque[int] = field(default_factory=deque)
    outstanding: dict[int, Outstanding] = field(default_factory=dict)
    consumers: dict[str, MConsumer] = field(default_factory=dict)
    cancelled: set[str] = field(default_factory=set)
    prefetch: int = 0
    shared_prefetch: int = 0
    replies: deque[tuple[str, tuple[object, ...], int]] = field(default_factory=deque)
    again: dict[int, list[int]] = field(default_factory=dict)  # messages due again, by tag
    owed: int = 0
    owed_latest: int = 0
    tx_publishes: list[tuple[tuple[MQueue, ...], int, bool, bool]] = field(default_factory=list)
    tx_settles: list[tuple[dict[int, Outstanding], bool]] = field(default_factory=list)
    is_committing: bool = False
    commit_need: int = 0
    committed: list[tuple[dict[int, Outstanding], bool]] = field(default_factory=list)
    is_closing: bool = False

    @property
    def shared_count(self) -> int:
        held = [o for entries, _ in self.tx_settles for o in entries.values()]
        return sum(o.consumer is not None for o in (*self.outstanding.values(), *held))

    def expect(self, kind: str, *facts: object, need: int = 0) -> None:
        self.replies.append((kind, facts, max(need, self.owed)))


def seq_of(held: Held) -> int:
    return held.seq


class Model:
    """One broker process."""

    def __init__(self, state: State | None = None) -> None:
        self.ledger = Ledger(state or State())
        self.queues: dict[str, MQueue] = {}
        self.exchanges: dict[str, tuple[str, bool]] = {n: (t, True) for n, t in PREDECLARED.items()}
        self.bindings: dict[tuple[str, str, str], None] = {}
        self.channels: dict[tuple[int, int], MChannel] = {}
        self.told: dict[Item, int] = {}  # number of the record that defined or undefined an item
        self.last_told = 0  # the highest of these
        self.seq = 0
        self.seqs: dict[int, int] = {}  # of each message, in the order of enqueueing
        self.highest_handed: dict[str, int] = {}  # by queue, the latest that was ever handed out
        self.has_failed = False
        self.deliveries = 0
        self.confirms = 0
        self._batch: dict[MQueue, list[tuple[MConsumer, Held]]] = {}

    @classmethod
    def recovered(cls, old: Model, state: State, found: Found) -> Model:
        """The model of the process that has recovered `state`."""
        model = cls(state)
        model.seq = old.seq
        model.seqs = {number: old.seqs[number] for _, number in state.copies}
        for item in sorted(state.items, key=repr):
            if item[0] == "queue":
                name = str(item[1])
                model.queues[name] = MQueue(name, True, bool(item[2]))
            elif item[0] == "exchange":
                model.exchanges[str(item[1])] = (str(item[2]), True)
            else:
                model.bindings[(str(item[1]), str(item[2]), str(item[3]))] = None
        for name, messages in found.queues.items():
            queue = model.queues[name]
            queue.ready = [
                Held(number, model.seqs[number], True, (name, number) in state.handed, flag)
                for number, flag in messages
            ]
            flagged = [model.seqs[number] for number, flag in messages if flag]
            model.highest_handed[name] = max(flagged, default=0)
        return model

    def check_order(self, found: Found) -> None:
        """Each recovered queue is in the order of publishing, and no flag is invented."""
        for name, messages in found.queues.items():
            unknown = [number for number, _ in messages if number not in self.seqs]
            if unknown:
                raise Violation(f"queue {name} recovered what was not published yet: {unknown}")
            seqs = [self.seqs[number] for number, _ in messages]
            if seqs != sorted(set(seqs)):
                raise Violation(f"queue {name} recovered out of order or twice: {messages}")
            if self.ledger.is_writing or self.has_failed:
                continue  # what this turn hands out is in the block, and not yet in a socket
            highest = self.highest_handed.get(name, 0)
            for number, flag in messages:
                if flag and self.seqs[number] > highest:
                    raise Violation(f"{number} in {name} is redelivered, but was never handed out")

    # Definitions

    def _define(self, item: Item) -> int:
        self.ledger.current.define(item)
        self.told[item] = self.last_told = self.ledger.pending
        return self.ledger.pending

    def _undefine(self, item: Item) -> int:
        self.ledger.current.undefine(item)
        self.told[item] = self.last_told = self.ledger.pending
        return self.ledger.pending

    def _is_durable(self, source: str, queue: str) -> bool:
        return self.exchanges[source][1] and self.queues[queue].is_durable

    def queue(self, name: str) -> MQueue:
        found = self.queues.get(name)
        if found is None:
            raise Refused(404)
        return found

    def declare_queue(
        self, ch: MChannel, name: str, durable: bool, auto_delete: bool, nowait: bool
    ) -> None:
        item = ("queue", name, auto_delete)
        queue = self.queues.get(name)
        need = self.told.get(item, 0) if durable else 0
        if queue is None:
            queue = self.queues[name] = MQueue(name, durable, auto_delete)
            if durable:
                need = self._define(item)
        facts = (name, len(queue.ready), len(queue.consumers))
        self._answer(ch, nowait, "Queue.DeclareOk", facts, need)

    def _answer(
        self, ch: MChannel, nowait: bool, kind: str, facts: tuple[object, ...], need: int
    ) -> None:
        if nowait:
            ch.owed = max(ch.owed, need)
            if need or kind.endswith("DeleteOk"):
                ch.owed_latest = self.last_told
        else:
            ch.expect(kind, *facts, need=need)

    def delete_queue(self, ch: MChannel, name: str, nowait: bool) -> None:
        queue = self.queues.get(name)
        need = max((self.told.get(("queue", name, flag), 0) for flag in (False, True)), default=0)
        count = 0
        if queue is not None:
            count = len(queue.ready)
            need = self._remove_queue(queue)
        self._answer(ch, nowait, "Queue.DeleteOk", (count,), need)

    def _remove_queue(self, queue: MQueue) -> int:
        need = 0
        for source, name, key in [b for b in self.bindings if b[1] == queue.name]:
            if self._is_durable(source, name):
                need = self._undefine(("binding", source, name, key))
            del self.bindings[(source, name, key)]
        del self.queues[queue.name]
        queue.is_deleted = True
        if queue.is_durable:
            need = self._undefine(("queue", queue.name, queue.auto_delete))
            self._drop_stored(queue)
        queue.ready.clear()
        consumers, queue.consumers = queue.consumers, []
        for consumer in consumers:
            consumer.is_active = False
            consumer.channel.consumers.pop(consumer.tag, None)
            consumer.channel.cancelled.add(consumer.tag)
        return need

    def _drop_stored(self, queue: MQueue) -> None:
        """All copies of a queue, also those that are with consumers."""
        current = self.ledger.current
        for held in (self.ledger.base.copies, *(each.added for each in self.ledger.records)):
            current.dropped |= {copy for copy in held if copy[0] == queue.name}
        current.removed |= current.dropped
        current.added = {copy for copy in current.added if copy[0] != queue.name}

    def declare_exchange(
        self, ch: MChannel, name: str, kind: str, durable: bool, nowait: bool
    ) -> None:
        item = ("exchange", name, kind)
        need = self.told.get(item, 0) if durable else 0
        if name not in self.exchanges:
            self.exchanges[name] = (kind, durable)
            if durable:
                need = self._define(item)
        self._answer(ch, nowait, "Exchange.DeclareOk", (), need)

    def delete_exchange(self, ch: MChannel, name: str, nowait: bool) -> None:
        need = 0
        if name in self.exchanges:
            kind, durable = self.exchanges[name]
            for source, queue, key in [b for b in self.bindings if b[0] == name]:
                if self._is_durable(source, queue):
                    self._undefine(("binding", source, queue, key))
                del self.bindings[(source, queue, key)]
            del self.exchanges[name]
            if durable:
                need = self._undefine(("exchange", name, kind))
        self._answer(ch, nowait, "Exchange.DeleteOk", (), need)

    def bind(self, ch: MChannel, source: str, name: str, key: str, nowait: bool) -> None:
        if source not in self.exchanges or name not in self.queues:
            raise Refused(404)
        item = ("binding", source, name, key)
        is_durable = self._is_durable(source, name)
        need = self.told.get(item, 0) if is_durable else 0
        if (source, name, key) not in self.bindings:
            self.bindings[(source, name, key)] = None
            if is_durable:
                need = self._define(item)
        self._answer(ch, nowait, "Queue.BindOk", (), need)

    def unbind(self, ch: MChannel, source: str, name: str, key: str) -> None:
        need = 0
        if (source, name, key) in self.bindings:
            if self._is_durable(source, name):
                need = self._undefine(("binding", source, name, key))
            del self.bindings[(source, name, key)]
        ch.expect("Queue.UnbindOk", need=need)

    def purge(self, ch: MChannel, name: str) -> None:
        queue = self.queue(name)
        for held in queue.ready:
            self._gone(queue, held, self.ledger.current)
        ch.expect("Queue.PurgeOk", len(queue.ready))
        queue.ready.clear()

    # Publishing

    def route(self, exchange: str, key: str) -> tuple[MQueue, ...]:
        if not exchange:
            return (self.queues[key],) if key in self.queues else ()
        kind = self.exchanges[exchange][0]
        names = {
            queue: None
            for source, queue, pattern in self.bindings
            if source == exchange
            and (
                kind == "fanout"
                or (kind == "direct" and pattern == key)
                or (kind == "topic" and matches(pattern.split("."), key.split(".")))
            )
        }
        return tuple(self.queues[name] for name in names)

    def publish(
        self, ch: MChannel, exchange: str, key: str, number: int, persistent: bool, mandatory: bool
    ) -> None:
        if exchange not in self.exchanges:
            raise Refused(404)
        queues = self.route(exchange, key)
        if ch.mode == "tx":
            ch.tx_publishes.append((queues, number, persistent, mandatory))
            return
        need = self._store(ch, queues, number, persistent, mandatory)
        if ch.mode == "confirm":
            ch.published += 1
            latest = max(need, ch.owed_latest)
            ch.unconfirmed[ch.published] = Published(number, max(need, ch.owed), latest)

    def _store(
        self,
        ch: MChannel,
        queues: Iterable[MQueue],
        number: int,
        persistent: bool,
        mandatory: bool,
    ) -> int:
        """Enqueue; gives the record that a confirm has to wait for, 0 for none."""
        queues = [queue for queue in queues if not queue.is_deleted]
        need = 0
        self.seq += 1
        self.seqs[number] = self.seq
        for queue in queues:
            is_stored = persistent and queue.is_durable
            queue.ready.append(Held(number, self.seq, is_stored))
            if is_stored:
                self.ledger.current.added.add((queue.name, number))
                need = self.ledger.pending
        if mandatory and not queues:
            ch.returns.append(number)
        return need

    # Consuming

    def consume(self, ch: MChannel, name: str, tag: str, no_ack: bool) -> None:
        queue = self.queue(name)
        consumer = MConsumer(tag, ch, queue, no_ack, 0 if no_ack else ch.prefetch)
        queue.consumers.append(consumer)
        ch.consumers[tag] = consumer
        ch.expect("Basic.ConsumeOk", tag)

    def cancel(self, ch: MChannel, tag: str) -> None:
        ch.expect("Basic.CancelOk", tag)
        consumer = ch.consumers.pop(tag, None)
        if consumer is not None:
            self._remove_consumer(consumer)

    def _remove_consumer(self, consumer: MConsumer) -> None:
        consumer.is_active = False
        queue = consumer.queue
        if consumer in queue.consumers:
            queue.consumers.remove(consumer)
            if queue.auto_delete and not queue.consumers and not queue.is_deleted:
                self._remove_queue(queue)

    def qos(self, ch: MChannel, count: int, is_shared: bool) -> None:
        if is_shared:
            ch.shared_prefetch = count
        else:
            ch.prefetch = count
        ch.expect("Basic.QosOk")

    def get(self, ch: MChannel, name: str, no_ack: bool) -> None:
        queue = self.queue(name)
        if not queue.ready:
            ch.expect("Basic.GetEmpty")
            return
        held = queue.ready.pop(0)
        tag, ch.next_tag = ch.next_tag, ch.next_tag + 1
        flag = self._hand_out(queue, held, no_ack, (self.ledger.current,))
        ch.expect("Basic.GetOk", tag, held.number, flag, len(queue.ready))
        if not no_ack:
            ch.outstanding[tag] = Outstanding(held, queue, None)

    def _hand_out(
        self, queue: MQueue, held: Held, no_ack: bool, records: tuple[Record, ...]
    ) -> bool:
        """Note it; gives the redelivered flag that must be shown."""
        expected = held.was_handed or bool(held.flag)
        held.was_handed, held.flag = True, None
        highest = self.highest_handed.get(queue.name, 0)
        self.highest_handed[queue.name] = max(highest, held.seq)
        for record in records:
            if no_ack:
                self._gone(queue, held, record)
            elif held.is_stored:
                record.handed.add((queue.name, held.number))
        return expected

    def _gone(self, queue: MQueue, held: Held, record: Record) -> None:
        if held.is_stored and not queue.is_deleted:
            record.removed.add((queue.name, held.number))

    def settle(self, ch: MChannel, tag: int, multiple: bool, requeue: bool) -> None:
        if multiple and not tag:
            taken = dict(ch.outstanding)
        elif tag not in ch.outstanding:
            raise Refused(406)
        elif multiple:
            taken = {t: o for t, o in ch.outstanding.items() if t <= tag}
        else:
            taken = {tag: ch.outstanding[tag]}
        for each in taken:
            del ch.outstanding[each]
        if ch.mode == "tx":
            ch.tx_settles.append((taken, requeue))
        else:
            self._settle(taken.values(), requeue)

    def _settle(self, taken: Iterable[Outstanding], requeue: bool) -> None:
        for each in taken:
            if each.consumer is not None:
                each.consumer.count -= 1
            if each.queue.is_deleted:
                continue
            if requeue:
                each.queue.put_back(each.held)
            else:
                self._gone(each.queue, each.held, self.ledger.current)

    def recover(self, ch: MChannel, requeue: bool) -> None:
        ch.expect("Basic.RecoverOk")
        taken, ch.outstanding = ch.outstanding, {}
        for tag, each in sorted(taken.items()):
            if not requeue and each.consumer is not None and each.consumer.is_active:
                ch.outstanding[tag] = each
                ch.again.setdefault(tag, []).append(each.held.number)
            else:
                self._settle([each], requeue=True)

    # Channels

    def open(self, ch: MChannel) -> None:
        self.channels[ch.key] = ch
        ch.expect("Channel.OpenOk")

    def select(self, ch: MChannel, mode: str) -> None:
        ch.mode = mode
        ch.expect("Confirm.SelectOk" if mode == "confirm" else "Tx.SelectOk")

    def close_by_client(self, ch: MChannel) -> None:
        need = ch.owed
        if not ch.is_closing:
            self.close(ch)
        ch.expect("Channel.CloseOk", need=need)

    def close(self, ch: MChannel) -> None:
        """The channel is gone, whoever ended it."""
        ch.is_closing = True
        ch.owed = 0
        for each in ch.consumers.values():
            each.is_active = False
        self.rollback(ch, is_end=True)
        taken, ch.outstanding = ch.outstanding, {}
        self._settle(taken.values(), requeue=True)
        for consumer in list(ch.consumers.values()):
            self._remove_consumer(consumer)
        ch.consumers.clear()

    def commit(self, ch: MChannel) -> None:
        publishes, ch.tx_publishes = ch.tx_publishes, []
        settles, ch.tx_settles = ch.tx_settles, []
        need = 0
        for queues, number, persistent, mandatory in publishes:
            need = max(need, self._store(ch, queues, number, persistent, mandatory))
        for taken, requeue in settles:
            if not requeue and any(
                o.held.is_stored and not o.queue.is_deleted for o in taken.values()
            ):
                need = self.ledger.pending
            self._settle(taken.values(), requeue)
        ch.is_committing = True
        # A commit that stores nothing is done at once: what the disk refuses is not its business.
        ch.commit_need, ch.committed = (self.ledger.pending if need else 0), settles
        ch.expect("Tx.CommitOk", need=need)

    def rollback(self, ch: MChannel, *, is_end: bool = False) -> None:
        ch.tx_publishes.clear()
        settles, ch.tx_settles = ch.tx_settles, []
        for taken, _ in settles:
            ch.outstanding |= taken
        ch.outstanding = dict(sorted(ch.outstanding.items()))
        if not is_end:
            ch.expect("Tx.RollbackOk")

    # A full disk

    def write_refused(self) -> None:
        """The disk took no block: what was to be stored is gone as if it had not come (CONF-12).

        A commit that was in it is taken back (TX-09); its channel is closed, and so is the
        connection of whoever waits for nothing: see `Client.see_closes`.
        """
        lost = self.ledger.current
        index = self.ledger.pending
        self.ledger.write_failed()
        numbers = {number for _, number in lost.added}
        for queue in self.queues.values():
            queue.ready = [held for held in queue.ready if held.number not in numbers]
        for ch in self.channels.values():
            for publish in ch.unconfirmed.values():
                publish.is_refused |= publish.need == index
                publish.may_be_refused |= publish.latest == index
            if ch.is_committing and ch.commit_need == index:
                self._take_back(ch)

    def _take_back(self, ch: MChannel) -> None:
        committed, ch.committed = ch.committed, []
        for taken, requeue in committed:
            for each in taken.values():
                if not requeue and not each.queue.is_deleted:
                    self.ledger.current.removed.discard((each.queue.name, each.held.number))
                    each.queue.put_back(each.held)

    # What the broker says

    def replied(self, ch: MChannel, kind: str, facts: tuple[object, ...]) -> None:
        """A reply: it must be the next one that is due, and true."""
        if self.has_failed and (not ch.replies or ch.replies[0][:2] != (kind, facts)):
            return
        if not ch.replies:
            raise Violation(f"{kind}{facts} on {ch.key}, but nothing was asked")
        expected, values, need = ch.replies.popleft()
        if (kind, facts) != (expected, values):
            raise Violation(f"{kind}{facts} on {ch.key} instead of {expected}{values}")
        if kind == "Tx.CommitOk":
            ch.is_committing = False
            if ch.returns:
                raise Violation(f"commit-ok on {ch.key} before its returns (TX-05)")
        if need:
            self.ledger.promise(need, f"{kind}{facts} on {ch.key}")

    def confirmed(self, ch: MChannel, tag: int, multiple: bool, is_ack: bool) -> None:
        """CONF-04, CONF-08: each number is settled once, and none that still has to wait."""
        if tag > ch.published or ch.mode != "confirm":
            raise Violation(f"confirm of {tag} on {ch.key}, published {ch.published}")
        if multiple:
            numbers = [number for number in ch.unconfirmed if number <= tag]
        else:
            numbers = [tag] if tag in ch.unconfirmed else []
        if not numbers or tag != numbers[-1]:
            raise Violation(f"confirm of {tag} (multiple={multiple}) on {ch.key} twice")
        for number in numbers:
            publish = ch.unconfirmed.pop(number)
            is_true = not publish.is_refused if is_ack else publish.may_be_refused
            if not is_true and (is_ack or not self.has_failed):
                word = "ack" if is_ack else "nack"
                raise Violation(f"{word} of {number} on {ch.key}: refused={publish.is_refused}")
            self.confirms += 1
            if publish.number in ch.returns:
                raise Violation(f"{publish.number} was confirmed before it was returned (PUB-21)")
            if is_ack and publish.need:
                self.ledger.promise(publish.need, f"confirm of message {publish.number}")

    def returned(self, ch: MChannel, number: int) -> None:
        if not ch.returns or ch.returns.popleft() != number:
            raise Violation(f"{number} returned on {ch.key} out of turn")

    def delivered(
        self, ch: MChannel, consumer_tag: str, tag: int, number: int, is_again: bool
    ) -> None:
        """A delivery to a consumer, seen when it is written; `turn_ended` judges the order."""
        if self.has_failed:
            # The broker closes connections of its own now, and nothing is written. But the block
            # that failed may be on the disk, and what this turn handed out stands in it.
            self._tell_failed(ch, consumer_tag, number)
            return
        self.deliveries += 1
        if tag in ch.again:
            due = ch.again[tag].pop(0)
            if not ch.again[tag]:
                del ch.again[tag]
            if due != number or not is_again:
                raise Violation(f"recover gave {number} again under tag {tag}: not what it was")
            return
        consumer = ch.consumers.get(consumer_tag)
        if consumer is None:
            raise Violation(
                f"delivery of {number} to {consumer_tag} on {ch.key}, which is not there"
            )
        if tag != ch.next_tag:
            raise Violation(f"delivery tag {tag} on {ch.key} instead of {ch.next_tag} (ACK-01)")
        ch.next_tag += 1
        queue = consumer.queue
        held = next((each for each in queue.ready if each.number == number), None)
        if held is None:
            raise Violation(f"{number} delivered from {queue.name}, where it is not ready")
        if consumer.prefetch and consumer.count >= consumer.prefetch:
            raise Violation(f"{consumer_tag} has more than {consumer.prefetch} (QOS)")
        if 0 < ch.shared_prefetch <= ch.shared_count:
            raise Violation(f"channel {ch.key} has more than {ch.shared_prefetch} (QOS)")
        expected = self._hand_out(queue, held, consumer.no_ack, self.ledger.told())
        if is_again != expected:
            raise Violation(f"{number} from {queue.name}: redelivered is {is_again}")
        if not consumer.no_ack:
            consumer.count += 1
            ch.outstanding[tag] = Outstanding(held, queue, consumer)
        self._batch.setdefault(queue, []).append((consumer, held))

    def _tell_failed(self, ch: MChannel, consumer_tag: str, number: int) -> None:
        consumer = ch.consumers.get(consumer_tag) if self.ledger.fails_now else None
        ready = consumer.queue.ready if consumer is not None else ()
        held = next((each for each in ready if each.number == number), None)
        if consumer is not None and held is not None:
            self._hand_out(consumer.queue, held, consumer.no_ack, self.ledger.told())

    def turn_ended(self) -> None:
        """What was delivered in one turn is the head of its queue, in order for each consumer."""
        self.ledger.turn_ended()
        self.check_deliveries()

    def check_deliveries(self) -> None:
        """What was heard since the last look is the head of its queue, in order (CONS-10)."""
        if not self._batch:
            return
        batches, self._batch = self._batch, {}
        for queue, batch in batches.items():
            handed = {held for _, held in batch}
            if len(handed) != len(batch):
                raise Violation(f"a message of {queue.name} was delivered twice in one turn")
            if handed != set(queue.ready[: len(handed)]) and not queue.is_deleted:
                numbers = [held.number for held in queue.ready[: len(handed)]]
                got = sorted(held.number for held in handed)
                raise Violation(f"{queue.name} gave {got}, but its head was {numbers}")
            last: dict[MConsumer, int] = {}
            for consumer, held in batch:
                if held.seq <= last.get(consumer, 0):
                    raise Violation(
                        f"{consumer.tag} got {held.number} of {queue.name} out of order"
                    )
                last[consumer] = held.seq
            queue.ready = [held for held in queue.ready if held not in handed]

    # What must be so when nothing is left to do

    def check_idle(self, can_take: Callable[[MConsumer], bool]) -> None:
        for ch in self.channels.values():
            if ch.is_closing:
                continue
            if ch.unconfirmed:
                raise Violation(f"never confirmed on {ch.key}: {sorted(ch.unconfirmed)[:4]}")
            if ch.replies or ch.returns or ch.again:
                raise Violation(f"{ch.key} never got {list(ch.replies)[:2]} {list(ch.returns)[:2]}")
        for queue in self.queues.values():
            if not queue.ready:
                continue
            for consumer in queue.consumers:
                shared = consumer.channel.shared_prefetch
                has_room = not consumer.prefetch or consumer.count < consumer.prefetch
                has_shared = not shared or consumer.channel.shared_count < shared
                if has_room and has_shared and can_take(consumer):
                    raise Violation(f"{queue.name} has messages that {consumer.tag} does not get")


def matches(pattern: list[str], words: list[str]) -> bool:
    """Topic matching, by its definition."""
    if not pattern:
        return not words
    if pattern[0] == "#":
        return any(matches(pattern[1:], words[at:]) for at in range(len(words) + 1))
    return bool(words) and pattern[0] in {"*", words[0]} and matches(pattern[1:], words[1:])
