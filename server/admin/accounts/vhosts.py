"""`put vhost`, `delete vhost`, limits of virtual hosts.

A virtual host that is deleted is found by nobody any more; its connections are closed, then its
queues and exchanges go, in slices. One record says all of it. Must not know sockets.

Spec: CONN-56, HTTP-23, HTTP-28, VHOST-02, VHOST-03, VHOST-04, VHOST-05
"""

from __future__ import annotations

from dataclasses import replace
from itertools import chain
from typing import TYPE_CHECKING, Final, Literal

import structlog

from vouchmq.protocol.text import quoted
from vouchmq.server.admin.accounts.administration import NOT_FOUND, PROTECTED
from vouchmq.server.admin.accounts.users import require_name
from vouchmq.server.admin.audit import Changing, who
from vouchmq.server.admin.commands import CommandRefused
from vouchmq.server.broker import definitions as d

if TYPE_CHECKING:
    from vouchmq.server.admin.accounts.administration import Administration
    from vouchmq.server.admin.commands import ControlCommands, Reply

log = structlog.get_logger(__name__)

VHostLimit = Literal["max-connections", "max-queues", "max-exchanges"]
ALL_NAMES: Final = ".*"


class VHostArguments(Changing, frozen=True, kw_only=True):
    """The virtual host that a command is about."""

    name: str


class PutVHost(VHostArguments, frozen=True, kw_only=True):
    """A virtual host to make or change; None: as it is."""

    description: str | None = None
    tags: list[str] | None = None
    default_queue_type: Literal["", "classic", "quorum", "stream"] | None = None
    protected_from_deletion: bool | None = None


class VHostLimitArguments(VHostArguments, frozen=True, kw_only=True):
    """A limit of a virtual host."""

    limit: VHostLimit


class PutVHostLimit(VHostLimitArguments, frozen=True, kw_only=True):
    """A limit and its value; negative: none."""

    value: int


class VHostCommands:
    """The commands that change virtual hosts.

    Args:
        administration: of the broker
    """

    def __init__(self, administration: Administration) -> None:
        self._administration = administration
        self._broker = administration.broker

    def register(self, commands: ControlCommands) -> None:
        """Enter the commands."""
        commands.register("put vhost", PutVHost, self._put)
        commands.register("delete vhost", VHostArguments, self._delete)
        commands.register("put vhost-limit", PutVHostLimit, self._put_limit)
        commands.register("delete vhost-limit", VHostLimitArguments, self._delete_limit)

    def _put(self, asked: PutVHost, reply: Reply) -> None:
        administration, name = self._administration, asked.name
        user = administration.begin(asked)
        require_name(name)
        known = self._broker.vhosts.get(name)
        settings = known.settings() if known is not None else d.VHostSet(name)
        said = {
            "description": asked.description,
            "tags": asked.tags,
            "default_queue_type": asked.default_queue_type,
            "is_protected": asked.protected_from_deletion,
        }
        changes = {key: value for key, value in said.items() if value is not None}
        vhost, lsn = self._broker.put_vhost(replace(settings, **changes))  # type: ignore[arg-type]
        vhost.generation += 1
        if known is None and user is not None:
            # Who makes one may use it (VHOST-02).
            every = (ALL_NAMES, ALL_NAMES, ALL_NAMES)
            lsn = max(lsn, administration.authenticator.permit(user.name, name, *every))
        log.info("admin.vhost_set", **who(asked), vhost=name, **changes)
        administration.answer(reply, lsn, created=known is None)

    def _delete(self, asked: VHostArguments, reply: Reply) -> None:
        administration, name = self._administration, asked.name
        administration.begin(asked)
        if administration.vhost(name).is_protected:
            raise CommandRefused(
                f"virtual host {quoted(name)} is protected from deletion", PROTECTED
            )
        found = self._broker.delete_vhost(name)
        if found is None:
            raise CommandRefused(f"no virtual host {quoted(name)}", NOT_FOUND)
        vhost, lsn = found
        administration.authenticator.forget_vhost(name)
        log.info("admin.vhost_deleted", **who(asked), vhost=name)
        # By identity: one of that name may be made, and entered, meanwhile.
        steps = chain(
            administration.closing(
                lambda connection: connection.vhost is vhost, f"vhost '{name}' is deleted"
            ),
            vhost.dismantle(),
        )
        administration.in_slices(steps, lambda: administration.answer(reply, lsn))

    def _put_limit(self, asked: PutVHostLimit, reply: Reply) -> None:
        self._limit(asked, asked.limit, asked.value, reply)

    def _delete_limit(self, asked: VHostLimitArguments, reply: Reply) -> None:
        self._limit(asked, asked.limit, d.UNLIMITED, reply)

    def _limit(self, asked: VHostArguments, limit: VHostLimit, value: int, reply: Reply) -> None:
        self._administration.begin(asked)
        vhost = self._administration.vhost(asked.name)
        settings = vhost.settings().limited(**{limit.replace("-", "_"): value})
        _, lsn = self._broker.put_vhost(settings)
        log.info("admin.vhost_limit_set", **who(asked), vhost=vhost.name, limit=limit, value=value)
        self._administration.answer(reply, lsn)
