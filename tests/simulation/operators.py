"""Somebody who moves, pauses, purges and looks at what others use, for `admin_world.py`.

    move ─▶ a frame in the books: out of one queue and into others, in one block
    pause ─▶ from its answer on nothing may be handed out, until resume is asked for
    peek ─▶ each row is a message that is there; by the books nothing has changed
    set prefetch ─▶ from its answer on no consumer gets more than that

What a crash may leave of a move or a pause is judged by the snapshots: a block that has one half of
it is no state of the broker.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, cast

from tests.simulation.feature_books import Books, Frame
from tests.simulation.feature_queues import OpenBooks, WatchedQueue
from tests.simulation.feature_topology import QUEUES
from tests.simulation.ledger import Violation
from vouchmq.server.admin.commands import ControlCommands
from vouchmq.server.admin.objects.waiting import Waits
from vouchmq.server.channel.consumer import Consumer
from vouchmq.server.edge.control.commands import register_object_commands

if TYPE_CHECKING:
    from tests.simulation.feature_world import FeatureWorld
    from vouchmq.server.broker.dead_letter.publisher import Way
    from vouchmq.server.broker.message import Message
    from vouchmq.server.broker.queues.api import ConsumerPort, Queue
    from vouchmq.server.broker.queues.ready_list import ReadyList
    from vouchmq.server.channel.channel import Channel

# What a command may be refused with here: the user may not (an exclusive queue), nothing of that
# name, in use or a stream, the disk.
REFUSALS = frozenset({320, 400, 403, 404, 405, 406, 503, 506, 541})
PLACES = ("amq.topic", "amq.fanout", "")


class OperatedQueue(WatchedQueue):
    """A queue that hands out nothing while it is paused, and no more than it may."""

    __slots__ = ()

    def deliver(
        self, port: ConsumerPort, line: ReadyList, batch: list[Message], mark: int = -1
    ) -> bool:
        if OpenBooks.books is not None and batch:
            cast("OperatedBooks", OpenBooks.books).may_hand_out(self, port, len(batch))
        return super().deliver(port, line, batch, mark)

    def get(self, **more: Any) -> tuple[Message, Message, bool] | None:
        found = super().get(**more)
        if OpenBooks.books is not None and found is not None:
            cast("OperatedBooks", OpenBooks.books).may_hand_out(self, None, 1)
        return found


class OperatedBooks(Books):
    """Books that know what an operator has done.

    `paused` are queues of which a pause was answered, and no resume was asked for since;
    `prefetch` is that of consumers to which one was given.
    """

    def __init__(self, world: FeatureWorld) -> None:
        super().__init__(world)
        self.paused: set[Queue] = set()
        self.prefetch: dict[Consumer, int] = {}
        self.moved_count = 0
        self.moved_record = 0

    def may_hand_out(self, queue: Queue, port: ConsumerPort | None, count: int) -> None:
        """HTTP-36, HTTP-38."""
        if queue in self.paused:
            raise Violation(f"{queue.spec.name} is paused, and hands out {count} (HTTP-36)")
        if not isinstance(port, Consumer) or not self.prefetch.get(port):
            return
        channel = cast("Channel", port.channel)
        held = sum(run.live for run in channel.unacked.runs() if run.consumer is port)
        if channel.transaction is not None:
            settled = (each for one in channel.transaction.settlements for each in one.entries)
            held += sum(len(each.messages) for each in settled if each.consumer is port)
        if held + count > self.prefetch[port]:
            raise Violation(
                f"{port.tag} gets {count} and holds {held}, of {self.prefetch[port]} (HTTP-38)"
            )

    @contextmanager
    def moving(self, queue: Queue, messages: list[Message], ways: list[Way]) -> Iterator[None]:
        """Messages leave a queue for others: what has gone is in all of them (HTTP-37)."""
        frame = Frame("moving", queue)
        for message in messages:
            copy = self._of(queue, message)
            copy.taken_by = set()
            frame.sources[copy.number].append(copy)
        self._stack.append(frame)
        count: list[int] = []
        self._gone = count
        yield
        self._stack.pop()
        for message, way in zip(messages[: count[0]], ways, strict=False):
            copy = self._pop((queue.spec.name, message[2]))
            if len(frame.sources[copy.number]) == 1:
                wanted = {each.spec.name for each in way.queues}
                self._check_sent(copy, wanted, frame.credits[copy.number])
        self.moved_count += count[0]
        self.moved_record = self._world.states_of.pending

    def gone(self, count: int) -> None:
        """So many of those that are being moved have gone."""
        self._gone.append(count)


class Reply:
    """Where rows and the answer to a command go."""

    is_open = True
    is_full = False

    def __init__(
        self,
        told: Callable[[Mapping[str, Any]], None],
        shown: Callable[[Mapping[str, Any]], None],
    ) -> None:
        self._told = told
        self._shown = shown
        self._columns: list[str] = []

    def __call__(self, facts: Mapping[str, object], /) -> None:
        self.is_open = False
        self._told(facts)

    def send(self, content: Mapping[str, Any], /) -> None:
        for row in content.get("rows", ()):
            self._shown({name: getattr(row, name) for name in row.__struct_fields__})

    def when_writable(self, job: Callable[[], None], /) -> None:
        raise AssertionError(job)

    def when_gone(self, job: Callable[[], None], /) -> None:
        """Nobody goes."""


class OperatorActor:
    """Whoever operates one process."""

    def __init__(self, world: FeatureWorld, books: OperatedBooks) -> None:
        self._world = world
        self._books = books
        self._runtime = world.runtime
        self._commands = ControlCommands()
        waits = Waits.after(world.runtime.turn, world.loop.call_later, lambda: world.loop.now)
        register_object_commands(self._commands, world.runtime, waits)
        self._is_moving = False
        self._watch_moves()

    def _watch_moves(self) -> None:
        publisher, books = self._runtime.dead_letter_publisher, self._books
        move = publisher.move

        def watched(queue: Queue, messages: list[Message], ways: list[Way]) -> int:
            with books.moving(queue, messages, ways):
                count = move(queue, messages, ways)
                books.gone(count)
            return count

        publisher.move = watched  # type: ignore[method-assign]

    def act(self, draw: random.Random) -> None:
        """Ask for something."""
        draw.choice(
            (self._move, self._move, self._pause, self._resume, self._peek, self._purge, self._qos)
        )(draw)

    def resume_all(self) -> None:
        """Have no queue paused any more."""
        for name, queue in sorted(self._world.vhost.queues.items()):
            if queue.is_paused:
                self._books.paused.discard(queue)
                self._ask("resume queue", {"name": name}, self._heard_nothing)

    def _heard_nothing(self, facts: Mapping[str, Any]) -> None:
        """It is done, or not."""

    def _move(self, draw: random.Random) -> None:
        if self._is_moving:
            return
        filled = [name for name in QUEUES if self._world.ready_in(name)]
        request: dict[str, Any] = {"name": draw.choice(filled or QUEUES)}
        if draw.random() < 0.4:
            request["count"] = draw.choice((1, 2, 5))
        command = "move"
        if draw.random() < 0.2:
            command = "return dead letters"
        elif draw.random() < 0.6:
            request["to_queue"] = draw.choice(QUEUES)
        else:
            request["to_exchange"] = draw.choice(PLACES)
        before = self._books.moved_count

        def told(facts: Mapping[str, Any]) -> None:
            self._is_moving = False
            if not facts["ok"]:
                return
            moved = self._books.moved_count - before
            if facts["moved"] != moved:
                raise Violation(f"{request}: {facts['moved']} are said to have gone, not {moved}")
            if moved:
                self._world.states_of.promise(self._books.moved_record, command)

        self._is_moving = True
        self._ask(command, request, told)

    def _pause(self, draw: random.Random) -> None:
        name = draw.choice(QUEUES)
        queue = self._world.vhost.queues.get(name)
        record = self._world.states_of.pending
        is_new = queue is not None and not queue.is_paused

        def told(facts: Mapping[str, Any]) -> None:
            if not facts["ok"] or queue is None or not queue.is_paused:
                return
            self._books.paused.add(queue)
            if facts["changed"] is not is_new:
                raise Violation(f"pause of {name}: {facts}")
            if is_new and queue.stored and not queue.is_deleted:
                self._world.states_of.promise(record, f"pause of {name}")

        self._ask("pause queue", {"name": name}, told)

    def _resume(self, draw: random.Random) -> None:
        paused = [name for name in QUEUES if self._is_paused(name)]
        name = draw.choice(paused or QUEUES)
        queue = self._world.vhost.queues.get(name)
        if queue is not None:
            self._books.paused.discard(queue)
        self._ask("resume queue", {"name": name}, self._heard_nothing)

    def _is_paused(self, name: str) -> bool:
        queue = self._world.vhost.queues.get(name)
        return queue is not None and queue.is_paused

    def _peek(self, draw: random.Random) -> None:
        name = draw.choice(QUEUES)
        state = draw.choice(("ready", "ready", "unacknowledged", "waiting"))
        request = {"name": name, "state": state, "first": draw.choice((0, 0, 1, 3))}

        def shown(row: Mapping[str, Any]) -> None:
            copy = self._books.copies.get((name, row["id"]))
            if copy is None or b"%010d" % copy.number != row["body"][:10]:
                raise Violation(f"peek at {name} shows {row['id']}, which is not there (HTTP-34)")

        self._ask("peek", request, self._heard_nothing, shown)

    def _purge(self, draw: random.Random) -> None:
        if draw.random() < 0.3:
            self._ask("purge queue", {"name": draw.choice(QUEUES)}, self._heard_nothing)

    def _qos(self, draw: random.Random) -> None:
        consumers = [
            (connection.label, channel.number, consumer)
            for connection in self._runtime.connections
            for channel in connection.channels.values()
            for consumer in channel.consumers.values()
            if not channel.is_closing
        ]
        if not consumers:
            return
        (name, number, consumer), prefetch = draw.choice(consumers), draw.choice((0, 1, 2, 5))
        request = {"name": name, "number": number, "tag": consumer.tag, "prefetch": prefetch}

        def told(facts: Mapping[str, Any]) -> None:
            if facts["ok"]:
                self._books.prefetch[consumer] = prefetch

        self._ask("set prefetch", request, told)

    def _ask(
        self,
        command: str,
        request: dict[str, Any],
        told: Callable[[Mapping[str, Any]], None],
        shown: Callable[[Mapping[str, Any]], None] | None = None,
    ) -> None:
        world = self._world
        world.tell(f"the operator asks: {command} {request}")

        def heard(facts: Mapping[str, Any]) -> None:
            world.tell(f"  answered: {command} {request} {facts}")
            if not facts["ok"] and facts["code"] not in REFUSALS:
                raise Violation(f"{command} {request}: {facts}")
            told(facts)

        def unexpected(row: Mapping[str, Any]) -> None:
            raise Violation(f"{command} shows {row}")

        self._commands.run({"command": command, **request}, Reply(heard, shown or unexpected))
