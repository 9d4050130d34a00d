"""Dead letters: how a message leaves a queue for wherever the dead letter exchange leads.

What is logged of it, that the source lets go and that the targets take over, is logged in one
breath and so stands in one block of the journal: after a crash the message is in the one or in
the others (DLX-08, DLX-11). Nothing is delivered from here; what a target then drops in its turn
is dropped in its dispatch, so that chains of any length never recurse (DLX-12).

A block that a full disk refuses has taken nothing: the publisher keeps its dead letters, tells the
journal that their sources still have them, and sends them again when the disk takes blocks again.

Spec: DLX-06 … DLX-12, DLX-20
"""

from __future__ import annotations

from collections import deque
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

import structlog

from vouchmq.protocol.contents import HAS_EXPIRATION, property_block
from vouchmq.protocol.fields import encode_shortstr
from vouchmq.server.broker.dead_letter.dead_letters import DeadLetters, dead_letters_of
from vouchmq.server.broker.dead_letter.headers import Attempt, Death, dead_letter, dead_letters
from vouchmq.server.broker.dead_letter.pace import DeadLetterPace
from vouchmq.server.broker.delays import all_undelayed
from vouchmq.server.broker.enqueue import Enqueuer, Target
from vouchmq.server.broker.exchanges.exchange import READS_KEYS
from vouchmq.server.broker.features.dedup import Dedup, ExchangeDedup
from vouchmq.server.broker.features.length import LengthLimit
from vouchmq.server.broker.message import lsn_of, runs_of_same
from vouchmq.server.broker.queues.api import TAKES
from vouchmq.server.broker.queues.settlement import DeadLetterReason

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from vouchmq.protocol.fields import Table
    from vouchmq.server.broker.dead_letter.headers import DeadLetter
    from vouchmq.server.broker.exchanges.exchange import Exchange
    from vouchmq.server.broker.message import Message
    from vouchmq.server.broker.queues.api import Queue, QueueRecorder

# So many queues in a row make room for each other at once; what is behind is as full as it looks.
MOST_DEPTH: Final = 8
# Why messages leave their queue for others, as the ledger says it.
DEAD_LETTER: Final = "dead_letter"
DELAYED: Final = "delayed"
MOVED: Final = "moved"
# What the ledger calls their end in the queue that they leave; others die there.
ENDS: Final = {DELAYED: "released", MOVED: "moved"}

log = structlog.get_logger(__name__)


class VHostRouter(Protocol):
    """A virtual host, as far as dead letters are routed through it."""

    exchanges: dict[str, Exchange]
    generation: int

    def route(
        self,
        exchange: Exchange,
        keys: Sequence[str],
        headers: Table | None,
        passage: ExchangeDedup | None = None,
    ) -> tuple[Queue, ...]:
        """The queues that a message reaches, each once."""


class Refused(Protocol):
    """The journal, told of settles that did not happen."""

    def unsettle(self, queue_id: int, lsns: Sequence[int]) -> None:
        """These copies are not gone after all."""


class Sent(NamedTuple):
    """Messages that left their queue for stored queues in the block that is being gathered."""

    queue: Queue
    messages: list[Message]
    target: Target
    raws: list[bytes]
    persistent: bool
    why: str
    # What was known of a dead letter that its queue keeps until everybody has it.
    one: Attempt | None = None


class Way(NamedTuple):
    """Where an operator has a message go: its content there, and the queues that are to have it."""

    raw: bytes
    tail: bytes
    queues: tuple[Queue, ...]
    persistent: bool


class Batch:
    """Dead letters that follow each other and go the same way."""

    __slots__ = ("messages", "persistent", "raws", "target")

    def __init__(self, target: Target, *, persistent: bool) -> None:
        self.target = target
        self.persistent = persistent
        self.messages: list[Message] = []
        self.raws: list[bytes] = []

    def takes(self, tail: bytes, queues: tuple[Queue, ...], *, persistent: bool) -> bool:
        """Whether another one goes that way too."""
        is_same = self.target.tail == tail and self.target.queues == queues
        return is_same and self.persistent == persistent

    def add(self, messages: list[Message], raws: list[bytes]) -> None:
        """More of them: messages that died, and their letters."""
        self.messages += messages
        self.raws += raws


