"""What all administrative commands share: who may ask, when they are answered, who is sent away.

    command ─▶ allowed? ─▶ changed, in force at once ─▶ the record is synced ─▶ answer

A change is answered like a durable queue.declare: once its record is on disk (DURABLE-02). While
the disk refuses blocks nothing is changed at all. Connections and queues that go with a user or a
virtual host go in slices, so that nobody else is delayed (LIMIT-23).

Must not know sockets, nor what a command changes.

Spec: AUTH-07, CONN-56, HTTP-04
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from vouchmq.protocol.states import ConnectionState
from vouchmq.protocol.text import quoted
from vouchmq.server.admin.commands import INTERNAL_ERROR, CommandRefused, refuse

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from vouchmq.server.admin.audit import Changing
    from vouchmq.server.admin.commands import Reply
    from vouchmq.server.auth.users import User
    from vouchmq.server.broker.queues.api import Queue
    from vouchmq.server.broker.vhost import VHost
    from vouchmq.server.connection.connection import Connection
    from vouchmq.server.runtime.runtime import BrokerRuntime

ADMINISTRATOR: Final = "administrator"
POLICYMAKER: Final = "policymaker"
FORBIDDEN: Final = 401
NOT_FOUND: Final = 404
PROTECTED: Final = 412
UNAVAILABLE: Final = 503


def pass_on(error: Exception) -> None:
    """Where no step is expected to fail, it is a bug."""
    raise error


class Administration:
    """Changes of one running broker.

    Args:
        runtime: the broker
    """

    def __init__(self, runtime: BrokerRuntime) -> None:
        self.broker = runtime.broker
        self.authenticator = runtime.authenticator
        self.accounts = runtime.broker.accounts
        self._context = runtime.context
        self._connections = runtime.connections

    # Before a change

    def begin(self, asked: Changing, *tags: str, vhost: str | None = None) -> User | None:
        """As `allow`, of something that changes the broker.

        Raises:
            CommandRefused: also 503, not while the disk refuses
        """
        user = self.allow(asked, *tags, vhost=vhost)
        if self._context.has_failed or self._context.alarms.is_storage_failing:
            raise CommandRefused("the disk takes no changes at present", UNAVAILABLE)
        return user

    def allow(self, asked: Changing, *tags: str, vhost: str | None = None) -> User | None:
        """Pass if whoever asks may do it; gives that user.

        Args:
            asked: names the user; without one the owner of the socket asks, who may everything
            tags: one of them is needed, if not that of an administrator
            vhost: where; who is no administrator must have permissions there

        Raises:
            CommandRefused: 401, not by this user
        """
        user = None
        if asked.user is not None:
            user = self.authenticator.find(asked.user)
            if user is None or not _is_allowed(user, tags, vhost):
                raise CommandRefused(f"user {asked.user!r} may not do this", FORBIDDEN)
        return user

    def vhost(self, name: str) -> VHost[Queue]:
        """The virtual host of that name.

        Raises:
            CommandRefused: 404, there is none
        """
        vhost = self.broker.vhosts.get(name)
        if vhost is None:
            raise CommandRefused(f"no virtual host {quoted(name)}", NOT_FOUND)
        return vhost

    def require_user(self, name: str) -> None:
        """Pass if there is a user of that name.

        Raises:
            CommandRefused: 404, there is none
        """
        if name not in self.accounts.users:
            raise CommandRefused(f"no user {quoted(name)}", NOT_FOUND)

    # After a change

    def answer(self, reply: Reply, lsn: int, **facts: Any) -> None:
        """Answer once everything up to `lsn` is on disk."""
        promise = _Promise(reply, lsn, facts)
        if not promise.release(self._context.watermark):
            self._context.waits(promise)

    def permissions_changed(self, vhost: str | None = None) -> None:
        """Routes are remembered together with the verdict on who may use them (AUTH-07)."""
        for each in self.broker.vhosts.values():
            if vhost in {None, each.name}:
                each.generation += 1

    def closing(self, is_meant: Callable[[Connection], bool], reason: str) -> Iterator[None]:
        """Close connections by force, one at each step (CONN-56)."""
        for connection in list(self._connections):
            is_open = connection.state is ConnectionState.RUNNING
            if is_open and is_meant(connection):
                connection.shut_down(reason)
                yield

    def in_slices(
        self,
        steps: Iterator[None],
        then: Callable[[], None],
        failed: Callable[[Exception], None] = pass_on,
    ) -> None:
        """Take all steps, with turns for others in between, then call `then`, or `failed`."""
        budget = self._context.budget

        def go_on() -> None:
            budget.begin()
            try:
                for _ in steps:
                    if budget.is_over():
                        budget.put_off(go_on)
                        return
            except Exception as error:  # noqa: BLE001 - whoever asked decides
                failed(error)
            else:
                then()

        budget.put_off(go_on)


class _Promise:
    """An answer that waits for the disk; see `context.Waiter`."""

    def __init__(self, reply: Reply, lsn: int, facts: dict[str, Any]) -> None:
        self._reply = reply
        self._lsn = lsn
        self._facts = facts

    def release(self, watermark: int) -> bool:
        """See `context.Waiter`."""
        if watermark < self._lsn:
            return False
        self._reply({"ok": True, **self._facts})
        return True

    def storage_failed(self) -> None:
        """See `context.Waiter`."""
        refuse(self._reply, "storage has failed", INTERNAL_ERROR)


def _is_allowed(user: User, tags: tuple[str, ...], vhost: str | None) -> bool:
    if ADMINISTRATOR in user.tags:
        return True
    return any(tag in user.tags for tag in tags) and (vhost is None or user.may_enter(vhost))
