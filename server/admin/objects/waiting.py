"""`wait queue`: answered when a queue has come to be as somebody expects it.

Looked at when a turn of the loop is over: what came has been handed out then, as far as consumers
take it. Nobody has to ask again and again. Must not know sockets.

Spec: HTTP-35
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Final

from msgspec import Meta

from vouchmq.server.admin.commands import CommandRefused, refuse
from vouchmq.server.admin.objects.queues import QueueArguments

if TYPE_CHECKING:
    from vouchmq.server.admin.commands import ControlCommands, Reply
    from vouchmq.server.admin.objects.operator import Operator

TIMED_OUT: Final = 408
Count = Annotated[int, Meta(ge=0)]


class WaitQueue(QueueArguments, frozen=True, kw_only=True):
    """What a queue is to be like; all that is given must be true at once.

    Args:
        ready: exactly so many ready messages
        ready_at_least: or more
        unacknowledged: exactly so many that were handed out and not settled
        consumers: exactly so many consumers
        consumers_at_least: or more
        limit_ms: wait no longer than this; 0: for ever
    """

    ready: Count | None = None
    ready_at_least: Count | None = None
    unacknowledged: Count | None = None
    consumers: Count | None = None
    consumers_at_least: Count | None = None
    limit_ms: Count = 0


class WaitCommands:
    """The command that waits.

    Args:
        operator: finds what it names
    """

    def __init__(self, operator: Operator) -> None:
        self._operator = operator

    def register(self, commands: ControlCommands) -> None:
        """Enter the command."""
        commands.register("wait queue", WaitQueue, self._wait)

    def _wait(self, asked: WaitQueue, reply: Reply) -> None:
        wanted = (asked.ready, asked.ready_at_least, asked.unacknowledged)
        if {*wanted, asked.consumers, asked.consumers_at_least} == {None}:
            raise CommandRefused("wait queue: nothing that the queue should have is given")
        self._operator.vhost(asked.vhost)
        user = self._operator.user(asked.user)
        user.require_any("queue", asked.name, asked.vhost)
        Wait(self._operator, asked, reply).begin()


class Wait:
    """One wait.

    Args:
        operator: knows the queues
        asked: what is waited for
        reply: told that it is so
    """

    def __init__(self, operator: Operator, asked: WaitQueue, reply: Reply) -> None:
        self._context = operator.context
        self._asked = asked
        self._reply = reply
        self._ends_ms = 0

    def begin(self) -> None:
        """Look in this turn, and after each one until it is so."""
        context, asked = self._context, self._asked
        context.turn.observers[self.look] = None
        self._reply.when_gone(self._end)
        context.turn.wake()
        if asked.limit_ms:
            self._ends_ms = context.timers.now_ms() + asked.limit_ms
            context.timers.at(self._ends_ms, self._give_up)

    def look(self) -> None:
        """Answer if the queue is as it should be."""
        asked = self._asked
        counts = self._counts()
        if counts is None or not all(
            (
                asked.ready in {None, counts["ready"]},
                (asked.ready_at_least or 0) <= counts["ready"],
                asked.unacknowledged in {None, counts["unacknowledged"]},
                asked.consumers in {None, counts["consumers"]},
                (asked.consumers_at_least or 0) <= counts["consumers"],
            )
        ):
            return
        self._end()
        self._reply({"ok": True, **counts})

    def _counts(self) -> dict[str, int] | None:
        """What the queue has; None: there is none."""
        vhost = self._context.broker.vhosts.get(self._asked.vhost)
        queue = vhost.queues.get(self._asked.name) if vhost is not None else None
        if queue is None:
            return None
        return {
            "ready": queue.ready_count,
            "unacknowledged": queue.unacked_count,
            "consumers": queue.consumer_count,
        }

    def _give_up(self) -> None:
        if self.look not in self._context.turn.observers:
            return
        timers = self._context.timers
        if timers.now_ms() < self._ends_ms:
            # A timer looks again in a minute at the latest.
            timers.at(self._ends_ms, self._give_up)
            return
        self._end()
        counts = self._counts()
        has = "is not there" if counts is None else f"has {counts}"
        text = f"queue '{self._asked.name}' {has} after {self._asked.limit_ms} ms"
        refuse(self._reply, text, TIMED_OUT)

    def _end(self) -> None:
        self._context.turn.observers.pop(self.look, None)