class DeadLetterPublisher:
    """Sends the dead letters of all queues.

    Args:
        domain: finds a virtual host by its name
        enqueuer: gives messages to their targets
        journal: told of settles that did not happen
        wall_ms: the wall clock in milliseconds
        wake: sees to it that a turn is run
        pace: tells when letters may go that nobody waits for
        most_hops: deaths after which a message becomes no dead letter any more, 0: any (DLX-24)
        heeds_clients: counts go on from an x-death header that a client has published (DLX-22)
    """

    def __init__(
        self,
        domain: Callable[[str], VHostRouter | None],
        enqueuer: Enqueuer,
        journal: Refused,
        wall_ms: Callable[[], int],
        wake: Callable[[], None],
        pace: DeadLetterPace,
        *,
        heeds_clients: bool = True,
        most_hops: int = 0,
    ) -> None:
        self.pace = pace
        self._most_hops = most_hops
        self._domain = domain
        self._enqueuer = enqueuer
        self._journal = journal
        self._wall_ms = wall_ms
        self._wake = wake
        self._heeds_clients = heeds_clients
        self._unwritten: list[Sent] = []
        self._kept: list[Sent] = []
        # Whether `written` has anything to do: the turn asks after each block.
        self.awaits_disk = False
        self._depth = 0
        self._refused: deque[tuple[Queue, Message]] = deque()
        self.dropped_count = 0
        self.unrouted_count = 0  # delayed messages that led nowhere in the end (DELAY-18)

    @property
    def is_gathering(self) -> bool:
        """See `DeadLetterSender`."""
        return self._enqueuer.is_gathering

    @property
    def is_nested(self) -> bool:
        """See `DeadLetterSender`."""
        return self._depth > MOST_DEPTH

    @property
    def is_sending(self) -> bool:
        """See `DeadLetterSender`."""
        return self._depth > 0

    def send(self, queue: Queue, messages: list[Message], reason: DeadLetterReason) -> None:
        """Give messages to the queues that their dead letter exchange leads to (DLX-08)."""
        config = dead_letters_of(queue)
        queue.counters.dead_lettered += len(messages)
        death = self._death(queue, config, Attempt(reason, self._wall_ms() // 1000))
        lost: list[Message] = []
        with self._one_block():
            run: Batch | None = None
            pending = self._parted(queue, config, messages)
            while pending:
                some = pending.popleft()
                first, raws = dead_letters(some, death)
                if self._is_too_far(first):
                    lost += some
                    self._dropped(queue, config, reason, "too many hops", len(some))
                    continue
                targets, passage = self._targets(queue, config, first)
                open_to = tuple(each for each in targets if each.spec.name not in first.seen)
                if not open_to:
                    lost += some
                    why = "cycle" if targets else "no route"
                    self._dropped(queue, config, reason, why, len(some))
                    continue
                tail = encode_shortstr(config.exchange) + encode_shortstr(first.keys[0])
                if any(each.publish_filter is not None for each in open_to):
                    # Asked one by one: what was taken before counts.
                    if len(some) > 1:
                        pending.extendleft([one] for one in reversed(some))
                        continue
                    self._store(queue, run)
                    run = None
                    admitted, verdict = self._enqueuer.admit(Target(tail, open_to), first.raw)
                    open_to = admitted.queues
                    if not open_to:
                        lost += some
                        if verdict.is_refused and not any(
                            is_at_least_once(each) for each in targets
                        ):
                            self._dropped(queue, config, reason, "target full")
                        continue
                if run is None or not run.takes(tail, open_to, persistent=first.persistent):
                    self._store(queue, run)
                    run = Batch(Target(tail, open_to), persistent=first.persistent)
                run.add(some, raws)
                if passage is not None:
                    passage.record(0, persistent=first.persistent)
            self._store(queue, run)
            if queue.recorder is not None:
                write_headers(queue.recorder, messages, lost, reason, config.exchange)
            queue.log_settled(messages)
        self.pace.sent(queue, len(messages), config.exchange)

    def send_safely(self, queue: Queue, messages: list[Message], reason: DeadLetterReason) -> None:
        """The same for a queue that keeps what is not taken everywhere (DLX-09)."""
        time_s = self._wall_ms() // 1000
        queue.counters.dead_lettered += len(messages)
        for message in messages:
            self.try_again(queue, message, Attempt(reason, time_s))

    def try_again(self, queue: Queue, message: Message, one: Attempt) -> None:
        """Offer a dead letter to those who have not taken it; keep it until all have."""
        config = queue.feature(DeadLetters)
        if config is None or config.pending is None:
            if queue.recorder is not None:
                queue.recorder.dropped([message], one.reason.value)
            queue.drop([message])
            return
        with self._one_block():
            first = dead_letter(message, self._death(queue, config, one))
            if self._is_too_far(first):
                self._dropped(queue, config, one.reason, "too many hops")
                config.pending.done(message)
                if queue.recorder is not None:
                    queue.recorder.dropped([message], one.reason.value)
                queue.log_settled([message])
                return
            # Its key has been looked at when it was tried first.
            is_new = not config.pending.knows(message)
            targets, passage = self._targets(queue, config, first, is_new=is_new)
            if targets and passage is not None:
                passage.record(0, persistent=first.persistent)
            wanted = tuple(each for each in targets if each.spec.name not in first.seen)
            open_to = tuple(each for each in wanted if each.spec.name not in one.taken_by)
            tail = encode_shortstr(config.exchange) + encode_shortstr(first.keys[0])
            waiting = len(self._refused)
            admitted, verdict = self._enqueuer.admit(Target(tail, open_to), first.raw)
            while len(self._refused) > waiting:
                # Who refuses it is asked again, so it is no dead letter of theirs (DLX-10).
                self._refused.pop()
            # Who drops it as a duplicate has it.
            took = admitted.queues if verdict.is_refused else open_to
            taken_by = one.taken_by | {each.spec.name for each in took}
            is_done = bool(wanted) and all(each.spec.name in taken_by for each in wanted)
            if admitted.queues:
                run = Batch(admitted, persistent=first.persistent)
                run.add([message], [first.raw])
                self._store(queue, run, one)
            if is_done:
                config.pending.done(message)
                if queue.recorder is not None:
                    queue.recorder.died([message], one.reason.value, config.exchange)
                queue.log_settled([message])
            else:
                full = tuple(each for each in open_to if each.spec.name not in taken_by)
                config.pending.keep(message, one._replace(taken_by=taken_by), full)

    def release(self, delay_queue: Queue, exchange_name: str, messages: list[Message]) -> None:
        """Publish delayed messages whose time has come, as they leave their queue (DELAY-13)."""
        domain = self._domain(delay_queue.spec.vhost)
        exchange = domain.exchanges.get(exchange_name) if domain is not None else None
        with self._one_block():
            run: Batch | None = None
            pending = deque(runs_of_same(messages))
            while pending:
                some = pending.popleft()
                tail = some[0][1]
                due, raws = all_undelayed(some)
                targets: tuple[Queue, ...] = ()
                if domain is not None and exchange is not None:
                    targets = domain.route(exchange, due.keys, due.headers)
                if any(each.publish_filter is not None for each in targets):
                    if len(some) > 1:
                        pending.extendleft([one] for one in reversed(some))
                        continue
                    self._store(delay_queue, run, why=DELAYED)
                    run = None
                    targets = self._enqueuer.admit(Target(tail, targets), due.raw)[0].queues
                if not targets:
                    self.unrouted_count += len(some)
                    continue
                if due.raw[HAS_EXPIRATION[0]] & HAS_EXPIRATION[1]:
                    for each in targets:
                        each.expect_expirations()
                if run is None or not run.takes(tail, targets, persistent=due.persistent):
                    self._store(delay_queue, run, why=DELAYED)
                    run = Batch(Target(tail, targets), persistent=due.persistent)
                run.add(some, raws)
            self._store(delay_queue, run, why=DELAYED)
            if delay_queue.recorder is not None:
                delay_queue.recorder.dropped(messages, "released")
            delay_queue.log_settled(messages)

    def move(self, queue: Queue, messages: list[Message], ways: list[Way]) -> int:
        """Give messages that are in no line of their queue any more to others, in one block.

        Returns:
            how many have gone: a queue refuses the next one, which is still the caller's
        """
        count = 0
        with self._one_block():
            run: Batch | None = None
            for message, way in zip(messages, ways, strict=True):
                queues = way.queues
                if any(each.publish_filter is not None for each in queues):
                    # Asked one by one: what was taken before counts.
                    self._store(queue, run, why=MOVED)
                    run = None
                    waiting = len(self._refused)
                    admitted, verdict = self._enqueuer.admit(Target(way.tail, queues), way.raw)
                    if verdict.is_refused:
                        while len(self._refused) > waiting:
                            self._refused.pop()  # it stays where it is, and is no dead letter
                        break
                    # Who drops it as a duplicate has it.
                    queues = admitted.queues
                count += 1
                if not queues:
                    continue
                if way.raw[HAS_EXPIRATION[0]] & HAS_EXPIRATION[1]:
                    for each in queues:
                        each.expect_expirations()
                if run is None or not run.takes(way.tail, queues, persistent=way.persistent):
                    self._store(queue, run, why=MOVED)
                    run = Batch(Target(way.tail, queues), persistent=way.persistent)
                run.add([message], [way.raw])
            self._store(queue, run, why=MOVED)
            gone = messages[:count]
            if queue.recorder is not None:
                queue.recorder.dropped(gone, ENDS[MOVED])
            queue.drop(gone)
        return count

    def generation(self, queue: Queue) -> int:
        """Grows with every change of the topology around a queue."""
        domain = self._domain(queue.spec.vhost)
        return domain.generation if domain is not None else -1

    def _parted(
        self, queue: Queue, config: DeadLetters, messages: list[Message]
    ) -> deque[list[Message]]:
        """Messages that become the same letters; each alone where its key is looked at."""
        domain = self._domain(queue.spec.vhost)
        exchange = domain.exchanges.get(config.exchange) if domain is not None else None
        if exchange is not None and exchange.reads & READS_KEYS:
            return deque([message] for message in messages)
        return deque(runs_of_same(messages))

    def _is_too_far(self, first: DeadLetter) -> bool:
        return 0 < self._most_hops < first.hops

    def _death(self, queue: Queue, config: DeadLetters, one: Attempt) -> Death:
        return Death(
            queue.spec.name,
            one.reason,
            config.exchange,
            config.routing_key,
            one.time_s,
            self._heeds_clients,
        )

    def _targets(
        self, queue: Queue, config: DeadLetters, first: DeadLetter, *, is_new: bool = True
    ) -> tuple[tuple[Queue, ...], ExchangeDedup | None]:
        """Where a letter goes, and by which keys, if those are looked at."""
        domain = self._domain(queue.spec.vhost)
        exchange = domain.exchanges.get(config.exchange) if domain is not None else None
        if domain is None or exchange is None:
            return (), None
        if not (exchange.reads & READS_KEYS and is_new):
            return domain.route(exchange, first.keys, first.headers), None
        passage = ExchangeDedup(property_block(first.raw))
        return domain.route(exchange, first.keys, first.headers, passage), passage

    @contextmanager
    def _one_block(self) -> Iterator[None]:
        """What is done within stands in one block: nobody is served meanwhile (DLX-08)."""
        self._depth += 1
        was_gathering, self._enqueuer.is_gathering = self._enqueuer.is_gathering, True
        try:
            yield
        finally:
            # Whatever happens, or no transaction and no limit would ever be itself again.
            self._enqueuer.is_gathering = was_gathering
            self._depth -= 1
        if self._refused and not self._depth:
            self._send_refused()

    def _send_refused(self) -> None:
        """Have what full queues refused go on, one after the other and those of one together."""
        pace = self.pace
        while self._refused and not self._depth:
            if not pace.may_send(self._refused[0][0]):
                if pace.is_paused:
                    pace.wait(self._go_on_refused)
                else:
                    self._go_on_refused()
                return
            target, message = self._refused.popleft()
            # What comes of it goes before the others, so that they are never many.
            others, self._refused = self._refused, deque()
            try:
                target.on_publish_refused(message)
            finally:
                self._refused.extend(others)

    def _go_on_refused(self) -> None:
        self.pace.later(self._send_refused)

    def send_refused(self, queue: Queue, message: Message) -> None:
        """Make a dead letter of what a full queue has refused (LEN-24).

        It is one of nobody's queue, so no queue keeps it if nobody takes it. While dead letters
        are being sent it waits for their end, so that queues full in a row never recurse.
        """
        if self._depth:
            self._refused.append((queue, message))
        else:
            # Kept it is not: the queue never had it, and its publisher knows.
            self.send(queue, [message], DeadLetterReason.MAXLEN)

    def _store(
        self, queue: Queue, run: Batch | None, one: Attempt | None = None, why: str = DEAD_LETTER
    ) -> None:
        if run is None:
            return
        target, raws, persistent = run.target, run.raws, run.persistent
        author = (
            queue.recorder.moves(run.messages, raws, why) if queue.recorder is not None else None
        )
        largest = max(map(len, raws))
        if self._enqueuer.store(target, raws, largest, persistent=persistent, author=author):
            self._unwritten.append(Sent(queue, run.messages, target, raws, persistent, why, one))
            self.awaits_disk = True

    def _dropped(
        self,
        queue: Queue,
        config: DeadLetters,
        reason: DeadLetterReason,
        why: str,
        count: int = 1,
    ) -> None:
        self.dropped_count += count
        queue.counters.dead_letters_dropped += count
        if (why, reason) not in config.told:
            config.told.add((why, reason))
            log.warning(
                "dead_letter.dropped",
                vhost=queue.spec.vhost,
                queue=queue.spec.name,
                exchange=config.exchange,
                reason=reason.value,
                why=why,
            )

    # What came of the block

    def written(self) -> None:
        """The disk has taken everything that was buffered; what it refused before goes again."""
        self._unwritten.clear()
        self.awaits_disk = False
        if not self._kept:
            return
        kept, self._kept = self._kept, []
        for sent in kept:
            queue, messages, target, raws, persistent, why, _ = sent
            # Transient copies are where they went already, those of stored runs went with them.
            alive = (each for each in target.queues if not each.is_deleted)
            alive = (each for each in alive if persistent or each.keeps_all)
            target = Target(target.tail, tuple(each for each in alive if _takes(each, raws)))
            author = (
                queue.recorder.moves(messages, raws, why) if queue.recorder is not None else None
            )
            largest = max(map(len, raws))
            if self._enqueuer.store(target, raws, largest, persistent=persistent, author=author):
                self._unwritten.append(sent._replace(target=target))
                self.awaits_disk = True
            if not queue.is_deleted:
                if queue.recorder is not None and why in ENDS:
                    queue.recorder.dropped(messages, ENDS[why])
                elif queue.recorder is not None:
                    queue.recorder.died(messages, "resent", "")
                queue.keeps(messages)
                queue.log_settled(messages)
        self._wake()

    def refused(self, first_lsn: int) -> None:
        """The disk took nothing from this LSN on: no target has them, the source still does.

        But for what it got from there on itself: that is gone like any message (CONF-12).
        """
        unwritten, self._unwritten = self._unwritten, []
        kept: list[Sent] = []

        def is_gone(message: Message) -> bool:
            """Whether the same block had brought it: then no queue ever had it."""
            return bool(message[2] & 1) and message[2] >= first_lsn * 2

        for sent in reversed(unwritten):
            queue = sent.queue
            for store_id, lsns in () if queue.is_deleted else queue.stored_copies(sent.messages):
                self._journal.unsettle(store_id, lsns)
            config = queue.feature(DeadLetters)
            undelivered = config.pending if config is not None else None
            had = [each for each in sent.messages if not is_gone(each)]
            if queue.recorder is not None and not queue.is_deleted:
                # What is pending still is in the queue.
                queue.recorder.back(
                    [each for each in had if undelivered is None or not undelivered.knows(each)]
                )
            if sent.one is None or undelivered is None:
                kept.append(sent)
            elif had:
                undelivered.keep_again(sent.messages[0], sent.one)
                queue.keeps(sent.messages)
        self._kept += reversed(kept)
        self.awaits_disk = bool(self._kept)
        self._forget(lambda _, message: is_gone(message))

    def gone_of(self, queue: Queue, messages: list[Message]) -> list[Message]:
        """Those of some settled deliveries that are not kept as dead letters on their way."""
        kept = {*queue.held_lsns(), *self.kept_of(queue)}
        return [message for message in messages if lsn_of(message[2]) not in kept]

    def kept_of(self, queue: Queue) -> list[int]:
        """LSNs of dead letters of a queue that a full disk has sent back."""
        mine = [sent.messages for sent in self._kept if sent.queue is queue]
        return [lsn_of(message[2]) for messages in mine for message in messages if message[2]]

    def withdraw(self, queue: Queue, messages: list[Message]) -> None:
        """These are unacked again, after a commit that was refused (TX-09)."""
        seqs = {message[2] for message in messages}
        self._forget(lambda source, message: source is queue and message[2] in seqs)

    def _forget(self, is_gone: Callable[[Queue, Message], bool]) -> None:
        """Send some of what was refused not again."""
        kept, self._kept = self._kept, []
        for sent in kept:
            pairs = zip(sent.messages, sent.raws, strict=True)
            rest = [pair for pair in pairs if not is_gone(sent.queue, pair[0])]
            if len(rest) == len(sent.messages):
                self._kept.append(sent)
            elif rest:
                left, raws = [pair[0] for pair in rest], [pair[1] for pair in rest]
                self._kept.append(sent._replace(messages=left, raws=raws))


def is_at_least_once(queue: Queue) -> bool:
    """Whether what this queue refuses becomes a dead letter of its own (LEN-24)."""
    limit, config = queue.feature(LengthLimit), queue.feature(DeadLetters)
    if limit is None or config is None or not config.is_set:
        return False
    return limit.dead_letters_refused


def write_headers(
    recorder: QueueRecorder,
    messages: list[Message],
    lost: list[Message],
    reason: DeadLetterReason,
    exchange: str,
) -> None:
    """Write down which messages have become dead letters, and which of them led nowhere."""
    gone = {message[2] for message in lost}
    recorder.died([each for each in messages if each[2] not in gone], reason.value, exchange)
    recorder.dropped(lost, reason.value)


def _takes(queue: Queue, raws: list[bytes]) -> bool:
    """Whether a queue takes again what the disk refused: not if it is a duplicate by now (DUP-04).

    A limit may have taken the message before it, which is back as well.
    """
    dedup = queue.feature(Dedup)
    return dedup is None or dedup.check(raws[0]) == TAKES
