"""`wait queue`: answered when a queue has come to be as somebody expects it.

Looked at when a turn of the loop is over: what came has been handed out then, as far as consumers
take it, and the journal has been written, so that what is seen survives if the broker is killed.
Nobody has to ask again and again. What comes about without a turn, by a timer say, is found once in
a while. Must not know sockets.

Spec: HTTP-35
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Final, Protocol

from msgspec import Meta, field

from vouchmq.server.admin.commands import CommandRefused
from vouchmq.server.admin.objects.queues import QueueArguments
from vouchmq.server.admin.views import QueueView, view_of_queue

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from vouchmq.server.admin.commands import ControlCommands, Reply
    from vouchmq.server.admin.objects.operator import Operator
    from vouchmq.server.runtime.turn import Turn

LOOK_S: Final = 0.02
MS_PER_S: Final = 1000
NEVER: Final = float("inf")
TIMED_OUT: Final = 408
COLUMNS: Final = QueueView.__struct_fields__
COUNTS: Final = tuple(
    name for name, kind in QueueView.__annotations__.items() if kind in ("int", int)
)
"""What of a queue can be waited for."""


class Timers(Protocol):
    """What calls something later."""

    def __call__(self, delay_s: float, job: Callable[[], None], /) -> object:
        """Run a callable after so many seconds."""


class Waits:
    """Everything that is waited for in a broker.

    Args:
        call_later: runs a callable after so many seconds
        clock: monotonic seconds
        observers: what is called after each turn
        wake: sees to it that there is a turn
    """

    def __init__(
        self,
        call_later: Timers,
        clock: Callable[[], float],
        observers: dict[Callable[[], None], None],
        wake: Callable[[], None],
    ) -> None:
        self._call_later = call_later
        self._clock = clock
        self._observers = observers
        self._wake = wake
        self._waits: dict[Wait, None] = {}
        self._is_armed = False

    @classmethod
    def after(cls, turn: Turn, call_later: Timers, clock: Callable[[], float]) -> Waits:
        """What is waited for in a broker with these turns."""
        return cls(call_later, clock, turn.observers, turn.wake)

    def begin(
        self, is_so: Callable[[], bool], tell: Callable[[bool], None], limit_s: float
    ) -> Wait:
        """Call `tell` as soon as `is_so`, or with False when `limit_s` is over."""
        wait = Wait(is_so, tell, self._clock() + limit_s)
        self._waits[wait] = None
        self._observers[self.look] = None
        self._wake()
        return wait

    def answer(
        self,
        reply: Reply,
        is_so: Callable[[], bool],
        facts: Callable[[], dict[str, Any]],
        limit_s: float,
    ) -> None:
        """Answer a command with facts as soon as `is_so`, or with them why not: 408."""

        def tell(has_come: bool) -> None:
            if has_come:
                reply({"ok": True, **facts()})
            else:
                text = f"not within {limit_s:g} s"
                reply({"ok": False, "error": text, "code": TIMED_OUT, **facts()})

        wait = self.begin(is_so, tell, limit_s)
        reply.when_gone(lambda: self.forget(wait))

    def forget(self, wait: Wait) -> None:
        """Nobody waits for it any more."""
        self._waits.pop(wait, None)
        if not self._waits:
            self._observers.pop(self.look, None)

    def look(self) -> None:
        """Tell those whose wait is over; a turn is."""
        now = self._clock()
        for wait in list(self._waits):
            is_so = wait.is_so()
            if is_so or now >= wait.ends_at:
                del self._waits[wait]
                wait.tell(is_so)
        if not self._waits:
            self._observers.pop(self.look, None)
        elif not self._is_armed:
            self._is_armed = True
            self._call_later(LOOK_S, self._look_again)

    def _look_again(self) -> None:
        self._is_armed = False
        if self._waits:
            self._wake()


class Wait:
    """One thing that is waited for; see `Waits.begin`."""

    __slots__ = ("ends_at", "is_so", "tell")

    def __init__(
        self, is_so: Callable[[], bool], tell: Callable[[bool], None], ends_at: float
    ) -> None:
        self.is_so = is_so
        self.tell = tell
        self.ends_at = ends_at


class WaitQueue(QueueArguments, frozen=True, kw_only=True):
    """What a queue is to be like.

    Args:
        counts: numbers of it as `list queues` has them; all must be true at once
        at_least: or more of each
        limit_ms: wait no longer than this; 0: for ever
    """

    counts: dict[str, int] = field(default_factory=dict)
    at_least: bool = False
    limit_ms: Annotated[int, Meta(ge=0)] = 0


class WaitCommands:
    """The command that waits.

    Args:
        operator: finds what it names
        waits: what is waited for
    """

    def __init__(self, operator: Operator, waits: Waits) -> None:
        self._operator = operator
        self._waits = waits

    def register(self, commands: ControlCommands) -> None:
        """Enter the command."""
        commands.register("wait queue", WaitQueue, self._wait)

    def _wait(self, asked: WaitQueue, reply: Reply) -> None:
        unknown = sorted(set(asked.counts) - set(COUNTS))
        if unknown:
            text = f"a queue has no count {unknown[0]!r}; it has {', '.join(COUNTS)}"
            raise CommandRefused(text)
        if not asked.counts:
            raise CommandRefused("wait queue: counts must not be empty")
        self._operator.vhost(asked.vhost)
        user = self._operator.user(asked.user)
        user.require_any("queue", asked.name, asked.vhost)

        def is_so() -> bool:
            view = self._view(asked)
            return view is not None and has(view, asked.counts, at_least=asked.at_least)

        def facts() -> dict[str, Any]:
            view = self._view(asked)
            row = {name: getattr(view, name) for name in COLUMNS} if view is not None else None
            return {"queue": row}

        self._waits.answer(reply, is_so, facts, asked.limit_ms / MS_PER_S or NEVER)

    def _view(self, asked: WaitQueue) -> QueueView | None:
        vhost = self._operator.context.broker.vhosts.get(asked.vhost)
        queue = vhost.queues.get(asked.name) if vhost is not None else None
        if vhost is None or queue is None:
            return None
        return view_of_queue(queue, vhost.policy_engine.policy_of_queue(queue))


def has(view: QueueView, counts: Mapping[str, int], *, at_least: bool) -> bool:
    """Whether a queue has these numbers."""
    found = [(getattr(view, name), count) for name, count in counts.items()]
    if at_least:
        return all(count >= least for count, least in found)
    return all(count == exactly for count, exactly in found)
