"""What one case works with: fresh connections, names nobody else has, and a clean exit."""

from __future__ import annotations

import contextlib
import itertools
import secrets
from collections.abc import Sequence
from typing import Final

from vouchmq.conformance.client import Channel, Connection
from vouchmq.conformance.control import operate
from vouchmq.conformance.events import EndedError, RefusedError, SilenceError
from vouchmq.conformance.expect import MismatchError, SkipError, check, within
from vouchmq.conformance.target import Target, Tls
from vouchmq.conformance.wire import Table

_RUN: Final = secrets.token_hex(3)
_COUNTER: Final = itertools.count(1)
CLEANING_S: Final = 5.0
# How much later than a rule allows something may be seen here: both machines are busy.
SLACK_S: Final = 2.0
# How much earlier: clocks are read in milliseconds on one side.
EARLY_S: Final = 0.01


class Stage:
    """The props of one case; `clear` removes whatever it left behind."""

    def __init__(
        self,
        target: Target,
        slack_s: float = SLACK_S,
        control_command: str = "",
        tls: Tls | None = None,
        *,
        is_referee: bool = False,
    ) -> None:
        self.target = target
        self.is_referee = is_referee
        self.slack_s = slack_s
        self._control = control_command
        self._tls = tls
        self._undo: list[tuple[str, ...]] = []
        self.connections: list[Connection] = []
        self._names: list[str] = []

    # --- names and texts -------------------------------------------------------------------

    def name(self, label: str = "q") -> str:
        """A name for a queue or an exchange; it is deleted when the case is over."""
        name = f"conformance.{_RUN}.{next(_COUNTER)}.{label}"
        self._names.append(name)
        return name

    def doomed(self, name: str) -> str:
        """A name of the case's own making, deleted when the case is over."""
        self._names.append(name)
        return name

    def the_queue(self, name: str) -> str:
        """A queue as reply texts name it. Spec: GEN-04"""
        return f"queue '{name}' in vhost '{self.target.vhost}'"

    def the_exchange(self, name: str) -> str:
        """An exchange as reply texts name it. Spec: GEN-04"""
        return f"exchange '{name}' in vhost '{self.target.vhost}'"

    # --- connections -----------------------------------------------------------------------

    def dial(self, *, greet: bytes | None = None) -> Connection:
        """A socket on which only the protocol header (or `greet`) has been sent."""
        connection = (
            Connection(self.target) if greet is None else Connection(self.target, greet=greet)
        )
        self.connections.append(connection)
        return connection

    def connect(
        self,
        *,
        client_properties: Table | None = None,
        channel_max: int = 2047,
        frame_max: int = 131072,
        beat: int = 0,
    ) -> Connection:
        """An open connection."""
        connection = self.dial()
        if client_properties is None:
            return connection.open(channel_max=channel_max, frame_max=frame_max, beat=beat)
        return connection.open(
            client_properties=client_properties,
            channel_max=channel_max,
            frame_max=frame_max,
            beat=beat,
        )

    def channel(self) -> Channel:
        """A channel on a connection of its own."""
        return self.connect().channel()

    def tls(self) -> Tls:
        """Where the broker speaks TLS.

        Raises:
            SkipError: nobody has said where.
        """
        if self._tls is None:
            raise SkipError("needs --tls")
        return self._tls

    # --- things to work on -----------------------------------------------------------------

    def queue(
        self, channel: Channel, *, label: str = "q", arguments: Table | None = None, **flags: bool
    ) -> str:
        """A new queue; transient, shared, lasting unless flags say otherwise."""
        name = self.name(label)
        channel.call("queue.declare", queue=name, arguments=arguments or {}, **flags)
        return name

    def exchange(
        self,
        channel: Channel,
        kind: str,
        *,
        arguments: Table | None = None,
        **flags: bool,
    ) -> str:
        """A new exchange."""
        name = self.name(kind)
        channel.call(
            "exchange.declare", exchange=name, type=kind, arguments=arguments or {}, **flags
        )
        return name

    def bound(
        self, channel: Channel, exchange: str, key: str = "", arguments: Table | None = None
    ) -> str:
        """A new queue bound to an exchange."""
        queue = self.queue(channel)
        channel.call(
            "queue.bind",
            queue=queue,
            exchange=exchange,
            routing_key=key,
            arguments=arguments or {},
        )
        return queue

    def confirming(self) -> Channel:
        """A channel in confirm mode, on a connection of its own."""
        channel = self.channel()
        channel.call("confirm.select")
        return channel

    def transactional(self) -> Channel:
        """A channel in transaction mode, on a connection of its own."""
        channel = self.channel()
        channel.call("tx.select")
        return channel

    def load(self, channel: Channel, queue: str, *bodies: str) -> None:
        """Publish these bodies to an idle queue; they are ready in it afterwards."""
        before = channel.count(queue)
        for body in bodies:
            channel.publish("", queue, body)
        channel.holds(queue, before + len(bodies))

    def in_time(self, at: float, due: float, late_s: float, what: str) -> None:
        """Fail unless `at` is not before `due` and at most `late_s` and the slack behind it."""
        check(at >= due - EARLY_S, f"{what}: {due - at:.3f} s too early")
        within(at - due, late_s + self.slack_s, what)

    def operate(self, *words: str, undo: Sequence[str] = ()) -> None:
        """Have the operator's command do this; `undo` follows when the case is over.

        Raises:
            SkipError: there is no such command.
        """
        if not self._control:
            raise SkipError("needs --control-command")
        if undo:
            self._undo.append(tuple(undo))
        operate(self._control, words)

    # --- afterwards ------------------------------------------------------------------------

    def trace(self) -> tuple[str, ...]:
        """The last frames of the connections that were used, newest connection last."""
        lines: list[str] = []
        for number, connection in enumerate(self.connections, 1):
            lines += [f"connection {number}:", *connection.trace]
        return tuple(lines)

    def leave(self) -> None:
        """End all connections, in good order where that is still possible."""
        for connection in self.connections:
            with contextlib.suppress(Exception):
                if not connection.end:
                    connection.send_method(
                        0, "connection.close", reply_code=200, reply_text="case over"
                    )
                    connection.wait(0, "connection.close_ok", timeout_s=1.0)
            connection.drop()
        self.connections.clear()

    def abandon(self) -> None:
        """Let go of connections whose broker is gone."""
        for connection in self.connections:
            connection.drop()
        self.connections.clear()

    def clear(self) -> None:
        """Leave, undo what the operator did, and delete every queue and exchange of the case."""
        self.leave()
        while self._undo:
            # What the case has undone itself cannot be undone again.
            with contextlib.suppress(MismatchError, SkipError):
                operate(self._control, self._undo.pop())
        if not self._names:
            return
        connection = Connection(self.target).open()
        try:
            channel = connection.channel()
            for name in self._names:
                self._delete(channel, "queue.delete", queue=name)
                self._delete(channel, "exchange.delete", exchange=name)
        finally:
            with contextlib.suppress(EndedError, SilenceError, RefusedError, MismatchError):
                connection.close()
            connection.drop()

    def _delete(self, channel: Channel, verb: str, **argument: str) -> None:
        try:
            channel.send(verb, **argument)
            channel.wait(f"{verb}_ok", timeout_s=CLEANING_S)
        except RefusedError as refused:
            if refused.is_hard:
                raise
            channel.send("channel.close_ok")
            channel.reopen()
