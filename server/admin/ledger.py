"""What can be asked of the ledger over the control socket, and how it is answered.

An audit runs elsewhere. Who runs it tells the broker what it has found, which is kept as a
parameter of the broker and shown with the ledger's status. Must not know sockets.

Spec: HTTP-44
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Annotated, Final, Protocol

import structlog
from msgspec import Meta, Struct, ValidationError, convert, to_builtins

from vouchmq.server.admin.audit import Changing, who
from vouchmq.server.admin.commands import Arguments, CommandRefused
from vouchmq.server.broker.definitions import GlobalParameterSet

if TYPE_CHECKING:
    from collections.abc import Callable

    from vouchmq.server.admin.accounts.administration import Administration
    from vouchmq.server.admin.commands import ControlCommands, Reply
    from vouchmq.server.ledger.ledger import Ledger

LAST_AUDIT: Final = "last_audit"
"""The parameter of the broker that holds what the last audit has found."""

NO_LEDGER: Final = "this broker has no ledger"

log = structlog.get_logger(__name__)

Count = Annotated[int, Meta(ge=0, le=(1 << 63) - 1)]
Name = Annotated[str, Meta(max_length=1024)]
Names = Annotated[dict[Name, Count], Meta(max_length=100)]


class AuditedTo(Struct, frozen=True):
    """The last line of a broker's ledger that an audit has read: epoch and number."""

    o: Count
    n: Count


class AuditResult(Struct, frozen=True, kw_only=True):
    """What an audit has found: `summary.json` of `vouchmq audit`, which has more.

    Args:
        verdict: for people
        exit: 0 nothing is wrong, 1 findings, 3 not provable
        finished_us: when it ended, since 1970
        first_us: the time of the first event that it has read
        last_us: that of the last
        brokers: whose ledgers it has read, and how far
        copies: how many it has judged
        states: copies by state
        findings: by kind
        since: only messages from then on, in microseconds
        until: only messages before
        vhost: only queues of this virtual host
        queue: only queues whose names match
    """

    verdict: Annotated[str, Meta(max_length=4096)]
    exit: Annotated[int, Meta(ge=0, le=3)]
    finished_us: Count
    first_us: Count | None = None
    last_us: Count | None = None
    brokers: Annotated[dict[Name, AuditedTo], Meta(max_length=100)]
    copies: Count
    states: Names
    findings: Names
    since: int | None = None
    until: int | None = None
    vhost: Name | None = None
    queue: Name | None = None


class Audited(Changing, frozen=True, kw_only=True):
    """An audit has ended."""

    result: AuditResult


class Owner(Protocol):
    """The running broker; its ledger is None where none is configured."""

    ledger: Ledger | None


class LedgerCommands:
    """Answers what is asked of the ledger.

    Args:
        owner: of the ledger
        soon: has something called in the loop's thread
        administration: of the broker, which keeps the result of the last audit
    """

    def __init__(
        self, owner: Owner, soon: Callable[..., object], administration: Administration
    ) -> None:
        self._owner = owner
        self._soon = soon
        self._administration = administration

    def register(self, commands: ControlCommands) -> None:
        """Register on, off, status, inventory, rotate and audited."""
        for name, command in (
            ("on", self._on),
            ("off", self._off),
            ("status", self._status),
            ("inventory", self._inventory),
            ("rotate", self._rotate),
        ):
            commands.register(f"ledger {name}", Arguments, partial(self._do, command))
        commands.register("ledger audited", Audited, self._audited)

    def _do(self, command: Callable[[Ledger, Reply], None], _: Arguments, reply: Reply) -> None:
        ledger = self._owner.ledger
        if ledger is None:
            raise CommandRefused(NO_LEDGER)
        command(ledger, reply)

    def _path_later(self, reply: Reply) -> Callable[[str], None]:
        """What gives the path of a file as the answer, in whatever thread it is known."""

        def tell(path: str) -> None:
            self._soon(reply, {"ok": True, "path": path})

        return tell

    def _on(self, ledger: Ledger, reply: Reply) -> None:
        try:
            ledger.switch_on()
        except OSError as error:
            raise CommandRefused(error.strerror or str(error)) from error
        reply({"ok": True})

    def _off(self, ledger: Ledger, reply: Reply) -> None:
        if ledger.is_on:
            ledger.switch_off(done=self._path_later(reply))
        else:
            reply({"ok": True})

    def _status(self, ledger: Ledger, reply: Reply) -> None:
        reply({"ok": True, **ledger.status(), **self._last_audit()})

    def _audited(self, asked: Audited, reply: Reply) -> None:
        self._administration.begin(asked)
        if self._owner.ledger is None:
            raise CommandRefused(NO_LEDGER)
        found = GlobalParameterSet(LAST_AUDIT, to_builtins(asked.result))
        lsn = self._administration.accounts.change(found)
        log.info(
            "admin.audit_recorded",
            **who(asked),
            exit_code=asked.result.exit,
            findings=asked.result.findings,
        )
        self._administration.answer(reply, lsn)

    def _last_audit(self) -> dict[str, object]:
        """What the last audit has found, if the broker was told."""
        kept = self._administration.accounts.global_parameters.get(LAST_AUDIT)
        if kept is None:
            return {}
        try:
            return {"audit": to_builtins(convert(kept.value, AuditResult))}
        except ValidationError:
            # Parameters can be set to anything.
            return {}

    def _inventory(self, ledger: Ledger, reply: Reply) -> None:
        _require_on(ledger)
        ledger.take_inventory(self._path_later(reply))

    def _rotate(self, ledger: Ledger, reply: Reply) -> None:
        _require_on(ledger)
        ledger.rotate(self._path_later(reply))


def _require_on(ledger: Ledger) -> None:
    if not ledger.is_on:
        raise CommandRefused("it is off")
