"""The commands of the control socket over HTTP, for `vouchmq --url`: frames in, frames out.

    POST /api/commands, one frame ─▶ who may ask that ─▶ the broker ─▶ the frames of its answer

What belongs to a virtual host, or is changed, is done for the user, whom the broker checks; all
else shows the whole broker, and needs a tag: of what is in virtual hosts, those rows that the user
would see in a list of the API. What would need files of the broker's machine is not
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
from vouchmq.management.api.listed import IN_VHOSTS, sees_event
from vouchmq.management.broker import BrokerUnavailable
from vouchmq.server.admin.frames import BadFrame, FrameReader, frame

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Mapping

    from vouchmq.management.api.call import Call, Visitor

MEDIA_TYPE: Final = "application/vnd.vouchmq.frames"
FILLER: Final = frame({})
WATCH: Final = "watch events"
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
    **dict.fromkeys(("status", "listeners", WATCH, "ledger status", "ha status"), MONITORS),
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


class _Shown:
    """What somebody is shown of the answer to a command.

    Args:
        visitor: who asks
        command: what for
    """

    def __init__(self, visitor: Visitor, command: str) -> None:
        self._visitor = visitor
        self._listing = command.removeprefix("list ")
        self._is_filtered = command == WATCH or self._listing in IN_VHOSTS
        self._columns: list[str] = []
        self._count = 0

    def of(self, content: dict[str, Any]) -> dict[str, Any]:
        """A frame, without the rows that are not shown."""
        if not self._is_filtered:
            return content
        self._columns = content.get("columns", self._columns)
        if "rows" in content:
            rows = [each for each in content["rows"] if self._sees(each)]
            self._count += len(rows)
            content = {**content, "rows": rows}
        return {**content, "count": self._count} if "count" in content else content

    def _sees(self, values: list[Any]) -> bool:
        row = dict(zip(self._columns, values, strict=True))
        if self._listing == WATCH:
            return sees_event(self._visitor, row["event"], row["facts"])
        return self._visitor.may_enter(row["vhost"])


async def _answer(call: Call, command: str, request: dict[str, Any]) -> AsyncGenerator[bytes, None]:
    shown = _Shown(call.visitor, command)
    try:
        async with aclosing(call.broker.frames(command, **request)) as frames:
            async for content in frames:
                yield frame(shown.of(content))
    except BrokerUnavailable as error:
        yield frame({"ok": False, "error": str(error), "code": UNAVAILABLE})
