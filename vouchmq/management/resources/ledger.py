"""The ledger: whether it is on, its switch, and what the last audit has found.

Spec: HTTP-44
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from msgspec import Struct, structs

from vouchmq.management.api.call import ADMINISTRATORS, NO_CONTENT

if TYPE_CHECKING:
    from vouchmq.management.api.call import Call


class Switch(Struct, frozen=True, forbid_unknown_fields=True):
    """Whether it is to be on."""

    on: bool


async def status(call: Call) -> object:
    """What there is to say of it."""
    found = await call.broker.ask("ledger status")
    return {name: value for name, value in found.items() if name != "ok"}


class AuditBody(Struct, frozen=True):
    """What `vouchmq audit` writes into `summary.json`, which has more; the broker checks it."""

    verdict: str
    exit: int
    finished_us: int
    copies: int
    brokers: dict[str, Any]
    states: dict[str, int]
    findings: dict[str, int]
    first_us: int | None = None
    last_us: int | None = None
    since: int | None = None
    until: int | None = None
    vhost: str | None = None
    queue: str | None = None


async def put_audit(call: Call) -> object:
    """Keep what an audit has found."""
    await call.do("ledger audited", result=structs.asdict(call.content(AuditBody)))
    return NO_CONTENT


async def switch(call: Call) -> object:
    """Switch it on or off."""
    call.require(ADMINISTRATORS)
    wanted = call.content(Switch)
    await call.broker.ask("ledger on" if wanted.on else "ledger off")
    return NO_CONTENT
