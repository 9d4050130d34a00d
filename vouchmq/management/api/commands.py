"""The commands of the control socket over HTTP, for `vouchmq --url`: frames in, frames out.

    POST /api/commands, one frame ─▶ who may ask that ─▶ the broker ─▶ the frames of its answer

What belongs to a virtual host, or is changed, is done for the user, whom the broker checks; all
else shows the whole broker, and needs a tag. What would need files of the broker's machine is not
there. Frames are those of `server/admin/frames.py`, so that bytes stay bytes and an answer of any
length is sent as it comes; an empty one says that the broker is still at it.

Spec: HTTP-39
"""

from __future__ import annotations

from contextlib import aclosing
from typing import TYPE_CHECKING, Any, Final

from vouchmq.management.api.call import (
    ADMINISTRATORS,
    ANY_TAG,
    MONITORS,
    POLICYMAKERS,
    Streamed,
)
from vouchmq.management.api.errors import UNAVAILABLE, bad_request
from vouchmq.management.broker import BrokerUnavailable
from vouchmq.server.admin.frames import BadFrame, FrameReader, frame

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Mapping

    from vouchmq.management.api.call import Call

MEDIA_TYPE: Final = "application/vnd.vouchmq.frames"
FILLER: Final = frame({})
# The broker looks whether the user may, by permissions and tags.
OF_USERS: Final = frozenset(
    {
        *(f"{verb} {noun}" for verb in ("put", "delete") for noun in ("queue", "exchange")),
        *(f"{verb} binding" for verb in ("put", "delete")),
        *("purge queue", "pause queue", "resume queue", "wait queue"),
        *("publish", "get", "peek", "move", "return dead letters"),
        *("close connection", "close channel", "set prefetch"),
        *(
            f"{verb} {noun}"
            for verb in ("put", "delete")
            for noun in (
                *("user", "user-limit", "permissions", "topic-permissions"),
                *("vhost", "vhost-limit", "policy", "operator-policy"),
                *("parameter", "global-parameter"),
            )
        ),
        *("export definitions", "import definitions", "ledger audited"),
    }
)
OF_THE_BROKER: Final[Mapping[str, frozenset[str]]] = {
    **dict.fromkeys(
        ("status", "listeners", "watch events", "ledger status", "ha status"), MONITORS
    ),
    **dict.fromkeys(
        (
            *("list overview", "list vhosts", "list queues", "list exchanges", "list bindings"),
            *("list connections", "list channels", "list consumers", "list alarms", "list store"),
        ),
        MONITORS,
    ),
    **dict.fromkeys(
        (
            *("list policies", "list operator-policies"),
            *("list parameters", "list global-parameters"),
        ),
        POLICYMAKERS,
    ),
    **dict.fromkeys(("list users", "list permissions", "list topic-permissions"), ADMINISTRATORS),
    **dict.fromkeys(
        ("ledger on", "ledger off", "ledger inventory", "ledger rotate"), ADMINISTRATORS
    ),
}


async def run(call: Call) -> Streamed:
    """Have a command done."""
    request = _request(call.body)
    command = request.pop("command", None)
    if not isinstance(command, str) or {"user", "origin"} & set(request):
        raise bad_request("expected a command, and not who asks")
    if command in OF_USERS:
        call.require(ANY_TAG)
        request |= {"user": call.visitor.user, "origin": call.origin}
    elif command in OF_THE_BROKER:
        call.require(OF_THE_BROKER[command])
    else:
        raise bad_request(f"{command!r} cannot be asked for over HTTP")
    answer = _answer(call, command, request)
    return Streamed(await call.streams.begin(call.visitor.user, answer, FILLER), MEDIA_TYPE)


def _request(body: bytes) -> dict[str, Any]:
    frames = FrameReader()
    frames.add(body)
    try:
        request = frames.next()
    except BadFrame as error:
        raise bad_request(str(error)) from None
    if request is None:
        raise bad_request("expected one frame")
    return request


async def _answer(call: Call, command: str, request: dict[str, Any]) -> AsyncGenerator[bytes, None]:
    try:
        async with aclosing(call.broker.frames(command, **request)) as frames:
            async for content in frames:
                yield frame(content)
    except BrokerUnavailable as error:
        yield frame({"ok": False, "error": str(error), "code": UNAVAILABLE})
