"""The ledger: whether it is on, and its switch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct

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


async def switch(call: Call) -> object:
    """Switch it on or off."""
    call.require(ADMINISTRATORS)
    wanted = call.content(Switch)
    await call.broker.ask("ledger on" if wanted.on else "ledger off")
    return NO_CONTENT
