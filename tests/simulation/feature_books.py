"""Double entry: every copy of every message that comes into a queue, and why it leaves.

A copy that leaves must have a reason that a rule knows and that is true: acked or rejected by a
client that had it, expired, too much, returned too often, purged, deleted, taken back because the
disk refused it. A dead letter that leaves must be in all its targets that take it. What is in the
books must be what is in the queues, after each turn and in each block that is written.

Spec: DLX-08, DLX-10, TTL-02, LEN-02, REDELIVER-11, PRIO-08, DELAY-13, CONS-30
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, cast

from tests.simulation.crashes import number_in
from tests.simulation.feature_listing import Listing, Place, classic, pending_messages, pending_of
from tests.simulation.ledger import Violation, shown
from vouchmq.protocol.contents import property_block
from vouchmq.protocol.fields import as_integer, as_text, decode_shortstr
from vouchmq.protocol.properties import Properties
from vouchmq.protocol.runs import body_size
from vouchmq.server.broker.dead_letter.dead_letters import DeadLetters
from vouchmq.server.broker.delays import delay_of, undelayed
from vouchmq.server.broker.features.dedup import Dedup
from vouchmq.server.broker.features.length import LengthLimit
from vouchmq.server.broker.features.redelivery import Redelivery, rules_of
from vouchmq.server.broker.queues.settlement import DeadLetterReason, Outcome

if TYPE_CHECKING:
    from tests.simulation import feature_client
    from tests.simulation.feature_world import FeatureWorld
    from vouchmq.protocol.fields import Field, Table
    from vouchmq.server.broker.message import Message
    from vouchmq.server.broker.queues.api import ConsumerPort, Queue
    from vouchmq.server.broker.queues.ready_list import ReadyList

Death = tuple[str, str, int]  # queue, reason, count; newest first


@dataclass(slots=True, eq=False)
class Copy:
    """One message in one queue."""

    number: int
    place: Place
    arrived_ms: int
    turn: int
    deaths: list[Death]
    expiration_ms: int | None
    octets: int
    is_published: bool = False  # by a client, into this queue
    handed: bool = False
    handed_ms: int = 0
    returns: int = 0
    not_before_ms: int = 0
    written_ms: int = 0  # when it was handed to the disk
    dying: str = ""  # why it is stuck
    taken_by: set[str] = field(default_factory=set)
    # Its deaths since an operator moved it: earlier ones make no cycle (DLX-21). None: never moved.
    since_moved: list[Death] | None = None
    has_key: bool = True  # its queue knows its key, if it has one


@dataclass(slots=True)
class Frame:
    """Something under way that moves messages on."""

    kind: str
    queue: Queue | None
    reason: str = ""
    sources: dict[int, list[Copy]] = field(default_factory=lambda: defaultdict(list))
    credits: dict[int, list[str]] = field(default_factory=lambda: defaultdict(list))

    def only(self, number: int) -> Copy | None:
        """The copy that is moved on, if it is clear which."""
        found = self.sources.get(number, [])
        return found[0] if len(found) == 1 else None


class Books:
    """The books of one process of the broker."""

    def __init__(self, world: FeatureWorld) -> None:
        self._world = world
        self.copies: dict[Place, Copy] = {}
        self.archive: dict[Place, Copy] = {}
        self.messages: dict[int, feature_client.Message] = {}
        self.acks: set[tuple[str, int]] = set()
        self.rejections: set[tuple[str, int]] = set()
        self.no_ack: set[str] = set()
        self.needs: dict[int, int] = {}  # the record that a message is in
        self.taken_back: set[int] = set()
        self.unstored: set[Place] = set()
        self.turned_away: set[int] = set()
        self.born: dict[str, int] = {}
        self.has_timeouts = False
        self._last_seq: dict[str, int] = {}
        self._stack: list[Frame] = []
        self._served: dict[str, ConsumerPort] = {}
        self._aimed: dict[int, Queue] = {}
        self._came: set[tuple[int, str]] = set()
        self.returned_to: set[str] = set()  # queues, since their last dispatch
        self.unserved = ""  # whose dispatch has begun
        self.number_of: dict[int, int] = {}  # by seq, what the newest message of it is

    @property
    def is_open(self) -> bool:
        """True while something is being moved."""
        return any(frame.kind not in {"trying", "kept"} for frame in self._stack)

    # Clients

    def published(self, message: feature_client.Message, *, is_aimed: bool) -> None:
        """It is on its way."""
        self.messages[message.number] = message
        queue = self._world.vhost.queues.get(message.key)
        if is_aimed and not message.exchange and message.persistent and queue is not None:
            self._aimed[message.number] = queue

    def confirmed(self, message: feature_client.Message) -> None:
        """CONF-06: what was confirmed is where it belongs."""
        number = message.number
        if number in self.taken_back:
            raise Violation(f"{number} was confirmed, but the disk had refused it (CONF-12)")
        queue = self._aimed.pop(number, None)
        is_there = queue is not None and self._world.vhost.queues.get(message.key) is queue
        is_missing = (number, message.key) not in self._came
        if queue is not None and is_there and is_missing and queue.publish_filter is None:
            raise Violation(f"{number} was confirmed, but never came to {message.key}")
        self._world.states_of.promise(self.needs.get(number, 0), f"confirm of {number}")

    def committed(self, numbers: list[int]) -> None:
        """TX-08: one block."""
        needs = {self.needs[number] for number in numbers if number in self.needs}
        if len(needs) > 1:
            raise Violation(f"a transaction in records {sorted(needs)} (TX-08)")
        self._world.states_of.promise(max(needs, default=0), f"commit of {numbers}")

    def heard(self, queue: str, number: int) -> None:
        """A delivery."""
        if number not in self.messages:
            raise Violation(f"{queue} gave {number}, which nobody has published")

    # Coming

    def _now_ms(self) -> int:
        return self._world.wall_ms()

    def _enter(self, queue: Queue, message: Message) -> Copy:
        raw, _, seq, _ = message
        properties = Properties(property_block(raw))
        expiration = properties.expiration
        copy = Copy(
            number_in(raw),
            (queue.spec.name, seq),
            self._now_ms(),
            self._world.runtime.turn.count,
            deaths_in(properties),
            None if expiration is None else int(expiration),
            body_size(raw),
        )
        if copy.place in self.copies:
            raise Violation(f"{copy.place} twice")
        self.copies[copy.place] = copy
        self.number_of[seq] = copy.number
        return copy

    def came(self, queue: Queue, messages: list[Message]) -> None:
        """A run was appended."""
        name = queue.spec.name
        for message in messages:
            if message[2] <= self._last_seq.get(name, 0):
                raise Violation(f"{name} got seq {message[2]} behind a later one")
            self._last_seq[name] = message[2]
            copy = self._enter(queue, message)
            frame = self._stack[-1] if self._stack else None
            if frame is None:
                self._came_new(queue, copy)
            else:
                self._came_on(queue, copy, frame)
        limit = queue.feature(LengthLimit)
        most = limit.max_length if limit is not None and limit.rejects else None
        is_kept = bool(self._stack) and self._stack[-1].kind == "kept"  # it had been admitted
        # A dead letter may come between the question and the answer.
        if (
            most is not None
            and queue.ready_count + len(queue.held_lsns()) > most + 1
            and not is_kept
        ):
            raise Violation(f"{name} took more than {most} (LEN-20)")

    def _came_new(self, queue: Queue, copy: Copy) -> None:
        number = copy.number
        if number in self.turned_away:
            return  # refused by another queue, and a dead letter of it
        if (number, copy.place[0]) in self._came:
            raise Violation(f"{number} came to {copy.place[0]} twice")
        self._came.add((number, copy.place[0]))
        if copy.deaths:
            raise Violation(f"{number} was dead when it was published: {copy.deaths}")
        copy.is_published = True
        if copy.place[1] & 1 and queue.stored:
            self.needs[number] = self._world.states_of.pending

    def _came_on(self, queue: Queue, copy: Copy, frame: Frame) -> None:
        number, name = copy.number, copy.place[0]
        if number not in frame.sources and number in self.turned_away:
            return  # a dead letter of a message that was in no queue; it waits for the block's end
        if number not in frame.sources:
            raise Violation(f"{number} came to {name} out of nowhere ({frame.kind})")
        frame.credits[number].append(name)
        source = frame.only(number)
        copy.since_moved = _since_moved(source, frame)
        if frame.kind == "kept":
            return
        if source is None or number in self.turned_away:
            for each in frame.sources[number]:
                each.taken_by.add(name)
            return
        deaths = source.deaths
        if frame.kind == "burying" or frame.kind == "trying":
            assert frame.queue is not None
            deaths = died(deaths, frame.queue.spec.name, frame.reason or source.dying)
            if copy.expiration_ms is not None:
                raise Violation(f"dead letter {number} has kept its expiration (DLX-16)")
        if copy.deaths != deaths:
            raise Violation(f"{number} in {name} says {copy.deaths}, but {deaths} (DLX-17)")
        if name in source.taken_by:
            raise Violation(f"{name} got dead letter {number} twice (DLX-10)")
        source.taken_by.add(name)

    # Going

    def _pop(self, place: Place) -> Copy:
        copy = self.copies.pop(place, None)
        if copy is None:
            raise Violation(f"{place} leaves its queue, but is not in the books")
        self.archive[place] = copy
        return copy

    def _of(self, queue: Queue, message: Message) -> Copy:
        copy = self.copies.get((queue.spec.name, message[2]))
        if copy is None:
            raise Violation(f"{queue.spec.name} handles {message[2]}, which is not in the books")
        return copy

    def settled(self, queue: Queue, messages: list[Message]) -> None:
        """Done with: acked, or sent without need of an ack."""
        if queue.is_deleted:
            return
        for message in messages:
            copy = self._pop((queue.spec.name, message[2]))
            name = queue.spec.name
            if (name, copy.number) not in self.acks and name not in self.no_ack:
                raise Violation(f"{copy.number} left {name}, and nobody had acked it")

    def discarded(self, queue: Queue, messages: list[Message]) -> None:
        """Rejected for good."""
        for message in messages if not queue.is_deleted else ():
            copy = self._of(queue, message)
            if (queue.spec.name, copy.number) not in self.rejections:
                raise Violation(f"{copy.number} of {queue.spec.name} was rejected by nobody")

    def requeued(self, queue: Queue, messages: list[Message], outcome: Outcome) -> None:
        """Back in the queue, or aside for a while."""
        if queue.is_deleted:
            return
        self.returned_to.add(queue.spec.name)
        returns = queue.feature(Redelivery)
        if returns is None:
            return
        is_counted = outcome in {Outcome.REJECTED, Outcome.LOST} or not (
            returns._only_failures or outcome is Outcome.TIMED_OUT
        )
        for message in messages:
            copy = self._of(queue, message)
            copy.returns += is_counted
            delay_ms = retry_ms(queue, copy.returns, is_counted=is_counted)
            copy.not_before_ms = self._now_ms() + delay_ms if delay_ms else 0

    def came_back(self, queue: Queue, messages: list[Message]) -> None:
        """A commit was taken back: unacked again."""
        for message in messages if not queue.is_deleted else ():
            place = (queue.spec.name, message[2])
            # A dead letter that nobody took has never left.
            if place not in self.copies:
                self.copies[place] = self.archive[place]

    def written(self) -> None:
        """A block was written with all there is."""
        now_ms = self._now_ms()
        for copy in self.copies.values():
            copy.written_ms = copy.written_ms or now_ms

    def forgotten(self, queue: Queue, first_lsn: int) -> None:
        """The disk has refused these."""
        # Those of other virtual hosts are always empty.
        out = set(self._world.listing().unacked.get(queue.spec.name, ()))
        for place in [p for p in self.copies if p[0] == queue.spec.name]:
            if place[1] & 1 and place[1] >= first_lsn * 2:
                # What somebody got in that very turn is theirs, but no journal has it.
                self.unstored.add(place)
                copy = self.copies[place] if place[1] in out else self._pop(place)
                if copy.is_published and queue.stored:
                    self.taken_back.add(copy.number)

    def purging(self, queue: Queue) -> None:
        """What is ready goes."""
        name = queue.spec.name
        listing = self._world.listing()
        stays = {*listing.parked[name], *listing.unacked[name], *listing.kept[name]}
        for place in [p for p in self.copies if p[0] == name]:
            self.copies[place].has_key = False
            if place[1] not in stays:
                self._pop(place)

    def deleted(self, queue: Queue) -> None:
        """All of it goes."""
        name = queue.spec.name
        for place in [p for p in self.copies if p[0] == name]:
            self._pop(place)
        self._last_seq.pop(name, None)
        self._served.pop(name, None)
        self.born.pop(name, None)

    # Dying

    @contextmanager
    def burying(
        self, queue: Queue, messages: list[Message], reason: DeadLetterReason
    ) -> Iterator[None]:
        """Messages die: for a reason that is true, and into the targets that take them."""
        frame = Frame("burying", queue, reason.value)
        dead_letters = queue.feature(DeadLetters)
        is_safe = dead_letters is not None and dead_letters.pending is not None
        wanted: dict[Place, set[str]] = {}
        for message in messages:
            copy = self._of(queue, message)
            self._check_reason(queue, copy, reason)
            if reason is DeadLetterReason.MAXLEN and message is messages[0]:
                self._check_unwanted(queue, copy, message)
            copy.dying = reason.value
            copy.taken_by = set()
            frame.sources[copy.number].append(copy)
            wanted[copy.place] = self._targets(queue, copy, message)
            if not is_safe:
                self._pop(copy.place)
        self._stack.append(frame)
        yield
        self._stack.pop()
        for copies in frame.sources.values():
            for copy in copies:
                if is_safe and copy.place[1] not in pending_of(queue):
                    self._pop(copy.place)
                    self._check_all_took(queue, copy, wanted[copy.place], wanted[copy.place])
                elif not is_safe and len(copies) == 1:
                    self._check_sent(copy, wanted[copy.place], frame.credits[copy.number])

    @contextmanager
    def trying(self, queue: Queue) -> Iterator[None]:
        """A dispatch: what is stuck may be tried again."""
        returns = queue.feature(Redelivery)
        if returns is not None and returns.parked.is_due:
            self.returned_to.add(queue.spec.name)  # a delayed one comes back by itself
        if not pending_of(queue):
            yield
            return
        frame = Frame("trying", queue)
        targets = {
            message[2]: self._targets(queue, self._of(queue, message), message)
            for message in pending_messages(queue)
        }
        before = [self.copies[queue.spec.name, seq] for seq in sorted(pending_of(queue))]
        for copy in before:
            frame.sources[copy.number].append(copy)
        self._stack.append(frame)
        yield
        self._stack.pop()
        left = pending_of(queue)
        for copy in before:
            if copy.place[1] not in left and copy.place in self.copies:
                self._pop(copy.place)
                self._check_all_took(queue, copy, None, targets[copy.place[1]])

    def _check_all_took(
        self, queue: Queue, copy: Copy, wanted: set[str] | None, targets: set[str]
    ) -> None:
        """DLX-09: it leaves only when all have it, and at least one."""
        del queue
        if wanted is None:
            wanted = copy.taken_by
        # A target that knows its key has it, or had it (DUP-07).
        queues = {each.spec.name: each for each in self._world.vhost.every_queue()}
        if any(name in queues and queues[name].feature(Dedup) is not None for name in targets):
            return
        if not wanted or not wanted <= copy.taken_by:
            raise Violation(
                f"{copy.number} left {copy.place[0]} for {wanted}, "
                f"taken by {copy.taken_by} (DLX-09)"
            )

    def _check_sent(self, copy: Copy, wanted: set[str], got: list[str]) -> None:
        if len(got) != len(set(got)) and copy.number not in self.turned_away:
            raise Violation(f"{copy.number} went to {got} (DLX-08)")
        queues = {each.spec.name: each for each in self._world.vhost.every_queue()}
        for name in wanted - set(got):
            queue = queues.get(name)
            if queue is not None and queue.publish_filter is None:
                raise Violation(f"{copy.number} of {copy.place[0]} never came to {name} (DLX-08)")

    def _targets(self, queue: Queue, copy: Copy, message: Message) -> set[str]:
        """Where a dead letter is to go, by the rules (DLX-06, DLX-20)."""
        features, vhost = queue.features, self._world.vhost
        named = features.text("dead-letter-exchange")
        exchange = vhost.exchanges.get(named or "")
        if named is None or exchange is None:
            return set()
        key = features.text("dead-letter-routing-key")
        if key is None:
            key = decode_shortstr(message[1], decode_shortstr(message[1], 0)[1])[0]
        headers = Properties(property_block(message[0])).headers or {}
        names = {each.spec.name for each in vhost.route(exchange, (key,), headers)}
        seen: set[str] = set()
        deaths = copy.deaths if copy.since_moved is None else copy.since_moved
        for name, reason, _ in died(deaths, queue.spec.name, copy.dying):
            if reason == "rejected":
                break
            seen.add(name)
        return names - seen

    def _check_reason(self, queue: Queue, copy: Copy, reason: DeadLetterReason) -> None:
        name, features = queue.spec.name, queue.features
        is_true = True
        if reason is DeadLetterReason.EXPIRED:
            deadline = self.deadline_ms(queue, copy)
            is_true = deadline is not None and deadline <= self._now_ms()
        elif reason is DeadLetterReason.REJECTED:
            is_true = (name, copy.number) in self.rejections
        elif reason is DeadLetterReason.DELIVERY_LIMIT:
            limit = rules_of(features).limit
            is_true = limit is not None and copy.returns > limit >= 0
        elif reason is DeadLetterReason.MAXLEN:
            most = features.number("max-length")
            most_octets = features.number("max-length-bytes")
            # Others may be on their way out with it.
            octets = sum(each.octets for place, each in self.copies.items() if place[0] == name)
            is_true = (most is not None and classic(queue).held_count + 1 > most) or (
                most_octets is not None and octets > most_octets
            )
        if not is_true:
            raise Violation(f"{copy.number} died in {name}: {reason.value}, which is not true")

    def _check_unwanted(self, queue: Queue, copy: Copy, message: Message) -> None:
        """LEN-04: what a consumer waits for is theirs, unless something has come back (LEN-06).

        Nobody waits at a paused queue (HTTP-36).
        """
        if classic(queue).is_paused:
            return
        is_first = copy.place[0] not in self.returned_to and self.unserved == copy.place[0]
        ports = classic(queue).subscribers.everybody()
        waits = any(port.capacity(message[0]) > 0 for port in ports)
        if is_first and waits and classic(queue).subscribers.single_active is None:
            raise Violation(f"{copy.number} was dropped in {copy.place[0]}, and wanted (LEN-04)")
        if is_first:
            # Those behind it, perhaps of a lower priority, were not at the head before.
            self.unserved = ""

    def deadline_ms(self, queue: Queue, copy: Copy) -> int | None:
        """TTL-01: the smaller of the two."""
        times = [queue.features.number("message-ttl"), copy.expiration_ms]
        least = min((ttl_ms for ttl_ms in times if ttl_ms is not None), default=None)
        return None if least is None else copy.arrived_ms + least

    # Delays

    @contextmanager
    def releasing(self, delay_queue: Queue, name: str, messages: list[Message]) -> Iterator[None]:
        """Delayed messages leave their hold."""
        frame = Frame("releasing", delay_queue)
        vhost = self._world.vhost
        exchange = vhost.exchanges.get(name)
        wanted: dict[int, set[str]] = {}
        for message in messages:
            copy = self._pop((delay_queue.spec.name, message[2]))
            if copy.arrived_ms + delay_of(message[0]) > self._now_ms():
                raise Violation(f"{copy.number} left the hold of {name} too early (DELAY-14)")
            frame.sources[copy.number].append(copy)
            due = undelayed(message)
            targets = vhost.route(exchange, due.keys, due.headers) if exchange is not None else ()
            wanted[copy.number] = {queue.spec.name for queue in targets}
        self._stack.append(frame)
        yield
        self._stack.pop()
        for number in wanted:
            source = frame.only(number)
            if source is not None:
                self._check_sent(source, wanted[number], frame.credits[number])

    @contextmanager
    def sending_again(self) -> Iterator[None]:
        """What the disk had refused goes again, if it now takes blocks."""
        dead_letter_publisher = self._world.runtime.dead_letter_publisher
        frame = Frame("kept", None)
        kept = list(dead_letter_publisher._kept)
        for sent in kept:
            for message in sent.messages:
                place = (sent.queue.spec.name, message[2])
                copy = self.copies.get(place) or self.archive.get(place)
                if copy is not None:
                    frame.sources[copy.number].append(copy)
        self._stack.append(frame)
        yield
        self._stack.pop()
        for sent in kept:
            for message in sent.messages if not sent.queue.is_deleted else ():
                place = (sent.queue.spec.name, message[2])
                if message[2] & 1 and place in self.copies:
                    self._pop(place)

    def kept(self) -> None:
        """What could not be sent is kept, by the office or by its queue: sources have it."""
        for sent in self._world.runtime.dead_letter_publisher._kept:
            for message in sent.messages if not sent.queue.is_deleted else ():
                place = (sent.queue.spec.name, message[2])
                if message[2] & 1 and place not in self.copies and place in self.archive:
                    self.copies[place] = self.archive[place]
        for queue in self._world.vhost.every_queue():
            name = queue.spec.name
            for seq, taken_by in pending_of(queue).items():
                place = (name, seq)
                if place not in self.copies:
                    self.copies[place] = self.archive[place]
                self.copies[place].taken_by = set(taken_by)

    def dispatched(self, queue: Queue) -> None:
        """Everybody has been served who could be."""
        self.returned_to.discard(queue.spec.name)
        self.unserved = ""

    # Handing out

    def taken(self, queue: Queue, line: ReadyList, batch: list[Message]) -> None:
        """A batch is about to be handed out."""
        self.unserved = ""
        now_ms, turn = self._now_ms(), self._world.runtime.turn.count
        name = queue.spec.name
        for message in batch:
            copy = self._of(queue, message)
            self._read_again(copy, message)
            deadline = self.deadline_ms(queue, copy)
            is_late = deadline is not None and deadline <= now_ms
            if is_late and (deadline != copy.arrived_ms or turn > copy.turn + 1):
                when = f"deadline {deadline} at {now_ms}, turn {turn}, came in {copy.turn}"
                raise Violation(f"{copy.number} of {name} was handed out late: {when} (TTL-02)")
            if copy.not_before_ms > now_ms:
                raise Violation(f"{copy.number} of {name} came back too early (REDELIVER-20)")
            limit = rules_of(queue.features).limit
            if limit is not None and 0 <= limit < copy.returns:
                raise Violation(f"{copy.number} of {name} came back too often (REDELIVER-12)")
        seqs = [message[2] for message in batch]
        is_ordered = queue.levels is None or line is not queue.levels._returned
        if is_ordered and seqs != sorted(seqs):
            raise Violation(f"{name} hands out {seqs}")
        if is_ordered and seqs and line.ready and line.ready[0][2] < seqs[-1]:
            raise Violation(f"{name} hands out {seqs} before {line.ready[0][2]}")
        if batch and queue.levels is not None and is_ordered:
            self._check_level(queue, line)

    @staticmethod
    def _check_level(queue: Queue, line: ReadyList) -> None:
        assert queue.levels is not None
        by_level = sorted(queue.levels._by_level.items(), reverse=True)
        first = queue.levels._returned
        for other in ([] if first is None else [first]) + [each for _, each in by_level]:
            if other is line:
                break
            if other.count:
                raise Violation(f"{queue.spec.name} has something of a higher level (PRIO-08)")

    def handed_out(self, queue: Queue, port: ConsumerPort, batch: list[Message], mark: int) -> None:
        """A batch goes to a consumer."""
        name = queue.spec.name
        for message in batch:
            self._handed(queue, message, message[2] <= mark)
        single = classic(queue).subscribers.single_active
        if single is None or not batch:
            return
        before = self._served.get(name)
        if before is not None and before is not port:
            is_there = before in classic(queue).subscribers.everybody()
            if is_there and before.has_outstanding:
                raise Violation(f"{name} serves two consumers (CONS-30)")
        self._served[name] = port

    def got(self, queue: Queue, message: Message, is_again: bool) -> None:
        """basic.get."""
        self._handed(queue, message, is_again)

    def _handed(self, queue: Queue, message: Message, is_again: bool) -> None:
        copy = self._of(queue, message)
        if copy.handed != is_again:
            raise Violation(f"{copy.number} of {queue.spec.name}: redelivered is {is_again}")
        copy.handed, copy.handed_ms = True, self._now_ms()
        returns = queue.feature(Redelivery)
        if returns is not None and returns._of(message).returns != copy.returns:
            raise Violation(
                f"{copy.number} of {queue.spec.name} has come back {copy.returns} times, "
                f"not {returns._of(message).returns} (REDELIVER-13)"
            )

    def _read_again(self, copy: Copy, message: Message) -> None:
        """What the journal says of when it came: a block has one time, that of its writing."""
        arrived_ms = self._world.wall_of(message[3])
        if not copy.arrived_ms <= arrived_ms <= (copy.written_ms or self._now_ms()):
            raise Violation(
                f"{copy.number} came at {copy.arrived_ms}, not {arrived_ms} (DURABLE-20)"
            )
        copy.arrived_ms = arrived_ms

    # The balance

    def balance(self, listing: Listing) -> None:
        """What is in the books is what is in the queues."""
        by_queue: dict[str, set[int]] = {name: set() for name in listing.ready}
        for name, seq in self.copies:
            if name not in by_queue:
                raise Violation(f"{name} is gone, but not {seq}")
            by_queue[name].add(seq)
        for name, booked in by_queue.items():
            ready, unacked = listing.ready[name], listing.unacked[name]
            piles = [*ready, *listing.parked[name], *unacked]
            if len(piles) != len(set(piles)):
                twice = [seq for seq, count in Counter(piles).items() if count > 1]
                raise Violation(f"{name} has {self._shown(name, twice)} twice")
            there = {*piles, *listing.kept[name]}
            if invented := there - booked:
                raise Violation(f"{name} has {sorted(invented)}, which never came or had left")
            lost = booked - there
            if len(lost) != listing.unread[name] or any(
                seq & 1 for seq in lost if listing.unread[name]
            ):
                raise Violation(f"{name} has lost {self._shown(name, lost)}")

    def _shown(self, name: str, seqs: Iterable[int]) -> str:
        return shown((self.copies[name, seq].number, seq) for seq in seqs)

    # After a crash

    def recovered(self, old: Books, queue: Queue, message: Message, is_handed: bool) -> None:
        """A copy that was found again."""
        copy = self._enter(queue, message)
        before = old.copies.get(copy.place) or old.archive.get(copy.place)
        if before is None or before.number != copy.number:
            raise Violation(f"{copy.number} is in {copy.place}, where it never was")
        if before.deaths != copy.deaths:
            raise Violation(f"{copy.number} died {copy.deaths}, not {before.deaths}")
        copy.arrived_ms, copy.written_ms = before.arrived_ms, before.written_ms
        self._read_again(copy, message)
        copy.written_ms = copy.arrived_ms
        copy.handed = is_handed
        copy.is_published = False
        copy.has_key, copy.since_moved = before.has_key, before.since_moved
        returns = queue.feature(Redelivery)
        if returns is not None:
            counts = returns._counts.get(message[2])
            copy.returns = counts.returns if counts is not None else 0
            if counts is not None:
                copy.not_before_ms = counts.due_ms
        dead_letters = queue.feature(DeadLetters)
        if dead_letters is not None and dead_letters.pending is not None:
            one = dead_letters.pending._tries.get(message[2])
            if one is not None:
                copy.dying, copy.taken_by = one.reason.value, set(one.taken_by)


def _since_moved(source: Copy | None, frame: Frame) -> list[Death] | None:
    """See `Copy`: of one that comes from this source."""
    if frame.kind == "moving":
        return []
    if source is None or source.since_moved is None:
        return None
    if frame.kind in {"burying", "trying"} and frame.queue is not None:
        name = frame.queue.spec.name
        return died(source.since_moved, name, frame.reason or source.dying)
    return source.since_moved


def deaths_in(properties: Properties) -> list[Death]:
    """What the x-death header says."""
    header = (properties.headers or {}).get("x-death")
    found: list[Death] = []
    for event in cast("list[Field]", header.value if header is not None else []):
        table = cast("Table", event.value)
        queue, reason = as_text(table["queue"]) or "", as_text(table["reason"]) or ""
        found.append((queue, reason, as_integer(table["count"]) or 0))
    return found


def died(deaths: list[Death], queue: str, reason: str) -> list[Death]:
    """DLX-17: one entry for each queue and reason, the newest first."""
    count = sum(times for name, why, times in deaths if (name, why) == (queue, reason))
    return [(queue, reason, count + 1)] + [d for d in deaths if d[:2] != (queue, reason)]


def retry_ms(queue: Queue, count: int, *, is_counted: bool) -> int:
    """REDELIVER-20, REDELIVER-21: how long a message waits that has come back so often."""
    rules = rules_of(queue.features)
    kinds = {"all": True, "failed": is_counted, "returned": not is_counted}
    if not rules.min_ms or not kinds.get(rules.retried, False):
        return 0
    times = max(count, 1)
    factor = rules.multiplier ** (times - 1) if rules.is_exponential else times
    delay_ms = int(rules.min_ms * factor)
    return delay_ms if rules.max_ms is None else min(delay_ms, rules.max_ms)
