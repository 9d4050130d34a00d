"""The commands with which tests make a broker fail, and wait for it (`test_commands`).

They go over the control socket like all others; `vouchmq.testing` sends them. A fault lasts until
it is taken back, or until `test heal`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

from msgspec import Meta

from vouchmq.server.admin.commands import Arguments, CommandRefused
from vouchmq.server.admin.views import Selection, Views

if TYPE_CHECKING:
    from vouchmq.server.admin.commands import ControlCommands, Reply
    from vouchmq.server.broker.queues.api import Queue
    from vouchmq.server.broker.vhost import VHost
    from vouchmq.server.connection.connection import Connection
    from vouchmq.server.faults.faults import Faults
    from vouchmq.server.runtime.runtime import BrokerRuntime

NOT_FOUND: Final = 404
MOST_AHEAD_MS: Final = 100 * 365 * 86_400_000


class DiskState(Arguments, frozen=True):
    """`full`: writes fail; `low`: none fails, but hardly anything is said to be free; `ok`."""

    state: Literal["full", "low", "ok"]


class QueueName(Arguments, frozen=True):
    """A queue."""

    vhost: str
    name: str


class RefusePublishes(Arguments, frozen=True):
    """A queue that is to refuse the next `count` publishes; None: all."""

    vhost: str
    name: str
    count: int | None = None


class AdvanceClock(Arguments, frozen=True):
    """How far the clock of queues is set forward."""

    by_ms: Annotated[int, Meta(ge=0, le=MOST_AHEAD_MS)]


class CutConnections(Arguments, frozen=True):
    """Connections of a virtual host, or all; or the one of this name."""

    vhost: str | None = None
    name: str | None = None
    timeout_s: float = 10.0


class AwaitConnections(Arguments, frozen=True):
    """How many open connections a virtual host is to have; `blocked`: how many of them by an alarm.

    Not both may be None.
    """

    vhost: str
    count: int | None = None
    blocked: int | None = None
    timeout_s: float = 10.0


class FaultCommands:
    """Does what tests ask for.

    Args:
        faults: what can fail
        runtime: the running broker
    """

    def __init__(self, faults: Faults, runtime: BrokerRuntime) -> None:
        self._faults = faults
        self._runtime = runtime
        self._waits = faults.waits(runtime.turn)
        self._views = Views(runtime.context, runtime.connections, runtime.journal, runtime.commit)

    def register(self, commands: ControlCommands) -> None:
        """Register all of them."""
        commands.register("test set disk", DiskState, self._set_disk)
        commands.register("test hold confirms", Arguments, self._hold_confirms)
        commands.register("test release confirms", Arguments, self._release_confirms)
        commands.register("test refuse publishes", RefusePublishes, self._refuse_publishes)
        commands.register("test accept publishes", QueueName, self._accept_publishes)
        commands.register("test cut connections", CutConnections, self._cut_connections)
        commands.register("test await connections", AwaitConnections, self._await_connections)
        commands.register("test advance clock", AdvanceClock, self._advance_clock)
        commands.register("test heal", Arguments, self._heal)

    # Faults

    def _set_disk(self, wanted: DiskState, reply: Reply) -> None:
        if wanted.state == "low" and not self._runtime.context.alarms.disk_limit_octets:
            raise CommandRefused("without disk_free_limit no disk is low")
        self._faults.set_disk(
            is_full=wanted.state == "full", free_bytes=0 if wanted.state == "low" else None
        )
        self._measure()
        reply({"ok": True})

    def _hold_confirms(self, _: Arguments, reply: Reply) -> None:
        self._faults.worker.pause()
        reply({"ok": True})

    def _release_confirms(self, _: Arguments, reply: Reply) -> None:
        self._faults.worker.resume()
        reply({"ok": True})

    def _refuse_publishes(self, wanted: RefusePublishes, reply: Reply) -> None:
        if wanted.count is not None and wanted.count < 1:
            raise CommandRefused(f"count must be at least 1, not {wanted.count}")
        vhost, queue = self._queue(wanted.vhost, wanted.name)
        self._faults.refusals.start(vhost, queue, wanted.count)
        reply({"ok": True})

    def _accept_publishes(self, wanted: QueueName, reply: Reply) -> None:
        vhost = self._runtime.broker.vhosts.get(wanted.vhost)
        queue = vhost.queues.get(wanted.name) if vhost is not None else None
        # One that has been deleted refuses nothing any more.
        if queue is not None:
            self._faults.refusals.stop(queue)
        reply({"ok": True})

    def _heal(self, _: Arguments, reply: Reply) -> None:
        self._faults.heal()
        self._measure()
        reply({"ok": True})

    def _measure(self) -> None:
        """Look at the disk now, and not within the next second."""
        self._runtime.periodic_check.check(self._runtime.context.alarms.memory_octets)

    def _cut_connections(self, wanted: CutConnections, reply: Reply) -> None:
        cut = self._cut(wanted.vhost, wanted.name)
        self._waits.answer(
            reply, lambda: self._are_gone(cut), lambda: {"count": len(cut)}, wanted.timeout_s
        )

    def _cut(self, vhost: str | None, name: str | None = None) -> list[Connection]:
        cut = [
            connection
            for connection in list(self._runtime.connections)
            if vhost in {None, _vhost_name(connection)} and name in {None, connection.label}
        ]
        for connection in cut:
            connection.wire.abort()
        return cut

    def _are_gone(self, cut: list[Connection]) -> bool:
        return not any(each in self._runtime.connections for each in cut)

    def _advance_clock(self, wanted: AdvanceClock, reply: Reply) -> None:
        self._faults.clock.advance(wanted.by_ms)
        reply({"ok": True, "ahead_ms": self._faults.clock.ahead_ms})

    # Waiting

    def _await_connections(self, wanted: AwaitConnections, reply: Reply) -> None:
        if wanted.count is None and wanted.blocked is None:
            raise CommandRefused("count or blocked is needed")

        def facts() -> dict[str, Any]:
            rows = [
                row
                for row in self._views.connections(Selection(vhost=wanted.vhost))
                if row is not None
            ]
            return {"count": len(rows), "blocked": sum(row.blocked for row in rows)}

        def is_so() -> bool:
            found = facts()
            return all(
                expected in {None, found[name]}
                for name, expected in (("count", wanted.count), ("blocked", wanted.blocked))
            )

        self._waits.answer(reply, is_so, facts, wanted.timeout_s)

    def _queue(self, vhost_name: str, name: str) -> tuple[VHost[Queue], Queue]:
        vhost = self._runtime.broker.vhosts.get(vhost_name)
        if vhost is None:
            raise CommandRefused(f"no virtual host {vhost_name!r}", NOT_FOUND)
        queue = vhost.queues.get(name)
        if queue is None:
            raise CommandRefused(f"no queue {name!r} in virtual host {vhost_name!r}", NOT_FOUND)
        return vhost, queue


def _vhost_name(connection: Connection) -> str | None:
    """The virtual host of a connection; None until it has logged in."""
    vhost = getattr(connection, "vhost", None)
    return None if vhost is None else vhost.name
