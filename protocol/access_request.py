"""The one method that pamqp does not know, as a class of pamqp's; interpreted, as those are."""

from __future__ import annotations

from typing import ClassVar

from pamqp import base


class AccessRequest(base.Frame):
    """access.request of AMQP 0-8 and 0-9, which old clients still send.

    Spec: CHAN-30
    """

    # pamqp's convention: slots in wire order, and the type of each behind an underscore.
    __slots__: ClassVar[list[str]] = [  # noqa: RUF023
        "realm",
        "exclusive",
        "passive",
        "active",
        "write",
        "read",
    ]
    frame_id: ClassVar[int] = 10
    index: ClassVar[int] = 0x001E000A
    name: ClassVar[str] = "Access.Request"
    synchronous: ClassVar[bool] = True

    _realm = "shortstr"
    _exclusive = "bit"
    _passive = "bit"
    _active = "bit"
    _write = "bit"
    _read = "bit"

    realm: str
    exclusive: bool
    passive: bool
    active: bool
    write: bool
    read: bool
